// The nondeterministic stack one step at a time, with readings instead of attention weights, and its backward pass.
//
// As in readings.h, the chart carries the sum over i of F[i -> t] (v[i], 1). As in columns.h, step t appends column t
// of the chart. The arrays of one sequence of n steps, with letters as in NOTATION.md:
//   values        [t][c]            rows of W numbers: the vector pushed at step t (the bottom vector at 0), 1, zeros
//   F             [y][t][r][c]      rows of W numbers, t = 0..n
//   transitions   [t]               push and replace as [to][from] and as [from][to], pop as [from][r]
//   P, D          [t][w][r][(j,p)]  rows of padded(t Q) numbers
// and those of its backward pass:
//   later         [k][y][u][(t,r)]  P in another order; rows begin at later_begin(k), at or shortly before t = k + 2
//   F_columns     [y][c][(t,r)]     F in another order
//   dF, dD                          like F and D
//   dpush, drepl  [t][from][to]
//   dpushed       [t][to]           the gradient of the weight with which step t pushes its value
#pragma once
#include "column_steps.h"
#include "sequences.h"

namespace STACKATTN_KERNEL {
namespace {

struct ReadingLayout {
  const int Q, S, QS, m, n;
  const long W, to;                // lengths of rows: of values, and of transition weights
  const long matrix, transitions;  // sizes: of a matrix of transition weights, and of all weights of a step
  const long end;                  // length of a row over all time points
  const long readings;             // size of F for one symbol
  StepVector<long> column, later;  // where column t of P and row k of `later` begin; the last entries are the sizes

  ReadingLayout(int Q, int S, int m, int n)
      : Q(Q), S(S), QS(Q * S), m(m), n(n), W(padded(m + 1)), to(padded(QS)), matrix(QS * to),
        transitions(4 * matrix + padded(QS * Q)), end(padded(long(n + 1) * Q)), readings(long(n + 1) * Q * W),
        column(n + 2), later(n + 1) {
    for (int t = 1; t <= n; ++t) column[t + 1] = column[t] + QS * row(t);
    for (int k = 0; k < n; ++k) later[k + 1] = later[k] + QS * later_row(k);
  }
  long row(long t) const { return padded(t * Q); }
  long later_begin(long k) const { return (k + 2) * Q / 8 * 8; }
  long later_row(long k) const { return end - std::min(end, later_begin(k)); }

  // Size of what the forward pass keeps; D is needed only for a backward pass.
  long chart_size(bool with_D) const {
    return (n + 1) * W + S * readings + n * transitions + (1 + with_D) * column[n + 1];
  }
  long gradient_size() const {
    return later[n] + column[n + 1] + S * (readings + W * end) + 2 * n * matrix + (n + 1) * to;
  }
  // Two columns, five small matrices and a vector, which the sequences of a thread share.
  long scratch_size() const { return 2 * QS * end + 3 * padded(QS * Q) + 2 * Q * to + W; }
};

class ReadingColumns {
 public:
  // `gradients` is null for a forward pass.
  ReadingColumns(const ReadingLayout& layout, double* chart, bool with_D, double* gradients, double* scratch)
      : at_(layout), mix_{layout.Q, layout.QS, layout.to}, Q(layout.Q), S(layout.S), QS(layout.QS), n(layout.n),
        W(layout.W), terms_(n + S + 1) {
    const auto take = [](double*& memory, long count) {
      memory += count;
      return memory - count;
    };
    values_ = take(chart, (n + 1) * W);
    F_ = take(chart, S * at_.readings);
    transitions_ = take(chart, n * at_.transitions);
    P_ = take(chart, at_.column[n + 1]);
    this_D_ = take(scratch, QS * at_.end);
    D_ = with_D ? chart : nullptr;
    dP_ = take(scratch, QS * at_.end);
    for (double** x : {&x_, &x2_, &c_}) *x = take(scratch, padded(QS * Q));
    for (double** y : {&y_, &z_}) *y = take(scratch, Q * at_.to);
    dvalue_ = take(scratch, W);
    if (!gradients) return;
    later_ = take(gradients, at_.later[n]);
    F_columns_ = take(gradients, S * W * at_.end);
    dF_ = take(gradients, S * at_.readings);
    dD_ = take(gradients, at_.column[n + 1]);
    dpush_ = take(gradients, n * at_.matrix);
    drepl_ = take(gradients, n * at_.matrix);
    dpushed_ = take(gradients, (n + 1) * at_.to);
  }

  void set_bottom(const float* bottom) {
    set_value(0, bottom);
    for (int y = 0; y < S; ++y) std::fill_n(F(y, 0), Q * W, 0.0);
    std::copy_n(value(0), W, F(0, 0));
  }

  // Step t: logits (Q,S,QS+QS+Q) of push, replace and pop, and the value that is pushed -> reading (Q,S,m). Returns
  // false if a logit is nan or +inf, or if the range of float64 does not suffice.
  bool step(int t, const float* logits, const float* new_value, float* reading) {
    set_value(t, new_value);
    if (!set_transitions(t, logits)) return false;
    mix_.solve(*this, t, pop(t), D(t), at_.row(t), x_, c_, y_);
    std::fill_n(P(t), QS * at_.row(t), 0.0);
    mix_.fill_P(*this, t, D(t), at_.row(t), x_, y_);
    for (int y = 0; y < S; ++y) {
      int count = 0;
      for (int z = 0; z < S; ++z) terms_[count++] = {repl(t) + (y * at_.to + z), S * at_.to, S, F(z, t - 1), W, Q};
      if (t > 1) terms_[count++] = {P(t) + y * Q * at_.row(t), at_.row(t), 1, F(y, 0), W, (t - 1) * Q};
      Linear::gemm(terms_.data(), count, Q, int(W), F(y, t), W, false);
      for (int r = 0; r < Q; ++r) add_multiple(F(y, t) + r * W, value(t), pushed(t, r, y));
    }
    const double total = mass(t);
    if (!(total >= kSmallestMass)) return false;
    for (int s = 0; s < QS; ++s)
      for (int c = 0; c < at_.m; ++c) *reading++ = float(F_row(t, s)[c] / total);
    return true;
  }

  void start_backward() {
    std::fill_n(dpush_, 2 * n * at_.matrix, 0.0);
    std::fill_n(later_, at_.later[n], 0.0);
    for (int t = 2; t <= n; ++t)
      for (int i = 0; i < QS; ++i) {  // i = (y, r)
        const double* row = P(t) + i * at_.row(t);
        for (int k = 0; k <= t - 2; ++k) {
          double* out = later(k) + i / Q * Q * at_.later_row(k) + (t * Q + i % Q - at_.later_begin(k));
          for (int u = 0; u < Q; ++u) out[u * at_.later_row(k)] = row[k * Q + u];
        }
      }
    for (int y = 0; y < S; ++y)
      for (long i = 0; i < at_.end; ++i)
        for (int c = 0; c < W; ++c) F_columns_[(y * W + c) * at_.end + i] = i < (n + 1) * Q ? F(y, 0)[i * W + c] : 0;
  }

  // The gradients of the logits and the value of step t, from the gradient of its reading. Steps are taken in reverse
  // order.
  void step_back(int t, const float* grad_reading, float* grad_logits, float* grad_value) {
    collect_dF(t);
    add_reading_gradient(t, grad_reading);
    double *dpush = dpush_ + (t - 1) * at_.matrix, *drepl = drepl_ + (t - 1) * at_.matrix;  // [from][to]
    std::fill_n(dvalue_, W, 0.0);
    for (int y = 0; y < S; ++y)
      for (int r = 0; r < Q; ++r) {
        const double* grad = dF(y, t) + r * W;
        double g = 0;
        for (int c = 0; c <= at_.m; ++c) g += grad[c] * value(t)[c];
        for (int s = 0; s < QS; ++s) dpush[s * at_.to + r * S + y] += alpha(t - 1, s) * g;
        dpushed_[t * at_.to + r * S + y] = g;
        add_multiple(dvalue_, grad, pushed(t, r, y));
      }
    for (int c = 0; c < at_.m; ++c) grad_value[c] = float(dvalue_[c]);
    for (int z = 0; z < S; ++z)
      for (int y = 0; y < S; ++y) {
        const Term<double*> term = {F(z, t - 1), W, 1, dF(y, t), W, int(W)};
        Linear::dots(&term, 1, Q, Q, drepl + z * at_.to + y, S * at_.to, S);
      }
    collect_dP(t);
    sweep_dD(t);
    if (t > 1)
      mix_.read(dD(t), at_.row(t), t - 1, x_);  // the gradient of pop
    else
      std::fill_n(x_, QS * Q, 0.0);
    for (int s = 0; s < QS; ++s) {  // the gradient of a log weight
      for (int i = s * at_.to; i < s * at_.to + QS; ++i) *grad_logits++ = float(push_from(t)[i] * dpush[i]);
      for (int i = s * at_.to; i < s * at_.to + QS; ++i) *grad_logits++ = float(repl_from(t)[i] * drepl[i]);
      for (int i = s * Q; i < s * Q + Q; ++i) *grad_logits++ = float(pop(t)[i] * x_[i]);
    }
  }

  // The gradient of the bottom vector through all steps.
  const double* bottom_gradient() {
    collect_dF(0);
    return dF(0, 0);
  }

  // The functions of a chart that `Mixer` calls.
  double* P(long t) const { return P_ + at_.column[t]; }
  long p_row(long t) const { return at_.row(t); }
  double* push(long t) const { return transitions_ + (t - 1) * at_.transitions; }
  double* repl(long t) const { return push(t) + at_.matrix; }

 private:
  const ReadingLayout& at_;
  const Mixer mix_;
  const int Q, S, QS, n;
  const long W;
  double *values_, *F_, *transitions_, *P_, *D_;                         // of the sequence
  double *later_, *F_columns_, *dF_, *dD_, *dpush_, *drepl_, *dpushed_;  // of its backward pass
  double *this_D_, *dP_, *x_, *x2_, *c_, *y_, *z_, *dvalue_;             // of the current column
  std::vector<Term<double*>> terms_;

  double* value(int t) const { return values_ + t * W; }
  double* F(int y, int t) const { return F_ + y * at_.readings + long(t) * Q * W; }
  double* F_row(int t, int s) const { return F(s % S, t) + s / S * W; }  // of s = (r, y)
  double* dF(int y, int t) const { return dF_ + y * at_.readings + long(t) * Q * W; }
  double* push_from(int t) const { return push(t) + 2 * at_.matrix; }
  double* repl_from(int t) const { return push(t) + 3 * at_.matrix; }
  double* pop(int t) const { return push(t) + 4 * at_.matrix; }
  double* D(int t) const { return D_ ? D_ + at_.column[t] : this_D_; }
  double* dD(int t) const { return dD_ + at_.column[t]; }
  double* later(int k) const { return later_ + at_.later[k]; }
  double alpha(int t, int s) const { return F_row(t, s)[at_.m]; }
  double mass(int t) const {
    double total = 0;
    for (int s = 0; s < QS; ++s) total += alpha(t, s);
    return total;
  }
  double pushed(int t, int r, int y) const {  // the weight with which step t pushes its value
    double sum = 0;
    for (int s = 0; s < QS; ++s) sum += alpha(t - 1, s) * push_from(t)[s * at_.to + r * S + y];
    return sum;
  }
  void add_multiple(double* out, const double* x, double factor) const {
    for (long c = 0; c < W; ++c) out[c] += factor * x[c];
  }

  void set_value(int t, const float* from) {
    for (long c = 0; c < W; ++c) value(t)[c] = c < at_.m ? from[c] : c == at_.m;
  }
  bool set_transitions(int t, const float* logits) {
    std::vector<double> weights(2 * QS * QS);
    double *push_in = weights.data(), *repl_in = push_in + QS * QS;
    if (load_joined_step<Linear>(Q, QS, logits, push_in, repl_in, pop(t))) return false;
    std::fill_n(push(t), 4 * at_.matrix, 0.0);
    for (int from = 0; from < QS; ++from)
      for (int to = 0; to < QS; ++to) {
        push(t)[to * at_.to + from] = push_from(t)[from * at_.to + to] = push_in[from * QS + to];
        repl(t)[to * at_.to + from] = repl_from(t)[from * at_.to + to] = repl_in[from * QS + to];
      }
    return true;
  }

  // The contributions of all later columns to dF[t]; that of its own reading is added afterwards.
  void collect_dF(int t) {
    for (int z = 0; z < S; ++z) {
      if (t == n) {
        std::fill_n(dF(z, t), Q * W, 0.0);
        continue;
      }
      int count = 0;
      for (int y = 0; y < S; ++y)
        terms_[count++] = {repl_from(t + 1) + (z * at_.to + y), S * at_.to, S, dF(y, t + 1), W, Q};
      if (t + 2 <= n)
        terms_[count++] = {later(t) + z * Q * at_.later_row(t) + ((t + 2) * Q - at_.later_begin(t)),
                           at_.later_row(t),
                           1,
                           dF(z, t + 2),
                           W,
                           (n - t - 1) * Q};
      Linear::gemm(terms_.data(), count, Q, int(W), dF(z, t), W, false);
      for (int s = 0; s < Q; ++s) {
        const double *weights = push_from(t + 1) + (s * S + z) * at_.to, *g = dpushed_ + (t + 1) * at_.to;
        for (int i = 0; i < QS; ++i) dF(z, t)[s * W + at_.m] += weights[i] * g[i];
      }
    }
  }

  // As in readings.cpp: dF = G / mass, and the mass has the gradient -(sum of G * readings) / mass.
  void add_reading_gradient(int t, const float* grad) {
    const double factor = 1 / mass(t);
    double mean = 0;
    for (int i = 0; i < QS * at_.m; ++i) mean += F_row(t, i / at_.m)[i % at_.m] * factor * grad[i];
    for (int s = 0; s < QS; ++s) {
      double* out = dF(s % S, t) + s / S * W;
      for (int c = 0; c < at_.m; ++c) out[c] += grad[s * at_.m + c] * factor;
      out[at_.m] -= mean * factor;
    }
  }

  // dP[k -> t] for k = 0 .. t-2: from F, and from later columns of D.
  void collect_dP(int t) {
    if (t == 1) return;
    for (int w = 0; w < S; ++w) {
      int count = 0;
      terms_[count++] = {dF(w, t), W, 1, F_columns_ + w * W * at_.end, at_.end, at_.m + 1};
      for (int later_t = t + 1; later_t <= n; ++later_t) {
        const long row = at_.row(later_t), rows = w * Q * row;
        terms_[count++] = {D(later_t) + (rows + t * Q), 1, row, dD(later_t) + rows, row, Q};
      }
      Linear::gemm(terms_.data(), count, Q, (t - 1) * Q, dP_ + w * Q * at_.end, at_.end, false);
    }
  }

  // dD[k -> t] for k = 1 .. t-1, and its contributions to the gradients of earlier steps.
  void sweep_dD(int t) {
    const long row = at_.row(t);
    std::fill_n(dD(t), QS * row, 0.0);
    for (int k = 1; k <= t - 1; ++k) {
      mix_.read(dP_, at_.end, k - 1, x_);
      mix_.read(dD(t), row, k - 1, x2_);
      mix_.read_rows(dD(t), row, k, y_);
      mix_.pull(push_from(k), x_, y_, true);
      mix_.pull(repl_from(k), x2_, y_, true);
      for (int w = 0; w < S; ++w) {
        double* rows = dD(t) + w * Q * row;
        for (int p = 0; p < Q; ++p)
          for (int r = 0; r < Q; ++r) rows[r * row + k * Q + p] = c_[p * Q + r] = y_[r * at_.to + p * S + w];
        const long first = at_.later_begin(k), length = row - first;
        if (length > 0)
          add_products(Q, rows + first, rows + first, row, later(k) + w * Q * at_.later_row(k), at_.later_row(k), c_,
                       length);
      }
      mix_.read_rows(D(t), row, k, z_);
      double *dpush = dpush_ + (k - 1) * at_.matrix, *drepl = drepl_ + (k - 1) * at_.matrix;
      mix_.outer(x_, z_, dpush, dpush);
      mix_.outer(x2_, z_, drepl, drepl);
    }
  }
};

}  // namespace
}  // namespace STACKATTN_KERNEL
