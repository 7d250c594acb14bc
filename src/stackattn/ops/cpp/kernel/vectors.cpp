// The superposition stack, stored as vectors: readings of whole sequences, and their gradients. Compiled once for each
// instruction set.
//
// The columns of the vectors do not depend on each other, so the unit of work is one SIMD vector of columns of one
// sequence: its stack is small enough for the cache, and a batch of one sequence still occupies several threads.
#include "sequences.h"

namespace STACKATTN_KERNEL {
namespace {

constexpr int kBytes = 8 * kLanes;
// Vectors are prefetched this many steps ahead. A unit reads a few columns of long rows, so every step needs another
// cache line, and would otherwise wait for memory if the sequence does not fit into the cache.
constexpr int64_t kAhead = 8;

template <class R>
struct Columns {
  typedef R Vec __attribute__((vector_size(8 * STACKATTN_LANES), may_alias));
  static constexpr int kWidth = kBytes / sizeof(R);

  static Vec splat(R x) { return x - Vec{}; }
  static Vec load(const R* p, int count) {
    Vec out = {};
    std::memcpy(&out, p, count == kWidth ? sizeof(Vec) : count * sizeof(R));
    return out;
  }
  static void store(R* p, Vec v, int count) { std::memcpy(p, &v, count == kWidth ? sizeof(Vec) : count * sizeof(R)); }
  static R sum(Vec v) {
    R t[kWidth];
    std::memcpy(t, &v, sizeof v);
    for (int half = kWidth / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) t[i] += t[i + half];
    return t[0];
  }
};

// The number of elements that are computed after step t. Unless the last stack is part of the result, elements that are
// too deep to be on top at any later step are left out, which halves the time.
struct Heights {
  int64_t start, depth, steps;
  bool with_stack;
  int64_t operator()(int64_t t) const {
    const int64_t height = std::min(start + t, depth);
    return with_stack ? height : std::min(height, steps - t + 1);
  }
  int64_t largest() const {
    int64_t most = 0;
    for (int64_t t = 0; t <= steps; ++t) most = std::max(most, (*this)(t));
    return most;
  }
  int64_t sum(int64_t stride) const {
    int64_t total = 0;
    for (int64_t t = 0; t < steps; t += stride) total += (*this)(t);
    return total;
  }
};

// Stacks are stored every `stride` steps for the backward pass, which computes those in between again. The stride is 1
// if all stacks fit into the cache, otherwise about the square root of the number of steps.
int64_t stride_of(const Heights& heights) {
  constexpr int64_t kCache = 256 << 10;
  if (heights.sum(1) * kBytes <= kCache) return 1;
  int64_t stride = 8;
  while (stride * stride < heights.steps) ++stride;
  return stride;
}

template <class R>
struct Unit {
  using C = Columns<R>;
  using Vec = typename C::Vec;
  const Heights heights;
  const int64_t m, stride;
  const int count;  // columns in use; fewer than kWidth at the end of a row
  const R *actions, *values;

  // Computes the stack after step t + 1 from the one after step t; `from` and `to` may be the same array.
  void step(int64_t t, const Vec* from, Vec* to) const {
    __builtin_prefetch(values + (t + kAhead) * m);
    const R* action = actions + 3 * t;
    const Vec push = C::splat(action[0]), keep = C::splat(action[1]), pop = C::splat(action[2]);
    const int64_t before = heights(t), after = heights(t + 1), inner = std::min(before - 1, after);
    Vec above = C::load(values + t * m, count), same = before > 0 ? from[0] : Vec{};
    int64_t d = 0;
    for (; d < inner; ++d) {
      const Vec below = from[d + 1];
      to[d] = push * above + keep * same + pop * below;
      above = same;
      same = below;
    }
    if (d < after && before > 0) {  // the lowest element
      to[d++] = push * above + keep * same;
      above = same;
    }
    if (d < after) to[d] = push * above;
  }

  // Writes the readings to `readings` and every `stride`-th stack to `stored`, unless they are null. The last stack is
  // left in `stack`.
  void forward(Vec* stack, Vec* stored, R* readings) const {
    for (int64_t t = 0; t < heights.steps; ++t) {
      if (stored && t % stride == 0) stored = std::copy_n(stack, heights(t), stored);
      if (readings) __builtin_prefetch(readings + (t + kAhead) * m, 1);
      step(t, stack, stack);
      if (readings) C::store(readings + t * m, stack[0], count);
    }
  }

  // `grad` is the gradient of the last stack, and becomes that of the first one; rows beyond the stack are zero.
  // `recomputed` has room for the stacks between two stored ones.
  void backward(const Vec* stored, Vec* recomputed, const R* grad_readings, Vec* grad, R* grad_actions,
                R* grad_values) const {
    std::vector<const Vec*> stacks(stride);
    const int64_t last = (heights.steps - 1) / stride * stride;
    stored += heights.sum(stride);
    for (int64_t first = last; first >= 0; first -= stride) {
      stacks[0] = stored -= heights(first);
      const int64_t end = std::min(first + stride, heights.steps);
      Vec* next = recomputed;
      for (int64_t t = first; t + 1 < end; ++t, next += heights(t)) {
        step(t, stacks[t - first], next);
        stacks[t + 1 - first] = next;
      }
      for (int64_t t = end - 1; t >= first; --t) {
        __builtin_prefetch(grad_readings + (t - kAhead) * m);
        __builtin_prefetch(grad_values + (t - kAhead) * m, 1);
        grad[0] += C::load(grad_readings + t * m, count);
        step_back(t, stacks[t - first], grad, grad_actions + 3 * t, grad_values + t * m);
      }
    }
  }

  void step_back(int64_t t, const Vec* stack, Vec* grad, R* grad_action, R* grad_value) const {
    const R* action = actions + 3 * t;
    const Vec push = C::splat(action[0]), keep = C::splat(action[1]), pop = C::splat(action[2]);
    const int64_t before = heights(t), after = heights(t + 1);
    Vec above = {}, same = grad[0];
    Vec pushed = same * C::load(values + t * m, count), kept = {}, popped = {};
    C::store(grad_value, push * same, count);
    for (int64_t d = 0; d < before; ++d) {  // the push moved element d to d + 1, the pop to d - 1
      const Vec below = grad[d + 1], x = stack[d];
      pushed += below * x;
      kept += same * x;
      popped += above * x;
      grad[d] = push * below + keep * same + pop * above;
      above = same;
      same = below;
    }
    for (int64_t d = before; d < after; ++d) grad[d] = Vec{};
    grad_action[0] = C::sum(pushed);
    grad_action[1] = C::sum(kept);
    grad_action[2] = C::sum(popped);
  }
};

template <class R>
struct Batch {
  using C = Columns<R>;
  using Vec = typename C::Vec;
  const Problem& p;
  const VectorSizes& sizes;
  const void *all_actions, *all_values, *all_stacks;
  const int64_t m = sizes.m, blocks = (m + C::kWidth - 1) / C::kWidth, rows = p.steps + sizes.height_after;
  const Heights longest{sizes.height, sizes.depth, p.steps, sizes.height_after > 0};
  const int64_t stride = stride_of(longest), highest = longest.largest();

  // Calls body(unit, sequence, first column, workspace) for each unit.
  template <class Body>
  Report for_each_unit(Body body) const {
    Problem units = p;
    units.batch *= blocks;
    units.lengths = nullptr;
    Report found = for_each_sequence(units, [&](Workspace& work, int64_t number, int64_t) {
      const int64_t s = number / blocks, first = number % blocks * C::kWidth;
      const int64_t n = p.lengths ? p.lengths[s] : p.steps;
      const R* actions = (const R*)all_actions + s * p.steps * 3;
      for (int64_t t = 0; t < n && first == 0; ++t)
        if (!finite(actions + 3 * t)) return Report{1, 0, t};
      const Unit<R> unit{
          {sizes.height, sizes.depth, n, longest.with_stack}, m,       stride,
          int(std::min<int64_t>(m - first, C::kWidth)),       actions, (const R*)all_values + s * p.steps * m + first};
      body(unit, s, first, work);
      return Report{};
    });
    found.sequence /= blocks;
    return found;
  }

  Vec* take(Workspace& work, int64_t vectors) const { return (Vec*)work.take(vectors * kLanes); }
  void load_stack(const Unit<R>& unit, int64_t s, int64_t first, Vec* stack) const {
    const R* from = (const R*)all_stacks + s * sizes.height * m + first;
    for (int64_t d = 0; d < unit.heights(0); ++d) stack[d] = C::load(from + d * m, unit.count);
  }

  Report forward(R* result) const {
    return for_each_unit([&](const Unit<R>& unit, int64_t s, int64_t first, Workspace& work) {
      work.start((highest + 1) * kLanes);
      Vec* stack = take(work, highest + 1);
      load_stack(unit, s, first, stack);
      R* out = result + s * rows * m + first;
      unit.forward(stack, nullptr, out);
      const int64_t n = unit.heights.steps, height = longest.with_stack ? unit.heights(n) : 0;
      for (int64_t t = n; t < p.steps; ++t) C::store(out + t * m, Vec{}, unit.count);
      for (int64_t d = 0; d < sizes.height_after; ++d)
        C::store(out + (p.steps + d) * m, d < height ? stack[d] : Vec{}, unit.count);
    });
  }

  Report backward(const R* grad, R* grad_actions, R* grad_values, R* grad_stacks) const {
    StepVector<R> shares(p.batch * blocks * p.steps * 3);  // what each unit adds to the gradient of the actions
    const Report found = for_each_unit([&](const Unit<R>& unit, int64_t s, int64_t first, Workspace& work) {
      const int64_t n = unit.heights.steps;
      const int64_t between = (stride - 1) * highest, stored = unit.heights.sum(stride);
      work.start((2 * (highest + 2) + between + stored) * kLanes + 64);
      Vec *gradient = take(work, highest + 2), *stack = take(work, highest + 1), *recomputed = take(work, between);
      Vec* stacks = take(work, stored);
      load_stack(unit, s, first, stack);
      unit.forward(stack, stacks, nullptr);
      const R* upstream = grad + s * rows * m + first;
      std::fill_n(gradient, highest + 2, Vec{});
      for (int64_t d = 0; d < (longest.with_stack ? unit.heights(n) : 0); ++d)
        gradient[d] = C::load(upstream + (p.steps + d) * m, unit.count);
      R* share = shares.data() + (s * blocks + first / C::kWidth) * p.steps * 3;
      R* values = grad_values + s * p.steps * m + first;
      if (n > 0) unit.backward(stacks, recomputed, upstream, gradient, share, values);
      for (int64_t t = n; t < p.steps; ++t) C::store(values + t * m, Vec{}, unit.count);
      R* out = grad_stacks + s * sizes.height * m + first;
      for (int64_t d = 0; d < sizes.height; ++d)
        C::store(out + d * m, d < unit.heights(0) ? gradient[d] : Vec{}, unit.count);
    });
    for (int64_t s = 0; s < p.batch; ++s)
      for (int64_t i = 0; i < p.steps * 3; ++i) {
        R total = 0;
        for (int64_t block = 0; block < blocks; ++block) total += shares[(s * blocks + block) * p.steps * 3 + i];
        grad_actions[s * p.steps * 3 + i] = total;
      }
    return found;
  }
};

Report forward(const Problem& p, const VectorSizes& sizes, const void* actions, const void* values, const void* stacks,
               void* result) {
  if (p.wide) return Batch<double>{p, sizes, actions, values, stacks}.forward((double*)result);
  return Batch<float>{p, sizes, actions, values, stacks}.forward((float*)result);
}

template <class R>
Report backward_as(const Problem& p, const VectorSizes& sizes, const void* actions, const void* values,
                   const void* stacks, const void* grad, void* grad_actions, void* grad_values, void* grad_stacks) {
  const Batch<R> batch{p, sizes, actions, values, stacks};
  return batch.backward((const R*)grad, (R*)grad_actions, (R*)grad_values, (R*)grad_stacks);
}
Report backward(const Problem& p, const VectorSizes& sizes, const void* actions, const void* values, const void* stacks,
                const void* grad, void* grad_actions, void* grad_values, void* grad_stacks) {
  return (p.wide ? backward_as<double> : backward_as<float>)(p, sizes, actions, values, stacks, grad, grad_actions,
                                                             grad_values, grad_stacks);
}

}  // namespace

extern const Vectors vectors;
const Vectors vectors = {forward, backward};

}  // namespace STACKATTN_KERNEL
