// The full pass over whole sequences, from transitions or actions to attention weights, and its backward pass. Compiled
// once for each instruction set.
#include "chart.h"
#include "sequences.h"

namespace STACKATTN_KERNEL {
namespace {

template <class A, class IO>
Report load(Chart<A>& chart, const IO* push, const IO* repl, const IO* pop) {
  const int Q = chart.Q, QS = chart.QS;
  for (int t = 1; t <= chart.n; ++t, push += QS * QS, repl += QS * QS, pop += QS * Q)
    if (const int argument = load_step<A>(Q, QS, push, repl, pop, chart.push(t), chart.repl(t), chart.pop(t)))
      return {argument, 0, t - 1};
  return {};
}

bool in_range(const Chart<Linear>& chart) {
  for (int t = 1; t <= chart.n; ++t)
    if (!(chart.mass(t) >= kSmallestMass)) return false;
  return true;
}

template <class A, class IO>
void store_weights(const Chart<A>& chart, int64_t steps, IO* out) {
  const int Q = chart.Q, S = chart.S, QS = chart.QS;
  const int64_t stride = (steps + 1) * QS;
  for (int t = 1; t <= chart.n; ++t, out += stride) {
    const auto mass = chart.mass(t);
    const auto scale = A::is_zero(mass) ? A::zero() : A::div(A::one(), mass);
    for (int r = 0; r < Q; ++r)
      for (int y = 0; y < S; ++y) {
        IO* column = out + r * S + y;
        const auto row = chart.weights(t, r, y);
        for (int i = 0; i <= t; ++i) column[int64_t(i) * QS] = IO(A::to_double(A::mul(A::get(row, i), scale)));
      }
    std::fill(out + int64_t(t + 1) * QS, out + stride, IO(0));
  }
  std::fill(out, out + (steps - chart.n) * stride, IO(0));
}

// dF = (G - sum of G * W) / mass: the second term is the derivative of the normalisation.
template <class A, class IO>
void load_gradient(Chart<A>& chart, int64_t steps, const IO* grad) {
  const int Q = chart.Q, S = chart.S, QS = chart.QS;
  chart.clear_weight_gradients();
  for (int t = 1; t <= chart.n; ++t, grad += (steps + 1) * QS) {
    const auto mass = chart.mass(t);
    if (A::is_zero(mass)) continue;
    const auto scale = A::div(A::one(), mass);
    double mean = 0;
    for (int r = 0; r < Q; ++r)
      for (int y = 0; y < S; ++y) {
        const auto row = chart.weights(t, r, y);
        for (int i = 0; i <= t; ++i)
          mean += A::to_double(A::mul(A::get(row, i), scale)) * double(grad[int64_t(i) * QS + r * S + y]);
      }
    for (int r = 0; r < Q; ++r)
      for (int y = 0; y < S; ++y) {
        const auto row = chart.weight_gradients(t, r, y);
        for (int i = 0; i <= t; ++i)
          A::set(row, i, A::mul(A::from_double(double(grad[int64_t(i) * QS + r * S + y]) - mean), scale));
      }
  }
}

// The gradient of a log weight is weight * gradient of the weight.
template <class A, class IO>
void store_gradient(typename A::Ptr weights, typename A::Ptr gradients, int64_t count, int64_t room, IO* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = IO(A::to_double(A::mul(A::get(weights, i), A::get(gradients, i))));
  std::fill(out + count, out + room, IO(0));
}

template <class IO>
struct Transitions {
  const IO *push, *repl, *pop;
  Transitions(const Problem& p, const void* push, const void* repl, const void* pop, int64_t sequence)
      : push((const IO*)push + sequence * push_size(p)), repl((const IO*)repl + sequence * push_size(p)),
        pop((const IO*)pop + sequence * pop_size(p)) {}
  static int64_t push_size(const Problem& p) { return p.steps * p.states * p.symbols * p.states * p.symbols; }
  static int64_t pop_size(const Problem& p) { return p.steps * p.states * p.symbols * p.states; }
};

template <class IO>
Report nondeterministic_as(const Problem& p, const void* push, const void* repl, const void* pop, void* weights) {
  return for_each_sequence(p, [&](Workspace& work, int64_t s, int64_t length) {
    const Transitions<IO> in(p, push, repl, pop, s);
    IO* out = (IO*)weights + s * p.steps * (p.steps + 1) * p.states * p.symbols;
    {
      Chart<Linear> chart(work, length, p.states, p.symbols, false, false);
      const Report problem = load(chart, in.push, in.repl, in.pop);
      if (problem.argument) return problem;
      chart.forward();
      if (in_range(chart)) {
        store_weights(chart, p.steps, out);
        return Report{};
      }
    }
    Chart<Extended> chart(work, length, p.states, p.symbols, false, false);
    load(chart, in.push, in.repl, in.pop);
    chart.forward();
    store_weights(chart, p.steps, out);
    return Report{};
  });
}

template <class A, class IO>
void walk_back(Chart<A>& chart, const Problem& p, const void* grad_weights, int64_t s, void* grad_push, void* grad_repl,
               void* grad_pop) {
  using In = Transitions<IO>;
  load_gradient(chart, p.steps, (const IO*)grad_weights + s * p.steps * (p.steps + 1) * p.states * p.symbols);
  chart.backward();
  const int64_t pushes = int64_t(chart.n) * chart.QS * chart.QS, pops = int64_t(chart.n) * chart.QS * chart.Q;
  store_gradient<A>(chart.push(1), chart.dpush(1), pushes, In::push_size(p), (IO*)grad_push + s * In::push_size(p));
  store_gradient<A>(chart.repl(1), chart.drepl(1), pushes, In::push_size(p), (IO*)grad_repl + s * In::push_size(p));
  store_gradient<A>(chart.pop(1), chart.dpop(1), pops, In::pop_size(p), (IO*)grad_pop + s * In::pop_size(p));
}

template <class IO>
Report nondeterministic_backward_as(const Problem& p, const void* push, const void* repl, const void* pop,
                                    const void* grad_weights, void* grad_push, void* grad_repl, void* grad_pop) {
  return for_each_sequence(p, [&](Workspace& work, int64_t s, int64_t length) {
    const Transitions<IO> in(p, push, repl, pop, s);
    {
      Chart<Linear> chart(work, length, p.states, p.symbols, false, true);
      const Report problem = load(chart, in.push, in.repl, in.pop);
      if (problem.argument) return problem;
      chart.forward();
      if (in_range(chart)) {
        walk_back<Linear, IO>(chart, p, grad_weights, s, grad_push, grad_repl, grad_pop);
        return Report{};
      }
    }
    Chart<Extended> chart(work, length, p.states, p.symbols, false, true);
    load(chart, in.push, in.repl, in.pop);
    chart.forward();
    walk_back<Extended, IO>(chart, p, grad_weights, s, grad_push, grad_repl, grad_pop);
    return Report{};
  });
}

template <class IO>
Report load_actions(Chart<Linear>& chart, const IO* actions) {
  for (int t = 1; t <= chart.n; ++t, actions += 3) {
    if (!finite(actions)) return {1, 0, t - 1};
    chart.push(t)[0] = actions[0];
    chart.repl(t)[0] = actions[1];
    chart.pop(t)[0] = actions[2];
  }
  return {};
}

template <class IO>
Report superposition_as(const Problem& p, const void* actions, void* weights) {
  return for_each_sequence(p, [&](Workspace& work, int64_t s, int64_t length) {
    Chart<Linear> chart(work, length, 1, 1, true, false);
    const Report problem = load_actions(chart, (const IO*)actions + s * p.steps * 3);
    if (problem.argument) return problem;
    chart.forward();
    IO* out = (IO*)weights + s * p.steps * p.steps;
    for (int t = 1; t <= length; ++t, out += p.steps) {
      const double* row = chart.weights(t, 0, 0) + 1;
      for (int i = 0; i < t; ++i) out[i] = IO(row[i]);
      std::fill(out + t, out + p.steps, IO(0));
    }
    std::fill(out, out + (p.steps - length) * p.steps, IO(0));
    return Report{};
  });
}

template <class IO>
Report superposition_backward_as(const Problem& p, const void* actions, const void* grad_weights, void* grad_actions) {
  return for_each_sequence(p, [&](Workspace& work, int64_t s, int64_t length) {
    Chart<Linear> chart(work, length, 1, 1, true, true);
    const Report problem = load_actions(chart, (const IO*)actions + s * p.steps * 3);
    if (problem.argument) return problem;
    chart.forward();
    chart.clear_weight_gradients();
    const IO* grad = (const IO*)grad_weights + s * p.steps * p.steps;
    for (int t = 1; t <= length; ++t, grad += p.steps) {
      double* row = chart.weight_gradients(t, 0, 0) + 1;
      for (int i = 0; i < t; ++i) row[i] = grad[i];
    }
    chart.backward();
    IO* out = (IO*)grad_actions + s * p.steps * 3;
    for (int t = 1; t <= length; ++t, out += 3) {
      out[0] = IO(chart.dpush(t)[0]);
      out[1] = IO(chart.drepl(t)[0]);
      out[2] = IO(chart.dpop(t)[0]);
    }
    std::fill(out, out + (p.steps - length) * 3, IO(0));
    return Report{};
  });
}

Report nondeterministic(const Problem& p, const void* push, const void* repl, const void* pop, void* weights) {
  return (p.wide ? nondeterministic_as<double> : nondeterministic_as<float>)(p, push, repl, pop, weights);
}
Report nondeterministic_backward(const Problem& p, const void* push, const void* repl, const void* pop,
                                 const void* grad_weights, void* grad_push, void* grad_repl, void* grad_pop) {
  return (p.wide ? nondeterministic_backward_as<double> : nondeterministic_backward_as<float>)(p, push, repl, pop,
                                                                                               grad_weights, grad_push,
                                                                                               grad_repl, grad_pop);
}
Report superposition(const Problem& p, const void* actions, void* weights) {
  return (p.wide ? superposition_as<double> : superposition_as<float>)(p, actions, weights);
}
Report superposition_backward(const Problem& p, const void* actions, const void* grad_weights, void* grad_actions) {
  return (p.wide ? superposition_backward_as<double> : superposition_backward_as<float>)(p, actions, grad_weights,
                                                                                         grad_actions);
}

}  // namespace

extern const FullPass full_pass;
const FullPass full_pass = {nondeterministic, nondeterministic_backward, superposition, superposition_backward};

}  // namespace STACKATTN_KERNEL
