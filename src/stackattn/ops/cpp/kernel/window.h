// The chart and the rows of the windowed stack, for one segment of a sequence (docs/maths.md, section 10).
//
// Rows are computed block by block. Inside a block, rows are in units of the mass before the block, so that the rows of
// earlier blocks are scaled once for the whole block. At the end of the block, each row is divided by its own mass.
#pragma once
#include "tiles.h"
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
class WindowChart : public Tiles<A> {
  using Base = Tiles<A>;
  using typename Base::Product;
  using typename Base::Ptr;
  using Value = typename A::Value;
  using Base::begin, Base::blocks, Base::dP_, Base::end, Base::ld, Base::low, Base::P_, Base::tile, Base::tiles_;

 public:
  static constexpr int b = 8;  // small blocks waste less work at the borders of the band
  using Base::dpush, Base::drepl, Base::n, Base::push, Base::Q, Base::QS, Base::repl, Base::S;
  const int m, window;
  const int W;  // length of a row's parts: m values, alpha, and zeros up to a multiple of 8

  WindowChart(Workspace& work, int n, int Q, int S, int m, int window, bool with_gradient)
      : Base(n, Q, S, b, (window + b - 1) / b), m(m), window(window), W((m + 8) / 8 * 8),
        rows_(S * long(n + 1) * Q * W), logs(n + 1), scales_(window + 1), terms_(S + window / b + 3) {
    const long values = long(n + 1) * W, scaled = S * long(window) * Q * W, block = long(ld) * W;
    const long sizes = 2 * S * tiles_ + rows_ + this->steps_size() + values, gradients = sizes + S * tiles_ + 2 * block;
    work.start(A::kPlanes * (sizes + scaled + with_gradient * gradients + 512));
    const auto take = [&](long count) {
      const long whole = (count + 7) / 8 * 8;
      return A::at(work.take(A::kPlanes * whole), whole);
    };
    this->take_tiles(take);
    this->take_steps(take);
    F_ = take(rows_), scaled_ = take(scaled), values_ = take(values);
    if (!with_gradient) return;
    this->take_tile_gradients(take);
    this->take_step_gradients(take);
    dF_ = take(rows_), dvalues_ = take(values), block_ = take(block), turned_ = take(block);
    A::clear(dP_, S * tiles_), A::clear(dF_, rows_), A::clear(dvalues_, values);
    this->clear_step_gradients();
  }

  // The vector that step t pushes, and its gradient.
  Ptr value(int t) const { return values_ + long(t) * W; }
  Ptr value_gradient(int t) const { return dvalues_ + long(t) * W; }

  // The part of row t for state r and symbol y on top: the weighted sum of the vectors on top, m numbers, then alpha,
  // all divided by the mass of all runs. The gradient is multiplied by the mass. logs[t] is the logarithm of the mass,
  // relative to that of t - 1.
  Ptr row(int t, int r, int y) const { return row(F_, y, t) + long(r) * W; }
  Ptr row_gradient(int t, int r, int y) const { return row(dF_, y, t) + long(r) * W; }

  // The Q numbers P[k -> t][u,y -> r], r = 0..Q-1; t >= k + 2.
  Ptr inner(int k, int t, int u, int y) const { return cell(P_, y, k, t) + u * long(ld); }

 private:
  const long rows_;
  Ptr F_, values_, scaled_;  // rows by symbol: (t, state), columns of m + 1 numbers
  Ptr dF_, dvalues_, block_, turned_;

 public:
  std::vector<double> logs;

  // Clears P[k -> t] for t <= last; the caller then stores these entries instead of computing them.
  void clear_inner(int last) {
    for (int y = 0; y < S; ++y) A::clear(tile(P_, y, 0, 0), this->tiles_before(last / b + 1) * ld * ld);
  }
  // Computes D and P for t >= first; P for smaller t must be stored already.
  void fill_band(int first) {
    for (int T = first / b; T < blocks; ++T) {
      this->fill_column(T);
      clear_beyond(P_, T);
    }
  }

  // Computes the rows after `before`. Returns false if a row has no mass, or none that float64 can represent.
  bool fill_rows(int before) {
    bool in_range = true;
    for (int T = (before + 1) / b; T < blocks; ++T) {
      const int first = std::max(begin(T), before + 1), stop = end(T);
      const int oldest = scale_rows(first);
      for (int y = 0; y < S; ++y) {
        int count = 0;
        for_blocks(oldest, first, [&](int k, int to) {
          terms_[count++] = {cell(P_, y, k, first), 1, ld, scaled(y, k - oldest), W, (to - k) * Q};
        });
        A::gemm(terms_.data(), count, (stop - first) * Q, W, row(F_, y, first), W, false);
      }
      for (int t = first; t < stop; ++t) fill_row(first, t);
      in_range = normalise(first, stop) && in_range;
    }
    return in_range;
  }

  // Computes the gradients of steps, values and rows up to `before` from those of later rows. Rows and gradients after
  // `before` are overwritten.
  void backward(int before) {
    for (int T = blocks - 1; T >= (before + 1) / b; --T) unfill_rows(T, std::max(begin(T), before + 1));
    this->unfill_tiles();
  }

 private:
  std::vector<Value> scales_;
  std::vector<Product> terms_;

  Ptr cell(Ptr chart, int y, int k, int t) const {  // row (k, 0), column (t, 0)
    return Base::row(chart, y, k, t / b) + t % b * Q;
  }
  Ptr row(Ptr rows, int y, int t) const { return rows + (long(y) * (n + 1) + t) * Q * W; }
  Ptr scaled(int y, int k) const { return scaled_ + (long(y) * window + k) * Q * W; }

  // Sets X[k -> t] to zero for all t of block T that are beyond the window of k.
  void clear_beyond(Ptr chart, int T) {
    for (int k = begin(low(T)); k + window + 1 < end(T); ++k) {
      const int from = std::max(k + window + 1, begin(T));
      for (int y = 0; y < S; ++y)
        for (int p = 0; p < Q; ++p) A::clear(cell(chart, y, k, from) + p * long(ld), (end(T) - from) * long(Q));
    }
  }
  template <class Body>
  static void for_blocks(int from, int to, Body body) {  // body(begin, end) for the parts of from..to-1 in each block
    for (int k = from; k < to; k = k / b * b + b) body(k, std::min(k / b * b + b, to));
  }
  void multiply(Ptr numbers, Value factor, long count) {
    for (long i = 0; i < count; ++i) A::set(numbers, i, A::mul(A::get(numbers, i), factor));
  }
  void add_multiple(Ptr to, Ptr from, Value factor, long count) {
    for (long i = 0; i < count; ++i) A::set(to, i, A::add(A::get(to, i), A::mul(A::get(from, i), factor)));
  }
  // The weight of all runs that push y at step t and go to r, in the units of row t - 1.
  Value pushed(int t, int r, int y) const {
    Value total = A::zero();
    for (int s = 0; s < QS; ++s)
      total = A::add(total, A::mul(A::get(row(t - 1, s / S, s % S), m), A::get(push(t), long(s) * QS + r * S + y)));
    return total;
  }
  // Converts the rows of the window before `first` to units of the mass before `first`; returns the oldest time point.
  int scale_rows(int first) {
    const int oldest = std::max(0, first - window);
    double fall = 0;
    for (int k = first - 1; k >= oldest; --k) {
      const Value scale = scales_[k - oldest] = scale_from_log(A{}, fall);
      for (int y = 0; y < S; ++y)
        for (long i = 0; i < long(Q) * W; ++i)
          A::set(scaled(y, k - oldest), i, A::mul(A::get(row(F_, y, k), i), scale));
      fall -= logs[k];
    }
    return oldest;
  }

  // Adds to row t the contributions of row t - 1, of the push of step t, and of the block's rows from `first` on.
  void fill_row(int first, int t) {
    for (int y = 0; y < S; ++y) {
      int count = 0;
      for (int z = 0; z < S; ++z)
        terms_[count++] = {repl(t) + (long(z) * QS + y), S, long(S) * QS, row(F_, z, t - 1), W, Q};
      if (t - 2 >= first) terms_[count++] = {cell(P_, y, first, t), 1, ld, row(F_, y, first), W, (t - 1 - first) * Q};
      A::gemm(terms_.data(), count, Q, W, row(F_, y, t), W, true);
      for (int r = 0; r < Q; ++r) add_multiple(row(t, r, y), value(t), pushed(t, r, y), W);
    }
  }
  bool normalise(int first, int stop) {
    bool in_range = true;
    Value before = A::one();
    for (int t = first; t < stop; ++t) {
      Value mass = A::zero();
      for (int s = 0; s < QS; ++s) mass = A::add(mass, A::get(row(t, s / S, s % S), m));
      logs[t] = 0;
      if (A::is_zero(mass)) {
        in_range = false;
        continue;
      }
      logs[t] = log_of(A{}, A::div(mass, before));
      in_range = in_range && std::isfinite(logs[t]);
      const Value scale = A::div(A::one(), before = mass);
      for (int y = 0; y < S; ++y) multiply(row(F_, y, t), scale, long(Q) * W);
    }
    return in_range;
  }

  // The backward pass for the rows of block T from `first` on.
  void unfill_rows(int T, int first) {
    const int stop = end(T), oldest = scale_rows(first), count = (stop - first) * Q;
    double fall = 0;
    for (int t = first; t < stop; ++t) {
      fall -= logs[t];
      const Value mass = scale_from_log(A{}, -fall), inverse = scale_from_log(A{}, fall);
      for (int y = 0; y < S; ++y) {
        multiply(row(F_, y, t), mass, long(Q) * W);
        multiply(row(dF_, y, t), inverse, long(Q) * W);
      }
    }
    for (int t = stop - 1; t >= first; --t) unfill_row(first, t, stop);
    for (int z = 0; z < S; ++z) {
      A::clear(block_, long(ld) * W);
      for (long i = 0; i < long(count) * W; ++i)
        A::set(block_, (first - begin(T)) * long(Q) * W + i, A::get(row(dF_, z, first), i));
      A::transpose(block_, ld, W, turned_);
      const auto unfill_P = [&](Ptr rows, int k, int to) {
        const Product term = {rows, W, 1, turned_, ld, W};
        A::gemm(&term, 1, (to - k) * Q, ld, cell(dP_, z, k, begin(T)), ld, false);
      };
      unfill_P(row(F_, z, first), first, stop);
      for_blocks(oldest, first, [&](int k, int to) {
        unfill_P(scaled(z, k - oldest), k, to);
        const Product term = {cell(P_, z, k, first), ld, 1, row(dF_, z, first), W, count};
        A::gemm(&term, 1, (to - k) * Q, W, block_, W, false);
        for (int i = k; i < to; ++i)
          add_multiple(row(dF_, z, i), block_ + long(i - k) * Q * W, scales_[i - oldest], long(Q) * W);
      });
    }
    clear_beyond(dP_, T);
  }
  // Adds the contributions of row t to the gradients of step t and of row t - 1. If row t - 1 is not before `first`,
  // the contributions of the later rows before `stop` are added to its gradient as well.
  void unfill_row(int first, int t, int stop) {
    for (int s = 0; s < QS; ++s)
      // Without runs, the gradient has no effect on any weight, but it may be too large for float64.
      if (A::is_zero(A::get(row(t, s / S, s % S), m))) A::clear(row_gradient(t, s / S, s % S), W);
    unfill_push(t);
    for (int z = 0; z < S; ++z) {
      int count = 0;
      for (int y = 0; y < S; ++y) {
        terms_[count++] = {repl(t) + (long(z) * QS + y), long(S) * QS, S, row(dF_, y, t), W, Q};
        const Product term = {row(F_, z, t - 1), W, 1, row(dF_, y, t), W, W};
        A::dots(&term, 1, Q, Q, drepl(t) + (long(z) * QS + y), long(S) * QS, S);
      }
      if (t > first && t + 1 < stop)
        terms_[count++] = {cell(P_, z, t - 1, t + 1), ld, 1, row(dF_, z, t + 1), W, (stop - t - 1) * Q};
      A::gemm(terms_.data(), count, Q, W, row(dF_, z, t - 1), W, true);
    }
  }
  void unfill_push(int t) {
    for (int y = 0; y < S; ++y)
      for (int r = 0; r < Q; ++r) {
        const Ptr grad = row_gradient(t, r, y);
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
};

}  // namespace
}  // namespace STACKATTN_KERNEL
