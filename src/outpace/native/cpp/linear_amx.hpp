// Kernels for tile registers (AMX): bfloat16 weights for any number of rows, and packed weights against
// integer activations for many rows (few rows are left to linear_vnni.hpp; integer sums are exact, so
// both give the same bits).
//
// A tile of activations is up to 16 rows as they lie in memory; a tile of weights is 64 bytes (16
// outputs) by up to 16 lines of a panel as they lie in memory.
#pragma once

#include "linear_vnni.hpp"
#include "tiles.hpp"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)

namespace outpace::OUTPACE_PATH {

// A x B tiles: rows of A tiles of activations from `x`, panels of B tiles of weights; the sums go to
// sums[A][B][16 * 16].
template <int A, int B, bool FETCH>
static inline void multiply_tiles(const char *x, int64_t stride, const char *weights,
                                  int64_t panel_bytes, float *sums) {
  tile_zero<0>();
  if constexpr (B == 2) tile_zero<1>();
  if constexpr (A == 2) tile_zero<2>();
  if constexpr (A == 2 && B == 2) tile_zero<3>();
  const int64_t depth = panel_bytes / 1024;
  for (int64_t k = 0; k < depth; k++) {
    const char *w = weights + k * 1024;
    tile_load<4>(x + k * 64, stride);
    tile_load<6>(w, 64);
    if constexpr (FETCH) fetch<1024>(w);
    tile_dot_bf16<0, 4, 6>();
    if constexpr (B == 2) {
      tile_load<7>(w + panel_bytes, 64);
      tile_dot_bf16<1, 4, 7>();
    }
    if constexpr (A == 2) {
      tile_load<5>(x + TILE_ROWS * stride + k * 64, stride);
      tile_dot_bf16<2, 5, 6>();
      if constexpr (B == 2) tile_dot_bf16<3, 5, 7>();
    }
  }
  tile_store<0>(sums);
  if constexpr (B == 2) tile_store<1>(sums + 256);
  if constexpr (A == 2) tile_store<2>(sums + B * 256);
  if constexpr (A == 2 && B == 2) tile_store<3>(sums + 768);
}

// Up to A * 16 rows and B panels.
template <int A, int B, bool FETCH>
static void bf16_tiles(const Job &job, int64_t row, int rows, int panel) {
  alignas(64) float sums[A * B * 256];
  multiply_tiles<A, B, FETCH>(job.row(row), job.prepared.stride, job.panel(panel), job.panel_bytes,
                              sums);
  for (int a = 0; a < A; a++) {
    const int left = rows - a * TILE_ROWS, held = left < TILE_ROWS ? left : TILE_ROWS;
    for (int b = 0; b < B; b++)
      store_sums(job, row + a * TILE_ROWS, held, panel + b, 1, sums + (a * B + b) * 256);
  }
}

template <int B>
static inline void bf16_rows(const Job &job, int64_t begin, int64_t end, int panel) {
  for (int64_t row = begin; row < end; row += 2 * TILE_ROWS) {
    const int64_t left = end - row;
    if (left > TILE_ROWS)
      bf16_tiles<2, B, false>(job, row, left < 32 ? (int)left : 32, panel);
    else
      bf16_tiles<1, B, false>(job, row, (int)left, panel);
  }
}

// Memory decides up to 32 rows: one panel after the other, one stream. Beyond, two panels meet two
// tiles of rows, and the rows taken together stay in the second-level cache.
static void multiply_bf16_amx(const Job &job) {
  const int few = job.num_rows < TILE_ROWS ? job.num_rows : TILE_ROWS;
  configure_tiles(few, 64, 16);
  if (job.num_rows <= 2 * TILE_ROWS) {
    for (int panel = job.panel_begin; panel < job.panel_end; panel++) {
      if (job.num_rows <= TILE_ROWS)
        bf16_tiles<1, 1, true>(job, 0, job.num_rows, panel);
      else
        bf16_tiles<2, 1, true>(job, 0, job.num_rows, panel);
    }
    return;
  }
  const int64_t step = rows_at_once(job, 2 * TILE_ROWS);
  for (int64_t row = 0; row < job.num_rows; row += step) {
    const int64_t end = row + step < job.num_rows ? row + step : job.num_rows;
    int panel = job.panel_begin;
    for (; panel + 2 <= job.panel_end; panel += 2) bf16_rows<2>(job, row, end, panel);
    if (panel < job.panel_end) bf16_rows<1>(job, row, end, panel);
  }
}

// ---------------------------------------------------------------------------------------------------

inline constexpr int CHUNK_BLOCKS = 64;  // blocks of one panel made into bytes at a time
inline constexpr int GROUP_ROWS = 256;   // rows that meet them before the next chunk
inline constexpr int BLOCK_TILE = layout::BLOCK * PANEL;  // bytes

// Nibbles to bytes, [8][16][4] for a block, as Q8_0 keeps them.
static inline void expand(const char *quants, char *bytes) {
  for (int i = 0; i < 4; i++) {
    const vi line = load_ints(quants + i * layout::LINE), mask = iset1(0x0f0f0f0f);
    _mm512_store_si512(bytes + i * 128, iand(line, mask));
    _mm512_store_si512(bytes + i * 128 + 64, iand(shift_right(line, 4), mask));
  }
}

// R rows at a time.
template <class Format, int DIGITS, int R>
struct AmxBlocks {
  static constexpr int STEP = layout::BLOCK * DIGITS;

  // One digit of 16 rows against the block in tile 6.
  template <int DIGIT>
  static inline void sum_digit(const char *x, int64_t stride) {
    tile_zero<DIGIT>();
    tile_load<4>(x + DIGIT * layout::BLOCK, stride);
    tile_dot_bytes<DIGIT, 4, 6>();
  }

  // outputs += the block's sums, scaled.
  static inline __attribute__((always_inline)) void scale_block(
      ScalePointers<R> &factors, const char *halves, const int32_t *sums,
      vf (&outputs)[R]) {
    const vf scale = load_half(halves);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      vi sum = load_ints((const char *)(sums + r * 16));
      if constexpr (DIGITS == 2)
        sum = iadd(_mm512_slli_epi32(sum, 8), load_ints((const char *)(sums + 256 + r * 16)));
      if constexpr (!Format::minimums) sum = iadd(sum, iset1(factors[r].start));
      outputs[r] = fma(scale, to_float(sum) * set1(factors[r].scale), outputs[r]);
      if constexpr (Format::minimums)
        outputs[r] = fma(load_half(halves + 32), set1(factors[r].sum), outputs[r]);
    }
    factors.advance(sizeof(BlockScale));
  }

  // Blocks begin .. end - 1 of one panel against 16 rows, added to `totals` [16][16].
  template <bool FETCH>
  static void add_chunk(const Job &job, int64_t row, int panel, const char *bytes, int begin, int end,
                        float *totals) {
    constexpr int HELD =
        layout::quant_bytes(Format::format) + layout::scale_bytes(Format::format);
    const int blocks = job.w->in / layout::BLOCK;
    const int64_t stride = job.prepared.stride;
    const char *x = job.row(row) + begin * STEP, *weights = job.panel(panel);
    ScalePointers<R> factors(job, row);
    factors.advance(begin * (int64_t)sizeof(BlockScale));
    vf outputs[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) outputs[r] = load(totals + r * 16);
    const auto scales = [&](int b) {
      return weights + layout::scale_offset_of(Format::format, b, blocks);
    };
    // With two digits a tile is stored while the next is being summed, and a block is scaled one block
    // late. More tiles in use, or later stores, made it slower.
    alignas(64) int32_t sums[2][DIGITS * 256];
    for (int b = begin; b < end; b++, x += STEP) {
      if constexpr (FETCH) fetch<HELD>(weights + b * (int64_t)HELD);
      tile_load<6>(Format::nibbles ? bytes + (b - begin) * BLOCK_TILE
                                   : weights + layout::quant_offset_of(Format::format, b),
                   64);
      sum_digit<0>(x, stride);
      int32_t *now = sums[b & 1], *before = sums[~b & 1];
      if constexpr (DIGITS == 1) {
        tile_store<0>(now);
        scale_block(factors, scales(b), now, outputs);
      } else {
        if (b > begin) tile_store<1>(before + 256);
        sum_digit<1>(x, stride);
        tile_store<0>(now);
        if (b > begin) scale_block(factors, scales(b - 1), before, outputs);
      }
    }
    if constexpr (DIGITS == 2) {
      int32_t *last = sums[(end - 1) & 1];
      tile_store<1>(last + 256);
      scale_block(factors, scales(end - 1), last, outputs);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) store(totals + r * 16, outputs[r]);
  }

  static void multiply_panel(const Job &job, int64_t row, int rows, int panel) {
    alignas(64) float totals[GROUP_ROWS * PANEL];
    alignas(64) char bytes[Format::nibbles ? CHUNK_BLOCKS * BLOCK_TILE : 64];
    std::memset(totals, 0, (size_t)layout::round_up(rows, R) * PANEL * sizeof(float));
    const int blocks = job.w->in / layout::BLOCK;
    for (int begin = 0; begin < blocks; begin += CHUNK_BLOCKS) {
      const int end = begin + CHUNK_BLOCKS < blocks ? begin + CHUNK_BLOCKS : blocks;
      if constexpr (Format::nibbles) {
        for (int b = begin; b < end; b++)
          expand(job.panel(panel) + layout::quant_offset_of(Format::format, b),
                 bytes + (b - begin) * BLOCK_TILE);
      }
      add_chunk<true>(job, row, panel, bytes, begin, end, totals);
      for (int r = R; r < rows; r += R)
        add_chunk<false>(job, row + r, panel, bytes, begin, end, totals + r * PANEL);
    }
    store_sums(job, row, rows, panel, 1, totals);
  }

  static void run(const Job &job) {
    configure_tiles(R, layout::BLOCK, layout::BLOCK / 4);
    for (int64_t row = 0; row < job.num_rows; row += GROUP_ROWS) {
      const int64_t left = job.num_rows - row;
      for (int panel = job.panel_begin; panel < job.panel_end; panel++)
        multiply_panel(job, row, left < GROUP_ROWS ? (int)left : GROUP_ROWS, panel);
    }
  }
};

}  // namespace outpace::OUTPACE_PATH

#endif
