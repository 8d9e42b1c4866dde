// Drawing a token from softmax(logits / temperature).
#pragma once

#include "ops.hpp"

namespace outpace::OUTPACE_PATH {

static constexpr int SUMMED = 8;  // values that are added side by side
static constexpr int RUN = 512;   // values whose sum says whether the token is among them

// Of at most RUN values.
static inline double sum_in_double(const float *x, int n) {
  typedef float Floats __attribute__((vector_size(SUMMED * sizeof(float))));
  typedef double Doubles __attribute__((vector_size(SUMMED * sizeof(double))));
  Doubles lanes = {};
  int i = 0;
  for (; i + SUMMED <= n; i += SUMMED) {
    Floats values;
    std::memcpy(&values, x + i, sizeof values);
    lanes += __builtin_convertvector(values, Doubles);
  }
  double total = 0.0;
  for (int lane = 0; lane < SUMMED; lane++) total += lanes[lane];
  for (; i < n; i++) total += x[i];
  return total;
}

static inline double total_of(const float *x, int n) {
  double total = 0.0;
  for (int i = 0; i < n; i += RUN) total += sum_in_double(x + i, n - i < RUN ? n - i : RUN);
  return total;
}

// Logits become their softmax at this temperature; `greatest` is the greatest of them. False where a
// logit is NaN or infinite, or all of them are.
static inline bool softmax_logits(float *x, int n, float greatest, float temperature) {
  for (int i = 0; i < n; i += LANES) {
    const int count = n - i;
    const vf shifted = load_some(x + i, count) - set1(greatest);
    store_some(x + i, vexp(shifted / set1(temperature)), count);
  }
  const double total = total_of(x, n);
  if (!(total >= 1.0 && total <= n)) return false;
  const vf scale = set1((float)(1.0 / total));
  for (int i = 0; i < n; i += LANES) store_some(x + i, load_some(x + i, n - i) * scale, n - i);
  return true;
}

// The first index at which the sum of q exceeds coin * its total; never one of probability 0.
static inline int invert(const float *q, int n, double coin) {
  const double wanted = coin * total_of(q, n);
  double before = 0.0;
  int last = 0;
  for (int begin = 0; begin < n; begin += RUN) {
    const int end = n - begin < RUN ? n : begin + RUN;
    const double after = before + sum_in_double(q + begin, end - begin);
    if (after > wanted || end == n) {
      double sum = before;
      for (int i = begin; i < end; i++) {
        sum += q[i];
        if (sum > wanted) return i;
        if (q[i] > 0.0f) last = i;
      }
      // Added one after the other they fell short, by rounding.
      return last;
    }
    before = after;
  }
  return last;
}

}  // namespace outpace::OUTPACE_PATH
