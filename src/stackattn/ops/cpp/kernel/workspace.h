// Working memory of a thread: charts, stacks and matrices.
#pragma once
#include <cstddef>
#include <cstdlib>

#include "out_of_memory.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace STACKATTN_KERNEL {

// A thread's memory, reused for each of its sequences because touching new memory is slow. It is not initialised:
// callers clear what must be zero.
class Workspace {
 public:
  Workspace() = default;
  ~Workspace() { std::free(memory_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // Discards everything that has been taken, and makes room for `doubles` numbers.
  void start(size_t doubles) {
    if (doubles > room_) {
      constexpr size_t kHuge = size_t(1) << 21;
      const size_t bytes = (doubles * sizeof(double) + kHuge) / kHuge * kHuge;
      keep_at_most(0);
      memory_ = std::aligned_alloc(kHuge, bytes);
      if (!memory_) throw OutOfMemory(bytes);
#if defined(__linux__)
      madvise(memory_, bytes, MADV_HUGEPAGE);  // a hint: huge pages mean fewer page faults
#endif
      room_ = bytes / sizeof(double);
    }
    next_ = static_cast<double*>(memory_);
  }
  // Returns the memory to the system if it is larger than `bytes`.
  void keep_at_most(size_t bytes) {
    if (room_ * sizeof(double) <= bytes) return;
    std::free(memory_);
    memory_ = nullptr;
    room_ = 0;
  }
  // Room for `doubles` numbers on a 64-byte boundary, from the memory that `start` has made available.
  double* take(size_t doubles) {
    double* p = next_;
    next_ += (doubles + 7) / 8 * 8;
    return p;
  }

 private:
  void* memory_ = nullptr;
  size_t room_ = 0;
  double* next_ = nullptr;
};

inline Workspace& own_workspace() {
  static thread_local Workspace work;
  return work;
}

// Doubles that begin on a 64-byte boundary, as aligned vector loads require.
class Aligned {
 public:
  explicit Aligned(size_t count) : numbers_(static_cast<double*>(std::aligned_alloc(64, (count + 7) / 8 * 64))) {
    if (!numbers_) throw OutOfMemory(count * sizeof(double));
  }
  ~Aligned() { std::free(numbers_); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  double* data() { return numbers_; }

 private:
  double* numbers_;
};

}  // namespace STACKATTN_KERNEL
