"""Reads a GGUF file of the llama architecture: weights as fp32, tokenizer as `tokenizers` JSON.

GGUF stores the rows of Q and K for rotation of neighbouring pairs; `weight` puts them back half a head apart.
The vocabulary is rebuilt from the file's metadata alone, so a model needs no second download.
Sources: the GGUF specification (ggml/docs/gguf.md); llama.cpp's pre-tokenizer names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, ReaderTensor, dequantize

from shared.errors import ConfigurationError
from shared.schemas import TokenizerBlob
from worker.model.checkpoint import ModelConfig, digest_files, rope_frequencies

_LAYER_WEIGHTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP_WEIGHTS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>")
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # GGUF token types
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class GGUFCheckpoint:
    """An open GGUF file (see `Checkpoint`). ConfigurationError when it is not one, or not of this family."""

    def __init__(self, path: Path) -> None:
        try:
            reader = GGUFReader(path)
        except (ValueError, IndexError, OSError) as error:
            raise ConfigurationError(f"{path} cannot be read as a GGUF file: {error}") from error
        self.name = path.stem.lower()
        self.digest = digest_files([path])
        self._tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in reader.tensors}
        metadata = _Metadata(reader.fields, path)
        self.config = self._read_config(metadata)
        self.tokenizer_blob, self.stop_token_ids = _read_tokenizer(metadata)

    def weight(self, name: str) -> torch.Tensor:
        stored = _stored_name(name)
        if stored not in self._tensors:
            raise ConfigurationError(f"the GGUF file has no tensor {stored!r}")
        tensor = self._tensors[stored]
        shape = [int(size) for size in reversed(tensor.shape)]
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).reshape(shape).astype("float32"))
        if stored.endswith("attn_q.weight"):
            return _unpermute(values, self.config.num_heads)
        if stored.endswith("attn_k.weight"):
            return _unpermute(values, self.config.num_kv_heads)
        return values

    def close(self) -> None:
        self._tensors.clear()  # the file stays mapped while a tensor of it lives

    def _read_config(self, metadata: _Metadata) -> ModelConfig:
        architecture = metadata.get("general.architecture", "")
        if architecture != "llama" or metadata.get("llama.expert_count", 0):
            kind = f"{architecture} with experts" if architecture == "llama" else architecture
            raise ConfigurationError(f"model architecture {kind!r} is not supported; supported in GGUF is 'llama'")
        num_heads = int(metadata["llama.attention.head_count"])
        hidden_size = int(metadata["llama.embedding_length"])
        head_dim = int(metadata.get("llama.attention.key_length", hidden_size // num_heads))
        if int(metadata.get("llama.rope.dimension_count", head_dim)) != head_dim:
            raise ConfigurationError("a model that rotates a part of each head is not supported")
        return ModelConfig(
            architecture="llama",
            vocab_size=len(metadata["tokenizer.ggml.tokens"]),
            hidden_size=hidden_size,
            intermediate_size=int(metadata["llama.feed_forward_length"]),
            num_layers=int(metadata["llama.block_count"]),
            num_heads=num_heads,
            num_kv_heads=int(metadata.get("llama.attention.head_count_kv", num_heads)),
            head_dim=head_dim,
            rms_norm_eps=float(metadata["llama.attention.layer_norm_rms_epsilon"]),
            context_length=int(metadata["llama.context_length"]),
            rope_frequencies=self._rope_frequencies(metadata, head_dim),
            tied_embeddings="output.weight" not in self._tensors,
            sliding_window=metadata.get("llama.attention.sliding_window", None),
        )

    def _rope_frequencies(self, metadata: _Metadata, head_dim: int) -> tuple[float, ...]:
        kind = metadata.get("llama.rope.scaling.type", "none")
        scaling = {"rope_type": kind, "factor": metadata.get("llama.rope.scaling.factor", 1.0)}
        frequencies = rope_frequencies(head_dim, float(metadata.get("llama.rope.freq_base", 10_000.0)), scaling)
        divisors = self._tensors.get("rope_freqs.weight")  # how GGUF states Llama 3's scaling
        if divisors is None:
            return frequencies
        return tuple(f / float(d) for f, d in zip(frequencies, divisors.data.ravel(), strict=True))


class _Metadata:
    """The file's key-value pairs, decoded when asked for."""

    def __init__(self, fields: Mapping[str, Any], path: Path) -> None:
        self._fields = fields
        self._path = path

    def __getitem__(self, key: str) -> Any:
        if key not in self._fields:
            raise ConfigurationError(f"{self._path} lacks the GGUF field {key!r}")
        return self._fields[key].contents()

    def get(self, key: str, default: Any) -> Any:
        return self._fields[key].contents() if key in self._fields else default


def _stored_name(name: str) -> str:
    module = name.removesuffix(".weight")
    if module in _TOP_WEIGHTS:
        return f"{_TOP_WEIGHTS[module]}.weight"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{_LAYER_WEIGHTS[part]}.weight"


def _unpermute(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[heads * (pair, 2), in] -> [heads * (2, pair), in]: neighbours move half a head apart."""
    rows, columns = weight.shape
    return weight.view(num_heads, rows // num_heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _read_tokenizer(metadata: _Metadata) -> tuple[TokenizerBlob, tuple[int, ...]]:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    model: str = metadata["tokenizer.ggml.model"]
    pre: str = metadata.get("tokenizer.ggml.pre", "default")
    if model == "gpt2":
        document = _byte_level_bpe(tokens, metadata["tokenizer.ggml.merges"], pre)
    elif model == "llama":
        with_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        document = _sentencepiece_bpe(tokens, types, metadata["tokenizer.ggml.scores"], with_space)
    else:
        raise ConfigurationError(f"GGUF tokenizer {model!r} is not supported; supported are 'gpt2' and 'llama'")
    document["added_tokens"] = _added_tokens(tokens, types)

    roles = ("bos", "eos", "eot", "eom", "padding", "unknown")
    stated = {role: metadata.get(f"tokenizer.ggml.{role}_token_id", None) for role in roles}
    ids: dict[str, int] = {role: int(token_id) for role, token_id in stated.items() if token_id is not None}
    text = {role: tokens[token_id] for role, token_id in ids.items()}
    stops = {ids[role] for role in ("eos", "eot", "eom") if role in ids}
    stops |= {i for i, token in enumerate(tokens) if token in _END_OF_TURN and types[i] == _CONTROL}
    starts_with_bos = model == "llama" or pre in ("llama3", "llama-v3", "llama-bpe")
    blob = TokenizerBlob(
        tokenizer_json=json.dumps(document, ensure_ascii=False),
        chat_template=metadata.get("tokenizer.chat_template", None),
        bos_token=text.get("bos"),
        eos_token=text.get("eos"),
        pad_token=text.get("padding"),
        unk_token=text.get("unknown"),
        add_bos_token=bool(metadata.get("tokenizer.ggml.add_bos_token", starts_with_bos)),
    )
    return blob, tuple(sorted(stops))


def _added_tokens(tokens: Sequence[str], types: Sequence[int]) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": i, "content": token, **flags, "special": kind != _USER_DEFINED}
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]


def _byte_level_bpe(tokens: Sequence[str], merges: Sequence[str], pre: str) -> dict[str, Any]:
    digits = {"type": "Digits", "individual_digits": True}
    split = {"type": "Split", "pattern": {"Regex": _LLAMA3_SPLIT}, "behavior": "Isolated", "invert": False}
    first = {
        "smollm": digits,
        "llama3": split,
        "llama-v3": split,
        "llama-bpe": split,
        "gpt-2": None,
        "default": None,
    }
    if pre not in first:
        raise ConfigurationError(f"GGUF pre-tokenizer {pre!r} is not supported; supported are {', '.join(first)}")
    is_llama3 = first[pre] is split
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not is_llama3}
    steps = [step for step in (first[pre], byte_level) if step is not None]
    bpe = _bpe(tokens, [merge.split(" ") for merge in merges]) | {"ignore_merges": is_llama3}
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    pre_tokenizer = {"type": "Sequence", "pretokenizers": steps}
    return _document(bpe, normalizer=None, pre_tokenizer=pre_tokenizer, decoder=decoder)


def _sentencepiece_bpe(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], with_space: bool
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
