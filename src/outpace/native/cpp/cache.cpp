// Memory for keys and values.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "plan.hpp"

namespace outpace {
namespace {

op_cache shape_of(const op_model &model, int32_t num_rows, int32_t capacity) {
  const op_config &config = model.config;
  op_cache cache = {};
  cache.num_layers = config.num_layers;
  cache.num_rows = num_rows;
  cache.capacity = capacity;
  cache.num_kv_heads = config.num_kv_heads;
  cache.head_dim = config.head_dim;
  cache.kv_type = config.kv_type;
  cache.key_channels = key_channels_of(model);
  cache.value_channels = padded(config.head_dim);
  const int64_t element = config.kv_type == OP_KV_F32 ? 4 : 2;
  cache.head_bytes = (cache.key_channels + cache.value_channels) * capacity * element;
  return cache;
}

// -1 where the number does not fit.
int64_t bytes_of(const op_cache &cache) {
  int64_t bytes = 0;
  const int64_t heads = (int64_t)cache.num_layers * cache.num_kv_heads;
  if (__builtin_mul_overflow(heads, (int64_t)cache.num_rows, &bytes) ||
      __builtin_mul_overflow(bytes, cache.head_bytes, &bytes))
    return -1;
  return bytes;
}

template <class T>
void move_key(const op_cache &cache, unsigned char *source, int from, unsigned char *target, int to,
              int width) {
  const int64_t runs = cache.key_channels / width;
  const T *in = reinterpret_cast<const T *>(source) + from / BLOCK * BLOCK * runs + from % BLOCK;
  T *out = reinterpret_cast<T *>(target) + to / BLOCK * BLOCK * runs + to % BLOCK;
  for (int64_t i = 0; i < runs; i++) out[i * BLOCK] = in[i * BLOCK];
}

// Slot `from` of one head's memory becomes slot `to` of another's.
void move_slot(const op_cache &cache, unsigned char *source, int from, unsigned char *target, int to) {
  const int64_t element = cache.kv_type == OP_KV_F32 ? 4 : 2;
  // A pair of bfloat16 channels moves as one word.
  move_key<uint32_t>(cache, source, from, target, to, cache.kv_type == OP_KV_F32 ? 1 : 2);
  const int64_t keys = cache.key_channels * cache.capacity * element;
  const int64_t value_bytes = cache.value_channels * element;
  std::memmove(target + keys + to * value_bytes, source + keys + from * value_bytes,
               (size_t)value_bytes);
}

bool holds(const op_cache *cache, int row, int64_t begin, int64_t end) {
  return cache && row >= 0 && row < cache->num_rows && begin >= 0 && begin <= end &&
         end <= cache->capacity;
}

// Whole blocks of keys and runs of values of one head.
void copy_blocks(const op_cache &cache, const unsigned char *source, unsigned char *target, int begin,
                 int end) {
  const int64_t element = cache.kv_type == OP_KV_F32 ? 4 : 2;
  const int64_t key_bytes = cache.key_channels * element, value_bytes = cache.value_channels * element;
  const int64_t values = key_bytes * cache.capacity;
  std::memcpy(target + begin * key_bytes, source + begin * key_bytes, (end - begin) * key_bytes);
  std::memcpy(target + values + begin * value_bytes, source + values + begin * value_bytes,
              (end - begin) * value_bytes);
}

void copy_slots(const op_cache &cache, unsigned char *source, unsigned char *target, int begin, int end) {
  const int first_block = std::min(end, (int)padded(begin));
  const int last_block = std::max(first_block, end / BLOCK * BLOCK);
  for (int slot = begin; slot < first_block; slot++) move_slot(cache, source, slot, target, slot);
  copy_blocks(cache, source, target, first_block, last_block);
  for (int slot = last_block; slot < end; slot++) move_slot(cache, source, slot, target, slot);
}

}  // namespace
}  // namespace outpace

int64_t op_cache_bytes(const op_model *model, int32_t num_rows, int32_t capacity) {
  if (num_rows < 1 || capacity < 1) return 0;
  return outpace::bytes_of(outpace::shape_of(*model, num_rows, capacity));
}

op_cache *op_cache_new(const op_model *model, int32_t num_rows, int32_t capacity, char *error) {
  using outpace::fail;
  if (num_rows < 1 || capacity < outpace::BLOCK || capacity % outpace::BLOCK != 0) {
    fail(error, "a cache needs rows and a capacity that is a multiple of %d, got %d rows of %d tokens",
         outpace::BLOCK, num_rows, capacity);
    return nullptr;
  }
  const op_cache shape = outpace::shape_of(*model, num_rows, capacity);
  const int64_t num_bytes = outpace::bytes_of(shape);
  void *memory = MAP_FAILED;
  if (num_bytes > 0)
    memory = mmap(nullptr, (size_t)num_bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  op_cache *cache = memory == MAP_FAILED ? nullptr : new (std::nothrow) op_cache(shape);
  if (!cache) {
    if (memory != MAP_FAILED) munmap(memory, (size_t)num_bytes);
    fail(error, "a cache of %d rows of %d tokens needs more memory than there is", num_rows, capacity);
    return nullptr;
  }
#if defined(MADV_NOHUGEPAGE)
  // Huge pages would commit megabytes for the first slot of every head.
  madvise(memory, (size_t)num_bytes, MADV_NOHUGEPAGE);
#endif
  cache->memory = static_cast<unsigned char *>(memory);
  cache->num_bytes = (size_t)num_bytes;
  return cache;
}

void op_cache_free(op_cache *cache) {
  if (!cache) return;
  munmap(cache->memory, cache->num_bytes);
  delete cache;
}

void op_cache_copy(op_cache *cache, int32_t source, int32_t target, int32_t begin, int32_t end) {
  using namespace outpace;
  if (!holds(cache, source, begin, end) || !holds(cache, target, begin, end) || source == target) return;
  for (int layer = 0; layer < cache->num_layers; layer++)
    for (int head = 0; head < cache->num_kv_heads; head++)
      copy_slots(*cache, cached_head(*cache, layer, source, head), cached_head(*cache, layer, target, head),
                 begin, end);
}

void op_cache_keep(op_cache *cache, int32_t row, int32_t start, const int32_t *nodes, int32_t num_nodes) {
  using namespace outpace;
  if (num_nodes < 1 || !nodes) return;
  for (int i = 0; i < num_nodes; i++)
    if (nodes[i] < i || (i > 0 && nodes[i] <= nodes[i - 1])) return;
  if (!holds(cache, row, start, (int64_t)start + nodes[num_nodes - 1] + 1)) return;
  for (int layer = 0; layer < cache->num_layers; layer++)
    for (int head = 0; head < cache->num_kv_heads; head++) {
      unsigned char *memory = cached_head(*cache, layer, row, head);
      for (int i = 0; i < num_nodes; i++)
        if (nodes[i] != i) move_slot(*cache, memory, start + nodes[i], memory, start + i);
    }
}
