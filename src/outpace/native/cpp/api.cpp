// Passes, drafting and single products: from the C interface to jobs of the pool.
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <vector>

#include "plan.hpp"
#include "step.hpp"

namespace outpace {
namespace {

// Marks a model as running for a scope.
class Turn {
 public:
  Turn(op_model &model, char *error) : model_(model) {
    taken_ = __atomic_exchange_n(&model.running, 1, __ATOMIC_ACQUIRE) == 0;
    if (!taken_) fail(error, "the model is in the middle of another pass");
  }
  ~Turn() {
    if (taken_) __atomic_store_n(&model_.running, 0, __ATOMIC_RELEASE);
  }
  Turn(const Turn &) = delete;
  Turn &operator=(const Turn &) = delete;
  bool taken() const { return taken_; }

 private:
  op_model &model_;
  bool taken_;
};

// -1 and a sentence in place of an exception.
template <class Body>
int32_t guarded(char *error, Body body) {
  try {
    return body() ? 0 : -1;
  } catch (const std::exception &failure) {
    fail(error, "the pass cannot run (%s)", failure.what());
    return -1;
  }
}

bool forward(op_model &model, op_cache *cache, const op_batch *batch, char *error) {
  if (!check_batch(model, cache, batch, true, error)) return false;
  Pass pass = make_pass(model, cache, *batch);
  pool_run(model.pool, model.kernels->pass, &pass);
  return true;
}

bool forward_layer(op_model &model, op_cache *cache, int32_t layer, const op_batch *batch, float *x,
                   char *error) {
  if (layer < 0 || layer >= model.config.num_layers || !x)
    return fail(error, "layer %d of %d over given hidden states", layer, model.config.num_layers);
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

// --- Drafting -----------------------------------------------------------------------------------

struct DraftJob {
  int32_t num_seqs;
  const int32_t *rows, *starts, *num_pending, *pending_ids, *num_steps;
  int32_t num_layers;
  int32_t *drafted;
};

bool check_draft(const DraftJob &job, const op_cache *cache, char *error) {
  if (!cache || job.num_seqs < 1 || !job.rows || !job.starts || !job.num_pending || !job.pending_ids ||
      !job.num_steps || !job.drafted)
    return fail(error, "drafting needs a cache and at least one sequence");
  for (int i = 0; i < job.num_seqs; i++) {
    if (job.num_steps[i] < 1 || job.num_pending[i] < 1)
      return fail(error, "sequence %d: %d steps after %d pending tokens; at least 1 of each", i,
                  job.num_steps[i], job.num_pending[i]);
    const int64_t end = (int64_t)job.starts[i] + job.num_pending[i] + job.num_steps[i] - 1;
    if (job.starts[i] < 0 || end > cache->capacity)
      return fail(error, "sequence %d: drafting to slot %lld of a cache for %d tokens", i,
                  (long long)end - 1, cache->capacity);
  }
  return true;
}

// What one draft step feeds: the pending tokens at first, then each sequence's newest.
struct DraftStep {
  std::vector<int32_t> token_ids, logit_rows, seqs, best;
  std::vector<op_segment> segments;

  void fill(const DraftJob &job, int32_t step, int32_t max_steps) {
    token_ids.clear();
    logit_rows.clear();
    seqs.clear();
    segments.clear();
    const int32_t *pending = job.pending_ids;
    for (int32_t i = 0; i < job.num_seqs; i++) {
      const int32_t num = step == 0 ? job.num_pending[i] : 1;
      if (step < job.num_steps[i]) {
        const int32_t *ids = step == 0 ? pending : job.drafted + (int64_t)i * max_steps + step - 1;
        const int32_t start = job.starts[i] + (step == 0 ? 0 : job.num_pending[i] + step - 1);
        token_ids.insert(token_ids.end(), ids, ids + num);
        segments.push_back({job.rows[i], start, num, 0, nullptr});
        logit_rows.push_back((int32_t)token_ids.size() - 1);
        seqs.push_back(i);
      }
      pending += job.num_pending[i];
    }
    best.resize(seqs.size());
  }

  op_batch batch(int32_t num_layers) {
    op_batch batch = {};
    batch.num_tokens = (int32_t)token_ids.size();
    batch.num_segments = (int32_t)segments.size();
    batch.num_logit_rows = (int32_t)logit_rows.size();
    batch.num_layers = num_layers;
    batch.token_ids = token_ids.data();
    batch.segments = segments.data();
    batch.logit_rows = logit_rows.data();
    batch.best = best.data();
    return batch;
  }
};

bool draft(op_model &model, op_cache *cache, const DraftJob &job, char *error) {
  if (!check_draft(job, cache, error)) return false;
  const int32_t max_steps = *std::max_element(job.num_steps, job.num_steps + job.num_seqs);
  DraftStep feed;
  for (int32_t step = 0; step < max_steps; step++) {
    feed.fill(job, step, max_steps);
    const op_batch batch = feed.batch(job.num_layers);
    if (!forward(model, cache, &batch, error)) return false;
    for (size_t i = 0; i < feed.seqs.size(); i++)
      job.drafted[(int64_t)feed.seqs[i] * max_steps + step] = feed.best[i];
  }
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
    return turn.taken() && forward(*model, cache, batch, error);
  });
}

int32_t op_layer_forward(op_model *model, op_cache *cache, int32_t layer, const op_batch *batch, float *x,
                         char *error) {
  return guarded(error, [&] {
    Turn turn(*model, error);
    return turn.taken() && forward_layer(*model, cache, layer, batch, x, error);
  });
}

int32_t op_draft(op_model *model, op_cache *cache, int32_t num_seqs, const int32_t *rows,
                 const int32_t *starts, const int32_t *num_pending, const int32_t *pending_ids,
                 const int32_t *num_steps, int32_t num_layers, int32_t *drafted, char *error) {
  return guarded(error, [&] {
    Turn turn(*model, error);
    const DraftJob job = {num_seqs,    rows,      starts,     num_pending,
                          pending_ids, num_steps, num_layers, drafted};
    return turn.taken() && draft(*model, cache, job, error);
  });
}

int32_t op_linear_forward(op_pool *pool, const char *path, const op_linear *linear, int32_t activations,
                          int32_t rows, const float *x, float *y, char *error) {
  return guarded(error, [&] {
    return forward_linear(pool, path, linear, activations, rows, x, y, error);
  });
}
