// Drafting: as many passes as there are draft steps, in one call.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>
#include <vector>

#include "calls.hpp"

namespace outpace {
namespace {

struct DraftJob {
  int32_t num_seqs;
  const op_chain *chains;
  const int32_t *pending_ids;
  int32_t num_layers;
  int32_t *drafted;
  // Of an EAGLE head:
  const float *start_from;
  bool has_features;
  const op_noise *noise;
  float *q;
  const op_ranking *ranking;
};

bool check_draft(const DraftJob &job, const op_cache *cache, char *error) {
  if (!cache || job.num_seqs < 1 || !job.chains || !job.pending_ids || !job.drafted)
    return fail(error, "drafting needs a cache and at least one sequence");
  for (int i = 0; i < job.num_seqs; i++) {
    const op_chain &chain = job.chains[i];
    if (chain.num_steps < 1 || chain.num_pending < 1)
      return fail(error, "sequence %d: %d steps after %d pending tokens; at least 1 of each", i,
                  chain.num_steps, chain.num_pending);
    const int64_t end = (int64_t)chain.start + chain.num_pending + chain.num_steps - 1;
    if (chain.start < 0 || end > cache->capacity)
      return fail(error, "sequence %d: drafting to slot %lld of a cache for %d tokens", i,
                  (long long)end - 1, cache->capacity);
  }
  return true;
}

bool check_ranking(const op_model &model, const DraftJob &job, char *error) {
  if (!job.ranking) return true;
  const op_ranking &ranking = *job.ranking;
  if (ranking.width < 1 || ranking.width > model.config.num_logits)
    return fail(error, "ranking %d of %d draft tokens", ranking.width, model.config.num_logits);
  if (!ranking.token_ids || !ranking.chances) return fail(error, "no memory for what is ranked");
  for (int i = 0; i < job.num_seqs; i++)
    if (job.chains[i].choice != OP_CHOOSE_BEST)
      return fail(error, "sequence %d is sampled; tokens are ranked where the likeliest is chosen", i);
  return true;
}

bool check_choices(const op_model &model, const DraftJob &job, char *error) {
  if (!model.config.eagle) return fail(error, "op_eagle_draft with a model that is no EAGLE head");
  if (!job.start_from) return fail(error, "drafting with an EAGLE head needs what columns start from");
  if (job.has_features && (model.config.eagle->kind != OP_EAGLE3 || !model.config.eagle->fc.data))
    return fail(error, "a draft that starts from features, but the head has no fc for them");
  for (int i = 0; i < job.num_seqs; i++) {
    const op_chain &chain = job.chains[i];
    if (chain.choice < OP_CHOOSE_BEST || chain.choice > OP_CHOOSE_RACED)
      return fail(error, "sequence %d: unknown choice %d", i, chain.choice);
    if (chain.choice == OP_CHOOSE_BEST) continue;
    if (!(chain.temperature > 0.0f) || std::isinf(chain.temperature))
      return fail(error, "sequence %d: a temperature of %g", i, (double)chain.temperature);
    if (!job.noise || (chain.choice == OP_CHOOSE_DRAWN && !job.q))
      return fail(error, "sequence %d is sampled, but there is no noise or no memory for q", i);
  }
  return true;
}

// Memory for kernels, aligned as they like it.
class Aligned {
 public:
  explicit Aligned(size_t num_bytes) {
    if (posix_memalign(&memory_, 64, std::max<size_t>(num_bytes, 64)) != 0) throw std::bad_alloc();
  }
  ~Aligned() { std::free(memory_); }
  Aligned(const Aligned &) = delete;
  Aligned &operator=(const Aligned &) = delete;
  void *get() const { return memory_; }

 private:
  void *memory_ = nullptr;
};

// Passes of one call. What one of them feeds: the pending tokens at first, then each sequence's newest.
class Draft {
 public:
  Draft(op_model &model, op_cache *cache, const DraftJob &job)
      : model_(model),
        cache_(cache),
        job_(job),
        max_steps_(std::max_element(job.chains, job.chains + job.num_seqs, has_fewer_steps)->num_steps) {}

  bool run(char *error) {
    if (job_.has_features) fuse();
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
  static bool has_fewer_steps(const op_chain &a, const op_chain &b) { return a.num_steps < b.num_steps; }

  // x of the pending columns: fc of the features given. A job of its own, right before the first pass.
  void fuse() {
    const op_linear &fc = model_.config.eagle->fc;
    int32_t num = 0;
    for (int32_t i = 0; i < job_.num_seqs; i++) num += job_.chains[i].num_pending;
    x_.resize((size_t)num * (size_t)fc.out);
    const int32_t activations = model_.config.activations;
    const Aligned prepared(model_.kernels->prepared_bytes(fc, activations, num));
    LinearJob job = {model_.pool, &fc, activations, num, job_.start_from, x_.data(), prepared.get()};
    pool_run(model_.pool, model_.kernels->linear, &job);
  }

  void fill(int32_t step) {
    token_ids_.clear();
    logit_rows_.clear();
    seqs_.clear();
    segments_.clear();
    const int32_t *pending = job_.pending_ids;
    for (int32_t i = 0; i < job_.num_seqs; i++) {
      const op_chain &chain = job_.chains[i];
      const int32_t num = step == 0 ? chain.num_pending : 1;
      if (step < chain.num_steps) {
        const int32_t *ids = step == 0 ? pending : job_.drafted + place(i, step - 1);
        const int32_t start = chain.start + (step == 0 ? 0 : chain.num_pending + step - 1);
        token_ids_.insert(token_ids_.end(), ids, ids + num);
        segments_.push_back({chain.row, start, num, 0, nullptr});
        logit_rows_.push_back((int32_t)token_ids_.size() - 1);
        seqs_.push_back(i);
      }
      pending += chain.num_pending;
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

  // Logits of drawn tokens go where their q is to be; those that are raced or ranked are of no use after it.
  void fill_draws(int32_t step) {
    const size_t num_logits = (size_t)model_.config.num_logits;
    draws_.clear();
    logits_.resize((size_t)job_.num_seqs * num_logits * (job_.noise || job_.ranking ? 1 : 0));
    float *q = job_.q;
    for (int32_t i = 0; i < job_.num_seqs; i++) {
      const op_chain &chain = job_.chains[i];
      const bool drawn = chain.choice == OP_CHOOSE_DRAWN;
      if (step < chain.num_steps) {
        Draw draw = {chain.choice, chain.temperature, {0.0}, nullptr, {}};
        if (drawn) draw.row = q + (size_t)step * num_logits;
        if (chain.choice == OP_CHOOSE_RACED || job_.ranking)
          draw.row = logits_.data() + (size_t)i * num_logits;
        if (chain.choice != OP_CHOOSE_BEST) draw.noise = job_.noise[place(i, step)];
        if (job_.ranking) draw.ranking = ranking_of(place(i, step));
        draws_.push_back(draw);
      }
      if (drawn) q += (size_t)chain.num_steps * num_logits;
    }
  }

  op_ranking ranking_of(int64_t place) const {
    const int32_t width = job_.ranking->width;
    return {width, 0, job_.ranking->token_ids + place * width, job_.ranking->chances + place * width};
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
      batch.x = x_.empty() ? job_.start_from : x_.data();
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
  std::vector<float> x_, outputs_, logits_;
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
    if (!turn.taken()) return false;
    std::vector<op_chain> chains;
    for (int32_t i = 0; rows && starts && num_pending && num_steps && i < num_seqs; i++)
      chains.push_back({rows[i], starts[i], num_pending[i], num_steps[i], OP_CHOOSE_BEST, 0.0f});
    const DraftJob job = {(int32_t)chains.size(), chains.data(), pending_ids, num_layers, drafted,
                          nullptr,                false,         nullptr,     nullptr,    nullptr};
    if (!check_draft(job, cache, error)) return false;
    if (model->config.eagle) return fail(error, "op_draft with an EAGLE head; use op_eagle_draft");
    return Draft(*model, cache, job).run(error);
  });
}

int32_t op_eagle_draft(op_model *model, op_cache *cache, int32_t num_seqs, const op_chain *chains,
                       const int32_t *pending_ids, const float *start_from, int32_t has_features,
                       const op_noise *noise, int32_t *drafted, float *q,
                       const op_ranking *ranking, char *error) {
  return guarded(error, [&] {
    Turn turn(*model, error);
    const DraftJob job = {num_seqs,   chains,            pending_ids, 0, drafted,
                          start_from, has_features != 0, noise,       q, ranking};
    return turn.taken() && check_draft(job, cache, error) && check_choices(*model, job, error) &&
           check_ranking(*model, job, error) && Draft(*model, cache, job).run(error);
  });
}
