"""Rotary frequencies, plain and scaled to longer contexts, from a checkpoint's statement of them.

Sources: RoFormer; position interpolation (linear); Llama 3.1's scaling of long wavelengths; YaRN. A scaling
whose angles change with the length of the sequence (dynamic NTK, LongRoPE) is refused: keys are cached rotated,
so an answer would depend on when each of them was computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from shared.errors import ConfigurationError
from worker.model.families.model_config import Rope

_Scale = Callable[[list[float], float, Mapping[str, Any]], Rope]


def make_rope(head_dim: int, theta: float, scaling: Mapping[str, Any]) -> Rope:
    """`scaling` as Hugging Face states it: `rope_type` and its parameters; empty is unscaled."""
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _SCALINGS:
        raise ConfigurationError(f"rope scaling {kind!r} is not supported; supported are {', '.join(_SCALINGS)}")
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigurationError("a model that rotates a part of each head is not supported")
    plain = [theta ** (-2.0 * pair / head_dim) for pair in range(head_dim // 2)]
    try:
        return _SCALINGS[kind](plain, theta, scaling)
    except KeyError as error:
        raise ConfigurationError(f"rope scaling {kind!r} lacks {error.args[0]!r}") from error


def _default(plain: list[float], _theta: float, _scaling: Mapping[str, Any]) -> Rope:
    return Rope(tuple(plain))


def _linear(plain: list[float], _theta: float, scaling: Mapping[str, Any]) -> Rope:
    return Rope(tuple(frequency / scaling["factor"] for frequency in plain))


def _llama3(plain: list[float], _theta: float, scaling: Mapping[str, Any]) -> Rope:
    """Short waves stay, long ones are slowed by `factor`, those between are interpolated."""
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    context = scaling["original_max_position_embeddings"]

    def scaled(frequency: float) -> float:
        turns = context * frequency / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        return (1 - kept) * frequency / factor + kept * frequency

    return Rope(tuple(scaled(frequency) for frequency in plain))


def _yarn(plain: list[float], theta: float, scaling: Mapping[str, Any]) -> Rope:
    """Pairs that turn often within the trained context stay, those that turn little are slowed by `factor`."""
    factor, num_pairs = scaling["factor"], len(plain)
    first = _pair_that_turns(scaling.get("beta_fast") or 32, num_pairs, theta, scaling)
    last = _pair_that_turns(scaling.get("beta_slow") or 1, num_pairs, theta, scaling)
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * num_pairs - 1)
    width = last - first or 0.001
    slowed = [min(max((pair - first) / width, 0.0), 1.0) for pair in range(num_pairs)]
    frequencies = (f * (1 - share + share / factor) for f, share in zip(plain, slowed, strict=True))
    return Rope(tuple(frequencies), _yarn_magnitude(scaling))


def _pair_that_turns(times: float, num_pairs: int, theta: float, scaling: Mapping[str, Any]) -> float:
    """The pair, as a fraction, that makes so many turns in the trained context."""
    context = scaling["original_max_position_embeddings"]
    return num_pairs * math.log(context / (times * 2 * math.pi)) / math.log(theta)


def _yarn_magnitude(scaling: Mapping[str, Any]) -> float:
    stated = scaling.get("attention_factor")
    if stated is not None:
        return float(stated)
    growth = math.log(scaling["factor"]) if scaling["factor"] > 1 else 0.0
    over, under = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if over and under:
        return (0.1 * over * growth + 1) / (0.1 * under * growth + 1)
    return 0.1 * growth + 1


_SCALINGS: dict[str, _Scale] = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
