// Drafting: as many passes as there are draft steps, in one call.
#include <algorithm>
#include <cmath>
#include <vector>

#include "calls.hpp"

namespace outpace {
namespace {

struct DraftJob {
  int32_t num_seqs;
  const int32_t *rows, *starts, *num_pending, *pending_ids, *num_steps;
  int32_t num_layers;
  int32_t *drafted;
  // Of an EAGLE head:
  const float *x, *temperatures;
  const double *coins;
  float *q;
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

bool check_draws(const op_model &model, const DraftJob &job, char *error) {
  if (!model.config.eagle) return fail(error, "op_eagle_draft with a model that is no EAGLE head");
  if (!job.x || !job.temperatures)
    return fail(error, "drafting with an EAGLE head needs x and temperatures");
  for (int i = 0; i < job.num_seqs; i++) {
    const float temperature = job.temperatures[i];
    if (!(temperature >= 0.0f) || std::isinf(temperature))
      return fail(error, "sequence %d: a temperature of %g", i, (double)temperature);
    if (temperature > 0.0f && (!job.coins || !job.q))
      return fail(error, "sequence %d is sampled, but there are no coins or no memory for q", i);
  }
  return true;
}

// Passes of one call. What one of them feeds: the pending tokens at first, then each sequence's newest.
class Draft {
 public:
  Draft(op_model &model, op_cache *cache, const DraftJob &job)
      : model_(model),
        cache_(cache),
        job_(job),
        max_steps_(*std::max_element(job.num_steps, job.num_steps + job.num_seqs)) {}

  bool run(char *error) {
    for (int32_t step = 0; step < max_steps_; step++) {
      fill(step);
      if (model_.config.eagle) fill_columns(step);
      const op_batch batch = make_batch();
      if (!forward(model_, cache_, &batch, draws_.empty() ? nullptr : draws_.data(), error)) return false;
      if (!take(step, error)) return false;
    }
    return true;
  }

 private:
  void fill(int32_t step) {
    token_ids_.clear();
    logit_rows_.clear();
    seqs_.clear();
    segments_.clear();
    const int32_t *pending = job_.pending_ids;
    for (int32_t i = 0; i < job_.num_seqs; i++) {
      const int32_t num = step == 0 ? job_.num_pending[i] : 1;
      if (step < job_.num_steps[i]) {
        const int32_t *ids = step == 0 ? pending : job_.drafted + place(i, step - 1);
        const int32_t start = job_.starts[i] + (step == 0 ? 0 : job_.num_pending[i] + step - 1);
        token_ids_.insert(token_ids_.end(), ids, ids + num);
        segments_.push_back({job_.rows[i], start, num, 0, nullptr});
        logit_rows_.push_back((int32_t)token_ids_.size() - 1);
        seqs_.push_back(i);
      }
      pending += job_.num_pending[i];
    }
    best_.resize(seqs_.size());
  }

  // What columns start from: the caller's rows at first, then what each sequence's newest column left.
  void fill_columns(int32_t step) {
    const int64_t hidden = model_.config.hidden_size;
    if (step > 0) {
      x_.clear();
      for (int32_t seq : seqs_) {
        const float *left = outputs_.data() + last_column_[(size_t)seq] * hidden;
        x_.insert(x_.end(), left, left + hidden);
      }
    }
    outputs_.resize(token_ids_.size() * (size_t)hidden);
    last_column_.resize((size_t)job_.num_seqs);
    for (size_t i = 0; i < seqs_.size(); i++) last_column_[(size_t)seqs_[i]] = logit_rows_[i];
    fill_draws(step);
  }

  void fill_draws(int32_t step) {
    draws_.clear();
    float *q = job_.q;
    for (int32_t i = 0; i < job_.num_seqs; i++) {
      const bool sampled = job_.temperatures[i] > 0.0f;
      if (step < job_.num_steps[i]) {
        float *row = sampled ? q + (int64_t)step * model_.config.num_logits : nullptr;
        draws_.push_back({row, job_.temperatures[i], sampled ? job_.coins[place(i, step)] : 0.0});
      }
      if (sampled) q += (int64_t)job_.num_steps[i] * model_.config.num_logits;
    }
  }

  op_batch make_batch() {
    op_batch batch = {};
    batch.num_tokens = (int32_t)token_ids_.size();
    batch.num_segments = (int32_t)segments_.size();
    batch.num_logit_rows = (int32_t)logit_rows_.size();
    batch.num_layers = job_.num_layers;
    batch.token_ids = token_ids_.data();
    batch.segments = segments_.data();
    batch.logit_rows = logit_rows_.data();
    batch.best = best_.data();
    if (model_.config.eagle) {
      batch.x = x_.empty() ? job_.x : x_.data();
      batch.outputs = outputs_.data();
    }
    return batch;
  }

  bool take(int32_t step, char *error) {
    const op_eagle *eagle = model_.config.eagle;
    for (size_t i = 0; i < seqs_.size(); i++) {
      if (best_[i] < 0)
        return fail(error, "sequence %d, draft step %d: the head's logits are not finite", seqs_[i], step);
      job_.drafted[place(seqs_[i], step)] = eagle ? eagle->draft_ids[best_[i]] : best_[i];
    }
    return true;
  }

  int64_t place(int32_t seq, int32_t step) const { return (int64_t)seq * max_steps_ + step; }

  op_model &model_;
  op_cache *cache_;
  const DraftJob &job_;
  const int32_t max_steps_;
  std::vector<int32_t> token_ids_, logit_rows_, seqs_, best_;
  std::vector<op_segment> segments_;
  std::vector<float> x_, outputs_;
  std::vector<int32_t> last_column_;  // of each sequence in the newest pass
  std::vector<Draw> draws_;
};

}  // namespace
}  // namespace outpace

using namespace outpace;

int32_t op_draft(op_model *model, op_cache *cache, int32_t num_seqs, const int32_t *rows,
                 const int32_t *starts, const int32_t *num_pending, const int32_t *pending_ids,
                 const int32_t *num_steps, int32_t num_layers, int32_t *drafted, char *error) {
  return guarded(error, [&] {
    Turn turn(*model, error);
    const DraftJob job = {num_seqs,   rows,    starts,  num_pending, pending_ids, num_steps,
                          num_layers, drafted, nullptr, nullptr,     nullptr,     nullptr};
    if (!turn.taken() || !check_draft(job, cache, error)) return false;
    if (model->config.eagle) return fail(error, "op_draft with an EAGLE head; use op_eagle_draft");
    return Draft(*model, cache, job).run(error);
  });
}

int32_t op_eagle_draft(op_model *model, op_cache *cache, int32_t num_seqs, const int32_t *rows,
                       const int32_t *starts, const int32_t *num_pending, const int32_t *pending_ids,
                       const float *x, const int32_t *num_steps, const float *temperatures,
                       const double *coins, int32_t *drafted, float *q, char *error) {
  return guarded(error, [&] {
    Turn turn(*model, error);
    const DraftJob job = {num_seqs, rows,    starts, num_pending,  pending_ids, num_steps,
                          0,        drafted, x,      temperatures, coins,       q};
    return turn.taken() && check_draft(job, cache, error) && check_draws(*model, job, error) &&
           Draft(*model, cache, job).run(error);
  });
}
