#include <new>

#include "forward.h"

using headrace::Forward;

namespace {

// Nothing thrown may reach C.
template <class Function>
int32_t guarded(Function function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  } catch (...) {
    return kBadArgument;
  }
}

}  // namespace

int32_t headrace_abi_version() { return kAbiVersion; }

const char* headrace_instructions() { return headrace::kInstructions; }

void* headrace_create(const ModelSizes* sizes) {
  Forward* forward = nullptr;
  if (headrace::Model::fit_together(*sizes)) guarded([&] { return forward = new Forward(*sizes), kOk; });
  return forward;
}

void headrace_destroy(void* model) { delete static_cast<Forward*>(model); }

int32_t headrace_set_weights(void* model, int32_t layer, int32_t part, const WeightArrays* weights) {
  return guarded([&] { return static_cast<Forward*>(model)->model().set_weights(layer, part, *weights); });
}

int32_t headrace_set_vector(void* model, int32_t layer, int32_t part, const float* values, int64_t size) {
  return guarded([&] { return static_cast<Forward*>(model)->model().set_vector(layer, part, values, size); });
}

int32_t headrace_set_low_rank(void* model, int32_t slot, int32_t layer, int32_t part, const LowRankArrays* arrays) {
  return guarded([&] { return static_cast<Forward*>(model)->adapted().set(slot, layer, part, *arrays); });
}

int32_t headrace_clear_adapter(void* model, int32_t slot) {
  return guarded([&] { return static_cast<Forward*>(model)->adapted().clear(slot); });
}

int32_t headrace_step(void* model, const StepArrays* step) {
  return guarded([&] { return static_cast<Forward*>(model)->step(*step); });
}

int32_t headrace_multiply(const WeightArrays* arrays, const float* inputs, int64_t num_rows, int32_t terms,
                          float* outputs) {
  return guarded([&] {
    const headrace::Weights weights({static_cast<headrace::Format>(arrays->format), arrays->rows, arrays->columns,
                                     arrays->values, arrays->scales, arrays->minimums});
    headrace::Activations activations;
    activations.shape(static_cast<int>(num_rows), arrays->columns, terms);
    for (int row = 0; row < num_rows; ++row)
      for (int block = 0; block < activations.num_blocks(); ++block, inputs += headrace::kBlock)
        activations.put(row, block, headrace::Floats::load(inputs), headrace::Floats::load(inputs + headrace::kLanes));
    const int width = weights.num_panels() * headrace::kLanes;
    float out[headrace::kTileFloats];
    for (int i = 0; i < activations.num_tiles(); ++i) {
      const headrace::Tile tile = activations.tile(i);
      for (int panel = 0; panel < weights.num_panels(); ++panel) {
        headrace::multiply_tile(weights, panel, tile, out);
        for (int r = 0; r < tile.num_rows; ++r)
          headrace::Floats::load(out + r * headrace::kLanes)
              .store(outputs + static_cast<size_t>(tile.first_row + r) * width + panel * headrace::kLanes);
      }
    }
    return kOk;
  });
}
