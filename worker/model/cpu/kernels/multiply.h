// Products of quantized rows with a panel of weights.
//
// The contract: an output is a sum over the blocks of 32 inputs, from the first to the last,
//
//     output = fma(dot, scale of weights * scale of activations, output)      dot: exact, in int32, of both terms
//     output = fma(minimum, scaled_sum, output)                               weights with a minimum
//
// one lane for itself and one row for itself. How many rows are computed together, by which thread and in which
// order therefore cannot change a bit of it.
#pragma once

#include "activations.h"
#include "weights.h"

namespace headrace {

constexpr int kTileFloats = kMaxTileRows * kLanes;

// out[r][lane] for the tile's rows and the panel's sixteen outputs.
void multiply_tile(const Weights& weights, int panel, const Tile& tile, float* out);

}  // namespace headrace
