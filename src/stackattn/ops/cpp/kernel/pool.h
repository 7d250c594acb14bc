// Memory for the charts and states of a batch. Freed memory is kept for the next call: every training step needs charts
// of about the same size, and the operating system clears the memory that it provides, which takes time.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "out_of_memory.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

class Pool {
 public:
  struct Block {
    void* memory;
    size_t bytes;
  };
  static constexpr size_t kPage = size_t(1) << 21;   // bytes of a huge page
  static constexpr size_t kMost = size_t(64) << 20;  // limit on the unused memory that is kept, in bytes

  // Uninitialised memory of at least `bytes` bytes.
  Block take(size_t bytes) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      size_t best = free_.size();
      for (size_t i = 0; i < free_.size(); ++i)
        if (free_[i].bytes >= bytes && (best == free_.size() || free_[i].bytes < free_[best].bytes)) best = i;
      if (best < free_.size()) return remove(best);
    }
    bytes = (bytes + kPage - 1) / kPage * kPage;
    void* memory = std::aligned_alloc(kPage, bytes);
    if (!memory) throw OutOfMemory(bytes);
#if defined(__linux__)
    madvise(memory, bytes, MADV_HUGEPAGE);  // a hint: memory that is read repeatedly is faster in huge pages
#endif
    return {memory, bytes};
  }

  void give_back(Block block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(block);
    kept_ += block.bytes;
    while (kept_ > kMost) std::free(remove(0).memory);  // the oldest first
  }

  size_t kept() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kept_;
  }

 private:
  std::mutex mutex_;
  std::vector<Block> free_;
  size_t kept_ = 0;  // bytes in `free_`

  Block remove(size_t i) {
    const Block block = free_[i];
    free_.erase(free_.begin() + long(i));
    kept_ -= block.bytes;
    return block;
  }
};

// Never destroyed: Python may free arrays after the static objects of this module have been destroyed.
inline Pool& pool() {
  static Pool& pool = *new Pool;
  return pool;
}

// A new array (rows, columns) from the pool, to which its memory returns when Python frees it.
inline nanobind::ndarray<double, nanobind::ndim<2>> pooled_array(size_t rows, size_t columns) {
  const Pool::Block block = pool().take(rows * columns * sizeof(double));
  const nanobind::capsule owner(new Pool::Block(block), [](void* p) noexcept {
    auto* block = static_cast<Pool::Block*>(p);
    pool().give_back(*block);
    delete block;
  });
  return {block.memory, {rows, columns}, owner};
}
