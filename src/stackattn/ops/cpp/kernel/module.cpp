// The Python module. Its functions check their arrays and call the kernel for the best instruction set.
#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "arrays.h"
#include "kernel.h"
#include "network_module.h"
#include "pool.h"

// The functions that CMakeLists.txt compiles for one instruction set.
struct Kernel {
  const char* name;
  const FullPass& full_pass;
  const States& states;
  const Readings& readings;
  const Windowed& windowed;
  const Vectors& vectors;
  const Network& network;
};

#define DECLARE(isa)                                                                                          \
  namespace isa {                                                                                             \
  extern const FullPass full_pass;                                                                            \
  extern const States states;                                                                                 \
  extern const Readings readings;                                                                             \
  extern const Windowed windowed;                                                                             \
  extern const Vectors vectors;                                                                               \
  extern const Attention attention;                                                                           \
  extern const Dropout dropout;                                                                               \
  extern const CrossEntropy cross_entropy;                                                                    \
  extern const SuperpositionLSTM superposition_lstm;                                                          \
  extern const NondeterministicLSTM nondeterministic_lstm;                                                    \
  extern const SumOfProducts sum_of_products;                                                                 \
  const Network network = {attention,      dropout, cross_entropy, superposition_lstm, nondeterministic_lstm, \
                           sum_of_products};                                                                  \
  const Kernel kernel = {#isa, full_pass, states, readings, windowed, vectors, network};                      \
  }
DECLARE(kernel_portable)
#if defined(STACKATTN_X86)
DECLARE(kernel_avx2)
DECLARE(kernel_avx512)
#endif

namespace {

// The best variant for this processor, or the one that STACKATTN_KERNEL (portable, avx2, avx512) selects for tests.
const Kernel* choose() {
  std::vector<const Kernel*> able;  // best first
#if defined(STACKATTN_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    able.push_back(&kernel_avx512::kernel);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) able.push_back(&kernel_avx2::kernel);
#endif
  able.push_back(&kernel_portable::kernel);
  const char* wanted = std::getenv("STACKATTN_KERNEL");
  if (!wanted || !*wanted) return able.front();
  std::string names;
  for (const Kernel* kernel : able) {
    if (kernel->name == std::string("kernel_") + wanted) return kernel;
    names += (names.empty() ? "" : ", ") + std::string(kernel->name).substr(7);
  }
  throw std::runtime_error("STACKATTN_KERNEL: expected one of " + names + " on this processor, got " + wanted);
}

const Kernel& kernel() {
  static const Kernel* chosen = choose();
  return *chosen;
}

template <class Function>
nb::tuple run(Function function) {
  Report found;
  {
    nb::gil_scoped_release release;
    found = function();
  }
  return nb::make_tuple(found.argument, found.sequence, found.step, found.in_range);
}

nb::tuple nondeterministic(Array log_push, Array log_replace, Array log_pop, Array weights, Array lengths,
                           int threads) {
  const Call call(log_push, "log_push", 6, lengths, threads);
  const void* push = address(log_push, "log_push", call.dtype, call.push());
  const void* replace = address(log_replace, "log_replace", call.dtype, call.push());
  const void* pop = address(log_pop, "log_pop", call.dtype, call.pop());
  void* out = address(weights, "weights", call.dtype, {call.B, call.T, call.T + 1, call.Q, call.S});
  return run([&] { return kernel().full_pass.nondeterministic(call.problem, push, replace, pop, out); });
}

nb::tuple nondeterministic_backward(Array log_push, Array log_replace, Array log_pop, Array grad_weights,
                                    Array grad_push, Array grad_replace, Array grad_pop, Array lengths, int threads) {
  const Call call(log_push, "log_push", 6, lengths, threads);
  const void* push = address(log_push, "log_push", call.dtype, call.push());
  const void* replace = address(log_replace, "log_replace", call.dtype, call.push());
  const void* pop = address(log_pop, "log_pop", call.dtype, call.pop());
  const void* grad = address(grad_weights, "grad_weights", call.dtype, {call.B, call.T, call.T + 1, call.Q, call.S});
  void* out_push = address(grad_push, "grad_push", call.dtype, call.push());
  void* out_replace = address(grad_replace, "grad_replace", call.dtype, call.push());
  void* out_pop = address(grad_pop, "grad_pop", call.dtype, call.pop());
  return run([&] {
    return kernel().full_pass.nondeterministic_backward(call.problem, push, replace, pop, grad, out_push, out_replace,
                                                        out_pop);
  });
}

nb::tuple superposition(Array actions, Array weights, Array lengths, int threads) {
  const Call call(actions, "actions", 3, lengths, threads);
  const void* in = address(actions, "actions", call.dtype, {call.B, call.T, 3});
  void* out = address(weights, "weights", call.dtype, {call.B, call.T, call.T});
  return run([&] { return kernel().full_pass.superposition(call.problem, in, out); });
}

nb::tuple superposition_backward(Array actions, Array grad_weights, Array grad_actions, Array lengths, int threads) {
  const Call call(actions, "actions", 3, lengths, threads);
  const void* in = address(actions, "actions", call.dtype, {call.B, call.T, 3});
  const void* grad = address(grad_weights, "grad_weights", call.dtype, {call.B, call.T, call.T});
  void* out = address(grad_actions, "grad_actions", call.dtype, {call.B, call.T, 3});
  return run([&] { return kernel().full_pass.superposition_backward(call.problem, in, grad, out); });
}

int64_t state_size(int64_t states, int64_t symbols, int64_t steps) {
  if (states < 1) bad_value("states", "at least 1", std::to_string(states));
  if (symbols < 1) bad_value("symbols", "at least 1", std::to_string(symbols));
  if (steps < 0) bad_value("steps", "at least 0", std::to_string(steps));
  return kernel().states.state_size(states, symbols, steps);
}

// The shapes of a state's steps and of their attention weights.
Shape steps_shape(const Call& call, bool superposition) {
  if (superposition) return {call.B, call.T, 3};
  return {call.B, call.T, call.Q, call.S, 2 * call.Q * call.S + call.Q};
}
Shape weights_shape(const Call& call, bool superposition, int64_t before) {
  if (superposition) return {call.B, call.T, before + call.T};
  return {call.B, call.T, before + call.T + 1, call.Q, call.S};
}

nb::tuple extend(Array data, int64_t before, bool superposition, Array steps, Array weights, Array lengths,
                 int threads) {
  const Call call(steps, "steps", superposition ? 3 : 5, lengths, threads);
  if (before < 0) bad_value("before", "at least 0", std::to_string(before));
  const State state = states_in(data, "data", call.B, state_size(call.Q, call.S, before + call.T), before);
  const void* in = address(steps, "steps", call.dtype, steps_shape(call, superposition));
  void* out = address(weights, "weights", call.dtype, weights_shape(call, superposition, before));
  return run([&] { return kernel().states.extend(call.problem, state, superposition, in, out); });
}

nb::tuple retract(Array data, int64_t before, bool superposition, Array steps, Array grad_weights, Array grad_after,
                  Array grad_before, Array grad_steps, Array lengths, int threads) {
  const Call call(steps, "steps", superposition ? 3 : 5, lengths, threads);
  if (before < 0) bad_value("before", "at least 0", std::to_string(before));
  const int64_t size = state_size(call.Q, call.S, before + call.T), size_before = state_size(call.Q, call.S, before);
  const State state = states_in(data, "data", call.B, size, before);
  const State after = optional_states_in(grad_after, "grad_after", call.B, size, before);
  const State out_before = states_in(grad_before, "grad_before", call.B, size_before, before);
  const void* in = address(steps, "steps", call.dtype, steps_shape(call, superposition));
  const void* grad =
      optional_address(grad_weights, "grad_weights", call.dtype, weights_shape(call, superposition, before));
  void* out = address(grad_steps, "grad_steps", call.dtype, steps_shape(call, superposition));
  return run(
      [&] { return kernel().states.retract(call.problem, state, superposition, in, grad, after, out_before, out); });
}

// The sizes and shapes of a call for readings or their gradients; `kept` may be None.
struct ReadingsCall {
  Call call;
  const bool superposition;
  const int64_t m;
  const Shape steps, values, readings;
  ReadingsCall(const Array& steps_in, const Array& values_in, bool superposition, const Array& lengths, int threads)
      : call(steps_in, "steps", superposition ? 3 : 5, lengths, threads), superposition(superposition),
        m(values_in.is_valid() && values_in.ndim() == 3 ? values_in.shape(2) : 0),
        steps(steps_shape(call, superposition)), values({call.B, call.T + !superposition, m}),
        readings(superposition ? Shape{call.B, call.T, m} : Shape{call.B, call.T, call.Q, call.S, m}) {
    if (m < 1)
      bad_value("values", "three axes, the last of size at least 1",
                values_in.is_valid() ? text(shape_of(values_in)) : "None");
  }
  Kept kept(const Array& array) const {
    if (!array.is_valid()) return {nullptr, 0};
    const State found = states_in(array, "kept", call.B, kernel().readings.kept_size(call.Q, call.S, call.T, m), 0);
    return {found.data, found.stride};
  }
};

nb::tuple readings(Array steps, Array values, bool superposition, Array kept, Array readings, Array lengths,
                   int threads) {
  const ReadingsCall call(steps, values, superposition, lengths, threads);
  const auto dtype = call.call.dtype;
  const void* in = address(steps, "steps", dtype, call.steps);
  const void* vectors = address(values, "values", dtype, call.values);
  void* out = address(readings, "readings", dtype, call.readings);
  const Kept memory = call.kept(kept);
  return run(
      [&] { return kernel().readings.forward(call.call.problem, superposition, call.m, in, vectors, memory, out); });
}

nb::tuple readings_backward(Array steps, Array values, bool superposition, Array kept, Array grad_readings,
                            Array grad_steps, Array grad_values, Array lengths, int threads) {
  const ReadingsCall call(steps, values, superposition, lengths, threads);
  const auto dtype = call.call.dtype;
  const void* in = address(steps, "steps", dtype, call.steps);
  const void* vectors = address(values, "values", dtype, call.values);
  const void* grad = address(grad_readings, "grad_readings", dtype, call.readings);
  void* out_steps = address(grad_steps, "grad_steps", dtype, call.steps);
  void* out_values = address(grad_values, "grad_values", dtype, call.values);
  const Kept memory = call.kept(kept);
  return run([&] {
    return kernel().readings.backward(call.call.problem, superposition, call.m, in, vectors, memory, grad, out_steps,
                                      out_values);
  });
}

// The arrays of the windowed stack and the shapes of their gradients; a band may be None.
struct WindowCall {
  Call call;
  int64_t before, m;
  WindowArrays arrays;
  Shape steps, values, history, rows;
  WindowCall(const Array& steps_in, const Array& values_in, const Array& history_in, const Array& rows_in,
             int64_t window, const Array& lengths, int threads)
      : call(values_in, "values", 3, lengths, threads) {
    if (!steps_in.is_valid()) bad_type("steps", "an array, got None");
    if (steps_in.ndim() != 5) bad_value("steps", "five axes", text(shape_of(steps_in)));
    before = steps_in.shape(1) - call.T, m = values_in.shape(2);
    call.Q = call.problem.states = steps_in.shape(2), call.S = call.problem.symbols = steps_in.shape(3);
    if (call.Q < 1 || call.S < 1) bad_value("steps", "at least one state and one symbol", text(shape_of(steps_in)));
    if (call.T < 1 || m < 1)
      bad_value("values", "at least one step and vectors of at least one number", text(shape_of(values_in)));
    if (before < 0)
      bad_value("steps", "at least " + std::to_string(call.T) + " steps, one for each value", text(shape_of(steps_in)));
    if (before >= window)
      bad_value("window", "more than " + std::to_string(before) + ", the number of earlier steps",
                std::to_string(window));
    const int64_t row = call.Q * call.S * (m + 2) + 1;
    steps = {call.B, before + call.T, call.Q, call.S, 2 * call.Q * call.S + call.Q};
    values = {call.B, call.T, m}, history = {call.B, before + 1, row}, rows = {call.B, call.T, row};
    arrays = {m,
              window,
              before,
              address(steps_in, "steps", call.dtype, steps),
              address(values_in, "values", call.dtype, values),
              static_cast<double*>(address(history_in, "history", nb::dtype<double>(), history)),
              static_cast<double*>(address(rows_in, "rows", nb::dtype<double>(), rows))};
  }
  Kept band(const Array& array, const char* name, int64_t count) const {
    const Shape shape = {call.B, kernel().windowed.band_size(call.Q, call.S, count)};
    void* data = optional_address(array, name, nb::dtype<double>(), shape);
    return {static_cast<double*>(data), shape[1]};
  }
};

nb::tuple windowed(Array steps, Array values, Array history, int64_t window, Array band, Array band_after, Array rows,
                   Array lengths, int threads) {
  const WindowCall call(steps, values, history, rows, window, lengths, threads);
  const Kept old_band = call.band(band, "band", call.before);
  const Kept new_band = call.band(band_after, "band_after", std::min(window - 1, call.before + call.call.T));
  return run([&] { return kernel().windowed.forward(call.call.problem, call.arrays, old_band, new_band); });
}

nb::tuple windowed_backward(Array steps, Array values, Array history, int64_t window, Array rows, Array grad_rows,
                            Array grad_steps, Array grad_values, Array grad_history, Array lengths, int threads) {
  const WindowCall call(steps, values, history, rows, window, lengths, threads);
  const WindowGradients gradients = {
      static_cast<double*>(address(grad_rows, "grad_rows", nb::dtype<double>(), call.rows)),
      address(grad_steps, "grad_steps", call.call.dtype, call.steps),
      address(grad_values, "grad_values", call.call.dtype, call.values),
      static_cast<double*>(address(grad_history, "grad_history", nb::dtype<double>(), call.history))};
  return run([&] { return kernel().windowed.backward(call.call.problem, call.arrays, gradients); });
}

// The sizes and shapes of a call for superposition stacks that are stored as vectors.
struct VectorsCall {
  Call call;
  VectorSizes sizes;
  const Shape actions, values, stacks;
  VectorsCall(const Array& actions_in, const Array& values_in, const Array& stacks_in, int64_t depth, bool with_stack,
              const Array& lengths, int threads)
      : call(actions_in, "actions", 3, lengths, threads), sizes(sizes_of(values_in, stacks_in, depth, with_stack)),
        actions({call.B, call.T, 3}), values({call.B, call.T, sizes.m}), stacks({call.B, sizes.height, sizes.m}) {}

  VectorSizes sizes_of(const Array& values_in, const Array& stacks_in, int64_t depth, bool with_stack) const {
    for (const Array* array : {&values_in, &stacks_in}) {
      const char* name = array == &values_in ? "values" : "stacks";
      if (!array->is_valid()) bad_type(name, "an array, got None");
      if (array->ndim() != 3 || array->shape(2) < 1)
        bad_value(name, "three axes, the last of size at least 1", text(shape_of(*array)));
    }
    const int64_t m = values_in.shape(2), height = stacks_in.shape(1);
    if (depth < 1) bad_value("depth", "at least 1", std::to_string(depth));
    if (depth < height)
      bad_value("depth", "at least " + std::to_string(height) + ", the height of the stack", std::to_string(depth));
    return {m, height, depth, with_stack ? std::min(height + call.T, depth) : 0};
  }
  Shape result() const { return {call.B, call.T + sizes.height_after, sizes.m}; }
};

nb::tuple vectors(Array actions, Array values, Array stacks, int64_t depth, bool with_stack, Array result,
                  Array lengths, int threads) {
  const VectorsCall call(actions, values, stacks, depth, with_stack, lengths, threads);
  const auto dtype = call.call.dtype;
  const void* in = address(actions, "actions", dtype, call.actions);
  const void* pushed = address(values, "values", dtype, call.values);
  const void* first = address(stacks, "stacks", dtype, call.stacks);
  void* out = address(result, "result", dtype, call.result());
  const Problem& p = call.call.problem;
  return run([&] { return kernel().vectors.forward(p, call.sizes, in, pushed, first, out); });
}

nb::tuple vectors_backward(Array actions, Array values, Array stacks, int64_t depth, bool with_stack, Array grad,
                           Array grad_actions, Array grad_values, Array grad_stacks, Array lengths, int threads) {
  const VectorsCall call(actions, values, stacks, depth, with_stack, lengths, threads);
  const auto dtype = call.call.dtype;
  const void* in = address(actions, "actions", dtype, call.actions);
  const void* pushed = address(values, "values", dtype, call.values);
  const void* first = address(stacks, "stacks", dtype, call.stacks);
  const void* upstream = address(grad, "grad", dtype, call.result());
  void* out_actions = address(grad_actions, "grad_actions", dtype, call.actions);
  void* out_values = address(grad_values, "grad_values", dtype, call.values);
  void* out_stacks = address(grad_stacks, "grad_stacks", dtype, call.stacks);
  return run([&] {
    return kernel().vectors.backward(call.call.problem, call.sizes, in, pushed, first, upstream, out_actions,
                                     out_values, out_stacks);
  });
}

#if defined(STACKATTN_SANITIZE)
// A deliberate error, which the sanitizers must report: reads entry `index` of an array of 8 numbers.
double read_beyond(int64_t index) {
  const std::vector<double> numbers(8, 1.0);
  return numbers.data()[index];
}
int overflow(int x) { return x + 2147483647; }  // a second deliberate error: signed overflow
#endif

}  // namespace

// Version of the functions below and in network_module.cpp. When a function is added or removed, or when its arguments
// change, increase the version here and in ops/dispatch.py, which rejects a kernel of another version.
constexpr int INTERFACE = 8;

// Arrays are on the CPU and contiguous (states and kept charts: contiguous rows that begin on 64-byte boundaries). They
// are float32 or float64, all of one dtype, except that lengths are int64, and that states, kept charts, and the
// history, rows and bands of a windowed stack are always float64. Outputs are written in place. Forward and backward
// passes return the fields of a Report. network_module.cpp describes its own functions.
NB_MODULE(_kernel, m) {
  kernel();  // so that an invalid STACKATTN_KERNEL raises an ImportError
  using nb::arg;
  const auto lengths = arg("lengths").none();
  m.attr("interface") = INTERFACE;
  m.def("name", [] { return kernel().name; });
  m.def("nondeterministic", &nondeterministic, arg("log_push"), arg("log_replace"), arg("log_pop"), arg("weights"),
        lengths, arg("threads"));
  m.def("nondeterministic_backward", &nondeterministic_backward, arg("log_push"), arg("log_replace"), arg("log_pop"),
        arg("grad_weights"), arg("grad_push"), arg("grad_replace"), arg("grad_pop"), lengths, arg("threads"));
  m.def("superposition", &superposition, arg("actions"), arg("weights"), lengths, arg("threads"));
  m.def("superposition_backward", &superposition_backward, arg("actions"), arg("grad_weights"), arg("grad_actions"),
        lengths, arg("threads"));
#if defined(STACKATTN_SANITIZE)
  m.def("read_beyond", &read_beyond);
  m.def("overflow", &overflow);
#endif
  m.def("pooled_array", &pooled_array, arg("rows"), arg("columns"));
  m.def("pooled_bytes", [] { return pool().kept(); });
  m.def("state_size", &state_size, arg("states"), arg("symbols"), arg("steps"));
  m.def("extend", &extend, arg("data"), arg("before"), arg("superposition"), arg("steps"), arg("weights"), lengths,
        arg("threads"));
  m.def("retract", &retract, arg("data"), arg("before"), arg("superposition"), arg("steps"), arg("grad_weights").none(),
        arg("grad_after").none(), arg("grad_before"), arg("grad_steps"), lengths, arg("threads"));
  m.def("kept_size", [](int64_t states, int64_t symbols, int64_t steps, int64_t m) {
    return kernel().readings.kept_size(states, symbols, steps, m);
  });
  m.def("readings", &readings, arg("steps"), arg("values"), arg("superposition"), arg("kept").none(), arg("readings"),
        lengths, arg("threads"));
  m.def("readings_backward", &readings_backward, arg("steps"), arg("values"), arg("superposition"), arg("kept").none(),
        arg("grad_readings"), arg("grad_steps"), arg("grad_values"), lengths, arg("threads"));
  m.def("band_size", [](int64_t states, int64_t symbols, int64_t steps) {
    return kernel().windowed.band_size(states, symbols, steps);
  });
  m.def("windowed", &windowed, arg("steps"), arg("values"), arg("history"), arg("window"), arg("band").none(),
        arg("band_after").none(), arg("rows"), lengths, arg("threads"));
  m.def("windowed_backward", &windowed_backward, arg("steps"), arg("values"), arg("history"), arg("window"),
        arg("rows"), arg("grad_rows"), arg("grad_steps"), arg("grad_values"), arg("grad_history"), lengths,
        arg("threads"));
  m.def("vectors", &vectors, arg("actions"), arg("values"), arg("stacks"), arg("depth"), arg("with_stack"),
        arg("result"), lengths, arg("threads"));
  m.def("vectors_backward", &vectors_backward, arg("actions"), arg("values"), arg("stacks"), arg("depth"),
        arg("with_stack"), arg("grad"), arg("grad_actions"), arg("grad_values"), arg("grad_stacks"), lengths,
        arg("threads"));
  add_network(m, kernel().network);
}
