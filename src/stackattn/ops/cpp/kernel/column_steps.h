// Shared by the stacks that are extended step by step: one column of D and P, computed from the columns before it.
#pragma once
#include <algorithm>
#include <vector>

#include "arithmetic.h"
#include "workspace.h"

namespace STACKATTN_KERNEL {
namespace {

inline long padded(long n) { return (n + 7) / 8 * 8; }

// out[r][i] = in[r][i] + sum over p of c[p][r] * x[p][i]. Most of the time is spent here. All lengths are padded.
template <int R, int P>
void add_products(double* out, const double* in, long ld, const double* x, long ldx, const double* c, long n) {
  Vec factor[P][R];  // in registers: the compiler cannot know that `out` does not overlap `c`
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) factor[p][r] = splat(c[p * R + r]);
  for (long i = 0; i < n; i += kLanes) {
    Vec total[R];
    for (int r = 0; r < R; ++r) total[r] = *(const Vec*)(in + r * ld + i);
    for (int p = 0; p < P; ++p) {
      const Vec row = *(const Vec*)(x + p * ldx + i);
      for (int r = 0; r < R; ++r) total[r] += factor[p][r] * row;
    }
    for (int r = 0; r < R; ++r) *(Vec*)(out + r * ld + i) = total[r];
  }
}

void add_products(int Q, double* out, const double* in, long ld, const double* x, long ldx, const double* c, long n) {
  switch (Q) {
    case 1: return add_products<1, 1>(out, in, ld, x, ldx, c, n);
    case 2: return add_products<2, 2>(out, in, ld, x, ldx, c, n);
    case 3: return add_products<3, 3>(out, in, ld, x, ldx, c, n);
    case 4: return add_products<4, 4>(out, in, ld, x, ldx, c, n);
  }
  for (int r = 0; r < Q; ++r)
    for (int p = 0; p < Q; ++p)
      add_products<1, 1>(out + r * ld, (p ? out : in) + r * ld, 0, x + p * ldx, 0, c + p * Q + r, n);
}

// d[p][r] = sum over i of x[p][i] * y[r][i]
template <int R, int P>
void dot_products(double* d, const double* x, long ldx, const double* y, long ldy, long n) {
  Vec total[P][R] = {};
  for (long i = 0; i < n; i += kLanes)
    for (int p = 0; p < P; ++p)
      for (int r = 0; r < R; ++r) total[p][r] += *(const Vec*)(x + p * ldx + i) * *(const Vec*)(y + r * ldy + i);
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) d[p * R + r] = sum(total[p][r]);
}

void dot_products(int Q, double* d, const double* x, long ldx, const double* y, long ldy, long n) {
  switch (Q) {
    case 1: return dot_products<1, 1>(d, x, ldx, y, ldy, n);
    case 2: return dot_products<2, 2>(d, x, ldx, y, ldy, n);
    case 3: return dot_products<3, 3>(d, x, ldx, y, ldy, n);
    case 4: return dot_products<4, 4>(d, x, ldx, y, ldy, n);
  }
  for (int p = 0; p < Q; ++p)
    for (int r = 0; r < Q; ++r) dot_products<1, 1>(d + p * Q + r, x + p * ldx, 0, y + r * ldy, 0, n);
}

// Products with a step's transition weights M, transposed: M[to][from]. The small matrices are x[to][r] and y[r][from].
struct Mixer {
  int Q, QS;
  long from;

  // y[r][from] = or += sum over `to` of M[to][from] * x[to][r]
  void pull(const double* M, const double* x, double* y, bool add) const {
    for (int v = 0; v < from; v += kLanes) {
      int r = 0;
      for (; r + 3 <= Q; r += 3) pull_some<3>(M + v, x + r, y + r * from + v, add);
      for (; r < Q; ++r) pull_some<1>(M + v, x + r, y + r * from + v, add);
    }
  }
  template <int R>
  void pull_some(const double* M, const double* x, double* y, bool add) const {
    Vec total[R];
    for (int r = 0; r < R; ++r) total[r] = add ? *(const Vec*)(y + r * from) : Vec{};
    for (int c = 0; c < QS; ++c)
      for (int r = 0; r < R; ++r) total[r] += *(const Vec*)(M + c * from) * splat(x[c * Q + r]);
    for (int r = 0; r < R; ++r) *(Vec*)(y + r * from) = total[r];
  }
  // x[to][r] += sum over `from` of M[to][from] * y[r][from] + N[to][from] * z[r][from]
  void pull_transposed(const double* M, const double* y, const double* N, const double* z, double* x) const {
    for (int c = 0; c < QS; ++c)
      for (int r = 0; r < Q; ++r) {
        Vec total = Vec{};
        for (int v = 0; v < from; v += kLanes) {
          total += *(const Vec*)(M + c * from + v) * *(const Vec*)(y + r * from + v);
          total += *(const Vec*)(N + c * from + v) * *(const Vec*)(z + r * from + v);
        }
        x[c * Q + r] += sum(total);
      }
  }
  // M[to][from] = in[to][from] + sum over r of x[to][r] * y[r][from]
  void outer(const double* x, const double* y, const double* in, double* M) const {
    for (int c = 0; c < QS; ++c)
      for (int v = 0; v < from; v += kLanes) {
        Vec total = *(const Vec*)(in + c * from + v);
        for (int r = 0; r < Q; ++r) total += splat(x[c * Q + r]) * *(const Vec*)(y + r * from + v);
        *(Vec*)(M + c * from + v) = total;
      }
  }

  // Copies the entries of time point j of a table [w][r][(j,p)] to x[(p,w)][r], or to y[r][(p,w)], padded with zeros.
  void read(const double* table, long ld, long j, double* x) const {
    const int S = QS / Q;
    for (int p = 0; p < Q; ++p)
      for (int w = 0; w < S; ++w)
        for (int r = 0; r < Q; ++r) x[(p * S + w) * Q + r] = table[(w * Q + r) * ld + j * Q + p];
  }
  void read_rows(const double* table, long ld, long j, double* y) const {
    const int S = QS / Q;
    for (int r = 0; r < Q; ++r) {
      for (int p = 0; p < Q; ++p)
        for (int w = 0; w < S; ++w) y[r * from + p * S + w] = table[(w * Q + r) * ld + j * Q + p];
      for (int i = QS; i < from; ++i) y[r * from + i] = 0;
    }
  }

  // D[j -> t] for j = t-1 .. 1, from the pop weights of step t and the earlier columns. `chart` provides P(k), the
  // table of column k with rows p_row(k) apart, and push(k) and repl(k) as [to][from]. x (QS x Q), c (Q x Q) and y
  // (Q rows) are scratch memory.
  template <class Chart>
  void solve(Chart& chart, long t, const double* pop, double* D, long ld, double* x, double* c, double* y) const {
    const int S = QS / Q;
    for (int i = 0; i < QS; ++i) std::fill_n(D + i * ld, padded(t * Q), 0.0);
    for (long k = t - 1; k >= 1; --k) {
      if (k == t - 1) {
        std::copy_n(pop, QS * Q, x);
      } else {
        read_rows(D, ld, k, y);
        pull(chart.repl(k + 1), x, y, true);  // x is D[k+1 -> t]
        for (int r = 0; r < Q; ++r)
          for (int s = 0; s < QS; ++s) x[s * Q + r] = y[r * from + s];
      }
      for (int w = 0; w < S; ++w) {
        for (int p = 0; p < Q; ++p)
          for (int r = 0; r < Q; ++r) c[p * Q + r] = x[(p * S + w) * Q + r];
        double* rows = D + w * Q * ld;
        const long row = chart.p_row(k);
        add_products(Q, rows, rows, ld, chart.P(k) + w * Q * row, row, c, padded((k - 1) * Q));
        for (int p = 0; p < Q; ++p)
          for (int r = 0; r < Q; ++r) rows[r * ld + k * Q + p] = c[p * Q + r];
      }
    }
  }
  // P[k -> t] for k = 0 .. t-2
  template <class Chart>
  void fill_P(Chart& chart, long t, const double* D, long ld, double* x, double* y) const {
    const int S = QS / Q;
    double* P = chart.P(t);
    const long row = chart.p_row(t);
    for (long k = 0; k <= t - 2; ++k) {
      read(D, ld, k + 1, x);
      pull(chart.push(k + 1), x, y, false);
      for (int w = 0; w < S; ++w)
        for (int r = 0; r < Q; ++r)
          for (int u = 0; u < Q; ++u) P[(w * Q + r) * row + k * Q + u] = y[r * from + u * S + w];
    }
  }
};

}  // namespace
}  // namespace STACKATTN_KERNEL
