// What module.cpp sees of the kernel: plain pointers, no Python and no PyTorch.
#pragma once
#include <cstdint>

// All arrays are contiguous; `lengths` may be null (every sequence has all its steps). `wide` says that the arrays of
// numbers hold double instead of float.
struct Problem {
  int64_t batch, steps, states, symbols;
  const int64_t* lengths;
  int threads;
  bool wide;
};

// A number that is nan or +inf inside the lengths (for actions also a negative one). `argument` is 0 if there is none.
struct BadInput {
  int argument = 0;  // 1, 2, 3: push, replace, pop
  int64_t sequence = 0, step = 0;
};

struct Kernel {
  const char* name;
  // (B,T,Q,S,Q,S), (B,T,Q,S,Q,S), (B,T,Q,S,Q) -> (B,T,T+1,Q,S)
  BadInput (*nondeterministic)(const Problem&, const void* push, const void* replace, const void* pop, void* weights);
  BadInput (*nondeterministic_backward)(const Problem&, const void* push, const void* replace, const void* pop,
                                        const void* grad_weights, void* grad_push, void* grad_replace, void* grad_pop);
  // (B,T,3) -> (B,T,T)
  BadInput (*superposition)(const Problem&, const void* actions, void* weights);
  BadInput (*superposition_backward)(const Problem&, const void* actions, const void* grad_weights, void* grad_actions);
};
