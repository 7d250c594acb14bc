// The exception for memory that cannot be allocated. nanobind turns it into a MemoryError with its text.
#pragma once
#include <cstddef>
#include <cstdio>
#include <memory>
#include <new>
#include <vector>

namespace {  // otherwise the linker would keep one copy for all kernels, perhaps with unsupported instructions

class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(size_t bytes) { std::snprintf(text_, sizeof text_, "could not allocate %zu bytes", bytes); }
  const char* what() const noexcept override { return text_; }

 private:
  char text_[48];
};

template <class T>
struct ReportingAllocator : std::allocator<T> {
  template <class Other>
  struct rebind {
    using other = ReportingAllocator<Other>;
  };
  T* allocate(size_t count) {
    try {
      return std::allocator<T>::allocate(count);
    } catch (const std::bad_alloc&) {
      throw OutOfMemory(count * sizeof(T));
    }
  }
};

// A vector with an entry for each step. If it cannot be allocated, the exception says how many bytes it needs.
template <class T>
using StepVector = std::vector<T, ReportingAllocator<T>>;

}  // namespace
