// A weight matrix [rows (outputs), columns (inputs)] as panels of sixteen rows, the left side of every product.
//
//     w[row][k] = scale * (q - zero) + minimum        scale and minimum per row and 32 columns, half precision
//
//     format          q            zero  minimum   from
//     kNibblesMin     0 .. 15      0     yes       Q4_1, Q4_K
//     kNibbles        0 .. 15      8     no        Q4_0
//     kBytes          -128 .. 127  0     no        Q8_0, and whatever else there is, quantized to it
//
// A panel lies as it is read, from its start to its end, a cache line at a time: with two streams instead of one the
// processor's prefetcher lost half of the memory's bandwidth.
//
//     kNibblesMin   [blocks] x     { scale [16], minimum [16]        | q [4][16][4] }
//     kNibbles      [blocks / 2] x { scale [16], next's scale [16]   | q [4][16][4] | next's q }
//     kBytes        [blocks / 2] x { scale [16], next's scale [16]   | q [8][16][4] | next's q }
//
// q: as vectors.h draws a block. Rows after the last are zeros.
#pragma once

#include "memory.h"
#include "vectors.h"

namespace headrace {

enum Format { kNibblesMin = 0, kNibbles = 1, kBytes = 2, kNumFormats = 3 };

constexpr size_t value_bytes(Format format) { return kLanes * kBlock / (format == kBytes ? 1 : 2); }  // of a block
constexpr int blocks_a_group(Format format) { return format == kNibblesMin ? 1 : 2; }
constexpr size_t group_bytes(Format format) { return kCacheLine + blocks_a_group(format) * value_bytes(format); }

// A matrix as it is handed over: plain rows.
struct PlainWeights {
  Format format;
  int rows, columns;         // columns a multiple of 32
  const uint8_t* values;     // [rows, columns], one q a byte, int8 for kBytes
  const uint16_t* scales;    // [rows, columns / 32]
  const uint16_t* minimums;  // [rows, columns / 32], null without
};

class Weights {
 public:
  Weights() = default;
  explicit Weights(const PlainWeights& plain);

  Format format() const { return format_; }
  int rows() const { return rows_; }
  int num_panels() const { return (rows_ + kLanes - 1) / kLanes; }
  int num_blocks() const { return num_blocks_; }
  bool is_set() const { return rows_ > 0; }
  const uint8_t* panel(int index) const { return memory_.as<uint8_t>() + index * panel_bytes_; }

  // One row as floats: to[columns].
  void read_row(int row, float* to) const;

 private:
  struct Place {
    size_t scales, values;  // bytes from the panel's start
  };
  Place place(int block) const;
  void pack_block(const PlainWeights& plain, int panel, int block);

  Format format_ = kBytes;
  int rows_ = 0, num_blocks_ = 0;
  size_t panel_bytes_ = 0;
  Memory memory_;
};

}  // namespace headrace
