// Rows of the windowed nondeterministic stack, and their gradients. Compiled once for each instruction set.
//
// A sequence is computed in segments. In the forward pass, the band of P of the last steps is passed on to the next
// segment. The backward pass goes from the last segment to the first, and each segment computes its band again.
#include "window.h"

#include "sequences.h"

namespace STACKATTN_KERNEL {
namespace {

// Largest difference between the log mass of all runs and the log mass of the runs in one entry, `span` steps later,
// for which float64 suffices. Corresponds to kSmallestMass, which is about e^-600.
constexpr double kLargestFall = 600;

// One sequence: `before` earlier steps and `before` + 1 earlier rows, then `length` new steps and rows.
template <class IO>
struct WindowSequence {
  const Problem& p;
  const WindowArrays& in;
  const int64_t number, length;
  const int Q = int(p.states), S = int(p.symbols), QS = Q * S, m = int(in.m), before = int(in.before);
  const int window = int(std::min<int64_t>(in.window, in.before + p.steps));
  const int span = std::max(window, WindowChart<Linear>::b);  // rows in units of the same mass: a window or a block
  const int segment = std::max(128, (2 * window + 7) / 8 * 8);
  const int64_t per_step = int64_t(QS) * (2 * QS + Q), in_row = int64_t(QS) * (m + 1),
                per_row = int64_t(QS) * (m + 2) + 1;

  const IO* step(int64_t i) const { return (const IO*)in.steps + (number * (before + p.steps) + i) * per_step; }
  const IO* value(int64_t i) const { return (const IO*)in.values + (number * p.steps + i) * m; }
  int64_t new_row(int64_t i) const { return (number * p.steps + i) * per_row; }
  int64_t old_row(int64_t i) const { return (number * (before + 1) + i) * per_row; }

  // All rows of the sequence, those of `history` first, in the arithmetic A.
  template <class A>
  struct Rows {
    StepVector<double> memory, logs;
    typename A::Ptr numbers;
    Rows(const WindowSequence& of, int64_t count)
        : memory(A::kPlanes * count * of.in_row), logs(count), numbers(A::at(memory.data(), count * of.in_row)) {}
  };
  // The rows of `history` and the first `known` new rows.
  template <class A>
  Rows<A> load_history(int64_t known) const {
    Rows<A> rows(*this, before + 1 + length);
    for (int64_t x = 0; x <= before + known; ++x) {
      const double* from = x <= before ? in.history + old_row(x) : in.rows + new_row(x - before - 1);
      for (int s = 0; s < QS; ++s, from += m + 2)
        for (int c = 0; c <= m; ++c)
          A::set(rows.numbers, x * in_row + s * (m + 1) + c, times_power(A{}, A::from_double(from[c]), from[m + 1]));
      rows.logs[x] = *from;
    }
    return rows;
  }
  template <class A>
  void store_rows(const Rows<A>& rows) const {
    double* out = in.rows + new_row(0);
    for (int64_t x = before + 1; x <= before + length; ++x) {
      for (int s = 0; s < QS; ++s) {
        const auto from = rows.numbers + x * in_row + s * (m + 1);
        const double exponent = exponent_of(A{}, A::get(from, m));
        for (int c = 0; c <= m; ++c) *out++ = A::to_double(times_power(A{}, A::get(from, c), -exponent));
        *out++ = exponent;
      }
      *out++ = rows.logs[x];
    }
    std::fill_n(out, (p.steps - length) * per_row, 0.0);
  }
  // Whether each entry of the new rows is exact up to rounding, given the earlier rows (docs/maths.md, section 10).
  bool in_range(const Rows<Linear>& rows) const {
    double fall = 0, least_of_all = 1;
    bool all_reached = true;
    for (int64_t x = 0; x <= before + length; ++x) {
      double least = INFINITY;
      for (int s = 0; s < QS; ++s) {
        const double alpha = rows.numbers[x * in_row + s * (m + 1) + m];
        const bool lost = x <= before && alpha == 0 && in.history[old_row(x) + s * (m + 2) + m] > 0;
        if (alpha > 0 || lost)
          least = std::min(least, alpha);
        else if (x > before)
          all_reached = false;
      }
      least_of_all = std::min(least_of_all, least);
      if (x > 0) fall -= rows.logs[x];
      if (x > span) fall += rows.logs[x - span];
      if (x > before && !(fall - std::log(least) <= kLargestFall)) return false;
    }
    return all_reached || lightest_run() + std::log(least_of_all) >= -kLargestFall;
  }
  // A lower bound on the log weight of the runs of `span` steps. If it is in range, an entry can be zero only because
  // of forbidden transitions, and not because its runs underflowed.
  double lightest_run() const {
    StepVector<double> lightest(before + length);  // log weight of the lightest transition of each step
    double sum = 0, lowest = 0;
    for (int64_t i = 0; i < before + length; ++i) {
      double least = INFINITY, most = -INFINITY;
      for (int64_t j = 0; j < per_step; ++j) {
        const double weight = step(i)[j];
        if (weight > -INFINITY) least = std::min(least, weight), most = std::max(most, weight);
      }
      lightest[i] = least <= most ? least - most - std::log(2.0 * QS + Q) : 0;
      sum += lightest[i];
      if (i >= span) sum -= lightest[i - span];
      lowest = std::min(lowest, sum);
      if (lowest < -kLargestFall) break;
    }
    return lowest;
  }

  // The segment of `count` new rows from `first` on, with the steps and rows on which they depend.
  template <class A>
  struct Part {
    const int first, count, known;  // `known` earlier steps
    WindowChart<A> chart;
    Part(const WindowSequence& of, Workspace& work, int first, bool with_gradient)
        : first(first), count(int(std::min<int64_t>(of.segment, of.length - first))),
          known(std::min(of.window - 1, of.before + first)),
          chart(work, known + count, of.Q, of.S, of.m, of.window, with_gradient) {}
  };
  template <class A>
  Report load(Part<A>& part, const Rows<A>& rows) const {
    auto& chart = part.chart;
    std::vector<IO> push(QS * QS), repl(QS * QS), pop(QS * Q);
    const int64_t start = before + part.first - part.known;  // time point before the segment's first step
    for (int t = 1; t <= chart.n; ++t) {
      const IO* from = step(start + t - 1);
      for (int s = 0; s < QS; ++s, from += 2 * QS + Q) {
        std::copy_n(from, QS, &push[s * QS]);
        std::copy_n(from + QS, QS, &repl[s * QS]);
        std::copy_n(from + 2 * QS, Q, &pop[s * Q]);
      }
      if (const int argument =
              load_step<A>(Q, QS, push.data(), repl.data(), pop.data(), chart.push(t), chart.repl(t), chart.pop(t)))
        return {argument, 0, start + t - 1 - before};
      if (t <= part.known) continue;
      A::clear(chart.value(t), chart.W);
      const IO* vector = value(part.first + t - part.known - 1);
      for (int c = 0; c < m; ++c) A::set(chart.value(t), c, A::from_double(vector[c]));
      A::set(chart.value(t), m, A::one());
    }
    copy_rows(part, rows, 0, part.known, true);
    return {};
  }
  // Copies rows `from` to `to` between the segment and the whole sequence: into the segment if `load`.
  template <class A>
  void copy_rows(Part<A>& part, const Rows<A>& rows, int from, int to, bool load) const {
    auto& chart = part.chart;
    for (int t = from; t <= to; ++t) {
      const int64_t x = before + part.first - part.known + t;
      for (int s = 0; s < QS; ++s) {
        const auto here = chart.row(t, s / S, s % S), there = rows.numbers + (x * QS + s) * (m + 1);
        if (load) A::clear(here, chart.W);
        for (int c = 0; c <= m; ++c) load ? A::set(here, c, A::get(there, c)) : A::set(there, c, A::get(here, c));
      }
      if (load) chart.logs[t] = rows.logs[x];
    }
  }
  template <class A>
  void keep_rows(Part<A>& part, Rows<A>& rows) const {
    copy_rows(part, rows, part.known + 1, part.chart.n, false);
    std::copy(part.chart.logs.begin() + part.known + 1, part.chart.logs.end(),
              rows.logs.begin() + before + part.first + 1);
  }

  // Computes all new rows. `band` is P of the `before` steps, or null; `band_after` receives that of the last steps. In
  // extended arithmetic, every segment computes its band from the steps.
  template <class A>
  Report forward(Workspace& work, Rows<A>& rows, const double* band, double* band_after) const {
    const int after = int(std::min(in.window - 1, in.before + p.steps));
    std::vector<double> passed;
    for (int first = 0; first < length || (first == 0 && band_after); first += segment) {
      Part<A> part(*this, work, first, false);
      const Report problem = load(part, rows);
      if (problem.argument) return problem;
      auto& chart = part.chart;
      if constexpr (A::kPlanes == 1) {
        if (const double* known = first ? passed.data() : band) {
          const double* from = known;
          chart.clear_inner(part.known);
          for (int j = 0; j <= part.known - 2; ++j)
            for (int s = 0; s < QS; ++s)
              for (int t = j + 2; t <= part.known; ++t, from += Q)
                std::copy_n(from, Q, chart.inner(j, t, s / S, s % S));
          chart.fill_band(part.known + 1);
        } else {
          chart.fill_band(0);
        }
      } else {
        chart.fill_band(0);
      }
      const bool finite = chart.fill_rows(part.known);
      if (A::kPlanes == 1 && !finite) return {0, 0, 0, false};
      keep_rows(part, rows);
      const bool last = first + segment >= length;
      if (last ? !band_after : A::kPlanes != 1) continue;
      const int steps = last ? after : std::min(window - 1, before + first + part.count);
      if (!last) passed.resize(band_numbers(Q, S, steps));
      double* to = last ? band_after : passed.data();
      for (int j = chart.n - steps; j <= chart.n - 2; ++j)
        for (int s = 0; s < QS; ++s)
          for (int t = j + 2; t <= chart.n; ++t)
            for (int r = 0; r < Q; ++r) *to++ = j < 0 ? 0 : A::to_double(A::get(chart.inner(j, t, s / S, s % S), r));
    }
    if constexpr (A::kPlanes == 1) return {0, 0, 0, in_range(rows)};
    return {};
  }
  static int64_t band_numbers(int64_t Q, int64_t S, int64_t steps) { return Q * S * Q * steps * (steps - 1) / 2; }

  template <class A>
  void backward(Workspace& work, const Rows<A>& rows, const WindowGradients& out) const {
    IO* grad_steps = (IO*)out.steps + number * (before + p.steps) * per_step;
    IO* grad_values = (IO*)out.values + number * p.steps * m;
    std::fill_n(grad_steps, (before + p.steps) * per_step, IO(0));
    std::fill_n(grad_values, p.steps * m, IO(0));
    std::fill_n(out.history + old_row(0), (before + 1) * per_row, 0.0);
    Rows<A> later(*this, window);  // gradients of the last rows before a segment, from that segment
    A::clear(later.numbers, window * in_row);
    int kept = 0;
    for (int first = int((length - 1) / segment * segment); first >= 0 && length > 0; first -= segment) {
      Part<A> part(*this, work, first, true);
      auto& chart = part.chart;
      load(part, rows);
      copy_rows(part, rows, part.known + 1, chart.n, true);
      for (int t = part.known + 1; t <= chart.n; ++t)
        for (int s = 0; s < QS; ++s) {
          const auto grad = chart.row_gradient(t, s / S, s % S);
          const int64_t at = new_row(first + t - part.known - 1) + s * (m + 2);
          const double *given = out.rows + at, exponent = in.rows[at + m + 1];
          const int x = t - (chart.n - kept + 1);  // its place in `later`
          for (int c = 0; c <= m; ++c) {
            const auto more = x < 0 ? A::zero() : A::get(later.numbers, (long(x) * QS + s) * (m + 1) + c);
            A::set(grad, c, A::add(times_power(A{}, A::from_double(given[c]), -exponent), more));
          }
        }
      chart.fill_band(0);
      chart.backward(part.known);
      kept = part.known + 1;
      for (int t = 0; t < kept; ++t)
        for (int s = 0; s < QS; ++s)
          for (int c = 0; c <= m; ++c)
            A::set(later.numbers, (long(t) * QS + s) * (m + 1) + c, A::get(chart.row_gradient(t, s / S, s % S), c));
      store_gradients(part, grad_steps, grad_values);
    }
    for (int t = 0; t < kept; ++t)
      for (int s = 0; s < QS; ++s) {
        const int64_t at = old_row(t + before + 1 - kept) + s * (m + 2);
        if (in.history[at + m] == 0) continue;  // no runs, as in WindowChart::unfill_row
        for (int c = 0; c <= m; ++c) {
          const auto gradient = A::get(later.numbers, t * in_row + s * (m + 1) + c);
          out.history[at + c] = A::to_double(times_power(A{}, gradient, in.history[at + m + 1]));
        }
      }
  }
  template <class A>
  void store_gradients(const Part<A>& part, IO* grad_steps, IO* grad_values) const {
    const auto& chart = part.chart;
    IO* step = grad_steps + (before + part.first - part.known) * per_step;
    const auto product = [](auto weights, auto gradients, int64_t i) {  // the gradient of a log weight
      return IO(A::to_double(A::mul(A::get(weights, i), A::get(gradients, i))));
    };
    for (int t = 1; t <= chart.n; ++t)
      for (int s = 0; s < QS; ++s) {
        for (int i = 0; i < QS; ++i) *step++ += product(chart.push(t), chart.dpush(t), s * QS + i);
        for (int i = 0; i < QS; ++i) *step++ += product(chart.repl(t), chart.drepl(t), s * QS + i);
        for (int i = 0; i < Q; ++i) *step++ += product(chart.pop(t), chart.dpop(t), s * Q + i);
      }
    IO* to = grad_values + int64_t(part.first) * m;
    for (int t = part.known + 1; t <= chart.n; ++t)
      for (int c = 0; c < m; ++c) *to++ = IO(A::to_double(A::get(chart.value_gradient(t), c)));
  }
};

int64_t band_size(int64_t states, int64_t symbols, int64_t steps) {
  return WindowSequence<double>::band_numbers(states, symbols, steps);
}

template <class IO>
Report forward_as(const Problem& p, const WindowArrays& in, const Kept& band, const Kept& band_after) {
  return for_each_sequence(p, [&](Workspace& work, int64_t s, int64_t length) {
    const WindowSequence<IO> sequence{p, in, s, length};
    double* after = band_after.data ? band_after.data + s * band_after.stride : nullptr;
    auto rows = sequence.template load_history<Linear>(0);
    Report found = sequence.forward(work, rows, band.data ? band.data + s * band.stride : nullptr, after);
    if (found.argument) return found;
    if (found.in_range) {
      sequence.store_rows(rows);
      return found;
    }
    auto exact = sequence.template load_history<Extended>(0);
    sequence.forward(work, exact, nullptr, after);
    sequence.store_rows(exact);
    return Report{};
  });
}

template <class IO>
Report backward_as(const Problem& p, const WindowArrays& in, const WindowGradients& out) {
  return for_each_sequence(p, [&](Workspace& work, int64_t s, int64_t length) {
    const WindowSequence<IO> sequence{p, in, s, length};
    const auto rows = sequence.template load_history<Linear>(length);
    if (sequence.in_range(rows)) {
      sequence.backward(work, rows, out);
    } else {
      auto exact = sequence.template load_history<Extended>(0);
      sequence.forward(work, exact, nullptr, nullptr);
      sequence.backward(work, exact, out);
    }
    return Report{};
  });
}

Report forward(const Problem& p, const WindowArrays& in, const Kept& band, const Kept& band_after) {
  return (p.wide ? forward_as<double> : forward_as<float>)(p, in, band, band_after);
}
Report backward(const Problem& p, const WindowArrays& in, const WindowGradients& out) {
  return (p.wide ? backward_as<double> : backward_as<float>)(p, in, out);
}

}  // namespace

extern const Windowed windowed;
const Windowed windowed = {band_size, forward, backward};

}  // namespace STACKATTN_KERNEL
