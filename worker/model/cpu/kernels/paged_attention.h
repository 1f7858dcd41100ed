// Who attends to what in one step, and where results of separate segments wait until they are merged.
//
//     a sequence with one row      one item a segment, so that few long sequences still occupy every thread;
//                                  partial results are merged in `gather`
//     a sequence with more rows    items of neighbouring rows, each going through all its segments by itself
//
// Both do the same arithmetic in the same order: see attention.h.
#pragma once

#include <memory>
#include <vector>

#include "abi.h"
#include "attention.h"
#include "model.h"

namespace headrace {

class PagedAttention {
 public:
  PagedAttention(const Model& model, int num_threads);

  // The step's work; the arrays must stay until its end.
  void plan(const StepArrays& step);
  uint32_t num_units(int layer) const { return static_cast<uint32_t>(items(layer).size()) * sizes_.kv_heads; }

  void store(int layer, int64_t slot, int kv_head, const float* key, const float* value) {
    pool_.write(layer, slot, kv_head, key, value);
  }

  // One item for one key head. `qkv` [rows, qkv_width], rotated; what is finished goes to `mixed` [rows, mixed_width].
  void run(int layer, uint32_t unit, int thread, const float* qkv, float* mixed);

  // Finishes a row that was attended segment by segment.
  void gather(int row, float* mixed);

 private:
  struct Item {
    int seq, first_row, num_rows, segment;  // segment -1: all
  };
  struct Place {  // of one thread
    explicit Place(int head_dim);
    AttentionScratch scratch;
    Memory known, later;  // [kMaxQueries] partials
  };

  // In the last layer only the step's outputs attend.
  const std::vector<Item>& items(int layer) const { return layer + 1 == sizes_.layers ? last_items_ : items_; }
  bool has_output(const Item& item) const;
  int64_t length_of(int seq, int row) const;
  Queries queries_of(const Item& item, int first, int kv_head, const float* qkv) const;
  void attend_segment(int layer, int kv_head, const Item& item, const Queries& queries, int first, Place& place);
  void attend_all(int layer, int kv_head, const Item& item, const Queries& queries, Place& place);
  void finish(Partial partial, float* to) const;
  Partial partial_in(const Memory& memory, size_t index) const;

  const ModelSizes sizes_;
  const int qkv_width_, mixed_width_, group_;
  KVPool pool_;
  std::vector<std::unique_ptr<Place>> places_;
  StepArrays step_{};
  std::vector<Item> items_, last_items_;
  std::vector<int> num_segments_;       // [rows], 0: the row is finished by its item
  std::vector<int64_t> first_partial_;  // [rows], in segments
  Memory partials_;                     // [segments][heads]
};

}  // namespace headrace
