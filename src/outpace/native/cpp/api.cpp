// Passes and single products: from the C interface to jobs of the pool.
#include <algorithm>
#include <cstdlib>

#include "calls.hpp"
#include "step.hpp"

namespace outpace {

bool forward(op_model &model, op_cache *cache, const op_batch *batch, const Draw *draws, char *error) {
  if (!check_batch(model, cache, batch, true, error)) return false;
  Pass pass = make_pass(model, cache, *batch);
  pass.draws = draws;
  pool_run(model.pool, model.kernels->pass, &pass);
  return true;
}

namespace {

bool forward_layer(op_model &model, op_cache *cache, int32_t layer, const op_batch *batch, float *x,
                   char *error) {
  if (layer < 0 || layer >= model.config.num_layers || !x)
    return fail(error, "layer %d of %d over given hidden states", layer, model.config.num_layers);
  if (model.config.eagle) return fail(error, "the layer of an EAGLE head runs in whole passes only");
  if (!check_batch(model, cache, batch, false, error)) return false;
  op_batch layers_only = *batch;
  layers_only.num_logit_rows = layers_only.num_capture = layers_only.num_layers = 0;
  Pass pass = make_pass(model, cache, layers_only);
  pass.x = x;
  pass.first_layer = layer;
  pass.last_layer = layer + 1;
  pass.whole = false;
  pool_run(model.pool, model.kernels->pass, &pass);
  return true;
}

bool forward_linear(op_pool *pool, const char *path, const op_linear *linear, int32_t activations,
                    int32_t rows, const float *x, float *y, char *error) {
  const Kernels *kernels = find_path(path, error);
  if (!kernels) return false;
  if (!pool || !linear || !linear->data || linear->out < 1 || linear->in < 1 || !x || !y || rows < 1 ||
      linear->format < OP_F32 || linear->format > OP_Q8_0 || activations < OP_ACT_BF16 ||
      activations > OP_ACT_INT8 || (linear->format >= OP_Q4_0 && linear->in % 32 != 0))
    return fail(error, "a product needs a pool, packed weights, at least one row and known formats");
  LinearJob job = {pool, linear, activations, rows, x, y, nullptr};
  const size_t num_bytes = kernels->prepared_bytes(*linear, activations, rows);
  if (posix_memalign(&job.prepared, 64, std::max<size_t>(num_bytes, 64)) != 0)
    return fail(error, "no memory for the activations of %d rows", rows);
  pool_run(pool, kernels->linear, &job);
  std::free(job.prepared);
  return true;
}

}  // namespace
}  // namespace outpace

using namespace outpace;

int32_t op_forward(op_model *model, op_cache *cache, const op_batch *batch, char *error) {
  return guarded(error, [&] {
    Turn turn(*model, error);
    return turn.taken() && forward(*model, cache, batch, nullptr, error);
  });
}

int32_t op_layer_forward(op_model *model, op_cache *cache, int32_t layer, const op_batch *batch, float *x,
                         char *error) {
  return guarded(error, [&] {
    Turn turn(*model, error);
    return turn.taken() && forward_layer(*model, cache, layer, batch, x, error);
  });
}

int32_t op_linear_forward(op_pool *pool, const char *path, const op_linear *linear, int32_t activations,
                          int32_t rows, const float *x, float *y, char *error) {
  return guarded(error, [&] {
    return forward_linear(pool, path, linear, activations, rows, x, y, error);
  });
}
