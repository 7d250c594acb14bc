// Cross-entropy of logits and target classes, with label smoothing. Compiled once for each instruction set.
//
// One row at a time: the forward pass keeps the largest logit and the sum of the exponentials, and the backward pass
// computes the softmax again from them while it writes the gradient.
#include "arithmetic.h"
#include "floats.h"
#include "network.h"

namespace STACKATTN_KERNEL {
namespace {

constexpr int64_t kAlone = 1 << 15;  // fewer logits are not worth a second thread
constexpr int kUnrolled = 4;         // vectors at once: operations on one vector would wait for each other

// Vectors of float or double. `exp` is for numbers that are at most 0; nan stays nan.
template <class T>
struct Lanes;
template <>
struct Lanes<float> {
  using Vector = FVec;
  static constexpr int kCount = kFloats;
  static Vector splat(float x) { return fsplat(x); }
  static Vector exp(Vector x) { return exp2(x * fsplat(1.4426950408889634f)); }
};
template <>
struct Lanes<double> {
  using Vector = VecU;
  static constexpr int kCount = kLanes;
  static Vector splat(double x) { return STACKATTN_KERNEL::splat(x); }
  static Vector exp(Vector x) { return x == x ? Linear::exp(x) : x; }
};

template <class T>
struct Rows {
  using L = Lanes<T>;
  using Vector = typename L::Vector;
  static constexpr int kCount = L::kCount;

  static Vector load(const T* p) { return *(const Vector*)p; }
  static void store(T* p, Vector v) { *(Vector*)p = v; }
  // The last numbers of a row as a vector, padded with -inf, which changes neither the maximum nor the sum of the
  // exponentials.
  static Vector load_rest(const T* p, int64_t n) {
    Vector v = L::splat(-INFINITY);
    std::memcpy(&v, p, n * sizeof(T));
    return v;
  }
  static Vector larger(Vector a, Vector b) { return a > b ? a : b; }
  // Combines the lanes of all vectors in a fixed order.
  template <class Combine>
  static T reduce(Vector (&v)[kUnrolled], Combine combine) {
    for (int i = 1; i < kUnrolled; ++i) v[0] = combine(v[0], v[i]);
    T lanes[kCount];
    store(lanes, v[0]);
    for (int i = 1; i < kCount; ++i) lanes[0] = combine(lanes[0], lanes[i]);
    return lanes[0];
  }
  // Calls body(j, i) for every whole vector of a row, where j is its first column and i the accumulator to use. Returns
  // the first column of the rest.
  template <class Body>
  static int64_t for_each_vector(int64_t count, Body body) {
    int64_t j = 0;
    for (; j + kUnrolled * kCount <= count; j += kUnrolled * kCount)
      for (int i = 0; i < kUnrolled; ++i) body(j + i * kCount, i);
    for (; j + kCount <= count; j += kCount) body(j, 0);
    return j;
  }

  // kept: the largest logit, and the sum of all e^(x - largest)
  static T loss(const T* x, int64_t count, int64_t target, T smoothing, T* kept) {
    Vector largest[kUnrolled], sums[kUnrolled] = {}, differences[kUnrolled] = {};
    for (Vector& v : largest) v = L::splat(-INFINITY);
    const int64_t rest =
        for_each_vector(count, [&](int64_t j, int i) { largest[i] = larger(load(x + j), largest[i]); });
    largest[0] = larger(load_rest(x + rest, count - rest), largest[0]);
    const T top = reduce(largest, [](auto a, auto b) { return a > b ? a : b; });
    for_each_vector(count, [&](int64_t j, int i) {
      const Vector difference = load(x + j) - L::splat(top);
      differences[i] += difference;
      sums[i] += L::exp(difference);
    });
    sums[0] += L::exp(load_rest(x + rest, count - rest) - L::splat(top));
    const auto add = [](auto a, auto b) { return a + b; };
    kept[0] = top;
    kept[1] = reduce(sums, add);
    const T result = std::log(kept[1]) - (1 - smoothing) * (x[target] - top);
    if (smoothing == 0) return result;  // 0 times a sum with -inf would be nan
    T total = reduce(differences, add);
    for (int64_t j = rest; j < count; ++j) total += x[j] - top;
    return result - smoothing / T(count) * total;
  }

  static void gradient(const T* x, int64_t count, int64_t target, T smoothing, const T* kept, T grad, T* out) {
    const Vector top = L::splat(kept[0]), scale = L::splat(grad / kept[1]),
                 uniform = L::splat(smoothing / T(count) * grad);
    const auto softmax = [&](Vector v) { return L::exp(v - top) * scale - uniform; };
    const int64_t rest = for_each_vector(count, [&](int64_t j, int) { store(out + j, softmax(load(x + j))); });
    const Vector last = softmax(load_rest(x + rest, count - rest));
    std::memcpy(out + rest, &last, (count - rest) * sizeof(T));
    out[target] -= (1 - smoothing) * grad;
  }
};

// Calls body(row, target) for each row whose target is a class, and body(row, -1) for rows to ignore. Returns the first
// row with another target, or -1. Each target is read once, because another Python thread may change it.
template <class Body>
int64_t for_each_row(const CrossEntropyShape& shape, Body body) {
  int64_t bad = shape.rows;
#pragma omp parallel for num_threads(shape.threads) schedule(static) \
    reduction(min : bad) if (shape.threads > 1 && shape.rows * shape.classes > kAlone)
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t target = *static_cast<const volatile int64_t*>(shape.targets + row);
    if (target == shape.ignored)
      body(row, -1);
    else if (target >= 0 && target < shape.classes)
      body(row, target);
    else
      bad = std::min(bad, row);
  }
  return bad < shape.rows ? bad : -1;
}

template <class T>
int64_t forward_as(const CrossEntropyShape& shape, const T* logits, T* losses, T* kept) {
  return for_each_row(shape, [=](int64_t row, int64_t target) {
    const T* x = logits + row * shape.classes;
    T* own = kept + 2 * row;
    if (target < 0)
      losses[row] = own[0] = own[1] = 0;
    else
      losses[row] = Rows<T>::loss(x, shape.classes, target, T(shape.smoothing), own);
  });
}

template <class T>
int64_t backward_as(const CrossEntropyShape& shape, const T* logits, const T* kept, const T* grad, T* grad_logits) {
  return for_each_row(shape, [=](int64_t row, int64_t target) {
    const T* x = logits + row * shape.classes;
    T* out = grad_logits + row * shape.classes;
    if (target < 0)
      std::fill_n(out, shape.classes, T(0));
    else
      Rows<T>::gradient(x, shape.classes, target, T(shape.smoothing), kept + 2 * row, grad[row], out);
  });
}

int64_t forward(const CrossEntropyShape& shape, const void* logits, void* losses, void* kept) {
  if (shape.wide) return forward_as(shape, (const double*)logits, (double*)losses, (double*)kept);
  return forward_as(shape, (const float*)logits, (float*)losses, (float*)kept);
}

int64_t backward(const CrossEntropyShape& shape, const void* logits, const void* kept, const void* grad,
                 void* grad_logits) {
  if (shape.wide)
    return backward_as(shape, (const double*)logits, (const double*)kept, (const double*)grad, (double*)grad_logits);
  return backward_as(shape, (const float*)logits, (const float*)kept, (const float*)grad, (float*)grad_logits);
}

}  // namespace

extern const CrossEntropy cross_entropy;
const CrossEntropy cross_entropy = {forward, backward};

}  // namespace STACKATTN_KERNEL
