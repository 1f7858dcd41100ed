#include "attention.h"

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>
#include <utility>

namespace headrace {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::max();

// A segment's pages of one key head. Tokens from `num_tokens` on are not the sequence's: their values are not read.
template <class Element>
struct Pages {
  int num_tokens, num_blocks;
  const Element *keys[kSegmentBlocks], *values[kSegmentBlocks];
};

// Blocks lie anywhere, so what comes next is asked for by hand: so many blocks ahead, into the second-level cache.
constexpr int kAhead = 3;

// scores[i][token] of one block. Even and odd dimensions are summed apart, then added: twice the sums in flight.
template <class Element, int M>
void score_block(const Element* keys, const Element* next, const float* queries, int head_dim, float* scores) {
  Floats even[M], odd[M];
  HEADRACE_UNROLL
  for (int i = 0; i < M; ++i) even[i] = odd[i] = Floats::zero();
  for (int d = 0; d < head_dim; d += 2, keys += 2 * kBlockTokens, next += 2 * kBlockTokens, queries += 2 * M) {
    __builtin_prefetch(next, 0, 2);
    const Floats first = Floats::load(keys), second = Floats::load(keys + kBlockTokens);
    HEADRACE_UNROLL
    for (int i = 0; i < M; ++i) {
      even[i] = fma(first, Floats::splat(queries[i]), even[i]);
      odd[i] = fma(second, Floats::splat(queries[M + i]), odd[i]);
    }
  }
  HEADRACE_UNROLL
  for (int i = 0; i < M; ++i) (even[i] + odd[i]).store(scores + kLanes * i);
}

// out[i][d .. d + 32] = sum over the segment's tokens, in order, of weight[i] * value[d]
template <class Element, int M>
void mix_columns(const Pages<Element>& pages, int head_dim, const float* weights, int d, float* out) {
  Floats low[M], high[M];
  HEADRACE_UNROLL
  for (int i = 0; i < M; ++i) low[i] = high[i] = Floats::zero();
  for (int block = 0; block < pages.num_blocks; ++block, weights += M * kBlockTokens) {
    const Element* value = pages.values[block] + d;
    const Element* next = pages.values[std::min(block + kAhead, pages.num_blocks - 1)] + d;
    const int num_tokens = std::min(kBlockTokens, pages.num_tokens - block * kBlockTokens);
    for (int token = 0; token < num_tokens; ++token, value += head_dim, next += head_dim) {
      __builtin_prefetch(next, 0, 2);
      const Floats first = Floats::load(value), second = Floats::load(value + kLanes);
      HEADRACE_UNROLL
      for (int i = 0; i < M; ++i) {
        const Floats weight = Floats::splat(weights[i * kBlockTokens + token]);
        low[i] = fma(weight, first, low[i]);
        high[i] = fma(weight, second, high[i]);
      }
    }
  }
  HEADRACE_UNROLL
  for (int i = 0; i < M; ++i) {
    low[i].store(out + static_cast<size_t>(i) * head_dim + d);
    high[i].store(out + static_cast<size_t>(i) * head_dim + d + kLanes);
  }
}

template <class Element, int M>
void score_pages(const Pages<Element>& pages, const float* queries, int head_dim, float* scores) {
  for (int block = 0; block < pages.num_blocks; ++block)
    score_block<Element, M>(pages.keys[block], pages.keys[std::min(block + kAhead, pages.num_blocks - 1)], queries, head_dim,
                            scores + block * M * kBlockTokens);
}

template <class Element, int M>
void mix_pages(const Pages<Element>& pages, const float* weights, int head_dim, float* out) {
  for (int d = 0; d < head_dim; d += 2 * kLanes)
    mix_columns<Element, M>(pages, head_dim, weights, d, out);
}

template <class Element>
using PagesFunction = void (*)(const Pages<Element>&, const float*, int, float*);

template <class Element, int... Before>
constexpr std::array<PagesFunction<Element>, kMaxQueries> score_functions(std::integer_sequence<int, Before...>) {
  return {score_pages<Element, Before + 1>...};
}

template <class Element, int... Before>
constexpr std::array<PagesFunction<Element>, kMaxQueries> mix_functions(std::integer_sequence<int, Before...>) {
  return {mix_pages<Element, Before + 1>...};
}

constexpr auto kEachCount = std::make_integer_sequence<int, kMaxQueries>();

// Scores of one query to weights, in place; those of tokens it does not see become 0. A block of the query's
// scores is `stride` floats after the one before.
void soften(float* scores, int stride, int num_blocks, int num_visible, float scale, float* largest, float* total) {
  const int seen_blocks = (num_visible + kBlockTokens - 1) / kBlockTokens;
  float* const last = scores + static_cast<size_t>(seen_blocks - 1) * stride;
  const int seen_in_last = num_visible - (seen_blocks - 1) * kBlockTokens;
  for (int token = seen_in_last; token < kBlockTokens; ++token) last[token] = kHidden;
  Floats high = Floats::splat(kHidden);
  for (int block = 0; block < seen_blocks; ++block) high = max(high, Floats::load(scores + block * stride));
  const Floats factor = Floats::splat(scale), peak = Floats::splat(max_of(high) * scale);
  Floats sums = Floats::zero();
  for (int block = 0; block < num_blocks; ++block) {
    float* const at = scores + static_cast<size_t>(block) * stride;
    if (block >= seen_blocks) {
      Floats::zero().store(at);
      continue;
    }
    exp(Floats::load(at) * factor - peak).store(at);
    if (block == seen_blocks - 1) std::fill(at + seen_in_last, at + kBlockTokens, 0.0f);
    sums = sums + Floats::load(at);
  }
  *largest = max_of(high) * scale;
  *total = sum(sums);
}

template <class Element>
void attend_pages(const Pages<Element>& pages, const Queries& queries, int64_t start, float scale, int head_dim,
                  AttentionScratch& scratch, Partial* out) {
  static constexpr auto kScore = score_functions<Element>(kEachCount), kMix = mix_functions<Element>(kEachCount);
  const int count = queries.count, stride = count * kBlockTokens;
  for (int d = 0; d < head_dim; ++d)
    for (int i = 0; i < count; ++i) scratch.queries()[d * count + i] = queries.vectors[i][d];
  kScore[count - 1](pages, scratch.queries(), head_dim, scratch.weights());
  for (int i = 0; i < count; ++i) {
    const int visible = static_cast<int>(std::min<int64_t>(queries.lengths[i] - start, kSegmentTokens));
    float* const scores = scratch.weights() + i * kBlockTokens;
    if (visible > 0) {
      soften(scores, stride, pages.num_blocks, visible, scale, out[i].largest, out[i].total);
    } else {
      for (int block = 0; block < pages.num_blocks; ++block) Floats::zero().store(scores + block * stride);
    }
  }
  kMix[count - 1](pages, scratch.weights(), head_dim, scratch.values());
  for (int i = 0; i < count; ++i) {
    const float* from = scratch.values() + static_cast<size_t>(i) * head_dim;
    if (queries.lengths[i] > start) std::copy(from, from + head_dim, out[i].values);
  }
}

template <class Element>
void attend_segment(const KVPool& pool, int layer, int kv_head, const int64_t* blocks, const Queries& queries,
                    int segment, float scale, AttentionScratch& scratch, Partial* out) {
  const int64_t start = static_cast<int64_t>(segment) * kSegmentTokens;
  const int64_t longest = *std::max_element(queries.lengths, queries.lengths + queries.count);
  Pages<Element> pages;
  pages.num_tokens = static_cast<int>(std::min<int64_t>(longest - start, kSegmentTokens));
  pages.num_blocks = (pages.num_tokens + kBlockTokens - 1) / kBlockTokens;
  for (int i = 0; i < pages.num_blocks; ++i) {
    const int64_t block = blocks[segment * kSegmentBlocks + i];
    pages.keys[i] = pool.keys<Element>(layer, block, kv_head);
    pages.values[i] = pool.values<Element>(layer, block, kv_head);
  }
  attend_pages(pages, queries, start, scale, pool.shape().head_dim, scratch, out);
}

template <class Element>
constexpr float kLargest = std::is_same<Element, uint16_t>::value ? 65504.0f : std::numeric_limits<float>::max();

// What is too large for the pool becomes the largest it holds; NaN stays NaN.
template <class Element>
Floats bounded(Floats x) {
  return max(Floats::splat(-kLargest<Element>), min(Floats::splat(kLargest<Element>), x));
}

template <class Element>
void write_pages(Element* keys, Element* values, int token, const float* key, const float* value, int head_dim) {
  for (int d = 0; d < head_dim; d += kLanes) {
    Element lanes[kLanes];
    bounded<Element>(Floats::load(key + d)).store(lanes);
    for (int i = 0; i < kLanes; ++i) keys[(d + i) * kBlockTokens + token] = lanes[i];
    bounded<Element>(Floats::load(value + d)).store(values + static_cast<size_t>(token) * head_dim + d);
  }
}

}  // namespace

void KVPool::write(int layer, int64_t slot, int kv_head, const float* key, const float* value) {
  const int64_t block = slot / kBlockTokens;
  const int token = static_cast<int>(slot % kBlockTokens);
  const auto store = [&](auto* keys) {
    write_pages(keys, keys + static_cast<size_t>(kBlockTokens) * shape_.head_dim, token, key, value, shape_.head_dim);
  };
  if (shape_.is_half) {
    store(const_cast<uint16_t*>(keys<uint16_t>(layer, block, kv_head)));
  } else {
    store(const_cast<float*>(keys<float>(layer, block, kv_head)));
  }
}

void merge(Partial into, Partial later, int head_dim) {
  const float largest = std::max(*into.largest, *later.largest);
  const float keep = exp(*into.largest - largest), take = exp(*later.largest - largest);
  *into.largest = largest;
  *into.total = *into.total * keep + *later.total * take;
  const Floats kept = Floats::splat(keep), taken = Floats::splat(take);
  for (int d = 0; d < head_dim; d += kLanes)
    fma(Floats::load(later.values + d), taken, Floats::load(into.values + d) * kept).store(into.values + d);
}

void attend(const KVPool& pool, int layer, int kv_head, const int64_t* blocks, const Queries& queries, int segment,
            float scale, AttentionScratch& scratch, Partial* out) {
  if (pool.shape().is_half) {
    attend_segment<uint16_t>(pool, layer, kv_head, blocks, queries, segment, scale, scratch, out);
  } else {
    attend_segment<float>(pool, layer, kv_head, blocks, queries, segment, scale, scratch, out);
  }
}

}  // namespace headrace
