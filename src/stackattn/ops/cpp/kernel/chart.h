// The chart of one sequence (docs/maths.md): its forward and backward passes, in tiles.
//
// F is stored transposed, in one panel for each block T. A panel has rows (t, state) and columns i.
//
// Letters as in NOTATION.md. Index i of an attention weight is shifted by one: column 0 is the bottom element.
#pragma once
#include "tiles.h"
#include "workspace.h"

namespace STACKATTN_KERNEL {
namespace {

template <class A>
class Chart : public Tiles<A> {
  using Base = Tiles<A>;
  using typename Base::Product;
  using typename Base::Ptr;
  using Value = typename A::Value;

 public:
  using Base::b, Base::blocks, Base::dpush, Base::drepl, Base::ld, Base::n, Base::push, Base::Q, Base::QS, Base::repl,
      Base::S;
  // Popping an empty superposition stack leaves it empty: alpha is 1 at every time point, and rows are not normalised.
  const bool superposition;

  // A multiple of the vector length; with 3 or 4 states, smaller for short sequences, because small tiles waste less
  // work below the diagonal.
  static int block_size(int Q, int n) { return Q == 1 ? 48 : Q == 2 ? 24 : Q <= 4 && n > 128 ? 16 : 8; }

  // `columns` is the length of a panel's rows; 0: one column for each attention weight. The forward pass is stored in
  // `kept` if that is not null, so that a later chart in the same memory can start with the backward pass. `extra` is
  // the number of values that a derived class takes.
  Chart(Workspace& work, int n, int Q, int S, bool superposition, bool with_gradient, long columns = 0,
        double* kept = nullptr, long extra = 0)
      : Base(n, Q, S, block_size(Q, n), n), superposition(superposition),
        panels_(columns ? long(blocks) * ld * columns : long(blocks) * (blocks + 1) / 2 * ld * b), columns_(columns),
        work_(work), kept_(kept) {
    const auto take = [this](long count) { return this->take(count); };
    work.start(A::kPlanes * ((kept ? 0 : forward_size()) + with_gradient * gradient_size() + extra + 8));
    this->take_tiles(take);
    F_ = take(S * panels_);
    this->take_steps(take);
    alpha_ = take(long(n + 1) * QS);
    mass_ = take(n + 1);
    kept_ = nullptr;
    if (with_gradient) {
      this->take_tile_gradients(take);
      dF_ = take(S * panels_);
      dFT_ = take(S * panels_);
      this->take_step_gradients(take);
      dalpha_ = take(long(n + 1) * QS);
    }
  }

  virtual ~Chart() = default;

  // Number of values that the forward pass stores.
  long forward_size() const { return forward_size(n, Q, S, columns_); }
  static long forward_size(int n, int Q, int S, long columns) {
    const long b = block_size(Q, n), blocks = (n + b) / b, triangle = blocks * (blocks + 1) / 2, QS = Q * S;
    const long tiles = triangle * b * Q * b * Q, panels = columns ? blocks * b * Q * columns : triangle * b * Q * b;
    return S * (2 * tiles + panels) + n * (2 * QS * QS + QS * Q) + (n + 1) * (QS + 1) + 64;
  }

  Value mass(int t) const { return A::get(mass_, t); }

  // F[. -> t][r, y] as a row over i (shifted by one), and its gradient.
  Ptr weights(int t, int r, int y) const { return f_row(F_, y, t) + long(r) * width(t / b); }
  Ptr weight_gradients(int t, int r, int y) const { return f_row(dFT_, y, t) + long(r) * width(t / b); }

  void forward() {
    A::clear(F_, S * panels_);
    for (int T = 0; T < blocks; ++T) {
      this->fill_column(T);
      fill_panel(T);
    }
  }

  void clear_weight_gradients() { A::clear(dFT_, S * panels_); }

  void backward() {
    this->clear_step_gradients();
    A::clear(dalpha_, long(n + 1) * QS);
    for (int T = blocks - 1; T >= 0; --T) unfill_panel(T);
    transpose_panels();
    for (int T = 0; T < blocks; ++T)
      for (int J = 0; J <= T; ++J) start_dP(J, T);
    this->unfill_tiles();
  }

 protected:
  using Base::begin, Base::columns, Base::dP_, Base::end, Base::P_, Base::sum_of_tiles, Base::tile, Base::tiles_;
  long panels_, columns_;
  Workspace& work_;
  double* kept_;      // the memory that `take` allocates from; null: the workspace
  Ptr F_, dF_, dFT_;  // F_, dFT_: rows (t, r), columns i; dF_: the transpose of dFT_
  Ptr alpha_, dalpha_, mass_;

  long gradient_size() const { return 3 * S * tiles_ + 2 * S * panels_ + this->steps_size() + long(n + 1) * QS + 72; }
  Ptr take(long count) {
    const long room = (count + 7) / 8 * 8;
    double* memory = kept_ ? kept_ : work_.take(A::kPlanes * room);
    if (kept_) kept_ += A::kPlanes * room;
    return A::at(memory, room);
  }

  int width(int T) const { return columns_ ? columns_ : (T + 1) * b; }  // length of a panel's row

  Ptr panel(Ptr chart, int y, int T) const {
    return chart + (y * panels_ + (columns_ ? T * ld * columns_ : long(T) * (T + 1) / 2 * ld * b));
  }
  Ptr f_row(Ptr chart, int y, int t) const { return panel(chart, y, t / b) + long(t % b) * Q * width(t / b); }

  static constexpr int kWide = 3;  // blocks of i filled at once
  virtual void fill_panel(int T) {
    std::vector<Product> terms(S + 1);
    for (int y = 0; y < S; ++y)
      for (int I = 0; I < T; I += kWide) {  // several blocks of i at once, for longer rows
        const Ptr out = panel(F_, y, T) + I * b;
        const auto product = [&](int K) {
          return Product{tile(P_, y, K, T), 1, ld, panel(F_, y, K) + I * b, width(K), ld};
        };
        const int last = std::min(I + kWide, T) - 1;
        for (int K = I; K < last; ++K) {  // the rows of these panels end before the last block
          const Product term = product(K);
          A::gemm(&term, 1, columns(T), (K + 1 - I) * b, out, width(T), true);
        }
        sum_of_tiles(last, T, columns(T), (last + 1 - I) * b, out, width(T), true, product);
      }
    for (int t = begin(T); t < end(T); ++t) {
      if (t == 0) {
        A::set(alpha_, 0, A::one());
        for (int s = 1; s < QS; ++s) A::set(alpha_, s, A::zero());
        if (!superposition) A::set(panel(F_, 0, 0), 0, A::one());
        A::set(mass_, 0, A::one());
        continue;
      }
      for (int y = 0; y < S; ++y) {
        int count = 0;
        for (int z = 0; z < S; ++z)
          terms[count++] = {repl(t) + (long(z) * QS + y), S, long(S) * QS, f_row(F_, z, t - 1), width((t - 1) / b), Q};
        if (t - 2 >= begin(T))
          terms[count++] = {
              tile(P_, y, T, T) + (t - begin(T)) * Q, 1, ld, panel(F_, y, T), width(T), (t - 1 - begin(T)) * Q};
        A::gemm(terms.data(), count, Q, std::min(t, width((t - 1) / b)), f_row(F_, y, t), width(T), true);
      }
      for (int r = 0; r < Q; ++r)
        for (int y = 0; y < S; ++y) {
          const Ptr out = f_row(F_, y, t) + long(r) * width(T);
          Value pushed = A::zero();
          for (int s = 0; s < QS; ++s)
            pushed =
                A::add(pushed, A::mul(A::get(alpha_, long(t - 1) * QS + s), A::get(push(t), long(s) * QS + r * S + y)));
          A::set(out, t, pushed);
        }
      Value mass = A::zero();
      for (int r = 0; r < Q; ++r)
        for (int y = 0; y < S; ++y) {
          const Value total = A::total(weights(t, r, y), t + 1);
          A::set(alpha_, long(t) * QS + r * S + y, superposition ? A::one() : total);
          mass = A::add(mass, total);
        }
      A::set(mass_, t, mass);
    }
  }

  virtual void unfill_panel(int T) {
    std::vector<Product> terms(S + 1);
    for (int z = 0; z < S; ++z)
      sum_of_tiles(T + 1, blocks, ld, width(T), panel(dFT_, z, T), width(T), true,
                   [&](int K) { return Product{tile(P_, z, T, K), ld, 1, panel(dFT_, z, K), width(K), columns(K)}; });
    for (int k = end(T) - 1; k >= begin(T); --k) {
      const int t = k + 1;
      if (t > n) continue;
      for (int z = 0; z < S; ++z) {
        int count = 0;
        for (int y = 0; y < S; ++y)
          terms[count++] = {repl(t) + (long(z) * QS + y), long(S) * QS, S, f_row(dFT_, y, t), width(t / b), Q};
        if (k + 2 < end(T))
          terms[count++] = {tile(P_, z, T, T) + (long(k - begin(T)) * Q * ld + (k + 2 - begin(T)) * Q),
                            ld,
                            1,
                            f_row(dFT_, z, k + 2),
                            width(T),
                            (end(T) - k - 2) * Q};
        A::gemm(terms.data(), count, Q, k + 1, f_row(dFT_, z, k), width(T), true);
      }
      for (int y = 0; y < S; ++y)
        for (int r = 0; r < Q; ++r) {
          const Value g = A::get(f_row(dFT_, y, t) + long(r) * width(t / b), t);
          if (A::is_zero(g)) continue;
          for (int s = 0; s < QS; ++s) {
            const long at = long(s) * QS + r * S + y;
            A::set(dpush(t), at, A::add(A::get(dpush(t), at), A::mul(A::get(alpha_, long(k) * QS + s), g)));
            A::set(dalpha_, long(k) * QS + s,
                   A::add(A::get(dalpha_, long(k) * QS + s), A::mul(A::get(push(t), at), g)));
          }
        }
      for (int z = 0; z < S; ++z)
        for (int s = 0; s < Q; ++s) {
          const Ptr out = f_row(dFT_, z, k) + long(s) * width(T);
          if (!superposition) {
            const Value g = A::get(dalpha_, long(k) * QS + s * S + z);
            for (int i = 0; i <= k; ++i) A::set(out, i, A::add(A::get(out, i), g));
          }
          for (int i = k + 1; i < width(T); ++i) A::set(out, i, A::zero());
        }
      for (int z = 0; z < S; ++z)
        for (int y = 0; y < S; ++y) {
          const Product term = {f_row(F_, z, k), width(T), 1, f_row(dFT_, y, t), width(t / b), k + 1};
          A::dots(&term, 1, Q, Q, drepl(t) + (long(z) * QS + y), long(S) * QS, S);
        }
    }
  }

  void transpose_panels() {
    for (int y = 0; y < S; ++y)
      for (int T = 0; T < blocks; ++T) A::transpose(panel(dFT_, y, T), ld, width(T), panel(dF_, y, T));
  }
  // The contribution of F to dP: sum over i of F[i -> k] dF[i -> t].
  void start_dP(int J, int T) {
    for (int y = 0; y < S; ++y) {
      const Product term = {panel(F_, y, J), width(J), 1, panel(dF_, y, T), ld, width(J)};
      A::gemm(&term, 1, columns(J), columns(T), tile(dP_, y, J, T), ld, false);
    }
  }
};

}  // namespace
}  // namespace STACKATTN_KERNEL
