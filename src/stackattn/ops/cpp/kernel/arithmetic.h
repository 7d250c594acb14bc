// The two number systems of the charts, with the operation that takes most of the time: C (+)= sum of A x B.
//
// Linear    float64: fast, and exact enough while no relevant weight falls below 1e-308.
// Extended  mantissa and exponent in separate doubles: practically unlimited range, but 10 times slower in the forward
//           pass and 25 times slower with the backward pass.
//
// Matrices are row-major, with rows that start on a vector boundary; A may have any strides.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define STACKATTN_LANES 8
#elif defined(__AVX2__)
#define STACKATTN_LANES 4
#else
#define STACKATTN_LANES 2
#endif

namespace STACKATTN_KERNEL {
namespace {

constexpr int kLanes = STACKATTN_LANES;
typedef double Vec __attribute__((vector_size(8 * STACKATTN_LANES), may_alias));
typedef double VecU __attribute__((vector_size(8 * STACKATTN_LANES), aligned(8), may_alias));
typedef int64_t IVec __attribute__((vector_size(8 * STACKATTN_LANES), may_alias));

inline Vec splat(double x) { return x - Vec{}; }
inline Vec permute(Vec a, Vec b, IVec from) {  // `from` counts the lanes of a, then those of b
#if defined(__GNUC__) && !defined(__clang__)
  return __builtin_shuffle(a, b, from);
#else
  Vec out;
  for (int i = 0; i < kLanes; ++i) out[i] = from[i] < kLanes ? a[from[i]] : b[from[i] - kLanes];
  return out;
#endif
}
inline IVec lanes() {
  IVec out;
  for (int i = 0; i < kLanes; ++i) out[i] = i;
  return out;
}
inline double sum(Vec v) {
  for (int half = kLanes / 2; half > 0; half /= 2) v += permute(v, v, lanes() + half);
  return v[0];
}

// kLanes numbers of an array, as doubles. If only `n` are left, the remaining lanes are `missing`.
inline Vec read(const double* p) { return *(const VecU*)p; }
inline Vec read(const float* p) {
  typedef float Floats __attribute__((vector_size(4 * STACKATTN_LANES), aligned(4), may_alias));
  return __builtin_convertvector(*(const Floats*)p, Vec);
}
template <class IO>
Vec read(const IO* p, int n, double missing) {
  if (n >= kLanes) return read(p);
  Vec out = splat(missing);
  for (int i = 0; i < n; ++i) out[i] = p[i];
  return out;
}

// One term of a sum of products: A is (m x k) with strides rs and cs, B is (k x n) with rows ldb apart; k > 0.
template <class Ptr>
struct Term {
  Ptr a;
  long rs, cs;
  Ptr b;
  long ldb;
  int k;
  const double *next_a = nullptr, *next_b = nullptr;  // square tiles of size k to prefetch
};

struct Linear {
  using Ptr = double*;
  using Value = double;
  static constexpr int kPlanes = 1;  // doubles that store one number
  static const double* address(Ptr p) { return p; }
  static Ptr at(double* base, long) { return base; }
  static double get(Ptr p, long i) { return p[i]; }
  static void set(Ptr p, long i, double v) { p[i] = v; }
  static void clear(Ptr p, long count) { std::memset(p, 0, count * sizeof(double)); }
  static double zero() { return 0; }
  static double one() { return 1; }
  static bool is_zero(double v) { return v == 0; }
  static double add(double a, double b) { return a + b; }
  static double sub(double a, double b) { return a - b; }
  static double mul(double a, double b) { return a * b; }
  static double div(double a, double b) { return a / b; }
  static double to_double(double v) { return v; }
  static double from_double(double v) { return v; }
  // e^x for x <= 0, with an error of about one unit in the last place; 0 for x <= -708, near underflow.
  static Vec exp(Vec x) {
    const Vec floor = splat(-708.0);
    const IVec seen = x > floor;
    x = seen ? x : floor;
    const Vec round = splat(6755399441055744.0);  // 1.5 * 2^52: adding it leaves an integer in the last bits
    const Vec shifted = x * splat(1.4426950408889634) + round;
    const Vec power = shifted - round;
    Vec r = x - power * splat(0.693147180369123816490);  // ln 2 in two parts, so that no digits are lost
    r -= power * splat(1.90821492927058770002e-10);
    Vec p = splat(1.0 / 6227020800.0);
    constexpr double factorial[] = {479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1};
    for (const double f : factorial) p = p * r + splat(1 / f);
    const Vec two = (Vec)(((IVec)shifted << 52) + (IVec{} + (int64_t(1023) << 52)));
    return seen ? p * two : Vec{};
  }

  // out[i] = e^(in[i] - top), for in[i] <= top
  template <class IO>
  static void exp(const IO* in, double top, Ptr out, int n) {
    for (int i = 0; i < n; i += kLanes) {
      const Vec e = exp(read(in + i, n - i, top) - splat(top));
      if (n - i >= kLanes)
        *(VecU*)(out + i) = e;
      else
        for (int l = 0; l < n - i; ++l) out[i + l] = e[l];
    }
  }

  // out (cols x rows) = in (rows x cols) transposed; both sizes are multiples of kLanes.
  static void transpose(Ptr in, int rows, int cols, Ptr out) {
    for (int r = 0; r < rows; r += kLanes)
      for (int c = 0; c < cols; c += kLanes) {
        Vec v[kLanes];
        for (int i = 0; i < kLanes; ++i) v[i] = *(const Vec*)(in + long(r + i) * cols + c);
        for (int step = 1; step < kLanes; step *= 2) {
          const IVec odd = (lanes() & step) != 0;
          const IVec first = odd ? lanes() - step + kLanes : lanes(), second = odd ? lanes() + kLanes : lanes() + step;
          for (int i = 0; i < kLanes; ++i)
            if (!(i & step)) {
              const Vec a = v[i], b = v[i + step];
              v[i] = permute(a, b, first);
              v[i + step] = permute(a, b, second);
            }
        }
        for (int i = 0; i < kLanes; ++i) *(Vec*)(out + long(c + i) * rows + r) = v[i];
      }
  }

  template <int M, int N>
  static void block(const Term<Ptr>* terms, int count, long m0, long n0, Ptr c, long ldc, bool add) {
    Vec acc[M][N];
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < N; ++v) acc[m][v] = Vec{};
    for (const Term<Ptr>* t = terms; t != terms + count; ++t) {
      const long rs = t->rs, cs = t->cs, ldb = t->ldb;
      const double* a = t->a + m0 * rs;
      const double* b = t->b + n0;
      int k = t->k;
      // The first sweep over the columns prefetches A's next tile, the others B's, one cache line at a time.
      const double* next = M < 8 ? nullptr : n0 == 0 ? t->next_a : t->next_b;
      if (next) next += m0 * k;
      do {
        if (M == 8 && next) {
          __builtin_prefetch(next);
          next += 8;
        }
        Vec row[N];
        for (int v = 0; v < N; ++v) row[v] = *(const Vec*)(b + v * kLanes);
        for (int m = 0; m < M; ++m) {
          const Vec x = splat(a[m * rs]);
          for (int v = 0; v < N; ++v) acc[m][v] += x * row[v];
        }
        a += cs;
        b += ldb;
      } while (--k > 0);
    }
    c += m0 * ldc + n0;
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < N; ++v) {
        Vec* out = (Vec*)(c + m * ldc + v * kLanes);
        *out = add ? *out + acc[m][v] : acc[m][v];
      }
  }

  // Rows of a block of a large matrix. With 16 registers, 4 rows of several vectors need fewer loads than 8 rows
  // of one vector.
  static constexpr int kTall = kLanes == 8 ? 8 : 4;

  // The number of vectors per row for which all accumulators and one row of B, or one column of A, fit into the
  // registers. Without AVX, a product overwrites one of its factors and needs one more register.
  static constexpr int wide(int m) {
    if (kLanes == 8) return m == 8 ? 3 : m == 5 ? 4 : 6;
    const int fewer = kLanes == 2;
    return m == 8 ? 1 : m == 5 ? 2 : m == 4 ? 3 - fewer : m == 3 ? 4 - fewer : 6;
  }

  template <int M, int N>
  static void columns(const Term<Ptr>* terms, int count, long m0, long vectors, Ptr c, long ldc, bool add, long n0) {
    for (; vectors >= N; vectors -= N, n0 += N * kLanes) block<M, N>(terms, count, m0, n0, c, ldc, add);
    if constexpr (N > 1)
      if (vectors > 0) columns<M, N - 1>(terms, count, m0, vectors, c, ldc, add, n0);
  }

  template <int M>
  static void rows(const Term<Ptr>* terms, int count, long m0, long vectors, Ptr c, long ldc, bool add) {
    columns<M, wide(M)>(terms, count, m0, vectors, c, ldc, add, 0);
  }

  // C (m x n) = or += the sum of all terms; n is rounded up to whole vectors.
  static void gemm(const Term<Ptr>* terms, int count, int m, int n, Ptr c, long ldc, bool add) {
    const long vectors = (n + kLanes - 1) / kLanes;
    long m0 = 0;
    while (m > 0) {
      const int step = m >= 8 ? kTall : m > 5 ? 4 : m;
      switch (step) {
        case 8: rows<8>(terms, count, m0, vectors, c, ldc, add); break;
        case 5: rows<5>(terms, count, m0, vectors, c, ldc, add); break;
        case 4: rows<4>(terms, count, m0, vectors, c, ldc, add); break;
        case 3: rows<3>(terms, count, m0, vectors, c, ldc, add); break;
        case 2: rows<2>(terms, count, m0, vectors, c, ldc, add); break;
        default: rows<1>(terms, count, m0, vectors, c, ldc, add); break;
      }
      m -= step;
      m0 += step;
    }
  }

  // out[r * rs + c * cs] += the dot product of row r of A and row c of B, summed over the terms. Rows have k entries
  // and start on a vector boundary, and the rows of A, or those of B, are zero from entry k to the next boundary.
  static void dots(const Term<Ptr>* terms, int count, int rows, int cols, Ptr out, long rs, long cs) {
    for (int r = 0; r < rows; r += 3)
      for (int c = 0; c < cols; c += 3) {
        const Ptr to = out + r * rs + c * cs;
        switch (std::min(rows - r, 3) * 4 + std::min(cols - c, 3)) {
          case 15: some_dots<3, 3>(terms, count, r, c, to, rs, cs); break;
          case 14: some_dots<3, 2>(terms, count, r, c, to, rs, cs); break;
          case 13: some_dots<3, 1>(terms, count, r, c, to, rs, cs); break;
          case 11: some_dots<2, 3>(terms, count, r, c, to, rs, cs); break;
          case 10: some_dots<2, 2>(terms, count, r, c, to, rs, cs); break;
          case 9: some_dots<2, 1>(terms, count, r, c, to, rs, cs); break;
          case 7: some_dots<1, 3>(terms, count, r, c, to, rs, cs); break;
          case 6: some_dots<1, 2>(terms, count, r, c, to, rs, cs); break;
          default: some_dots<1, 1>(terms, count, r, c, to, rs, cs); break;
        }
      }
  }
  template <int R, int C>
  static void some_dots(const Term<Ptr>* terms, int count, int r0, int c0, Ptr out, long rs, long cs) {
    Vec acc[R][C] = {};
    for (const Term<Ptr>* t = terms; t != terms + count; ++t) {
      const double *a = t->a + r0 * t->rs, *b = t->b + c0 * t->ldb;
      for (int i = 0; i < t->k; i += kLanes)
        for (int r = 0; r < R; ++r)
          for (int c = 0; c < C; ++c) acc[r][c] += *(const Vec*)(a + r * t->rs + i) * *(const Vec*)(b + c * t->ldb + i);
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) out[r * rs + c * cs] += sum(acc[r][c]);
  }

  // The sum of n numbers that start on a vector boundary and are padded with zeros to the next one.
  static double total(Ptr p, int n) {
    Vec acc = Vec{};
    for (int i = 0; i < n; i += kLanes) acc += *(const Vec*)(p + i);
    return sum(acc);
  }
};

// value = mantissa * 2^exponent, with 1 <= |mantissa| < 2, or mantissa 0. Exponents are integers stored as doubles,
// because every vector unit can add and compare doubles.
struct Extended {
  struct Value {
    double m, e;
  };
  struct Ptr {
    double *m, *e;
    Ptr operator+(long i) const { return {m + i, e + i}; }
    Ptr& operator+=(long i) {
      m += i;
      e += i;
      return *this;
    }
  };
  static constexpr int kPlanes = 2;
  static const double* address(Ptr) { return nullptr; }
  static constexpr double kLowest = -1e10;        // logits this far below the largest of their step have weight zero
  static constexpr double kZeroExponent = -1e15;  // below every sum of exponents

  static Ptr at(double* base, long count) { return {base, base + count}; }
  static Value get(Ptr p, long i) { return {p.m[i], p.e[i]}; }
  static void set(Ptr p, long i, Value v) {
    p.m[i] = v.m;
    p.e[i] = v.e;
  }
  static void clear(Ptr p, long count) {
    for (long i = 0; i < count; ++i) p.m[i] = 0, p.e[i] = kZeroExponent;
  }
  static Value zero() { return {0, kZeroExponent}; }
  static Value one() { return {1, 0}; }
  static bool is_zero(Value v) { return v.m == 0; }
  static Value normal(double m, double e) {
    if (m == 0) return zero();
    int shift;
    const double f = std::frexp(m, &shift);
    return {2 * f, e + shift - 1};
  }
  static Value mul(Value a, Value b) { return normal(a.m * b.m, a.e + b.e); }
  static Value div(Value a, Value b) { return normal(a.m / b.m, a.e - b.e); }
  static Value add(Value a, Value b) {
    const double top = a.e > b.e ? a.e : b.e;
    return normal(scaled(a, top) + scaled(b, top), top);
  }
  static Value sub(Value a, Value b) { return add(a, {-b.m, b.e}); }
  static double scaled(Value v, double top) { return v.e - top < -1000 ? 0 : std::ldexp(v.m, int(v.e - top)); }
  static double to_double(Value v) {
    return v.m == 0 || v.e < -1070 ? 0 : v.e > 1023 ? v.m * INFINITY : std::ldexp(v.m, int(v.e));
  }
  static Value from_double(double v) { return normal(v, 0); }
  static Value exp(double x) {
    if (x < kLowest) return zero();
    const double e = std::floor(x * 1.4426950408889634);
    // ln 2 in two parts, so that e * ln 2 loses no digits
    return normal(std::exp((x - e * 0.693147180369123816490) - e * 1.90821492927058770002e-10), e);
  }

  static Vec max(Vec a, Vec b) { return a > b ? a : b; }
  static Vec power_of_two(Vec d) {  // d is an integer, at most 0
    const Vec low = splat(-1022.0);
    d = max(d, low);
    return (Vec)((IVec)(d + splat(4503599627370496.0 + 1023.0)) << 52);  // 2^52 + k holds k in its last bits
  }
  static void store_normal(Ptr c, Vec m, Vec e) {
    const IVec bits = (IVec)m;
    const IVec biased = (bits >> 52) & 0x7ff;
    const IVec nonzero = (IVec)(biased > 0);  // denormals become zero
    const IVec unit = (bits & ~(IVec{} + (int64_t(0x7ff) << 52))) | (IVec{} + (int64_t(1023) << 52));
    const Vec exponent = (Vec)(biased | (IVec{} + (int64_t(1075) << 52))) - splat(4503599627370496.0 + 1023.0);
    *(Vec*)c.m = (Vec)(unit & nonzero);
    *(Vec*)c.e = nonzero ? e + exponent : splat(kZeroExponent);
  }

  static void gemm(const Term<Ptr>* terms, int count, int m, int n, Ptr c, long ldc, bool add) {
    for (int r = 0; r < m; ++r)
      for (long n0 = 0; n0 < n; n0 += kLanes) {
        const Ptr out = c + (r * ldc + n0);
        Vec top = splat(2 * kZeroExponent);
        if (add) top = max(top, *(Vec*)out.e);
        for (int i = 0; i < count; ++i) {
          const Term<Ptr>& t = terms[i];
          const double *ae = t.a.e + r * t.rs, *be = t.b.e + n0;
          for (int k = 0; k < t.k; ++k, ae += t.cs, be += t.ldb) top = max(top, *(const Vec*)be + splat(*ae));
        }
        Vec total = Vec{};
        if (add) total = *(Vec*)out.m * power_of_two(*(Vec*)out.e - top);
        for (int i = 0; i < count; ++i) {
          const Term<Ptr>& t = terms[i];
          const double *ae = t.a.e + r * t.rs, *am = t.a.m + r * t.rs, *be = t.b.e + n0, *bm = t.b.m + n0;
          for (int k = 0; k < t.k; ++k, ae += t.cs, am += t.cs, be += t.ldb, bm += t.ldb)
            total += *(const Vec*)bm * splat(*am) * power_of_two(*(const Vec*)be + splat(*ae) - top);
        }
        store_normal(out, total, top);
      }
  }

  template <class IO>
  static void exp(const IO* in, double top, Ptr out, int n) {
    for (int i = 0; i < n; ++i) set(out, i, exp(double(in[i]) - top));
  }

  static void transpose(Ptr in, int rows, int cols, Ptr out) {
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < cols; ++c) set(out, long(c) * rows + r, get(in, long(r) * cols + c));
  }

  static void dots(const Term<Ptr>* terms, int count, int rows, int cols, Ptr out, long rs, long cs) {
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < cols; ++c) {
        Value sum = get(out, r * rs + c * cs);
        for (const Term<Ptr>* t = terms; t != terms + count; ++t)
          for (int i = 0; i < t->k; ++i) sum = add(sum, mul(get(t->a, r * t->rs + i), get(t->b, c * t->ldb + i)));
        set(out, r * rs + c * cs, sum);
      }
  }

  static Value total(Ptr p, int n) {
    Value sum = zero();
    for (int i = 0; i < n; ++i) sum = add(sum, get(p, i));
    return sum;
  }
};

}  // namespace
}  // namespace STACKATTN_KERNEL
