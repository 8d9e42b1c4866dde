// Threads that run one job at a time together, and wait for each other between its phases.
//
// Plain functions over an opaque type: files compiled for one instruction set may include this.
#pragma once

#include <cstdint>

#include "outpace_native.h"

namespace outpace {

using Job = void (*)(void *context, int thread);

int pool_size(const op_pool *pool);

// Runs job(context, thread) on every thread, the caller being thread 0; returns when all are done.
// Callers that come at the same time take turns.
void pool_run(op_pool *pool, Job job, void *context);

// Inside a job: returns when every thread has come here.
void pool_barrier(op_pool *pool);

struct Range {
  int begin, end;
};

// Part `index` of 0 .. total - 1 cut into `parts` even, contiguous parts.
static inline Range share(int64_t total, int parts, int index) {
  return {(int)(total * index / parts), (int)(total * (index + 1) / parts)};
}

}  // namespace outpace
