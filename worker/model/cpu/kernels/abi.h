// What the library offers: plain C, so that ctypes can call it. The Python side is worker/model/cpu/library.py; both
// name kAbiVersion and nothing else may differ. No function throws; each that can fail returns a Status.
//
// Sizes are in elements. Head and MLP widths are padded to multiples of 32 by the caller, with zero rows.
#pragma once

#include <cstdint>

#define HEADRACE_API extern "C" __attribute__((visibility("default")))

constexpr int32_t kAbiVersion = 3;

enum Status : int32_t { kOk = 0, kBadArgument = 1, kOutOfMemory = 2, kIncomplete = 3 };

// Weights and vectors of a layer; those after kEndOfLayer belong to no layer (layer -1).
enum Part : int32_t {
  kQuery = 0, kKey, kValue, kOutput, kGate, kUp, kDown,           // weights
  kAttentionNorm, kMlpNorm, kQkvBias, kQueryNorm, kKeyNorm,       // vectors; the last three may be left out
  kEndOfLayer,
  kEmbedding = kEndOfLayer, kHead,                                // weights; without a head the embedding is it
  kFinalNorm, kRotation,                                          // vectors
};

// One or two of eight bits each, by what the activations are multiplied with.
struct ActivationTerms {
  int32_t qkv, output, gate_and_up, down, head;
};

struct ModelSizes {
  int32_t num_threads;
  int32_t layers, intermediate, vocab, heads, kv_heads;
  int32_t hidden, unpadded_hidden;
  int32_t head_dim, unpadded_head_dim;
  int32_t context;
  int32_t kv_is_half;
  ActivationTerms terms;
  float norm_epsilon, attention_scale;
  int64_t num_blocks;  // of the KV pool, block 0 included
};

struct WeightArrays {
  int32_t format;  // weights.h
  int32_t rows, columns;
  const uint8_t* values;
  const uint16_t* scales;
  const uint16_t* minimums;
};

// A low-rank addition to the product of kQuery .. kDown: adapters.h.
struct LowRankArrays {
  int32_t rank;           // a multiple of four
  int32_t rows, columns;  // of the weight it is added to
  const float* down;      // [rank, columns]
  const float* up;        // [rows, rank]
};

constexpr int64_t kNotFinite = -1;  // NOT_FINITE of worker/engine/request.py

// One step: worker/model/runner.py draws it. `output_rows`, rising, are those that go through the head. Output i's
// largest logit gives best_ids[i], or kNotFinite if one of its logits is not finite; if logits_rows[i] is not -1, its logits
// go to that row of `logits` as well. `adapters`: each sequence's slot, -1 for none; null when none has any.
struct StepArrays {
  int64_t num_rows, num_seqs, max_blocks, num_outputs, logits_stride;
  const int64_t *token_ids, *positions, *slots;            // [num_rows]
  const int64_t *query_start, *seq_lens, *block_tables;    // [num_seqs + 1], [num_seqs], [num_seqs, max_blocks]
  const int64_t *output_rows, *logits_rows;                // [num_outputs]
  int64_t* best_ids;                                       // [num_outputs]
  float* logits;                                           // [.., logits_stride], stride at least vocab
  const int64_t* adapters;                                 // [num_seqs]
};

HEADRACE_API int32_t headrace_abi_version();
HEADRACE_API const char* headrace_instructions();

// Null when out of memory or when sizes do not fit together.
HEADRACE_API void* headrace_create(const ModelSizes* sizes);
HEADRACE_API void headrace_destroy(void* model);

// Copies, packed for the instruction set. `values` of a vector: see model.h for lengths.
HEADRACE_API int32_t headrace_set_weights(void* model, int32_t layer, int32_t part, const WeightArrays* weights);
HEADRACE_API int32_t headrace_set_vector(void* model, int32_t layer, int32_t part, const float* values, int64_t size);

// Copies into a slot that no step uses, beside steps that run; and empties one between steps.
HEADRACE_API int32_t headrace_set_low_rank(void* model, int32_t slot, int32_t layer, int32_t part,
                                           const LowRankArrays* arrays);
HEADRACE_API int32_t headrace_clear_adapter(void* model, int32_t slot);

// Runs one step. kIncomplete while a part is missing. One call at a time.
HEADRACE_API int32_t headrace_step(void* model, const StepArrays* step);

// outputs [num_rows, rows of weights rounded up to 16] = quantized inputs [num_rows, columns] by weights. For tests.
HEADRACE_API int32_t headrace_multiply(const WeightArrays* weights, const float* inputs, int64_t num_rows,
                                       int32_t activation_terms, float* outputs);
