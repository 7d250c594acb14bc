// The entry points: one sequence after another, on as many threads as asked for. Compiled once for each instruction set.
#include "kernel.h"

#include "chart.h"
#include "columns.h"

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

Workspace& own_workspace() {
  static thread_local Workspace work;
  return work;
}

template <class Body>
Report for_each_sequence(const Problem& problem, Body body) {
  std::vector<Report> found(problem.batch);
  const int threads = int(std::max<int64_t>(1, std::min<int64_t>(problem.threads, problem.batch)));
  bool exhausted = false;  // an exception must not leave the parallel region
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    FlushDenormals flush;
    Workspace& work = own_workspace();
#pragma omp for schedule(dynamic, 1)
    for (int64_t s = 0; s < problem.batch; ++s) {
      try {
        found[s] = body(work, s, problem.lengths ? problem.lengths[s] : problem.steps);
      } catch (const std::bad_alloc&) {
#pragma omp atomic write
        exhausted = true;
      }
    }
    work.keep_at_most(size_t(16) << 20);
  }
  if (exhausted) throw std::bad_alloc();
  Report all;
  for (int64_t s = problem.batch - 1; s >= 0; --s) {
    const bool vouched = all.vouched && found[s].vouched;
    if (found[s].argument) all = {found[s].argument, s, found[s].step};
    all.vouched = vouched;
  }
  return all;
}

// Raises `top` to the largest of the numbers; false if there is nan or +inf among them.
template <class IO>
bool raise_top(const IO* numbers, int n, double& top) {
  Vec largest = splat(top);
  IVec good = (IVec{} == 0);
  for (int i = 0; i < n; i += kLanes) {
    const Vec x = read(numbers + i, n - i, -INFINITY);
    good &= x < splat(INFINITY);
    largest = x > largest ? x : largest;
  }
  for (int l = 0; l < kLanes; ++l) {
    if (!good[l]) return false;
    top = std::max(top, largest[l]);
  }
  return true;
}

// A step's weights, exp(log weight - shift): the shift makes the largest outgoing row sum 1, so that nothing overflows.
// It cancels in every attention weight. Returns the number of a bad argument, or 0.
template <class A, class IO>
int load_step(int Q, int QS, const IO* push, const IO* repl, const IO* pop, typename A::Ptr push_to, typename A::Ptr repl_to,
              typename A::Ptr pop_to) {
  double top = -INFINITY;
  if (!raise_top(push, QS * QS, top)) return 1;
  if (!raise_top(repl, QS * QS, top)) return 2;
  if (!raise_top(pop, QS * Q, top)) return 3;
  if (top == -INFINITY) top = 0;
  A::exp(push, top, push_to, QS * QS);
  A::exp(repl, top, repl_to, QS * QS);
  A::exp(pop, top, pop_to, QS * Q);
  if constexpr (A::kPlanes == 1) {
    double largest = 0;
    for (int s = 0; s < QS; ++s) {
      double row = 0;
      for (int i = 0; i < QS; ++i) row += push_to[s * QS + i] + repl_to[s * QS + i];
      for (int i = 0; i < Q; ++i) row += pop_to[s * Q + i];
      largest = std::max(largest, row);
    }
    if (largest == 0) return 0;
    const double scale = 1 / largest;
    for (int i = 0; i < QS * QS; ++i) push_to[i] *= scale, repl_to[i] *= scale;
    for (int i = 0; i < QS * Q; ++i) pop_to[i] *= scale;
  }
  return 0;
}

template <class A, class IO>
Report load(Chart<A>& chart, const IO* push, const IO* repl, const IO* pop) {
  const int Q = chart.Q, QS = chart.QS;
  for (int t = 1; t <= chart.n; ++t, push += QS * QS, repl += QS * QS, pop += QS * Q)
    if (const int argument = load_step<A>(Q, QS, push, repl, pop, chart.push(t), chart.repl(t), chart.pop(t)))
      return {argument, 0, t - 1};
  return {};
}

// A weight lost below 1e-308 at one step can grow in importance by at most 1 / (mass of all runs at a later step): while no
// mass is below e^-600, nothing that was lost can matter. See docs/maths.md.
constexpr double kSmallestMass = 2.6e-261;
bool vouched(const Chart<Linear>& chart) {
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

// dF = (G - sum of G * W) / mass: the normalisation has a derivative too.
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
      : push((const IO*)push + sequence * wide(p)), repl((const IO*)repl + sequence * wide(p)),
        pop((const IO*)pop + sequence * narrow(p)) {}
  static int64_t wide(const Problem& p) { return p.steps * p.states * p.symbols * p.states * p.symbols; }
  static int64_t narrow(const Problem& p) { return p.steps * p.states * p.symbols * p.states; }
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
      if (vouched(chart)) {
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
  const int64_t wide = int64_t(chart.n) * chart.QS * chart.QS, narrow = int64_t(chart.n) * chart.QS * chart.Q;
  store_gradient<A>(chart.push(1), chart.dpush(1), wide, In::wide(p), (IO*)grad_push + s * In::wide(p));
  store_gradient<A>(chart.repl(1), chart.drepl(1), wide, In::wide(p), (IO*)grad_repl + s * In::wide(p));
  store_gradient<A>(chart.pop(1), chart.dpop(1), narrow, In::narrow(p), (IO*)grad_pop + s * In::narrow(p));
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
      if (vouched(chart)) {
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
bool finite(const IO* action) {
  return std::isfinite(action[0]) && std::isfinite(action[1]) && std::isfinite(action[2]);
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

// The weights of one step of a state: as given, or the step that changes nothing where the sequence has ended. `rows` has push, replace
// and pop of each (q,x) behind one another; `push_to` and `repl_to` are (q,x) x (r,y).
template <class IO>
int load_state_step(const Problem& p, bool superposition, bool ended, const IO* rows, double* push_to, double* repl_to, double* pop_to) {
  const int Q = p.states, QS = p.states * p.symbols;
  if (ended) {
    std::fill_n(push_to, long(QS) * QS, 0.0);
    std::fill_n(repl_to, long(QS) * QS, 0.0);
    for (int s = 0; s < QS; ++s) repl_to[long(s) * QS + s] = 1;
    std::fill_n(pop_to, QS * Q, 0.0);
    return 0;
  }
  if (superposition) {
    if (!finite(rows)) return 1;
    *push_to = rows[0];
    *repl_to = rows[1];
    *pop_to = rows[2];
    return 0;
  }
  std::vector<IO> push(QS * QS), repl(QS * QS), pop(QS * Q);
  for (int s = 0; s < QS; ++s, rows += 2 * QS + Q) {
    std::copy_n(rows, QS, &push[s * QS]);
    std::copy_n(rows + QS, QS, &repl[s * QS]);
    std::copy_n(rows + 2 * QS, Q, &pop[s * Q]);
  }
  return load_step<Linear>(Q, QS, push.data(), repl.data(), pop.data(), push_to, repl_to, pop_to);
}

struct alignas(64) Line {
  double numbers[8] = {};
};

// (from x to) -> [to][from, padded with zeros]
void store_transposed(const Layout& layout, const double* matrix, double* out) {
  for (int to = 0; to < layout.QS; ++to)
    for (int from = 0; from < layout.from; ++from)
      out[to * layout.from + from] = from < layout.QS ? matrix[long(from) * layout.QS + to] : 0;
}

// Row t of the attention weights has a column for the bottom element only in the nondeterministic stack.
template <class IO>
struct Rows {
  int64_t per_step, per_row, first;
  Rows(const Problem& p, const State& state, bool superposition)
      : per_step(p.states * p.symbols), per_row((state.before + p.steps + !superposition) * per_step), first(superposition) {}
};

template <class IO>
Report extend_as(const Problem& p, const State& state, bool superposition, const void* steps, void* weights) {
  const int Q = p.states, S = p.symbols, QS = Q * S;
  const Rows<IO> rows(p, state, superposition);
  const Layout layout(Q, S, state.before + p.steps);
  return for_each_sequence(p, [&](Workspace& work, int64_t s, int64_t length) {
    Columns columns(work, layout, superposition, state.data + s * state.stride);
    std::vector<double> step_push(QS * QS), step_repl(QS * QS);
    Report report;
    for (int64_t step = 0; step < p.steps; ++step) {
      const long t = state.before + step + 1;
      const int64_t at = s * p.steps + step;
      const bool ended = step >= length;
      report.argument = load_state_step(p, superposition, ended, (const IO*)steps + at * QS * (2 * QS + Q), step_push.data(),
                                        step_repl.data(), columns.pop());
      report.step = step;
      if (report.argument) return report;
      store_transposed(layout, step_push.data(), columns.push(t));
      store_transposed(layout, step_repl.data(), columns.repl(t));
      columns.extend(t);
      IO* out = (IO*)weights + at * rows.per_row;
      std::fill_n(out, rows.per_row, IO(0));
      if (ended) continue;
      const double mass = superposition ? 1 : columns.mass(t);
      if (!(mass >= kSmallestMass)) {
        report.vouched = false;
        return report;
      }
      for (int r = 0; r < Q; ++r)
        for (int y = 0; y < S; ++y)
          for (int64_t i = rows.first; i <= t; ++i)
            out[(i - rows.first) * QS + r * S + y] = IO(columns.weights(t, y, r)[i] / mass);
    }
    return report;
  });
}

template <class IO>
Report retract_as(const Problem& p, const State& state, bool superposition, const void* steps, const void* grad_weights,
                  const State& grad_after, const State& grad_before, void* grad_steps) {
  const int Q = p.states, S = p.symbols, QS = Q * S;
  const Rows<IO> rows(p, state, superposition);
  const Layout layout(Q, S, state.before + p.steps);
  const long kept = layout.offset[state.before + 1], all = layout.offset[state.before + p.steps + 1];
  return for_each_sequence(p, [&](Workspace& work, int64_t s, int64_t length) {
    Columns columns(work, layout, superposition, state.data + s * state.stride);
    double* before = grad_before.data + s * grad_before.stride;
    // The gradient that came is only read, unless it is to become the other one. Its last column is completed in a copy; a chunk of several steps works on a copy of all.
    const double* after = grad_after.data ? grad_after.data + s * grad_after.stride : nullptr;
    const long copied = after && p.steps == 1 ? kept : 0;
    std::vector<Line> copy((all - copied) / 8);
    if (after) std::copy_n(after + copied, all - copied, copy[0].numbers);
    double* own = copy[0].numbers - copied;
    std::vector<double> step_push(QS * QS), step_repl(QS * QS), dpop(QS * Q);
    for (int64_t step = p.steps - 1; step >= 0; --step) {
      const long t = state.before + step + 1;
      const int64_t at = s * p.steps + step;
      const bool ended = step >= length;
      const int64_t per_step = QS * (2 * QS + Q);
      load_state_step(p, superposition, ended, (const IO*)steps + at * per_step, step_push.data(), step_repl.data(), columns.pop());
      if (!ended && grad_weights) {
        const IO* grad = (const IO*)grad_weights + at * rows.per_row;
        const double mass = superposition ? 1 : columns.mass(t);
        double mean = 0;
        if (!superposition)
          for (int r = 0; r < Q; ++r)
            for (int y = 0; y < S; ++y)
              for (int64_t i = 0; i <= t; ++i) mean += columns.weights(t, y, r)[i] / mass * double(grad[i * QS + r * S + y]);
        for (int r = 0; r < Q; ++r)
          for (int y = 0; y < S; ++y)
            for (int64_t i = rows.first; i <= t; ++i)
              own[layout.offset[t] + layout.f(t, y, r) + i] += (double(grad[(i - rows.first) * QS + r * S + y]) - mean) / mass;
      }
      double* column = own + layout.offset[t];
      columns.retract(t, column, copied ? after : own, step == 0 ? before : own, dpop.data());
      const double *dpush = column + layout.push(t), *drepl = column + layout.repl(t);
      IO* out = (IO*)grad_steps + at * per_step;
      if (ended) {
        std::fill_n(out, per_step, IO(0));
        continue;
      }
      if (superposition) {
        out[0] = IO(dpush[0]), out[1] = IO(drepl[0]), out[2] = IO(dpop[0]);
        continue;
      }
      for (int from = 0; from < QS; ++from, out += 2 * QS + Q) {  // the input was the weights' logarithms
        for (int to = 0; to < QS; ++to) {
          const long i = long(from) * QS + to, transposed = to * layout.from + from;
          out[to] = IO(step_push[i] * dpush[transposed]);
          out[QS + to] = IO(step_repl[i] * drepl[transposed]);
        }
        for (int r = 0; r < Q; ++r) out[2 * QS + r] = IO(columns.pop()[from * Q + r] * dpop[from * Q + r]);
      }
    }
    return Report{};
  });
}

Report nondeterministic(const Problem& p, const void* push, const void* repl, const void* pop, void* weights) {
  return (p.wide ? nondeterministic_as<double> : nondeterministic_as<float>)(p, push, repl, pop, weights);
}
Report nondeterministic_backward(const Problem& p, const void* push, const void* repl, const void* pop,
                                   const void* grad_weights, void* grad_push, void* grad_repl, void* grad_pop) {
  return (p.wide ? nondeterministic_backward_as<double> : nondeterministic_backward_as<float>)(
      p, push, repl, pop, grad_weights, grad_push, grad_repl, grad_pop);
}
Report superposition(const Problem& p, const void* actions, void* weights) {
  return (p.wide ? superposition_as<double> : superposition_as<float>)(p, actions, weights);
}
Report superposition_backward(const Problem& p, const void* actions, const void* grad_weights, void* grad_actions) {
  return (p.wide ? superposition_backward_as<double> : superposition_backward_as<float>)(p, actions, grad_weights,
                                                                                       grad_actions);
}

int64_t state_size(int64_t states, int64_t symbols, int64_t steps) { return Layout(states, symbols, steps).offset[steps + 1]; }
Report extend(const Problem& p, const State& state, bool superposition, const void* steps, void* weights) {
  return (p.wide ? extend_as<double> : extend_as<float>)(p, state, superposition, steps, weights);
}
Report retract(const Problem& p, const State& state, bool superposition, const void* steps, const void* grad_weights,
               const State& grad_after, const State& grad_before, void* grad_steps) {
  return (p.wide ? retract_as<double> : retract_as<float>)(p, state, superposition, steps, grad_weights, grad_after, grad_before,
                                                          grad_steps);
}

}  // namespace

#define STACKATTN_STRING_(x) #x
#define STACKATTN_STRING(x) STACKATTN_STRING_(x)
extern const Kernel kernel;
const Kernel kernel = {STACKATTN_STRING(STACKATTN_KERNEL), nondeterministic, nondeterministic_backward, superposition,
                       superposition_backward, state_size, extend, retract};

}  // namespace STACKATTN_KERNEL
