// An LSTM with a superposition stack: all steps in one call. Compiled once for each instruction set.
//
// Rows are padded with zeros to multiples of 8: hidden units, values, and 3 actions; a value follows the actions.
#include "floats.h"
#include "network.h"

namespace STACKATTN_KERNEL {
namespace {

constexpr float kLog2e = 1.4426950408889634f;
constexpr int kValue = 8;  // where the value begins in a row of actions

inline FVec sigmoid(FVec x) {
  const FVec y = x * fsplat(-kLog2e), high = fsplat(126.f);
  return fsplat(1.f) / (fsplat(1.f) + exp2(y > high ? high : y));
}
inline FVec tanh(FVec x) { return fsplat(2.f) * sigmoid(x * fsplat(2.f)) - fsplat(1.f); }

// Where the stack after step t begins: it has t elements of `m` numbers, the top first, and is followed by two of
// zeros.
inline long level(long t, long m) { return (t * (t - 1) / 2 + 2 * t) * m; }
int64_t stack_size(const LSTMShape& shape) { return level(shape.steps, shape.value); }

// One row of the batch: softmax of the actions, sigmoid of the value, and the stack after step t from the one before.
void step_stack(const LSTMShape& p, long t, float* action, const float* before, float* after, float* reading) {
  float top = std::max(action[0], std::max(action[1], action[2])), total = 0;
  for (int i = 0; i < 3; ++i) total += action[i] = std::exp(action[i] - top);
  for (int i = 0; i < 3; ++i) action[i] /= total;
  float* value = action + kValue;
  for (int i = 0; i < p.value_size; ++i) value[i] = 1 / (1 + std::exp(-value[i]));
  const FVec push = fsplat(action[0]), keep = fsplat(action[1]), pop = fsplat(action[2]);
  const long m = p.value;
  for (long d = 0; d < t; ++d)  // the stack before has t - 1 elements, then zeros
    for (long i = 0; i < m; i += kFloats) {
      const FVec above = d ? fload(before + (d - 1) * m + i) : fload(value + i);
      fstore(after + d * m + i,
             push * above + keep * fload(before + d * m + i) + pop * fload(before + (d + 1) * m + i));
    }
  std::fill_n(after + t * m, 2 * m, 0.f);
  std::copy_n(after, m, reading);
}

// The gradient of the stack before step t, and of the actions' logits, from the gradient of the stack after it.
void step_stack_back(const LSTMShape& p, long t, const float* action, const float* before, const float* grad_after,
                     float* grad_before, float* grad_action) {
  const FVec push = fsplat(action[0]), keep = fsplat(action[1]), pop = fsplat(action[2]);
  FVec sums[3] = {};
  const long m = p.value;
  for (long d = 0; d < t; ++d)
    for (long i = 0; i < m; i += kFloats) {
      const FVec g = fload(grad_after + d * m + i);
      if (d) sums[0] += g * fload(before + (d - 1) * m + i);
      sums[1] += g * fload(before + d * m + i);
      sums[2] += g * fload(before + (d + 1) * m + i);
      if (d + 1 < t)
        fstore(grad_before + d * m + i, push * fload(grad_after + (d + 1) * m + i) + keep * g +
                                            (d ? pop * fload(grad_after + (d - 1) * m + i) : FVec{}));
    }
  float grads[3], mean = 0, pushed = 0;
  for (int i = 0; i < p.value_size; ++i) {
    const float v = action[kValue + i];
    pushed += grad_after[i] * v;
    grad_action[kValue + i] = grad_after[i] * action[0] * v * (1 - v);
  }
  for (int i = 0; i < 3; ++i) grads[i] = fsum(sums[i]) + (i == 0 ? pushed : 0);
  for (int i = 0; i < 3; ++i) mean += grads[i] * action[i];
  for (int i = 0; i < 3; ++i) grad_action[i] = action[i] * (grads[i] - mean);
}

// Calls body(first, count) for parts of the batch, one on each thread. No result depends on the parts.
template <class Body>
void for_each_part(const LSTMShape& p, Body body) {
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(p.threads, p.batch)),
                size = (p.batch + parts - 1) / parts;
  bool exhausted = false;
#pragma omp parallel for num_threads(parts) schedule(static) if (parts > 1)
  for (int64_t part = 0; part < parts; ++part) {
    try {
      const int64_t first = part * size;
      if (first < p.batch) body(own_workspace(), first, std::min(size, p.batch - first));
      own_workspace().keep_at_most(size_t(16) << 20);
    } catch (const std::bad_alloc&) {
#pragma omp atomic write
      exhausted = true;
    }
  }
  if (exhausted) throw std::bad_alloc();
}

void forward(const LSTMShape& p, const float* inputs, const float* weight, const float* map, const float* bias,
             const LSTMArrays& out) {
  const long B = p.batch, h = p.hidden, m = p.value, K = m + h, g4 = 4 * h, A = kValue + m, size = stack_size(p);
  for_each_part(p, [&](Workspace&, int64_t first, int64_t count) {
    for (long t = 0; t < p.steps; ++t) {
      float *x = out.x + (t * B + first) * K, *next = x + B * K;
      float *gates = out.gates + (t * B + first) * g4, *cells = out.cells + (t * B + first) * h;
      if (t > 0) {
        float* action = out.actions + (t * B + first) * A;
        for (int64_t b = 0; b < count; ++b) std::copy_n(bias, A, action + b * A);
        fgemm(x + m, K, 1, map, A, int(count), int(A), int(h), action, A, true);
        for (int64_t b = 0; b < count; ++b) {
          float* stack = out.stacks + (first + b) * size;
          if (t == 1) std::fill_n(stack, 2 * m, 0.f);
          step_stack(p, t, action + b * A, stack + level(t - 1, m), stack + level(t, m), x + b * K);
        }
      }
      std::copy_n(inputs + (t * B + first) * g4, count * g4, gates);
      fgemm(x, K, 1, weight, g4, int(count), int(g4), int(K), gates, g4, true);
      for (int64_t b = 0; b < count; ++b)
        for (long i = 0; i < h; i += kFloats) {
          float* gate = gates + b * g4 + i;
          const FVec in = sigmoid(fload(gate)), forget = sigmoid(fload(gate + h));
          const FVec candidate = tanh(fload(gate + 2 * h)), show = sigmoid(fload(gate + 3 * h));
          const FVec cell = forget * fload(cells + b * h + i) + in * candidate;
          fstore(gate, in), fstore(gate + h, forget), fstore(gate + 2 * h, candidate), fstore(gate + 3 * h, show);
          fstore(cells + (B + b) * h + i, cell);
          fstore(next + b * K + m + i, show * tanh(cell));
        }
    }
  });
}

void backward(const LSTMShape& p, const float* weight, const float* map, const LSTMArrays& made,
              const float* grad_hidden, float* grad_gates, float* grad_actions) {
  const long B = p.batch, h = p.hidden, m = p.value, K = m + h, g4 = 4 * h, A = kValue + m, size = stack_size(p);
  for_each_part(p, [&](Workspace& work, int64_t first, int64_t count) {
    const long room = (p.steps + 2) * m;  // of one gradient of a stack
    work.start((count * (2 * h + K + 2 * room)) / 2 + 64);
    float *dh = take_floats(work, count * h), *dc = take_floats(work, count * h), *dx = take_floats(work, count * K);
    float *after = take_floats(work, count * room), *before = take_floats(work, count * room);
    std::fill_n(dh, count * h, 0.f);
    std::fill_n(dc, count * h, 0.f);
    std::fill_n(after, count * room, 0.f);
    std::fill_n(before, count * room, 0.f);
    for (long t = p.steps - 1; t >= 0; --t) {
      const float *gates = made.gates + (t * B + first) * g4, *cells = made.cells + (t * B + first) * h;
      float* dg = grad_gates + (t * B + first) * g4;
      const float* grad = grad_hidden + (t * B + first) * h;
      for (int64_t b = 0; b < count; ++b)
        for (long i = 0; i < h; i += kFloats) {
          const float* gate = gates + b * g4 + i;
          float* out = dg + b * g4 + i;
          const FVec in = fload(gate), forget = fload(gate + h), candidate = fload(gate + 2 * h),
                     show = fload(gate + 3 * h);
          const FVec one = fsplat(1.f), squashed = tanh(fload(cells + (B + b) * h + i));
          const FVec u = fload(dh + b * h + i) + fload(grad + b * h + i);
          const FVec w = fload(dc + b * h + i) + u * show * (one - squashed * squashed);
          fstore(out, w * candidate * in * (one - in));
          fstore(out + h, w * fload(cells + b * h + i) * forget * (one - forget));
          fstore(out + 2 * h, w * in * (one - candidate * candidate));
          fstore(out + 3 * h, u * squashed * show * (one - show));
          fstore(dc + b * h + i, w * forget);
        }
      fgemm(dg, g4, 1, weight, K, int(count), int(K), int(g4), dx, K, false);
      for (int64_t b = 0; b < count; ++b) std::copy_n(dx + b * K + m, h, dh + b * h);
      if (t == 0) break;
      const float* action = made.actions + (t * B + first) * A;
      float* da = grad_actions + (t * B + first) * A;
      for (int64_t b = 0; b < count; ++b) {
        const float* stack = made.stacks + (first + b) * size;
        float* top = after + b * room;
        for (long i = 0; i < m; ++i) top[i] += dx[b * K + i];
        step_stack_back(p, t, action + b * A, stack + level(t - 1, m), top, before + b * room, da + b * A);
      }
      fgemm(da, A, 1, map, h, int(count), int(h), int(A), dh, h, true);
      std::swap(before, after);
    }
  });
}

}  // namespace

extern const LSTM lstm;
const LSTM lstm = {stack_size, forward, backward};

}  // namespace STACKATTN_KERNEL
