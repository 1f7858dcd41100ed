"""Rebuilds a tokenizer from a GGUF file's vocabulary alone, as `tokenizers` JSON, so that no second download is
needed: byte-level BPE with the pre-tokenizer that the file names, or SentencePiece's BPE from its scores.

Sources: the GGUF specification; llama.cpp's pre-tokenizer names; the published tokenizers of each family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shared.errors import ConfigurationError
from shared.schemas import TokenizerBlob
from worker.model.families.metadata import Metadata

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # GGUF token types
# Control tokens that end an answer, whatever the file calls its end of sequence.
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>")
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2_SPLIT = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN_SPLIT = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Scheme:
    """A pre-tokenizer. `split` is its regular expression; None: the byte-level one's own. `ends` are further
    control tokens that end an answer."""

    split: str | None = None
    has_single_digits: bool = False
    ignores_merges: bool = False  # a piece that is in the vocabulary is taken whole
    is_normalized: bool = False  # Unicode NFC
    starts_with_bos: bool = False
    ends: tuple[str, ...] = ()


_LLAMA3 = _Scheme(_LLAMA3_SPLIT, ignores_merges=True, starts_with_bos=True, ends=("<|end_of_text|>",))
_QWEN2 = _Scheme(_QWEN2_SPLIT, is_normalized=True, ends=("<|endoftext|>",))
_SCHEMES = {
    "default": _Scheme(),
    "gpt-2": _Scheme(),
    "smollm": _Scheme(has_single_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _Scheme(_TEKKEN_SPLIT, ignores_merges=True, starts_with_bos=True),
}


def read_tokenizer(metadata: Metadata) -> tuple[TokenizerBlob, tuple[int, ...]]:
    """The tokenizer, and the ids of all tokens that end an answer."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    model: str = metadata["tokenizer.ggml.model"]
    scheme = _Scheme(starts_with_bos=True)
    if model == "gpt2":
        scheme = _scheme(metadata.get("tokenizer.ggml.pre", "default"))
        document = _byte_level_bpe(tokens, metadata["tokenizer.ggml.merges"], scheme)
    elif model == "llama":
        with_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        document = _sentencepiece_bpe(tokens, types, metadata["tokenizer.ggml.scores"], with_space=with_space)
    else:
        raise ConfigurationError(f"GGUF tokenizer {model!r} is not supported; supported are 'gpt2' and 'llama'")
    document["added_tokens"] = _added_tokens(tokens, types, is_sentencepiece=model == "llama")

    roles = ("bos", "eos", "eot", "eom", "padding", "unknown")
    stated = {role: metadata.get(f"tokenizer.ggml.{role}_token_id") for role in roles}
    ids: dict[str, int] = {role: int(token_id) for role, token_id in stated.items() if token_id is not None}
    text = {role: tokens[token_id] for role, token_id in ids.items()}
    blob = TokenizerBlob(
        tokenizer_json=msgspec.json.encode(document).decode(),
        chat_template=metadata.get("tokenizer.chat_template"),
        bos_token=text.get("bos"),
        eos_token=text.get("eos"),
        pad_token=text.get("padding"),
        unk_token=text.get("unknown"),
        add_bos_token=bool(metadata.get("tokenizer.ggml.add_bos_token", scheme.starts_with_bos)),
    )
    ends = {*_END_OF_TURN, *scheme.ends}
    stops = {ids[role] for role in ("eos", "eot", "eom") if role in ids}
    stops |= {i for i, token in enumerate(tokens) if token in ends and types[i] == _CONTROL}
    return blob, tuple(sorted(stops))


def _scheme(pre: str) -> _Scheme:
    if pre not in _SCHEMES:
        raise ConfigurationError(f"GGUF pre-tokenizer {pre!r} is not supported; supported are {', '.join(_SCHEMES)}")
    return _SCHEMES[pre]


def _added_tokens(tokens: Sequence[str], types: Sequence[int], *, is_sentencepiece: bool) -> list[dict[str, Any]]:
    """User-defined pieces of SentencePiece are written in its own spelling of a space, so they are looked for in
    normalized text; all others are as a user types them."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    return [
        {
            "id": i,
            "content": token,
            **flags,
            "normalized": is_sentencepiece and kind == _USER_DEFINED and "▁" in token,
            "special": kind != _USER_DEFINED,
        }
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]


def _byte_level_bpe(tokens: Sequence[str], merges: Sequence[str], scheme: _Scheme) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if scheme.has_single_digits:
        steps.append({"type": "Digits", "individual_digits": True})
    if scheme.split is not None:
        pattern = {"Regex": scheme.split}
        steps.append({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
    own_split = scheme.split is None
    steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": own_split})
    bpe = _bpe(tokens, [merge.split(" ") for merge in merges]) | {"ignore_merges": scheme.ignores_merges}
    return _document(
        bpe,
        normalizer={"type": "NFC"} if scheme.is_normalized else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": steps},
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    )


def _sentencepiece_bpe(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], *, with_space: bool
) -> dict[str, Any]:
    """SentencePiece names no merges: every split of a piece into two pieces is one, best piece first."""
    ids = {token: i for i, token in enumerate(tokens)}
    merges: list[tuple[float, int, int, list[str]]] = []
    for piece, kind, score in zip(tokens, types, scores, strict=True):
        for cut in range(1, len(piece) if kind == 1 else 0):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                merges.append((-score, -len(left), -len(right), [left, right]))
    merges.sort(key=lambda merge: merge[:3])
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    bpe = _bpe(tokens, [merge[3] for merge in merges]) | {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    normalizers = [{"type": "Prepend", "prepend": "▁"}, space] if with_space else [space]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if with_space:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return _document(
        bpe,
        normalizer={"type": "Sequence", "normalizers": normalizers},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
    )


def _bpe(tokens: Sequence[str], merges: list[list[str]]) -> dict[str, Any]:
    return {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}


def _document(model: dict[str, Any], **parts: dict[str, Any] | None) -> dict[str, Any]:
    return {"version": "1.0", "truncation": None, "padding": None, "post_processor": None, **parts, "model": model}
