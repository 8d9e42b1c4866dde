// From a checked batch to a pass: positions, what sees what, tiles of queries, scratch memory.
#pragma once

#include <vector>

#include "model.hpp"

namespace outpace {

// Writes one sentence into `error`; returns false, for use in `return fail(...)`.
__attribute__((format(printf, 2, 3))) bool fail(char *error, const char *format, ...);

struct Plan {
  std::vector<Segment> segments;
  std::vector<int32_t> positions, token_segment, next_piece;
  std::vector<uint8_t> visible;
  std::vector<Tile> tiles;
};

// Whether the batch is one that `model` and `cache` can run.
bool check_batch(const op_model &model, const op_cache *cache, const op_batch *batch, bool whole,
                 char *error);

// The pass of a checked batch. Throws bad_alloc.
Pass make_pass(op_model &model, op_cache *cache, const op_batch &batch);

// Make the scratch memory large enough. Throws bad_alloc.
void grow_scratch(op_model &model, int64_t rows, int64_t logit_rows, int64_t capacity);

}  // namespace outpace
