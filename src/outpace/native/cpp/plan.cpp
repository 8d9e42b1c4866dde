#include "plan.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace outpace {

bool fail(char *error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error, OP_ERROR_BYTES, format, arguments);
  va_end(arguments);
  return false;
}

// --- Checks -------------------------------------------------------------------------------------

namespace {

bool check_cache(const op_model &model, const op_cache *cache, char *error) {
  const op_config &config = model.config;
  if (!cache) return fail(error, "a pass needs a cache, got none");
  if (cache->num_layers != config.num_layers || cache->num_kv_heads != config.num_kv_heads ||
      cache->head_dim != config.head_dim || cache->kv_type != config.kv_type ||
      cache->key_channels != key_channels_of(model))
    return fail(error, "the cache was made for a model of another shape or path");
  return true;
}

bool check_parents(const op_segment &segment, int index, char *error) {
  for (int i = 0; segment.parents && i < segment.num_tokens; i++)
    if (segment.parents[i] < -1 || segment.parents[i] >= i)
      return fail(error, "segment %d: token %d has parent %d; parents come before their children", index,
                  i, segment.parents[i]);
  return true;
}

// Positions that a segment's tokens reach: of a tree its deepest path, which may be shorter than the
// slots that all its nodes take.
int64_t positions_of(const op_segment &segment) {
  if (!segment.parents) return (int64_t)segment.start + segment.num_tokens;
  std::vector<int64_t> ends((size_t)segment.num_tokens);
  int64_t last = 0;
  for (int i = 0; i < segment.num_tokens; i++) {
    const int32_t parent = segment.parents[i];
    ends[(size_t)i] = (parent < 0 ? (int64_t)segment.start : ends[(size_t)parent]) + 1;
    last = std::max(last, ends[(size_t)i]);
  }
  return last;
}

bool check_segments(const op_model &model, const op_cache &cache, const op_batch &batch, char *error) {
  int64_t num_tokens = 0, end = 0;
  std::vector<char> taken((size_t)cache.num_rows, 0);
  for (int i = 0; i < batch.num_segments; i++) {
    const op_segment &segment = batch.segments[i];
    if (segment.row < 0 || segment.row >= cache.num_rows)
      return fail(error, "segment %d: cache row %d of %d", i, segment.row, cache.num_rows);
    if (taken[(size_t)segment.row]++)
      return fail(error, "segment %d: cache row %d is another segment's too", i, segment.row);
    if (segment.num_tokens < 1) return fail(error, "segment %d has no tokens", i);
    if (segment.start < 0 || (int64_t)segment.start + segment.num_tokens > cache.capacity)
      return fail(error, "segment %d: slots %d to %lld of a cache for %d tokens", i, segment.start,
                  (long long)segment.start + segment.num_tokens - 1, cache.capacity);
    if (!check_parents(segment, i, error)) return false;
    num_tokens += segment.num_tokens;
    end = std::max(end, positions_of(segment));
  }
  if (num_tokens != batch.num_tokens)
    return fail(error, "segments hold %lld tokens, the batch %d", (long long)num_tokens,
                batch.num_tokens);
  for (int layer = 0; layer < model.config.num_layers; layer++) {
    const int rope = model.layers[layer].rope;
    if (rope >= 0 && model.ropes[rope].num_positions < end)
      return fail(error, "rotation %d reaches %d positions, %lld are needed (op_set_rope)", rope,
                  model.ropes[rope].num_positions, (long long)end);
  }
  if (model.config.position_embedding && model.config.num_positions < end)
    return fail(error, "the model has %d positions, %lld are needed", model.config.num_positions,
                (long long)end);
  return true;
}

bool check_whole(const op_model &model, const op_batch &batch, char *error) {
  const op_config &config = model.config;
  if (!batch.token_ids) return fail(error, "a batch without token_ids");
  for (int i = 0; i < batch.num_tokens; i++)
    if (batch.token_ids[i] < 0 || batch.token_ids[i] >= config.vocab_size)
      return fail(error, "token %d has id %d of a vocabulary of %d", i, batch.token_ids[i],
                  config.vocab_size);
  if (batch.num_logit_rows < 0 || (batch.num_logit_rows > 0 && !batch.logit_rows))
    return fail(error, "%d logit rows, but no list of them", batch.num_logit_rows);
  for (int i = 0; i < batch.num_logit_rows; i++)
    if (batch.logit_rows[i] < 0 || batch.logit_rows[i] >= batch.num_tokens)
      return fail(error, "logits of token %d of %d", batch.logit_rows[i], batch.num_tokens);
  if (config.eagle && (!batch.x || batch.num_capture != 0))
    return fail(error, "columns of an EAGLE head start from given x, and leave outputs alone");
  if (batch.num_layers < 0 || batch.num_layers > config.num_layers)
    return fail(error, "the first %d layers of a model of %d", batch.num_layers, config.num_layers);
  const int num_layers = batch.num_layers ? batch.num_layers : config.num_layers;
  if (batch.num_capture < 0 || (batch.num_capture > 0 && (!batch.capture || !batch.hidden)))
    return fail(error, "%d layers to capture, but no list of them or no memory", batch.num_capture);
  for (int i = 0; i < batch.num_capture; i++) {
    if (batch.capture[i] < 0 || batch.capture[i] > num_layers || !batch.hidden[i])
      return fail(error, "capture of layer %d; there are 0 (the embedding) to %d", batch.capture[i],
                  num_layers);
    if (i > 0 && batch.capture[i] <= batch.capture[i - 1])
      return fail(error, "layers to capture must ascend: %d after %d", batch.capture[i],
                  batch.capture[i - 1]);
  }
  return true;
}

}  // namespace

bool check_batch(const op_model &model, const op_cache *cache, const op_batch *batch, bool whole,
                 char *error) {
  if (!check_cache(model, cache, error)) return false;
  if (!batch || batch->num_tokens < 1 || batch->num_segments < 1 || !batch->segments)
    return fail(error, "a batch needs at least one segment with at least one token");
  return check_segments(model, *cache, *batch, error) && (!whole || check_whole(model, *batch, error));
}

// --- Plan ---------------------------------------------------------------------------------------

namespace {

bool is_tree(const op_segment &segment) {
  if (!segment.parents) return false;
  for (int i = 0; i < segment.num_tokens; i++)
    if (segment.parents[i] != i - 1) return true;
  return false;
}

// Positions of a segment's tokens and, for a tree, who sees whom: visible [num_tokens][num_tokens].
void place_tokens(const op_segment &segment, int32_t *positions, uint8_t *visible) {
  const int64_t n = segment.num_tokens;
  for (int64_t i = 0; i < n; i++) {
    const int64_t parent = segment.parents ? segment.parents[i] : i - 1;
    positions[i] = parent < 0 ? segment.start : positions[parent] + 1;
    if (!visible) continue;
    uint8_t *row = visible + i * n;
    if (parent >= 0)
      std::copy_n(visible + parent * n, n, row);
    else
      std::fill_n(row, n, uint8_t{0});
    row[i] = 1;
  }
}

// Even tiles, as large as scratch memory allows, but more of them where that lets threads share evenly.
void add_tiles(std::vector<Tile> &tiles, const op_model &model, const Plan &plan) {
  constexpr int64_t FEWEST_QUERIES = 6;
  const int64_t num_kv = model.config.num_kv_heads, group = model.config.num_heads / num_kv;
  const int64_t heads = num_kv * (int64_t)plan.segments.size(), num_threads = pool_size(model.pool);
  const int64_t largest = model.scratch.tile_queries;
  int32_t first_row = 0;
  // Last things first: the later a token, the more it sees, and small tiles at the end even things out.
  for (int64_t s = (int64_t)plan.segments.size() - 1; s >= 0; s--) {
    const int64_t queries = group * plan.segments[s].num_tokens;
    int64_t num = (queries + largest - 1) / largest;
    while (num * heads < 4 * num_threads && num * heads % num_threads != 0 &&
           queries / (num + 1) >= FEWEST_QUERIES)
      num++;
    for (int64_t t = num - 1; t >= 0; t--)
      for (int kv_head = 0; kv_head < num_kv; kv_head++) {
        const int32_t begin = (int32_t)(queries * t / num), end = (int32_t)(queries * (t + 1) / num);
        tiles.push_back({(int32_t)s, kv_head, begin, end, first_row});
        first_row += end - begin;
      }
  }
}

// Whether the threads would share whole tiles unevenly, and there is enough to see to pay for two more
// barriers.
bool is_better_together(const Pass &pass, const op_model &model) {
  constexpr int32_t LONG = 512;
  const int num_threads = pool_size(model.pool);
  return num_threads > 1 && pass.longest >= LONG && pass.num_rows <= model.scratch.tile_queries &&
         pass.num_tiles < 4 * num_threads && pass.num_tiles % num_threads != 0;
}

}  // namespace

Pass make_pass(op_model &model, op_cache *cache, const op_batch &batch) {
  grow_scratch(model, batch.num_tokens, batch.num_logit_rows, cache->capacity);
  Plan &plan = *model.plan;
  plan.segments.clear();
  plan.tiles.clear();
  plan.positions.resize(batch.num_tokens);
  plan.token_segment.resize(batch.num_tokens);
  size_t num_visible = 0;
  for (int i = 0; i < batch.num_segments; i++)
    if (is_tree(batch.segments[i]))
      num_visible += (size_t)batch.segments[i].num_tokens * batch.segments[i].num_tokens;
  plan.visible.resize(num_visible);
  uint8_t *next_visible = plan.visible.data();
  int32_t first_token = 0;
  for (int i = 0; i < batch.num_segments; i++) {
    const op_segment &segment = batch.segments[i];
    uint8_t *visible = is_tree(segment) ? next_visible : nullptr;
    if (visible) next_visible += (size_t)segment.num_tokens * segment.num_tokens;
    place_tokens(segment, &plan.positions[first_token], visible);
    std::fill_n(&plan.token_segment[first_token], segment.num_tokens, i);
    plan.segments.push_back({segment.row, segment.start, segment.num_tokens, first_token, visible});
    first_token += segment.num_tokens;
  }
  add_tiles(plan.tiles, model, plan);
  plan.next_piece.assign((size_t)model.config.num_layers * PIECE_COUNTERS, 0);
  Pass pass = {};
  pass.model = &model;
  pass.cache = cache;
  pass.batch = &batch;
  pass.x = model.scratch.x;
  pass.last_layer = batch.num_layers ? batch.num_layers : model.config.num_layers;
  pass.num_segments = batch.num_segments;
  pass.num_tiles = (int32_t)plan.tiles.size();
  pass.segments = plan.segments.data();
  pass.positions = plan.positions.data();
  pass.token_segment = plan.token_segment.data();
  pass.tiles = plan.tiles.data();
  pass.next_piece = plan.next_piece.data();
  pass.whole = true;
  pass.num_rows = batch.num_tokens * model.config.num_heads;
  for (const Segment &segment : plan.segments)
    pass.longest = std::max(pass.longest, segment.start + segment.num_tokens);
  pass.together = is_better_together(pass, model);
  return pass;
}

}  // namespace outpace
