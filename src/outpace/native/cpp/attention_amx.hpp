// Scores of bfloat16 keys by tile registers (AMX).
//
// Keys lie in the cache as a tile wants them: 32 channels of 16 keys are 16 lines of 64 bytes, channels
// in pairs. Queries are rounded to bfloat16. A score is still one sum over channels in order, whatever
// other queries and keys share its tile.
#pragma once

#include "ops.hpp"
#include "tiles.hpp"

namespace outpace::OUTPACE_PATH {

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)

inline constexpr bool HAS_TILE_SCORES = true;
inline constexpr int TILE_CHANNELS = 32;
inline constexpr int KEY_CHANNEL_MULTIPLE = TILE_CHANNELS;

// What a run of scores needs. Strides in bytes.
struct TileScores {
  const char *queries, *keys;
  int64_t query_stride, block_bytes;  // of a query; of a block of keys
  int64_t channels;
  char *scores;
  int64_t scores_stride;
};

// A x 16 queries (or the one last, smaller group) with B blocks of keys.
template <int A, int B>
static inline void score_by_tiles(const TileScores &run) {
  tile_zero<0>();
  if constexpr (B == 2) tile_zero<1>();
  if constexpr (A == 2) tile_zero<2>();
  if constexpr (A == 2 && B == 2) tile_zero<3>();
  for (int64_t c = 0; c < run.channels; c += TILE_CHANNELS) {
    const char *queries = run.queries + c * 2, *keys = run.keys + c * 2 * BLOCK;
    tile_load<4>(queries, run.query_stride);
    tile_load<6>(keys, 64);
    tile_dot_bf16<0, 4, 6>();
    if constexpr (B == 2) {
      tile_load<7>(keys + run.block_bytes, 64);
      tile_dot_bf16<1, 4, 7>();
    }
    if constexpr (A == 2) {
      tile_load<5>(queries + BLOCK * run.query_stride, run.query_stride);
      tile_dot_bf16<2, 5, 6>();
      if constexpr (B == 2) tile_dot_bf16<3, 5, 7>();
    }
  }
  constexpr int64_t block = BLOCK * sizeof(float);
  tile_store<0>(run.scores, run.scores_stride);
  if constexpr (B == 2) tile_store<1>(run.scores + block, run.scores_stride);
  if constexpr (A == 2) tile_store<2>(run.scores + BLOCK * run.scores_stride, run.scores_stride);
  if constexpr (A == 2 && B == 2)
    tile_store<3>(run.scores + BLOCK * run.scores_stride + block, run.scores_stride);
}

// The same for any number of blocks.
template <int A>
static void score_blocks(TileScores run, int num_blocks) {
  for (; num_blocks >= 2; num_blocks -= 2) {
    score_by_tiles<A, 2>(run);
    run.keys += 2 * run.block_bytes;
    run.scores += 2 * BLOCK * sizeof(float);
  }
  if (num_blocks) score_by_tiles<A, 1>(run);
}

// Full groups of 16 queries two by two, then one; then the rest with tiles of as many rows.
static void score_queries(TileScores run, int num_queries, int num_blocks) {
  const auto step = [&](int num) {
    run.queries += num * run.query_stride;
    run.scores += num * run.scores_stride;
    num_queries -= num;
  };
  if (num_queries >= BLOCK) configure_tiles(BLOCK, 64, BLOCK);
  for (; num_queries >= 2 * BLOCK; step(2 * BLOCK)) score_blocks<2>(run, num_blocks);
  if (num_queries >= BLOCK) {
    score_blocks<1>(run, num_blocks);
    step(BLOCK);
  }
  if (num_queries > 0) {
    configure_tiles(num_queries, 64, BLOCK);
    score_blocks<1>(run, num_blocks);
  }
}

#else  // no tile registers

inline constexpr bool HAS_TILE_SCORES = false;
inline constexpr int KEY_CHANNEL_MULTIPLE = 2;

#endif

}  // namespace outpace::OUTPACE_PATH
