"""One model's tokenizer and chat template, built from the TokenizerBlob a worker publishes.

Encoding is the `tokenizers` library; decoding is ours, so that text made token by token and text made at
once are the same by construction: a token is a piece of bytes, a text is the pieces joined and read as
UTF-8, an invalid byte sequence is U+FFFD. Only decoders whose pieces do not depend on their neighbours are
known this way (byte-level BPE, SentencePiece with or without byte fallback, none); another is refused when
the tokenizer is built. Knows no HTTP and no Redis.
"""

from __future__ import annotations

import codecs
import hashlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import msgspec
from tokenizers import Tokenizer as RawTokenizer

from shared.errors import ConfigurationError, InvalidRequest
from shared.schemas import TokenizerBlob
from shared.text.chat_template import ChatTemplate

SPACE_MARK = "\u2581"
_blob_decoder = msgspec.json.Decoder(TokenizerBlob)


def encode_blob(blob: TokenizerBlob) -> bytes:
    """JSON, compressed. The same blob always gives the same bytes."""
    return zlib.compress(msgspec.json.encode(blob), 6)


def decode_blob(data: bytes) -> TokenizerBlob:
    """Inverse of `encode_blob`. Raises ValueError on anything else."""
    try:
        return _blob_decoder.decode(zlib.decompress(data))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"not a tokenizer blob: {error}") from error


def blob_digest(blob: TokenizerBlob) -> str:
    """32 hex digits naming the content: equal blobs have equal digests, whoever computes them."""
    return hashlib.blake2b(msgspec.json.encode(blob), digest_size=16).hexdigest()


class Tokenizer:
    """Immutable once built; safe to share between threads."""

    def __init__(self, raw: RawTokenizer, blob: TokenizerBlob) -> None:
        raw.no_truncation()
        raw.no_padding()
        self._raw = raw
        self._decoding = _Decoding(raw)
        self._bos_id = raw.token_to_id(blob.bos_token) if blob.add_bos_token and blob.bos_token else None
        self.chat_template = blob.chat_template or ""
        self.special_tokens = {"bos_token": blob.bos_token, "eos_token": blob.eos_token, "pad_token": blob.pad_token}
        self._template = ChatTemplate(blob) if blob.chat_template else None
        self.token_count: int = raw.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_blob(cls, blob: TokenizerBlob) -> Tokenizer:
        """Raises ConfigurationError when the blob's JSON or template cannot be used."""
        try:
            raw = RawTokenizer.from_str(blob.tokenizer_json)
        except Exception as error:  # the library raises bare Exception
            raise ConfigurationError(f"tokenizer JSON cannot be read: {error}") from error
        return cls(raw, blob)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """With `add_special_tokens`, what the model expects around a bare text (a BOS token, at most once)."""
        ids = self._raw.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        if add_special_tokens and self._bos_id is not None and ids[:1] != [self._bos_id]:
            return [self._bos_id, *ids]
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; an id outside the vocabulary has none."""
        piece = self._decoding.piece_of if skip_special_tokens else self._decoding.special_piece_of
        text = b"".join([piece(token_id) for token_id in ids]).decode("utf-8", "replace")
        return text[_leading_spaces(text, self._decoding.strip_spaces) :]

    def token_id(self, token: str) -> int | None:
        return self._raw.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for, special ones for their name; maybe half a character. None known: no bytes."""
        return self._decoding.special_piece_of(token_id)

    @property
    def special_ids(self) -> list[int]:
        """Tokens that have no text in an answer."""
        return self._decoding.special_ids

    def incremental(self, visible_ids: Iterable[int] = ()) -> IncrementalDecoder:
        """Special tokens have no text, but for those of `visible_ids`."""
        decoding, visible = self._decoding, frozenset(visible_ids)

        def piece_of(token_id: int) -> bytes:
            return decoding.special_piece_of(token_id) if token_id in visible else decoding.piece_of(token_id)

        return IncrementalDecoder(piece_of if visible else decoding.piece_of, decoding.strip_spaces)

    def render_chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        **template_kwargs: Any,
    ) -> str:
        """The model's prompt for a conversation. Raises InvalidRequest (param "messages")."""
        if self._template is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions", param="messages")
        variables = {**template_kwargs, "tools": tools, "add_generation_prompt": add_generation_prompt}
        return self._template.render(messages, variables)


class IncrementalDecoder:
    """Text of one choice as its tokens come. All pushes and the flush concatenate to `decode` of all ids.

    Holds back at most three bytes: those of a character that is not complete yet.
    """

    __slots__ = ("_piece_of", "_strip_spaces", "_utf8")

    def __init__(self, piece_of: Callable[[int], bytes], strip_spaces: int) -> None:
        self._piece_of = piece_of
        self._strip_spaces = strip_spaces
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text this token completes; "" for a special token and inside a character."""
        text = self._utf8.decode(self._piece_of(token_id))
        return self._at_start(text) if self._strip_spaces and text else text

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was never completed."""
        return self._utf8.decode(b"", True)

    def _at_start(self, text: str) -> str:
        spaces = _leading_spaces(text, self._strip_spaces)
        self._strip_spaces = self._strip_spaces - spaces if spaces == len(text) else 0
        return text[spaces:]


def _leading_spaces(text: str, most: int) -> int:
    return min(most, len(text) - len(text.lstrip(" "))) if most else 0


class _Decoding:
    """Which bytes a token stands for, looked up once for each token that occurs."""

    def __init__(self, raw: RawTokenizer) -> None:
        self._raw = raw
        self._to_bytes, self.strip_spaces = _decoder_of(raw)
        self._special = {token_id for token_id, token in raw.get_added_tokens_decoder().items() if token.special}
        self._pieces: dict[int, bytes] = {}

    @property
    def special_ids(self) -> list[int]:
        return sorted(self._special)

    def piece_of(self, token_id: int) -> bytes:
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = b"" if token_id in self._special else self.special_piece_of(token_id)
            self._pieces[token_id] = piece
        return piece

    def special_piece_of(self, token_id: int) -> bytes:
        """As `piece_of`, but special tokens have their text."""
        token = self._raw.id_to_token(token_id) if token_id >= 0 else None
        return b"" if token is None else self._to_bytes(token)


def _decoder_of(raw: RawTokenizer) -> tuple[Callable[[str], bytes], int]:
    """How the tokenizer's own decoder reads one token, and how many leading spaces it drops from a text."""
    spec = cast("dict[str, Any] | None", msgspec.json.decode(raw.to_str())["decoder"])
    steps = [] if spec is None else cast("list[dict[str, Any]]", spec.get("decoders", [spec]))
    kinds = [str(step["type"]) for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level, 0
    if kinds == []:
        return _spaced, 1
    if kinds == ["Fuse"]:
        return str.encode, 0
    if kinds == ["Metaspace"] and steps[0]["replacement"] == SPACE_MARK:
        return _sentence_piece, 0 if steps[0].get("prepend_scheme") == "never" else 1
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and kinds[3:] in ([], ["Strip"]):
        replace, strip = steps[0], steps[3] if kinds[3:] else {"content": " ", "start": 0, "stop": 0}
        from_mark = replace["pattern"] == {"String": SPACE_MARK} and replace["content"] == " "
        if from_mark and strip["content"] == " " and strip["stop"] == 0:
            return _byte_fallback, int(strip["start"])
    raise ConfigurationError(f"tokenizers with this decoder are not supported: {msgspec.json.encode(spec).decode()}")


def _byte_alphabet() -> dict[int, int]:
    """The characters that stand for bytes in byte-level BPE: printable ones for themselves, others from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in plain]
    return {byte: byte for byte in plain} | {0x100 + index: byte for index, byte in enumerate(other)}


_BYTE_OF = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[ord(char)] for char in token])
    except KeyError:  # an added token is stored as its plain text
        return token.encode()


def _spaced(token: str) -> bytes:
    """Without a decoder the tokens are words: joined by spaces, of which the first is dropped."""
    return b" " + token.encode()


def _sentence_piece(token: str) -> bytes:
    return token.replace(SPACE_MARK, " ").encode()


def _byte_fallback(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return _sentence_piece(token)
