// States: extension by more steps, and its backward pass. Compiled once for each instruction set.
#include "columns.h"
#include "sequences.h"

namespace STACKATTN_KERNEL {
namespace {

// Loads the weights of one step of a state; if the sequence has ended, those of a step that changes nothing.
// `rows` contains push, replace and pop of each (q,x) one after another; `push_to` and `repl_to` are (q,x) x (r,y).
template <class IO>
int load_state_step(const Problem& p, bool superposition, bool ended, const IO* rows, double* push_to, double* repl_to,
                    double* pop_to) {
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
  return load_joined_step<Linear>(Q, QS, rows, push_to, repl_to, pop_to);
}

// (from x to) -> [to][from, padded with zeros]
void store_transposed(const Layout& layout, const double* matrix, double* out) {
  for (int to = 0; to < layout.QS; ++to)
    for (int from = 0; from < layout.from; ++from)
      out[to * layout.from + from] = from < layout.QS ? matrix[long(from) * layout.QS + to] : 0;
}

// Shape of the attention weights. Only the nondeterministic stack has a column for the bottom element.
struct Rows {
  int64_t per_step, per_row, first;
  Rows(const Problem& p, const State& state, bool superposition)
      : per_step(p.states * p.symbols), per_row((state.before + p.steps + !superposition) * per_step),
        first(superposition) {}
};

template <class IO>
Report extend_as(const Problem& p, const State& state, bool superposition, const void* steps, void* weights) {
  const int Q = p.states, S = p.symbols, QS = Q * S;
  const Rows rows(p, state, superposition);
  const Layout layout(Q, S, state.before + p.steps);
  return for_each_sequence(p, [&](Workspace& work, int64_t s, int64_t length) {
    Columns columns(work, layout, superposition, state.data + s * state.stride);
    std::vector<double> step_push(QS * QS), step_repl(QS * QS);
    Report report;
    for (int64_t step = 0; step < p.steps; ++step) {
      const long t = state.before + step + 1;
      const int64_t at = s * p.steps + step;
      const bool ended = step >= length;
      report.argument = load_state_step(p, superposition, ended, (const IO*)steps + at * QS * (2 * QS + Q),
                                        step_push.data(), step_repl.data(), columns.pop());
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
        report.in_range = false;
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
  const Rows rows(p, state, superposition);
  const Layout layout(Q, S, state.before + p.steps);
  const long kept = layout.offset[state.before + 1], all = layout.offset[state.before + p.steps + 1];
  return for_each_sequence(p, [&](Workspace& work, int64_t s, int64_t length) {
    Columns columns(work, layout, superposition, state.data + s * state.stride);
    double* before = grad_before.data + s * grad_before.stride;
    // `after` is only read, unless it is at the address of `before`. The gradient of its last column is completed in a
    // copy of this column; for an extension by several steps, all columns are copied.
    const double* after = grad_after.data ? grad_after.data + s * grad_after.stride : nullptr;
    const long first = after && p.steps == 1 ? kept : 0;  // start of the copy
    Aligned memory(all - first);
    double* copy = memory.data();
    if (after)
      std::copy_n(after + first, all - first, copy);
    else
      std::fill_n(copy, all - first, 0.0);
    std::vector<double> step_push(QS * QS), step_repl(QS * QS), dpop(QS * Q);
    for (int64_t step = p.steps - 1; step >= 0; --step) {
      const long t = state.before + step + 1;
      const int64_t at = s * p.steps + step;
      const bool ended = step >= length;
      const int64_t per_step = QS * (2 * QS + Q);
      load_state_step(p, superposition, ended, (const IO*)steps + at * per_step, step_push.data(), step_repl.data(),
                      columns.pop());
      double* column = copy + (layout.offset[t] - first);
      if (!ended && grad_weights) {
        const IO* grad = (const IO*)grad_weights + at * rows.per_row;
        const double mass = superposition ? 1 : columns.mass(t);
        double mean = 0;
        if (!superposition)
          for (int r = 0; r < Q; ++r)
            for (int y = 0; y < S; ++y)
              for (int64_t i = 0; i <= t; ++i)
                mean += columns.weights(t, y, r)[i] / mass * double(grad[i * QS + r * S + y]);
        for (int r = 0; r < Q; ++r)
          for (int y = 0; y < S; ++y)
            for (int64_t i = rows.first; i <= t; ++i)
              column[layout.f(t, y, r) + i] += (double(grad[(i - rows.first) * QS + r * S + y]) - mean) / mass;
      }
      columns.retract(t, column, first ? after : copy, step == 0 ? before : copy, dpop.data());
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
      for (int from = 0; from < QS; ++from, out += 2 * QS + Q) {  // the inputs are log weights
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

int64_t state_size(int64_t states, int64_t symbols, int64_t steps) {
  return Layout(states, symbols, steps).offset[steps + 1];
}
Report extend(const Problem& p, const State& state, bool superposition, const void* steps, void* weights) {
  return (p.wide ? extend_as<double> : extend_as<float>)(p, state, superposition, steps, weights);
}
Report retract(const Problem& p, const State& state, bool superposition, const void* steps, const void* grad_weights,
               const State& grad_after, const State& grad_before, void* grad_steps) {
  return (p.wide ? retract_as<double> : retract_as<float>)(p, state, superposition, steps, grad_weights, grad_after,
                                                           grad_before, grad_steps);
}

}  // namespace

extern const States states;
const States states = {state_size, extend, retract};

}  // namespace STACKATTN_KERNEL
