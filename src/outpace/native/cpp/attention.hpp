// Exact attention of a tile of queries over one key/value head: all scores, their maximum, e^(s - max),
// then denominator and values in slot order.
//
// What makes a query's bits independent of the pass around it: a score is one sum over channels in
// order; the denominator and each output channel are one sum over the visible slots in order; a slot that
// is not visible is never multiplied. Blocking over queries, slots and channels changes none of that.
#pragma once

#include "attention_amx.hpp"

namespace outpace::OUTPACE_PATH {

inline constexpr int KEY_VECTORS = BLOCK / LANES;  // vectors in a block of keys

// Queries that share each loaded key and value, as far as registers go.
inline constexpr int SCORE_GROUP = LANES == 16 ? 12 : LANES == 8 ? 4 : 2;
inline constexpr int VALUE_GROUP = LANES == 16 ? 6 : 2;

// From so many queries on it pays to convert bfloat16 values once for all groups.
inline constexpr int MANY_QUERIES = 5 * VALUE_GROUP;

// A query sees slots low .. high - 1, and among high .. end - 1 those new tokens that `visible` has and
// whose position is past `reach`.
struct Query {
  int low, high, end, reach;
  const uint8_t *visible;    // of new tokens
  const int32_t *positions;  // of new tokens
};

// slots: whole blocks to score. channels: of the values to add up, whole vectors.
struct TileJob {
  const op_cache *cache;
  const unsigned char *keys, *values;
  int num_queries, start;  // start: slot of the first new token
  Range slots, channels;
  int64_t stride, scores_stride;  // of queries and sums; of scores
  float *queries, *scores, *sums, *wide_values;
  Query query[MAX_TILE_QUERIES];
  float denominators[MAX_TILE_QUERIES];
};

static inline bool sees(const TileJob &job, const Query &query, int slot) {
  const int token = slot - job.start;
  return query.visible[token] && query.positions[token] > query.reach;
}

// --- Scores -------------------------------------------------------------------------------------

// Channels c and c + 1 of LANES keys.
struct KeyPair {
  vf even, odd;
};

static inline KeyPair load_pair(const uint16_t *keys) {
  vu both;
  std::memcpy(&both, keys, sizeof both);
  return {(vf)(both << 16), (vf)(both & 0xffff0000u)};
}

static inline KeyPair load_pair(const float *keys) { return {load(keys), load(keys + BLOCK)}; }

// Vector `v` of keys of a run of blocks, channels c and c + 1.
template <class T>
static inline KeyPair key_pair(const T *keys, int64_t channels, int v, int c) {
  constexpr int width = sizeof(T) == 2 ? 2 * LANES : LANES;
  return load_pair(keys + (v / KEY_VECTORS * channels + c) * BLOCK + v % KEY_VECTORS * width);
}

// Scores of Q queries with V vectors of keys.
template <class T, int Q, int V>
static inline void score_vectors(const T *keys, int64_t channels, const float *queries, int64_t stride,
                                 float *scores, int64_t scores_stride) {
  vf sums[Q][V];
#pragma GCC unroll 16
  for (int q = 0; q < Q; q++)
#pragma GCC unroll 16
    for (int v = 0; v < V; v++) sums[q][v] = set1(0.0f);
  for (int c = 0; c < channels; c += 2) {
    KeyPair pair[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; v++) pair[v] = key_pair(keys, channels, v, c);
#pragma GCC unroll 16
    for (int q = 0; q < Q; q++) {
      const vf even = set1(queries[q * stride + c]), odd = set1(queries[q * stride + c + 1]);
#pragma GCC unroll 16
      for (int v = 0; v < V; v++) {
        sums[q][v] = fma(even, pair[v].even, sums[q][v]);
        sums[q][v] = fma(odd, pair[v].odd, sums[q][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int q = 0; q < Q; q++)
#pragma GCC unroll 16
    for (int v = 0; v < V; v++) store(scores + q * scores_stride + v * LANES, sums[q][v]);
}

// Vectors of keys at a time: few queries need several to hide the latency of their sums.
template <int Q>
inline constexpr int SCORE_VECTORS = LANES == 16 ? (Q <= 3 ? 4 : 2)
                                                 : (Q == 1 || KEY_VECTORS == 4 ? 4 : 2);

template <class T, int Q>
static void score_group(const TileJob &job, int first, int begin, int end) {
  const int64_t channels = job.cache->key_channels;
  const T *keys = (const T *)job.keys;
  const float *queries = job.queries + first * job.stride;
  float *scores = job.scores + first * job.scores_stride;
  constexpr int V = SCORE_VECTORS<Q>;
  int slot = begin;
  for (; slot + V * LANES <= end; slot += V * LANES)
    score_vectors<T, Q, V>(keys + slot * channels, channels, queries, job.stride, scores + slot,
                           job.scores_stride);
  for (; slot < end; slot += BLOCK)
    score_vectors<T, Q, KEY_VECTORS>(keys + slot * channels, channels, queries, job.stride, scores + slot,
                                 job.scores_stride);
}

template <class T>
static int score_some(const TileJob &job, int first, int num, int begin, int end) {
#define OUTPACE_SCORES(Q)                        \
  if constexpr (Q <= SCORE_GROUP)                \
    if (num >= Q) {                              \
      score_group<T, Q>(job, first, begin, end); \
      return Q;                                  \
    }
  OUTPACE_SCORES(12)
  OUTPACE_SCORES(8)
  OUTPACE_SCORES(6)
  OUTPACE_SCORES(4)
  OUTPACE_SCORES(3)
  OUTPACE_SCORES(2)
#undef OUTPACE_SCORES
  score_group<T, 1>(job, first, begin, end);
  return 1;
}

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
// queries: rounded, rows of key_channels.
static void score_chunk_by_tiles(const TileJob &job, int begin, int end) {
  const int64_t channels = job.cache->key_channels;
  TileScores run;
  run.queries = (const char *)job.queries;
  run.keys = (const char *)job.keys + begin * channels * 2;
  run.query_stride = channels * 2;
  run.block_bytes = channels * 2 * BLOCK;
  run.channels = channels;
  run.scores = (char *)(job.scores + begin);
  run.scores_stride = job.scores_stride * (int64_t)sizeof(float);
  score_queries(run, job.num_queries, (end - begin) / BLOCK);
}
#endif

template <class T>
static void score_tile(const TileJob &job) {
  for (int begin = job.slots.begin; begin < job.slots.end; begin += CHUNK) {
    const int end = begin + CHUNK < job.slots.end ? begin + CHUNK : job.slots.end;
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
    if constexpr (sizeof(T) == 2) {
      score_chunk_by_tiles(job, begin, end);
      continue;
    }
#endif
    for (int q = 0; q < job.num_queries;) q += score_some<T>(job, q, job.num_queries - q, begin, end);
  }
}

// --- Softmax ------------------------------------------------------------------------------------

// One query's scores become e^(s - max), 0 where it does not see; the end of the last block too.
static inline void softmax_row(const TileJob &job, const Query &query, float softcap, float *scores) {
  const int low = query.low / BLOCK * BLOCK, end = (int)padded(query.end);
  if (softcap > 0.0f) cap(softcap, scores + low, end - low);
  const float never = -__builtin_inff();
  for (int slot = low; slot < query.low; slot++) scores[slot] = never;
  for (int slot = query.high; slot < query.end; slot++)
    if (!sees(job, query, slot)) scores[slot] = never;
  for (int slot = query.end; slot < end; slot++) scores[slot] = never;
  vf lanes = set1(never);
  for (int slot = low; slot < end; slot += LANES) lanes = vmax(lanes, load(scores + slot));
  float values[LANES], greatest = never;
  store(values, lanes);
  for (float value : values) greatest = value > greatest ? value : greatest;
  const vf max = set1(greatest);
  for (int slot = low; slot < end; slot += LANES) store(scores + slot, vexp(load(scores + slot) - max));
}

// --- Values -------------------------------------------------------------------------------------

static inline vf load_value(const float *p) { return load(p); }
static inline vf load_value(const uint16_t *p) { return load_bf16(p); }

// Add slots' weighted values to D vectors of the sums of Q queries, and their weights to `totals` unless
// it is NULL.
template <class T, int Q, int D, bool Totals>
static inline void add_vectors(const T *values, int64_t channels, int num_slots, const float *weights,
                               int64_t weights_stride, float *sums, int64_t stride, float *totals) {
  vf sum[Q][D];
  float total[Q];
#pragma GCC unroll 16
  for (int q = 0; q < Q; q++) {
    total[q] = totals[q];
#pragma GCC unroll 16
    for (int d = 0; d < D; d++) sum[q][d] = load(sums + q * stride + d * LANES);
  }
  for (int slot = 0; slot < num_slots; slot++) {
    vf value[D];
#pragma GCC unroll 16
    for (int d = 0; d < D; d++) value[d] = load_value(values + slot * channels + d * LANES);
#pragma GCC unroll 16
    for (int q = 0; q < Q; q++) {
      const float weight = weights[q * weights_stride + slot];
      if constexpr (Totals) total[q] += weight;
#pragma GCC unroll 16
      for (int d = 0; d < D; d++) sum[q][d] = fma(set1(weight), value[d], sum[q][d]);
    }
  }
#pragma GCC unroll 16
  for (int q = 0; q < Q; q++) {
    totals[q] = total[q];
#pragma GCC unroll 16
    for (int d = 0; d < D; d++) store(sums + q * stride + d * LANES, sum[q][d]);
  }
}

// Slots begin .. end - 1 for Q queries; denominators along with the first channels. values: those of
// slot `begin`.
template <class T, int Q>
static void add_group(TileJob &job, const T *values, int first, int begin, int end) {
  const int64_t channels = job.cache->value_channels;
  const float *weights = job.scores + first * job.scores_stride + begin;
  float *sums = job.sums + first * job.stride, *totals = job.denominators + first;
  bool totalled = false;
  int c = job.channels.begin;
#define OUTPACE_VALUES(D)                                                                             \
  for (; c + D * LANES <= job.channels.end; c += D * LANES, totalled = true)                          \
    (totalled ? add_vectors<T, Q, D, false> : add_vectors<T, Q, D, true>)(                            \
        values + c, channels, end - begin, weights, job.scores_stride, sums + c, job.stride, totals);
  OUTPACE_VALUES(4)
  OUTPACE_VALUES(2)
  OUTPACE_VALUES(1)
#undef OUTPACE_VALUES
}

// The first of `num` queries, in even groups; returns how many.
template <class T>
static int add_some(TileJob &job, const T *values, int first, int num, int begin, int end) {
  const int groups = (num + VALUE_GROUP - 1) / VALUE_GROUP, size = (num + groups - 1) / groups;
#define OUTPACE_VALUES(Q)        \
  if constexpr (Q <= VALUE_GROUP) \
    if (size == Q) add_group<T, Q>(job, values, first, begin, end);
  OUTPACE_VALUES(6)
  OUTPACE_VALUES(5)
  OUTPACE_VALUES(4)
  OUTPACE_VALUES(3)
  OUTPACE_VALUES(2)
  OUTPACE_VALUES(1)
#undef OUTPACE_VALUES
  return size;
}

// The slots that all queries see without exception; the rest is each query's own.
static inline Range common_slots(const TileJob &job) {
  Range common = {0, job.query[0].high};
  for (int q = 0; q < job.num_queries; q++) {
    if (job.query[q].low > common.begin) common.begin = job.query[q].low;
    if (job.query[q].high < common.end) common.end = job.query[q].high;
  }
  if (common.begin >= common.end) common = {job.query[0].high, job.query[0].high};
  return common;
}

// Slots begin .. end - 1, which all queries see.
template <class T>
static void add_common(TileJob &job, const T *values, int begin, int end) {
  for (int q = 0; q < job.num_queries;)
    q += add_some<T>(job, values, q, job.num_queries - q, begin, end);
}

// The values of a chunk in float32: several groups of queries convert them once.
static const float *widen(const TileJob &job, const uint16_t *values, int num_slots) {
  const int64_t num = num_slots * job.cache->value_channels;
  for (int64_t i = 0; i < num; i += LANES) store(job.wide_values + i, load_bf16(values + i));
  return job.wide_values;
}

template <class T>
static void add_tile(TileJob &job) {
  const int64_t channels = job.cache->value_channels;
  const T *values = (const T *)job.values;
  const auto add_own = [&](int q, int begin, int end) {
    if (begin < end) add_group<T, 1>(job, values + begin * channels, q, begin, end);
  };
  const Range common = common_slots(job);
  const bool shared = common.begin < common.end;
  for (int q = 0; q < job.num_queries; q++)
    add_own(q, job.query[q].low, shared ? common.begin : job.query[q].high);
  for (int begin = common.begin; begin < common.end; begin += CHUNK) {
    const int end = begin + CHUNK < common.end ? begin + CHUNK : common.end;
    const T *chunk = values + begin * channels;
    if constexpr (sizeof(T) == 2) {
      if (job.num_queries >= MANY_QUERIES) {
        add_common(job, widen(job, chunk, end - begin), begin, end);
        continue;
      }
    }
    add_common(job, chunk, begin, end);
  }
  for (int q = 0; q < job.num_queries; q++) {
    const Query &query = job.query[q];
    if (shared) add_own(q, common.end, query.high);
    for (int slot = query.high; slot < query.end; slot++)
      if (sees(job, query, slot)) add_own(q, slot, slot + 1);
  }
}

}  // namespace outpace::OUTPACE_PATH
