// The Python functions for attention, dropout, cross-entropy and LSTMs. Arrays are on the CPU and contiguous. They are
// float32, except that those of cross-entropy may be float64, charts are float64, and lengths and targets are int64.
// Outputs are written in place.
#include "network_module.h"

#include "arrays.h"

namespace {

const auto kFloat = nb::dtype<float>();

// Addresses of float32 arrays of a given shape.
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
  if (!(p >= 0 && p < 1)) bad_value("p", "a number from 0 to less than 1", std::to_string(p));
  return {p, seed};
}

// The shape of the array that dropout is applied to, and the rate.
struct DropoutCall {
  const Shape shape;
  const int64_t count;
  const DropoutRate drop;
  DropoutCall(const Array& x, const char* name, double p, uint64_t seed)
      : shape(any_shape(x, name)), count(x.size()), drop(rate(p, seed)) {}
};

// The sizes of packed queries, keys and values (B, T, 3 * heads * size), and the lengths.
class AttentionCall {
 public:
  AttentionCall(const Array& packed, int64_t heads, const Array& lengths, int threads)
      : call_(packed, "packed", 3, lengths, threads) {
    const int64_t width = packed.shape(2);
    if (heads < 1 || width == 0 || width % (3 * heads))
      bad_value("packed", "rows of queries, keys and values for " + std::to_string(heads) + " heads of equal size",
                text(shape_of(packed)));
    shape = {call_.B, call_.T, heads, width / (3 * heads), call_.problem.lengths, threads};
  }
  AttentionShape shape;

  Shape packed() const { return {shape.batch, shape.steps, 3 * shape.heads * shape.size}; }
  Shape outputs() const { return {shape.batch, shape.steps, shape.heads * shape.size}; }
  Shape log_sums() const { return {shape.batch, shape.heads, shape.steps}; }

 private:
  const Call call_;
};

// The sizes of logits (rows, classes), and the targets.
class CrossEntropyCall {
 public:
  CrossEntropyShape shape;
  CrossEntropyCall(const Array& logits, const Array& targets, int64_t ignored, double smoothing, int threads) {
    const Shape found = any_shape(logits, "logits");
    if (found.size() != 2) bad_value("logits", "two axes", text(found));
    if (!(smoothing >= 0 && smoothing <= 1)) bad_value("smoothing", "a number from 0 to 1", std::to_string(smoothing));
    const bool wide = logits.dtype() == nb::dtype<double>();
    const void* classes = address(targets, "targets", nb::dtype<int64_t>(), {found[0]});
    shape = {found[0], found[1], ignored, smoothing, static_cast<const int64_t*>(classes), threads, wide};
  }
  void* in(const Array& array, const char* name, const Shape& shape) const {
    return address(array, name, this->shape.wide ? nb::dtype<double>() : kFloat, shape);
  }
  Shape logits() const { return {shape.rows, shape.classes}; }
  Shape kept() const { return {shape.rows, 2}; }

  void check(int64_t bad_row) const {
    if (bad_row < 0) return;
    const std::string expected = "a class from 0 to " + std::to_string(shape.classes - 1) + " or " +
                                 std::to_string(shape.ignored) + " (ignore_index)",
                      found = std::to_string(shape.targets[bad_row]) + " in row " + std::to_string(bad_row);
    throw nb::index_error(("targets: expected " + expected + ", got " + found).c_str());
  }
};

// The sizes and arrays of an LSTM with a stack.
struct LSTMCall {
  LSTMShape shape;
  LSTMArrays arrays;
  LSTMCall(const Array& x, const Array& gates, const Array& cells, const Array& actions, int64_t value,
           int64_t value_size, int threads) {
    const Shape row = any_shape(x, "x"), cell = any_shape(cells, "cells"), action = any_shape(actions, "actions");
    if (row.size() != 3) bad_value("x", "three axes", text(row));
    if (cell.size() != 3) bad_value("cells", "three axes", text(cell));
    if (action.size() != 3) bad_value("actions", "three axes", text(action));
    T = action[0], B = action[1], h = cell[2], m = row[2] - h, A = action[2];
    const int64_t choices = A - value;
    if (h < 1 || h % 8 || m < 1 || m % 8 || choices < 1 || choices % 8 || value < 1 || value % 8)
      bad_value("sizes of reading, hidden state, actions and value", "positive multiples of 8",
                text({m, h, choices, value}));
    if (value_size < 1 || value_size > value)
      bad_value("value_size", "an integer from 1 to " + std::to_string(value), std::to_string(value_size));
    shape = {B, T, h, m, choices, value, value_size, threads};
    arrays = {output(x, "x", {T + 1, B, m + h}), output(gates, "gates", {T, B, 4 * h}),
              output(cells, "cells", {T + 1, B, h}), output(actions, "actions", {T, B, A})};
  }
  LSTMInputs inputs(const Array& inputs, const Array& weight, const Array& map, const Array& bias) const {
    return {input(inputs, "inputs", {T, B, 4 * h}), input(weight, "weight", {m + h, 4 * h}), input(map, "map", {h, A}),
            input(bias, "bias", {A})};
  }
  LSTMGradients gradients(const Array& weight, const Array& map, const Array& hidden, const Array& gates,
                          const Array& actions) const {
    return {input(weight, "weight", {4 * h, m + h}), input(map, "map", {A, h}), input(hidden, "grad_hidden", {T, B, h}),
            output(gates, "grad_gates", {T, B, 4 * h}), output(actions, "grad_actions", {T, B, A})};
  }

 private:
  int64_t T, B, h, m, A;  // m: size of a reading; A: size of actions and value
};

// The arrays of an LSTM with a superposition stack.
struct SuperpositionCall : LSTMCall {
  float* stacks;
  SuperpositionCall(const SuperpositionLSTM& lstm, const Array& x, const Array& gates, const Array& cells,
                    const Array& actions, int64_t value, int64_t value_size, const Array& stacks, int threads)
      : LSTMCall(x, gates, cells, actions, value, value_size, threads),
        stacks(output(stacks, "stacks", {shape.batch, lstm.stack_size(shape.steps, value)})) {}
};

// The arrays of an LSTM with a nondeterministic stack; `charts` may be None.
struct NondeterministicCall : LSTMCall {
  NondeterministicLSTM::Automaton automaton;
  Kept charts{nullptr, 0};
  NondeterministicCall(const NondeterministicLSTM& lstm, const Array& x, const Array& gates, const Array& cells,
                       const Array& actions, int64_t value, int64_t value_size, const Array& charts, int64_t states,
                       int64_t symbols, int threads)
      : LSTMCall(x, gates, cells, actions, value, value_size, threads), automaton{int(states), int(symbols)} {
    const int64_t QS = states * symbols;
    if (states < 1 || symbols < 1 || shape.actions < QS * (2 * QS + states) || shape.reading < QS * value_size)
      bad_value("states and symbols", "an automaton whose actions and readings fit into the arrays",
                text({states, symbols}));
    if (!charts.is_valid()) return;
    const State found =
        states_in(charts, "charts", shape.batch, lstm.chart_size(automaton, shape.steps, value_size), 0);
    this->charts = {found.data, found.stride};
  }
};

template <class Function>
void released(Function function) {
  nb::gil_scoped_release release;
  function();
}

// The first arguments include the arrays that the forward pass writes: x, gates, cells, actions, and stacks or charts.
void add_lstms(nb::module_& m, const SuperpositionLSTM& superposition, const NondeterministicLSTM& nondeterministic) {
  using nb::arg;
  m.def("lstm_stack_size", [&](int64_t steps, int64_t value) { return superposition.stack_size(steps, value); });
  m.def("superposition_lstm", [&](Array x, Array gates, Array cells, Array actions, int64_t value, int64_t value_size,
                                  Array stacks, Array inputs, Array weight, Array map, Array bias, int threads) {
    const SuperpositionCall call(superposition, x, gates, cells, actions, value, value_size, stacks, threads);
    const LSTMInputs in = call.inputs(inputs, weight, map, bias);
    released([&] { superposition.forward(call.shape, in, call.arrays, call.stacks); });
  });
  m.def("superposition_lstm_backward",
        [&](Array x, Array gates, Array cells, Array actions, int64_t value, int64_t value_size, Array stacks,
            Array weight, Array map, Array grad_hidden, Array grad_gates, Array grad_actions, int threads) {
          const SuperpositionCall call(superposition, x, gates, cells, actions, value, value_size, stacks, threads);
          const LSTMGradients grads = call.gradients(weight, map, grad_hidden, grad_gates, grad_actions);
          released([&] { superposition.backward(call.shape, grads, call.arrays, call.stacks); });
        });
  m.def("lstm_chart_size", [&](int64_t states, int64_t symbols, int64_t steps, int64_t value_size) {
    return nondeterministic.chart_size({int(states), int(symbols)}, steps, value_size);
  });
  m.def(
      "nondeterministic_lstm",
      [&](Array x, Array gates, Array cells, Array actions, int64_t value, int64_t value_size, Array charts,
          int64_t states, int64_t symbols, Array inputs, Array weight, Array map, Array bias, Array bottom,
          int threads) {
        const NondeterministicCall call(nondeterministic, x, gates, cells, actions, value, value_size, charts, states,
                                        symbols, threads);
        const LSTMInputs in = call.inputs(inputs, weight, map, bias);
        const float* start = input(bottom, "bottom", {value_size});
        bool complete = false;
        released([&] {
          complete = nondeterministic.forward(call.shape, call.automaton, in, start, call.arrays, call.charts);
        });
        return complete;
      },
      arg("x"), arg("gates"), arg("cells"), arg("actions"), arg("value"), arg("value_size"), arg("charts").none(),
      arg("states"), arg("symbols"), arg("inputs"), arg("weight"), arg("map"), arg("bias"), arg("bottom"),
      arg("threads"));
  m.def("nondeterministic_lstm_backward", [&](Array x, Array gates, Array cells, Array actions, int64_t value,
                                              int64_t value_size, Array charts, int64_t states, int64_t symbols,
                                              Array weight, Array map, Array grad_hidden, Array grad_gates,
                                              Array grad_actions, Array grad_bottom, int threads) {
    const NondeterministicCall call(nondeterministic, x, gates, cells, actions, value, value_size, charts, states,
                                    symbols, threads);
    if (!charts.is_valid()) bad_type("charts", "an array, got None");
    const LSTMGradients grads = call.gradients(weight, map, grad_hidden, grad_gates, grad_actions);
    float* start = output(grad_bottom, "grad_bottom", {call.shape.batch, value_size});
    released([&] { nondeterministic.backward(call.shape, call.automaton, grads, call.arrays, call.charts, start); });
  });
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
        const DropoutCall call(x, "x", p, seed);
        const float* in = input(x, "x", call.shape);
        const float* add = optional_input(residual, "residual", call.shape);
        float* out = output(y, "y", call.shape);
        released([&] { network.dropout.forward(call.count, call.drop, threads, relu, in, add, out); });
      },
      arg("x"), arg("residual").none(), arg("relu"), arg("p"), arg("seed"), arg("y"), arg("threads"));
  m.def(
      "dropout_backward",
      [&network](Array y, Array grad, double p, uint64_t seed, Array grad_x, int threads) {
        const DropoutCall call(grad, "grad", p, seed);
        const float* made = optional_input(y, "y", call.shape);
        const float* in = input(grad, "grad", call.shape);
        float* out = output(grad_x, "grad_x", call.shape);
        released([&] { network.dropout.backward(call.count, call.drop, threads, made, in, out); });
      },
      arg("y").none(), arg("grad"), arg("p"), arg("seed"), arg("grad_x"), arg("threads"));
  m.def("cross_entropy", [&network](Array logits, Array targets, int64_t ignored, double smoothing, Array losses,
                                    Array kept, int threads) {
    const CrossEntropyCall call(logits, targets, ignored, smoothing, threads);
    const void* in = call.in(logits, "logits", call.logits());
    void *out = call.in(losses, "losses", {call.shape.rows}), *sums = call.in(kept, "kept", call.kept());
    int64_t bad_row = -1;
    released([&] { bad_row = network.cross_entropy.forward(call.shape, in, out, sums); });
    call.check(bad_row);
  });
  m.def("cross_entropy_backward", [&network](Array logits, Array targets, int64_t ignored, double smoothing, Array kept,
                                             Array grad_losses, Array grad_logits, int threads) {
    const CrossEntropyCall call(logits, targets, ignored, smoothing, threads);
    const void *in = call.in(logits, "logits", call.logits()), *sums = call.in(kept, "kept", call.kept()),
               *grad = call.in(grad_losses, "grad_losses", {call.shape.rows});
    void* out = call.in(grad_logits, "grad_logits", call.logits());
    int64_t bad_row = -1;
    released([&] { bad_row = network.cross_entropy.backward(call.shape, in, sums, grad, out); });
    call.check(bad_row);
  });
  m.def("sum_of_products", [&network](Array a, Array b, Array out, int threads) {
    const Shape left = any_shape(a, "a"), right = any_shape(b, "b");
    if (left.size() != 2) bad_value("a", "two axes", text(left));
    if (right.size() != 2 || right[1] % 8) bad_value("b", "two axes, and a multiple of 8 columns", text(right));
    const float *x = input(a, "a", left), *y = input(b, "b", {left[0], right[1]});
    float* sums = output(out, "out", {left[1], right[1]});
    released([&] { network.sum_of_products(left[0], left[1], right[1], x, y, sums, threads); });
  });
  add_lstms(m, network.superposition_lstm, network.nondeterministic_lstm);
}
