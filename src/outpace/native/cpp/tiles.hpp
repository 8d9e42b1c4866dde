// Tile registers (AMX), for products and attention alike: sums in tiles 0 to 3, activations or queries in
// 4 and 5, weights or keys in 6 and 7.
//
// Instructions are written out, with numbers of tiles as template arguments: GCC 12's own macros do not
// tell the compiler what memory is read and written. Its _tile_loadconfig claims 8 bytes of 64, so that
// the stores of the others may be dropped.
#pragma once

#include <cstdint>

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)

namespace outpace::OUTPACE_PATH {

inline constexpr int TILE_ROWS = 16;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, unused[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int num_rows, int bytes) {
    rows[tile] = (uint8_t)num_rows;
    row_bytes[tile] = (uint16_t)bytes;
  }
};

// rows: of sums and of activations; row_bytes: of activations; lines: of weights, 64 bytes each.
static inline void configure_tiles(int rows, int row_bytes, int lines) {
  TileConfig config;
  for (int tile = 0; tile < 4; tile++) config.set(tile, rows, 64);
  for (int tile = 4; tile < 6; tile++) config.set(tile, rows, row_bytes);
  for (int tile = 6; tile < 8; tile++) config.set(tile, lines, 64);
  asm volatile("ldtilecfg %0" : : "m"(config));
}

template <int TILE>
static inline void tile_load(const void *from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(TILE) : "memory");
}

template <int TILE>
static inline void tile_store(void *to, int64_t stride = 64) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(TILE) : "memory");
}

template <int TILE>
static inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(TILE));
}

// sum += x * w, pairs of bfloat16.
template <int SUM, int X, int W>
static inline void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(X), "i"(W));
}

// sum += x * w, runs of four bytes, x signed and w unsigned.
template <int SUM, int X, int W>
static inline void tile_dot_bytes() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(X), "i"(W));
}

}  // namespace outpace::OUTPACE_PATH

#endif
