// float32 vectors, the exponential function and small matrix products, for softmax attention and the LSTMs.
//
// Eight lanes at most: heads are often only eight numbers wide, and wider vectors would be half empty.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "workspace.h"

#if defined(__AVX2__)
#define STACKATTN_FLOATS 8
#else
#define STACKATTN_FLOATS 4
#endif

namespace STACKATTN_KERNEL {
namespace {

constexpr int kFloats = STACKATTN_FLOATS;
typedef float FVec __attribute__((vector_size(4 * STACKATTN_FLOATS), aligned(4), may_alias));
typedef int32_t FMask __attribute__((vector_size(4 * STACKATTN_FLOATS), aligned(4), may_alias));
typedef uint32_t FBits __attribute__((vector_size(4 * STACKATTN_FLOATS), aligned(4), may_alias));

inline FVec fsplat(float x) { return x - FVec{}; }
inline FVec fload(const float* p) { return *(const FVec*)p; }
inline void fstore(float* p, FVec v) { *(FVec*)p = v; }
inline long whole(long n) { return (n + kFloats - 1) / kFloats * kFloats; }  // n rounded up to whole vectors
inline float* take_floats(Workspace& work, long count) { return reinterpret_cast<float*>(work.take((count + 1) / 2)); }

inline FMask lane_numbers() {
  FMask out;
  for (int i = 0; i < kFloats; ++i) out[i] = i;
  return out;
}
inline float fsum(FVec v) {
  float t[kFloats];
  fstore(t, v);
  for (int half = kFloats / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) t[i] += t[i + half];
  return t[0];
}
inline float flargest(FVec v) {
  float t[kFloats];
  fstore(t, v);
  for (int half = kFloats / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) t[i] = std::max(t[i], t[i + half]);
  return t[0];
}

// 2^x for x <= 127, relative error below 2e-7; 0 below -126. nan stays nan.
inline FVec exp2(FVec x) {
  const FVec low = fsplat(-126.f);
  const FMask lost = x < low;
  x = lost ? low : x;
  const FVec round = fsplat(12582912.f);  // 1.5 * 2^23: adding it leaves an integer in the last bits
  const FVec shifted = x + round;
  const FVec f = x - (shifted - round);
  FVec p = fsplat(1.535336188319500e-4f);
  p = p * f + fsplat(1.339887440266574e-3f);
  p = p * f + fsplat(9.618437357674640e-3f);
  p = p * f + fsplat(5.550332471162809e-2f);
  p = p * f + fsplat(2.402264791363012e-1f);
  p = p * f + fsplat(6.931472028550421e-1f);
  p = p * f + fsplat(1.0f);
  const FVec power = (FVec)(((FMask)p + ((FMask)shifted << 23)) & ~lost);
  return x == x ? power : x;  // the bits of a nan may end in ones, which would change its exponent
}

template <int M, int N>
inline void fblock(const float* a, long rs, long cs, const float* b, long ldb, int k, float* c, long ldc, bool add) {
  FVec acc[M][N];
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < N; ++v) acc[m][v] = add ? fload(c + m * ldc + v * kFloats) : FVec{};
  for (; k > 0; --k, a += cs, b += ldb) {
    FVec row[N];
    for (int v = 0; v < N; ++v) row[v] = fload(b + v * kFloats);
    for (int m = 0; m < M; ++m) {
      const FVec x = fsplat(a[m * rs]);
      for (int v = 0; v < N; ++v) acc[m][v] += x * row[v];
    }
  }
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < N; ++v) fstore(c + m * ldc + v * kFloats, acc[m][v]);
}

// N vectors of columns; as many rows at once as the registers hold.
template <int N>
inline void fcolumns(const float* a, long rs, long cs, const float* b, long ldb, int m, int k, float* c, long ldc,
                     bool add) {
  constexpr int kRows = N == 3 ? 4 : N == 2 ? 6 : 8;
  int i = 0;
  for (; i + kRows <= m; i += kRows) fblock<kRows, N>(a + i * rs, rs, cs, b, ldb, k, c + i * ldc, ldc, add);
  if constexpr (kRows > 4)
    if (i + 4 <= m) fblock<4, N>(a + i * rs, rs, cs, b, ldb, k, c + i * ldc, ldc, add), i += 4;
  if (i + 2 <= m) fblock<2, N>(a + i * rs, rs, cs, b, ldb, k, c + i * ldc, ldc, add), i += 2;
  if (i < m) fblock<1, N>(a + i * rs, rs, cs, b, ldb, k, c + i * ldc, ldc, add);
}

// C (m x n) = or += A (m x k, any strides) B (k x n, rows ldb apart); n is rounded up to whole vectors.
inline void fgemm(const float* a, long rs, long cs, const float* b, long ldb, int m, int n, int k, float* c, long ldc,
                  bool add) {
  for (int vectors = (n + kFloats - 1) / kFloats; vectors > 0;) {
    const int step = vectors >= 3 && vectors != 4 ? 3 : std::min(vectors, 2);
    if (step == 3)
      fcolumns<3>(a, rs, cs, b, ldb, m, k, c, ldc, add);
    else if (step == 2)
      fcolumns<2>(a, rs, cs, b, ldb, m, k, c, ldc, add);
    else
      fcolumns<1>(a, rs, cs, b, ldb, m, k, c, ldc, add);
    vectors -= step;
    b += step * kFloats;
    c += step * kFloats;
  }
}

}  // namespace
}  // namespace STACKATTN_KERNEL
