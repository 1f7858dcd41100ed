// Rows of activations as whole numbers in blocks of 32, each with its own scale: the right side of every product.
//
//     one term    x[k] is about scale * q[k]              scale = largest magnitude of the block / 127
//     two terms   x[k] is about scale * (256 p[k] + q[k])   the same divided by 256: sixteen bits instead of eight
//
// p and q are int8, rounded to nearest. Rows lie in tiles of at most kMaxTileRows, of nearly equal size; a tile is
// what one kernel call multiplies:
//
//     tile    [blocks] x [terms] x { [8 groups][R rows][4] int8 }      and beside it, per block and row:
//     scale, scaled_sum = scale * sum of 256 p + q (for weights with a minimum), negative_sum = -sum (for zero points)
//
// A row's numbers depend on that row alone; only where they lie depends on how many rows there are. A block with
// something that is not finite gets NaN for a scale, and so does whatever it is multiplied to.
#pragma once

#include <cstring>
#include <limits>
#include <vector>

#include "memory.h"
#include "numerics.h"

namespace headrace {

// One tile as the kernels see it; row r of block b is at b * num_rows + r.
struct Tile {
  int first_row, num_rows, num_terms;
  const int8_t* values;
  const float* scales;
  const float* scaled_sums;
  const int32_t* negative_sums;
};

class Activations {
 public:
  // Room for `num_rows` rows of `columns` (a multiple of 32) in one or two terms. What was in it is lost.
  void shape(int num_rows, int columns, int num_terms) {
    num_blocks_ = columns / kBlock;
    num_terms_ = num_terms;
    first_rows_.clear();
    tiles_.clear();
    const int num_tiles = (num_rows + kMaxTileRows - 1) / kMaxTileRows;
    for (int tile = 0; tile < num_tiles; ++tile) {
      first_rows_.push_back(static_cast<int>(static_cast<int64_t>(tile) * num_rows / num_tiles));
      const int end = static_cast<int>(static_cast<int64_t>(tile + 1) * num_rows / num_tiles);
      tiles_.insert(tiles_.end(), end - first_rows_.back(), tile);
    }
    first_rows_.push_back(num_rows);
    const size_t blocks = static_cast<size_t>(num_rows) * num_blocks_;
    values_.reserve(blocks * kBlock * num_terms);
    scales_.reserve(blocks * sizeof(float));
    scaled_sums_.reserve(blocks * sizeof(float));
    negative_sums_.reserve(blocks * sizeof(int32_t));
  }

  int num_tiles() const { return static_cast<int>(first_rows_.size()) - 1; }
  int num_blocks() const { return num_blocks_; }

  Tile tile(int index) const {
    const int first = first_rows_[index], rows = first_rows_[index + 1] - first;
    const size_t block = static_cast<size_t>(first) * num_blocks_;
    return {first, rows, num_terms_, values_.as<int8_t>() + block * kBlock * num_terms_, scales_.as<float>() + block,
            scaled_sums_.as<float>() + block, negative_sums_.as<int32_t>() + block};
  }

  // Quantize 32 values of a row; any thread, each block once.
  void put(int row, int block, Floats low, Floats high) {
    const Place at = place(row, block);
    if (!is_finite(low) || !is_finite(high)) return put_nan(at);
    const float largest = max_of(max(abs(low), abs(high)));
    const bool is_zero = largest < 1e-30f;
    const Floats inverse = Floats::splat(is_zero ? 0.0f : 127.0f / largest);
    const Floats first = low * inverse, second = high * inverse;
    Ints sums = put_term(at, 0, round_to_ints(first), round_to_ints(second));
    float scale = is_zero ? 0.0f : largest / 127.0f;
    if (num_terms_ == 2) {
      sums = shifted<8>(sums) + put_term(at, 1, remainder(first), remainder(second));
      scale /= 256.0f;
    }
    const int32_t total = sum(sums);
    scales_.as<float>()[at.number] = scale;
    scaled_sums_.as<float>()[at.number] = scale * static_cast<float>(total);
    negative_sums_.as<int32_t>()[at.number] = -total;
  }

 private:
  struct Place {
    int num_rows;
    size_t values, number;
  };

  // What rounding left, in 256ths. Not -128: it has no opposite, and one implementation moves signs.
  static Ints remainder(Floats x) {
    const Floats parts = (x - to_floats(round_to_ints(x))) * Floats::splat(256.0f), limit = Floats::splat(127.0f);
    return round_to_ints(max(min(parts, limit), Floats::zero() - limit));
  }

  // Returns the sum of both.
  Ints put_term(const Place& at, int term, Ints low, Ints high) {
    int8_t values[kBlock];
    store_bytes(low, values);
    store_bytes(high, values + kLanes);
    int8_t* to = values_.as<int8_t>() + at.values + static_cast<size_t>(term) * kBlock * at.num_rows;
    for (int group = 0; group < kGroups; ++group) std::memcpy(to + 4 * group * at.num_rows, values + 4 * group, 4);
    return low + high;
  }

  void put_nan(const Place& at) {
    const Ints zero = Ints::splat(0);
    for (int term = 0; term < num_terms_; ++term) put_term(at, term, zero, zero);
    scales_.as<float>()[at.number] = scaled_sums_.as<float>()[at.number] = std::numeric_limits<float>::quiet_NaN();
    negative_sums_.as<int32_t>()[at.number] = 0;
  }

  Place place(int row, int block) const {
    const int first = first_rows_[tiles_[row]], rows = first_rows_[tiles_[row] + 1] - first;
    const size_t start = static_cast<size_t>(first) * num_blocks_ + static_cast<size_t>(block) * rows;
    return {rows, start * kBlock * num_terms_ + 4 * static_cast<size_t>(row - first), start + (row - first)};
  }

  int num_blocks_ = 0, num_terms_ = 1;
  std::vector<int> first_rows_{0};  // [tiles + 1]
  std::vector<int> tiles_;          // [rows], the tile a row is in
  Memory values_, scales_, scaled_sums_, negative_sums_;
};

}  // namespace headrace
