// Readings of both stacks for whole sequences, and their gradients. Compiled once for each instruction set.
#include "readings.h"

#include "sequences.h"

namespace STACKATTN_KERNEL {
namespace {

// One sequence of a batch. `steps` are transitions (Q,S,QS+QS+Q), push, replace and pop, or the three actions of the
// superposition stack; `values` start with the bottom vector, which a superposition stack does not have.
template <class IO>
struct Sequence {
  const Problem& p;
  const bool superposition;
  const int m;
  const int64_t number, length;
  const int Q = int(p.states), S = int(p.symbols), QS = Q * S;
  const int64_t per_step = superposition ? 3 : int64_t(QS) * (2 * QS + Q);
  const int64_t per_row = int64_t(QS) * m, rows = p.steps + !superposition;

  const IO* steps(const void* all) const { return (const IO*)all + number * p.steps * per_step; }
  const IO* values(const void* all) const { return (const IO*)all + number * rows * m; }
  int64_t first_reading() const { return number * p.steps * per_row; }

  template <class A>
  Report load(ReadingChart<A>& chart, const void* all_steps, const void* all_values) const {
    const IO* step = steps(all_steps);
    for (int t = 1; t <= length; ++t, step += per_step) {
      if (superposition) {
        if (!finite(step)) return {1, 0, t - 1};
        A::set(chart.push(t), 0, A::from_double(step[0]));
        A::set(chart.repl(t), 0, A::from_double(step[1]));
        A::set(chart.pop(t), 0, A::from_double(step[2]));
      } else if (const int argument = load_joined_step<A>(Q, QS, step, chart.push(t), chart.repl(t), chart.pop(t))) {
        return {argument, 0, t - 1};
      }
    }
    load_values(chart, all_values);
    return {};
  }
  template <class A>
  void load_values(ReadingChart<A>& chart, const void* all_values) const {
    const IO* value = values(all_values);
    if (superposition) chart.set_value(0, (const IO*)nullptr);
    for (int64_t t = superposition; t <= length; ++t, value += m) chart.set_value(int(t), value);
  }

  template <class A>
  typename A::Value scale(const ReadingChart<A>& chart, int t) const {
    if (superposition) return A::one();
    const auto mass = chart.mass(t);
    return A::is_zero(mass) ? A::zero() : A::div(A::one(), mass);
  }

  template <class A>
  void store_readings(const ReadingChart<A>& chart, void* readings) const {
    IO* out = (IO*)readings + first_reading();
    for (int t = 1; t <= length; ++t) {
      const auto factor = scale(chart, t);
      for (int r = 0; r < Q; ++r)
        for (int y = 0; y < S; ++y) {
          const auto row = chart.weights(t, r, y);
          for (int c = 0; c < m; ++c) *out++ = IO(A::to_double(A::mul(A::get(row, c), factor)));
        }
    }
    std::fill_n(out, (p.steps - length) * per_row, IO(0));
  }

  // dF = G / mass; the mass has the gradient -(sum of G * readings) / mass.
  template <class A>
  void load_gradient(ReadingChart<A>& chart, const void* grad_readings) const {
    chart.clear_weight_gradients();
    const IO* grad = (const IO*)grad_readings + first_reading();
    for (int t = 1; t <= length; ++t, grad += per_row) {
      const auto factor = scale(chart, t);
      double mean = 0;
      for (int s = 0; s < QS && !superposition; ++s) {
        const auto row = chart.weights(t, s / S, s % S);
        for (int c = 0; c < m; ++c) mean += A::to_double(A::mul(A::get(row, c), factor)) * double(grad[s * m + c]);
      }
      for (int s = 0; s < QS; ++s) {
        const auto row = chart.weight_gradients(t, s / S, s % S);
        for (int c = 0; c < m; ++c) A::set(row, c, A::mul(A::from_double(grad[s * m + c]), factor));
        A::set(row, m, A::mul(A::from_double(-mean), factor));
      }
    }
  }

  template <class A>
  void walk_back(ReadingChart<A>& chart, const void* grad_readings, void* grad_steps, void* grad_values) const {
    load_gradient(chart, grad_readings);
    chart.backward();
    IO* step = (IO*)grad_steps + number * p.steps * per_step;
    const auto product = [](auto weights, auto gradients, int64_t i) {  // the gradient of a log weight
      return IO(A::to_double(A::mul(A::get(weights, i), A::get(gradients, i))));
    };
    for (int t = 1; t <= length; ++t) {
      if (superposition) {
        step[0] = IO(A::to_double(A::get(chart.dpush(t), 0)));
        step[1] = IO(A::to_double(A::get(chart.drepl(t), 0)));
        step[2] = IO(A::to_double(A::get(chart.dpop(t), 0)));
        step += 3;
        continue;
      }
      for (int s = 0; s < QS; ++s) {
        for (int i = 0; i < QS; ++i) *step++ = product(chart.push(t), chart.dpush(t), s * QS + i);
        for (int i = 0; i < QS; ++i) *step++ = product(chart.repl(t), chart.drepl(t), s * QS + i);
        for (int i = 0; i < Q; ++i) *step++ = product(chart.pop(t), chart.dpop(t), s * Q + i);
      }
    }
    std::fill_n(step, (p.steps - length) * per_step, IO(0));
    IO* value = (IO*)grad_values + number * rows * m;
    for (int64_t t = superposition; t <= length; ++t)
      for (int c = 0; c < m; ++c) *value++ = IO(chart.value_gradient(int(t), c));
    std::fill_n(value, (p.steps - length) * m, IO(0));
  }

  bool in_range(const ReadingChart<Linear>& chart) const {
    for (int t = 1; t <= length && !superposition; ++t)
      if (!(chart.mass(t) >= kSmallestMass)) return false;
    return true;
  }
};

// The size also suffices for shorter sequences: those of at most 128 steps may have smaller blocks and larger charts
// (see `Chart::block_size`). It is rounded up to whole cache lines.
int64_t kept_size(int64_t states, int64_t symbols, int64_t steps, int64_t m) {
  const auto size = [=](int64_t n) {
    return Chart<Linear>::forward_size(int(n), int(states), int(symbols), ReadingChart<Linear>::width(int(m)));
  };
  return (std::max(size(steps), size(std::min<int64_t>(steps, 128))) + 7) / 8 * 8;
}

template <class IO>
Report forward_as(const Problem& p, bool superposition, int64_t m, const void* steps, const void* values,
                  const Kept& kept, void* readings) {
  return for_each_sequence(p, [&](Workspace& work, int64_t s, int64_t length) {
    const Sequence<IO> sequence{p, superposition, int(m), s, length};
    {
      double* memory = kept.data ? kept.data + s * kept.stride : nullptr;
      ReadingChart<Linear> chart(work, int(length), sequence.Q, sequence.S, int(m), superposition, false, memory);
      const Report problem = sequence.load(chart, steps, values);
      if (problem.argument) return problem;
      chart.forward();
      if (sequence.in_range(chart)) {
        sequence.store_readings(chart, readings);
        return Report{};
      }
    }
    ReadingChart<Extended> chart(work, int(length), sequence.Q, sequence.S, int(m), superposition, false, nullptr);
    sequence.load(chart, steps, values);
    chart.forward();
    sequence.store_readings(chart, readings);
    return Report{};
  });
}

template <class IO>
Report backward_as(const Problem& p, bool superposition, int64_t m, const void* steps, const void* values,
                   const Kept& kept, const void* grad_readings, void* grad_steps, void* grad_values) {
  return for_each_sequence(p, [&](Workspace& work, int64_t s, int64_t length) {
    const Sequence<IO> sequence{p, superposition, int(m), s, length};
    {
      double* memory = kept.data ? kept.data + s * kept.stride : nullptr;
      ReadingChart<Linear> chart(work, int(length), sequence.Q, sequence.S, int(m), superposition, true, memory);
      if (memory) {
        sequence.load_values(chart, values);
      } else {
        const Report problem = sequence.load(chart, steps, values);
        if (problem.argument) return problem;
        chart.forward();
      }
      if (sequence.in_range(chart)) {
        sequence.walk_back(chart, grad_readings, grad_steps, grad_values);
        return Report{};
      }
    }
    ReadingChart<Extended> chart(work, int(length), sequence.Q, sequence.S, int(m), superposition, true, nullptr);
    sequence.load(chart, steps, values);
    chart.forward();
    sequence.walk_back(chart, grad_readings, grad_steps, grad_values);
    return Report{};
  });
}

Report forward(const Problem& p, bool superposition, int64_t m, const void* steps, const void* values, const Kept& kept,
               void* readings) {
  return (p.wide ? forward_as<double> : forward_as<float>)(p, superposition, m, steps, values, kept, readings);
}
Report backward(const Problem& p, bool superposition, int64_t m, const void* steps, const void* values,
                const Kept& kept, const void* grad_readings, void* grad_steps, void* grad_values) {
  return (p.wide ? backward_as<double> : backward_as<float>)(p, superposition, m, steps, values, kept, grad_readings,
                                                             grad_steps, grad_values);
}

}  // namespace

extern const Readings readings;
const Readings readings = {kept_size, forward, backward};

}  // namespace STACKATTN_KERNEL
