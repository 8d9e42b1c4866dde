// Choosing a token by softmax(logits / temperature): drawn by a coin, or the winner of a race; and
// the likeliest ones, ranked.
#pragma once

#include <cmath>

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

// SplitMix64 (Steele, Lea and Flood 2014): the uniform in (0, 1) at position `counter` of the stream `key`,
// its top 52 bits and a half, so that neither end can occur.
static inline double uniform(uint64_t counter, uint64_t key) {
  uint64_t bits = (counter + 1) * 0x9E3779B97F4A7C15u + key;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
  bits ^= bits >> 31;
  return ((double)(int64_t)(bits >> 12) + 0.5) * 0x1p-52;
}

// The index i whose -log(1 - uniform(ids[i])) / exp(x[i] / temperature) is smallest: softmax's law over
// random keys. `greatest` is the greatest of x. Of weights below e^-REACH of the greatest none takes part:
// they would win rarely, and each costs a hash and an exponential. -1 where x is not finite.
static inline int race(const float *x, int n, float greatest, float temperature, const int32_t *ids,
                       uint64_t key) {
  constexpr float REACH = 12.0f;
  const float floor = greatest - REACH * temperature;
  int winner = -1;
  double first = __builtin_inf();
  for (int i = 0; i < n; i++) {
    if (x[i] < floor) continue;
    const double u = uniform((uint64_t)ids[i], key);
    const double weight = std::exp(((double)x[i] - greatest) / temperature);
    if (!(weight <= 1.0)) return -1;
    // -log(1 - u) >= u: few need the logarithm.
    if (u > first * weight) continue;
    const double arrival = -std::log1p(-u) / weight;
    if (arrival < first) {
      first = arrival;
      winner = i;
    }
  }
  return winner;
}

// Indices of the `count` greatest of n values, greatest first, the lowest first among equals.
static inline void find_greatest(const float *x, int n, int count, int32_t *found) {
  int num_found = 0;
  for (int i = 0; i < n; i++) {
    if (num_found == count && !(x[i] > x[found[count - 1]])) continue;
    int place = num_found < count ? num_found++ : count - 1;
    for (; place > 0 && x[i] > x[found[place - 1]]; place--) found[place] = found[place - 1];
    found[place] = i;
  }
}

// Sum of e^(x - greatest), as many side by side as a vector holds.
static inline double sum_of_exponentials(const float *x, int n, float greatest) {
  double total = 0.0;
  for (int begin = 0; begin < n; begin += RUN) {
    const int end = n - begin < RUN ? n : begin + RUN;
    vf sums = set1(0.0f);
    int i = begin;
    for (; i + LANES <= end; i += LANES) sums = sums + vexp(load(x + i) - set1(greatest));
    total += sum(sums);
    for (; i < end; i++) total += std::exp(x[i] - greatest);
  }
  return total;
}

// Fills a ranking from its row of n logits, of the tokens `ids`. False where they are not finite. A few
// probabilities are needed, not a softmax written in full, which takes twice as long as all of this.
static inline bool rank(const Draw &draw, int n, float greatest, const int32_t *ids) {
  const op_ranking &ranking = draw.ranking;
  const double total = sum_of_exponentials(draw.row, n, greatest);
  if (!(total >= 1.0 && total <= n)) return false;
  find_greatest(draw.row, n, ranking.width, ranking.token_ids);
  for (int i = 0; i < ranking.width; i++) {
    const int index = ranking.token_ids[i];
    ranking.chances[i] = (float)(std::exp((double)draw.row[index] - greatest) / total);
    ranking.token_ids[i] = ids[index];
  }
  return true;
}

// The token that `draw`, not the argmax, says; its row holds n logits, of the tokens `ids`. -1 where they
// are not finite.
static inline int chosen(const Draw &draw, int n, float greatest, const int32_t *ids) {
  if (draw.choice == OP_CHOOSE_RACED)
    return race(draw.row, n, greatest, draw.temperature, ids, draw.noise.key);
  if (!softmax_logits(draw.row, n, greatest, draw.temperature)) return -1;
  return invert(draw.row, n, draw.noise.coin);
}

}  // namespace outpace::OUTPACE_PATH
