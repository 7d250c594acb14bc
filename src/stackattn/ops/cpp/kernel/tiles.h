// The inner runs of one sequence (docs/maths.md): D and P, and their gradients, in tiles. Base class of the charts.
//
// Time points 0..n are divided into blocks of `b`. A chart X[j -> t] is a triangle of tiles (J, T), J <= T, for each
// stack symbol, or its band with T - J <= `reach`; a tile is a square matrix with rows (j, state) and columns (t,
// state). Contributions from the blocks strictly between J and T are matrix products; only those from J and T
// themselves are sequential.
#pragma once
#include <algorithm>
#include <vector>

#include "arithmetic.h"
#include "step_weights.h"

namespace STACKATTN_KERNEL {
namespace {

template <class A>
class Tiles : public StepWeights<A> {
 protected:
  using Ptr = typename A::Ptr;
  using Product = Term<Ptr>;

 public:
  using StepWeights<A>::n, StepWeights<A>::Q, StepWeights<A>::S, StepWeights<A>::QS;
  using StepWeights<A>::push, StepWeights<A>::repl, StepWeights<A>::pop;
  using StepWeights<A>::dpush, StepWeights<A>::drepl, StepWeights<A>::dpop;
  const int b;   // time points in a block; b * Q is a whole number of vectors
  const int ld;  // length of a tile's row: b * Q
  const int blocks, reach;

 protected:
  Tiles(int n, int Q, int S, int b, int reach)
      : StepWeights<A>(n, Q, S), b(b), ld(b * Q), blocks((n + b) / b), reach(std::min(reach, blocks - 1)),
        tiles_(tiles_before(blocks) * ld * ld) {}

  const long tiles_;  // numbers in the tiles of one symbol
  Ptr D_, P_, DT_, dD_, dP_;

  template <class Take>
  void take_tiles(Take take) {
    D_ = take(S * tiles_);
    P_ = take(S * tiles_);
  }
  template <class Take>
  void take_tile_gradients(Take take) {
    DT_ = take(S * tiles_);
    dD_ = take(S * tiles_);
    dP_ = take(S * tiles_);
  }

  int begin(int block) const { return block * b; }
  int end(int block) const { return std::min(begin(block) + b, n + 1); }  // one past the block's last time point
  int columns(int T) const { return (end(T) - begin(T)) * Q; }
  int low(int T) const { return std::max(0, T - reach); }            // the first block J of tiles (J, T)
  int high(int J) const { return std::min(blocks, J + reach + 1); }  // one past the last block T of tiles (J, T)

  long tiles_before(int T) const {  // number of tiles in the columns before T
    const long full = std::min(T, reach + 1);
    return full * (full + 1) / 2 + (T - full) * full;
  }
  Ptr tile(Ptr chart, int w, int J, int T) const {
    return chart + (w * tiles_ + (tiles_before(T) + J - low(T)) * ld * ld);
  }
  Ptr row(Ptr chart, int w, int j, int T) const { return tile(chart, w, j / b, T) + long(j % b) * Q * ld; }

  // One term for each symbol z: the transition matrix (.., w) x (.., z) times row j of X_z in block column T.
  int mix(Product* terms, Ptr matrix, int w, Ptr chart, int j, int T) const {
    for (int z = 0; z < S; ++z) terms[z] = {matrix + (long(w) * QS + z), long(S) * QS, S, row(chart, z, j, T), ld, Q};
    return S;
  }
  // Like `mix`, with the matrix transposed.
  int mix_transposed(Product* terms, Ptr matrix, int z, Ptr chart, int j, int T) const {
    for (int w = 0; w < S; ++w) terms[w] = {matrix + (long(w) * QS + z), S, long(S) * QS, row(chart, w, j, T), ld, Q};
    return S;
  }

  // Number of tiles whose products are summed in registers at once: as many as fit into the cache together.
  static constexpr int kGroup = 4;
  template <class Make>
  void sum_of_tiles(int from, int to, int m, int count, Ptr c, long ldc, bool add, Make make) const {
    Product terms[kGroup];
    for (int K = from; K < to; K += kGroup) {
      int used = 0;
      for (; used < kGroup && K + used < to; ++used) {
        terms[used] = make(K + used);
        if (K + used + kGroup < to) {
          const Product next = make(K + used + kGroup);
          terms[used].next_a = A::address(next.a);
          terms[used].next_b = A::address(next.b);
        }
      }
      A::gemm(terms, used, m, count, c, ldc, add || K > from);
    }
  }

  // Computes block column T of D and P from the block columns before it.
  void fill_column(int T) {
    for (int J = T; J >= low(T); --J) fill_tile(J, T);
  }
  // Computes the gradients of D and of the steps from those of P.
  void unfill_tiles() {
    transpose_tiles();
    for (int J = 0; J < blocks; ++J) {
      for (int T = high(J) - 1; T >= J; --T) unfill_tile(J, T);
      collect_steps(J);
    }
  }

 private:
  void fill_tile(int J, int T) {
    const int N = columns(T);
    std::vector<Product> terms(S + 2);
    for (int w = 0; w < S; ++w) {
      A::clear(tile(D_, w, J, T), long(ld) * ld);
      sum_of_tiles(J + 1, T, ld, N, tile(D_, w, J, T), ld, true,
                   [&](int K) { return Product{tile(P_, w, J, K), ld, 1, tile(D_, w, K, T), ld, ld}; });
    }
    for (int j = std::min(end(J), n) - 1; j >= begin(J); --j) {
      if (j + 1 < n && (j + 1) / b <= T)
        for (int w = 0; w < S; ++w) {
          const int count = mix(terms.data(), push(j + 1), w, D_, j + 1, T);
          A::gemm(terms.data(), count, Q, N, row(P_, w, j, T), ld, false);
        }
      else
        for (int w = 0; w < S; ++w) A::clear(row(P_, w, j, T), long(Q) * ld);
      if (j == 0) break;  // the bottom element is never popped
      for (int w = 0; w < S; ++w) {
        const Ptr out = row(D_, w, j, T);
        if ((j + 1) / b == T)
          for (int p = 0; p < Q; ++p)
            for (int r = 0; r < Q; ++r)
              A::set(out, long(p) * ld + ((j + 1) % b) * Q + r, A::get(pop(j + 1), (long(p) * S + w) * Q + r));
        int count = 0;
        if (j + 1 < n && (j + 1) / b <= T) count = mix(terms.data(), repl(j + 1), w, D_, j + 1, T);
        if (j + 2 < std::min(end(J), n))  // inner runs that end in block J
          terms[count++] = {row(P_, w, j, J) + (j + 2 - begin(J)) * Q, ld, 1, row(D_, w, j + 2, T), ld,
                            (std::min(end(J), n) - j - 2) * Q};
        if (J < T)  // inner runs that end in block T
          terms[count++] = {row(P_, w, j, T), ld, 1, tile(D_, w, T, T), ld, (std::min(end(T), n) - begin(T)) * Q};
        A::gemm(terms.data(), count, Q, N, out, ld, true);
      }
    }
  }

  void transpose_tiles() {
    for (int w = 0; w < S; ++w)
      for (int T = 0; T < blocks; ++T)
        for (int J = low(T); J <= T; ++J) A::transpose(tile(D_, w, J, T), ld, ld, tile(DT_, w, J, T));
  }

  void unfill_tile(int J, int T) {
    const int N = columns(T);
    std::vector<Product> terms(2 * S + 1);
    for (int w = 0; w < S; ++w) {
      A::clear(tile(dD_, w, J, T), long(ld) * ld);
      sum_of_tiles(low(T), J, columns(J), N, tile(dD_, w, J, T), ld, true,
                   [&](int K) { return Product{tile(P_, w, K, J), 1, ld, tile(dD_, w, K, T), ld, ld}; });
      sum_of_tiles(T + 1, high(J), columns(J), N, tile(dP_, w, J, T), ld, true,
                   [&](int K) { return Product{tile(dD_, w, J, K), ld, 1, tile(DT_, w, T, K), ld, columns(K)}; });
    }
    for (int j = begin(J); j < std::min(end(J), n); ++j) {
      if (j > 0)
        for (int z = 0; z < S; ++z) {
          int count = 0;
          if (j > 1 && (j - 1) / b >= low(T)) count += mix_transposed(terms.data(), repl(j), z, dD_, j - 1, T);
          if ((j - 1) / b >= low(T)) count += mix_transposed(terms.data() + count, push(j), z, dP_, j - 1, T);
          if (j - 2 >= begin(J))
            terms[count++] = {
                tile(P_, z, J, J) + (j - begin(J)) * Q, 1, ld, tile(dD_, z, J, T), ld, (j - 1 - begin(J)) * Q};
          A::gemm(terms.data(), count, Q, N, row(dD_, z, j, T), ld, true);
        }
      if (J == T) clear_before(dD_, j, T, j + 1);
      for (int w = 0; w < S && j > 0; ++w) {
        const Product term = {row(dD_, w, j, T), ld, 1, tile(DT_, w, T, T), ld, N};
        A::gemm(&term, 1, Q, N, row(dP_, w, j, T), ld, true);
      }
      if (T == J || T == J + 1) clear_before(dP_, j, T, j + 2);
    }
  }

  // Row j of a chart has no entries before time point t: clears what the products wrote there.
  void clear_before(Ptr chart, int j, int T, int t) {
    const int count = std::min((t - begin(T)) * Q, ld);
    if (count <= 0) return;
    for (int w = 0; w < S; ++w)
      for (int p = 0; p < Q; ++p) A::clear(row(chart, w, j, T) + long(p) * ld, count);
  }

  void collect_steps(int J) {
    std::vector<Product> terms(reach + 1);
    for (int j = begin(J); j < std::min(end(J), n); ++j) {
      if (j > 0)
        for (int p = 0; p < Q; ++p)
          for (int w = 0; w < S; ++w)
            for (int r = 0; r < Q; ++r)
              A::set(dpop(j + 1), (long(p) * S + w) * Q + r,
                     A::get(row(dD_, w, j, (j + 1) / b), long(p) * ld + ((j + 1) % b) * Q + r));
      if (j + 1 >= n) continue;
      for (int w = 0; w < S; ++w)
        for (int z = 0; z < S; ++z) {
          const auto collect = [&](Ptr gradient, Ptr to) {
            int count = 0;
            for (int T = (j + 1) / b; T < high(J); ++T)
              terms[count++] = {row(gradient, w, j, T), ld, 1, row(D_, z, j + 1, T), ld, columns(T)};
            A::dots(terms.data(), count, Q, Q, to + (long(w) * QS + z), long(S) * QS, S);
          };
          collect(dP_, dpush(j + 1));
          if (j > 0) collect(dD_, drepl(j + 1));
        }
    }
  }
};

}  // namespace
}  // namespace STACKATTN_KERNEL
