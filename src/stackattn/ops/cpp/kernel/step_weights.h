// The transition weights of the steps of one sequence, and their gradients: base class of `Tiles`.
#pragma once

namespace STACKATTN_KERNEL {
namespace {

template <class A>
class StepWeights {
  using Ptr = typename A::Ptr;

 public:
  const int n, Q, S, QS;

  // Weights of step t = 1..n, as matrices (q,x) x (r,y), (q,x) x (r,y) and (q,x) x r, and their gradients.
  Ptr push(int t) const { return push_ + long(t - 1) * QS * QS; }
  Ptr repl(int t) const { return repl_ + long(t - 1) * QS * QS; }
  Ptr pop(int t) const { return pop_ + long(t - 1) * QS * Q; }
  Ptr dpush(int t) const { return dpush_ + long(t - 1) * QS * QS; }
  Ptr drepl(int t) const { return drepl_ + long(t - 1) * QS * QS; }
  Ptr dpop(int t) const { return dpop_ + long(t - 1) * QS * Q; }

 protected:
  StepWeights(int n, int Q, int S) : n(n), Q(Q), S(S), QS(Q * S) {}

  long steps_size() const { return 2 * matrices() + pops(); }
  template <class Take>
  void take_steps(Take take) {
    push_ = take(matrices());
    repl_ = take(matrices());
    pop_ = take(pops());
  }
  template <class Take>
  void take_step_gradients(Take take) {
    dpush_ = take(matrices());
    drepl_ = take(matrices());
    dpop_ = take(pops());
  }
  void clear_step_gradients() {
    A::clear(dpush_, matrices());
    A::clear(drepl_, matrices());
    A::clear(dpop_, pops());
  }

 private:
  Ptr push_, repl_, pop_, dpush_, drepl_, dpop_;

  long matrices() const { return long(n) * QS * QS; }
  long pops() const { return long(n) * QS * Q; }
};

}  // namespace
}  // namespace STACKATTN_KERNEL
