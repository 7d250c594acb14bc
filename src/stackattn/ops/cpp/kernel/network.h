// The kernel's interface to network_module.cpp, for parts of ordinary networks: plain pointers, no Python and no
// PyTorch.
#pragma once
#include <cstdint>

#include "kernel.h"

// p = 0 means no dropout; the seed is then ignored.
struct DropoutRate {
  double p;
  uint64_t seed;
};

struct AttentionShape {
  int64_t batch, steps, heads, size;  // size: length of a head's vectors
  const int64_t* lengths;             // null: every sequence has all steps
  int threads;
};

// attention.cpp. float32, contiguous: packed (B,T,3,H,d) queries, keys and values; outputs (B,T,H,d); log_sums (B,H,T).
struct Attention {
  void (*forward)(const AttentionShape&, const DropoutRate&, const float* packed, float* outputs, float* log_sums);
  void (*backward)(const AttentionShape&, const DropoutRate&, const float* packed, const float* outputs,
                   const float* log_sums, const float* grad_outputs, float* grad_packed);
};

// dropout.cpp. float32, contiguous, `count` numbers each.
struct Dropout {
  // residual + dropout(x), or dropout(relu(x)) if `relu`; residual may be null.
  void (*forward)(int64_t count, const DropoutRate&, int threads, bool relu, const float* x, const float* residual,
                  float* y);
  // The gradient of x. `y` is the output of the forward pass if it had a ReLU, otherwise null.
  void (*backward)(int64_t count, const DropoutRate&, int threads, const float* y, const float* grad, float* grad_x);
};

struct CrossEntropyShape {
  int64_t rows, classes, ignored;  // targets equal to `ignored` have no loss and no gradient
  double smoothing;                // share of every target that is spread over all classes
  const int64_t* targets;          // (rows,)
  int threads;
  bool wide;  // float64 instead of float32
};

// cross_entropy.cpp. Contiguous: logits (rows, classes), losses (rows,), kept (rows, 2): the largest logit and the sum
// of e^(x - largest). Both functions return the first row whose target is neither a class nor `ignored`, or -1.
struct CrossEntropy {
  int64_t (*forward)(const CrossEntropyShape&, const void* logits, void* losses, void* kept);
  int64_t (*backward)(const CrossEntropyShape&, const void* logits, const void* kept, const void* grad_losses,
                      void* grad_logits);
};

// An LSTM that controls a stack. `hidden`, `reading`, `actions` and `value` are padded to multiples of 8; `value_size`
// is not.
struct LSTMShape {
  int64_t batch, steps, hidden, reading, actions, value, value_size;
  int threads;
};

// What the forward pass writes and the backward pass reads: (T+1,B,reading+hidden), (T,B,4 hidden), (T+1,B,hidden),
// (T,B,actions+value). Before the forward pass, the caller sets x and cells to zero at step 0, and the padding of the
// readings in x at all steps.
struct LSTMArrays {
  float *x, *gates, *cells, *actions;
};

struct LSTMInputs {
  const float* inputs;      // (T,B,4 hidden): what the input and the bias add to the gates
  const float* weight;      // (reading+hidden, 4 hidden): from x to the gates
  const float *map, *bias;  // (hidden, actions+value) and (actions+value,): from the hidden units to actions and value
};

// `weight` and `map` are transposed. The gradients of gates and actions are with respect to their values before the
// activation functions. The caller sets `actions` to zero, since step 0 and the padding are not written.
struct LSTMGradients {
  const float *weight, *map, *hidden;  // hidden: (T,B,hidden)
  float *gates, *actions;              // results, with the shapes of those in LSTMArrays
};

// superposition_lstm.cpp. `stacks` has stack_size() numbers for each sequence.
struct SuperpositionLSTM {
  int64_t (*stack_size)(int64_t steps, int64_t value);
  void (*forward)(const LSTMShape&, const LSTMInputs&, const LSTMArrays&, float* stacks);
  void (*backward)(const LSTMShape&, const LSTMGradients&, const LSTMArrays&, float* stacks);
};

// nondeterministic_lstm.cpp. `charts` has chart_size() numbers for each sequence.
struct NondeterministicLSTM {
  struct Automaton {
    int states, symbols;
  };
  int64_t (*chart_size)(const Automaton&, int64_t steps, int64_t value_size);
  // bottom: (value_size,). Without `charts`, no backward pass is possible. Returns false, with incomplete results, if a
  // logit is nan or +inf, or if the range of float64 does not suffice.
  bool (*forward)(const LSTMShape&, const Automaton&, const LSTMInputs&, const float* bottom, const LSTMArrays&,
                  const Kept& charts);
  // grad_bottom: (B, value_size)
  void (*backward)(const LSTMShape&, const Automaton&, const LSTMGradients&, const LSTMArrays&, const Kept& charts,
                   float* grad_bottom);
};

// products.cpp: `out` (M,N) is the transpose of `a` (R,M) times `b` (R,N): the gradient of a weight, computed from the
// gradients and inputs of all steps. Unlike in PyTorch's matrix product, the order of summation does not depend on the
// number of threads. N is a multiple of 8.
using SumOfProducts = void (*)(int64_t R, int64_t M, int64_t N, const float* a, const float* b, float* out,
                               int threads);

struct Network {
  const Attention& attention;
  const Dropout& dropout;
  const CrossEntropy& cross_entropy;
  const SuperpositionLSTM& superposition_lstm;
  const NondeterministicLSTM& nondeterministic_lstm;
  const SumOfProducts& sum_of_products;
};
