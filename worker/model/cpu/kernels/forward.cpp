#include "forward.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace headrace {
namespace {

constexpr int kTilesAUnit = 8;  // rows of a long prompt are cut too, or a narrow matrix would occupy few threads

alignas(64) constexpr float kAlternating[kLanes] = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};

uint32_t row_parts(const Activations& activations) { return (activations.num_tiles() + kTilesAUnit - 1) / kTilesAUnit; }

uint32_t product_units(int num_panels, const Activations& inputs) { return num_panels * row_parts(inputs); }

// A unit of a product: one panel, and some tiles.
struct ProductUnit {
  ProductUnit(uint32_t unit, const Activations& inputs)
      : panel(static_cast<int>(unit / row_parts(inputs))),
        first_tile(static_cast<int>(unit % row_parts(inputs)) * kTilesAUnit),
        end_tile(std::min(first_tile + kTilesAUnit, inputs.num_tiles())) {}
  const int panel, first_tile, end_tile;
};

}  // namespace

Forward::Forward(const ModelSizes& sizes)
    : model_(sizes), team_(sizes.num_threads), attention_(model_, sizes.num_threads), adapted_(model_), best_(sizes.num_threads) {}

Status Forward::step(const StepArrays& step) {
  if (!model_.is_complete()) return kIncomplete;
  if (!is_sound(step)) return kBadArgument;
  prepare(step);
  if (step.num_rows) team_.run(*this);
  choose_best();
  return kOk;
}

// Whether every index stays inside what it indexes.
bool Forward::is_sound(const StepArrays& s) const {
  const auto all = [](int64_t count, auto holds) {
    for (int64_t i = 0; i < count; ++i)
      if (!holds(i)) return false;
    return true;
  };
  const auto is_below = [](int64_t value, int64_t limit) { return value >= 0 && value < limit; };
  if (!all(s.num_rows, [&](int64_t row) {
        return is_below(s.token_ids[row], model_.sizes.vocab) && is_below(s.positions[row], model_.sizes.context) &&
               is_below(s.slots[row], model_.sizes.num_blocks * kBlockTokens);
      }))
    return false;
  if (s.query_start[0] != 0 || s.query_start[s.num_seqs] != s.num_rows || s.logits_stride < model_.sizes.vocab)
    return false;
  if (!all(s.num_outputs, [&](int64_t i) {
        return is_below(s.output_rows[i], s.num_rows) && (i == 0 || s.output_rows[i - 1] < s.output_rows[i]);
      }))
    return false;
  return adapted_.is_sound(s) && all(s.num_seqs, [&](int64_t seq) {
    const int64_t rows = s.query_start[seq + 1] - s.query_start[seq];
    const int64_t num_blocks = (s.seq_lens[seq] + kBlockTokens - 1) / kBlockTokens;
    return rows > 0 && rows <= s.seq_lens[seq] && num_blocks <= s.max_blocks && all(num_blocks, [&](int64_t i) {
             return is_below(s.block_tables[seq * s.max_blocks + i], model_.sizes.num_blocks);
           });
  });
}

void Forward::prepare(const StepArrays& step) {
  step_ = step;
  stream_.reserve(sizeof(float) * step.num_rows * model_.sizes.hidden);
  qkv_.reserve(sizeof(float) * step.num_rows * model_.qkv_width());
  mixed_.reserve(sizeof(float) * step.num_rows * model_.mixed_width());
  shape(all_, step.num_rows, nullptr);
  shape(outputs_, step.num_outputs, step.output_rows);
  for_head_.shape(outputs_.count, model_.sizes.hidden, model_.sizes.terms.head);
  attention_.plan(step);
  adapted_.prepare(step);
  for (std::vector<Best>& best : best_) best.assign(outputs_.count, {-std::numeric_limits<float>::infinity(), 0});
}

void Forward::shape(Rows& rows, int64_t count, const int64_t* numbers) {
  rows.count = static_cast<int>(count);
  rows.numbers = numbers;
  const ActivationTerms& terms = model_.sizes.terms;
  rows.for_qkv.shape(rows.count, model_.sizes.hidden, terms.qkv);
  rows.attended.shape(rows.count, model_.mixed_width(), terms.output);
  rows.for_mlp.shape(rows.count, model_.sizes.hidden, terms.gate_and_up);
  rows.gated.shape(rows.count, model_.sizes.intermediate, terms.down);
}

// The largest logit of each output over what the threads saw; of equals the lowest id. None is above kNotFinite's.
void Forward::choose_best() {
  for (int64_t output = 0; output < step_.num_outputs; ++output) {
    Best chosen = best_[0][output];
    for (const std::vector<Best>& of_thread : best_) {
      const Best& other = of_thread[output];
      if (other.logit > chosen.logit || (other.logit == chosen.logit && other.id < chosen.id)) chosen = other;
    }
    step_.best_ids[output] = chosen.id;
  }
}

int Forward::num_phases() const { return 1 + model_.sizes.layers * kPerLayer + 2; }

uint32_t Forward::num_units(int phase) const {
  const int end_of_layers = 1 + model_.sizes.layers * kPerLayer;
  if (phase == 0) return all_.count;
  if (phase < end_of_layers)
    return units_of_layer((phase - 1) / kPerLayer, static_cast<LayerPhase>((phase - 1) % kPerLayer));
  if (phase == end_of_layers) return outputs_.count;
  return outputs_.count ? model_.head().num_panels() : 0;
}

bool Forward::is_for_outputs(int layer, LayerPhase phase) const {
  return layer + 1 == model_.sizes.layers && phase > kRotate;
}

uint32_t Forward::units_of_layer(int layer, LayerPhase phase) const {
  const Rows& rows = is_for_outputs(layer, phase) ? outputs_ : all_;
  switch (phase) {
    case kProject: return product_units(model_.qkv_width() / kLanes, rows.for_qkv);
    case kAttend: return attention_.num_units(layer);
    case kProjectOut: return product_units(model_.sizes.hidden / kLanes, rows.attended);
    case kGateUp: return product_units(model_.sizes.intermediate / kBlock, rows.for_mlp);
    case kDownAgain: return product_units(model_.sizes.hidden / kLanes, rows.gated);
    default: return rows.count;
  }
}

void Forward::run(int phase, uint32_t begin, uint32_t end, int thread) {
  const int end_of_layers = 1 + model_.sizes.layers * kPerLayer;
  for (uint32_t unit = begin; unit < end; ++unit) {
    if (phase == 0) {
      embed(unit);
    } else if (phase < end_of_layers) {
      run_layer((phase - 1) / kPerLayer, static_cast<LayerPhase>((phase - 1) % kPerLayer), unit, thread);
    } else if (phase == end_of_layers) {
      add_adapted_down(model_.sizes.layers - 1, outputs_.number(unit));
      normalize(outputs_, unit, model_.final_norm, for_head_);
    } else {
      score(unit, thread);
    }
  }
}

void Forward::run_layer(int index, LayerPhase phase, uint32_t unit, int thread) {
  const Layer& layer = model_.layers[index];
  Rows& rows = is_for_outputs(index, phase) ? outputs_ : all_;
  switch (phase) {
    case kNorm: return normalize_first(index, rows, unit);
    case kProject: return project(layer, unit);
    case kRotate: return rotate_and_store(index, unit);
    case kAttend: return attention_.run(index, unit, thread, qkv(0), mixed(0));
    case kGather: return gather(index, rows, unit);
    case kProjectOut: return add_product(layer.output, rows, rows.attended, unit);
    case kNormAgain: return normalize_again(index, rows, unit);
    case kGateUp: return gate_and_up(index, rows, unit);
    case kDownAgain: return add_product(layer.down, rows, rows.gated, unit);
    case kPerLayer: return;
  }
}

void Forward::embed(int row) { model_.embedding.read_row(static_cast<int>(step_.token_ids[row]), stream(row)); }

void Forward::normalize(const Rows& rows, int i, const Memory& weight, Activations& to) {
  const float* x = stream(rows.number(i));
  const float* by = weight.as<float>();
  const ModelSizes& sizes = model_.sizes;
  const Floats factor = Floats::splat(inverse_rms(x, sizes.hidden, sizes.unpadded_hidden, sizes.norm_epsilon));
  float* kept = adapted_.has(rows.number(i)) ? adapted_.inputs(rows.number(i)) : nullptr;
  for (int block = 0; block < to.num_blocks(); ++block, x += kBlock, by += kBlock) {
    const Floats low = Floats::load(x) * factor * Floats::load(by);
    const Floats high = Floats::load(x + kLanes) * factor * Floats::load(by + kLanes);
    to.put(i, block, low, high);
    if (kept) low.store(kept), high.store(kept + kLanes), kept += kBlock;
  }
}

void Forward::normalize_first(int layer, Rows& rows, int i) {
  const int row = rows.number(i);
  if (layer) add_adapted_down(layer - 1, row);
  normalize(rows, i, model_.layers[layer].attention_norm, rows.for_qkv);
  if (adapted_.has(row)) adapted_.shrink(row, layer, {kQuery, kKey, kValue}, adapted_.inputs(row));
}

void Forward::normalize_again(int layer, Rows& rows, int i) {
  const int row = rows.number(i);
  if (adapted_.has(row)) adapted_.add(row, layer, kOutput, 0, stream(row));
  normalize(rows, i, model_.layers[layer].mlp_norm, rows.for_mlp);
  if (adapted_.has(row)) adapted_.shrink(row, layer, {kGate, kUp}, adapted_.inputs(row));
}

void Forward::add_adapted_down(int layer, int row) {
  if (!adapted_.has(row)) return;
  adapted_.shrink(row, layer, {kDown}, adapted_.inputs(row));
  adapted_.add(row, layer, kDown, 0, stream(row));
}

// Panels of the queries, then of the keys, then of the values.
void Forward::project(const Layer& layer, uint32_t unit) {
  const ProductUnit place(unit, all_.for_qkv);
  const Weights* weights = &layer.query;
  int panel = place.panel;
  for (const Weights* next : {&layer.key, &layer.value}) {
    if (panel < weights->num_panels()) break;
    panel -= weights->num_panels();
    weights = next;
  }
  const int column = place.panel * kLanes;
  const bool has_bias = layer.qkv_bias.size() != 0;
  const Floats bias = has_bias ? Floats::load(layer.qkv_bias.as<float>() + column) : Floats::zero();
  float out[kTileFloats];
  for (int i = place.first_tile; i < place.end_tile; ++i) {
    const Tile tile = all_.for_qkv.tile(i);
    multiply_tile(*weights, panel, tile, out);
    for (int r = 0; r < tile.num_rows; ++r)
      (Floats::load(out + r * kLanes) + bias).store(qkv(tile.first_row + r) + column);
  }
}

void Forward::rotate_and_store(int index, int row) {
  const ModelSizes& sizes = model_.sizes;
  const Layer& layer = model_.layers[index];
  const float* turns = model_.rotation.as<float>() + step_.positions[row] * sizes.head_dim;
  float* const queries = qkv(row);
  float* const keys = queries + model_.mixed_width();
  float* const values = keys + static_cast<size_t>(sizes.kv_heads) * sizes.head_dim;
  if (adapted_.has(row)) {
    adapted_.add(row, index, kQuery, 0, queries);
    adapted_.add(row, index, kKey, 1, keys);
    adapted_.add(row, index, kValue, 2, values);
  }
  for (int head = 0; head < sizes.heads; ++head) rotate(queries + head * sizes.head_dim, turns, layer.query_norm);
  for (int head = 0; head < sizes.kv_heads; ++head) {
    float* const key = keys + head * sizes.head_dim;
    rotate(key, turns, layer.key_norm);
    attention_.store(index, step_.slots[row], head, key, values + head * sizes.head_dim);
  }
}

// Normalizes the head if there is a weight for it, then turns its pairs (2i, 2i + 1).
void Forward::rotate(float* head, const float* turns, const Memory& norm) const {
  const ModelSizes& sizes = model_.sizes;
  Floats factor = Floats::splat(1.0f);
  if (norm.size()) factor = Floats::splat(inverse_rms(head, sizes.head_dim, sizes.unpadded_head_dim, sizes.norm_epsilon));
  const Floats sign = Floats::load(kAlternating);
  for (int d = 0; d < sizes.head_dim; d += kLanes) {
    Floats x = Floats::load(head + d);
    if (norm.size()) x = x * factor * Floats::load(norm.as<float>() + d);
    const Floats turn = Floats::load(turns + d);
    const Floats crossed = swap_pairs(x) * second_of_pairs(turn) * sign;
    fma(x, first_of_pairs(turn), crossed).store(head + d);
  }
}

void Forward::gather(int layer, Rows& rows, int i) {
  const int row = rows.number(i);
  attention_.gather(row, mixed(0));
  const float* x = mixed(row);
  if (adapted_.has(row)) adapted_.shrink(row, layer, {kOutput}, x);
  for (int block = 0; block < rows.attended.num_blocks(); ++block, x += kBlock)
    rows.attended.put(i, block, Floats::load(x), Floats::load(x + kLanes));
}

void Forward::add_product(const Weights& weights, const Rows& rows, const Activations& inputs, uint32_t unit) {
  const ProductUnit place(unit, inputs);
  float out[kTileFloats];
  for (int i = place.first_tile; i < place.end_tile; ++i) {
    const Tile tile = inputs.tile(i);
    multiply_tile(weights, place.panel, tile, out);
    for (int r = 0; r < tile.num_rows; ++r) {
      float* const to = stream(rows.number(tile.first_row + r)) + place.panel * kLanes;
      (Floats::load(to) + Floats::load(out + r * kLanes)).store(to);
    }
  }
}

// A unit is two panels of each matrix: just one block of the MLP's activations.
void Forward::gate_and_up(int index, Rows& rows, uint32_t unit) {
  const Layer& layer = model_.layers[index];
  const ProductUnit place(unit, rows.for_mlp);
  float gates[2][kTileFloats], ups[2][kTileFloats];
  for (int i = place.first_tile; i < place.end_tile; ++i) {
    const Tile tile = rows.for_mlp.tile(i);
    for (int half = 0; half < 2; ++half) {
      multiply_tile(layer.gate, 2 * place.panel + half, tile, gates[half]);
      multiply_tile(layer.up, 2 * place.panel + half, tile, ups[half]);
    }
    for (int r = 0; r < tile.num_rows; ++r) {
      const int row = rows.number(tile.first_row + r);
      const bool is_adapted = adapted_.has(row);
      const auto gated = [&](int half) {
        Floats gate = Floats::load(gates[half] + r * kLanes), up = Floats::load(ups[half] + r * kLanes);
        if (!is_adapted) return silu(gate) * up;
        gate = gate + adapted_.expand(row, index, kGate, 0, 2 * place.panel + half);
        up = up + adapted_.expand(row, index, kUp, 1, 2 * place.panel + half);
        const Floats product = silu(gate) * up;
        product.store(adapted_.inputs(row) + (2 * place.panel + half) * kLanes);
        return product;
      };
      rows.gated.put(tile.first_row + r, place.panel, gated(0), gated(1));
    }
  }
}

void Forward::score(uint32_t panel, int thread) {
  float out[kTileFloats];
  for (int i = 0; i < for_head_.num_tiles(); ++i) {
    const Tile tile = for_head_.tile(i);
    multiply_tile(model_.head(), panel, tile, out);
    for (int r = 0; r < tile.num_rows; ++r) score_output(panel, tile.first_row + r, out + r * kLanes, thread);
  }
}

void Forward::score_output(uint32_t panel, int output, const float* logits, int thread) {
  const int first_id = panel * kLanes, count = std::min(kLanes, model_.sizes.vocab - first_id);
  Best& best = best_[thread][output];
  if (!is_finite(Floats::load(logits))) best = {std::numeric_limits<float>::infinity(), kNotFinite};
  if (count < kLanes || max_of(Floats::load(logits)) > best.logit) {
    for (int lane = 0; lane < count; ++lane)
      if (logits[lane] > best.logit) best = {logits[lane], first_id + lane};
  }
  if (step_.logits_rows[output] >= 0)
    std::copy(logits, logits + count, step_.logits + step_.logits_rows[output] * step_.logits_stride + first_id);
}

}  // namespace headrace
