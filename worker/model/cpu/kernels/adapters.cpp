#include "adapters.h"

#include <algorithm>

namespace headrace {

Status AdaptedRows::set(int slot, int layer, int part, const LowRankArrays& arrays) {
  const bool is_known = slot >= 0 && slot < kMaxAdapters && layer >= 0 && layer < model_.sizes.layers && part >= 0 &&
                        part < kAdaptedParts;
  if (!is_known || arrays.rank <= 0 || arrays.rank > kMaxRank || arrays.rank % 4 ||
      !model_.has_shape(layer, part, arrays.rows, arrays.columns))
    return kBadArgument;
  std::vector<LowRank>& parts = slots_[slot].parts;
  parts.resize(model_.sizes.layers * kAdaptedParts);
  LowRank& to = parts[layer * kAdaptedParts + part];
  to.rank = arrays.rank, to.columns = arrays.columns, to.num_panels = arrays.rows / kLanes;
  const size_t down_size = static_cast<size_t>(arrays.rank) * arrays.columns;
  to.down = Memory(down_size * sizeof(float));
  std::copy(arrays.down, arrays.down + down_size, to.down.as<float>());
  to.up = Memory(static_cast<size_t>(arrays.rows) * arrays.rank * sizeof(float));
  float* up = to.up.as<float>();
  for (int panel = 0; panel < to.num_panels; ++panel)
    for (int r = 0; r < arrays.rank; ++r)
      for (int lane = 0; lane < kLanes; ++lane)
        *up++ = arrays.up[(static_cast<size_t>(panel) * kLanes + lane) * arrays.rank + r];
  return kOk;
}

Status AdaptedRows::clear(int slot) {
  if (slot < 0 || slot >= kMaxAdapters) return kBadArgument;
  std::vector<LowRank>().swap(slots_[slot].parts);
  return kOk;
}

bool AdaptedRows::is_sound(const StepArrays& step) const {
  if (!step.adapters) return true;
  return std::all_of(step.adapters, step.adapters + step.num_seqs, [&](int64_t slot) {
    return slot == -1 || (slot >= 0 && slot < kMaxAdapters && !slots_[slot].parts.empty());
  });
}

void AdaptedRows::prepare(const StepArrays& step) {
  slot_of_.clear();
  if (!step.adapters) return;
  slot_of_.resize(step.num_rows, -1);
  for (int64_t seq = 0; seq < step.num_seqs; ++seq)
    std::fill(slot_of_.begin() + step.query_start[seq], slot_of_.begin() + step.query_start[seq + 1],
              static_cast<int>(step.adapters[seq]));
  width_ = std::max(model_.sizes.hidden, model_.sizes.intermediate);
  inputs_.reserve(sizeof(float) * step.num_rows * width_);
  kept_.reserve(sizeof(float) * step.num_rows * kKept * kMaxRank);
}

void AdaptedRows::shrink(int row, int layer, std::initializer_list<Part> parts, const float* x) {
  int number = 0;
  for (const Part part : parts) {
    const LowRank& of = part_of(row, layer, part);
    float* const to = kept(row, number++);
    for (int r = 0; r < of.rank; r += 4) {
      const float* down = of.down.as<float>() + static_cast<size_t>(r) * of.columns;
      Floats sums[4] = {Floats::zero(), Floats::zero(), Floats::zero(), Floats::zero()};
      for (int k = 0; k < of.columns; k += kLanes) {
        const Floats lanes = Floats::load(x + k);
        for (int i = 0; i < 4; ++i)
          sums[i] = fma(Floats::load(down + static_cast<size_t>(i) * of.columns + k), lanes, sums[i]);
      }
      for (int i = 0; i < 4; ++i) to[r + i] = sum(sums[i]);
    }
  }
}

Floats AdaptedRows::expand(int row, int layer, Part part, int number, int panel) const {
  const LowRank& of = part_of(row, layer, part);
  const float* up = of.up.as<float>() + static_cast<size_t>(panel) * of.rank * kLanes;
  const float* const by = kept(row, number);
  Floats total = Floats::zero();
  for (int r = 0; r < of.rank; ++r, up += kLanes) total = fma(Floats::load(up), Floats::splat(by[r]), total);
  return total;
}

void AdaptedRows::add(int row, int layer, Part part, int number, float* to) const {
  const int num_panels = part_of(row, layer, part).num_panels;
  for (int panel = 0; panel < num_panels; ++panel, to += kLanes)
    (Floats::load(to) + expand(row, layer, part, number, panel)).store(to);
}

}  // namespace headrace
