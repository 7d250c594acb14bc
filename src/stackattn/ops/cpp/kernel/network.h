// The parts of ordinary networks that the kernel contains, as module code sees them: plain pointers, no Python, no
// PyTorch.
#pragma once
#include <cstdint>

// p = 0 means no dropout; the seed is then ignored.
struct DropoutRate {
  double p;
  uint64_t seed;
};

struct AttentionShape {
  int64_t batch, steps, heads, size;  // of heads
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

// lstm.cpp: an LSTM with a superposition stack. Sizes are padded to multiples of 8, except `value_size`.
struct LSTMShape {
  int64_t batch, steps, hidden, value, value_size;
  int threads;
};

// What the forward pass writes and the backward pass reads; `stacks` has stack_size() numbers for each sequence.
struct LSTMArrays {
  float *x, *gates, *cells, *actions, *stacks;  // (T+1,B,value+hidden), (T,B,4 hidden), (T+1,B,hidden), (T,B,8+value)
};

struct LSTM {
  int64_t (*stack_size)(const LSTMShape&);
  // inputs (T,B,4 hidden): what the gates get from the input and the bias; weight (value+hidden, 4 hidden); map
  // (hidden, 8+value) to actions and value, and its bias. x and cells are zero at step 0.
  void (*forward)(const LSTMShape&, const float* inputs, const float* weight, const float* map, const float* bias,
                  const LSTMArrays&);
  // The same matrices transposed; gradients of the gates and actions before their activation functions.
  void (*backward)(const LSTMShape&, const float* weight, const float* map, const LSTMArrays&, const float* grad_hidden,
                   float* grad_gates, float* grad_actions);
};

struct Network {
  const Attention& attention;
  const Dropout& dropout;
  const LSTM& lstm;
};
