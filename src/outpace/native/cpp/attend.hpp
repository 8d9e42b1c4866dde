// Attention of a pass: which thread does which part of which tile.
//
// Either a thread does whole tiles, or, where there are few of them and much to see, all threads
// share every tile: first scores by slots, then softmax by queries, then values by channels.
#pragma once

#include "attention.hpp"

namespace outpace::OUTPACE_PATH {

// What token `token` of a segment sees in a layer with this window (0: everything).
static inline Query query_of(const Pass &pass, const Segment &segment, int token, int window) {
  Query query;
  query.positions = pass.positions + segment.first_token;
  query.reach = window > 0 ? query.positions[token] - window : -1;
  query.low = query.reach + 1 > 0 ? query.reach + 1 : 0;
  query.end = segment.start + token + 1;
  query.high = query.end;
  query.visible = nullptr;
  if (segment.visible) {
    query.visible = segment.visible + (int64_t)token * segment.num_tokens;
    query.high = segment.start;
    if (query.low > query.high) query.low = query.high;
  }
  return query;
}

// A tile in one layer, all its slots and channels. scores: its first row.
struct LayerTile {
  const Pass &pass;
  const op_config &config;
  const op_layer &layer;
  const Tile &tile;
  const Segment &segment;
  TileJob job;

  LayerTile(const Pass &p, int index, const Tile &t, const ThreadScratch &own, float *scores)
      : pass(p),
        config(p.model->config),
        layer(p.model->layers[index]),
        tile(t),
        segment(p.segments[t.segment]) {
    const op_cache &cache = *pass.cache;
    const int64_t element = cache.kv_type == OP_KV_F32 ? 4 : 2;
    job.cache = &cache;
    job.keys = cached_head(cache, index, segment.row, tile.kv_head);
    job.values = job.keys + cache.key_channels * cache.capacity * element;
    job.num_queries = tile.query_end - tile.query_begin;
    job.start = segment.start;
    job.channels = {0, (int)cache.value_channels};
    job.stride = padded(config.head_dim);
    job.scores_stride = pass.model->scratch.scores_stride;
    job.queries = own.queries;
    job.scores = scores;
    job.sums = own.sums;
    job.wide_values = own.wide_values;
    int low = segment.start + segment.num_tokens;
    for (int q = 0; q < job.num_queries; q++) {
      job.query[q] = query_of(pass, segment, token_of(q), layer.window);
      low = job.query[q].low < low ? job.query[q].low : low;
    }
    job.slots = {low / BLOCK * BLOCK, (int)padded(job.query[job.num_queries - 1].end)};
  }

  int group() const { return config.num_heads / config.num_kv_heads; }
  int token_of(int q) const { return (tile.query_begin + q) / group(); }
  int head_of(int q) const { return tile.kv_head * group() + (tile.query_begin + q) % group(); }

  void score() {
    const bool narrow = HAS_TILE_SCORES && job.cache->kv_type == OP_KV_BF16;
    const int64_t qkv_stride = padded(layer.qkv.out);
    for (int q = 0; q < job.num_queries; q++) {
      const float *query = pass.model->scratch.qkv + (segment.first_token + token_of(q)) * qkv_stride;
      query += head_of(q) * config.head_dim;
      if (narrow)
        copy_query((uint16_t *)job.queries + q * job.cache->key_channels, query, job.cache->key_channels);
      else
        copy_query(job.queries + q * job.stride, query, job.stride);
    }
    job.cache->kv_type == OP_KV_F32 ? score_tile<float>(job) : score_tile<uint16_t>(job);
  }

  template <class T>
  void copy_query(T *copy, const float *query, int64_t channels) const {
    for (int64_t c = 0; c < config.head_dim; c++) {
      if constexpr (sizeof(T) == 2)
        copy[c] = to_bf16(query[c]);
      else
        copy[c] = query[c];
    }
    for (int64_t c = config.head_dim; c < channels; c++) copy[c] = 0;
  }

  void softmax(int q) {
    softmax_row(job, job.query[q], config.attention_softcap, job.scores + q * job.scores_stride);
  }

  // attended[token][head] = values summed by weight, over the weights' sum.
  void add_values() {
    for (int q = 0; q < job.num_queries; q++) {
      job.denominators[q] = 0.0f;
      std::memset(job.sums + q * job.stride, 0, job.stride * sizeof(float));
    }
    job.cache->kv_type == OP_KV_F32 ? add_tile<float>(job) : add_tile<uint16_t>(job);
    const int64_t stride = padded(layer.o.in), dim = config.head_dim;
    for (int q = 0; q < job.num_queries; q++) {
      float *out = pass.model->scratch.attended + (segment.first_token + token_of(q)) * stride;
      out += head_of(q) * dim;
      const vf denominator = set1(job.denominators[q]);
      const int end = job.channels.end < dim ? job.channels.end : (int)dim;
      for (int c = job.channels.begin; c < end; c += LANES)
        store_some(out + c, load(job.sums + q * job.stride + c) / denominator, end - c);
    }
  }
};

// The next piece of work that no thread has taken yet.
static inline int take(int32_t *next) { return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); }

static void attend_tiles(const Pass &pass, int index, const ThreadScratch &own) {
  int32_t *next = pass.next_piece + PIECE_COUNTERS * index;
  for (int t = take(next); t < pass.num_tiles; t = take(next)) {
    LayerTile tile(pass, index, pass.tiles[t], own, own.scores);
    tile.score();
    for (int q = 0; q < tile.job.num_queries; q++) tile.softmax(q);
    tile.add_values();
  }
}

// Every tile by all threads. Scores of all tiles lie one below the other in the first thread's scratch.
static void attend_together(const Pass &pass, int index, const ThreadScratch &own, int thread) {
  constexpr int SLOTS = 256, CHANNELS = 2 * BLOCK;
  const Scratch &shared = pass.model->scratch;
  const auto open = [&](int t) {
    float *scores = shared.threads[0].scores + pass.tiles[t].first_row * shared.scores_stride;
    return LayerTile(pass, index, pass.tiles[t], own, scores);
  };
  int32_t *next = pass.next_piece + PIECE_COUNTERS * index;
  const int pieces = (pass.longest + BLOCK + SLOTS - 1) / SLOTS;
  for (int i = take(next); i < pieces * pass.num_tiles; i = take(next)) {
    LayerTile tile = open(i % pass.num_tiles);
    const int begin = tile.job.slots.begin + i / pass.num_tiles * SLOTS;
    if (begin >= tile.job.slots.end) continue;
    tile.job.slots.begin = begin;
    if (begin + SLOTS < tile.job.slots.end) tile.job.slots.end = begin + SLOTS;
    tile.score();
  }
  pool_barrier(pass.model->pool);
  const Range rows = share(pass.num_rows, pool_size(pass.model->pool), thread);
  for (int t = 0; t < pass.num_tiles; t++) {
    LayerTile tile = open(t);
    for (int q = 0; q < tile.job.num_queries; q++)
      if (pass.tiles[t].first_row + q >= rows.begin && pass.tiles[t].first_row + q < rows.end)
        tile.softmax(q);
  }
  pool_barrier(pass.model->pool);
  const int slices = (int)((pass.cache->value_channels + CHANNELS - 1) / CHANNELS);
  for (int i = take(next + 1); i < slices * pass.num_tiles; i = take(next + 1)) {
    LayerTile tile = open(i / slices);
    tile.job.channels.begin = i % slices * CHANNELS;
    if (tile.job.channels.begin + CHANNELS < tile.job.channels.end)
      tile.job.channels.end = tile.job.channels.begin + CHANNELS;
    tile.add_values();
  }
}

}  // namespace outpace::OUTPACE_PATH
