// An LSTM with a nondeterministic stack: all steps in one call. Compiled once for each instruction set.
#include "lstm.h"
#include "reading_columns.h"

namespace STACKATTN_KERNEL {
namespace {

using Automaton = NondeterministicLSTM::Automaton;

ReadingLayout layout_of(const Automaton& automaton, int64_t steps, int64_t value_size) {
  return {automaton.states, automaton.symbols, int(value_size), int(std::max<int64_t>(steps - 1, 0))};
}

// The stacks of one part of the batch. Step t of the LSTM takes step t of the stack; step 0 takes none.
class Stacks {
 public:
  // `charts` begin with the first sequence of the part. If they are null, the forward pass uses the workspace.
  Stacks(Workspace& work, const ReadingLayout& layout, const Kept& charts, int64_t count, const float* bottom,
         float* grad_bottom)
      : at_(layout), bottom_(bottom), grad_bottom_(grad_bottom) {
    const long chart = charts.data ? 0 : at_.chart_size(false), gradients = grad_bottom ? at_.gradient_size() : 0;
    work.start(at_.scratch_size() + count * (chart + gradients) + 64);
    double* scratch = work.take(at_.scratch_size());
    columns_.reserve(count);
    for (int64_t b = 0; b < count; ++b) {
      double* memory = charts.data ? charts.data + b * charts.stride : work.take(chart);
      columns_.emplace_back(at_, memory, charts.data, grad_bottom ? work.take(gradients) : nullptr, scratch);
      if (grad_bottom) columns_[b].start_backward();
    }
  }

  void start(int64_t b, float* reading) {
    columns_[b].set_bottom(bottom_);
    std::fill_n(reading, at_.QS * at_.m, 0.f);
    std::copy_n(bottom_, at_.m, reading);  // in the start state, with the bottom symbol
  }
  bool step(long t, int64_t b, const float* logits, const float* value, float* reading) {
    return columns_[b].step(int(t), logits, value, reading);
  }
  void step_back(long t, int64_t b, const float*, const float*, const float* grad_reading, float* grad_logits,
                 float* grad_value) {
    columns_[b].step_back(int(t), grad_reading, grad_logits, grad_value);
  }
  void finish(int64_t b, const float* grad_reading) {
    const double* through_steps = columns_[b].bottom_gradient();
    for (int c = 0; c < at_.m; ++c) grad_bottom_[b * at_.m + c] = float(through_steps[c]) + grad_reading[c];
  }

 private:
  const ReadingLayout& at_;
  const float* bottom_;
  float* grad_bottom_;
  std::vector<ReadingColumns> columns_;
};

int64_t chart_size(const Automaton& automaton, int64_t steps, int64_t value_size) {
  return layout_of(automaton, steps, value_size).chart_size(true);
}

Kept from(const Kept& charts, int64_t first) {
  return {charts.data ? charts.data + first * charts.stride : nullptr, charts.stride};
}

bool forward(const LSTMShape& p, const Automaton& automaton, const LSTMInputs& in, const float* bottom,
             const LSTMArrays& out, const Kept& charts) {
  const ReadingLayout layout = layout_of(automaton, p.steps, p.value_size);
  return lstm_forward(p, in, out, [&](Workspace& work, int64_t first, int64_t count) {
    return Stacks(work, layout, from(charts, first), count, bottom, nullptr);
  });
}

void backward(const LSTMShape& p, const Automaton& automaton, const LSTMGradients& grads, const LSTMArrays& made,
              const Kept& charts, float* grad_bottom) {
  const ReadingLayout layout = layout_of(automaton, p.steps, p.value_size);
  lstm_backward(p, grads, made, [&](Workspace& work, int64_t first, int64_t count) {
    return Stacks(work, layout, from(charts, first), count, nullptr, grad_bottom + first * p.value_size);
  });
}

}  // namespace

extern const NondeterministicLSTM nondeterministic_lstm;
const NondeterministicLSTM nondeterministic_lstm = {chart_size, forward, backward};

}  // namespace STACKATTN_KERNEL
