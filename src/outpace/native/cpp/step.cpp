// One pass over the tokens of a ragged batch, run by every thread of the pool at once.
//
// Compiled once per instruction-set path. Between barriers every thread works on its own part: rows
// (norms and activations), panels of outputs (products), heads of tokens (rotation and cache), tiles of
// queries (attention). What a thread writes, others read only after a barrier.
#include "step.hpp"

#include "attend.hpp"
#include "draw.hpp"
#include "linear.hpp"

namespace outpace::OUTPACE_PATH {
namespace {

struct Worker {
  const Pass &pass;
  const op_model &model;
  const op_config &config;
  const Scratch &shared;
  const ThreadScratch &own;
  const int thread, num_threads, num_tokens;
  const bool alone;  // every thread prepares all rows for itself
  int num_captured = 0;

  Worker(const Pass &p, int t)
      : pass(p),
        model(*p.model),
        config(model.config),
        shared(model.scratch),
        own(shared.threads[t]),
        thread(t),
        num_threads(pool_size(model.pool)),
        num_tokens(p.batch->num_tokens),
        alone(num_tokens <= ALONE_ROWS && config.block != OP_BLOCK_SANDWICH) {}

  Range mine(int64_t total) const { return share(total, num_threads, thread); }
  void barrier() const { pool_barrier(model.pool); }

  // --- Rows to activations and products -------------------------------------------------------

  // Ready the rows that `fill(row, out)` writes as activations of `w`, in buffer `slot`.
  template <class Fill>
  void prepare_rows(const op_linear &w, int rows, bool by_all, int slot, Fill fill) const {
    float *normed = by_all ? own.normed : shared.normed;
    const int64_t stride = padded(w.in);
    const Range range = by_all ? Range{0, rows} : mine(rows);
    for (int row = range.begin; row < range.end; row++) fill(row, normed + row * stride);
    if (range.begin < range.end)
      prepare(w, config.activations, normed, stride, rows, range.begin, range.end,
              prepared(by_all, slot));
  }

  void prepare_normed(const op_linear &w, const op_norm &norm, int slot) const {
    prepare_rows(w, num_tokens, alone, slot, [&](int row, float *out) {
      normed(norm, pass.x + (int64_t)row * config.hidden_size, out);
    });
  }

  // norm(x), or x where there is no norm; `to` may be x.
  void normed(const op_norm &norm, const float *x, float *to) const {
    if (norm.weight)
      norm_row(config.norm, norm, config.norm_eps, config.hidden_size, x, to);
    else if (to != x)
      std::memcpy(to, x, config.hidden_size * sizeof(float));
  }

  void prepare_plain(const op_linear &w, const float *x) const {
    const Range range = alone ? Range{0, num_tokens} : mine(num_tokens);
    if (range.begin < range.end)
      prepare(w, config.activations, x, padded(w.in), num_tokens, range.begin, range.end,
              prepared(alone, 0));
    settle();
  }

  void *prepared(bool by_all, int slot) const {
    return by_all ? own.prepared[slot] : shared.prepared[slot];
  }

  // After preparing: others' rows are needed, unless every thread has prepared all of them.
  void settle() const {
    if (!alone) barrier();
  }

  void product(const op_linear &w, const float *residual, float *y, int64_t stride) const {
    const Range panels = mine((w.out + PANEL - 1) / PANEL);
    if (panels.begin < panels.end)
      multiply(w, config.activations, prepared(alone, 0), num_tokens, panels.begin, panels.end,
               residual, y, stride);
  }

  // --- The phases of a layer ------------------------------------------------------------------

  void embed() const {
    const int64_t hidden = config.hidden_size;
    const Range rows = mine(num_tokens);
    for (int row = rows.begin; row < rows.end; row++) {
      float *x = pass.x + row * hidden;
      embed_row(row, x);
      if (!config.position_embedding) continue;
      const float *position = config.position_embedding + pass.positions[row] * hidden;
      for (int64_t i = 0; i < hidden; i++) x[i] += position[i];
    }
    barrier();
  }

  void embed_row(int row, float *x) const {
    op_unpack_row(&config.embedding, pass.batch->token_ids[row], x);
    for (int i = 0; i < config.hidden_size; i++) x[i] *= config.embedding_scale;
  }

  // --- Where columns of an EAGLE head start and end -------------------------------------------

  const float *start_of(int row) const { return pass.batch->x + (int64_t)row * config.hidden_size; }

  // EAGLE-1: the residual stream is fc of embedding and x.
  void fuse() const {
    const op_linear &fc = config.eagle->fc;
    prepare_rows(fc, num_tokens, alone, 0, [&](int row, float *out) {
      embed_row(row, out);
      std::memcpy(out + config.hidden_size, start_of(row), config.hidden_size * sizeof(float));
    });
    settle();
    product(fc, nullptr, pass.x, config.hidden_size);
    barrier();
  }

  // EAGLE-3: embedding and x, each with its norm, are what qkv reads.
  void join(const op_layer &layer) const {
    const op_eagle &eagle = *config.eagle;
    const Range own_rows = mine(num_tokens);
    prepare_rows(layer.qkv, num_tokens, alone, 0, [&](int row, float *out) {
      const float *x = start_of(row);
      float *feature = out + config.hidden_size;
      embed_row(row, out);
      normed(layer.input_norm, out, out);
      normed(eagle.hidden_norm, x, feature);
      if (row >= own_rows.begin && row < own_rows.end)
        std::memcpy(pass.x + (int64_t)row * config.hidden_size, eagle.norm_before_residual ? feature : x,
                    config.hidden_size * sizeof(float));
    });
  }

  void output() const {
    const int64_t hidden = config.hidden_size;
    const Range rows = mine(num_tokens);
    for (int row = rows.begin; row < rows.end; row++)
      normed(config.eagle->norm_output ? config.final_norm : op_norm{}, pass.x + row * hidden,
             pass.batch->outputs + row * hidden);
  }

  void capture(int depth) {
    const op_batch &batch = *pass.batch;
    if (num_captured == batch.num_capture || batch.capture[num_captured] != depth) return;
    const int64_t hidden = config.hidden_size;
    const Range rows = mine(num_tokens);
    std::memcpy(batch.hidden[num_captured] + rows.begin * hidden, pass.x + rows.begin * hidden,
                (rows.end - rows.begin) * hidden * sizeof(float));
    num_captured++;
  }

  // Turn and scale one query head in place, or write one key or value head to the cache.
  void place_head(const op_layer &layer, int index, int head, int token) const {
    const int dim = config.head_dim, num_q = config.num_heads, num_kv = config.num_kv_heads;
    float *x = shared.qkv + token * padded(layer.qkv.out) + head * dim;
    if (head < num_q + num_kv) {
      const float *weight = head < num_q ? layer.q_norm : layer.k_norm;
      if (weight) norm_row(OP_NORM_RMS, {weight, nullptr}, config.norm_eps, dim, x, x);
      if (layer.rope >= 0) rotate(model.ropes[layer.rope], pass.positions[token], x);
    }
    if (head < num_q) {
      for (int i = 0; i < dim; i++) x[i] *= config.attention_scale;
      return;
    }
    const Segment &segment = pass.segments[pass.token_segment[token]];
    const int slot = segment.start + token - segment.first_token;
    const bool is_key = head < num_q + num_kv;
    write_cache(*pass.cache, cached_head(*pass.cache, index, segment.row, (head - num_q) % num_kv), slot,
                is_key, x);
  }

  void place(const op_layer &layer, int index) const {
    // Head by head: neighbouring slots of a head share cache lines.
    const Range range = mine((int64_t)num_tokens * (config.num_heads + 2 * config.num_kv_heads));
    for (int i = range.begin; i < range.end; i++)
      place_head(layer, index, i / num_tokens, i % num_tokens);
    barrier();
  }

  void attention(int index) const {
    if (pass.together)
      attend_together(pass, index, own, thread);
    else
      attend_tiles(pass, index, own);
    barrier();
  }

  // x += norm(branch), for a thread's own rows.
  void add_normed(const op_norm &norm) const {
    const int64_t hidden = config.hidden_size, stride = padded(hidden);
    const Range rows = mine(num_tokens);
    for (int row = rows.begin; row < rows.end; row++) {
      float *x = pass.x + row * hidden, *branch = shared.branch + row * stride;
      norm_row(config.norm, norm, config.norm_eps, (int)hidden, branch, branch);
      for (int64_t i = 0; i < hidden; i++) x[i] += branch[i];
    }
  }

  // x += W activations, directly or through the norm that a sandwich has there.
  void add_product(const op_linear &w, const op_norm &sandwich_norm) const {
    if (config.block == OP_BLOCK_SANDWICH) {
      product(w, nullptr, shared.branch, padded(config.hidden_size));
      barrier();
      add_normed(sandwich_norm);
    } else {
      product(w, pass.x, pass.x, config.hidden_size);
      barrier();
    }
  }

  // inner = act(up) or act(gate) * up; a thread's own outputs, some panels at a time.
  void up(const op_layer &layer, int slot) const {
    const int panels_per_run = config.gated_mlp ? 2 : 1;
    const int64_t up_stride = padded(layer.up.out), stride = padded(config.intermediate_size);
    const int at_a_time = num_tokens <= 64 ? 1 << 20 : 4;
    const Range runs = mine(up_stride / (panels_per_run * PANEL));
    for (int begin = runs.begin; begin < runs.end;) {
      const int end = runs.end - begin > at_a_time ? begin + at_a_time : runs.end;
      multiply(layer.up, config.activations, prepared(alone, slot), num_tokens, begin * panels_per_run,
               end * panels_per_run, nullptr, shared.up, up_stride);
      for (int row = 0; row < num_tokens; row++)
        for (int run = begin; run < end; run++) {
          const float *in = shared.up + row * up_stride + run * panels_per_run * PANEL;
          float *out = shared.inner + row * stride + run * PANEL;
          config.gated_mlp ? gate_run(config.activation, in, out)
                           : activate_run(config.activation, in, out);
        }
      begin = end;
    }
    barrier();
  }

  void layer(int index) const {
    const op_layer &layer = model.layers[index];
    const bool parallel = config.block == OP_BLOCK_PARALLEL;
    if (config.eagle && config.eagle->kind == OP_EAGLE3)
      join(layer);
    else
      prepare_normed(layer.qkv, layer.input_norm, 0);
    if (parallel) prepare_normed(layer.up, layer.post_attention_norm, 1);
    settle();
    product(layer.qkv, nullptr, shared.qkv, padded(layer.qkv.out));
    barrier();
    place(layer, index);
    attention(index);
    prepare_plain(layer.o, shared.attended);
    add_product(layer.o, layer.post_attention_norm);
    if (!parallel) {
      const bool sandwich = config.block == OP_BLOCK_SANDWICH;
      prepare_normed(layer.up, sandwich ? layer.pre_mlp_norm : layer.post_attention_norm, 1);
      settle();
    }
    up(layer, 1);
    prepare_plain(layer.down, shared.inner);
    add_product(layer.down, layer.post_mlp_norm);
  }

  // --- Logits ---------------------------------------------------------------------------------

  void head() const {
    const op_batch &batch = *pass.batch;
    const int rows = batch.num_logit_rows;
    const bool by_all = rows <= ALONE_ROWS;
    prepare_rows(config.head, rows, by_all, 0, [&](int row, float *out) {
      normed(config.final_norm, pass.x + (int64_t)batch.logit_rows[row] * config.hidden_size, out);
    });
    if (!by_all) barrier();
    for (int row = 0; row < rows; row++) {
      own.best[row] = -__builtin_inff();
      own.best_ids[row] = INT32_MAX;
    }
    const Range panels = mine((config.num_logits + PANEL - 1) / PANEL);
    const int at_a_time = head_panels(rows);
    for (int begin = panels.begin; begin < panels.end; begin += at_a_time) {
      const int end = panels.end - begin > at_a_time ? begin + at_a_time : panels.end;
      head_part(prepared(by_all, 0), rows, begin, end);
    }
    barrier();
    if (!batch.best) return;
    const Range own_rows = mine(rows);
    for (int row = own_rows.begin; row < own_rows.end; row++) batch.best[row] = choose(row);
  }

  // Logits of some panels: capped, compared and copied out.
  void head_part(const void *activations, int rows, int begin, int end) const {
    const op_batch &batch = *pass.batch;
    const int64_t stride = (int64_t)(end - begin) * PANEL, first = (int64_t)begin * PANEL;
    const int64_t num = first + stride < config.num_logits ? stride : config.num_logits - first;
    // `multiply` counts outputs from 0.
    float *origin = (float *)((uintptr_t)own.logits - first * sizeof(float));
    multiply(config.head, config.activations, activations, rows, begin, end, nullptr, origin, stride);
    for (int row = 0; row < rows; row++) {
      float *logits = own.logits + row * stride;
      if (config.final_softcap > 0.0f) cap(config.final_softcap, logits, num);
      if (float *kept = kept_logits(row)) std::memcpy(kept + first, logits, num * sizeof(float));
      const int index = batch.best ? first_greatest(logits, (int)num, own.best[row]) : -1;
      if (index >= 0) own.best_ids[row] = (int32_t)first + index;
    }
  }

  // Where all logits of a row go, or NULL.
  float *kept_logits(int row) const {
    if (pass.draws) return pass.draws[row].row;
    return pass.batch->logits ? pass.batch->logits + (int64_t)row * config.num_logits : nullptr;
  }

  // The best of all threads' bests, or a drawn one. Threads have ascending panels, so the first of equals
  // is the lowest.
  int32_t choose(int row) const {
    float best = -__builtin_inff();
    int32_t id = INT32_MAX;
    for (int t = 0; t < num_threads; t++)
      if (shared.threads[t].best_ids[row] != INT32_MAX && shared.threads[t].best[row] > best) {
        best = shared.threads[t].best[row];
        id = shared.threads[t].best_ids[row];
      }
    if (id == INT32_MAX) id = 0;
    if (!pass.draws) return id;
    const Draw &draw = pass.draws[row];
    const int32_t *ids = config.eagle->draft_ids;
    if (draw.choice != OP_CHOOSE_BEST) return chosen(draw, config.num_logits, best, ids);
    const bool ranks = draw.ranking.width > 0;
    return ranks && !rank(draw, config.num_logits, best, ids) ? -1 : id;
  }

  void run() {
    enter_kernels();
    if (pass.whole && !config.eagle) {
      embed();
      capture(0);
    }
    if (config.eagle && config.eagle->kind == OP_EAGLE1) fuse();
    for (int index = pass.first_layer; index < pass.last_layer; index++) {
      layer(index);
      if (pass.whole) capture(index + 1);
    }
    // A sandwich leaves each thread's rows to itself.
    if (config.block == OP_BLOCK_SANDWICH) barrier();
    if (config.eagle && pass.batch->outputs) output();
    if (pass.whole && pass.batch->num_logit_rows > 0) head();
    leave_kernels();
  }
};

void run_pass(void *context, int thread) { Worker(*static_cast<const Pass *>(context), thread).run(); }

void run_linear(void *context, int thread) {
  const LinearJob &job = *static_cast<const LinearJob *>(context);
  const op_linear &w = *job.linear;
  const int num_threads = pool_size(job.pool);
  enter_kernels();
  const Range rows = share(job.rows, num_threads, thread);
  if (rows.begin < rows.end)
    prepare(w, job.activations, job.x, w.in, job.rows, rows.begin, rows.end, job.prepared);
  pool_barrier(job.pool);
  const Range panels = share((w.out + PANEL - 1) / PANEL, num_threads, thread);
  if (panels.begin < panels.end)
    multiply(w, job.activations, job.prepared, job.rows, panels.begin, panels.end, nullptr, job.y, w.out);
  leave_kernels();
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {run_pass, run_linear, prepared_bytes, KEY_CHANNEL_MULTIPLE};

}  // namespace outpace::OUTPACE_PATH
