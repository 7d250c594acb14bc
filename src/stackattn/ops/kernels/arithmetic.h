// The two number systems of the charts and the one operation that does nearly all the work: C (+)= sum of A x B.
//
// Linear    plain double: fast, right while no weight that matters falls below 1e-308.
// Extended  mantissa and exponent in separate doubles: about ten times slower, right always.
//
// Matrices are row-major with rows that start on a vector boundary; A may have any strides.
#pragma once
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
inline double sum(Vec v) {
  double total = 0;
  for (int i = 0; i < kLanes; ++i) total += v[i];
  return total;
}

// One term of a sum of products: A is (m x k) with strides, B is (k x n) with rows ldb apart.
template <class Ptr>
struct Term {
  Ptr a;
  long rs, cs;
  Ptr b;
  long ldb;
  int k;
};

struct Linear {
  using Ptr = double*;
  using Value = double;
  static constexpr int kPlanes = 1;
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
  static double exp(double x) { return std::exp(x); }
  static double log(double v) { return std::log(v); }

  template <int M, int N>
  static void block(const Term<Ptr>* terms, int count, long m0, long n0, Ptr c, long ldc, bool add) {
    Vec acc[M][N];
    c += m0 * ldc + n0;
    if (add) {
      for (int m = 0; m < M; ++m)
        for (int v = 0; v < N; ++v) acc[m][v] = *(const Vec*)(c + m * ldc + v * kLanes);
    } else {
      for (int m = 0; m < M; ++m)
        for (int v = 0; v < N; ++v) acc[m][v] = Vec{};
    }
    for (int i = 0; i < count; ++i) {
      const Term<Ptr>& t = terms[i];
      const double* a = t.a + m0 * t.rs;
      const double* b = t.b + n0;
      const long rs = t.rs, cs = t.cs, ldb = t.ldb;
      for (int k = 0; k < t.k; ++k, a += cs, b += ldb) {
        Vec row[N];
        for (int v = 0; v < N; ++v) row[v] = *(const Vec*)(b + v * kLanes);
        for (int m = 0; m < M; ++m) {
          const Vec x = splat(a[m * rs]);
          for (int v = 0; v < N; ++v) acc[m][v] += x * row[v];
        }
      }
    }
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < N; ++v) *(Vec*)(c + m * ldc + v * kLanes) = acc[m][v];
  }

  // As many accumulators as the registers hold beside one row of B.
  static constexpr int wide(int m) {
    return kLanes == 8 ? (m == 8 ? 3 : m == 5 ? 4 : 6) : (m == 8 ? 1 : m == 5 ? 2 : m == 4 ? 3 : m == 3 ? 4 : 6);
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
      const int step = m >= 8 ? 8 : m > 5 ? 4 : m;
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

  // sum_i a[i] * b[i]; both start on a vector boundary and are zero, or harmless, up to the next one.
  static double dot(Ptr a, Ptr b, int n) {
    Vec acc = Vec{};
    for (int i = 0; i < n; i += kLanes) acc += *(const Vec*)(a + i) * *(const Vec*)(b + i);
    return sum(acc);
  }

  // out[r * ld_out + c] += dot of row r of a (rows x n) and row c of b (cols x n), for small rows and cols.
  static void dots(Ptr a, long lda, int rows, Ptr b, long ldb, int cols, int n, Ptr out, long rs, long cs) {
    for (int r = 0; r < rows; ++r) {
      int c = 0;
      for (; c + 3 <= cols; c += 3) {
        Vec x = Vec{}, y = Vec{}, z = Vec{};
        const double *b0 = b + c * ldb, *b1 = b0 + ldb, *b2 = b1 + ldb;
        for (int i = 0; i < n; i += kLanes) {
          const Vec v = *(const Vec*)(a + r * lda + i);
          x += v * *(const Vec*)(b0 + i);
          y += v * *(const Vec*)(b1 + i);
          z += v * *(const Vec*)(b2 + i);
        }
        out[r * rs + c * cs] += sum(x);
        out[r * rs + (c + 1) * cs] += sum(y);
        out[r * rs + (c + 2) * cs] += sum(z);
      }
      for (; c < cols; ++c) out[r * rs + c * cs] += dot(a + r * lda, b + c * ldb, n);
    }
  }
};

// value = mantissa * 2^exponent, 1 <= |mantissa| < 2 or zero. Exponents are whole numbers kept as doubles, because
// every vector unit adds and compares doubles.
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
  static constexpr double kZeroExponent = -1e15;  // so low that no sum of exponents comes near it

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
    if (x == -INFINITY) return zero();
    const double e = std::floor(x * 1.4426950408889634);
    // ln 2 in two parts, so that e * ln 2 loses no digits
    return normal(std::exp((x - e * 0.693147180369123816490) - e * 1.90821492927058770002e-10), e);
  }
  static double log(Value v) { return v.m == 0 ? -INFINITY : std::log(v.m) + v.e * 0.6931471805599453; }

  static Vec max(Vec a, Vec b) { return a > b ? a : b; }
  static Vec power_of_two(Vec d) {  // d whole, at most 0
    const Vec low = splat(-1022.0);
    d = max(d, low);
    return (Vec)((IVec)(d + splat(4503599627370496.0 + 1023.0)) << 52);  // 2^52 + k holds k in its last bits
  }
  static void store_normal(Ptr c, Vec m, Vec e) {
    const IVec bits = (IVec)m;
    const IVec biased = (bits >> 52) & 0x7ff;
    const IVec nonzero = (IVec)(biased > 0);  // a denormal is zero here
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

  static Value dot(Ptr a, Ptr b, int n) {
    Value total = zero();
    for (int i = 0; i < n; ++i) total = add(total, mul(get(a, i), get(b, i)));
    return total;
  }

  static void dots(Ptr a, long lda, int rows, Ptr b, long ldb, int cols, int n, Ptr out, long rs, long cs) {
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < cols; ++c)
        set(out, r * rs + c * cs, add(get(out, r * rs + c * cs), dot(a + r * lda, b + c * ldb, n)));
  }
};

}  // namespace
}  // namespace STACKATTN_KERNEL
