"""What the simulated model says, and the tokenizer it says it with.

A byte-level BPE built by rule: 256 bytes, three special tokens, and one token a word of a small vocabulary (its
prefixes are the merges that lead to it). Any text can be encoded, about a token a byte; what the model says is a
word a token. Knows no engine. Invariant: a token depends on the key and the index only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from shared.schemas import TokenizerBlob

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_TOKEN = "<|im_end|>"
OPENINGS = ("The", "A", "Every", "Some", "One", "This", "Another", "No")
VOCABULARY = (
    "river water stone light wind slow deep bright turns carries over under through past quiet long old new "
    "mill wheel gate channel field hill garden morning evening follows meets leaves finds keeps and with near "
    "before after the of small wide clear cold warm green silver along bank bridge path boat rain snow spring "
    "winter summer"
)
WORDS = VOCABULARY.split()
WORDS_PER_SENTENCE = 11
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MASK = (1 << 64) - 1


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in byte-level BPE (GPT-2): itself if printable, else from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


class SimulatedText:
    """Ids: the specials, the bytes, then words and their prefixes."""

    def __init__(self) -> None:
        alphabet = byte_alphabet()
        space = alphabet[ord(" ")]
        self._ids = {token: index for index, token in enumerate((*SPECIALS, *alphabet))}
        self._merges: list[tuple[str, str]] = []
        self._first = [self._word_id(word) for word in OPENINGS]
        self._openings = [self._word_id(space + word) for word in OPENINGS]
        self._words = [self._word_id(space + word) for word in WORDS]
        self._period = self._ids["."]
        self._closing = [self._ids[mark] for mark in '"]}']
        self.eos_id = self._ids[EOS_TOKEN]
        self.vocab_size = len(self._ids)

    def token(self, key: int, index: int) -> int:
        """The token with this index of the answer that `key` names."""
        drawn = mix(key + index)
        place = index % (WORDS_PER_SENTENCE + 1)
        if place == WORDS_PER_SENTENCE:
            return self._period
        choices = self._words if place else self._openings if index else self._first
        return choices[drawn % len(choices)]

    def allowed_token(self, key: int, index: int, allowed: Sequence[int]) -> int:
        """One of `allowed`, at least one, that tends to an end: it ends where it may, and closes what it opened half of
        the time."""
        if self.eos_id in allowed:
            return self.eos_id
        drawn = mix(key + index)
        closing = [token_id for token_id in self._closing if token_id in allowed]
        choices = closing if closing and drawn & 1 else allowed
        return choices[(drawn >> 1) % len(choices)]

    def blob(self) -> TokenizerBlob:
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        spec = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": self._ids[token], "content": token, **flags} for token in SPECIALS],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": self._ids, "merges": self._merges},
        }
        return TokenizerBlob(
            tokenizer_json=json.dumps(spec), chat_template=CHAT_TEMPLATE, eos_token=EOS_TOKEN, pad_token=SPECIALS[0]
        )

    def _word_id(self, word: str) -> int:
        """The word's token; it and its prefixes enter the vocabulary, each merged from the one before."""
        for end in range(2, len(word) + 1):
            if word[:end] not in self._ids:
                self._merges.append((word[: end - 1], word[end - 1]))
                self._ids[word[:end]] = len(self._ids)
        return self._ids[word]


def mix(value: int) -> int:
    """64 well mixed bits of `value` (splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
