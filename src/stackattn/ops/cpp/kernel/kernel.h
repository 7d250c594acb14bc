// The kernel's interface to module.cpp: plain pointers, no Python and no PyTorch.
#pragma once
#include <cstdint>

// Sizes of a call. All arrays are contiguous, except that states, their gradients and kept charts are contiguous rows
// that begin on 64-byte boundaries. Arrays passed as `void*` hold doubles if `wide`, otherwise floats. `lengths` may be
// null: every sequence then has all steps.
struct Problem {
  int64_t batch, steps, states, symbols;
  const int64_t* lengths;
  int threads;
  bool wide;
};

// Result of a call.
struct Report {
  // 1, 2, 3: push, replace or pop contains nan or +inf (1 for a superposition stack: an action is nan or infinite);
  // 0: all arguments are valid. `sequence` and `step` are the position of the first invalid number.
  int argument = 0;
  int64_t sequence = 0, step = 0;
  bool in_range = true;  // false: the range of float64 does not suffice for the state; see docs/maths.md
};

// The states of a batch, `stride` doubles apart; columns.h describes their layout. `before` is the number of steps
// before the extension.
struct State {
  double* data;
  int64_t stride, before;
};

// full_pass.cpp
struct FullPass {
  // (B,T,Q,S,Q,S), (B,T,Q,S,Q,S), (B,T,Q,S,Q) -> (B,T,T+1,Q,S)
  Report (*nondeterministic)(const Problem&, const void* push, const void* replace, const void* pop, void* weights);
  Report (*nondeterministic_backward)(const Problem&, const void* push, const void* replace, const void* pop,
                                      const void* grad_weights, void* grad_push, void* grad_replace, void* grad_pop);
  // (B,T,3) -> (B,T,T)
  Report (*superposition)(const Problem&, const void* actions, void* weights);
  Report (*superposition_backward)(const Problem&, const void* actions, const void* grad_weights, void* grad_actions);
};

// states.cpp: the number of doubles in a state, its extension by more steps, and the backward pass of an extension.
// `steps` are push, replace and pop (B,T,Q,S,QS+QS+Q), or the actions (B,T,3) of the superposition stack. A null
// gradient means zeros; `grad_before` may have the same address as `grad_after`.
struct States {
  int64_t (*state_size)(int64_t states, int64_t symbols, int64_t steps);
  Report (*extend)(const Problem&, const State&, bool superposition, const void* steps, void* weights);
  Report (*retract)(const Problem&, const State&, bool superposition, const void* steps, const void* grad_weights,
                    const State& grad_after, const State& grad_before, void* grad_steps);
};

// Memory for the charts of a batch, or for the bands of a windowed stack, `stride` doubles apart. If `data` is null,
// nothing is stored, and the charts or bands are computed again when they are needed.
struct Kept {
  double* data;
  int64_t stride;
};

// readings.cpp: stack readings of whole sequences. `steps` as in States; values of m numbers: (B,T+1,m), the bottom
// first, or (B,T,m) for the superposition stack; readings (B,T,Q,S,m) or (B,T,m).
struct Readings {
  int64_t (*kept_size)(int64_t states, int64_t symbols, int64_t steps, int64_t m);
  Report (*forward)(const Problem&, bool superposition, int64_t m, const void* steps, const void* values, const Kept&,
                    void* readings);
  Report (*backward)(const Problem&, bool superposition, int64_t m, const void* steps, const void* values, const Kept&,
                     const void* grad_readings, void* grad_steps, void* grad_values);
};

// window.cpp: rows of the windowed nondeterministic stack. `steps` (B, before + T, Q, S, QS+QS+Q) begins with the
// `before` earlier steps; values (B, T, m); history (B, before + 1, row) and rows (B, T, row). A row has
// QS (m + 2) + 1 numbers; see ops/window.py. Problem::steps is T.
struct WindowArrays {
  int64_t m, window, before;
  const void *steps, *values;
  const double* history;
  double* rows;
};
struct WindowGradients {
  const double* rows;
  void *steps, *values;
  double* history;
};
struct Windowed {
  int64_t (*band_size)(int64_t states, int64_t symbols, int64_t steps);  // doubles in the band of P
  // If `band` is null, it is computed from the steps; if `band_after` is null, it is not stored.
  Report (*forward)(const Problem&, const WindowArrays&, const Kept& band, const Kept& band_after);
  Report (*backward)(const Problem&, const WindowArrays&, const WindowGradients&);
};

// Sizes of superposition stacks that are stored as vectors of m numbers: `height` elements before the first step, at
// most `depth` after each step, and `height_after` after the last step (0: the last stack is not part of the result).
struct VectorSizes {
  int64_t m, height, depth, height_after;
};

// vectors.cpp: actions (B,T,3), values (B,T,m), stacks (B,height,m), top first. The result is (B,T+height_after,m):
// readings, then the last stack.
struct Vectors {
  Report (*forward)(const Problem&, const VectorSizes&, const void* actions, const void* values, const void* stacks,
                    void* result);
  Report (*backward)(const Problem&, const VectorSizes&, const void* actions, const void* values, const void* stacks,
                     const void* grad, void* grad_actions, void* grad_values, void* grad_stacks);
};
