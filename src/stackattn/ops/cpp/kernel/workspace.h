// Memory for the charts: a thread's own, used again and again.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace STACKATTN_KERNEL {

// A thread's memory, used again for each of its sequences: fresh memory is slow to touch. It is left as it comes: every user clears what
// must be zero.
class Workspace {
 public:
  Workspace() = default;
  ~Workspace() { std::free(memory_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // Forgets what was taken before, and makes sure that there is enough for what comes.
  void start(size_t doubles) {
    if (doubles > room_) {
      constexpr size_t kHuge = size_t(1) << 21;
      const size_t bytes = (doubles * sizeof(double) + kHuge) / kHuge * kHuge;
      keep_at_most(0);
      memory_ = std::aligned_alloc(kHuge, bytes);
      if (!memory_) throw std::bad_alloc();
#if defined(__linux__)
      madvise(memory_, bytes, MADV_HUGEPAGE);  // a hint: fewer page faults where the system has huge pages
#endif
      room_ = bytes / sizeof(double);
    }
    next_ = static_cast<double*>(memory_);
  }
  // Small memory waits for the next call, large memory goes back.
  void keep_at_most(size_t bytes) {
    if (room_ * sizeof(double) <= bytes) return;
    std::free(memory_);
    memory_ = nullptr;
    room_ = 0;
  }
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

// Doubles on a 64-byte boundary, as vectors want them.
class Aligned {
 public:
  explicit Aligned(size_t count) : numbers_(static_cast<double*>(std::aligned_alloc(64, (count + 7) / 8 * 64))) {
    if (!numbers_) throw std::bad_alloc();
  }
  ~Aligned() { std::free(numbers_); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  double* data() { return numbers_; }

 private:
  double* numbers_;
};

}  // namespace STACKATTN_KERNEL
