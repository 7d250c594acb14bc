// The band of the chart and the rows of the windowed stack, for one segment of a sequence (docs/maths.md, section 10).
//
// Time points 0..n of the segment are cut into blocks of 8, so that a block of columns is a whole number of vectors.
// Row j of a chart X[j -> t] is stored from the beginning of its own block, only as far as the window reaches. Sums
// over k are matrix products with one term for each block of k.
//
// D[j -> t] is also computed for some t beyond the window, up to the end of a block. It is wrong there, but nothing in
// the window depends on it: P[k -> t] of such t is not used.
#pragma once
#include <algorithm>
#include <vector>

#include "arithmetic.h"
#include "step_weights.h"
#include "workspace.h"

namespace STACKATTN_KERNEL {
namespace {

inline double scale_from_log(Linear, double x) { return std::exp(x); }
inline Extended::Value scale_from_log(Extended, double x) { return Extended::exp(x); }
inline double times_power(Linear, double x, double e) {  // x 2^e
  return std::ldexp(x, int(std::clamp(e, -4000.0, 4000.0)));
}
inline Extended::Value times_power(Extended, Extended::Value x, double e) {
  if (!Extended::is_zero(x)) x.e += e;
  return x;
}
inline double exponent_of(Linear, double x) { return x > 0 ? std::ilogb(x) : 0; }
inline double exponent_of(Extended, Extended::Value x) { return Extended::is_zero(x) ? 0 : x.e; }
inline double log_of(Linear, double x) { return std::log(x); }
inline double log_of(Extended, Extended::Value x) { return std::log(x.m) + x.e * 0.6931471805599453; }

template <class A>
class WindowChart : public StepWeights<A> {
  using Ptr = typename A::Ptr;
  using Value = typename A::Value;
  using Product = Term<Ptr>;
  static constexpr int b = 8;

 public:
  using StepWeights<A>::n, StepWeights<A>::Q, StepWeights<A>::S, StepWeights<A>::QS;
  using StepWeights<A>::push, StepWeights<A>::repl, StepWeights<A>::pop;
  using StepWeights<A>::dpush, StepWeights<A>::drepl, StepWeights<A>::dpop;
  const int m, window;
  const int W;    // length of a row's parts: m values, alpha and zeros up to a whole number of vectors
  const long ld;  // length of a chart's rows

  WindowChart(Workspace& work, int n, int Q, int S, int m, int window, bool with_gradient)
      : StepWeights<A>(n, Q, S), m(m), window(window), W((m + 8) / 8 * 8), ld((window + 7 + b) / b * b * long(Q)),
        chart_(S * long(n + 1) * Q * ld), rows_(S * long(n + 1) * Q * W), logs(n + 1), scales_(window + 1),
        terms_(2 * S + window / b + 3) {
    const long values = long(n + 1) * W, scaled = S * long(window) * Q * W;
    const long sizes = 2 * chart_ + rows_ + this->steps_size() + values,
               gradients = sizes + S * Q * W + b * long(Q) * W + long(window) * Q * Q;
    work.start(A::kPlanes * (sizes + scaled + with_gradient * gradients + 512));
    const auto take = [&](long count) {
      const long whole = (count + 7) / 8 * 8;
      return A::at(work.take(A::kPlanes * whole), whole);
    };
    D_ = take(chart_), P_ = take(chart_), F_ = take(rows_), scaled_ = take(scaled), values_ = take(values);
    this->take_steps(take);
    if (!with_gradient) return;
    dD_ = take(chart_), dP_ = take(chart_), dF_ = take(rows_), dvalues_ = take(values);
    this->take_step_gradients(take);
    moved_ = take(S * Q * W), given_ = take(b * long(Q) * W), column_ = take(long(window) * Q * Q);
    A::clear(dP_, chart_), A::clear(dF_, rows_), A::clear(dvalues_, values);
    this->clear_step_gradients();
  }

  // What step t pushes, and its gradient.
  Ptr value(int t) const { return values_ + long(t) * W; }
  Ptr value_gradient(int t) const { return dvalues_ + long(t) * W; }

  // All runs to time t in state r with y on top, divided by the mass of all runs: m numbers, then alpha; the gradient
  // is multiplied by the mass. logs[t] is the logarithm of the mass, relative to that of t - 1.
  Ptr row(int t, int r, int y) const { return row(F_, y, t) + long(r) * W; }
  Ptr row_gradient(int t, int r, int y) const { return row(dF_, y, t) + long(r) * W; }

  // P[k -> t][u,y -> r], r = 0 being the first of the Q numbers; t >= k + 2.
  Ptr inner(int k, int t, int u, int y) const { return cell(P_, y, k, t) + u * ld; }

 private:
  // The charts by symbol: rows (j, state), columns (t, state). The rows by symbol: (t, state), columns of m + 1
  // numbers.
  const long chart_, rows_;
  Ptr D_, P_, F_, values_, scaled_;
  Ptr dD_, dP_, dF_, dvalues_, moved_, given_, column_;

 public:
  std::vector<double> logs;

  // D, and P for t >= first; P for smaller t is already there.
  void fill_band(int first) {
    clear_blocks(D_, n, n / b, n / b);
    for (int j = n - 1; j >= 0; --j) {
      const int from = std::max(j + 2, first), last = std::min(j + window, n);
      clear_blocks(D_, j, std::max(j, first) / b, from / b - 1);
      for (int t = from / b * b; t <= last; t += b) {
        for (int y = 0; y < S; ++y) {
          A::gemm(terms_.data(), add_step(0, push(j + 1), D_, y, j + 1, t), Q, b * Q, cell(P_, y, j, t), ld, false);
          if (j == 0) continue;  // nothing is below the element that is on top at time 0
          int count = add_step(0, repl(j + 1), D_, y, j + 1, t);
          for_blocks(j + 2, std::min(t + b - 1, n), [&](int k, int end) {
            terms_[count++] = {cell(P_, y, j, k), ld, 1, cell(D_, y, k, t), ld, (end - k) * Q};
          });
          A::gemm(terms_.data(), count, Q, b * Q, cell(D_, y, j, t), ld, false);
        }
      }
      if ((j + 1) / b < first / b) continue;
      for (int s = 0; s < QS; ++s)
        for (int r = 0; r < Q; ++r) A::set(cell(D_, s % S, j, j + 1) + s / S * ld, r, A::get(pop(j + 1), s * Q + r));
    }
  }

  // Rows after `before`. Returns false if a row has no mass, or none that float64 can represent.
  bool fill_rows(int before) {
    bool in_range = true;
    for (int t = before + 1; t <= n; ++t) {
      const int low = scale_rows(t);
      Value mass = A::zero();
      for (int y = 0; y < S; ++y) {
        int count = 0;
        for (int z = 0; z < S; ++z)
          terms_[count++] = {repl(t) + (long(z) * QS + y), S, long(S) * QS, row(F_, z, t - 1), W, Q};
        for_blocks(low, t - 1, [&](int k, int end) {
          terms_[count++] = {cell(P_, y, k, t), 1, ld, scaled(y, k - low), W, (end - k) * Q};
        });
        A::gemm(terms_.data(), count, Q, W, row(F_, y, t), W, false);
        for (int r = 0; r < Q; ++r) {
          add_multiple(row(t, r, y), value(t), pushed(t, r, y), W);
          mass = A::add(mass, A::get(row(t, r, y), m));
        }
      }
      logs[t] = 0;
      if (A::is_zero(mass)) {
        in_range = false;
        continue;
      }
      const Value scale = A::div(A::one(), mass);
      for (int y = 0; y < S; ++y)
        for (long i = 0; i < long(Q) * W; ++i) A::set(row(F_, y, t), i, A::mul(A::get(row(F_, y, t), i), scale));
      logs[t] = log_of(A{}, mass);
      in_range = in_range && std::isfinite(logs[t]);
    }
    return in_range;
  }

  // Gradients of steps, values and rows up to `before`, from those of later rows, which are overwritten.
  void backward(int before) {
    for (int t = n; t > before; --t) unfill_row(t);
    unfill_band();
  }

 private:
  std::vector<Value> scales_;
  std::vector<Product> terms_;

  Ptr cell(Ptr chart, int y, int j, int t) const {  // row (j, 0), column (t, 0)
    return chart + ((long(y) * (n + 1) + j) * Q * ld + (t - j / b * b) * long(Q));
  }
  Ptr row(Ptr rows, int y, int t) const { return rows + (long(y) * (n + 1) + t) * Q * W; }
  Ptr scaled(int y, int k) const { return scaled_ + (long(y) * window + k) * Q * W; }
  Ptr moved(int y) const { return moved_ + long(y) * Q * W; }

  // Sets all columns of the blocks from `first` to `last` of row j to zero.
  void clear_blocks(Ptr chart, int j, int first, int last) {
    if (first > last) return;
    for (int y = 0; y < S; ++y)
      for (int p = 0; p < Q; ++p) A::clear(cell(chart, y, j, first * b) + p * ld, (last - first + 1) * long(b) * Q);
  }
  template <class Body>
  static void for_blocks(int from, int to, Body body) {  // body(begin, end) for the parts of from..to-1 in each block
    for (int k = std::max(from, 0); k < to; k = k / b * b + b) body(k, std::min(k / b * b + b, to));
  }
  // Terms for a step from (state, y) to row j of a chart, columns t..t+7; or, transposed, back from row j to (state,
  // y).
  int add_step(int count, Ptr step, Ptr chart, int y, int j, int t) {
    for (int z = 0; z < S; ++z)
      terms_[count++] = {step + (long(y) * QS + z), long(S) * QS, S, cell(chart, z, j, t), ld, Q};
    return count;
  }
  int add_step_back(int count, Ptr step, Ptr chart, int y, int j, int t) {
    for (int z = 0; z < S; ++z)
      terms_[count++] = {step + (long(z) * QS + y), S, long(S) * QS, cell(chart, z, j, t), ld, Q};
    return count;
  }
  void add_multiple(Ptr to, Ptr from, Value factor, long count) {
    for (long i = 0; i < count; ++i) A::set(to, i, A::add(A::get(to, i), A::mul(A::get(from, i), factor)));
  }
  // The weight of all runs that push y at step t and go to r, in units of the mass of row t - 1.
  Value pushed(int t, int r, int y) const {
    Value total = A::zero();
    for (int s = 0; s < QS; ++s)
      total = A::add(total, A::mul(A::get(row(t - 1, s / S, s % S), m), A::get(push(t), long(s) * QS + r * S + y)));
    return total;
  }
  // Rows low..t-2 in units of the mass of row t - 1; returns low.
  int scale_rows(int t) {
    const int low = std::max(0, t - window);
    double fall = 0;
    for (int k = t - 2; k >= low; --k) {
      fall -= logs[k + 1];
      const Value scale = scales_[k - low] = scale_from_log(A{}, fall);
      for (int y = 0; y < S; ++y)
        for (long i = 0; i < long(Q) * W; ++i) A::set(scaled(y, k - low), i, A::mul(A::get(row(F_, y, k), i), scale));
    }
    return low;
  }

  void unfill_row(int t) {
    const int low = scale_rows(t);
    const Value scale = scale_from_log(A{}, -logs[t]);
    for (int s = 0; s < QS; ++s) {
      // Without runs, the gradient has no effect on any weight, but it may be too large for float64.
      const bool reached = !A::is_zero(A::get(row(t, s / S, s % S), m));
      const Ptr from = row_gradient(t, s / S, s % S), to = moved(s % S) + long(s / S) * W;
      for (int i = 0; i < W; ++i) A::set(to, i, reached ? A::mul(A::get(from, i), scale) : A::zero());
    }
    unfill_push(t);
    for (int z = 0; z < S; ++z) {
      for (int y = 0; y < S; ++y) {
        terms_[y] = {repl(t) + (long(z) * QS + y), long(S) * QS, S, moved(y), W, Q};
        const Product term = {row(F_, z, t - 1), W, 1, moved(y), W, W};
        A::dots(&term, 1, Q, Q, drepl(t) + (long(z) * QS + y), long(S) * QS, S);
      }
      A::gemm(terms_.data(), S, Q, W, row(dF_, z, t - 1), W, true);
      for_blocks(low, t - 1, [&](int k, int end) {
        const int count = (end - k) * Q;
        const Product dots = {scaled(z, k - low), W, 1, moved(z), W, W};
        A::dots(&dots, 1, count, Q, cell(dP_, z, k, t), ld, 1);
        const Product back = {cell(P_, z, k, t), ld, 1, moved(z), W, Q};
        A::gemm(&back, 1, count, W, given_, W, false);
        for (int i = k; i < end; ++i)
          add_multiple(row(dF_, z, i), given_ + long(i - k) * Q * W, scales_[i - low], long(Q) * W);
      });
    }
  }
  void unfill_push(int t) {
    for (int y = 0; y < S; ++y)
      for (int r = 0; r < Q; ++r) {
        const Ptr grad = moved(y) + long(r) * W;
        add_multiple(value_gradient(t), grad, pushed(t, r, y), W);
        Value g = A::zero();
        for (int c = 0; c <= m; ++c) g = A::add(g, A::mul(A::get(grad, c), A::get(value(t), c)));
        for (int s = 0; s < QS; ++s) {
          const long at = long(s) * QS + r * S + y;
          const Value alpha = A::get(row(t - 1, s / S, s % S), m);
          A::set(dpush(t), at, A::add(A::get(dpush(t), at), A::mul(alpha, g)));
          const Ptr out = row_gradient(t - 1, s / S, s % S) + m;
          A::set(out, 0, A::add(A::get(out, 0), A::mul(A::get(push(t), at), g)));
        }
      }
  }

  void unfill_band() {
    clear_blocks(dD_, 0, 0, std::min(window, n) / b);
    for (int j = 0; j < n; ++j) {
      const int end = std::min(j + window, n) / b * b + b;  // of the columns of row j
      if (j > 0) unfill_D(j, end);
      if (j + 2 > n) continue;
      const int first = (j + 2) / b * b, count = (end - first) * Q;
      for (int y = 0; y < S; ++y)
        for (int z = 0; z < S && count > 0; ++z) {
          const long at = long(y) * QS + z;
          const Product pushed = {cell(dP_, y, j, first), ld, 1, cell(D_, z, j + 1, first), ld, count};
          A::dots(&pushed, 1, Q, Q, dpush(j + 1) + at, long(S) * QS, S);
          if (j == 0) continue;
          const Product kept = {cell(dD_, y, j, first), ld, 1, cell(D_, z, j + 1, first), ld, count};
          A::dots(&kept, 1, Q, Q, drepl(j + 1) + at, long(S) * QS, S);
        }
    }
  }
  // Completes row j of dD, and adds its contributions to row j of dP and to dpop.
  void unfill_D(int j, int end) {
    const int last = std::min(j + window - 1, n), first = (j + 1) / b * b, low = std::max(1, first - window + 1);
    for (int y = 0; y < S; ++y) {
      for (int k = low; k < j - 1; ++k)  // P[. -> j] in one piece: its entries are far apart, and each is used often
        for (int i = 0; i < Q * Q; ++i)
          A::set(column_, long(k - low) * Q * Q + i, A::get(cell(P_, y, k, j) + i / Q * ld, i % Q));
      for (int t = first; t <= last; t += b) {
        int count = add_step_back(add_step_back(0, push(j), dP_, y, j - 1, t), repl(j), dD_, y, j - 1, t);
        for_blocks(std::max(1, t - window + 1), j - 1, [&](int k, int to) {
          terms_[count++] = {column_ + long(k - low) * Q * Q, 1, Q, cell(dD_, y, k, t), ld, (to - k) * Q};
        });
        A::gemm(terms_.data(), count, Q, b * Q, cell(dD_, y, j, t), ld, false);
      }
      for (int p = 0; p < Q; ++p) A::clear(cell(dD_, y, j, first) + p * ld, (j + 1 - first) * long(Q));
    }
    clear_blocks(dD_, j, std::max(first, last / b * b + b) / b, end / b - 1);
    for (int y = 0; y < S; ++y) {
      for_blocks(j + 2, last, [&](int k, int to) {
        const int start = k / b * b;
        const Product term = {cell(dD_, y, j, start), ld, 1, cell(D_, y, k, start), ld, (end - start) * Q};
        A::dots(&term, 1, Q, (to - k) * Q, cell(dP_, y, j, k), ld, 1);
      });
      for (int p = 0; p < Q && last > j; ++p)
        for (int r = 0; r < Q; ++r)
          A::set(dpop(j + 1), long(p * S + y) * Q + r, A::get(cell(dD_, y, j, j + 1) + p * ld, r));
    }
  }
};

}  // namespace
}  // namespace STACKATTN_KERNEL
