"""From a checkpoint to a model in the kernels: what fits, sizes padded to whole blocks, every weight handed over.

Rows of Q and K are put as rotated neighbours (0, 1), (2, 3) .., as the kernels turn them. Heads and layers whose
width is no multiple of 32 are filled up with zeros, which change no sum. A weight that a GGUF file stores in blocks
the kernels know is taken as it is; any other is quantized to 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from worker.model.checkpoints.checkpoint import Checkpoint
from worker.model.cpu.blocks import BLOCK, BlockMatrix, from_stored, quantize
from worker.model.cpu.library import ActivationTerms, ModelSizes, NativeModel, Part
from worker.model.families.model_config import ModelConfig, Rope

BLOCK_SIZE = 16  # tokens of a KV block, as the kernels have it
_NO_LAYER = -1

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


def obstacle(config: ModelConfig) -> str | None:
    """What of the model the kernels cannot compute; None: nothing."""
    reasons = {
        f"activation {config.activation}": config.activation != "silu",
        "scaled embeddings": config.embedding_scale != 1,
        "biases outside Q, K and V": config.output_bias or config.mlp_bias,
        "norms after attention and MLP": config.post_norms,
        "rotations that differ by layer": len(config.ropes) != 1,
        "sliding windows": any(window is not None for window in config.layer_windows),
        "heads of an odd width": config.head_dim % 2 != 0,
    }
    return next((what for what, applies in reasons.items() if applies), None)


def block_bytes(config: ModelConfig, *, kv_is_half: bool) -> int:
    """Of one KV block in all layers."""
    values = 2 * config.num_layers * config.num_kv_heads * BLOCK_SIZE * padded(config.head_dim)
    return values * (2 if kv_is_half else 4)


class Terms(NamedTuple):
    """How many of eight bits each activations are rounded to, by what they are multiplied with."""

    qkv: int
    output: int
    gate_and_up: int
    down: int
    head: int


# Mixed: a second term where it saves most. Of what one term loses, QKV and the head make half, at a fifth of the work.
ROUNDINGS: Mapping[str, Terms] = {
    "int16": Terms(2, 2, 2, 2, 2),
    "mixed": Terms(2, 1, 1, 1, 2),
    "int8": Terms(1, 1, 1, 1, 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What of a native model is chosen."""

    context_length: int
    num_blocks: int
    num_threads: int
    kv_is_half: bool = True
    terms: Terms


def model_sizes(config: ModelConfig, build: Build) -> ModelSizes:
    return ModelSizes(
        num_threads=build.num_threads,
        layers=config.num_layers,
        intermediate=padded(config.intermediate_size),
        vocab=config.vocab_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        hidden=padded(config.hidden_size),
        unpadded_hidden=config.hidden_size,
        head_dim=padded(config.head_dim),
        unpadded_head_dim=config.head_dim,
        context=build.context_length,
        kv_is_half=build.kv_is_half,
        terms=ActivationTerms(*build.terms),
        norm_epsilon=config.rms_norm_eps,
        attention_scale=config.attention_scale,
        num_blocks=build.num_blocks,
    )


def hand_over(
    checkpoint: Checkpoint, model: NativeModel, *, context_length: int, progress: Callable[[str], None]
) -> None:
    """Every weight of the checkpoint into the model. ConfigurationError where one is missing or has a wrong shape."""
    assembly = _Assembly(checkpoint, model)
    config = checkpoint.config
    assembly.matrix(_NO_LAYER, Part.EMBEDDING, "model.embed_tokens", config.vocab_size)
    if not config.tied_embeddings:
        assembly.matrix(_NO_LAYER, Part.HEAD, "lm_head", config.vocab_size)
    assembly.norm(_NO_LAYER, Part.FINAL_NORM, "model.norm")
    model.set_vector(_NO_LAYER, Part.ROTATION, _rotation(config.ropes[0], config.head_dim, context_length))
    for layer in range(config.num_layers):
        assembly.layer(layer)
        if (layer + 1) % 10 == 0 or layer + 1 == config.num_layers:
            progress(f"loaded {layer + 1} of {config.num_layers} layers")


class _Assembly:
    """Hands over one checkpoint. `_stored`, `_pair_heads`: what a GGUF checkpoint has besides `weight`."""

    def __init__(self, checkpoint: Checkpoint, model: NativeModel) -> None:
        self._checkpoint = checkpoint
        self._config = checkpoint.config
        self._model = model
        self._stored: Callable[[str], Any] | None = getattr(checkpoint, "stored", None)
        self._pair_heads: Callable[[str], int] = getattr(checkpoint, "pair_heads", lambda _name: 0)

    def layer(self, layer: int) -> None:
        config, prefix = self._config, f"model.layers.{layer}"
        self.heads(layer, Part.QUERY, f"{prefix}.self_attn.q_proj", config.num_heads, is_rotated=True)
        self.heads(layer, Part.KEY, f"{prefix}.self_attn.k_proj", config.num_kv_heads, is_rotated=True)
        self.heads(layer, Part.VALUE, f"{prefix}.self_attn.v_proj", config.num_kv_heads, is_rotated=False)
        self.from_heads(layer, Part.OUTPUT, f"{prefix}.self_attn.o_proj")
        self.matrix(layer, Part.GATE, f"{prefix}.mlp.gate_proj", config.intermediate_size)
        self.matrix(layer, Part.UP, f"{prefix}.mlp.up_proj", config.intermediate_size)
        self.matrix(layer, Part.DOWN, f"{prefix}.mlp.down_proj", config.hidden_size)
        self.norm(layer, Part.ATTENTION_NORM, f"{prefix}.input_layernorm")
        self.norm(layer, Part.MLP_NORM, f"{prefix}.post_attention_layernorm")
        if config.qkv_bias:
            self._model.set_vector(layer, Part.QKV_BIAS, self._joined_bias(f"{prefix}.self_attn"))
        if config.qk_norm:
            for part, kind in ((Part.QUERY_NORM, "q"), (Part.KEY_NORM, "k")):
                self._model.set_vector(layer, part, self._head_vector(f"{prefix}.self_attn.{kind}_norm.weight"))

    def matrix(self, layer: int, part: Part, module: str, num_rows: int) -> None:
        """Rows as they come; filled up to whole blocks unless they are tokens."""
        wanted = num_rows if layer == _NO_LAYER else padded(num_rows)
        self._model.set_weights(layer, part, _rows(self._read(module), np.arange(num_rows), wanted))

    def heads(self, layer: int, part: Part, module: str, num_heads: int, *, is_rotated: bool) -> None:
        """A projection whose outputs are heads."""
        blocks = self._stored_blocks(module)
        is_paired = blocks is not None and self._pair_heads(f"{module}.weight") > 0
        order = head_rows(num_heads, self._config.head_dim, is_interleaved=is_rotated and not is_paired)
        self._model.set_weights(layer, part, _rows(blocks or self._quantized(module), order, len(order)))

    def from_heads(self, layer: int, part: Part, module: str) -> None:
        """The projection whose inputs are heads: each head's columns are filled up to whole blocks."""
        config = self._config
        if config.head_dim % BLOCK == 0:
            return self.matrix(layer, part, module, config.hidden_size)
        weight = self._float(f"{module}.weight").reshape(config.hidden_size, config.num_heads, config.head_dim)
        filled = np.zeros((padded(config.hidden_size), config.num_heads, padded(config.head_dim)), np.float32)
        filled[: config.hidden_size, :, : config.head_dim] = weight
        return self._model.set_weights(layer, part, quantize(filled.reshape(len(filled), -1)))

    def norm(self, layer: int, part: Part, module: str) -> None:
        self._model.set_vector(layer, part, _filled_up(self._float(f"{module}.weight")))

    def _read(self, module: str) -> BlockMatrix:
        blocks = self._stored_blocks(module)
        return blocks if blocks is not None else self._quantized(module)

    def _stored_blocks(self, module: str) -> BlockMatrix | None:
        if self._stored is None:
            return None
        tensor = self._stored(f"{module}.weight")
        return from_stored(tensor.tensor_type.name, tensor.data, tensor.shape[-1])

    def _quantized(self, module: str) -> BlockMatrix:
        return quantize(self._float(f"{module}.weight"))

    def _float(self, name: str) -> FloatArray:
        return self._checkpoint.weight(name).float().numpy()

    def _joined_bias(self, prefix: str) -> FloatArray:
        config = self._config
        parts: list[FloatArray] = []
        for kind, num_heads in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads)):
            bias = self._float(f"{prefix}.{kind}_proj.bias")
            order = head_rows(num_heads, config.head_dim, is_interleaved=kind != "v")
            parts.append(np.where(order < 0, 0, bias[order]))
        return np.concatenate(parts)

    def _head_vector(self, name: str) -> FloatArray:
        order = head_rows(1, self._config.head_dim, is_interleaved=True)
        return np.where(order < 0, 0, self._float(name)[order])


def padded(size: int) -> int:
    """Up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def _filled_up(vector: FloatArray) -> FloatArray:
    return np.pad(vector, (0, padded(len(vector)) - len(vector)))


def _rows(blocks: BlockMatrix, order: IntArray, wanted: int) -> BlockMatrix:
    """`order`, then zeros up to `wanted`."""
    if len(order) == wanted == blocks.shape[0] and bool((order == np.arange(wanted)).all()):
        return blocks
    return blocks.take_rows(np.pad(order, (0, wanted - len(order)), constant_values=-1))


def head_rows(num_heads: int, head_dim: int, *, is_interleaved: bool) -> IntArray:
    """Which row goes where in heads filled up to whole blocks; -1: none. Interleaving turns halves to neighbours."""
    within = np.arange(head_dim)
    if is_interleaved:
        within = within.reshape(2, -1).T.reshape(-1)
    heads = np.full((num_heads, padded(head_dim)), -1)
    heads[:, :head_dim] = np.arange(num_heads)[:, None] * head_dim + within
    return heads.reshape(-1)


def _rotation(rope: Rope, head_dim: int, num_positions: int) -> FloatArray:
    """[position, padded head_dim]: magnitude times cosine and sine of each pair; pairs that fill up do not turn."""
    frequencies: Sequence[float] = rope.frequencies
    angles = np.arange(num_positions)[:, None] * np.array(frequencies)  # float64
    table = np.zeros((num_positions, padded(head_dim) // 2, 2), np.float32)
    table[:, : head_dim // 2, 0] = rope.magnitude * np.cos(angles)
    table[:, : head_dim // 2, 1] = rope.magnitude * np.sin(angles)
    return table.reshape(num_positions, -1)
