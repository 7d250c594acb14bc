// Dropout, alone, with a residual addition, or after a ReLU. Compiled once for each instruction set.
#include "keep_mask.h"

namespace STACKATTN_KERNEL {
namespace {

constexpr int64_t kRow = 4096;       // numbers that share a row of the mask
constexpr int64_t kAlone = 1 << 17;  // fewer numbers are not worth a second thread

// Calls body(first number, count, row of the mask, scale) for each row.
template <class Body>
void for_each_row(int64_t count, const DropoutRate& rate, int threads, Body body) {
  const KeepMask mask(rate);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && count > kAlone)
  for (int64_t row = 0; row < (count + kRow - 1) / kRow; ++row)
    body(row * kRow, std::min(kRow, count - row * kRow), mask.row(row), fsplat(mask.scale));
}

// Writes the results of function(i, n), a vector for the n numbers i, i + 1, ... of a row; n is smaller than a vector
// only at the end of the row.
template <class Function>
void store_all(int64_t count, float* out, Function function) {
  int64_t i = 0;
  for (; i + kFloats <= count; i += kFloats) fstore(out + i, function(i, kFloats));
  if (i < count) {
    const FVec v = function(i, int(count - i));
    std::memcpy(out + i, &v, (count - i) * sizeof(float));
  }
}
// Loads n numbers; the other lanes are zero.
inline FVec some(const float* p, int n) {
  if (n == kFloats) return fload(p);
  FVec v = {};
  std::memcpy(&v, p, n * sizeof(float));
  return v;
}

void forward(int64_t count, const DropoutRate& rate, int threads, bool relu, const float* x, const float* residual,
             float* y) {
  for_each_row(count, rate, threads, [=](int64_t first, int64_t n, KeepMask::Row keep, FVec scale) {
    const float *from = x + first, *add = residual + (residual ? first : 0);
    if (relu)
      store_all(n, y + first, [=](int64_t i, int c) {
        const FVec v = some(from + i, c);
        return kept((v < FVec{} ? FVec{} : v) * scale, keep(uint32_t(i)));
      });
    else if (residual)
      store_all(n, y + first, [=](int64_t i, int c) {
        return some(add + i, c) + kept(some(from + i, c) * scale, keep(uint32_t(i)));
      });
    else
      store_all(n, y + first, [=](int64_t i, int c) { return kept(some(from + i, c) * scale, keep(uint32_t(i))); });
  });
}

void backward(int64_t count, const DropoutRate& rate, int threads, const float* y, const float* grad, float* grad_x) {
  for_each_row(count, rate, threads, [=](int64_t first, int64_t n, KeepMask::Row keep, FVec scale) {
    const float *from = grad + first, *made = y + (y ? first : 0);
    if (y)  // y is zero for dropped and for negative numbers
      store_all(n, grad_x + first, [=](int64_t i, int c) {
        const FVec v = some(from + i, c) * scale;
        return some(made + i, c) <= FVec{} ? FVec{} : v;
      });
    else
      store_all(n, grad_x + first,
                [=](int64_t i, int c) { return kept(some(from + i, c) * scale, keep(uint32_t(i))); });
  });
}

}  // namespace

extern const Dropout dropout;
const Dropout dropout = {forward, backward};

}  // namespace STACKATTN_KERNEL
