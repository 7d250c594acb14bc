// The chart with stack readings instead of attention weights.
//
// The recurrence of F is linear and the same for every i. Instead of all F[i -> t], the chart can therefore carry the
// sum over i of F[i -> t] (v[i], 1): m columns for the values and one for alpha, instead of a column for each i. See
// docs/maths.md, section 10.
#pragma once
#include "chart.h"

namespace STACKATTN_KERNEL {
namespace {

template <class A>
class ReadingChart : public Chart<A> {
  using Base = Chart<A>;
  using Ptr = typename A::Ptr;
  using Value = typename A::Value;
  using Product = Term<Ptr>;
  using Base::alpha_, Base::dFT_, Base::F_, Base::mass_, Base::P_;
  using Base::b, Base::begin, Base::end, Base::f_row, Base::ld, Base::panel, Base::tile, Base::sum_of_tiles;

 public:
  using Base::blocks, Base::dpush, Base::drepl, Base::n, Base::push, Base::Q, Base::QS, Base::repl, Base::S;
  const int m;  // numbers in a value
  const int W;  // length of a row: a value, 1, and zeros up to a multiple of 8

  static int width(int m) { return (m + 8) / 8 * 8; }

  ReadingChart(Workspace& work, int n, int Q, int S, int m, bool superposition, bool with_gradient, double* kept)
      : Base(work, n, Q, S, superposition, with_gradient, width(m), kept, 2 * long(n + 1) * width(m) + 16), m(m),
        W(width(m)) {
    values_ = this->take(long(n + 1) * W);
    dvalues_ = this->take(long(n + 1) * W);
    if (with_gradient) A::clear(dvalues_, long(n + 1) * W);
  }

  // Sets the vector that step t pushes, or the bottom vector for t = 0; null: a vector of zeros.
  template <class IO>
  void set_value(int t, const IO* value) {
    for (int c = 0; c < W; ++c) A::set(values_, long(t) * W + c, A::zero());
    for (int c = 0; c < m && value; ++c) A::set(values_, long(t) * W + c, A::from_double(value[c]));
    A::set(values_, long(t) * W + m, A::one());
  }
  double value_gradient(int t, int c) const { return A::to_double(A::get(dvalues_, long(t) * W + c)); }

 private:
  Ptr values_, dvalues_;  // (n + 1) x W

  void fill_panel(int T) override {
    std::vector<Product> terms(S + 1);
    for (int y = 0; y < S; ++y)
      sum_of_tiles(0, T, this->columns(T), W, panel(F_, y, T), W, true,
                   [&](int K) { return Product{tile(P_, y, K, T), 1, ld, panel(F_, y, K), W, ld}; });
    for (int t = begin(T); t < end(T); ++t) {
      if (t == 0) {
        for (int s = 0; s < QS; ++s) A::set(alpha_, s, s == 0 ? A::one() : A::zero());
        for (int c = 0; c < W && !this->superposition; ++c) A::set(panel(F_, 0, 0), c, A::get(values_, c));
        A::set(mass_, 0, A::one());
        continue;
      }
      Value mass = A::zero();
      for (int y = 0; y < S; ++y) {
        int count = 0;
        for (int z = 0; z < S; ++z)
          terms[count++] = {repl(t) + (long(z) * QS + y), S, long(S) * QS, f_row(F_, z, t - 1), W, Q};
        if (t - 2 >= begin(T))
          terms[count++] = {tile(P_, y, T, T) + (t - begin(T)) * Q, 1, ld, panel(F_, y, T), W, (t - 1 - begin(T)) * Q};
        A::gemm(terms.data(), count, Q, W, f_row(F_, y, t), W, true);
        for (int r = 0; r < Q; ++r) {
          const Ptr out = f_row(F_, y, t) + long(r) * W;
          add_multiple(out, values_ + long(t) * W, pushed(t, r, y));
          const Value total = this->superposition ? A::one() : A::get(out, m);
          A::set(alpha_, long(t) * QS + r * S + y, total);
          mass = A::add(mass, total);
        }
      }
      A::set(mass_, t, mass);
    }
  }

  void unfill_panel(int T) override {
    std::vector<Product> terms(S + 1);
    std::vector<Value> dalpha(QS);
    for (int z = 0; z < S; ++z)
      sum_of_tiles(T + 1, blocks, ld, W, panel(dFT_, z, T), W, true,
                   [&](int K) { return Product{tile(P_, z, T, K), ld, 1, panel(dFT_, z, K), W, this->columns(K)}; });
    for (int k = end(T) - 1; k >= begin(T); --k) {
      const int t = k + 1;
      if (t <= n) {
        for (int z = 0; z < S; ++z) {
          int count = 0;
          for (int y = 0; y < S; ++y)
            terms[count++] = {repl(t) + (long(z) * QS + y), long(S) * QS, S, f_row(dFT_, y, t), W, Q};
          if (k + 2 < end(T))
            terms[count++] = {tile(P_, z, T, T) + (long(k - begin(T)) * Q * ld + (k + 2 - begin(T)) * Q),
                              ld,
                              1,
                              f_row(dFT_, z, k + 2),
                              W,
                              (end(T) - k - 2) * Q};
          A::gemm(terms.data(), count, Q, W, f_row(dFT_, z, k), W, true);
        }
        std::fill(dalpha.begin(), dalpha.end(), A::zero());
        for (int y = 0; y < S; ++y)
          for (int r = 0; r < Q; ++r) {
            const Ptr grad = f_row(dFT_, y, t) + long(r) * W;
            Value g = A::zero();
            for (int c = 0; c <= m; ++c) g = A::add(g, A::mul(A::get(grad, c), A::get(values_, long(t) * W + c)));
            for (int s = 0; s < QS; ++s) {
              const long at = long(s) * QS + r * S + y;
              A::set(dpush(t), at, A::add(A::get(dpush(t), at), A::mul(A::get(alpha_, long(k) * QS + s), g)));
              dalpha[s] = A::add(dalpha[s], A::mul(A::get(push(t), at), g));
            }
            add_multiple(dvalues_ + long(t) * W, grad, pushed(t, r, y));
          }
        for (int z = 0; z < S && !this->superposition; ++z)
          for (int s = 0; s < Q; ++s) {
            const Ptr out = f_row(dFT_, z, k) + (long(s) * W + m);
            A::set(out, 0, A::add(A::get(out, 0), dalpha[s * S + z]));
          }
        for (int z = 0; z < S; ++z)
          for (int y = 0; y < S; ++y) {
            const Product term = {f_row(F_, z, k), W, 1, f_row(dFT_, y, t), W, W};
            A::dots(&term, 1, Q, Q, drepl(t) + (long(z) * QS + y), long(S) * QS, S);
          }
      }
      if (k == 0 && !this->superposition) add_multiple(dvalues_, panel(dFT_, 0, 0), A::one());
    }
  }

  // F[t-1 -> t][r, y]: the weight with which step t pushes its value
  Value pushed(int t, int r, int y) const {
    Value sum = A::zero();
    for (int s = 0; s < QS; ++s)
      sum = A::add(sum, A::mul(A::get(alpha_, long(t - 1) * QS + s), A::get(push(t), long(s) * QS + r * S + y)));
    return sum;
  }
  void add_multiple(Ptr to, Ptr from, Value factor) const {
    for (int c = 0; c < W; ++c) A::set(to, c, A::add(A::get(to, c), A::mul(A::get(from, c), factor)));
  }
};

}  // namespace
}  // namespace STACKATTN_KERNEL
