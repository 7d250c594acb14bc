// Shared by the passes over a batch: a parallel loop over the sequences, and functions that load the inputs of a step.
#pragma once
#include <algorithm>
#include <cmath>
#include <exception>
#include <vector>

#include "arithmetic.h"
#include "kernel.h"
#include "workspace.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace STACKATTN_KERNEL {
namespace {

// Smallest mass (the total weight of all runs) for which float64 arithmetic is exact enough. A weight that underflows
// (below 1e-308) can later grow in relative size by at most 1 / mass. While no mass is below e^-600, lost weights
// cannot matter; see docs/maths.md, section 6.
constexpr double kSmallestMass = 2.6e-261;

// While an object of this class exists, its thread flushes denormal numbers to zero: they are slow, and too small to
// matter in `Linear` results.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ | (uint64_t(1) << 24)));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  uint64_t saved_;
#endif
};

// Calls body(workspace, sequence, length) for each sequence, on several threads. Returns the first invalid argument and
// whether all sequences are in range.
template <class Body>
Report for_each_sequence(const Problem& problem, Body body) {
  std::vector<Report> found(problem.batch);
  const int threads = int(std::max<int64_t>(1, std::min<int64_t>(problem.threads, problem.batch)));
  std::exception_ptr exhausted;  // an exception must not leave the parallel region
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    FlushDenormals flush;
    Workspace& work = own_workspace();
#pragma omp for schedule(dynamic, 1)
    for (int64_t s = 0; s < problem.batch; ++s) {
      try {
        found[s] = body(work, s, problem.lengths ? problem.lengths[s] : problem.steps);
      } catch (const std::bad_alloc&) {
#pragma omp critical
        exhausted = std::current_exception();
      }
    }
    work.keep_at_most(size_t(16) << 20);
  }
  if (exhausted) std::rethrow_exception(exhausted);
  Report all;
  for (int64_t s = problem.batch - 1; s >= 0; --s) {
    const bool in_range = all.in_range && found[s].in_range;
    if (found[s].argument) all = {found[s].argument, s, found[s].step};
    all.in_range = in_range;
  }
  return all;
}

// Sets `top` to the maximum of itself and the numbers; returns false if one of them is nan or +inf.
template <class IO>
bool raise_top(const IO* numbers, int n, double& top) {
  Vec largest = splat(top);
  IVec good = (IVec{} == 0);
  for (int i = 0; i < n; i += kLanes) {
    const Vec x = read(numbers + i, n - i, -INFINITY);
    good &= x < splat(INFINITY);
    largest = x > largest ? x : largest;
  }
  for (int l = 0; l < kLanes; ++l) {
    if (!good[l]) return false;
    top = std::max(top, largest[l]);
  }
  return true;
}

// A step's weights, exp(log weight - shift). The shift makes the largest outgoing row sum 1, so that nothing overflows;
// it cancels in every attention weight. Returns the number of the first invalid argument, or 0.
template <class A, class IO>
int load_step(int Q, int QS, const IO* push, const IO* repl, const IO* pop, typename A::Ptr push_to,
              typename A::Ptr repl_to, typename A::Ptr pop_to) {
  double top = -INFINITY;
  if (!raise_top(push, QS * QS, top)) return 1;
  if (!raise_top(repl, QS * QS, top)) return 2;
  if (!raise_top(pop, QS * Q, top)) return 3;
  if (top == -INFINITY) top = 0;
  A::exp(push, top, push_to, QS * QS);
  A::exp(repl, top, repl_to, QS * QS);
  A::exp(pop, top, pop_to, QS * Q);
  double largest = 0;
  for (int s = 0; s < QS; ++s) {
    double row = 0;
    for (int i = 0; i < QS; ++i)
      row += A::to_double(A::get(push_to, s * QS + i)) + A::to_double(A::get(repl_to, s * QS + i));
    for (int i = 0; i < Q; ++i) row += A::to_double(A::get(pop_to, s * Q + i));
    largest = std::max(largest, row);
  }
  if (largest == 0) return 0;
  // Both number systems use the same scale: the rows of a window may be computed in one and used in the other.
  const auto scale = A::from_double(1 / largest);
  for (int i = 0; i < QS * QS; ++i) {
    A::set(push_to, i, A::mul(A::get(push_to, i), scale));
    A::set(repl_to, i, A::mul(A::get(repl_to, i), scale));
  }
  for (int i = 0; i < QS * Q; ++i) A::set(pop_to, i, A::mul(A::get(pop_to, i), scale));
  return 0;
}

// Like `load_step`, for `rows` (Q,S,QS+QS+Q), which contain push, replace and pop of each (q,x) one after another.
template <class A, class IO>
int load_joined_step(int Q, int QS, const IO* rows, typename A::Ptr push_to, typename A::Ptr repl_to,
                     typename A::Ptr pop_to) {
  std::vector<IO> push(QS * QS), repl(QS * QS), pop(QS * Q);
  for (int s = 0; s < QS; ++s, rows += 2 * QS + Q) {
    std::copy_n(rows, QS, &push[s * QS]);
    std::copy_n(rows + QS, QS, &repl[s * QS]);
    std::copy_n(rows + 2 * QS, Q, &pop[s * Q]);
  }
  return load_step<A>(Q, QS, push.data(), repl.data(), pop.data(), push_to, repl_to, pop_to);
}

template <class IO>
bool finite(const IO* action) {
  return std::isfinite(action[0]) && std::isfinite(action[1]) && std::isfinite(action[2]);
}

}  // namespace
}  // namespace STACKATTN_KERNEL
