// Scratch memory of a model, grown between passes and never during one.
#include <algorithm>
#include <cstdlib>
#include <new>

#include "plan.hpp"

namespace outpace {
namespace {

// Hands out 64-byte aligned pieces of one allocation; without memory it only counts.
class Arena {
 public:
  explicit Arena(unsigned char *memory) : memory_(memory) {}

  template <class T>
  void take(T *&piece, int64_t bytes) {
    piece = memory_ ? reinterpret_cast<T *>(memory_ + used_) : nullptr;
    used_ += ((size_t)bytes + 63) / 64 * 64;
  }

  void take(void *&piece, int64_t bytes) {
    unsigned char *start;
    take(start, bytes);
    piece = start;
  }

  size_t used() const { return used_; }

 private:
  unsigned char *memory_;
  size_t used_ = 0;
};

struct Widths {
  int64_t hidden, normed, qkv, attended, up, inner, head;
};

Widths widths_of(const op_config &config) {
  const int64_t heads = (int64_t)config.num_heads + 2 * config.num_kv_heads;
  const int64_t inner = padded(config.intermediate_size);
  return {padded(config.hidden_size),
          padded((config.eagle ? 2 : 1) * (int64_t)config.hidden_size),
          padded(heads * config.head_dim),
          padded((int64_t)config.num_heads * config.head_dim),
          config.gated_mlp ? 2 * inner : inner,
          inner,
          padded(config.head_dim)};
}

// Bytes of the largest prepared activations of `rows` rows of any layer, and of `logit_rows` of the head.
int64_t largest_prepared(const op_model &model, int rows, int logit_rows) {
  const op_config &config = model.config;
  size_t bytes = model.kernels->prepared_bytes(config.head, config.activations, logit_rows);
  if (config.eagle && config.eagle->kind == OP_EAGLE1)
    bytes = std::max(bytes, model.kernels->prepared_bytes(config.eagle->fc, config.activations, rows));
  for (int i = 0; i < config.num_layers; i++) {
    const op_layer &layer = model.layers[i];
    for (const op_linear *w : {&layer.qkv, &layer.o, &layer.up, &layer.down})
      bytes = std::max(bytes, model.kernels->prepared_bytes(*w, config.activations, rows));
  }
  return (int64_t)bytes;
}

void lay_out_thread(ThreadScratch &own, const Scratch &scratch, const Widths &widths, int64_t prepared,
                    Arena &arena) {
  constexpr int64_t F = sizeof(float);
  arena.take(own.normed, ALONE_ROWS * widths.normed * F);
  for (void *&buffer : own.prepared) arena.take(buffer, prepared);
  arena.take(own.queries, scratch.tile_queries * widths.head * F);
  arena.take(own.sums, scratch.tile_queries * widths.head * F);
  arena.take(own.wide_values, CHUNK * widths.head * F);
  arena.take(own.scores, scratch.tile_queries * scratch.scores_stride * F);
  arena.take(own.logits, std::max<int64_t>(1024, scratch.logit_rows) * BLOCK * F);
  arena.take(own.best, scratch.logit_rows * F);
  arena.take(own.best_ids, scratch.logit_rows * F);
}

size_t lay_out(const op_model &model, Scratch &scratch, unsigned char *memory) {
  constexpr int64_t F = sizeof(float);
  const Widths widths = widths_of(model.config);
  const int64_t rows = scratch.rows, num_threads = pool_size(model.pool);
  Arena arena(memory);
  arena.take(scratch.threads, num_threads * (int64_t)sizeof(ThreadScratch));
  arena.take(scratch.x, rows * widths.hidden * F);
  arena.take(scratch.normed, std::max(rows, scratch.logit_rows) * widths.normed * F);
  arena.take(scratch.branch, rows * widths.hidden * F);
  arena.take(scratch.qkv, rows * widths.qkv * F);
  arena.take(scratch.attended, rows * widths.attended * F);
  arena.take(scratch.up, rows * widths.up * F);
  arena.take(scratch.inner, rows * widths.inner * F);
  const int64_t prepared = largest_prepared(model, (int)rows, (int)scratch.logit_rows);
  for (void *&buffer : scratch.prepared) arena.take(buffer, prepared);
  const int64_t own = largest_prepared(model, ALONE_ROWS, ALONE_ROWS);
  for (int64_t t = 0; t < num_threads; t++) {
    ThreadScratch counted;
    lay_out_thread(memory ? scratch.threads[t] : counted, scratch, widths, own, arena);
  }
  return arena.used();
}

// Room for a few more rows than asked, so that growing prompts do not grow it every time.
int64_t roomy(int64_t n) { return (n + n / 4 + 31) / 32 * 32; }

}  // namespace

void grow_scratch(op_model &model, int64_t rows, int64_t logit_rows, int64_t capacity) {
  constexpr int64_t MOST_SCORES = 1 << 18, FEWEST_QUERIES = 12;
  Scratch &scratch = model.scratch;
  if (rows <= scratch.rows && logit_rows <= scratch.logit_rows && capacity <= scratch.capacity) return;
  Scratch larger = {};
  larger.rows = rows <= scratch.rows ? scratch.rows : roomy(rows);
  larger.logit_rows = logit_rows <= scratch.logit_rows ? scratch.logit_rows : roomy(logit_rows);
  larger.capacity = std::max(capacity, scratch.capacity);
  larger.tile_queries = (int32_t)std::clamp<int64_t>(MOST_SCORES / larger.capacity, FEWEST_QUERIES,
                                                     MAX_TILE_QUERIES);
  // Not a multiple of a page, or rows of scores would meet in the same cache sets.
  larger.scores_stride = larger.capacity + BLOCK;
  const size_t num_bytes = lay_out(model, larger, nullptr);
  void *memory = nullptr;
  if (posix_memalign(&memory, 64, num_bytes) != 0) throw std::bad_alloc();
  std::free(scratch.memory);
  lay_out(model, larger, static_cast<unsigned char *>(memory));
  larger.memory = memory;
  larger.num_bytes = num_bytes;
  scratch = larger;
}

}  // namespace outpace
