// A model's sizes and weights. Set once, part by part; a step only reads them.
#pragma once

#include <vector>

#include "abi.h"
#include "weights.h"

namespace headrace {

struct Layer {
  Weights query, key, value, output, gate, up, down;
  Memory attention_norm, mlp_norm;  // [hidden]
  Memory qkv_bias;                  // [qkv_width], or empty
  Memory query_norm, key_norm;      // [head_dim], or empty
};

class Model {
 public:
  explicit Model(const ModelSizes& sizes) : sizes(sizes), layers(sizes.layers) {}

  static bool fit_together(const ModelSizes& sizes);
  Status set_weights(int layer, int part, const WeightArrays& arrays);
  Status set_vector(int layer, int part, const float* values, int64_t size);
  bool is_complete() const;
  // Whether that is the shape of the layer's weights.
  bool has_shape(int layer, int part, int64_t rows, int64_t columns) const;

  int qkv_width() const { return (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim; }
  int mixed_width() const { return sizes.heads * sizes.head_dim; }
  const Weights& head() const { return own_head.is_set() ? own_head : embedding; }

  const ModelSizes sizes;
  std::vector<Layer> layers;
  Weights embedding, own_head;
  Memory final_norm;  // [hidden]
  Memory rotation;    // [context][head_dim / 2] x { cosine, sine }

 private:
  struct Shape {
    int64_t rows, columns;
  };
  Shape shape_of(int layer, int part) const;
  Weights* find_weights(int layer, int part);
  Memory* find_vector(int layer, int part, int64_t* size);
};

}  // namespace headrace
