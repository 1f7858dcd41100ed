// One step of the model as a program of phases: nine a layer, and the ends.
//
//     embed | norm, project, rotate and store, attend, gather, project out, norm, gate and up, down | ... | norm, head
//
//     rows     tokens of the step       outputs   rows that go through the head
//
// Work is cut by rows, by panels of sixteen outputs, or by attention items; who does what changes no bit of a result.
// Nobody reads what the last layer makes of a row that is no output, but for its keys and values: from its attention
// on only outputs go through it.
//
// What an adapter adds to a product is prepared and added where rows go one by one, around the product; but for gate
// and up, whose sums nobody keeps, and the MLP's last, which is added when the row is normalized next.
#pragma once

#include <vector>

#include "activations.h"
#include "adapters.h"
#include "model.h"
#include "multiply.h"
#include "paged_attention.h"
#include "team.h"

namespace headrace {

class Forward : public Program {
 public:
  explicit Forward(const ModelSizes& sizes);

  Model& model() { return model_; }
  AdaptedRows& adapted() { return adapted_; }
  Status step(const StepArrays& step);

  int num_phases() const override;
  uint32_t num_units(int phase) const override;
  void run(int phase, uint32_t begin, uint32_t end, int thread) override;

 private:
  enum LayerPhase { kNorm, kProject, kRotate, kAttend, kGather, kProjectOut, kNormAgain, kGateUp, kDownAgain, kPerLayer };
  struct Best {
    float logit;
    int64_t id;
  };
  struct Rows {  // that go through a layer together
    int count;
    const int64_t* numbers;                // null: all rows of the step
    Activations for_qkv, attended;         // [count, ..] hidden, mixed_width
    Activations for_mlp, gated;            // [count, ..] hidden, intermediate
    int number(int i) const { return numbers ? static_cast<int>(numbers[i]) : i; }
  };

  bool is_sound(const StepArrays& step) const;
  void prepare(const StepArrays& step);
  void choose_best();
  void shape(Rows& rows, int64_t count, const int64_t* numbers);
  bool is_for_outputs(int layer, LayerPhase phase) const;
  uint32_t units_of_layer(int layer, LayerPhase phase) const;
  void run_layer(int layer, LayerPhase phase, uint32_t unit, int thread);

  void embed(int row);
  void normalize(const Rows& rows, int i, const Memory& weight, Activations& to);
  void normalize_first(int layer, Rows& rows, int i);
  void normalize_again(int layer, Rows& rows, int i);
  void add_adapted_down(int layer, int row);
  void project(const Layer& layer, uint32_t unit);
  void rotate_and_store(int layer, int row);
  void rotate(float* head, const float* turns, const Memory& norm) const;
  void gather(int layer, Rows& rows, int i);
  void add_product(const Weights& weights, const Rows& rows, const Activations& inputs, uint32_t unit);
  void gate_and_up(int layer, Rows& rows, uint32_t unit);
  void score(uint32_t panel, int thread);
  void score_output(uint32_t panel, int output, const float* logits, int thread);

  float* stream(size_t row) { return stream_.as<float>() + row * model_.sizes.hidden; }
  float* qkv(size_t row) { return qkv_.as<float>() + row * model_.qkv_width(); }
  float* mixed(size_t row) { return mixed_.as<float>() + row * model_.mixed_width(); }

  Model model_;
  Team team_;
  PagedAttention attention_;
  AdaptedRows adapted_;
  StepArrays step_{};
  Memory stream_, qkv_, mixed_;          // floats: [rows, hidden], [rows, qkv_width], [rows, mixed_width]
  Rows all_, outputs_;
  Activations for_head_;                 // [outputs, hidden]
  std::vector<std::vector<Best>> best_;  // [threads][outputs]
};

}  // namespace headrace
