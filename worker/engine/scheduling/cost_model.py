"""How long a step takes, learned from the steps there were; and how large a prefill may be beside decodes.

    seconds = a + b * tokens + c * pairs        pairs: each token with each one it attends to

Steps are kept in cells of like size, a few of the latest in each: so hours of equal decodes do not wash out what is
known of prefills, and the fit stays determined. It minimises the relative distance, not its square: a step that took
ten times as long because the machine was busy counts as one step. Knows no clock and no sequences.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from worker.engine.executor import Work

WARM_UP_STEPS = 3  # pages are touched, caches are cold
CELL_DEPTH = 8
REFIT_EVERY = 16
MIN_STEPS = 6
FIT_ROUNDS = 8
# Machines change: what is so many steps old counts half; but never nothing, lest hours of decodes leave prefills
# unknown.
HALF_LIFE_STEPS = 512
LEAST_WEIGHT = 0.01
_TINY = 1e-9
_NEAR = 1e-3

_Floats = npt.NDArray[np.float64]


class CostModel:
    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], deque[tuple[int, int, float, int]]] = {}
        self._coefficients: tuple[float, float, float] | None = None
        self._num_observed = 0
        self._num_unfitted = 0

    def observe(self, work: Work, seconds: float) -> None:
        self._num_observed += 1
        if self._num_observed <= WARM_UP_STEPS or seconds <= 0:
            return
        # Cells double in tokens and quadruple in pairs.
        cell = (work.tokens.bit_length(), work.pairs.bit_length() // 2)
        steps = self._cells.get(cell)
        if steps is None:
            steps = self._cells[cell] = deque(maxlen=CELL_DEPTH)
        steps.append((work.tokens, work.pairs, seconds, self._num_observed))
        self._num_unfitted += 1

    def coefficients(self) -> tuple[float, float, float] | None:
        """a, b, c, none of them negative; None while steps of one size only, or hardly any, are known."""
        if self._num_unfitted >= (REFIT_EVERY if self._coefficients else 1):
            self._num_unfitted = 0
            self._coefficients = self._fit()
        return self._coefficients

    def seconds(self, work: Work) -> float | None:
        known = self.coefficients()
        return None if known is None else known[0] + known[1] * work.tokens + known[2] * work.pairs

    def _fit(self) -> tuple[float, float, float] | None:
        steps = [step for cell in self._cells.values() for step in cell]
        sizes = {step[0] for step in steps}
        if len(steps) < MIN_STEPS or max(sizes) < 2 * min(sizes):
            return None
        table = np.array(steps, np.float64)
        seconds = table[:, 2]
        ages = self._num_observed - table[:, 3]
        features = np.column_stack((np.ones(len(steps)), table[:, :2])) / seconds[:, None]
        return _least_absolute(features, np.maximum(np.exp2(-ages / HALF_LIFE_STEPS), LEAST_WEIGHT))


def _least_absolute(features: _Floats, weights: _Floats) -> tuple[float, float, float]:
    """x >= 0 that minimises the weighted sum of |features @ x - 1|. What comes out negative is left out."""
    active = np.arange(3)
    solution = _reweighted(features, weights)
    while len(active) > 1 and (solution < 0).any():
        active = active[solution >= 0] if (solution >= 0).any() else np.array([1])
        solution = _reweighted(features[:, active], weights)
    found = np.zeros(3)
    found[active] = np.maximum(solution, 0.0)
    return float(found[0]), float(found[1]), float(found[2])


def _reweighted(features: _Floats, weights: _Floats) -> _Floats:
    """Least squares, again and again, each time with less weight for what lies far off."""
    scale = np.maximum(np.abs(features).max(axis=0), _TINY)
    scaled: _Floats = features / scale
    current: _Floats = weights
    solution: _Floats = np.zeros(len(scale))
    ridge: _Floats = _TINY * np.eye(len(scale))
    for _ in range(FIT_ROUNDS):
        weighted: _Floats = scaled * current[:, None]
        normal: _Floats = weighted.T @ scaled + ridge
        solution = _solve(normal, weighted.sum(axis=0))
        current = weights / np.maximum(np.abs(scaled @ solution - 1), _NEAR)
    return solution / scale


def _solve(normal: _Floats, right: _Floats) -> _Floats:
    return np.asarray(np.linalg.solve(normal, right), np.float64)


class Pace:
    """How many prompt tokens a step takes beside decodes, so that it ends within `target_s`; 0: as many as there are.

    Where decoding alone takes most of the target, a prefill still doubles the step: prompts must get on.
    """

    MIN_CHUNK = 16
    FIRST_CHUNK = 64  # while nothing is known
    STRETCH = 2.0

    def __init__(self, target_s: float, model: CostModel | None = None) -> None:
        self.model = model or CostModel()
        self._target_s = target_s

    def chunk(self, decodes: Work, position: int) -> int | None:
        """For a prefill that goes on at `position`; None: no limit."""
        if self._target_s <= 0:
            return None
        known = self.model.coefficients()
        if known is None:
            return self.FIRST_CHUNK
        _, per_token, per_pair = known
        alone_s = known[0] + per_token * decodes.tokens + per_pair * decodes.pairs
        left_s = max(self._target_s, self.STRETCH * alone_s) - alone_s
        # left = n * (per_token + per_pair * position) + n^2 * per_pair / 2, solved without cancellation
        linear = per_token + per_pair * position
        root = (linear * linear + 2 * per_pair * left_s) ** 0.5
        return max(self.MIN_CHUNK, int(min(2 * left_s / max(linear + root, _TINY), 1e9)))
