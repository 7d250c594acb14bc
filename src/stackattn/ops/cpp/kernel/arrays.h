// Arrays from Python. Every array is checked here before its address is passed to the kernel.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernel.h"

namespace nb = nanobind;

// No constraints on dtype and memory order, so that nanobind never converts an array: a converted array would be a
// temporary copy, and the results written to it would be lost.
using Array = nb::ndarray<>;
using Shape = std::vector<int64_t>;

inline std::string text(const Shape& shape) {
  std::string out = "(";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + (shape.size() == 1 ? ",)" : ")");
}

inline std::string name_of(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  std::string kind;
  switch (Code(dtype.code)) {
    case Code::Int: kind = "int"; break;
    case Code::UInt: kind = "uint"; break;
    case Code::Float: kind = "float"; break;
    case Code::Bfloat: kind = "bfloat"; break;
    case Code::Complex: kind = "complex"; break;
    case Code::Bool: return "bool";
    default: return "an unknown dtype of " + std::to_string(dtype.bits) + " bits";
  }
  return kind + std::to_string(dtype.bits);
}

inline Shape shape_of(const Array& array) { return Shape(array.shape_ptr(), array.shape_ptr() + array.ndim()); }

[[noreturn]] inline void bad_type(const char* name, const std::string& expected) {
  throw nb::type_error((std::string(name) + ": expected " + expected).c_str());
}
[[noreturn]] inline void bad_value(const char* name, const std::string& expected, const std::string& found) {
  throw nb::value_error((std::string(name) + ": expected " + expected + ", got " + found).c_str());
}

inline void check_type(const Array& array, const char* name, nb::dlpack::dtype dtype) {
  if (!array.is_valid()) bad_type(name, "an array, got None");
  if (array.device_type() != nb::device::cpu::value) bad_type(name, "an array on the CPU, got one on another device");
  if (array.dtype() != dtype) bad_type(name, name_of(dtype) + ", got " + name_of(array.dtype()));
}

// The address of a contiguous array of this dtype and shape.
inline void* address(const Array& array, const char* name, nb::dlpack::dtype dtype, const Shape& shape) {
  check_type(array, name, dtype);
  if (shape_of(array) != shape) bad_value(name, "shape " + text(shape), text(shape_of(array)));
  int64_t stride = 1;
  for (size_t i = array.ndim(); i-- > 0; stride *= shape[i])
    if (array.size() > 0 && shape[i] > 1 && array.stride(i) != stride)
      bad_value(name, "a contiguous array", "an array with other strides");
  return array.data();
}

// Like `address`, but the array may be None; the result is then null.
inline void* optional_address(const Array& array, const char* name, nb::dlpack::dtype dtype, const Shape& shape) {
  return array.is_valid() ? address(array, name, dtype, shape) : nullptr;
}

// States (or their gradients) with room for at least `size` numbers each, in rows that begin on 64-byte boundaries.
inline State states_in(const Array& array, const char* name, int64_t batch, int64_t size, int64_t before) {
  check_type(array, name, nb::dtype<double>());
  if (array.ndim() != 2 || int64_t(array.shape(0)) != batch || int64_t(array.shape(1)) < size)
    bad_value(name, "shape " + text({batch, size}) + " or longer rows", text(shape_of(array)));
  const bool aligned = reinterpret_cast<uintptr_t>(array.data()) % 64 == 0 && (batch == 1 || array.stride(0) % 8 == 0);
  if (array.size() > 0 && !(aligned && (array.shape(1) == 1 || array.stride(1) == 1)))
    bad_value(name, "contiguous rows that begin on 64-byte boundaries", "another layout");
  if (batch > 1 && array.stride(0) < size) bad_value(name, "rows that do not overlap", "overlapping rows");
  return {static_cast<double*>(array.data()), batch > 1 ? array.stride(0) : size, before};
}

inline State optional_states_in(const Array& array, const char* name, int64_t batch, int64_t size, int64_t before) {
  return array.is_valid() ? states_in(array, name, batch, size, before) : State{nullptr, 0, before};
}

// What all calls have in common: sizes (taken from the first array), dtype, and lengths.
class Call {
 public:
  // `dims` is the number of axes of `first`. With 3 axes, such as those of actions (B,T,3), Q and S are 1.
  Call(const Array& first, const char* name, size_t dims, const Array& lengths, int threads) {
    if (!first.is_valid()) bad_type(name, "an array, got None");
    if (first.ndim() != dims) bad_value(name, std::to_string(dims) + " axes", text(shape_of(first)));
    const bool wide = first.dtype() == nb::dtype<double>();
    dtype = wide ? nb::dtype<double>() : nb::dtype<float>();
    B = first.shape(0), T = first.shape(1), Q = dims == 3 ? 1 : first.shape(2), S = dims == 3 ? 1 : first.shape(3);
    if (Q < 1 || S < 1) bad_value(name, "at least one state and one symbol", text(shape_of(first)));
    if (lengths.is_valid()) {
      const auto* given = static_cast<const int64_t*>(address(lengths, "lengths", nb::dtype<int64_t>(), {B}));
      lengths_.assign(given, given + B);
      for (const int64_t length : lengths_)
        if (length < 0 || length > T)
          bad_value("lengths", "values from 0 to " + std::to_string(T), std::to_string(length));
    }
    problem = {B, T, Q, S, lengths.is_valid() ? lengths_.data() : nullptr, threads, wide};
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  int64_t B, T, Q, S;
  nb::dlpack::dtype dtype;
  Problem problem;

  Shape push() const { return {B, T, Q, S, Q, S}; }
  Shape pop() const { return {B, T, Q, S, Q}; }

 private:
  std::vector<int64_t> lengths_;  // a copy: Python may change the memory of the original during the call
};
