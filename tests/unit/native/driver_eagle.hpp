// EAGLE heads of the native step under the sanitizers: drafts in one call against single passes.
#pragma once

#include <algorithm>

#include "driver.hpp"

struct EagleHead {
  static constexpr int HIDDEN = 96, INNER = 64, HEADS = 3, KV_HEADS = 1, DIM = 32, DRAFTED = 37;
  static constexpr int FEATURES = 160;

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
    eagle.fc = store.linear(format, HIDDEN, is_eagle3 ? FEATURES : 2 * HIDDEN, false);
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

// What a chosen token of a chain should be, from the logits of a single pass.
inline size_t eagle_choice(const EagleHead &head, const op_chain &chain, op_noise noise,
                           const std::vector<float> &logits, const float *q) {
  size_t chosen = (size_t)(std::max_element(logits.begin(), logits.end()) - logits.begin());
  std::vector<double> ratios;
  for (float logit : logits)
    ratios.push_back(std::exp(((double)logit - logits[chosen]) / chain.temperature));
  if (chain.choice == OP_CHOOSE_DRAWN) {
    double total = 0.0, sum = 0.0;
    for (size_t i = 0; i < logits.size(); i++) {
      CHECK(std::fabs(q[i] - ratios[i] * q[chosen]) < 1e-5, "q of token %zu", i);
      total += q[i];
    }
    CHECK(std::fabs(total - 1.0) < 1e-5, "q adds up to %g", total);
    for (chosen = 0; (sum += q[chosen]) <= noise.coin * total;) chosen++;
  } else if (chain.choice == OP_CHOOSE_RACED) {
    double first = INFINITY;
    for (size_t i = 0; i < logits.size(); i++) {
      uint64_t bits = ((uint64_t)head.draft_ids[i] + 1) * 0x9E3779B97F4A7C15u + noise.key;
      bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
      bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
      bits ^= bits >> 31;
      const double arrival = -std::log1p(-((double)(bits >> 12) + 0.5) * 0x1p-52) / ratios[i];
      if (arrival < first) {
        first = arrival;
        chosen = i;
      }
    }
  }
  return chosen;
}

// Three sequences, one greedy, one drawn and one raced, in one call; then token by token.
inline void check_eagle_draft(EagleHead &head, const char *path, const Pool &pool) {
  constexpr int HIDDEN = EagleHead::HIDDEN, DRAFTED = EagleHead::DRAFTED;
  char error[OP_ERROR_BYTES];
  const bool has_features = head.eagle.kind == OP_EAGLE3;
  const std::vector<op_chain> chains = {{1, 0, 5, 3, OP_CHOOSE_BEST, 0.0f},
                                        {0, 0, 1, 4, OP_CHOOSE_DRAWN, 0.8f},
                                        {2, 0, 2, 2, OP_CHOOSE_RACED, 1.2f}};
  const std::vector<int32_t> ids = {9, 4, 82, 0, 7, 33, 50, 12};
  const std::vector<double> coins = {0.1, 0.5, 0.99, 0.3};
  std::vector<op_noise> noise(12);
  for (size_t i = 0; i < coins.size(); i++) noise[4 + i].coin = coins[i];
  noise[8].key = 0xfedcba9876543210u;
  noise[9].key = 3;
  const size_t width = has_features ? EagleHead::FEATURES : HIDDEN;
  const std::vector<float> given = head.store.random.floats(ids.size() * width, 1.0f);
  std::vector<float> x = given, q(coins.size() * DRAFTED);
  if (has_features) {
    x.resize(ids.size() * HIDDEN);
    CHECK(op_linear_forward(pool.pool, path, &head.eagle.fc, head.config.activations,
                            (int32_t)ids.size(), given.data(), x.data(), error) >= 0,
          "%s", error);
  }
  std::vector<int32_t> drafted(12, -1);
  const int status =
      op_eagle_draft(head.model, head.cache, 3, chains.data(), ids.data(), given.data(), has_features,
                     noise.data(), drafted.data(), q.data(), nullptr, error);
  CHECK(status >= 0, "%s", error);
  size_t first = 0;
  for (size_t seq = 0; seq < chains.size(); seq++) {
    const op_chain &chain = chains[seq];
    const size_t count = (size_t)chain.num_pending;
    std::vector<int32_t> next(&ids[first], &ids[first] + count);
    std::vector<float> from(&x[first * HIDDEN], &x[first * HIDDEN] + count * HIDDEN);
    first += count;
    int start = 0;
    for (int step = 0; step < chain.num_steps; step++) {
      const std::vector<float> logits = head.feed(next, start, from);
      const size_t place = seq * 4 + (size_t)step;
      const size_t chosen = eagle_choice(head, chain, noise[place], logits, &q[(size_t)(step * DRAFTED)]);
      CHECK(drafted[place] == head.draft_ids[chosen], "sequence %zu step %d: token %d", seq, step,
            drafted[place]);
      start += (int)next.size();
      next = {drafted[place]};
      from.erase(from.begin(), from.end() - HIDDEN);
    }
  }
}

// Of one place, from the logits of a single pass.
inline void check_ranking(const EagleHead &head, const std::vector<float> &logits, int32_t width,
                          const int32_t *ranked, const float *chances) {
  std::vector<size_t> order(logits.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  double total = 0.0;
  for (float logit : logits) total += std::exp((double)logit - logits[order[0]]);
  for (int32_t i = 0; i < width; i++) {
    const size_t token = order[(size_t)i];
    CHECK(ranked[i] == head.draft_ids[token], "number %d is token %d", i, ranked[i]);
    const double chance = std::exp((double)logits[token] - logits[order[0]]) / total;
    CHECK(std::fabs(chances[i] - chance) < 1e-6, "number %d has %g, not %g", i, chances[i], chance);
  }
}

// Of three greedy sequences the same chains with a ranking as without, and the ranking is that of single
// passes' logits.
inline void check_eagle_ranking(EagleHead &head, int32_t width) {
  constexpr int HIDDEN = EagleHead::HIDDEN, STEPS = 4;
  char error[OP_ERROR_BYTES];
  const std::vector<op_chain> chains = {{1, 0, 5, 3, OP_CHOOSE_BEST, 0.0f},
                                        {0, 0, 1, STEPS, OP_CHOOSE_BEST, 0.0f},
                                        {2, 0, 2, 1, OP_CHOOSE_BEST, 0.0f}};
  const std::vector<int32_t> ids = {9, 4, 82, 0, 7, 33, 50, 12};
  const std::vector<float> x = head.store.random.floats(ids.size() * HIDDEN, 1.0f);
  std::vector<int32_t> ranked((size_t)(3 * STEPS * width), -1);
  std::vector<float> chances(ranked.size(), -1.0f);
  const op_ranking ranking = {width, 0, ranked.data(), chances.data()};
  std::vector<int32_t> drafted[2];
  for (int i = 0; i < 2; i++) {
    drafted[i].assign(3 * STEPS, -1);
    CHECK(op_eagle_draft(head.model, head.cache, 3, chains.data(), ids.data(), x.data(), 0, nullptr,
                         drafted[i].data(), nullptr, i ? &ranking : nullptr, error) >= 0,
          "%s", error);
  }
  CHECK(drafted[0] == drafted[1], "a ranking of %d changes what is drafted", width);
  size_t first = 0;
  for (size_t seq = 0; seq < chains.size(); seq++) {
    const size_t count = (size_t)chains[seq].num_pending;
    std::vector<int32_t> next(&ids[first], &ids[first] + count);
    std::vector<float> from(&x[first * HIDDEN], &x[first * HIDDEN] + count * HIDDEN);
    first += count;
    int start = 0;
    for (int step = 0; step < STEPS; step++) {
      const size_t place = seq * STEPS + (size_t)step, begin = place * (size_t)width;
      if (step >= chains[seq].num_steps) {
        CHECK(ranked[begin] == -1 && chances[begin] == -1.0f, "a ranking behind sequence %zu", seq);
        continue;
      }
      check_ranking(head, head.feed(next, start, from), width, &ranked[begin], &chances[begin]);
      CHECK(ranked[begin] == drafted[1][place], "sequence %zu step %d: another is first", seq, step);
      start += (int)next.size();
      next = {drafted[1][place]};
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
  const int32_t zero = 0, one = 1;
  int32_t drafted = 0;
  const float hot = 1.0f, infinite = INFINITY, x[EagleHead::HIDDEN] = {};
  const auto draft = [&](int32_t start, const float *from, int32_t choice, float temperature) {
    const op_chain chain = {0, start, 1, 1, choice, temperature};
    return op_eagle_draft(head.model, head.cache, 1, &chain, &zero, from, 0, nullptr, &drafted, nullptr,
                          nullptr, error) < 0;
  };
  const op_noise coin = {0.5};
  float q[EagleHead::DRAFTED], chance;
  const auto rank = [&](int32_t width, float *chances, int32_t choice) {
    const op_chain chain = {0, 0, 1, 1, choice, hot};
    const op_ranking ranking = {width, 0, &drafted, chances};
    return op_eagle_draft(head.model, head.cache, 1, &chain, &zero, x, 0, &coin, &drafted, q, &ranking,
                          error) < 0;
  };
  refused(rank(0, &chance, OP_CHOOSE_BEST), "a ranking of nothing");
  refused(rank(EagleHead::DRAFTED + 1, &chance, OP_CHOOSE_BEST), "a ranking of more than there are");
  refused(rank(1, nullptr, OP_CHOOSE_BEST), "a ranking without memory");
  refused(rank(1, &chance, OP_CHOOSE_DRAWN), "a ranking of what is drawn");
  refused(draft(0, nullptr, OP_CHOOSE_BEST, hot), "a draft that starts from nothing");
  refused(draft(0, x, OP_CHOOSE_DRAWN, hot), "drawing without coins");
  refused(draft(0, x, OP_CHOOSE_RACED, hot), "a race without keys");
  refused(draft(0, x, OP_CHOOSE_DRAWN, infinite), "an infinite temperature");
  refused(draft(0, x, 3, hot), "an unknown choice");
  refused(draft(CAPACITY, x, OP_CHOOSE_BEST, hot), "a slot past the capacity");
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
      check_eagle_draft(head, path, format % 2 ? one : three);
      for (int32_t width : {1, 3, +EagleHead::DRAFTED}) check_eagle_ranking(head, width);
      if (format == OP_BF16) check_eagle_refusals(head, path, one);
    }
  }
}
