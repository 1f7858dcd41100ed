// Attention straight from the paged KV pool.
//
//     pool    [layers][blocks][kv_heads] x { keys [head_dim][16 tokens], values [16 tokens][head_dim] }
//
// Keys lie with the token as the lane, so sixteen scores come out of one register and no lane is ever added to
// another. A block is 16 tokens, a segment 256. What a query attends to is cut into segments from position 0:
//
//     within a segment    scores, their largest, exp(score - largest), the sum of these, values weighted by these
//     between segments    merged one after another, from the first to the last
//
// A block may hold what another sequence left there: keys of tokens that are not the sequence's own stay in their own
// lanes, whose scores are thrown away, and their values are not read. So what is not finite stays with its sequence.
//
// Every sum runs in an order that the position alone decides. How many queries are computed together, in which
// chunk of the prompt they came, and which thread does a segment cannot change a bit.
#pragma once

#include "memory.h"
#include "numerics.h"

namespace headrace {

constexpr int kBlockTokens = 16;
constexpr int kSegmentBlocks = 16;
constexpr int kSegmentTokens = kBlockTokens * kSegmentBlocks;

struct AttentionShape {
  int layers, heads, kv_heads, head_dim;  // head_dim padded to a multiple of 32
  int64_t num_blocks;
  bool is_half;  // half precision, else fp32
};

// What is known after some segments: the largest score, the sum of weights, and head_dim weighted values.
struct Partial {
  float* largest;
  float* total;
  float* values;
};

// Merges a later segment into what is known before it.
void merge(Partial into, Partial later, int head_dim);

class KVPool {
 public:
  explicit KVPool(const AttentionShape& shape)
      : shape_(shape),
        page_bytes_(static_cast<size_t>(kBlockTokens) * shape.head_dim * (shape.is_half ? 2 : 4)),
        memory_(2 * page_bytes_ * shape.kv_heads * shape.num_blocks * shape.layers) {}

  const AttentionShape& shape() const { return shape_; }

  // Stores one token's key and value, each [head_dim].
  void write(int layer, int64_t slot, int kv_head, const float* key, const float* value);

  template <class Element>
  const Element* keys(int layer, int64_t block, int kv_head) const {
    const size_t page = ((static_cast<size_t>(layer) * shape_.num_blocks + block) * shape_.kv_heads + kv_head) * 2;
    return reinterpret_cast<const Element*>(memory_.as<uint8_t>() + page * page_bytes_);
  }
  template <class Element>
  const Element* values(int layer, int64_t block, int kv_head) const {
    return keys<Element>(layer, block, kv_head) + static_cast<size_t>(kBlockTokens) * shape_.head_dim;
  }

 private:
  AttentionShape shape_;
  size_t page_bytes_;
  Memory memory_;
};

// Up to kMaxQueries queries of one key head: rows that follow each other in a sequence, times heads that share it.
struct Queries {
  int count;
  const float* vectors[kMaxQueries];  // each [head_dim]
  int64_t lengths[kMaxQueries];       // tokens each attends to: its position + 1
};

// Where one thread works; not shared.
class AttentionScratch {
 public:
  explicit AttentionScratch(int head_dim)
      : queries_(sizeof(float) * kMaxQueries * head_dim),
        weights_(sizeof(float) * kMaxQueries * kSegmentTokens),
        values_(sizeof(float) * kMaxQueries * head_dim) {}

  float* queries() { return queries_.as<float>(); }  // [head_dim][count]
  float* weights() { return weights_.as<float>(); }  // [blocks of a segment][count][16 tokens]
  float* values() { return values_.as<float>(); }    // [count][head_dim]

 private:
  Memory queries_, weights_, values_;
};

// One segment for all queries; out[i] is not touched where query i has no token in it. `blocks` is the sequence's
// whole block table.
void attend(const KVPool& pool, int layer, int kv_head, const int64_t* blocks, const Queries& queries, int segment,
            float scale, AttentionScratch& scratch, Partial* out);

}  // namespace headrace
