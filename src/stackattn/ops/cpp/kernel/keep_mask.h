// Which numbers dropout keeps: a function of (seed, row, column), so that the backward pass computes the same mask
// again and nothing depends on the number of threads. stackattn/ops/keep_mask.py implements it in PyTorch.
#pragma once
#include "floats.h"
#include "network.h"

namespace STACKATTN_KERNEL {
namespace {

class KeepMask {
 public:
  const bool active;
  const float scale;  // factor for the numbers that are kept

  explicit KeepMask(const DropoutRate& rate)
      : active(rate.p > 0), scale(float(1 / (1 - rate.p))), seed_(rate.seed),
        threshold_(uint32_t(std::min(std::llround(rate.p * 4294967296.0), 4294967295ll))) {}

  // The generator of one row: the row has a key of 64 bits, and each column a number of 32 bits.
  class Row {
   public:
    Row(uint64_t seed, uint64_t row, uint32_t threshold) : threshold_(threshold) {
      uint64_t x = seed + (row + 1) * 0x9e3779b97f4a7c15u;  // SplitMix64
      x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
      x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
      x ^= x >> 31;
      first_ = uint32_t(x);
      second_ = uint32_t(x >> 32);
    }
    // The mask of columns `column`, `column` + 1, ...: all bits are set in the lanes that are kept.
    FMask operator()(uint32_t column) const {
      FBits x = ((FBits)lane_numbers() + column) * 0x9e3779b1u + first_;
      x ^= x >> 16;
      x = x * 0x7feb352du + second_;
      x ^= x >> 15;
      x *= 0x846ca68bu;
      x ^= x >> 16;
      return (FMask)(x >= (FBits{} + threshold_));
    }

   private:
    uint32_t first_, second_, threshold_;
  };
  Row row(uint64_t number) const { return Row(seed_, number, threshold_); }

 private:
  uint64_t seed_;
  uint32_t threshold_;
};

inline FVec kept(FVec v, FMask mask) { return (FVec)((FMask)v & mask); }

}  // namespace
}  // namespace STACKATTN_KERNEL
