// The entry points: one sequence after another, on as many threads as asked for. Compiled once for each instruction set.
#include "kernel.h"

#include <atomic>

#include "chart.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace STACKATTN_KERNEL {
namespace {

// Denormals are slow, and whatever they could still say is below what `Linear` vouches for.
class FlushDenormals {
 public:
#if defined(__x86_64__) || defined(_M_X64)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ | (uint64_t(1) << 24)));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  uint64_t saved_;
#endif
};

template <class Body>
BadInput for_each_sequence(const Problem& problem, Body body) {
  std::vector<BadInput> found(problem.batch);
  const int threads = int(std::max<int64_t>(1, std::min<int64_t>(problem.threads, problem.batch)));
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    FlushDenormals flush;
#pragma omp for schedule(dynamic, 1)
    for (int64_t s = 0; s < problem.batch; ++s)
      found[s] = body(s, problem.lengths ? problem.lengths[s] : problem.steps);
  }
  for (int64_t s = 0; s < problem.batch; ++s)
    if (found[s].argument) {
      found[s].sequence = s;
      return found[s];
    }
  return {};
}

template <class IO>
bool bad(IO x) {
  return !(x < IO(INFINITY));  // nan or +inf
}

// A step's weights, exp(log weight - shift): the shift makes the largest outgoing row sum 1, so that nothing overflows.
// It cancels in every attention weight.
template <class A, class IO>
BadInput load(Chart<A>& chart, const IO* push, const IO* repl, const IO* pop) {
  const int Q = chart.Q, QS = chart.QS;
  for (int t = 1; t <= chart.n; ++t, push += QS * QS, repl += QS * QS, pop += QS * Q) {
    double top = -INFINITY;
    for (int i = 0; i < QS * QS; ++i) {
      if (bad(push[i])) return {1, 0, t - 1};
      if (bad(repl[i])) return {2, 0, t - 1};
      top = std::max(top, double(std::max(push[i], repl[i])));
    }
    for (int i = 0; i < QS * Q; ++i) {
      if (bad(pop[i])) return {3, 0, t - 1};
      top = std::max(top, double(pop[i]));
    }
    if (top == -INFINITY) top = 0;
    for (int i = 0; i < QS * QS; ++i) {
      A::set(chart.push(t), i, A::exp(push[i] - top));
      A::set(chart.repl(t), i, A::exp(repl[i] - top));
    }
    for (int i = 0; i < QS * Q; ++i) A::set(chart.pop(t), i, A::exp(pop[i] - top));
    if constexpr (A::kPlanes == 1) {
      double largest = 0;
      for (int s = 0; s < QS; ++s) {
        double row = 0;
        for (int i = 0; i < QS; ++i) row += chart.push(t)[s * QS + i] + chart.repl(t)[s * QS + i];
        for (int i = 0; i < Q; ++i) row += chart.pop(t)[s * Q + i];
        largest = std::max(largest, row);
      }
      if (largest == 0) continue;
      for (int i = 0; i < QS * QS; ++i) chart.push(t)[i] /= largest, chart.repl(t)[i] /= largest;
      for (int i = 0; i < QS * Q; ++i) chart.pop(t)[i] /= largest;
    }
  }
  return {};
}

// A weight lost below 1e-308 at one step can grow in importance by at most 1 / (mass of all runs at a later step): while no
// mass is below e^-600, nothing that was lost can matter. See docs/maths.md.
bool vouched(const Chart<Linear>& chart) {
  for (int t = 1; t <= chart.n; ++t)
    if (!(chart.mass(t) >= 2.6e-261)) return false;
  return true;
}

template <class A, class IO>
void store_weights(const Chart<A>& chart, int64_t steps, IO* out) {
  const int Q = chart.Q, S = chart.S, QS = chart.QS;
  const int64_t stride = (steps + 1) * QS;
  for (int t = 1; t <= chart.n; ++t, out += stride) {
    const auto mass = chart.mass(t);
    const bool dead = A::is_zero(mass);
    for (int r = 0; r < Q; ++r)
      for (int y = 0; y < S; ++y) {
        IO* column = out + r * S + y;
        if constexpr (A::kPlanes == 1) {
          const double scale = 1 / mass;
          const double* row = chart.weights(t, r, y);
          for (int i = 0; i <= t; ++i) column[int64_t(i) * QS] = IO(row[i] * scale);
        } else {
          for (int i = 0; i <= t; ++i)
            column[int64_t(i) * QS] = dead ? IO(0) : IO(A::to_double(A::div(A::get(chart.weights(t, r, y), i), mass)));
        }
      }
    std::fill(out + int64_t(t + 1) * QS, out + stride, IO(0));
  }
  std::fill(out, out + (steps - chart.n) * stride, IO(0));
}

// dF = (G - sum of G * W) / mass: the normalisation has a derivative too.
template <class A, class IO>
void load_gradient(Chart<A>& chart, int64_t steps, const IO* grad) {
  const int Q = chart.Q, S = chart.S, QS = chart.QS;
  chart.clear_weight_gradients();
  for (int t = 1; t <= chart.n; ++t, grad += (steps + 1) * QS) {
    const auto mass = chart.mass(t);
    if (A::is_zero(mass)) continue;
    double mean = 0;
    for (int r = 0; r < Q; ++r)
      for (int y = 0; y < S; ++y) {
        const auto row = chart.weights(t, r, y);
        for (int i = 0; i <= t; ++i)
          mean += A::to_double(A::div(A::get(row, i), mass)) * double(grad[int64_t(i) * QS + r * S + y]);
      }
    for (int r = 0; r < Q; ++r)
      for (int y = 0; y < S; ++y) {
        const auto row = chart.weight_gradients(t, r, y);
        for (int i = 0; i <= t; ++i)
          A::set(row, i, A::div(A::from_double(double(grad[int64_t(i) * QS + r * S + y]) - mean), mass));
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
      : push((const IO*)push + sequence * wide(p)), repl((const IO*)repl + sequence * wide(p)),
        pop((const IO*)pop + sequence * narrow(p)) {}
  static int64_t wide(const Problem& p) { return p.steps * p.states * p.symbols * p.states * p.symbols; }
  static int64_t narrow(const Problem& p) { return p.steps * p.states * p.symbols * p.states; }
};

template <class IO>
BadInput nondeterministic_as(const Problem& p, const void* push, const void* repl, const void* pop, void* weights) {
  return for_each_sequence(p, [&](int64_t s, int64_t length) {
    const Transitions<IO> in(p, push, repl, pop, s);
    IO* out = (IO*)weights + s * p.steps * (p.steps + 1) * p.states * p.symbols;
    {
      Chart<Linear> chart(length, p.states, p.symbols, false, false);
      const BadInput problem = load(chart, in.push, in.repl, in.pop);
      if (problem.argument) return problem;
      chart.forward();
      if (vouched(chart)) {
        store_weights(chart, p.steps, out);
        return BadInput{};
      }
    }
    Chart<Extended> chart(length, p.states, p.symbols, false, false);
    load(chart, in.push, in.repl, in.pop);
    chart.forward();
    store_weights(chart, p.steps, out);
    return BadInput{};
  });
}

template <class A, class IO>
void walk_back(Chart<A>& chart, const Problem& p, const void* grad_weights, int64_t s, void* grad_push, void* grad_repl,
               void* grad_pop) {
  using In = Transitions<IO>;
  load_gradient(chart, p.steps, (const IO*)grad_weights + s * p.steps * (p.steps + 1) * p.states * p.symbols);
  chart.backward();
  const int64_t wide = int64_t(chart.n) * chart.QS * chart.QS, narrow = int64_t(chart.n) * chart.QS * chart.Q;
  store_gradient<A>(chart.push(1), chart.dpush(1), wide, In::wide(p), (IO*)grad_push + s * In::wide(p));
  store_gradient<A>(chart.repl(1), chart.drepl(1), wide, In::wide(p), (IO*)grad_repl + s * In::wide(p));
  store_gradient<A>(chart.pop(1), chart.dpop(1), narrow, In::narrow(p), (IO*)grad_pop + s * In::narrow(p));
}

template <class IO>
BadInput nondeterministic_backward_as(const Problem& p, const void* push, const void* repl, const void* pop,
                                      const void* grad_weights, void* grad_push, void* grad_repl, void* grad_pop) {
  return for_each_sequence(p, [&](int64_t s, int64_t length) {
    const Transitions<IO> in(p, push, repl, pop, s);
    {
      Chart<Linear> chart(length, p.states, p.symbols, false, true);
      const BadInput problem = load(chart, in.push, in.repl, in.pop);
      if (problem.argument) return problem;
      chart.forward();
      if (vouched(chart)) {
        walk_back<Linear, IO>(chart, p, grad_weights, s, grad_push, grad_repl, grad_pop);
        return BadInput{};
      }
    }
    Chart<Extended> chart(length, p.states, p.symbols, false, true);
    load(chart, in.push, in.repl, in.pop);
    chart.forward();
    walk_back<Extended, IO>(chart, p, grad_weights, s, grad_push, grad_repl, grad_pop);
    return BadInput{};
  });
}

template <class IO>
BadInput load_actions(Chart<Linear>& chart, const IO* actions) {
  for (int t = 1; t <= chart.n; ++t, actions += 3) {
    for (int i = 0; i < 3; ++i)
      if (bad(actions[i]) || bad(-actions[i])) return {1, 0, t - 1};
    chart.push(t)[0] = actions[0];
    chart.repl(t)[0] = actions[1];
    chart.pop(t)[0] = actions[2];
  }
  return {};
}

template <class IO>
BadInput superposition_as(const Problem& p, const void* actions, void* weights) {
  return for_each_sequence(p, [&](int64_t s, int64_t length) {
    Chart<Linear> chart(length, 1, 1, true, false);
    const BadInput problem = load_actions(chart, (const IO*)actions + s * p.steps * 3);
    if (problem.argument) return problem;
    chart.forward();
    IO* out = (IO*)weights + s * p.steps * p.steps;
    for (int t = 1; t <= length; ++t, out += p.steps) {
      const double* row = chart.weights(t, 0, 0) + 1;
      for (int i = 0; i < t; ++i) out[i] = IO(row[i]);
      std::fill(out + t, out + p.steps, IO(0));
    }
    std::fill(out, out + (p.steps - length) * p.steps, IO(0));
    return BadInput{};
  });
}

template <class IO>
BadInput superposition_backward_as(const Problem& p, const void* actions, const void* grad_weights, void* grad_actions) {
  return for_each_sequence(p, [&](int64_t s, int64_t length) {
    Chart<Linear> chart(length, 1, 1, true, true);
    const BadInput problem = load_actions(chart, (const IO*)actions + s * p.steps * 3);
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
    return BadInput{};
  });
}

BadInput nondeterministic(const Problem& p, const void* push, const void* repl, const void* pop, void* weights) {
  return (p.wide ? nondeterministic_as<double> : nondeterministic_as<float>)(p, push, repl, pop, weights);
}
BadInput nondeterministic_backward(const Problem& p, const void* push, const void* repl, const void* pop,
                                   const void* grad_weights, void* grad_push, void* grad_repl, void* grad_pop) {
  return (p.wide ? nondeterministic_backward_as<double> : nondeterministic_backward_as<float>)(
      p, push, repl, pop, grad_weights, grad_push, grad_repl, grad_pop);
}
BadInput superposition(const Problem& p, const void* actions, void* weights) {
  return (p.wide ? superposition_as<double> : superposition_as<float>)(p, actions, weights);
}
BadInput superposition_backward(const Problem& p, const void* actions, const void* grad_weights, void* grad_actions) {
  return (p.wide ? superposition_backward_as<double> : superposition_backward_as<float>)(p, actions, grad_weights,
                                                                                       grad_actions);
}

}  // namespace

#define STACKATTN_STRING_(x) #x
#define STACKATTN_STRING(x) STACKATTN_STRING_(x)
extern const Kernel kernel;
const Kernel kernel = {STACKATTN_STRING(STACKATTN_KERNEL), nondeterministic, nondeterministic_backward, superposition,
                       superposition_backward};

}  // namespace STACKATTN_KERNEL
