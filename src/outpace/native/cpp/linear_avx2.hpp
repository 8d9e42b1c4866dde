// Kernels for AVX2: sixteen registers of eight numbers, which decide how sums are kept.
//
// A panel is two vectors, and R rows against it are 2 R sums, at most twelve: two weights and a value of
// x that both are multiplied by leave one register. One value broadcast thus serves two products. The
// few rows of one pass of decoding go through a panel at once. More rows take turns, a stretch of the
// panel at a time, which stays in the nearest cache meanwhile; their totals wait in memory. So weights
// arrive at an even pace, however many rows meet them.
#pragma once

#include "linear_blocks.hpp"
#include "linear_fma.hpp"

#if defined(__AVX2__) && !defined(__AVX512F__)

namespace outpace::OUTPACE_PATH {

inline constexpr int TILE_ROWS = 6;     // rows whose sums the registers hold
inline constexpr int GROUP_ROWS = 256;  // rows whose totals wait in memory

// sums += w * x, for the pair of 16-bit words at x; exact. As instructions because GCC 12 puts such
// additions off until there are more products than registers.
static inline void add_pairs(vi (&sums)[VECTORS], const vi (&w)[VECTORS], const char *x) {
  vi pair, product;
  asm("vpbroadcastd %6, %2\n\t"
      "vpmaddwd %2, %4, %3\n\t"
      "vpaddd %3, %0, %0\n\t"
      "vpmaddwd %2, %5, %2\n\t"
      "vpaddd %2, %1, %1"
      : "+x"(sums[0]), "+x"(sums[1]), "=&x"(pair), "=&x"(product)
      : "x"(w[0]), "x"(w[1]), "m"(*(const int32_t *)x));
}

// sums = fma(w, x, sums), for the float at x. As instructions because GCC 12 lets the product take the
// place of x and copies it back, or spills the sums.
static inline void add_products(vf (&sums)[VECTORS], const vf (&w)[VECTORS], const char *x) {
  vf value;
  asm("vbroadcastss %5, %2\n\t"
      "vfmadd231ps %2, %3, %0\n\t"
      "vfmadd231ps %2, %4, %1"
      : "+x"(sums[0]), "+x"(sums[1]), "=&x"(value)
      : "x"(w[0]), "x"(w[1]), "m"(*(const float *)x));
}

// Packed weights against integer activations as words, by blocks: what WordsTile does.
template <class Format>
struct WordsKernel {
  static constexpr int VALUE_BYTES = 2;
  static constexpr int HELD =
      layout::quant_bytes(Format::format) + layout::scale_bytes(Format::format);
  static constexpr int64_t STRETCH = 16;  // blocks
  static int64_t length(const Job &job) { return job.w->in / layout::BLOCK; }

  // totals [R][16] += blocks begin .. end - 1 of one panel.
  template <int R>
  static void add(const Job &job, int64_t row, int panel, int64_t begin, int64_t end, bool fetching,
                  float *totals) {
    const int64_t blocks = length(job);
    const char *weights = job.panel(panel);
    RowPointers<R> x(job, row, begin * layout::BLOCK * VALUE_BYTES);
    ScalePointers<R> factors(job, row);
    factors.advance(begin * (int64_t)sizeof(BlockScale));
    for (int64_t b = begin; b < end; b++) {
      if (fetching) fetch<HELD>(weights + b * HELD);
      vi sums[R][VECTORS];
      sum_block<R>(weights + layout::quant_offset_of(Format::format, b), x, factors, sums);
      scale_block<R>(weights + layout::scale_offset_of(Format::format, b, blocks), factors, sums, totals);
      x.advance(layout::BLOCK * VALUE_BYTES);
      factors.advance(sizeof(BlockScale));
    }
  }

  // Format::pair; the last pair is at the top of its words, where a shift leaves nothing to mask.
  static inline vi pair(vi line, int pair) {
    constexpr int TOP = Format::nibbles ? 12 : 8;
    return pair == Format::PER_LINE / 2 - 1 ? _mm256_srli_epi16(line, TOP) : Format::pair(line, pair);
  }

  template <int R>
  static inline __attribute__((always_inline)) void sum_block(const char *quants,
                                                              const RowPointers<R> &x,
                                                              const ScalePointers<R> &factors,
                                                              vi (&sums)[R][VECTORS]) {
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
      sums[r][0] = sums[r][1] = iset1(Format::minimums ? 0 : factors[r].start);
#pragma GCC unroll 1
    for (int i = 0; i < Format::LINES; i++) {
      const char *line = quants + i * layout::LINE;
#pragma GCC unroll 4
      for (int p = 0; p < Format::PER_LINE / 2; p++) {
        const vi w[VECTORS] = {pair(load_ints(line), p), pair(load_ints(line + LANES * 4), p)};
#pragma GCC unroll 6
        for (int r = 0; r < R; r++)
          add_pairs(sums[r], w, x[r] + (i * Format::PER_LINE + 2 * p) * VALUE_BYTES);
      }
    }
  }

  // totals += the block's sums, scaled.
  template <int R>
  static inline __attribute__((always_inline)) void scale_block(const char *halves,
                                                                const ScalePointers<R> &factors,
                                                                const vi (&sums)[R][VECTORS],
                                                                float *totals) {
    const vf scales[VECTORS] = {load_half(halves), load_half(halves + LANES * 2)};
    vf minimums[VECTORS];
    if constexpr (Format::minimums) {
      minimums[0] = load_half(halves + 32);
      minimums[1] = load_half(halves + 32 + LANES * 2);
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++, totals += PANEL) {
      const vf scale = set1(factors[r].scale), sum = set1(factors[r].sum);
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) {
        vf total = fma(scales[v], to_float(sums[r][v]) * scale, load(totals + v * LANES));
        if constexpr (Format::minimums) total = fma(minimums[v], sum, total);
        store(totals + v * LANES, total);
      }
    }
  }
};

// float32 or bfloat16 weights against floats, by lines.
template <class Weights>
struct LinesKernel {
  static constexpr int64_t STRETCH = 32;  // lines
  static int64_t length(const Job &job) { return job.panel_bytes / layout::LINE; }

  // totals [R][P][16] += lines begin .. end - 1 of P panels.
  template <int R, int P = 1>
  static void add(const Job &job, int64_t row, int panel, int64_t begin, int64_t end, bool fetching,
                  float *totals) {
    vf sums[R * P][VECTORS];
#pragma GCC unroll 6
    for (int i = 0; i < R * P; i++)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) sums[i][v] = load(totals + i * PANEL + v * LANES);
    RowPointers<R> x(job, row, begin * Weights::STEP * 4);
    const char *weights = job.panel(panel);
    for (int64_t at = begin * layout::LINE; at < end * layout::LINE; at += layout::LINE) {
      if (fetching) fetch_side_by_side<layout::LINE, P>(weights, job.panel_bytes, at);
#pragma GCC unroll 2
      for (int s = 0; s < Weights::STEP; s++)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++)
          add_input<R, P>(weights + p * job.panel_bytes + at, s, p, x, sums);
      x.advance(Weights::STEP * 4);
    }
#pragma GCC unroll 6
    for (int i = 0; i < R * P; i++)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) store(totals + i * PANEL + v * LANES, sums[i][v]);
  }

  // Input s of a line of panel p.
  template <int R, int P>
  static inline __attribute__((always_inline)) void add_input(const char *line, int s, int p,
                                                              const RowPointers<R> &x,
                                                              vf (&sums)[R * P][VECTORS]) {
    // Read after the sums of the input before: a line kept for its second input takes two registers.
    asm("" : "+r"(line) : "x"(sums[p][0]));
    vf w[Weights::STEP][VECTORS];
    Weights::read(line, w);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) add_products(sums[r * P + p], w[s], x[r] + s * 4);
  }
};

// Rows so few that a multiply-add would wait for the one before it: P panels at once.
template <class Weights, int R, int P>
struct SideBySide {
  static constexpr int ROWS = R, PANELS = P;

  template <int ROWS, int SIDE>
  static void tile(const Job &job, int64_t row, int panel) {
    using Kernel = LinesKernel<Weights>;
    alignas(64) float totals[ROWS * SIDE * PANEL] = {};
    Kernel::template add<ROWS, SIDE>(job, row, panel, 0, Kernel::length(job), true, totals);
    store_sums(job, row, ROWS, panel, SIDE, totals);
  }
};

template <class Kernel, int R>
static inline void add_rows(const Job &job, int64_t row, int rows, int panel, int64_t begin,
                            int64_t end, bool fetching, float *totals) {
  if constexpr (R > 0) {
    if (rows == R)
      Kernel::template add<R>(job, row, panel, begin, end, fetching, totals);
    else
      add_rows<Kernel, R - 1>(job, row, rows, panel, begin, end, fetching, totals);
  }
}

// Rows first .. first + rows - 1 over one panel, in tiles of nearly equal size, whose first one fetches.
template <class Kernel>
static void take_turns(const Job &job, int64_t first, int64_t rows, int panel) {
  alignas(64) float totals[GROUP_ROWS * PANEL];
  std::memset(totals, 0, (size_t)rows * PANEL * sizeof(float));
  const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, length = Kernel::length(job);
  const int64_t stretch = tiles == 1 ? length : Kernel::STRETCH;
  for (int64_t begin = 0; begin < length; begin += stretch) {
    const int64_t end = begin + stretch < length ? begin + stretch : length;
    for (int64_t i = 0; i < tiles; i++) {
      const int64_t row = i * rows / tiles, next = (i + 1) * rows / tiles;
      add_rows<Kernel, TILE_ROWS>(job, first + row, (int)(next - row), panel, begin, end, i == 0,
                                  totals + row * PANEL);
    }
  }
  store_sums(job, first, (int)rows, panel, 1, totals);
}

template <class Kernel>
static void run_in_turns(const Job &job) {
  for (int64_t first = 0; first < job.num_rows; first += GROUP_ROWS) {
    const int64_t left = job.num_rows - first;
    for (int panel = job.panel_begin; panel < job.panel_end; panel++)
      take_turns<Kernel>(job, first, left < GROUP_ROWS ? left : GROUP_ROWS, panel);
  }
}

template <class Weights>
static void multiply_lines(const Job &job) {
  if (job.num_rows == 1) return run<SideBySide<Weights, 1, 4>>(job);
  if (job.num_rows == 2) return run<SideBySide<Weights, 2, 3>>(job);
  run_in_turns<LinesKernel<Weights>>(job);
}

}  // namespace outpace::OUTPACE_PATH

#endif
