// Packed weights against integer activations with instructions for runs of four bytes (AVX512-VNNI).
#pragma once

#include "linear_blocks.hpp"

#if defined(__AVX512VNNI__)

namespace outpace::OUTPACE_PATH {

// sum += the four products of each 32-bit word of w, unsigned bytes, with the four signed bytes at x.
// As an instruction because GCC 12 makes two of the intrinsic, and copies every sum around it.
static inline void dot(vi &sum, vi w, const char *x) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*(const int32_t *)x));
}

// One or two digits per activation, x = 256 * high + low. All of it exact. Sums of high and low digits
// are made side by side while there are registers for both; for more rows one after the other, which few
// rows could not do without waiting for each sum.
template <class Format, int DIGITS>
struct BytesTile {
  using Sum = vi;
  static constexpr int ROWS = BLOCK_ROWS;
  static constexpr int VALUE_BYTES = DIGITS;
  static inline vi start(const BlockScale &scale) {
    return iset1(Format::minimums || DIGITS == 2 ? 0 : scale.start);
  }
  static inline vf scaled(vi sum, const BlockScale &scale) {
    if constexpr (!Format::minimums && DIGITS == 2) sum = iadd(sum, iset1(scale.start));
    return to_float(sum) * set1(scale.scale);
  }

  template <int R>
  static inline __attribute__((always_inline)) void add_block(const char *quants,
                                                              const RowPointers<R> &x, int,
                                                              vi (&sums)[R][VECTORS]) {
    constexpr bool SIDE_BY_SIDE = DIGITS == 2 && R <= 8;
    vi w[layout::BLOCK / 4], low[R];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) low[r] = iset1(0);
#pragma GCC unroll 8
    for (int run = 0; run < layout::BLOCK / 4; run++) {
      const vi line = load_ints(quants + run * 4 / Format::PER_LINE * layout::LINE);
      w[run] = Format::nibbles ? iand(shift_right(line, 4 * (run & 1)), iset1(0x0f0f0f0f)) : line;
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) {
        dot(sums[r][0], w[run], x[r] + run * 4);
        if constexpr (SIDE_BY_SIDE) dot(low[r], w[run], x[r] + layout::BLOCK + run * 4);
      }
    }
    if constexpr (DIGITS == 2) {
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) sums[r][0] = iadd(_mm512_slli_epi32(sums[r][0], 8), low[r]);
    }
    if constexpr (DIGITS == 2 && !SIDE_BY_SIDE) {
#pragma GCC unroll 8
      for (int run = 0; run < layout::BLOCK / 4; run++)
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) dot(sums[r][0], w[run], x[r] + layout::BLOCK + run * 4);
    }
  }
};

}  // namespace outpace::OUTPACE_PATH

#endif
