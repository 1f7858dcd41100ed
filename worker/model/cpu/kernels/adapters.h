// Low-rank adapters beside the weights: y += up (down x), in single precision, for the rows that have one.
//
//     slot       of an adapter, 0 .. kMaxAdapters; a row has one at most
//     down       [rank][columns], rank a multiple of four, filled up with zeros
//     up         panels of sixteen rows: [rows / 16][rank][16], scale included
//
// A row is added to by itself, each sum in one order, so its bits do not hang on which others the step has; a row
// without an adapter computes what it would if there were none. A slot is filled and emptied while no row has it.
#pragma once

#include <initializer_list>
#include <vector>

#include "model.h"
#include "vectors.h"

namespace headrace {

constexpr int kMaxAdapters = 64;
constexpr int kMaxRank = 512;
constexpr int kAdaptedParts = kDown + 1;

struct LowRank {
  int rank = 0, columns = 0, num_panels = 0;  // rank 0: this part is not adapted
  Memory down, up;
};

class AdaptedRows {
 public:
  explicit AdaptedRows(const Model& model) : model_(model), slots_(kMaxAdapters) {}

  Status set(int slot, int layer, int part, const LowRankArrays& arrays);
  Status clear(int slot);

  bool is_sound(const StepArrays& step) const;
  void prepare(const StepArrays& step);
  bool has(int row) const { return !slot_of_.empty() && slot_of_[row] >= 0; }

  // The row's inputs in full precision, to be kept until `shrink`: as wide as the widest part's.
  float* inputs(int row) { return inputs_.as<float>() + static_cast<size_t>(row) * width_; }

  // down x of each of these parts, kept for the row as numbers 0, 1, .. of them. The row has an adapter.
  void shrink(int row, int layer, std::initializer_list<Part> parts, const float* x);

  // Sixteen of the part's outputs for the row, by what was kept under `number`; zeros where it is not adapted.
  Floats expand(int row, int layer, Part part, int number, int panel) const;
  // All of them, added to what is there.
  void add(int row, int layer, Part part, int number, float* to) const;

 private:
  struct Adapter {
    std::vector<LowRank> parts;  // [layers * kAdaptedParts], or none: the slot is free
  };
  const LowRank& part_of(int row, int layer, Part part) const {
    return slots_[slot_of_[row]].parts[layer * kAdaptedParts + part];
  }
  float* kept(int row, int number) const {
    return kept_.as<float>() + (static_cast<size_t>(row) * kKept + number) * kMaxRank;
  }

  static constexpr int kKept = 3;
  const Model& model_;
  std::vector<Adapter> slots_;
  std::vector<int> slot_of_;  // [rows], or empty when no row has any
  size_t width_ = 0;
  Memory inputs_, kept_;
};

}  // namespace headrace
