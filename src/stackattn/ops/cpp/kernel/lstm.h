// An LSTM that controls a stack: the loop over all steps, forward and backward, for any stack.
//
// Hidden units, readings, actions and values are padded with zeros to multiples of 8. In each row of
// `LSTMArrays::actions`, the value follows the actions.
#pragma once
#include "floats.h"
#include "network.h"
#include "sequences.h"

namespace STACKATTN_KERNEL {
namespace {

constexpr float kLog2e = 1.4426950408889634f;

inline FVec sigmoid(FVec x) {
  const FVec y = x * fsplat(-kLog2e), high = fsplat(126.f);
  return fsplat(1.f) / (fsplat(1.f) + exp2(y > high ? high : y));
}
inline FVec tanh(FVec x) { return fsplat(2.f) * sigmoid(x * fsplat(2.f)) - fsplat(1.f); }

// Calls body(workspace, first, count) for parts of the batch. Results do not depend on how the batch is divided. In a
// larger part, each read of the weights serves more sequences, but their stacks need more of the cache.
template <class Body>
void for_each_part(const LSTMShape& p, Body body) {
  constexpr int64_t kMost = 16;
  const int64_t threads = std::max<int64_t>(1, std::min<int64_t>(p.threads, p.batch));
  const int64_t parts = threads * std::max<int64_t>(1, (p.batch + threads * kMost - 1) / (threads * kMost));
  const int64_t size = (p.batch + parts - 1) / parts;
  std::exception_ptr exhausted;
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int64_t part = 0; part < parts; ++part) {
    try {
      FlushDenormals flush;
      const int64_t first = part * size;
      if (first < p.batch) body(own_workspace(), first, std::min(size, p.batch - first));
      own_workspace().keep_at_most(size_t(16) << 20);
    } catch (const std::bad_alloc&) {
#pragma omp critical
      exhausted = std::current_exception();
    }
  }
  if (exhausted) std::rethrow_exception(exhausted);
}

// `make_stack` creates the stacks of one part of the batch. Their `start` writes the reading before the first action;
// `step` takes the action with the given logits, pushes the given value, and writes the reading; it may overwrite the
// logits. If a step returns false, `lstm_forward` returns false, with incomplete results.
template <class MakeStack>
bool lstm_forward(const LSTMShape& p, const LSTMInputs& in, const LSTMArrays& out, MakeStack make_stack) {
  const long B = p.batch, h = p.hidden, m = p.reading, K = m + h, g4 = 4 * h, A = p.actions + p.value;
  bool complete = true;
  for_each_part(p, [&](Workspace& work, int64_t first, int64_t count) {
    auto stack = make_stack(work, first, count);
    for (int64_t b = 0; b < count; ++b) stack.start(b, out.x + (first + b) * K);
    for (long t = 0; t < p.steps; ++t) {
      float *x = out.x + (t * B + first) * K, *next = x + B * K;
      float *gates = out.gates + (t * B + first) * g4, *cells = out.cells + (t * B + first) * h;
      if (t > 0) {
        float* actions = out.actions + (t * B + first) * A;
        for (int64_t b = 0; b < count; ++b) std::copy_n(in.bias, A, actions + b * A);
        fgemm(x + m, K, 1, in.map, A, int(count), int(A), int(h), actions, A, true);
        for (int64_t b = 0; b < count; ++b) {
          float* value = actions + b * A + p.actions;
          for (int i = 0; i < p.value_size; ++i) value[i] = 1 / (1 + std::exp(-value[i]));
          if (stack.step(t, b, actions + b * A, value, x + b * K)) continue;
#pragma omp atomic write
          complete = false;
          return;
        }
      }
      std::copy_n(in.inputs + (t * B + first) * g4, count * g4, gates);
      fgemm(x, K, 1, in.weight, g4, int(count), int(g4), int(K), gates, g4, true);
      for (int64_t b = 0; b < count; ++b)
        for (long i = 0; i < h; i += kFloats) {
          float* gate = gates + b * g4 + i;
          const FVec enter = sigmoid(fload(gate)), forget = sigmoid(fload(gate + h));
          const FVec candidate = tanh(fload(gate + 2 * h)), show = sigmoid(fload(gate + 3 * h));
          const FVec cell = forget * fload(cells + b * h + i) + enter * candidate;
          fstore(gate, enter), fstore(gate + h, forget), fstore(gate + 2 * h, candidate), fstore(gate + 3 * h, show);
          fstore(cells + (B + b) * h + i, cell);
          fstore(next + b * K + m + i, show * tanh(cell));
        }
    }
  });
  return complete;
}

// `step_back` computes the gradients of a step's logits and value from the gradient of its reading; it is called for
// the steps in reverse order. At the end, `finish` receives the gradient of the first reading.
template <class MakeStack>
void lstm_backward(const LSTMShape& p, const LSTMGradients& grads, const LSTMArrays& made, MakeStack make_stack) {
  const long B = p.batch, h = p.hidden, m = p.reading, K = m + h, g4 = 4 * h, A = p.actions + p.value;
  for_each_part(p, [&](Workspace& work, int64_t first, int64_t count) {
    auto stack = make_stack(work, first, count);
    std::vector<float> memory(count * (2 * h + K), 0.f);
    float *dh = memory.data(), *dc = dh + count * h, *dx = dc + count * h;
    for (long t = p.steps - 1; t >= 0; --t) {
      const float *gates = made.gates + (t * B + first) * g4, *cells = made.cells + (t * B + first) * h;
      float* dg = grads.gates + (t * B + first) * g4;
      const float* grad = grads.hidden + (t * B + first) * h;
      for (int64_t b = 0; b < count; ++b)
        for (long i = 0; i < h; i += kFloats) {
          const float* gate = gates + b * g4 + i;
          float* out = dg + b * g4 + i;
          const FVec enter = fload(gate), forget = fload(gate + h), candidate = fload(gate + 2 * h),
                     show = fload(gate + 3 * h);
          const FVec one = fsplat(1.f), squashed = tanh(fload(cells + (B + b) * h + i));
          const FVec u = fload(dh + b * h + i) + fload(grad + b * h + i);
          const FVec w = fload(dc + b * h + i) + u * show * (one - squashed * squashed);
          fstore(out, w * candidate * enter * (one - enter));
          fstore(out + h, w * fload(cells + b * h + i) * forget * (one - forget));
          fstore(out + 2 * h, w * enter * (one - candidate * candidate));
          fstore(out + 3 * h, u * squashed * show * (one - show));
          fstore(dc + b * h + i, w * forget);
        }
      fgemm(dg, g4, 1, grads.weight, K, int(count), int(K), int(g4), dx, K, false);
      for (int64_t b = 0; b < count; ++b) std::copy_n(dx + b * K + m, h, dh + b * h);
      if (t == 0) break;
      const float* actions = made.actions + (t * B + first) * A;
      float* da = grads.actions + (t * B + first) * A;
      for (int64_t b = 0; b < count; ++b) {
        const float* value = actions + b * A + p.actions;
        float* dvalue = da + b * A + p.actions;
        stack.step_back(t, b, actions + b * A, value, dx + b * K, da + b * A, dvalue);
        for (int i = 0; i < p.value_size; ++i) dvalue[i] *= value[i] * (1 - value[i]);
      }
      fgemm(da, A, 1, grads.map, h, int(count), int(h), int(A), dh, h, true);
    }
    for (int64_t b = 0; b < count; ++b) stack.finish(b, dx + b * K);
  });
}

}  // namespace
}  // namespace STACKATTN_KERNEL
