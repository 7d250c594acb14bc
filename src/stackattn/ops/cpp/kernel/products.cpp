// Sums of products over all steps, for the gradients of weights. Compiled once for each instruction set.
#include "floats.h"
#include "network.h"

namespace STACKATTN_KERNEL {
namespace {

void sum_of_products_(int64_t R, int64_t M, int64_t N, const float* a, const float* b, float* out, int threads) {
  constexpr int64_t kRows = 64;   // rows of a and b that stay in the cache together
  constexpr int64_t kBlock = 16;  // rows of the result: the columns of a in one cache line
#pragma omp parallel for num_threads(std::max(threads, 1)) schedule(static) if (threads > 1)
  for (int64_t m = 0; m < M; m += kBlock)
    for (int64_t r = 0; r < R; r += kRows)
      fgemm(a + r * M + m, 1, M, b + r * N, N, int(std::min(kBlock, M - m)), int(N), int(std::min(kRows, R - r)),
            out + m * N, N, r > 0);
  if (R == 0) std::fill_n(out, M * N, 0.f);
}

}  // namespace

extern const SumOfProducts sum_of_products;
const SumOfProducts sum_of_products = sum_of_products_;

}  // namespace STACKATTN_KERNEL
