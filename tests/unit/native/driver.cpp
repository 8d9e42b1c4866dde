// Runs every kernel and every entry point of the native step under the sanitizers, and compares
// bits wherever the interface promises them.
//
//     driver [path...]   instruction-set paths; none: all that this machine runs
//     driver mistake     packs from a buffer one byte too short, which a sanitizer must notice

#include <algorithm>
#include <cfloat>

#include "driver.hpp"
#include "driver_eagle.hpp"

namespace {

using Floats = std::vector<float>;
using Ids = std::vector<int32_t>;

std::vector<std::string> usable_paths() {
  std::vector<std::string> paths;
  std::string listed = op_paths_usable();
  for (size_t at = 0; at < listed.size();) {
    const size_t end = std::min(listed.find(',', at), listed.size());
    paths.push_back(listed.substr(at, end - at));
    at = end + 1;
  }
  return paths;
}

bool same_bits(const float *a, const float *b, size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

// --- One matrix -----------------------------------------------------------------------------

struct Case {
  int format, out, in, activations;
  const char *path;
};

Floats forward(const Case &c, const Pool &pool, const op_linear &linear, const float *x, int rows) {
  char error[OP_ERROR_BYTES];
  Floats y((size_t)(rows * c.out));
  const int status =
      op_linear_forward(pool.pool, c.path, &linear, c.activations, rows, x, y.data(), error);
  CHECK(status >= 0, "%s", error);
  return y;
}

// Against float64, loosely: how exact the kernels are is for the Python tests to say.
void check_values(const Case &c, const op_linear &linear, const Floats &x, const Floats &y,
                  int rows) {
  Floats weights((size_t)c.in);
  for (int o = 0; o < c.out; o++) {
    op_unpack_row(&linear, o, weights.data());
    for (int r = 0; r < rows; r++) {
      double sum = linear.bias ? linear.bias[o] : 0.0, size = 1.0;
      for (int k = 0; k < c.in; k++) {
        const double product = (double)weights[(size_t)k] * x[(size_t)(r * c.in + k)];
        sum += product;
        size += std::fabs(product);
      }
      const double got = y[(size_t)(r * c.out + o)];
      CHECK(std::fabs(got - sum) < 0.02 * size, "%s %s row %d output %d: %g, expected %g", c.path,
            name_of(c.format), r, o, got, sum);
    }
  }
}

void check_linear(const Case &c, const Pool &one, const Pool &three) {
  constexpr int ROWS = 37;
  Store store;
  const op_linear linear = store.linear(c.format, c.out, c.in, c.out % 2 == 1);
  const Floats x = store.random.floats((size_t)(ROWS * c.in), 1.0f);
  const Floats all = forward(c, three, linear, x.data(), ROWS);
  check_values(c, linear, x, all, ROWS);
  int first = 0;
  for (int rows : {1, 2, 3, 5, 8, 13}) {
    // The rows asked for end where the allocation ends.
    const Floats part(x.begin() + first * c.in, x.begin() + (first + rows) * c.in);
    const Floats y = forward(c, one, linear, part.data(), rows);
    CHECK(same_bits(y.data(), &all[(size_t)(first * c.out)], y.size()), "%s %s, %d rows", c.path,
          name_of(c.format), rows);
    first += rows;
  }
}

void check_linears(const char *path, const Pool &one, const Pool &three) {
  for (int format = OP_F32; format <= OP_Q8_0; format++) {
    const bool packed = format >= OP_Q4_0;
    for (int activations = OP_ACT_BF16; activations <= (packed ? OP_ACT_INT8 : OP_ACT_BF16);
         activations++)
      for (int out : {1, 16, 33, 100})
        for (int in : {32, 96, packed ? 640 : 75})
          check_linear({format, out, in, activations, path}, one, three);
  }
}

void check_unpacking() {
  Store store;
  const std::vector<uint8_t> source = random_source(store.random, OP_F32, 19, 40);
  Aligned packed((size_t)op_packed_bytes(OP_F32, 19, 40, nullptr));
  CHECK(op_pack(OP_F32, 19, 40, source.data(), packed.data.get(), nullptr) >= 0, "packing");
  const op_linear linear = {OP_F32, 19, 40, 0, packed.data.get(), nullptr};
  for (int row = 0; row < 19; row++) {
    Floats values(40);
    op_unpack_row(&linear, row, values.data());
    CHECK(std::memcmp(values.data(), &source[(size_t)row * 160], 160) == 0, "row %d", row);
  }
}

void make_a_mistake() {
  Store store;
  const std::vector<uint8_t> source = random_source(store.random, OP_Q8_0, 16, 32);
  const std::vector<uint8_t> shorter(source.begin(), source.end() - 1);
  Aligned packed((size_t)op_packed_bytes(OP_Q8_0, 16, 32, nullptr));
  op_pack(OP_Q8_0, 16, 32, shorter.data(), packed.data.get(), nullptr);
}

// --- Passes of a model ----------------------------------------------------------------------

struct Cache {
  Cache(const Model &model, int rows) {
    char error[OP_ERROR_BYTES];
    cache = op_cache_new(model.model, rows, CAPACITY, error);
    CHECK(cache, "%s", error);
    CHECK(op_cache_bytes(model.model, rows, CAPACITY) > 0, "size of a cache");
  }
  ~Cache() { op_cache_free(cache); }
  Cache(const Cache &) = delete;
  op_cache *cache;
};

struct Pass {
  Floats logits;  // [tokens, LOGITS]
  Ids best;
};

// Feeds the segments' tokens and answers for every one of them.
Pass run(const Model &model, const Cache &cache, const Ids &tokens,
         const std::vector<op_segment> &segments, int num_layers = 0) {
  char error[OP_ERROR_BYTES];
  Ids rows(tokens.size());
  for (size_t i = 0; i < rows.size(); i++) rows[i] = (int32_t)i;
  Pass pass = {Floats(tokens.size() * LOGITS), Ids(tokens.size())};
  op_batch batch = {};
  batch.num_tokens = batch.num_logit_rows = (int32_t)tokens.size();
  batch.num_segments = (int32_t)segments.size();
  batch.num_layers = num_layers;
  batch.token_ids = tokens.data();
  batch.segments = segments.data();
  batch.logit_rows = rows.data();
  batch.logits = pass.logits.data();
  batch.best = pass.best.data();
  CHECK(op_forward(model.model, cache.cache, &batch, error) >= 0, "%s", error);
  for (size_t i = 0; i < rows.size(); i++) {
    const float *row = &pass.logits[i * LOGITS];
    CHECK(pass.best[i] == std::max_element(row, row + LOGITS) - row, "best of row %zu", i);
  }
  return pass;
}

void check_rows(const Pass &got, size_t from, const Pass &want, size_t at, size_t count,
                const char *what) {
  CHECK(same_bits(&got.logits[from * LOGITS], &want.logits[at * LOGITS], count * LOGITS), "%s",
        what);
}

Ids slice(const Ids &ids, size_t begin, size_t end) {
  return Ids(ids.begin() + (long)begin, ids.begin() + (long)end);
}

// One sequence in pieces, beside another one: the same bits as in one pass.
void check_chunks(const Model &model, const Ids &tokens, const Pass &whole) {
  Cache cache(model, 3);
  size_t start = 0;
  for (size_t size : {1, 2, 5, 7, 1, 8, 16, 1}) {
    Ids fed = {3, 1, 4};
    const Ids chunk = slice(tokens, start, start + size);
    fed.insert(fed.end(), chunk.begin(), chunk.end());
    const Pass pass =
        run(model, cache, fed,
            {{0, (int32_t)start, 3, 0, nullptr}, {2, (int32_t)start, (int32_t)size, 0, nullptr}});
    check_rows(pass, 3, whole, start, size, "chunk");
    start += size;
  }
}

// A tree whose nodes 0, 2, 3 and 6 are the sequence's next tokens, then compaction and a copy.
void check_tree(const Model &model, const Ids &tokens, const Pass &whole) {
  constexpr size_t AT = 21;
  Cache cache(model, 2);
  run(model, cache, slice(tokens, 0, AT), {{0, 0, AT, 0, nullptr}});
  const Ids parents = {-1, -1, 0, 2, 1, 2, 3, -1}, path = {0, 2, 3, 6};
  Ids nodes(parents.size(), 5);
  for (size_t i = 0; i < path.size(); i++) nodes[(size_t)path[i]] = tokens[AT + i];
  const Pass tree = run(model, cache, nodes, {{0, AT, (int32_t)nodes.size(), 0, parents.data()}});
  for (size_t i = 0; i < path.size(); i++)
    check_rows(tree, (size_t)path[i], whole, AT + i, 1, "tree node");
  op_cache_keep(cache.cache, 0, AT, path.data(), (int32_t)path.size());
  const size_t next = AT + path.size();
  op_cache_copy(cache.cache, 0, 1, 0, (int32_t)next);
  const Pass rest = run(model, cache, slice(tokens, next, tokens.size()),
                        {{1, (int32_t)next, (int32_t)(tokens.size() - next), 0, nullptr}});
  check_rows(rest, 0, whole, next, tokens.size() - next, "after compaction and a copy");
}

// The embedding, put through the layers one by one, is every layer's captured output.
void check_layers(const Model &model, const Ids &tokens, int hidden_size) {
  char error[OP_ERROR_BYTES];
  Cache cache(model, 2);
  const size_t size = tokens.size() * (size_t)hidden_size;
  std::vector<Floats> captured(LAYERS + 1, Floats(size));
  Ids capture;
  std::vector<float *> targets;
  for (int i = 0; i <= LAYERS; i++) {
    capture.push_back(i);
    targets.push_back(captured[(size_t)i].data());
  }
  const op_segment segments[] = {{0, 0, (int32_t)tokens.size(), 0, nullptr},
                                 {1, 0, (int32_t)tokens.size(), 0, nullptr}};
  op_batch batch = {};
  batch.num_tokens = (int32_t)tokens.size();
  batch.num_segments = 1;
  batch.num_capture = (int32_t)capture.size();
  batch.token_ids = tokens.data();
  batch.segments = segments;
  batch.capture = capture.data();
  batch.hidden = targets.data();
  CHECK(op_forward(model.model, cache.cache, &batch, error) >= 0, "%s", error);
  batch.num_capture = 0;
  batch.segments = segments + 1;
  Floats x = captured[0];
  for (int i = 0; i < LAYERS; i++) {
    CHECK(op_layer_forward(model.model, cache.cache, i, &batch, x.data(), error) >= 0, "%s", error);
    CHECK(same_bits(x.data(), captured[(size_t)i + 1].data(), size), "layer %d", i);
  }
}

// Two sequences drafted in one call by the first layers (0: all), against one token at a time.
void check_draft(const Model &model, const Ids &tokens, int num_layers) {
  char error[OP_ERROR_BYTES];
  const Ids rows = {1, 0}, starts = {0, 0}, pending = {9, 4}, steps = {3, 6};
  Ids fed = slice(tokens, 0, 9), drafted(12, -1);
  const Ids second = slice(tokens, 20, 24);
  fed.insert(fed.end(), second.begin(), second.end());
  Cache cache(model, 2);
  const int status = op_draft(model.model, cache.cache, 2, rows.data(), starts.data(),
                              pending.data(), fed.data(), steps.data(), num_layers,
                              drafted.data(), error);
  CHECK(status >= 0, "%s", error);
  Cache plain(model, 2);
  for (int seq = 0; seq < 2; seq++) {
    Ids next = seq ? second : slice(tokens, 0, 9);
    int start = 0;
    for (int step = 0; step < steps[(size_t)seq]; step++) {
      const Pass pass =
          run(model, plain, next, {{seq, start, (int32_t)next.size(), 0, nullptr}}, num_layers);
      CHECK(drafted[(size_t)(seq * 6 + step)] == pass.best.back(), "sequence %d step %d", seq,
            step);
      start += (int)next.size();
      next = {pass.best.back()};
    }
  }
}

void check_model(const Shape &shape, const Case &c, int kv_type, const Pool &one,
                 const Pool &three) {
  const Model model(shape, c.format, c.activations, kv_type, c.path, three);
  const Model single(shape, c.format, c.activations, kv_type, c.path, one);
  Random random;
  Ids tokens(41);
  for (int32_t &token : tokens) token = random.below(VOCAB);
  Cache cache(model, 1), other(single, 1);
  const std::vector<op_segment> chain = {{0, 0, (int32_t)tokens.size(), 0, nullptr}};
  const Pass whole = run(model, cache, tokens, chain);
  for (float logit : whole.logits)
    CHECK(std::isfinite(logit), "%s: a logit is not finite", shape.name);
  check_rows(run(single, other, tokens, chain), 0, whole, 0, tokens.size(), "one thread");
  check_rows(run(single, other, tokens, chain, LAYERS), 0, whole, 0, tokens.size(),
             "all layers, by number");
  CHECK(!same_bits(run(single, other, tokens, chain, 1).logits.data(), whole.logits.data(),
                   whole.logits.size()),
        "one layer is not all of them");
  check_chunks(single, tokens, whole);
  check_tree(model, tokens, whole);
  check_layers(model, tokens, shape.hidden);
  check_draft(model, tokens, 0);
  check_draft(model, tokens, LAYERS - 1);
}

constexpr Shape SHAPES[] = {
    {"llama", OP_BLOCK_PRE, OP_NORM_RMS, OP_SILU, true, false, false, true, 96, 160, 6, 2, 16, 8, 0,
     0, 0},
    {"sandwich", OP_BLOCK_SANDWICH, OP_NORM_RMS, OP_GELU_TANH, true, false, true, true, 64, 96, 2,
     1, 32, 12, 9, 30.0f, 20.0f},
    {"parallel", OP_BLOCK_PARALLEL, OP_NORM_LAYER, OP_GELU, false, true, false, true, 160, 64, 4, 4,
     40, 10, 5, 0, 0},
    {"positions", OP_BLOCK_PRE, OP_NORM_LAYER, OP_GELU_TANH, false, true, false, false, 96, 128, 1,
     1, 96, 0, 0, 0, 0},
};

void check_models(const char *path, const Pool &one, const Pool &three) {
  int index = 0;
  for (int format = OP_F32; format <= OP_Q8_0; format++) {
    const int last = format >= OP_Q4_0 ? OP_ACT_INT8 : OP_ACT_BF16;
    for (int activations = OP_ACT_BF16; activations <= last; activations++) {
      for (int kv_type : {OP_KV_F32, OP_KV_BF16}) {
        const Shape &shape = SHAPES[index++ % (int)(sizeof SHAPES / sizeof *SHAPES)];
        check_model(shape, {format, 0, 0, activations, path}, kv_type, one, three);
      }
    }
  }
}

// --- Mistakes -------------------------------------------------------------------------------

// Every refusal says something, and nothing is read or written.
void check_refusals(const char *path, const Pool &pool) {
  char error[OP_ERROR_BYTES] = "";
  const auto refused = [&](bool failed, const char *what) {
    CHECK(failed && error[0], "%s was not refused", what);
    error[0] = 0;
  };
  refused(op_packed_bytes(99, 16, 32, error) < 0, "an unknown format");
  refused(op_packed_bytes(OP_Q4_0, 16, 33, error) < 0, "a row that is not whole blocks");
  refused(!op_pool_new(0, error), "a pool without threads");
  const Model model(SHAPES[0], OP_BF16, OP_ACT_BF16, OP_KV_F32, path, pool);
  refused(!op_cache_new(model.model, 1, 17, error), "a capacity of 17");
  Cache cache(model, 1);
  const int32_t token = VOCAB, fine = 0, row = 0;
  Floats logits(LOGITS);
  const auto pass = [&](const int32_t *ids, op_segment segment, const int32_t *logit_row) {
    op_batch batch = {};
    batch.num_tokens = batch.num_segments = batch.num_logit_rows = 1;
    batch.token_ids = ids;
    batch.segments = &segment;
    batch.logit_rows = logit_row;
    batch.logits = logits.data();
    return op_forward(model.model, cache.cache, &batch, error) < 0;
  };
  const int32_t parent = 0;
  refused(pass(&token, {0, 0, 1, 0, nullptr}, &row), "a token outside the vocabulary");
  refused(pass(&fine, {1, 0, 1, 0, nullptr}, &row), "a row outside the cache");
  refused(pass(&fine, {0, CAPACITY, 1, 0, nullptr}, &row), "a slot past the capacity");
  refused(pass(&fine, {0, 0, 2, 0, nullptr}, &row), "segments longer than the batch");
  refused(pass(&fine, {0, 0, 1, 0, &parent}, &row), "a node that is its own parent");
  refused(pass(&fine, {0, 0, 1, 0, nullptr}, &token), "logits of a token that is not there");
  CHECK(!pass(&fine, {0, 0, 1, 0, nullptr}, &row), "%s", error);
  const Store &store = model.store;
  op_config config = {};
  refused(!op_model_new(&config, pool.pool, path, error), "another interface version");
  const op_linear linear = model.layers[0].qkv;
  Floats y((size_t)linear.out);
  refused(op_linear_forward(pool.pool, "sse9", &linear, OP_ACT_BF16, 1, store.vectors[0].data(),
                            y.data(), error) < 0,
          "an unknown path");
}

}  // namespace

int main(int argc, char **argv) {
  CHECK(op_abi_version() == OP_ABI_VERSION, "interface version");
  const Pool one(1), three(3);
  const Floats buffer(1 << 16);
  CHECK(op_pool_read(three.pool, buffer.data(), buffer.size() * sizeof(float)) >= 0, "reading");
  check_unpacking();
  std::vector<std::string> paths(argv + 1, argv + argc);
  if (paths.empty()) paths = usable_paths();
  for (const std::string &path : paths) {
    if (path == "mistake") make_a_mistake();
    check_linears(path.c_str(), one, three);
    check_models(path.c_str(), one, three);
    check_eagle_heads(path.c_str(), one, three);
    check_refusals(path.c_str(), three);
    std::printf("%s\n", path.c_str());
  }
  return 0;
}
