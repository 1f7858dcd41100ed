#include "paged_attention.h"

#include <algorithm>
#include <iterator>

namespace headrace {
namespace {

int segments_of(int64_t num_tokens) { return static_cast<int>((num_tokens + kSegmentTokens - 1) / kSegmentTokens); }

size_t partial_floats(int head_dim) { return static_cast<size_t>(head_dim) + kLanes; }  // keeps values aligned

AttentionShape shape_of(const ModelSizes& s) {
  return {s.layers, s.heads, s.kv_heads, s.head_dim, s.num_blocks, s.kv_is_half != 0};
}

}  // namespace

PagedAttention::Place::Place(int head_dim)
    : scratch(head_dim),
      known(sizeof(float) * kMaxQueries * partial_floats(head_dim)),
      later(sizeof(float) * kMaxQueries * partial_floats(head_dim)) {}

PagedAttention::PagedAttention(const Model& model, int num_threads)
    : sizes_(model.sizes),
      qkv_width_(model.qkv_width()),
      mixed_width_(model.mixed_width()),
      group_(sizes_.heads / sizes_.kv_heads),
      pool_(shape_of(sizes_)) {
  for (int i = 0; i < num_threads; ++i) places_.push_back(std::make_unique<Place>(sizes_.head_dim));
}

void PagedAttention::plan(const StepArrays& step) {
  step_ = step;
  items_.clear();
  num_segments_.assign(step.num_rows, 0);
  first_partial_.assign(step.num_rows, 0);
  const int rows_an_item = std::max(1, kMaxQueries / group_);
  int64_t num_partials = 0;
  for (int seq = 0; seq < step.num_seqs; ++seq) {
    const int start = static_cast<int>(step.query_start[seq]), stop = static_cast<int>(step.query_start[seq + 1]);
    if (stop - start == 1) {
      num_segments_[start] = segments_of(step.seq_lens[seq]);
      first_partial_[start] = num_partials;
      num_partials += num_segments_[start];
      for (int segment = 0; segment < num_segments_[start]; ++segment) items_.push_back({seq, start, 1, segment});
    } else {
      for (int row = start; row < stop; row += rows_an_item)
        items_.push_back({seq, row, std::min(rows_an_item, stop - row), -1});
    }
  }
  last_items_.clear();
  std::copy_if(items_.begin(), items_.end(), std::back_inserter(last_items_),
               [this](const Item& item) { return has_output(item); });
  partials_.reserve(sizeof(float) * num_partials * sizes_.heads * partial_floats(sizes_.head_dim));
}

void PagedAttention::run(int layer, uint32_t unit, int thread, const float* qkv, float* mixed) {
  const Item& item = items(layer)[unit / sizes_.kv_heads];
  const int kv_head = static_cast<int>(unit % sizes_.kv_heads);
  Place& place = *places_[thread];
  for (int first = 0; first < item.num_rows * group_; first += kMaxQueries) {
    const Queries queries = queries_of(item, first, kv_head, qkv);
    if (item.segment >= 0) {
      attend_segment(layer, kv_head, item, queries, first, place);
      continue;
    }
    attend_all(layer, kv_head, item, queries, place);
    for (int i = 0; i < queries.count; ++i) {
      const size_t row = item.first_row + (first + i) / group_, head = kv_head * group_ + (first + i) % group_;
      finish(partial_in(place.known, i), mixed + row * mixed_width_ + head * sizes_.head_dim);
    }
  }
}

void PagedAttention::gather(int row, float* mixed) {
  for (int head = 0; num_segments_[row] && head < sizes_.heads; ++head) {
    const auto partial = [&](int segment) {
      return partial_in(partials_, (first_partial_[row] + segment) * sizes_.heads + head);
    };
    for (int segment = 1; segment < num_segments_[row]; ++segment)
      merge(partial(0), partial(segment), sizes_.head_dim);
    finish(partial(0), mixed + static_cast<size_t>(row) * mixed_width_ + static_cast<size_t>(head) * sizes_.head_dim);
  }
}

bool PagedAttention::has_output(const Item& item) const {
  const int64_t* const end = step_.output_rows + step_.num_outputs;
  const int64_t* const found = std::lower_bound(step_.output_rows, end, item.first_row);
  return found != end && *found < item.first_row + item.num_rows;
}

int64_t PagedAttention::length_of(int seq, int row) const {
  return step_.seq_lens[seq] - (step_.query_start[seq + 1] - 1 - row);
}

// From query `first` of the item on: its rows, and within a row the heads that share `kv_head`.
Queries PagedAttention::queries_of(const Item& item, int first, int kv_head, const float* qkv) const {
  Queries queries;
  queries.count = std::min(kMaxQueries, item.num_rows * group_ - first);
  for (int i = 0; i < queries.count; ++i) {
    const int row = item.first_row + (first + i) / group_, head = kv_head * group_ + (first + i) % group_;
    queries.vectors[i] = qkv + static_cast<size_t>(row) * qkv_width_ + static_cast<size_t>(head) * sizes_.head_dim;
    queries.lengths[i] = length_of(item.seq, row);
  }
  return queries;
}

void PagedAttention::attend_segment(int layer, int kv_head, const Item& item, const Queries& queries, int first,
                                    Place& place) {
  Partial out[kMaxQueries];
  const size_t start = (first_partial_[item.first_row] + item.segment) * sizes_.heads + kv_head * group_ + first;
  for (int i = 0; i < queries.count; ++i) out[i] = partial_in(partials_, start + i);
  const int64_t* blocks = step_.block_tables + item.seq * step_.max_blocks;
  attend(pool_, layer, kv_head, blocks, queries, item.segment, sizes_.attention_scale, place.scratch, out);
}

void PagedAttention::attend_all(int layer, int kv_head, const Item& item, const Queries& queries, Place& place) {
  Partial known[kMaxQueries], later[kMaxQueries];
  for (int i = 0; i < queries.count; ++i) {
    known[i] = partial_in(place.known, i);
    later[i] = partial_in(place.later, i);
  }
  const int64_t* blocks = step_.block_tables + item.seq * step_.max_blocks;
  const float scale = sizes_.attention_scale;
  attend(pool_, layer, kv_head, blocks, queries, 0, scale, place.scratch, known);
  const int num_segments = segments_of(*std::max_element(queries.lengths, queries.lengths + queries.count));
  for (int segment = 1; segment < num_segments; ++segment) {
    attend(pool_, layer, kv_head, blocks, queries, segment, scale, place.scratch, later);
    for (int i = 0; i < queries.count; ++i)
      if (segments_of(queries.lengths[i]) > segment) merge(known[i], later[i], sizes_.head_dim);
  }
}

void PagedAttention::finish(Partial partial, float* to) const {
  const Floats share = Floats::splat(1.0f / *partial.total);
  for (int d = 0; d < sizes_.head_dim; d += kLanes) (Floats::load(partial.values + d) * share).store(to + d);
}

Partial PagedAttention::partial_in(const Memory& memory, size_t index) const {
  float* const start = memory.as<float>() + index * partial_floats(sizes_.head_dim);
  return {start, start + 1, start + kLanes};
}

}  // namespace headrace
