// The same chart one column at a time: what a stack needs that is extended step by step.
//
// A state is one array of doubles for each sequence, and extending it appends to the array. Column t = 1, 2, ... holds
//   P   [S w][Q r][(t-1) x Q]  P[j -> t][p,w -> r] for the time points j = 0..t-2, states p inside
//   F   [S y][Q r][t+1]        F[i -> t][r,y] for i = 0..t, shifted by one: 0 is the bottom element
//   push, replace              [Q S][Q S] the weights of step t, scaled
// The gradient of a state has the same form, so that it can travel from step to step as a gradient travels.
#pragma once
#include "arithmetic.h"
#include "chart.h"

namespace STACKATTN_KERNEL {
namespace {

struct Layout {
  int Q, S, QS;
  Layout(int Q, int S) : Q(Q), S(S), QS(Q * S) {}
  long offset(long t) const { return QS * (Q * (t - 1) * (t - 2) / 2 + (t - 1) * (t + 2) / 2 + 2L * QS * (t - 1)); }
  // Inside column t:
  long p(long t, int w, int r) const { return (w * Q + r) * (t - 1) * Q; }
  long f(long t, int y, int r) const { return QS * (t - 1) * Q + (y * Q + r) * (t + 1); }
  long push(long t) const { return QS * ((t - 1) * Q + t + 1); }
  long repl(long t) const { return push(t) + long(QS) * QS; }
};

// y[r][i] += sum over p of c[p][r] * x[p][i]: the loop in which a column's work is done.
template <int R, int P>
void add_products(double* y, long ldy, const double* x, long ldx, const double* c, long n) {
  long i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Vec in[P];
    for (int p = 0; p < P; ++p) in[p] = *(const VecU*)(x + p * ldx + i);
    for (int r = 0; r < R; ++r) {
      Vec total = *(const VecU*)(y + r * ldy + i);
      for (int p = 0; p < P; ++p) total += splat(c[p * R + r]) * in[p];
      *(VecU*)(y + r * ldy + i) = total;
    }
  }
  for (; i < n; ++i)
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p) y[r * ldy + i] += c[p * R + r] * x[p * ldx + i];
}

void add_products(int Q, double* y, long ldy, const double* x, long ldx, const double* c, long n) {
  switch (Q) {
    case 1: return add_products<1, 1>(y, ldy, x, ldx, c, n);
    case 2: return add_products<2, 2>(y, ldy, x, ldx, c, n);
    case 3: return add_products<3, 3>(y, ldy, x, ldx, c, n);
    case 4: return add_products<4, 4>(y, ldy, x, ldx, c, n);
  }
  for (int r = 0; r < Q; ++r)
    for (int p = 0; p < Q; ++p) add_products<1, 1>(y + r * ldy, 0, x + p * ldx, 0, c + p * Q + r, n);
}

// d[p][r] += sum over i of x[p][i] * y[r][i]
template <int R, int P>
void add_dots(double* d, const double* x, long ldx, const double* y, long ldy, long n) {
  Vec total[P][R] = {};
  long i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int p = 0; p < P; ++p)
      for (int r = 0; r < R; ++r) total[p][r] += *(const VecU*)(x + p * ldx + i) * *(const VecU*)(y + r * ldy + i);
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) {
      double rest = 0;
      for (long k = i; k < n; ++k) rest += x[p * ldx + k] * y[r * ldy + k];
      d[p * R + r] += sum(total[p][r]) + rest;
    }
}

void add_dots(int Q, double* d, const double* x, long ldx, const double* y, long ldy, long n) {
  switch (Q) {
    case 1: return add_dots<1, 1>(d, x, ldx, y, ldy, n);
    case 2: return add_dots<2, 2>(d, x, ldx, y, ldy, n);
    case 3: return add_dots<3, 3>(d, x, ldx, y, ldy, n);
    case 4: return add_dots<4, 4>(d, x, ldx, y, ldy, n);
  }
  for (int p = 0; p < Q; ++p)
    for (int r = 0; r < Q; ++r) add_dots<1, 1>(d + p * Q + r, x + p * ldx, 0, y + r * ldy, 0, n);
}

// One sequence's state, extended by one step at a time.
class Columns {
 public:
  Columns(int Q, int S, bool superposition, double* state, long most_steps)
      : at_(Q, S), Q(Q), S(S), QS(Q * S), superposition_(superposition), state_(state), ld_((most_steps + 1) * Q),
        start_(QS, 0.0), ones_(QS, 1.0), D_(QS * ld_), pop_(QS * Q) {
    if (!superposition) start_[0] = 1;
  }

  double* push(long t) { return state_ + at_.offset(t) + at_.push(t); }
  double* repl(long t) { return state_ + at_.offset(t) + at_.repl(t); }
  double* pop() { return pop_.data(); }  // of the step that is being taken

  // F[. -> t][r, y] over i = 0..t
  const double* weights(long t, int y, int r) const {
    return t == 0 ? &start_[y * Q + r] : state_ + at_.offset(t) + at_.f(t, y, r);
  }
  double mass(long t) const {
    double total = 0;
    for (int y = 0; y < S; ++y)
      for (int r = 0; r < Q; ++r)
        for (long i = 0; i <= t; ++i) total += weights(t, y, r)[i];
    return total;
  }

  // Column t from the columns before it and the weights of step t (push(t), repl(t), pop()).
  void extend(long t) {
    solve(t);
    double* column = state_ + at_.offset(t);
    for (int y = 0; y < S; ++y)
      for (int r = 0; r < Q; ++r) {
        double* P = column + at_.p(t, y, r);
        for (long k = 0; k <= t - 2; ++k)
          for (int u = 0; u < Q; ++u) {
            const double* row = push(k + 1) + (long(u) * S + y) * QS;
            double total = 0;
            for (int p = 0; p < Q; ++p)
              for (int w = 0; w < S; ++w) total += row[p * S + w] * D(w, r, k + 1, p);
            P[k * Q + u] = total;
          }
      }
    std::vector<double> alpha = forward_weights(t - 1), c(Q * Q);
    const double *push_t = push(t), *repl_t = repl(t);
    for (int y = 0; y < S; ++y) {
      double* F = column + at_.f(t, y, 0);
      std::fill(F, F + Q * (t + 1), 0.0);
      for (int z = 0; z < S; ++z) {
        for (int s = 0; s < Q; ++s)
          for (int r = 0; r < Q; ++r) c[s * Q + r] = repl_t[(long(s) * S + z) * QS + r * S + y];
        add_products(Q, F, t + 1, weights(t - 1, z, 0), t, c.data(), t);
      }
      for (long k = 0; k <= t - 2; ++k) {
        for (int u = 0; u < Q; ++u)
          for (int r = 0; r < Q; ++r) c[u * Q + r] = column[at_.p(t, y, r) + k * Q + u];
        add_products(Q, F, t + 1, weights(k, y, 0), k + 1, c.data(), k + 1);
      }
      for (int r = 0; r < Q; ++r) {
        double pushed = 0;
        for (int s = 0; s < QS; ++s) pushed += alpha[s] * push_t[long(s) * QS + r * S + y];
        F[r * (t + 1) + t] = pushed;
      }
    }
  }

  // The same walked back. `gradient(t)` gives column t of the gradient: the one of t itself is complete, except for dF from the
  // attention weights of step t, which the caller has added; what the step gives to earlier columns is added to them.
  template <class Gradient>
  void retract(long t, Gradient gradient, double* dpush, double* drepl, double* dpop) {
    solve(t);
    const double* column = state_ + at_.offset(t);
    const double* dcolumn = gradient(t);
    std::copy_n(dcolumn + at_.push(t), long(QS) * QS, dpush);
    std::copy_n(dcolumn + at_.repl(t), long(QS) * QS, drepl);
    const double *push_t = push(t), *repl_t = repl(t);
    std::vector<double> alpha = forward_weights(t - 1), dalpha(QS, 0.0), c(Q * Q), d(Q * Q);
    for (int y = 0; y < S; ++y)
      for (int r = 0; r < Q; ++r) {
        const double g = dcolumn[at_.f(t, y, r) + t];
        for (int s = 0; s < QS; ++s) {
          dpush[long(s) * QS + r * S + y] += alpha[s] * g;
          dalpha[s] += push_t[long(s) * QS + r * S + y] * g;
        }
      }
    std::vector<double> dP(QS * (t - 1) * Q);  // [y][r][(k, u)]
    for (int y = 0; y < S; ++y) {
      const double* dF = dcolumn + at_.f(t, y, 0);
      for (int z = 0; z < S; ++z) {
        std::fill(d.begin(), d.end(), 0.0);
        add_dots(Q, d.data(), weights(t - 1, z, 0), t, dF, t + 1, t);
        for (int s = 0; s < Q; ++s)
          for (int r = 0; r < Q; ++r) {
            drepl[(long(s) * S + z) * QS + r * S + y] += d[s * Q + r];
            c[r * Q + s] = repl_t[(long(s) * S + z) * QS + r * S + y];
          }
        if (t > 1) add_products(Q, gradient(t - 1) + at_.f(t - 1, z, 0), t, dF, t + 1, c.data(), t);
      }
      for (long k = 0; k <= t - 2; ++k) {
        std::fill(d.begin(), d.end(), 0.0);
        add_dots(Q, d.data(), weights(k, y, 0), k + 1, dF, t + 1, k + 1);
        for (int u = 0; u < Q; ++u)
          for (int r = 0; r < Q; ++r) {
            dP[(y * Q + r) * (t - 1) * Q + k * Q + u] = dcolumn[at_.p(t, y, r) + k * Q + u] + d[u * Q + r];
            c[r * Q + u] = column[at_.p(t, y, r) + k * Q + u];
          }
        if (k > 0) add_products(Q, gradient(k) + at_.f(k, y, 0), k + 1, dF, t + 1, c.data(), k + 1);
      }
    }
    if (t > 1 && !superposition_)
      for (int y = 0; y < S; ++y)
        for (int r = 0; r < Q; ++r) {
          double* dF = gradient(t - 1) + at_.f(t - 1, y, r);
          for (long i = 0; i < t; ++i) dF[i] += dalpha[r * S + y];
        }

    std::vector<double> dD(QS * ld_, 0.0);  // [w][r][(j, p)]
    for (long k = 1; k <= t - 1; ++k) {
      double *dpush_k = gradient(k) + at_.push(k), *drepl_k = gradient(k) + at_.repl(k);
      const double *push_k = push(k), *repl_k = repl(k);
      for (int w = 0; w < S; ++w) {
        const double* P = state_ + at_.offset(k) + at_.p(k, w, 0);
        const long n = (k - 1) * Q;
        std::fill(d.begin(), d.end(), 0.0);
        add_dots(Q, d.data(), P, n, &dD[w * Q * ld_], ld_, n);
        for (int p = 0; p < Q; ++p)
          for (int r = 0; r < Q; ++r) {
            double total = d[p * Q + r];
            for (int y = 0; y < S; ++y)
              for (int u = 0; u < Q; ++u) {
                const long from = (long(u) * S + y) * QS + p * S + w;
                total += push_k[from] * dP[(y * Q + r) * (t - 1) * Q + (k - 1) * Q + u];
                if (k > 1) total += repl_k[from] * dD[(y * Q + r) * ld_ + (k - 1) * Q + u];
              }
            dD[(w * Q + r) * ld_ + k * Q + p] = total;
            c[r * Q + p] = D(w, r, k, p);
          }
        add_products(Q, gradient(k) + at_.p(k, w, 0), n, &dD[w * Q * ld_], ld_, c.data(), n);
      }
      for (int y = 0; y < S; ++y)
        for (int u = 0; u < Q; ++u)
          for (int p = 0; p < Q; ++p)
            for (int w = 0; w < S; ++w) {
              double to_push = 0, to_repl = 0;
              for (int r = 0; r < Q; ++r) {
                to_push += dP[(y * Q + r) * (t - 1) * Q + (k - 1) * Q + u] * D(w, r, k, p);
                if (k > 1) to_repl += dD[(y * Q + r) * ld_ + (k - 1) * Q + u] * D(w, r, k, p);
              }
              dpush_k[(long(u) * S + y) * QS + p * S + w] += to_push;
              drepl_k[(long(u) * S + y) * QS + p * S + w] += to_repl;
            }
    }
    for (int p = 0; p < Q; ++p)
      for (int w = 0; w < S; ++w)
        for (int r = 0; r < Q; ++r) dpop[(long(p) * S + w) * Q + r] = t > 1 ? dD[(w * Q + r) * ld_ + (t - 1) * Q + p] : 0;
  }

 private:
  Layout at_;
  const int Q, S, QS;
  const bool superposition_;
  double* state_;
  const long ld_;
  std::vector<double> start_, ones_, D_, pop_;

  double& D(int w, int r, long j, int p) { return D_[(w * Q + r) * ld_ + j * Q + p]; }

  std::vector<double> forward_weights(long t) const {  // alpha[t] as (r, y)
    if (superposition_) return ones_;
    std::vector<double> alpha(QS);
    for (int r = 0; r < Q; ++r)
      for (int y = 0; y < S; ++y)
        for (long i = 0; i <= t; ++i) alpha[r * S + y] += weights(t, y, r)[i];
    return alpha;
  }

  // D[j -> t] for j = t-1 .. 1
  void solve(long t) {
    std::vector<double> c(Q * Q);
    for (int i = 0; i < QS; ++i) std::fill_n(&D_[i * ld_], t * Q, 0.0);
    for (long k = t - 1; k >= 1; --k) {
      for (int w = 0; w < S; ++w)
        for (int p = 0; p < Q; ++p) {
          if (k == t - 1) {
            for (int r = 0; r < Q; ++r) D(w, r, k, p) = pop_[(long(p) * S + w) * Q + r];
            continue;
          }
          const double* row = repl(k + 1) + (long(p) * S + w) * QS;
          for (int r = 0; r < Q; ++r) {
            double total = 0;
            for (int s = 0; s < Q; ++s)
              for (int z = 0; z < S; ++z) total += row[s * S + z] * D(z, r, k + 1, s);
            D(w, r, k, p) += total;
          }
        }
      for (int w = 0; w < S; ++w) {
        for (int p = 0; p < Q; ++p)
          for (int r = 0; r < Q; ++r) c[p * Q + r] = D(w, r, k, p);
        const long n = (k - 1) * Q;
        add_products(Q, &D_[w * Q * ld_], ld_, state_ + at_.offset(k) + at_.p(k, w, 0), n, c.data(), n);
      }
    }
  }
};

}  // namespace
}  // namespace STACKATTN_KERNEL
