// Kernels for packed weights: integers by pairs of 16-bit words (linear_avx2.hpp has AVX2's own), and
// bfloat16 activations by multiply-adds. A block's sum is made first (exactly, for integers), then
// scaled and added to the output's one accumulator; blocks in ascending order.
#pragma once

#include "linear_job.hpp"

namespace outpace::OUTPACE_PATH {

#if defined(__AVX512F__)
static inline vi iadd(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi iand(vi a, vi b) { return _mm512_and_si512(a, b); }
static inline vi shift_right(vi a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }
static inline vi multiply_pairs(vi a, vi b) { return _mm512_madd_epi16(a, b); }
static inline vf load_half(const char *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
#elif defined(__AVX2__)
static inline vi iadd(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vi iand(vi a, vi b) { return _mm256_and_si256(a, b); }
static inline vi shift_right(vi a, int n) { return _mm256_srli_epi32(a, n); }
static inline vi multiply_pairs(vi a, vi b) { return _mm256_madd_epi16(a, b); }
static inline vf load_half(const char *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
#else
static inline vi iadd(vi a, vi b) { return a + b; }
static inline vi iand(vi a, vi b) { return a & b; }
static inline vi shift_right(vi a, int n) { return (a >> n) & (int32_t)(0xffffffffu >> n); }
static inline vi low_word(vi a) { return (a << 16) >> 16; }
static inline vi multiply_pairs(vi a, vi b) {
  return low_word(a) * low_word(b) + (a >> 16) * (b >> 16);
}
static inline vf load_half(const char *p) {
  uint16_t halves[LANES];
  std::memcpy(halves, p, sizeof halves);
  vf values;
  for (int i = 0; i < LANES; i++) values[i] = layout::from_half(halves[i]);
  return values;
}
#endif

static inline vi load_ints(const char *p) {
  vi value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// What a path's kernel needs to know of one packed format.
template <int32_t FORMAT>
struct Packed {
  static constexpr int32_t format = FORMAT;
  static constexpr bool minimums = FORMAT == OP_Q4_1;
  static constexpr bool nibbles = FORMAT != OP_Q8_0;
  static constexpr int PER_LINE = nibbles ? 8 : 4;  // inputs in one line of quants
  static constexpr int LINES = layout::BLOCK / PER_LINE;

  // The weights of inputs (2 * pair, 2 * pair + 1) of a line, in the halves of each 32-bit word.
  static inline vi pair(vi line, int pair) {
    if constexpr (nibbles)
      return iand(shift_right(line, 4 * layout::nibble_of(2 * pair)), iset1(0x000f000f));
    else
      return iand(shift_right(line, 8 * layout::byte_of(2 * pair)), iset1(0x00ff00ff));
  }

  // The weight of input k of a line in units of the scale.
  static inline vf value(vi line, int k) {
    const int shift = nibbles ? 4 * layout::nibble_of(k) : 8 * layout::byte_of(k);
    const vi quant = iand(shift_right(line, shift), iset1(nibbles ? 15 : 255));
    return to_float(quant) - set1((float)layout::quant_offset(FORMAT));
  }
};

inline constexpr int BLOCK_ROWS = LANES == 16 ? 12 : LANES == 8 ? 6 : 1;

// Integer activations as words.
template <class Format>
struct WordsTile {
  using Sum = vi;
  static constexpr int ROWS = BLOCK_ROWS;
  static constexpr int VALUE_BYTES = 2;
  static inline vi start(const BlockScale &scale) {
    return iset1(Format::minimums ? 0 : scale.start);
  }
  static inline vf scaled(vi sum, const BlockScale &scale) {
    return to_float(sum) * set1(scale.scale);
  }

  template <int R>
  static inline __attribute__((always_inline)) void add_block(const char *quants,
                                                              const RowPointers<R> &x, int v,
                                                              vi (&sums)[R][VECTORS]) {
#pragma GCC unroll 1
    for (int i = 0; i < Format::LINES; i++) {
      const vi line = load_ints(quants + i * layout::LINE + v * LANES * 4);
#pragma GCC unroll 4
      for (int p = 0; p < Format::PER_LINE / 2; p++) {
        const vi w = Format::pair(line, p);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
          int32_t pair;
          std::memcpy(&pair, x[r] + i * Format::PER_LINE * 2 + p * 4, 4);
          sums[r][v] = iadd(sums[r][v], multiply_pairs(w, iset1(pair)));
        }
      }
    }
  }
};

// Activations rounded to bfloat16, as floats.
template <class Format>
struct FloatsTile {
  using Sum = vf;
  static constexpr int ROWS = BLOCK_ROWS;
  static constexpr int VALUE_BYTES = 4;
  static inline vf start(const BlockScale &) { return set1(0.0f); }
  static inline vf scaled(vf sum, const BlockScale &) { return sum; }

  template <int R>
  static inline __attribute__((always_inline)) void add_block(const char *quants,
                                                              const RowPointers<R> &x, int v,
                                                              vf (&sums)[R][VECTORS]) {
#pragma GCC unroll 1
    for (int i = 0; i < Format::LINES; i++) {
      const vi line = load_ints(quants + i * layout::LINE + v * LANES * 4);
#pragma GCC unroll 8
      for (int k = 0; k < Format::PER_LINE; k++) {
        const vf w = Format::value(line, k);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++)
          sums[r][v] =
              fma(w, set1(*(const float *)(x[r] + (i * Format::PER_LINE + k) * 4)), sums[r][v]);
      }
    }
  }
};

// A panel's blocks against R rows. `Tile` says how a block's quants meet the activations.
template <class Format, class Tile>
struct BlockKernel {
  static constexpr int ROWS = Tile::ROWS;
  static constexpr int PANELS = 1;
  static constexpr int FETCHED =
      layout::quant_bytes(Format::format) + layout::scale_bytes(Format::format);

  template <int R, int>
  static void tile(const Job &job, int64_t row, int panel) {
    vf outputs[R][VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) outputs[r][v] = set1(0.0f);
    RowPointers<R> x(job, row);
    ScalePointers<R> factors(job, row);
    const int blocks = job.w->in / layout::BLOCK;
    for (int b = 0; b < blocks; b++) {
      fetch<FETCHED>(job.panel(panel) + b * (int64_t)FETCHED);
      add_block<R>(job.panel(panel) + layout::quant_offset_of(Format::format, b),
                   job.panel(panel) + layout::scale_offset_of(Format::format, b, blocks), x,
                   factors, outputs);
      x.advance(layout::BLOCK * Tile::VALUE_BYTES);
      factors.advance(sizeof(BlockScale));
    }
    alignas(64) float stored[R][PANEL];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) store(&stored[r][v * LANES], outputs[r][v]);
    store_sums(job, row, R, panel, 1, &stored[0][0]);
  }

  template <int R>
  static inline __attribute__((always_inline)) void add_block(const char *quants,
                                                              const char *halves,
                                                              const RowPointers<R> &x,
                                                              const ScalePointers<R> &factors,
                                                              vf (&outputs)[R][VECTORS]) {
    typename Tile::Sum sums[R][VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) {
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) sums[r][v] = Tile::start(factors[r]);
      Tile::template add_block<R>(quants, x, v, sums);
      const vf scale = load_half(halves + v * LANES * 2);
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) {
        outputs[r][v] = fma(scale, Tile::scaled(sums[r][v], factors[r]), outputs[r][v]);
        if constexpr (Format::minimums)
          outputs[r][v] =
              fma(load_half(halves + 32 + v * LANES * 2), set1(factors[r].sum), outputs[r][v]);
      }
    }
  }
};

}  // namespace outpace::OUTPACE_PATH
