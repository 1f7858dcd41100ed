#include "model.h"

#include <algorithm>

namespace headrace {

bool Model::fit_together(const ModelSizes& s) {
  const bool is_positive = std::min({s.num_threads, s.layers, s.unpadded_hidden, s.intermediate, s.vocab, s.heads,
                                     s.kv_heads, s.unpadded_head_dim, s.context}) > 0;
  const ActivationTerms& t = s.terms;
  const auto is_one_or_two = [](int32_t terms) { return terms == 1 || terms == 2; };
  const bool has_terms = is_one_or_two(t.qkv) && is_one_or_two(t.output) && is_one_or_two(t.gate_and_up) &&
                         is_one_or_two(t.down) && is_one_or_two(t.head);
  return is_positive && has_terms && s.num_blocks > 1 && s.hidden % kBlock == 0 && s.intermediate % kBlock == 0 &&
         s.head_dim % kBlock == 0 && s.unpadded_hidden <= s.hidden && s.unpadded_head_dim <= s.head_dim &&
         s.heads % s.kv_heads == 0;
}

Model::Shape Model::shape_of(int layer, int part) const {
  const int64_t hidden = sizes.hidden, intermediate = sizes.intermediate;
  const int64_t query = mixed_width(), key = static_cast<int64_t>(sizes.kv_heads) * sizes.head_dim;
  if (layer == -1) return {sizes.vocab, hidden};
  switch (part) {
    case kQuery: return {query, hidden};
    case kKey:
    case kValue: return {key, hidden};
    case kOutput: return {hidden, query};
    case kGate:
    case kUp: return {intermediate, hidden};
    default: return {hidden, intermediate};
  }
}

bool Model::has_shape(int layer, int part, int64_t rows, int64_t columns) const {
  const Shape shape = shape_of(layer, part);
  return rows == shape.rows && columns == shape.columns;
}

Weights* Model::find_weights(int layer, int part) {
  if (layer == -1) return part == kEmbedding ? &embedding : part == kHead ? &own_head : nullptr;
  if (layer < 0 || layer >= sizes.layers) return nullptr;
  Layer& found = layers[layer];
  switch (part) {
    case kQuery: return &found.query;
    case kKey: return &found.key;
    case kValue: return &found.value;
    case kOutput: return &found.output;
    case kGate: return &found.gate;
    case kUp: return &found.up;
    case kDown: return &found.down;
    default: return nullptr;
  }
}

Memory* Model::find_vector(int layer, int part, int64_t* size) {
  *size = sizes.hidden;
  if (layer == -1) {
    if (part == kRotation) *size = static_cast<int64_t>(sizes.context) * sizes.head_dim;
    return part == kFinalNorm ? &final_norm : part == kRotation ? &rotation : nullptr;
  }
  if (layer < 0 || layer >= sizes.layers) return nullptr;
  Layer& found = layers[layer];
  switch (part) {
    case kAttentionNorm: return &found.attention_norm;
    case kMlpNorm: return &found.mlp_norm;
    case kQkvBias: return *size = qkv_width(), &found.qkv_bias;
    case kQueryNorm: return *size = sizes.head_dim, &found.query_norm;
    case kKeyNorm: return *size = sizes.head_dim, &found.key_norm;
    default: return nullptr;
  }
}

Status Model::set_weights(int layer, int part, const WeightArrays& arrays) {
  Weights* const to = find_weights(layer, part);
  if (!to || !has_shape(layer, part, arrays.rows, arrays.columns)) return kBadArgument;
  const bool has_minimums = arrays.format == kNibblesMin;
  if (arrays.format < 0 || arrays.format >= kNumFormats || has_minimums != (arrays.minimums != nullptr))
    return kBadArgument;
  *to = Weights({static_cast<Format>(arrays.format), arrays.rows, arrays.columns, arrays.values, arrays.scales,
                 arrays.minimums});
  return kOk;
}

Status Model::set_vector(int layer, int part, const float* values, int64_t size) {
  int64_t wanted = 0;
  Memory* const to = find_vector(layer, part, &wanted);
  if (!to || size != wanted) return kBadArgument;
  *to = Memory(size * sizeof(float));
  std::copy(values, values + size, to->as<float>());
  return kOk;
}

bool Model::is_complete() const {
  const auto is_whole = [](const Layer& layer) {
    return layer.query.is_set() && layer.key.is_set() && layer.value.is_set() && layer.output.is_set() &&
           layer.gate.is_set() && layer.up.is_set() && layer.down.is_set() && layer.attention_norm.size() &&
           layer.mlp_norm.size();
  };
  return embedding.is_set() && final_norm.size() && rotation.size() &&
         std::all_of(layers.begin(), layers.end(), is_whole);
}

}  // namespace headrace
