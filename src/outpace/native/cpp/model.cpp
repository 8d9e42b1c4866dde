// Models: what a configuration must be, and their lives.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "plan.hpp"
#include "step.hpp"

namespace outpace {
namespace {

bool check_linear(const op_linear &w, const char *name, int layer, int64_t out, int64_t in, char *error) {
  char where[64] = "";
  if (layer >= 0) std::snprintf(where, sizeof where, "layer %d, ", layer);
  if (w.out != out || w.in != in)
    return fail(error, "%s%s is [%d, %d]; the configuration makes it [%lld, %lld]", where, name, w.out,
                w.in, (long long)out, (long long)in);
  if (w.format < OP_F32 || w.format > OP_Q8_0)
    return fail(error, "%s%s has unknown weight format %d", where, name, w.format);
  if (w.format >= OP_Q4_0 && w.in % 32 != 0)
    return fail(error, "%s%s has %d inputs; packed formats need a multiple of 32", where, name, w.in);
  if (!w.data || reinterpret_cast<uintptr_t>(w.data) % 64 != 0)
    return fail(error, "%s%s needs packed weights at a 64-byte aligned address", where, name);
  return true;
}

bool check_norm(const op_config &config, const op_norm &norm, const char *name, int layer, char *error) {
  if (!norm.weight) return fail(error, "layer %d, %s has no weight", layer, name);
  if (config.norm == OP_NORM_LAYER && !norm.bias)
    return fail(error, "layer %d, %s has no bias", layer, name);
  return true;
}

bool is_eagle(const op_config &config, int kind) { return config.eagle && config.eagle->kind == kind; }

bool check_layer(const op_config &config, const op_layer &layer, int index, char *error) {
  const int64_t hidden = config.hidden_size, dim = config.head_dim, inner = config.intermediate_size;
  const int64_t read = is_eagle(config, OP_EAGLE3) ? 2 * hidden : hidden;
  const bool has_input_norm = layer.input_norm.weight || !is_eagle(config, OP_EAGLE1);
  const int64_t heads = config.num_heads, all_heads = heads + 2 * (int64_t)config.num_kv_heads;
  if (!check_linear(layer.qkv, "qkv", index, all_heads * dim, read, error) ||
      !check_linear(layer.o, "o", index, hidden, heads * dim, error) ||
      !check_linear(layer.up, "up", index, config.gated_mlp ? 2 * padded(inner) : inner, hidden, error) ||
      !check_linear(layer.down, "down", index, hidden, inner, error) ||
      (has_input_norm && !check_norm(config, layer.input_norm, "input_norm", index, error)) ||
      !check_norm(config, layer.post_attention_norm, "post_attention_norm", index, error))
    return false;
  if (config.block == OP_BLOCK_SANDWICH &&
      (!check_norm(config, layer.pre_mlp_norm, "pre_mlp_norm", index, error) ||
       !check_norm(config, layer.post_mlp_norm, "post_mlp_norm", index, error)))
    return false;
  if (layer.rope < -1 || layer.rope >= config.num_ropes)
    return fail(error, "layer %d uses rotation %d of %d", index, layer.rope, config.num_ropes);
  if (layer.window < 0) return fail(error, "layer %d has a window of %d", index, layer.window);
  return true;
}

bool is_limit(float value) { return std::isfinite(value) && value >= 0.0f; }

bool check_sizes(const op_config &c, char *error) {
  constexpr int32_t LARGEST = 1 << 24;
  const struct {
    const char *name;
    int32_t value;
  } sizes[] = {{"vocab_size", c.vocab_size},     {"num_logits", c.num_logits},
               {"hidden_size", c.hidden_size},   {"intermediate_size", c.intermediate_size},
               {"num_layers", c.num_layers},     {"num_heads", c.num_heads},
               {"num_kv_heads", c.num_kv_heads}, {"head_dim", c.head_dim}};
  for (const auto &size : sizes)
    if (size.value < 1 || size.value > LARGEST)
      return fail(error, "%s must be 1 to %d, got %d", size.name, LARGEST, size.value);
  if (c.num_logits > c.vocab_size)
    return fail(error, "num_logits (%d) is more than vocab_size (%d)", c.num_logits, c.vocab_size);
  if (c.num_heads % c.num_kv_heads != 0)
    return fail(error, "num_heads (%d) must be a multiple of num_kv_heads (%d)", c.num_heads,
                c.num_kv_heads);
  if (((int64_t)c.num_heads + 2 * (int64_t)c.num_kv_heads) * c.head_dim > LARGEST)
    return fail(error, "%d heads of %d channels are too many", c.num_heads, c.head_dim);
  if (c.num_ropes < 0 || c.num_ropes > c.num_layers)
    return fail(error, "%d rotations for %d layers", c.num_ropes, c.num_layers);
  return true;
}

bool check_choices(const op_config &c, char *error) {
  const struct {
    const char *name;
    int32_t value, last;
  } choices[] = {{"norm", c.norm, OP_NORM_LAYER},
                 {"block", c.block, OP_BLOCK_PARALLEL},
                 {"activation", c.activation, OP_GELU_TANH},
                 {"gated_mlp", c.gated_mlp, 1},
                 {"activations", c.activations, OP_ACT_INT8},
                 {"kv_type", c.kv_type, OP_KV_BF16}};
  for (const auto &choice : choices)
    if (choice.value < 0 || choice.value > choice.last)
      return fail(error, "%s must be 0 to %d, got %d", choice.name, choice.last, choice.value);
  if (!is_limit(c.norm_eps) || !is_limit(c.attention_softcap) || !is_limit(c.final_softcap))
    return fail(error, "norm_eps, attention_softcap and final_softcap must be finite and not negative");
  if (!std::isfinite(c.attention_scale) || !std::isfinite(c.embedding_scale))
    return fail(error, "attention_scale and embedding_scale must be finite");
  return true;
}

bool check_eagle(const op_config &config, char *error) {
  const op_eagle &eagle = *config.eagle;
  const int64_t hidden = config.hidden_size;
  if (eagle.kind != OP_EAGLE1 && eagle.kind != OP_EAGLE3)
    return fail(error, "unknown kind %d of EAGLE head; known are %d and %d", eagle.kind, OP_EAGLE1,
                OP_EAGLE3);
  if (config.num_layers != 1 || config.block != OP_BLOCK_PRE || config.position_embedding)
    return fail(error, "an EAGLE head has one pre-norm layer and no position embedding");
  if (eagle.kind == OP_EAGLE1 && !check_linear(eagle.fc, "fc", -1, hidden, 2 * hidden, error))
    return false;
  if (eagle.kind == OP_EAGLE3 && eagle.fc.data && eagle.fc.in < 1)
    return fail(error, "fc has %d inputs", eagle.fc.in);
  if (eagle.kind == OP_EAGLE3 && eagle.fc.data &&
      !check_linear(eagle.fc, "fc", -1, hidden, eagle.fc.in, error))
    return false;
  if (eagle.kind == OP_EAGLE3 && !check_norm(config, eagle.hidden_norm, "hidden_norm", 0, error))
    return false;
  if (!eagle.draft_ids) return fail(error, "an EAGLE head without draft_ids");
  for (int i = 0; i < config.num_logits; i++)
    if (eagle.draft_ids[i] < 0 || eagle.draft_ids[i] >= config.vocab_size)
      return fail(error, "draft token %d is token %d of a vocabulary of %d", i, eagle.draft_ids[i],
                  config.vocab_size);
  return true;
}

bool check_config(const op_config &config, char *error) {
  if (config.abi_version != OP_ABI_VERSION)
    return fail(error, "the caller speaks version %d of the interface, the library %d; rebuild outpace",
                config.abi_version, OP_ABI_VERSION);
  if (!check_sizes(config, error) || !check_choices(config, error)) return false;
  if (!config.layers) return fail(error, "a configuration without layers");
  if (!check_linear(config.embedding, "embedding", -1, config.vocab_size, config.hidden_size, error) ||
      !check_linear(config.head, "head", -1, config.eagle ? config.num_logits : config.vocab_size,
                    config.hidden_size, error) ||
      (config.eagle && !check_eagle(config, error)))
    return false;
  const bool has_final_norm = config.final_norm.weight || !is_eagle(config, OP_EAGLE1);
  if (has_final_norm &&
      (!config.final_norm.weight || (config.norm == OP_NORM_LAYER && !config.final_norm.bias)))
    return fail(error, "final_norm lacks its weight or bias");
  for (int i = 0; i < config.num_layers; i++)
    if (!check_layer(config, config.layers[i], i, error)) return false;
  return true;
}

}  // namespace
}  // namespace outpace

op_model *op_model_new(const op_config *config, op_pool *pool, const char *path, char *error) {
  using namespace outpace;
  if (!config || !pool) {
    fail(error, "a model needs a configuration and a pool");
    return nullptr;
  }
  const Kernels *kernels = find_path(path, error);
  if (!kernels || !check_config(*config, error)) return nullptr;
  op_model *model = nullptr;
  try {
    model = new op_model{};
    model->config = *config;
    model->pool = pool;
    model->kernels = kernels;
    model->layers = new op_layer[config->num_layers];
    std::memcpy(model->layers, config->layers, config->num_layers * sizeof(op_layer));
    model->config.layers = model->layers;
    if (config->eagle) {
      model->eagle = *config->eagle;
      model->config.eagle = &model->eagle;
    }
    model->ropes = new Rope[config->num_ropes]{};
    model->plan = new Plan;
    return model;
  } catch (const std::exception &failure) {
    op_model_free(model);
    fail(error, "the model cannot be made (%s)", failure.what());
    return nullptr;
  }
}

void op_model_free(op_model *model) {
  if (!model) return;
  std::free(model->scratch.memory);
  delete model->plan;
  delete[] model->ropes;
  delete[] model->layers;
  delete model;
}

int32_t op_set_rope(op_model *model, int32_t index, int32_t half, int32_t num_positions, const float *cos,
                    const float *sin, char *error) {
  using outpace::fail;
  if (index < 0 || index >= model->config.num_ropes) {
    fail(error, "rotation %d of %d", index, model->config.num_ropes);
    return -1;
  }
  if (half < 1 || 2 * (int64_t)half > model->config.head_dim || num_positions < 1 || !cos || !sin) {
    fail(error, "rotation %d: tables of %d positions and %d pairs for heads of %d channels", index,
         num_positions, half, model->config.head_dim);
    return -1;
  }
  model->ropes[index] = {half, num_positions, cos, sin};
  return 0;
}
