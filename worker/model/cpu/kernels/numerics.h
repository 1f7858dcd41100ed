// Functions of sixteen lanes whose result is the same on every machine: exponential, SiLU, root mean square.
#pragma once

#include <cmath>

#include "vectors.h"

namespace headrace {

// e to the power of each lane, to about one unit in the last place. x = n ln 2 + r with |r| < 0.35, and a Taylor
// series for r. Below -87 the result stays at e^-87, which nothing here can tell from 0; NaN stays NaN.
inline Floats exp(Floats x) {
  x = min(Floats::splat(88.0f), max(Floats::splat(-87.0f), x));
  const Ints whole = round_to_ints(x * Floats::splat(1.44269504f));
  const Floats n = to_floats(whole);
  Floats r = fma(n, Floats::splat(-0.693145751953125f), x);  // ln 2 in two parts: the first is short, so n times
  r = fma(n, Floats::splat(-1.42860677e-6f), r);             // it is exact
  Floats series = Floats::splat(1.0f / 5040);
  series = fma(series, r, Floats::splat(1.0f / 720));
  series = fma(series, r, Floats::splat(1.0f / 120));
  series = fma(series, r, Floats::splat(1.0f / 24));
  series = fma(series, r, Floats::splat(1.0f / 6));
  series = fma(series, r, Floats::splat(0.5f));
  series = fma(series, r, Floats::splat(1.0f));
  series = fma(series, r, Floats::splat(1.0f));
  return series * power_of_two(whole);
}

inline float exp(float x) {
  float lanes[kLanes];
  exp(Floats::splat(x)).store(lanes);
  return lanes[0];
}

// x * sigmoid(x)
inline Floats silu(Floats x) {
  const Floats one = Floats::splat(1.0f);
  return x / (one + exp(Floats::zero() - x));
}

// 1 / sqrt(mean of squares + epsilon). `padded` is a multiple of sixteen, with zeros after `size`.
inline float inverse_rms(const float* x, int padded, int size, float epsilon) {
  Floats squares = Floats::zero();
  for (int i = 0; i < padded; i += kLanes) {
    const Floats lanes = Floats::load(x + i);
    squares = fma(lanes, lanes, squares);
  }
  return 1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + epsilon);
}

}  // namespace headrace
