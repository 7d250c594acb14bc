// Computes the chart one column at a time, for stacks that are extended step by step.
//
// A state is one array of doubles for each sequence; an extension appends to it. Column t = 1, 2, ... contains
//   P   [S w][Q r][(t-1) x Q]  P[j -> t][p,w -> r] for the time points j = 0..t-2 and states p
//   F   [S y][Q r][t+1]        F[i -> t][r,y] for i = 0..t, shifted by one: 0 is the bottom element
//   push, replace              [Q S to][Q S from] the weights of step t, scaled and transposed
// The last axis of each is padded with zeros to a multiple of 8, so that loops over vectors need no remainder loop. The
// gradient of a state has the same layout, and autograd passes it from step to step; the values in its padding are
// ignored.
#pragma once
#include "column_steps.h"

namespace STACKATTN_KERNEL {
namespace {

struct Layout {
  int Q, S, QS;
  long from;                // padded length of a row of transition weights
  StepVector<long> offset;  // of column t; the last entry is the size of the whole state

  Layout(int Q, int S, long steps) : Q(Q), S(S), QS(Q * S), from(padded(QS)), offset(steps + 2) {
    for (long t = 1; t <= steps; ++t) offset[t + 1] = offset[t] + QS * (p_row(t) + f_row(t) + 2 * from);
  }
  long p_row(long t) const { return padded((t - 1) * Q); }
  long f_row(long t) const { return padded(t + 1); }
  // Inside column t:
  long p(long t, int w, int r) const { return (w * Q + r) * p_row(t); }
  long f(long t, int y, int r) const { return QS * p_row(t) + (y * Q + r) * f_row(t); }
  long push(long t) const { return QS * (p_row(t) + f_row(t)); }
  long repl(long t) const { return push(t) + QS * from; }
};

// The state of one sequence, extended one step at a time.
class Columns {
 public:
  Columns(Workspace& work, const Layout& layout, bool superposition, double* state)
      : at_(layout), mix_{layout.Q, layout.QS, layout.from}, Q(layout.Q), S(layout.S), QS(layout.QS),
        superposition_(superposition), state_(state), ld_(padded(long(layout.offset.size()) * Q)) {
    const long square = QS * Q;
    work.start(3 * QS * ld_ + 3 * padded(QS) + 4 * padded(square) + 2 * Q * at_.from + Q * padded(1));
    D_ = work.take(QS * ld_);
    dD_ = work.take(QS * ld_);
    dP_ = work.take(QS * ld_);
    alpha_ = work.take(QS);
    dalpha_ = work.take(QS);
    pop_ = work.take(square);
    x_ = work.take(square);
    c_ = work.take(square);
    d_ = work.take(square);
    y_ = work.take(Q * at_.from);
    z_ = work.take(Q * at_.from);
    start_ = work.take(Q * padded(1));
    std::fill_n(start_, Q * padded(1), 0.0);
  }

  double* push(long t) { return state_ + at_.offset[t] + at_.push(t); }  // [to][from]
  double* repl(long t) { return state_ + at_.offset[t] + at_.repl(t); }
  double* pop() { return pop_; }  // (q,x) x r, of the current step
  double* P(long t) { return state_ + at_.offset[t] + at_.p(t, 0, 0); }
  long p_row(long t) const { return at_.p_row(t); }

  // F[. -> t][r, y] over i = 0..t; the states r of one symbol are weights_row(t) apart. At t = 0 only the bottom
  // element exists.
  const double* weights(long t, int y, int r = 0) {
    if (t > 0) return state_ + at_.offset[t] + at_.f(t, y, r);
    start_[0] = !superposition_ && y == 0;
    return start_ + r * padded(1);
  }
  long weights_row(long t) const { return at_.f_row(t); }
  double mass(long t) {
    sum_weights(t);
    double total = 0;
    for (int s = 0; s < QS; ++s) total += alpha_[s];
    return total;
  }

  // Computes column t from the previous columns and the weights of step t: push(t), repl(t), pop().
  void extend(long t) {
    solve(t);
    double* column = state_ + at_.offset[t];
    std::fill_n(column, at_.push(t), 0.0);
    mix_.fill_P(*this, t, D_, ld_, x_, y_);
    sum_weights(t - 1);
    const double *push_t = push(t), *repl_t = repl(t);
    for (int y = 0; y < S; ++y) {
      double* F = column + at_.f(t, y, 0);
      for (int z = 0; z < S; ++z) {
        for (int s = 0; s < Q; ++s)
          for (int r = 0; r < Q; ++r) c_[s * Q + r] = repl_t[(r * S + y) * at_.from + s * S + z];
        add_products(Q, F, F, at_.f_row(t), weights(t - 1, z), weights_row(t - 1), c_, padded(t));
      }
      for (long k = 0; k <= t - 2; ++k) {
        for (int u = 0; u < Q; ++u)
          for (int r = 0; r < Q; ++r) c_[u * Q + r] = column[at_.p(t, y, r) + k * Q + u];
        add_products(Q, F, F, at_.f_row(t), weights(k, y), weights_row(k), c_, padded(k + 1));
      }
      for (int r = 0; r < Q; ++r) {
        double pushed = 0;
        for (int s = 0; s < QS; ++s) pushed += alpha_[s] * push_t[(r * S + y) * at_.from + s];
        F[r * at_.f_row(t) + t] = pushed;
      }
    }
  }

  // The backward pass of `extend`. `dcolumn` is the gradient of column t and `grad` that of the earlier columns, both
  // without the contributions of step t. Those to the push and replace weights are added to `dcolumn`. The gradient of
  // the pop weights is written to `dpop`, (q,x) x r. The sum of `grad` and the contributions to the earlier columns is
  // written to `before`, which may be the same array as `grad`.
  void retract(long t, double* dcolumn, const double* grad, double* before, double* dpop) {
    solve(t);
    const double* column = state_ + at_.offset[t];
    double *dpush = dcolumn + at_.push(t), *drepl = dcolumn + at_.repl(t);
    const double *push_t = push(t), *repl_t = repl(t);
    sum_weights(t - 1);
    std::fill_n(dalpha_, QS, 0.0);
    for (int y = 0; y < S; ++y)
      for (int r = 0; r < Q; ++r) {
        const double g = dcolumn[at_.f(t, y, r) + t];
        const long to = (r * S + y) * at_.from;
        for (int s = 0; s < QS; ++s) {
          dpush[to + s] += alpha_[s] * g;
          dalpha_[s] += push_t[to + s] * g;
        }
      }
    if (t > 1 && before != grad) {  // the loops below add several terms to this part
      const long at = at_.offset[t - 1] + at_.f(t - 1, 0, 0);
      std::copy_n(grad + at, QS * at_.f_row(t - 1), before + at);
    }
    for (int y = 0; y < S; ++y) {
      const double* dF = dcolumn + at_.f(t, y, 0);
      for (int z = 0; z < S; ++z) {
        dot_products(Q, d_, weights(t - 1, z), weights_row(t - 1), dF, at_.f_row(t), padded(t));
        for (int s = 0; s < Q; ++s)
          for (int r = 0; r < Q; ++r) {
            drepl[(r * S + y) * at_.from + s * S + z] += d_[s * Q + r];
            c_[r * Q + s] = repl_t[(r * S + y) * at_.from + s * S + z];
          }
        if (t == 1) continue;
        double* to = before + at_.offset[t - 1] + at_.f(t - 1, z, 0);
        add_products(Q, to, to, at_.f_row(t - 1), dF, at_.f_row(t), c_, padded(t));
      }
      for (long k = 0; k <= t - 2; ++k) {
        dot_products(Q, d_, weights(k, y), weights_row(k), dF, at_.f_row(t), padded(k + 1));
        for (int u = 0; u < Q; ++u)
          for (int r = 0; r < Q; ++r) {
            const long at = at_.p(t, y, r) + k * Q + u;
            entry(dP_, y, r, k, u) = dcolumn[at] + d_[u * Q + r];
            c_[r * Q + u] = column[at];
          }
        if (k == 0) continue;
        const long at = at_.offset[k] + at_.f(k, y, 0);
        add_products(Q, before + at, grad + at, at_.f_row(k), dF, at_.f_row(t), c_, padded(k + 1));
      }
    }
    if (t > 1 && !superposition_)
      for (int y = 0; y < S; ++y)
        for (int r = 0; r < Q; ++r) {
          double* dF = before + at_.offset[t - 1] + at_.f(t - 1, y, r);
          for (long i = 0; i < t; ++i) dF[i] += dalpha_[r * S + y];
        }

    for (int i = 0; i < QS; ++i) std::fill_n(dD_ + i * ld_, padded(t * Q), 0.0);
    for (long k = 1; k <= t - 1; ++k) {
      const double* column_k = state_ + at_.offset[k];
      const double* in = grad + at_.offset[k];
      double* out = before + at_.offset[k];
      for (int w = 0; w < S; ++w) {  // x = sum over j of P[j -> k] dD[j -> t]
        dot_products(Q, d_, column_k + at_.p(k, w, 0), at_.p_row(k), dD_ + w * Q * ld_, ld_, at_.p_row(k));
        for (int p = 0; p < Q; ++p)
          for (int r = 0; r < Q; ++r) x_[(p * S + w) * Q + r] = d_[p * Q + r];
      }
      read_rows(dP_, k - 1, y_);
      read_rows(dD_, k - 1, z_);
      mix_.pull_transposed(column_k + at_.push(k), y_, column_k + at_.repl(k), z_, x_);
      for (int w = 0; w < S; ++w)
        for (int p = 0; p < Q; ++p)
          for (int r = 0; r < Q; ++r) entry(dD_, w, r, k, p) = x_[(p * S + w) * Q + r];
      read(D_, k, x_);
      mix_.outer(x_, y_, in + at_.push(k), out + at_.push(k));
      mix_.outer(x_, z_, in + at_.repl(k), out + at_.repl(k));
      for (int w = 0; w < S; ++w) {
        for (int r = 0; r < Q; ++r)
          for (int p = 0; p < Q; ++p) c_[r * Q + p] = x_[(p * S + w) * Q + r];
        add_products(Q, out + at_.p(k, w, 0), in + at_.p(k, w, 0), at_.p_row(k), dD_ + w * Q * ld_, ld_, c_,
                     at_.p_row(k));
      }
    }
    if (t > 1)
      read(dD_, t - 1, dpop);
    else
      std::fill_n(dpop, QS * Q, 0.0);
  }

 private:
  const Layout& at_;
  Mixer mix_;
  const int Q, S, QS;
  const bool superposition_;
  double* state_;
  const long ld_;
  // Tables [w][r][(j, p)] of column t, and small matrices.
  double *D_, *dD_, *dP_, *start_, *alpha_, *dalpha_, *pop_, *x_, *c_, *d_, *y_, *z_;

  double& entry(double* table, int w, int r, long j, int p) { return table[(w * Q + r) * ld_ + j * Q + p]; }
  void read(double* table, long j, double* x) { mix_.read(table, ld_, j, x); }
  void read_rows(double* table, long j, double* y) { mix_.read_rows(table, ld_, j, y); }

  void sum_weights(long t) {  // alpha[t] as (r, y)
    for (int r = 0; r < Q; ++r)
      for (int y = 0; y < S; ++y)
        alpha_[r * S + y] = superposition_ ? 1 : Linear::total(const_cast<double*>(weights(t, y, r)), t + 1);
  }

  void solve(long t) { mix_.solve(*this, t, pop_, D_, ld_, x_, c_, y_); }
};

}  // namespace
}  // namespace STACKATTN_KERNEL
