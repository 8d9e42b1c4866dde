// Kernels for float32 and bfloat16 weights: one accumulator per output, four bytes of activations
// (one float, or two bfloat16) at a time. AVX2 reads weights the same way, in kernels of its own
// (linear_avx2.hpp).
#pragma once

#include "linear_job.hpp"

namespace outpace::OUTPACE_PATH {

// One line of weights: STEP inputs of 16 outputs.
struct FloatWeights {
  static constexpr int STEP = 1;
  static inline void read(const char *line, vf (&w)[STEP][VECTORS]) {
    for (int v = 0; v < VECTORS; v++) w[0][v] = load((const float *)line + v * LANES);
  }
  static inline vf multiply_add(vf w, vf x, vf sum) { return fma(w, x, sum); }
};

#if defined(__AVX512BF16__)
// Pairs of bfloat16 as they lie, added to the sum one after the other. The instruction takes
// subnormal inputs and results for zero.
struct PairWeights : FloatWeights {
  static inline vf multiply_add(vf w, vf x, vf sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
  }
};
#endif

struct HalfWeights {
  static constexpr int STEP = 2;
  static inline vf multiply_add(vf w, vf x, vf sum) { return fma(w, x, sum); }
  static inline void read(const char *line, vf (&w)[STEP][VECTORS]) {
    for (int v = 0; v < VECTORS; v++) {
      vi pair;
      std::memcpy(&pair, line + v * sizeof pair, sizeof pair);
      w[0][v] = even_half(pair);
      w[1][v] = odd_half(pair);
    }
  }
#if defined(__AVX512F__)
  static inline vf even_half(vi pair) { return as_float(_mm512_slli_epi32(pair, 16)); }
  static inline vf odd_half(vi pair) { return as_float(_mm512_and_si512(pair, iset1(~0xffff))); }
#elif defined(__AVX2__)
  static inline vf even_half(vi pair) { return as_float(_mm256_slli_epi32(pair, 16)); }
  static inline vf odd_half(vi pair) { return as_float(_mm256_and_si256(pair, iset1(~0xffff))); }
#else
  static inline vf even_half(vi pair) { return as_float(pair << 16); }
  static inline vf odd_half(vi pair) { return as_float(pair & ~0xffff); }
#endif
};

template <class Weights>
struct FmaKernel {
  static constexpr int ROWS = LANES == 16 ? 12 : 2;
  static constexpr int PANELS = LANES == 16 ? 2 : 1;

  template <int R, int P>
  static void tile(const Job &job, int64_t row, int panel) {
    vf sums[R][P][VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
      for (int p = 0; p < P; p++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[r][p][v] = set1(0.0f);
    RowPointers<R> x(job, row);
    const char *weights = job.panel(panel);
    for (int64_t at = 0; at < job.panel_bytes; at += layout::LINE) {
      fetch_side_by_side<layout::LINE, P>(weights, job.panel_bytes, at);
      multiply_line<R, P>(weights + at, job.panel_bytes, x, sums);
      x.advance(Weights::STEP * 4);
    }
    alignas(64) float stored[R][P][PANEL];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
      for (int p = 0; p < P; p++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) store(&stored[r][p][v * LANES], sums[r][p][v]);
    store_sums(job, row, R, panel, P, &stored[0][0][0]);
  }

  template <int R, int P>
  static inline __attribute__((always_inline)) void multiply_line(const char *weights,
                                                                  int64_t panel_bytes,
                                                                  const RowPointers<R> &x,
                                                                  vf (&sums)[R][P][VECTORS]) {
    vf w[P][Weights::STEP][VECTORS];
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) Weights::read(weights + p * panel_bytes, w[p]);
#pragma GCC unroll 2
    for (int s = 0; s < Weights::STEP; s++)
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) {
        const vf value = set1(*(const float *)(x[r] + s * 4));
#pragma GCC unroll 2
        for (int p = 0; p < P; p++)
#pragma GCC unroll 4
          for (int v = 0; v < VECTORS; v++)
            sums[r][p][v] = Weights::multiply_add(w[p][s][v], value, sums[r][p][v]);
      }
  }
};

}  // namespace outpace::OUTPACE_PATH
