#include "multiply.h"

#include <algorithm>
#include <array>
#include <utility>

namespace headrace {
namespace {

// The processor's own prefetcher keeps up with a few rows; with more, arithmetic leaves it too little to see.
constexpr int kFewRows = 4;
constexpr int kAhead = 1024;  // bytes

using TileFunction = void (*)(const uint8_t* panel, int num_blocks, const Tile& tile, float* out);

// Where the next block of a tile's rows begins. T: terms of the activations.
template <int R, int T>
struct Inputs {
  explicit Inputs(const Tile& tile)
      : values(tile.values), scales(tile.scales), scaled_sums(tile.scaled_sums), negative_sums(tile.negative_sums) {}
  void advance() {
    values += kBlock * R * T;
    scales += R;
    scaled_sums += R;
    negative_sums += R;
  }
  const int8_t* values;
  const float *scales, *scaled_sums;
  const int32_t* negative_sums;
};

template <Format F, int R>
inline void add_dots(const uint8_t* values, const int8_t* inputs, Ints* dots) {
  if (F == kBytes) {
    add_byte_dots<R>(values, inputs, dots);
  } else {
    add_nibble_dots<R>(values, inputs, dots);
  }
}

template <Format F, int R, int T>
inline void add_block(const uint16_t* scales, const uint8_t* values, const Inputs<R, T>& inputs, Floats* sums) {
  constexpr int kZeroBits = F == kNibbles ? 3 : F == kBytes && kByteOffset ? 7 : 0;  // the zero point is 8 or 128
  Ints dots[R];
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r)
    dots[r] = T == 1 && kZeroBits ? shifted<kZeroBits>(Ints::splat(inputs.negative_sums[r])) : Ints::splat(0);
  add_dots<F, R>(values, inputs.values, dots);
  if (T == 2) {
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      dots[r] = shifted<8>(dots[r]);
      if (kZeroBits) dots[r] = dots[r] + shifted<kZeroBits>(Ints::splat(inputs.negative_sums[r]));
    }
    add_dots<F, R>(values, inputs.values + kBlock * R, dots);
  }
  const Floats scale = Floats::load(scales);
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) sums[r] = fma(to_floats(dots[r]), scale * Floats::splat(inputs.scales[r]), sums[r]);
  if (F != kNibblesMin) return;
  const Floats minimum = Floats::load(scales + kLanes);
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) sums[r] = fma(minimum, Floats::splat(inputs.scaled_sums[r]), sums[r]);
}

template <Format F, int R, int T>
void multiply_rows(const uint8_t* group, int num_blocks, const Tile& tile, float* out) {
  constexpr int kTogether = blocks_a_group(F);
  Floats sums[R];
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) sums[r] = Floats::zero();
  Inputs<R, T> inputs(tile);
  for (int block = 0; block < num_blocks; block += kTogether, group += group_bytes(F)) {
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(group);
    const uint8_t* values = group + kCacheLine;
    if (R > kFewRows)
      for (size_t i = 0; i < group_bytes(F); i += kCacheLine) __builtin_prefetch(group + kAhead + i);
    add_block<F, R, T>(scales, values, inputs, sums);
    inputs.advance();
    if (kTogether == 1 || block + 1 == num_blocks) continue;
    add_block<F, R, T>(scales + kLanes, values + value_bytes(F), inputs, sums);
    inputs.advance();
  }
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) sums[r].store(out + kLanes * r);
}

using ByRows = std::array<TileFunction, kMaxTileRows>;

template <Format F, int T, int... Before>
constexpr ByRows by_rows(std::integer_sequence<int, Before...>) {
  return {multiply_rows<F, Before + 1, T>...};
}

template <int T>
constexpr std::array<ByRows, kNumFormats> by_format() {
  constexpr auto kEachSize = std::make_integer_sequence<int, kMaxTileRows>();
  return {by_rows<kNibblesMin, T>(kEachSize), by_rows<kNibbles, T>(kEachSize), by_rows<kBytes, T>(kEachSize)};
}

constexpr std::array<std::array<ByRows, kNumFormats>, 2> kFunctions = {by_format<1>(), by_format<2>()};

}  // namespace

void multiply_tile(const Weights& weights, int panel, const Tile& tile, float* out) {
  const TileFunction function = kFunctions[tile.num_terms - 1][weights.format()][tile.num_rows - 1];
  function(weights.panel(panel), weights.num_blocks(), tile, out);
}

}  // namespace headrace
