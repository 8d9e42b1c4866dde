// EAGLE heads of the native step under the sanitizers: drafts in one call against single passes.
#pragma once

#include <algorithm>

#include "driver.hpp"

struct EagleHead {
  static constexpr int HIDDEN = 96, INNER = 64, HEADS = 3, KV_HEADS = 1, DIM = 32, DRAFTED = 37;

  EagleHead(int kind, int format, int activations, int kv_type, bool flags, const char *path,
            const Pool &pool) {
    char error[OP_ERROR_BYTES];
    const bool is_eagle3 = kind == OP_EAGLE3;
    for (int i = 0; i < DRAFTED; i++) draft_ids.push_back(2 * i + 1);
    layer.qkv = store.linear(format, (HEADS + 2 * KV_HEADS) * DIM, is_eagle3 ? 2 * HIDDEN : HIDDEN,
                             false);
    layer.o = store.linear(format, HIDDEN, HEADS * DIM, false);
    layer.up = store.linear(format, 2 * INNER, HIDDEN, false);
    layer.down = store.linear(format, HIDDEN, INNER, false);
    if (is_eagle3) layer.input_norm = store.norm(HIDDEN, false);
    layer.post_attention_norm = store.norm(HIDDEN, false);
    eagle.kind = kind;
    eagle.norm_before_residual = eagle.norm_output = flags;
    if (!is_eagle3) eagle.fc = store.linear(format, HIDDEN, 2 * HIDDEN, false);
    if (is_eagle3) eagle.hidden_norm = store.norm(HIDDEN, false);
    eagle.draft_ids = draft_ids.data();
    config = {};
    config.abi_version = OP_ABI_VERSION;
    config.vocab_size = VOCAB;
    config.num_logits = DRAFTED;
    config.hidden_size = HIDDEN;
    config.intermediate_size = INNER;
    config.num_layers = config.num_ropes = 1;
    config.num_heads = HEADS;
    config.num_kv_heads = KV_HEADS;
    config.head_dim = DIM;
    config.gated_mlp = 1;
    config.activations = activations;
    config.kv_type = kv_type;
    config.norm_eps = 1e-5f;
    config.attention_scale = 0.2f;
    config.embedding_scale = 1.0f;
    config.embedding = store.linear(format, VOCAB, HIDDEN, false);
    config.head = store.linear(format, DRAFTED, HIDDEN, false);
    if (is_eagle3) config.final_norm = store.norm(HIDDEN, false);
    config.layers = &layer;
    config.eagle = &eagle;
    model = op_model_new(&config, pool.pool, path, error);
    CHECK(model, "%s", error);
    const size_t size = (size_t)(CAPACITY * DIM / 2);
    const float *cosines = store.vector(size, 1.0f), *sines = store.vector(size, 1.0f);
    CHECK(op_set_rope(model, 0, DIM / 2, CAPACITY, cosines, sines, error) >= 0, "%s", error);
    cache = op_cache_new(model, 3, CAPACITY, error);
    CHECK(cache, "%s", error);
  }
  ~EagleHead() {
    op_cache_free(cache);
    op_model_free(model);
  }
  EagleHead(const EagleHead &) = delete;

  // Feeds columns from x to row 2, overwrites x with what they leave; the newest one's logits.
  std::vector<float> feed(const std::vector<int32_t> &ids, int start, std::vector<float> &x) const {
    char error[OP_ERROR_BYTES];
    std::vector<float> logits(DRAFTED), outputs(ids.size() * HIDDEN);
    const op_segment segment = {2, start, (int32_t)ids.size(), 0, nullptr};
    const int32_t newest = (int32_t)ids.size() - 1;
    op_batch batch = {};
    batch.num_tokens = (int32_t)ids.size();
    batch.num_segments = batch.num_logit_rows = 1;
    batch.token_ids = ids.data();
    batch.segments = &segment;
    batch.logit_rows = &newest;
    batch.logits = logits.data();
    batch.x = x.data();
    batch.outputs = outputs.data();
    CHECK(op_forward(model, cache, &batch, error) >= 0, "%s", error);
    x = outputs;
    return logits;
  }

  Store store;
  std::vector<int32_t> draft_ids;
  op_layer layer = {};
  op_eagle eagle = {};
  op_config config;
  op_model *model;
  op_cache *cache;
};

// Two sequences, one greedy and one sampled, in one call; then token by token.
inline void check_eagle_draft(EagleHead &head) {
  constexpr int HIDDEN = EagleHead::HIDDEN, DRAFTED = EagleHead::DRAFTED;
  char error[OP_ERROR_BYTES];
  const std::vector<int32_t> rows = {1, 0}, starts = {0, 0}, pending = {5, 1}, steps = {3, 4};
  const std::vector<int32_t> ids = {9, 4, 82, 0, 7, 33};
  const std::vector<float> temperatures = {0.0f, 0.8f};
  const std::vector<double> coins = {0, 0, 0, 0, 0.1, 0.5, 0.99, 0.3};
  const std::vector<float> x = head.store.random.floats(ids.size() * HIDDEN, 1.0f);
  std::vector<float> q(4 * DRAFTED);
  std::vector<int32_t> drafted(8, -1);
  const int status = op_eagle_draft(head.model, head.cache, 2, rows.data(), starts.data(),
                                    pending.data(), ids.data(), x.data(), steps.data(),
                                    temperatures.data(), coins.data(), drafted.data(), q.data(), error);
  CHECK(status >= 0, "%s", error);
  for (int seq = 0; seq < 2; seq++) {
    const int first = seq ? 5 : 0, count = pending[(size_t)seq];
    std::vector<int32_t> next(ids.begin() + first, ids.begin() + first + count);
    std::vector<float> from(x.begin() + first * HIDDEN, x.begin() + (first + count) * HIDDEN);
    int start = 0;
    for (int step = 0; step < steps[(size_t)seq]; step++) {
      const std::vector<float> logits = head.feed(next, start, from);
      size_t chosen = (size_t)(std::max_element(logits.begin(), logits.end()) - logits.begin());
      if (seq) {
        const float *row = &q[(size_t)(step * DRAFTED)];
        double total = 0.0, sum = 0.0;
        for (int i = 0; i < DRAFTED; i++) {
          const double ratio = std::exp(((double)logits[(size_t)i] - logits[chosen]) / 0.8);
          CHECK(std::fabs(row[i] - ratio * row[chosen]) < 1e-5, "q of token %d", i);
          total += row[i];
        }
        CHECK(std::fabs(total - 1.0) < 1e-5, "q adds up to %g", total);
        for (chosen = 0; (sum += row[chosen]) <= coins[(size_t)(4 + step)] * total;) chosen++;
      }
      const int32_t token = drafted[(size_t)(seq * 4 + step)];
      CHECK(token == head.draft_ids[chosen], "sequence %d step %d: token %d", seq, step, token);
      start += (int)next.size();
      next = {token};
      from.erase(from.begin(), from.end() - HIDDEN);
    }
  }
}

inline void check_eagle_refusals(EagleHead &head, const char *path, const Pool &pool) {
  char error[OP_ERROR_BYTES] = "";
  const auto refused = [&](bool failed, const char *what) {
    CHECK(failed && error[0], "%s was not refused", what);
    error[0] = 0;
  };
  const int32_t zero = 0, one = 1, far = CAPACITY;
  int32_t drafted = 0;
  const float hot = 1.0f, infinite = INFINITY, x[EagleHead::HIDDEN] = {};
  const auto draft = [&](const int32_t *start, const float *from, const float *temperature) {
    return op_eagle_draft(head.model, head.cache, 1, &zero, start, &one, &zero, from, &one,
                          temperature, nullptr, &drafted, nullptr, error) < 0;
  };
  refused(draft(&zero, nullptr, &hot), "a draft that starts from nothing");
  refused(draft(&zero, x, &hot), "sampling without coins");
  refused(draft(&zero, x, &infinite), "an infinite temperature");
  refused(draft(&far, x, &hot), "a slot past the capacity");
  refused(op_draft(head.model, head.cache, 1, &zero, &zero, &one, &zero, &one, 0, &drafted, error) < 0,
          "op_draft with an EAGLE head");
  const auto made = [&] { return op_model_new(&head.config, pool.pool, path, error); };
  const auto refused_with = [&](auto &value, auto wrong, const char *what) {
    const auto right = value;
    value = wrong;
    refused(!made(), what);
    value = right;
  };
  refused_with(head.eagle.kind, 2, "an unknown kind");
  refused_with(head.eagle.draft_ids, (const int32_t *)nullptr, "a head without a draft vocabulary");
  refused_with(head.draft_ids[3], VOCAB, "a draft token outside the vocabulary");
  refused_with(head.config.block, (int32_t)OP_BLOCK_PARALLEL, "a parallel block");
  refused_with(head.config.num_logits, EagleHead::DRAFTED - 1, "a head of another size");
  op_model *model = made();
  CHECK(model, "%s", error);
  op_model_free(model);
}

inline void check_eagle_heads(const char *path, const Pool &one, const Pool &three) {
  for (int format = OP_F32; format <= OP_Q8_0; format++) {
    const int activations = format >= OP_Q4_0 ? OP_ACT_INT16 : OP_ACT_BF16;
    const int kv_type = format % 2 ? OP_KV_BF16 : OP_KV_F32;
    for (int kind : {OP_EAGLE1, OP_EAGLE3}) {
      EagleHead head(kind, format, activations, kv_type, format % 2 == 1, path,
                     format % 2 ? one : three);
      check_eagle_draft(head);
      if (format == OP_BF16) check_eagle_refusals(head, path, one);
    }
  }
}
