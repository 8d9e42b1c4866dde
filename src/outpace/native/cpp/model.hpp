// What a pass works on: model, cache, plan and scratch memory, as plain data.
//
// Included by files compiled for one instruction set, so nothing here has code that could be
// linked into another's: no containers, no member functions, only static inline functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "outpace_native.h"
#include "pool.hpp"

namespace outpace {

inline constexpr int BLOCK = 16;  // slots per block of keys; channels that rows are padded to

static inline int64_t padded(int64_t n) { return (n + BLOCK - 1) / BLOCK * BLOCK; }

struct Rope {
  int32_t half, num_positions;
  const float *cos, *sin;  // [num_positions, half]
};

// New tokens of one sequence. visible: [num_tokens][num_tokens], whether token j is token i or its
// ancestor; NULL where each token follows the one before it.
struct Segment {
  int32_t row, start, num_tokens, first_token;
  const uint8_t *visible;
};

// Queries query_begin .. query_end - 1 of the key/value head `kv_head` in one segment; query i is
// head i % group of token i / group, group being the number of query heads of a key/value head.
// first_row: queries of the tiles before this one.
struct Tile {
  int32_t segment, kv_head, query_begin, query_end, first_row;
};

// One thread's own memory. Strides are in floats.
struct ThreadScratch {
  float *normed;      // [ALONE_ROWS][inputs of qkv, or of an EAGLE head's fc, padded]
  void *prepared[2];  // activations of up to ALONE_ROWS rows
  float *queries;     // [tile_queries][head_dim padded]
  float *sums;        // [tile_queries][head_dim padded]
  float *wide_values; // [CHUNK][head_dim padded]
  float *scores;      // [tile_queries][scores_stride]
  float *logits;      // [rows][head_panels(rows) * BLOCK]
  float *best;        // [rows]
  int32_t *best_ids;  // [rows]
};

inline constexpr int MAX_TILE_QUERIES = 48;
inline constexpr int PIECE_COUNTERS = 2;

// Slots that attention goes through at a time: their keys or values stay in the nearest cache.
inline constexpr int CHUNK = 128;

// Activations of so few rows are prepared by every thread for itself, which saves a barrier.
inline constexpr int ALONE_ROWS = 2;

// Panels of the head that a thread computes at a time for `rows` rows.
static inline int head_panels(int rows) { return rows >= 1024 ? 1 : rows <= 32 ? 32 : 1024 / rows; }

struct Scratch {
  int64_t rows, logit_rows, capacity;  // what it is large enough for
  int32_t tile_queries;
  int64_t scores_stride;
  float *x, *branch;           // [rows][hidden_size padded]
  float *normed;               // [rows][inputs of qkv, or of an EAGLE head's fc, padded]
  float *qkv, *attended;       // [rows][outputs of qkv padded], [rows][inputs of o padded]
  float *up, *inner;           // [rows][outputs of up padded], [rows][intermediate_size padded]
  void *prepared[2];
  ThreadScratch *threads;
  void *memory;
  size_t num_bytes;
};

struct Kernels;
struct Plan;

}  // namespace outpace

struct op_model {
  op_config config;
  op_eagle eagle;  // config.eagle points here, or nowhere
  op_layer *layers;
  outpace::Rope *ropes;
  op_pool *pool;
  const outpace::Kernels *kernels;
  outpace::Scratch scratch;
  outpace::Plan *plan;
  int running;
};

// Per layer, row and key/value head: keys, then values, both for `capacity` slots.
// Keys: [slot / 16][channel][slot % 16] in float32; [slot / 16][channel / 2][slot % 16][channel % 2]
// in bfloat16. Values: [slot][channel], channels padded with zeros to a multiple of 16.
struct op_cache {
  int32_t num_layers, num_rows, capacity, num_kv_heads, head_dim, kv_type;
  int64_t key_channels, value_channels;  // with padding
  int64_t head_bytes;                    // keys and values of one head
  unsigned char *memory;
  size_t num_bytes;
};

namespace outpace {

static inline unsigned char *cached_head(const op_cache &cache, int layer, int row, int kv_head) {
  const int64_t head = ((int64_t)layer * cache.num_rows + row) * cache.num_kv_heads + kv_head;
  return cache.memory + head * cache.head_bytes;
}

// How a logit row's token is chosen, see op_eagle_draft. The logits are written to `row` unless it is NULL;
// of a drawn token they become q there. ranking: of this row alone, none if its width is 0. A row that should
// be finite and is not has the best -1.
struct Draw {
  int32_t choice;
  float temperature;
  op_noise noise;
  float *row;
  op_ranking ranking;
};

// One pass, planned. Everything is checked before it comes here.
struct Pass {
  op_model *model;
  op_cache *cache;
  const op_batch *batch;
  float *x;  // [num_tokens][hidden_size], the residual stream
  int32_t first_layer, last_layer;
  int32_t num_segments, num_tiles;
  int32_t num_rows;  // queries of all tiles
  int32_t longest;   // slots up to the last new token of the longest segment
  bool together;     // all threads share every tile
  const Segment *segments;
  const int32_t *positions;      // [num_tokens]
  const int32_t *token_segment;  // [num_tokens]
  const Tile *tiles;
  int32_t *next_piece;  // [num_layers][PIECE_COUNTERS], 0 at first: work that threads take as they come
  bool whole;          // embedding before and logits after the layers
  const Draw *draws;   // [num_logit_rows] or NULL
};

struct LinearJob {
  op_pool *pool;
  const op_linear *linear;
  int32_t activations, rows;
  const float *x;
  float *y;
  void *prepared;
};

// What one instruction-set path computes. Jobs of op_pool: `pass` of a Pass, `linear` of a LinearJob.
// Keys in bfloat16 have their channels padded to a multiple of key_channel_multiple.
struct Kernels {
  Job pass, linear;
  size_t (*prepared_bytes)(const op_linear &w, int activations, int rows);
  int32_t key_channel_multiple;
};

static inline int64_t key_channels_of(const op_model &model) {
  const int64_t multiple = model.config.kv_type == OP_KV_F32 ? 2 : model.kernels->key_channel_multiple;
  return (model.config.head_dim + multiple - 1) / multiple * multiple;
}

}  // namespace outpace
