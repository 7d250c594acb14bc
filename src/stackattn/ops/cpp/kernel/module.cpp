// Python's door to the kernel: numpy-like arrays in and out by pointer, and the choice of the instruction set.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernel.h"

namespace nb = nanobind;

// What CMakeLists.txt compiles for one instruction set.
struct Kernel {
  const char* name;
  const FullPass& full_pass;
  const States& states;
};

#define DECLARE(isa)                                     \
  namespace isa {                                        \
  extern const FullPass full_pass;                       \
  extern const States states;                            \
  const Kernel kernel = {#isa, full_pass, states};       \
  }
DECLARE(kernel_portable)
#if defined(STACKATTN_X86)
DECLARE(kernel_avx2)
DECLARE(kernel_avx512)
#endif

namespace {

// The best variant for this processor; STACKATTN_KERNEL=portable, avx2 or avx512 asks for a certain one, to test it.
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

// Addresses and sizes come from stackattn.ops.native, which has checked them.
using Address = uintptr_t;
const void* in(Address a) { return reinterpret_cast<const void*>(a); }
void* out(Address a) { return reinterpret_cast<void*>(a); }

// A hint: large memory that is read again and again is read faster from huge pages, where the system has them.
void prefer_huge_pages(Address begin, size_t bytes) {
#if defined(__linux__)
  constexpr size_t kPage = 4096;
  const Address first = (begin + kPage - 1) / kPage * kPage, last = (begin + bytes) / kPage * kPage;
  if (first < last) madvise(out(first), last - first, MADV_HUGEPAGE);
#endif
}

Problem problem(nb::tuple sizes, Address lengths, int threads, bool wide) {
  return {nb::cast<int64_t>(sizes[0]), nb::cast<int64_t>(sizes[1]), nb::cast<int64_t>(sizes[2]), nb::cast<int64_t>(sizes[3]),
          static_cast<const int64_t*>(in(lengths)), threads, wide};
}

template <class Call>
nb::tuple run(Call call) {
  Report found;
  {
    nb::gil_scoped_release release;
    found = call();
  }
  return nb::make_tuple(found.argument, found.sequence, found.step, found.in_range);
}

}  // namespace

NB_MODULE(_kernel, m) {
  kernel();  // so that a wrong STACKATTN_KERNEL is an ImportError
  m.def("name", [] { return kernel().name; });
  m.def("nondeterministic", [](nb::tuple sizes, Address lengths, int threads, bool wide, Address push, Address replace,
                               Address pop, Address weights) {
    const Problem p = problem(sizes, lengths, threads, wide);
    return run([&] { return kernel().full_pass.nondeterministic(p, in(push), in(replace), in(pop), out(weights)); });
  });
  m.def("nondeterministic_backward",
        [](nb::tuple sizes, Address lengths, int threads, bool wide, Address push, Address replace, Address pop,
           Address grad_weights, Address grad_push, Address grad_replace, Address grad_pop) {
          const Problem p = problem(sizes, lengths, threads, wide);
          return run([&] {
            return kernel().full_pass.nondeterministic_backward(p, in(push), in(replace), in(pop), in(grad_weights), out(grad_push),
                                                      out(grad_replace), out(grad_pop));
          });
        });
  m.def("superposition", [](nb::tuple sizes, Address lengths, int threads, bool wide, Address actions, Address weights) {
    const Problem p = problem(sizes, lengths, threads, wide);
    return run([&] { return kernel().full_pass.superposition(p, in(actions), out(weights)); });
  });
  m.def("superposition_backward", [](nb::tuple sizes, Address lengths, int threads, bool wide, Address actions,
                                     Address grad_weights, Address grad_actions) {
    const Problem p = problem(sizes, lengths, threads, wide);
    return run([&] { return kernel().full_pass.superposition_backward(p, in(actions), in(grad_weights), out(grad_actions)); });
  });
  m.def("prefer_huge_pages", &prefer_huge_pages);
  m.def("state_size", [](int64_t states, int64_t symbols, int64_t steps) { return kernel().states.state_size(states, symbols, steps); });
  m.def("extend", [](nb::tuple sizes, Address lengths, int threads, bool wide, Address data, int64_t stride, int64_t before,
                     bool superposition, Address steps, Address weights) {
    const Problem p = problem(sizes, lengths, threads, wide);
    const State state{static_cast<double*>(out(data)), stride, before};
    return run([&] { return kernel().states.extend(p, state, superposition, in(steps), out(weights)); });
  });
  m.def("retract", [](nb::tuple sizes, Address lengths, int threads, bool wide, Address data, int64_t stride, int64_t before,
                      bool superposition, Address steps, Address grad_weights, Address grad_after, int64_t after_stride,
                      Address grad_before, int64_t before_stride, Address grad_steps) {
    const Problem p = problem(sizes, lengths, threads, wide);
    const State state{static_cast<double*>(out(data)), stride, before};
    const State grad_of_this{static_cast<double*>(out(grad_after)), after_stride, before};
    const State grad_of_last{static_cast<double*>(out(grad_before)), before_stride, before};
    return run([&] {
      return kernel().states.retract(p, state, superposition, in(steps), in(grad_weights), grad_of_this, grad_of_last, out(grad_steps));
    });
  });
}
