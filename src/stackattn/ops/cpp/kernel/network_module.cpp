// Python's access to attention and dropout. Arrays are contiguous float32 arrays of the CPU; outputs are written in
// place.
#include "network_module.h"

#include <new>

#include "arrays.h"

namespace {

const auto kFloat = nb::dtype<float>();

// An array of any shape, or of the shape of another one.
const float* input(const Array& array, const char* name, const Shape& shape) {
  return static_cast<const float*>(address(array, name, kFloat, shape));
}
const float* optional_input(const Array& array, const char* name, const Shape& shape) {
  return static_cast<const float*>(optional_address(array, name, kFloat, shape));
}
float* output(const Array& array, const char* name, const Shape& shape) {
  return static_cast<float*>(address(array, name, kFloat, shape));
}
Shape any_shape(const Array& array, const char* name) {
  if (!array.is_valid()) bad_type(name, "an array, got None");
  return shape_of(array);
}

DropoutRate rate(double p, uint64_t seed) {
  if (!(p >= 0 && p < 1)) bad_value("p", "a number from 0 to below 1", std::to_string(p));
  return {p, seed};
}

// The sizes of packed queries, keys and values (B, T, 3 * heads * size), and the lengths.
class AttentionCall {
 public:
  AttentionCall(const Array& packed, int64_t heads, const Array& lengths, int threads)
      : call_(packed, "packed", 3, lengths, threads) {
    const int64_t width = packed.shape(2);
    if (heads < 1 || width == 0 || width % (3 * heads))
      bad_value("packed", "rows of 3 * " + std::to_string(heads) + " heads", text(shape_of(packed)));
    shape = {call_.B, call_.T, heads, width / (3 * heads), call_.problem.lengths, threads};
  }
  AttentionShape shape;

  Shape packed() const { return {shape.batch, shape.steps, 3 * shape.heads * shape.size}; }
  Shape outputs() const { return {shape.batch, shape.steps, shape.heads * shape.size}; }
  Shape log_sums() const { return {shape.batch, shape.heads, shape.steps}; }

 private:
  const Call call_;
};

// The arrays of an LSTM with a superposition stack.
struct LSTMCall {
  LSTMShape shape;
  LSTMArrays arrays;
  LSTMCall(const Network& network, const Array& x, const Array& gates, const Array& cells, const Array& actions,
           const Array& stacks, int64_t value_size, int threads) {
    const Shape at = any_shape(gates, "gates"), cell = any_shape(cells, "cells"),
                action = any_shape(actions, "actions");
    if (at.size() != 3 || cell.size() != 3 || action.size() != 3) bad_value("gates", "three axes", text(at));
    const int64_t T = at[0], B = at[1], h = cell[2], m = action[2] - 8;
    if (h < 1 || h % 8 || m < 1 || m % 8 || value_size < 1 || value_size > m)
      bad_value("actions", "sizes that are multiples of 8", text(action));
    shape = {B, T, h, m, value_size, threads};
    arrays = {output(x, "x", {T + 1, B, m + h}), output(gates, "gates", {T, B, 4 * h}),
              output(cells, "cells", {T + 1, B, h}), output(actions, "actions", {T, B, 8 + m}),
              output(stacks, "stacks", {B, network.lstm.stack_size(shape)})};
  }
};

template <class Function>
void released(Function function) {
  try {
    nb::gil_scoped_release release;
    function();
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError, "not enough memory for attention");
    throw nb::python_error();
  }
}

}  // namespace

void add_network(nb::module_& m, const Network& network) {
  using nb::arg;
  const auto lengths = arg("lengths").none();
  m.def(
      "attention",
      [&network](Array packed, int64_t heads, double p, uint64_t seed, Array outputs, Array log_sums, Array lengths,
                 int threads) {
        const AttentionCall call(packed, heads, lengths, threads);
        const float* in = input(packed, "packed", call.packed());
        float* out = output(outputs, "outputs", call.outputs());
        float* sums = output(log_sums, "log_sums", call.log_sums());
        const DropoutRate drop = rate(p, seed);
        released([&] { network.attention.forward(call.shape, drop, in, out, sums); });
      },
      arg("packed"), arg("heads"), arg("p"), arg("seed"), arg("outputs"), arg("log_sums"), lengths, arg("threads"));
  m.def(
      "attention_backward",
      [&network](Array packed, int64_t heads, double p, uint64_t seed, Array outputs, Array log_sums,
                 Array grad_outputs, Array grad_packed, Array lengths, int threads) {
        const AttentionCall call(packed, heads, lengths, threads);
        const float* in = input(packed, "packed", call.packed());
        const float* made = input(outputs, "outputs", call.outputs());
        const float* sums = input(log_sums, "log_sums", call.log_sums());
        const float* grad = input(grad_outputs, "grad_outputs", call.outputs());
        float* out = output(grad_packed, "grad_packed", call.packed());
        const DropoutRate drop = rate(p, seed);
        released([&] { network.attention.backward(call.shape, drop, in, made, sums, grad, out); });
      },
      arg("packed"), arg("heads"), arg("p"), arg("seed"), arg("outputs"), arg("log_sums"), arg("grad_outputs"),
      arg("grad_packed"), lengths, arg("threads"));
  m.def(
      "dropout",
      [&network](Array x, Array residual, bool relu, double p, uint64_t seed, Array y, int threads) {
        const Shape shape = any_shape(x, "x");
        const float* in = input(x, "x", shape);
        const float* add = optional_input(residual, "residual", shape);
        float* out = output(y, "y", shape);
        const DropoutRate drop = rate(p, seed);
        const int64_t count = x.size();
        released([&] { network.dropout.forward(count, drop, threads, relu, in, add, out); });
      },
      arg("x"), arg("residual").none(), arg("relu"), arg("p"), arg("seed"), arg("y"), arg("threads"));
  m.def(
      "dropout_backward",
      [&network](Array y, Array grad, double p, uint64_t seed, Array grad_x, int threads) {
        const Shape shape = any_shape(grad, "grad");
        const float* made = optional_input(y, "y", shape);
        const float* in = input(grad, "grad", shape);
        float* out = output(grad_x, "grad_x", shape);
        const DropoutRate drop = rate(p, seed);
        const int64_t count = grad.size();
        released([&] { network.dropout.backward(count, drop, threads, made, in, out); });
      },
      arg("y").none(), arg("grad"), arg("p"), arg("seed"), arg("grad_x"), arg("threads"));
  m.def("lstm_stack_size",
        [&network](int64_t steps, int64_t value) { return network.lstm.stack_size({1, steps, 8, value, 1, 1}); });
  m.def("lstm", [&network](Array x, Array gates, Array cells, Array actions, Array stacks, int64_t value_size,
                           Array inputs, Array weight, Array map, Array bias, int threads) {
    const LSTMCall call(network, x, gates, cells, actions, stacks, value_size, threads);
    const auto [B, T, h, m, size, n] = call.shape;
    const float* in = input(inputs, "inputs", {T, B, 4 * h});
    const float* matrix = input(weight, "weight", {m + h, 4 * h});
    const float *choose = input(map, "map", {h, 8 + m}), *add = input(bias, "bias", {8 + m});
    released([&] { network.lstm.forward(call.shape, in, matrix, choose, add, call.arrays); });
  });
  m.def("lstm_backward",
        [&network](Array x, Array gates, Array cells, Array actions, Array stacks, int64_t value_size, Array weight,
                   Array map, Array grad_hidden, Array grad_gates, Array grad_actions, int threads) {
          const LSTMCall call(network, x, gates, cells, actions, stacks, value_size, threads);
          const auto [B, T, h, m, size, n] = call.shape;
          const float* matrix = input(weight, "weight", {4 * h, m + h});
          const float* choose = input(map, "map", {8 + m, h});
          const float* grad = input(grad_hidden, "grad_hidden", {T, B, h});
          float* out = output(grad_gates, "grad_gates", {T, B, 4 * h});
          float* chosen = output(grad_actions, "grad_actions", {T, B, 8 + m});
          released([&] { network.lstm.backward(call.shape, matrix, choose, call.arrays, grad, out, chosen); });
        });
}
