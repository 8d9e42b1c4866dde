// What driver.cpp checks with: random weights in every format, whole random models, and CHECK.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "outpace_native.h"

// Says where and what, and ends the process: sanitizers report the rest.
#define CHECK(condition, ...)                                              \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                   \
      std::fputc('\n', stderr);                                            \
      std::exit(1);                                                        \
    }                                                                      \
  } while (0)

struct Random {
  uint64_t state = 88172645463325252u;

  uint32_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
  }
  int below(int n) { return (int)(next() % (uint32_t)n); }
  float uniform() { return (float)next() * 0x1p-31f - 1.0f; }  // -1 .. 1

  std::vector<float> floats(size_t count, float scale, float offset = 0.0f) {
    std::vector<float> values(count);
    for (float &value : values) value = offset + scale * uniform();
    return values;
  }
};

inline uint16_t bf16_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return (uint16_t)(bits >> 16);
}

// Exactly as many bytes as asked for, so that a read past the end is one past an allocation.
struct Aligned {
  explicit Aligned(size_t bytes) : data(std::aligned_alloc(64, bytes), std::free) {
    CHECK(bytes % 64 == 0, "%zu bytes are not whole cache lines", bytes);
  }
  std::unique_ptr<void, void (*)(void *)> data;
};

inline const char *name_of(int format) {
  static const char *const names[] = {"f32", "bf16", "q4_0", "q4_1", "q8_0"};
  return names[format];
}

// The row-major source of an [out, in] matrix with entries of about 1 / sqrt(in).
inline std::vector<uint8_t> random_source(Random &random, int format, int out, int in) {
  const float scale = 1.0f / std::sqrt((float)in);
  const size_t count = (size_t)out * (size_t)in;
  if (format == OP_F32 || format == OP_BF16) {
    const std::vector<float> values = random.floats(count, scale);
    std::vector<uint8_t> bytes(count * (format == OP_F32 ? 4 : 2));
    for (size_t i = 0; i < count; i++) {
      const uint16_t half = bf16_bits(values[i]);
      if (format == OP_F32) std::memcpy(&bytes[i * 4], &values[i], 4);
      if (format == OP_BF16) std::memcpy(&bytes[i * 2], &half, 2);
    }
    return bytes;
  }
  const size_t block = format == OP_Q8_0 ? 34 : format == OP_Q4_1 ? 20 : 18;
  std::vector<uint8_t> bytes(count / 32 * block);
  for (uint8_t &byte : bytes) byte = (uint8_t)random.next();
  for (size_t at = 0; at < bytes.size(); at += block) {
    // Half precision, exponents 2^-11 and 2^-7, either sign.
    const uint16_t sign = (uint16_t)(random.next() & 0x8000);
    const uint16_t d =
        (uint16_t)((format == OP_Q8_0 ? 0x1000 : 0x2000) | (random.next() & 0x3ff) | sign);
    const uint16_t m = (uint16_t)(0x2400 | (random.next() & 0x3ff) | (sign ^ 0x8000));
    std::memcpy(&bytes[at], &d, 2);
    if (format == OP_Q4_1) std::memcpy(&bytes[at + 2], &m, 2);
  }
  return bytes;
}

// Owns everything that the structs of one model point to.
struct Store {
  Random random;
  std::deque<std::vector<float>> vectors;
  std::deque<Aligned> matrices;

  const float *vector(size_t count, float scale, float offset = 0.0f) {
    vectors.push_back(random.floats(count, scale, offset));
    return vectors.back().data();
  }

  op_linear linear(int format, int out, int in, bool bias) {
    char error[OP_ERROR_BYTES];
    const std::vector<uint8_t> source = random_source(random, format, out, in);
    const int64_t bytes = op_packed_bytes(format, out, in, error);
    CHECK(bytes > 0, "%s", error);
    matrices.emplace_back((size_t)bytes);
    void *packed = matrices.back().data.get();
    CHECK(op_pack(format, out, in, source.data(), packed, error) >= 0, "%s", error);
    return {format, out, in, 0, packed, bias ? vector((size_t)out, 0.1f) : nullptr};
  }

  op_norm norm(int size, bool bias) {
    return {vector((size_t)size, 0.2f, 1.0f), bias ? vector((size_t)size, 0.1f) : nullptr};
  }
};

struct Pool {
  explicit Pool(int num_threads) {
    char error[OP_ERROR_BYTES];
    pool = op_pool_new(num_threads, error);
    CHECK(pool, "%s", error);
  }
  ~Pool() { op_pool_free(pool); }
  Pool(const Pool &) = delete;
  op_pool *pool;
};

// What a model is made of; see `op_config`.
struct Shape {
  const char *name;
  int block, norm, activation;
  bool gated, bias, qk_norm, rope;
  int hidden, intermediate, heads, kv_heads, head_dim, rope_half;
  int window;  // of every other layer
  float attention_softcap, final_softcap;
};

inline constexpr int VOCAB = 83, LOGITS = 81, LAYERS = 3, CAPACITY = 96;

struct Model {
  Model(const Shape &shape, int format, int activations, int kv_type, const char *path,
        const Pool &pool) {
    char error[OP_ERROR_BYTES];
    for (int i = 0; i < LAYERS; i++) layers.push_back(layer(shape, format, i));
    const op_config config = configuration(shape, format, activations, kv_type);
    model = op_model_new(&config, pool.pool, path, error);
    CHECK(model, "%s", error);
    if (!shape.rope) return;
    const size_t size = (size_t)CAPACITY * (size_t)shape.rope_half;
    const float *cosines = store.vector(size, 1.0f), *sines = store.vector(size, 1.0f);
    CHECK(op_set_rope(model, 0, shape.rope_half, CAPACITY, cosines, sines, error) >= 0, "%s",
          error);
  }
  ~Model() { op_model_free(model); }
  Model(const Model &) = delete;

  // Only packed formats need whole blocks.
  static int intermediate(const Shape &s, int format) {
    return format >= OP_Q4_0 ? s.intermediate : s.intermediate - 5;
  }

  op_layer layer(const Shape &s, int format, int index) {
    const bool layer_norm = s.norm == OP_NORM_LAYER;
    op_layer layer = {};
    layer.qkv = store.linear(format, (s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden, s.bias);
    layer.o = store.linear(format, s.hidden, s.heads * s.head_dim, s.bias);
    const int inner = intermediate(s, format), padded = (inner + 15) / 16 * 16;
    layer.up = store.linear(format, s.gated ? 2 * padded : inner, s.hidden, s.bias);
    layer.down = store.linear(format, s.hidden, inner, s.bias);
    layer.input_norm = store.norm(s.hidden, layer_norm);
    layer.post_attention_norm = store.norm(s.hidden, layer_norm);
    if (s.block == OP_BLOCK_SANDWICH) {
      layer.pre_mlp_norm = store.norm(s.hidden, layer_norm);
      layer.post_mlp_norm = store.norm(s.hidden, layer_norm);
    }
    if (s.qk_norm) {
      layer.q_norm = store.vector((size_t)s.head_dim, 0.2f, 1.0f);
      layer.k_norm = store.vector((size_t)s.head_dim, 0.2f, 1.0f);
    }
    layer.rope = s.rope ? 0 : -1;
    layer.window = index % 2 ? s.window : 0;
    return layer;
  }

  op_config configuration(const Shape &s, int format, int activations, int kv_type) {
    op_config config = {};
    config.abi_version = OP_ABI_VERSION;
    config.vocab_size = VOCAB;
    config.num_logits = LOGITS;
    config.hidden_size = s.hidden;
    config.intermediate_size = intermediate(s, format);
    config.num_layers = LAYERS;
    config.num_heads = s.heads;
    config.num_kv_heads = s.kv_heads;
    config.head_dim = s.head_dim;
    config.norm = s.norm;
    config.block = s.block;
    config.activation = s.activation;
    config.gated_mlp = s.gated;
    config.activations = activations;
    config.kv_type = kv_type;
    config.num_ropes = s.rope ? 1 : 0;
    config.norm_eps = 1e-5f;
    config.attention_scale = 1.0f / std::sqrt((float)s.head_dim);
    config.attention_softcap = s.attention_softcap;
    config.final_softcap = s.final_softcap;
    config.embedding_scale = 4.0f;
    config.embedding = config.head = store.linear(format, VOCAB, s.hidden, false);
    config.final_norm = store.norm(s.hidden, s.norm == OP_NORM_LAYER);
    if (!s.rope) {
      config.num_positions = CAPACITY;
      config.position_embedding = store.vector((size_t)CAPACITY * (size_t)s.hidden, 0.5f);
    }
    config.layers = layers.data();
    return config;
  }

  Store store;
  std::vector<op_layer> layers;
  op_model *model;
};
