// Causal softmax attention with dropout of the weights. Compiled once for each instruction set.
//
// A thread processes one head of one sequence at a time, `kRows` queries at once. Only the logarithm of each row's sum
// is kept; with it, the backward pass computes the weights again. Logarithms have base 2.
#include <exception>

#include "keep_mask.h"

namespace STACKATTN_KERNEL {
namespace {

constexpr int kRows = 16;
constexpr float kLog2e = 1.4426950408889634f;

// The sizes of one head. `stride` is the distance between matrix rows whose columns are steps: the padded length plus
// 16. With lengths such as 512, a stride without the 16 would be a power of two, and rows would compete for the same
// cache lines.
struct Head {
  int n, size;  // number of steps; length of a vector
  long width, stride;
  float scale;
  Head(int64_t n, int64_t size)
      : n(int(n)), size(int(size)), width(whole(size)), stride((n + 15) / 16 * 16 + 16),
        scale(1 / std::sqrt(float(size))) {}
  long rows() const { return (n + 15) / 16 * 16 * width; }
  long columns() const { return width * stride; }
};

// (n x size) with rows `ld` apart -> (n x width), times `factor`, padded with zeros
void copy_rows(const Head& head, const float* in, long ld, float factor, float* out) {
  for (int t = 0; t < head.n; ++t, in += ld, out += head.width) {
    int c = 0;
    for (; c + kFloats <= head.size; c += kFloats) fstore(out + c, fload(in + c) * fsplat(factor));
    for (; c < head.size; ++c) out[c] = in[c] * factor;
    for (; c < head.width; ++c) out[c] = 0;
  }
}

// (n x size) with rows `ld` apart -> (size x stride), padded with zeros
void copy_columns(const Head& head, const float* in, long ld, float* out) {
  for (int c = 0; c < head.size; ++c, out += head.stride) {
    for (int t = 0; t < head.n; ++t) out[t] = in[t * ld + c];
    for (long t = head.n; t < head.stride; ++t) out[t] = 0;
  }
}

// (n x width) -> rows of `size` numbers `ld` apart, times `factor`
void store_rows(const Head& head, int n, const float* in, float factor, float* out, long ld) {
  for (int t = 0; t < n; ++t, in += head.width, out += ld) {
    int c = 0;
    for (; c + kFloats <= head.size; c += kFloats) fstore(out + c, fload(in + c) * fsplat(factor));
    for (; c < head.size; ++c) out[c] = in[c] * factor;
  }
}

// Which of the columns j, j + 1, ... query i attends to: those up to i.
FMask past(int j, int i) { return lane_numbers() + j <= FMask{} + i; }

struct Inputs {
  const float *q, *k, *v;
  long ld;
};

void forward_head(Workspace& work, const Head& head, const Inputs& in, const KeepMask& mask, uint64_t first_row,
                  float* out, long ldo, float* log_sums) {
  work.start((2 * head.rows() + head.columns() + kRows * (head.stride + head.width)) / 2 + 64);
  float *Q = take_floats(work, head.rows()), *KT = take_floats(work, head.columns()),
        *V = take_floats(work, head.rows());
  float *P = take_floats(work, kRows * head.stride), *O = take_floats(work, kRows * head.width);
  copy_rows(head, in.q, in.ld, kLog2e * head.scale, Q);
  copy_columns(head, in.k, in.ld, KT);
  copy_rows(head, in.v, in.ld, 1, V);
  for (int i0 = 0; i0 < head.n; i0 += kRows) {
    const int n = std::min(kRows, head.n - i0), end = i0 + n;
    float factors[kRows];
    fgemm(Q + i0 * head.width, head.width, 1, KT, head.stride, n, end, head.size, P, head.stride, false);
    for (int r = 0; r < n; ++r) {
      const int i = i0 + r, last = i / kFloats * kFloats;  // first column of the vector that contains column i
      float* p = P + r * head.stride;
      fstore(p + last, past(last, i) ? fload(p + last) : fsplat(-INFINITY));
      FVec largest = fload(p + last);
      for (int j = 0; j < last; j += kFloats) largest = fload(p + j) > largest ? fload(p + j) : largest;
      const float top = flargest(largest);
      FVec total = FVec{};
      const KeepMask::Row keep = mask.row(first_row + i);
      for (int j = 0; j <= last; j += kFloats) {
        const FVec e = exp2(fload(p + j) - fsplat(top));
        total += e;
        fstore(p + j, mask.active ? kept(e, keep(j)) : e);
      }
      for (int j = last + kFloats; j < end; j += kFloats) fstore(p + j, FVec{});
      const float sum = fsum(total);
      log_sums[i] = top + std::log2(sum);
      factors[r] = (mask.active ? mask.scale : 1) / sum;
    }
    fgemm(P, head.stride, 1, V, head.width, n, head.width, end, O, head.width, false);
    for (int r = 0; r < n; ++r) store_rows(head, 1, O + r * head.width, factors[r], out + (i0 + r) * ldo, ldo);
  }
}

void backward_head(Workspace& work, const Head& head, const Inputs& in, const KeepMask& mask, uint64_t first_row,
                   const float* out, const float* grad, long ldo, const float* log_sums, float* grad_q, float* grad_k,
                   float* grad_v) {
  work.start((5 * head.rows() + 2 * head.columns() + kRows * (2 * head.stride + head.width)) / 2 + 128);
  float *Q = take_floats(work, head.rows()), *K = take_floats(work, head.rows()), *G = take_floats(work, head.rows());
  float *dK = take_floats(work, head.rows()), *dV = take_floats(work, head.rows());
  float *KT = take_floats(work, head.columns()), *VT = take_floats(work, head.columns());
  float *P = take_floats(work, kRows * head.stride), *dS = take_floats(work, kRows * head.stride);
  float* dQ = take_floats(work, kRows * head.width);
  copy_rows(head, in.q, in.ld, kLog2e * head.scale, Q);
  copy_rows(head, in.k, in.ld, 1, K);
  copy_columns(head, in.k, in.ld, KT);
  copy_columns(head, in.v, in.ld, VT);
  copy_rows(head, grad, ldo, mask.active ? mask.scale : 1, G);
  std::fill_n(dK, head.rows(), 0.f);
  std::fill_n(dV, head.rows(), 0.f);
  for (int i0 = 0; i0 < head.n; i0 += kRows) {
    const int n = std::min(kRows, head.n - i0), end = i0 + n;
    fgemm(Q + i0 * head.width, head.width, 1, KT, head.stride, n, end, head.size, P, head.stride, false);
    fgemm(G + i0 * head.width, head.width, 1, VT, head.stride, n, end, head.size, dS, head.stride, false);
    for (int r = 0; r < n; ++r) {
      const int i = i0 + r, last = i / kFloats * kFloats;
      float *p = P + r * head.stride, *ds = dS + r * head.stride, dot = 0;
      for (int c = 0; c < head.size; ++c) dot += out[i * ldo + c] * grad[i * ldo + c];
      const KeepMask::Row keep = mask.row(first_row + i);
      fstore(p + last, past(last, i) ? fload(p + last) : fsplat(-INFINITY));
      for (int j = 0; j <= last; j += kFloats) {
        const FVec e = exp2(fload(p + j) - fsplat(log_sums[i]));
        const FMask those = mask.active ? keep(j) : ~FMask{};
        fstore(p + j, kept(e, those));
        fstore(ds + j, e * (kept(fload(ds + j), those) - fsplat(dot)));
      }
      for (int j = last + kFloats; j < end; j += kFloats) fstore(p + j, FVec{}), fstore(ds + j, FVec{});
    }
    fgemm(P, 1, head.stride, G + i0 * head.width, head.width, end, head.width, n, dV, head.width, true);
    fgemm(dS, 1, head.stride, Q + i0 * head.width, head.width, end, head.width, n, dK, head.width, true);
    fgemm(dS, head.stride, 1, K, head.width, n, head.width, end, dQ, head.width, false);
    store_rows(head, n, dQ, head.scale, grad_q + i0 * in.ld, in.ld);
  }
  store_rows(head, head.n, dK, 1 / kLog2e, grad_k, in.ld);
  store_rows(head, head.n, dV, 1, grad_v, in.ld);
}

// Calls body(workspace, sequence, head number, length) on several threads; each call does all the work for its
// head in a fixed order.
template <class Body>
void for_each_head(const AttentionShape& shape, Body body) {
  std::exception_ptr exhausted;  // an exception must not leave the parallel region
#pragma omp parallel num_threads(shape.threads) if (shape.threads > 1)
  {
    Workspace& work = own_workspace();
#pragma omp for schedule(static)
    for (int64_t x = 0; x < shape.batch * shape.heads; ++x) {
      const int64_t b = x / shape.heads;
      try {
        body(work, b, x % shape.heads, shape.lengths ? shape.lengths[b] : shape.steps);
      } catch (const std::bad_alloc&) {
#pragma omp critical
        exhausted = std::current_exception();
      }
    }
    work.keep_at_most(size_t(16) << 20);
  }
  if (exhausted) std::rethrow_exception(exhausted);
}

// Sets rows `from` to `to` - 1 of one head to zero.
void clear_rows(float* rows, long ld, int64_t from, int64_t to, int64_t size) {
  for (int64_t t = from; t < to; ++t) std::fill_n(rows + t * ld, size, 0.f);
}

void forward(const AttentionShape& shape, const DropoutRate& rate, const float* packed, float* outputs,
             float* log_sums) {
  const KeepMask mask(rate);
  const int64_t T = shape.steps, D = shape.heads * shape.size;
  for_each_head(shape, [&](Workspace& work, int64_t b, int64_t h, int64_t length) {
    const float* q = packed + b * T * 3 * D + h * shape.size;
    float* out = outputs + b * T * D + h * shape.size;
    const int64_t row = (b * shape.heads + h) * T;
    forward_head(work, Head(length, shape.size), {q, q + D, q + 2 * D, long(3 * D)}, mask, row, out, D, log_sums + row);
    clear_rows(out, D, length, T, shape.size);
    std::fill_n(log_sums + row + length, T - length, 0.f);
  });
}

void backward(const AttentionShape& shape, const DropoutRate& rate, const float* packed, const float* outputs,
              const float* log_sums, const float* grad_outputs, float* grad_packed) {
  const KeepMask mask(rate);
  const int64_t T = shape.steps, D = shape.heads * shape.size;
  for_each_head(shape, [&](Workspace& work, int64_t b, int64_t h, int64_t length) {
    const int64_t in = b * T * 3 * D + h * shape.size, out = b * T * D + h * shape.size,
                  row = (b * shape.heads + h) * T;
    const float* q = packed + in;
    float* grad = grad_packed + in;
    backward_head(work, Head(length, shape.size), {q, q + D, q + 2 * D, long(3 * D)}, mask, row, outputs + out,
                  grad_outputs + out, D, log_sums + row, grad, grad + D, grad + 2 * D);
    for (int part = 0; part < 3; ++part) clear_rows(grad + part * D, 3 * D, length, T, shape.size);
  });
}

}  // namespace

extern const Attention attention;
const Attention attention = {forward, backward};

}  // namespace STACKATTN_KERNEL
