// An LSTM with a superposition stack: all steps in one call. Compiled once for each instruction set.
#include "lstm.h"

namespace STACKATTN_KERNEL {
namespace {

// Where the stack after step t begins: it has t elements of `m` numbers, the top first, and is followed by two
// elements of zeros.
inline long level(long t, long m) { return (t * (t - 1) / 2 + 2 * t) * m; }
// The empty stack is written even if there are no steps.
int64_t stack_size(int64_t steps, int64_t value) { return level(std::max<int64_t>(steps, 1), value); }

// The stacks of one part of the batch, and gradients of two stacks for each sequence.
class Stacks {
 public:
  Stacks(Workspace& work, const LSTMShape& shape, float* stacks, int64_t count, bool with_gradient)
      : m_(shape.value), size_(stack_size(shape.steps, m_)), room_((shape.steps + 2) * m_), stacks_(stacks) {
    if (!with_gradient) return;
    work.start(count * room_ + 64);
    for (float*& gradients : gradients_) {
      gradients = take_floats(work, count * room_);
      std::fill_n(gradients, count * room_, 0.f);
    }
  }

  void start(int64_t b, float* reading) {
    std::fill_n(stacks_ + b * size_, 2 * m_, 0.f);
    std::fill_n(reading, m_, 0.f);
  }

  bool step(long t, int64_t b, float* action, const float* value, float* reading) {
    const float top = std::max(action[0], std::max(action[1], action[2]));
    float total = 0;
    for (int i = 0; i < 3; ++i) total += action[i] = std::exp(action[i] - top);
    for (int i = 0; i < 3; ++i) action[i] /= total;
    const FVec push = fsplat(action[0]), keep = fsplat(action[1]), pop = fsplat(action[2]);
    const float* before = stacks_ + b * size_ + level(t - 1, m_);
    float* after = stacks_ + b * size_ + level(t, m_);
    for (long d = 0; d < t; ++d)  // the previous stack has t - 1 elements, then zeros
      for (long i = 0; i < m_; i += kFloats) {
        const FVec above = d ? fload(before + (d - 1) * m_ + i) : fload(value + i);
        fstore(after + d * m_ + i,
               push * above + keep * fload(before + d * m_ + i) + pop * fload(before + (d + 1) * m_ + i));
      }
    std::fill_n(after + t * m_, 2 * m_, 0.f);
    std::copy_n(after, m_, reading);
    return true;
  }

  void step_back(long t, int64_t b, const float* action, const float* value, const float* grad_reading,
                 float* grad_action, float* grad_value) {
    const FVec push = fsplat(action[0]), keep = fsplat(action[1]), pop = fsplat(action[2]);
    const float* stack = stacks_ + b * size_ + level(t - 1, m_);
    float *after = gradients_[t % 2] + b * room_, *before = gradients_[(t - 1) % 2] + b * room_;
    for (long i = 0; i < m_; ++i) after[i] += grad_reading[i];
    FVec sums[3] = {};
    for (long d = 0; d < t; ++d)
      for (long i = 0; i < m_; i += kFloats) {
        const FVec g = fload(after + d * m_ + i);
        sums[0] += g * (d ? fload(stack + (d - 1) * m_ + i) : fload(value + i));
        sums[1] += g * fload(stack + d * m_ + i);
        sums[2] += g * fload(stack + (d + 1) * m_ + i);
        if (d + 1 < t)
          fstore(before + d * m_ + i, push * fload(after + (d + 1) * m_ + i) + keep * g +
                                          (d ? pop * fload(after + (d - 1) * m_ + i) : FVec{}));
      }
    float grads[3], mean = 0;
    for (int i = 0; i < 3; ++i) mean += (grads[i] = fsum(sums[i])) * action[i];
    for (int i = 0; i < 3; ++i) grad_action[i] = action[i] * (grads[i] - mean);
    for (long i = 0; i < m_; ++i) grad_value[i] = after[i] * action[0];
  }

  void finish(int64_t, const float*) {}

 private:
  const long m_, size_, room_;
  float* stacks_;
  float* gradients_[2];  // of the stacks after even and odd steps
};

void forward(const LSTMShape& p, const LSTMInputs& in, const LSTMArrays& out, float* stacks) {
  lstm_forward(p, in, out, [&](Workspace& work, int64_t first, int64_t count) {
    return Stacks(work, p, stacks + first * stack_size(p.steps, p.value), count, false);
  });
}

void backward(const LSTMShape& p, const LSTMGradients& grads, const LSTMArrays& made, float* stacks) {
  lstm_backward(p, grads, made, [&](Workspace& work, int64_t first, int64_t count) {
    return Stacks(work, p, stacks + first * stack_size(p.steps, p.value), count, true);
  });
}

}  // namespace

extern const SuperpositionLSTM superposition_lstm;
const SuperpositionLSTM superposition_lstm = {stack_size, forward, backward};

}  // namespace STACKATTN_KERNEL
