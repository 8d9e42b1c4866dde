#include "pool.hpp"

#include <atomic>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace outpace {
namespace {

using Clock = std::chrono::steady_clock;

// How long a waiting thread spins before it is parked. A wake-up takes some 50 microseconds where
// processors are virtual, so that shorter waits are not worth parking for; attention alone keeps a thread
// waiting for 10 to 20 in every layer, where heads cannot be shared evenly. But whoever waits in vain
// waits for a thread that has lost its core, maybe to the very thread that spins here: then it is better
// to give way soon, until waits have been short again for a while. sched_yield is no step in between:
// where the core is shared with another busy process it gives away a whole time slice of milliseconds at
// every barrier, while a parked thread comes back as soon as it is woken.
using Micros = std::chrono::microseconds;
constexpr Micros SHORTEST_SPIN{10}, LONGEST_SPIN{50}, MORE_SPIN{1};

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// The default rounding, denormals kept, while a job runs on the caller's thread, as on the workers:
// other libraries change both, and results must not depend on which thread computes what.
class DefaultFloats {
 public:
  DefaultFloats() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloats() { std::fesetenv(&saved_); }
  DefaultFloats(const DefaultFloats &) = delete;
  DefaultFloats &operator=(const DefaultFloats &) = delete;

 private:
  std::fenv_t saved_;
};

// A counter that threads wait on: spinning briefly, then parked.
class Gate {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }

  void advance() {
    value_.fetch_add(1);
    // Sequentially consistent, like the increments of both: a waiter that this load misses has yet
    // to look at the new value.
    if (num_parked_.load() == 0) return;
    { std::lock_guard<std::mutex> lock(mutex_); }
    changed_.notify_all();
  }

  // Until the value is no longer `seen`.
  void wait(uint32_t seen) {
    if (spin(seen)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    num_parked_.fetch_add(1);
    changed_.wait(lock, [&] { return value_.load() != seen; });
    num_parked_.fetch_sub(1);
  }

 private:
  // Whether the value changed while this thread was spinning.
  bool spin(uint32_t seen) {
    const Micros patience = patience_.load(std::memory_order_relaxed);
    const auto start = Clock::now();
    do {
      for (int i = 0; i < 16; i++) {
        if (value() != seen) {
          if (patience < LONGEST_SPIN) be_patient(patience + MORE_SPIN);
          return true;
        }
        pause();
      }
    } while (Clock::now() - start < patience);
    be_patient(SHORTEST_SPIN);
    return false;
  }

  void be_patient(Micros patience) { patience_.store(patience, std::memory_order_relaxed); }

  alignas(64) std::atomic<uint32_t> value_{0};
  std::atomic<int> num_parked_{0};
  std::atomic<Micros> patience_{SHORTEST_SPIN};
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace
}  // namespace outpace

struct op_pool {
  int num_threads = 1;
  outpace::Gate started, passed;
  alignas(64) std::atomic<int> num_arrived{0};
  outpace::Job job = nullptr;
  void *context = nullptr;
  bool stopping = false;
  std::mutex running;
  std::vector<std::thread> workers;

  void work(int thread) {
    const outpace::DefaultFloats floats;
    for (uint32_t seen = 0;; seen++) {
      started.wait(seen);
      if (stopping) return;
      job(context, thread);
      outpace::pool_barrier(this);
    }
  }

  ~op_pool() {
    stopping = true;
    started.advance();
    for (std::thread &worker : workers) worker.join();
  }
};

namespace outpace {

int pool_size(const op_pool *pool) { return pool->num_threads; }

void pool_barrier(op_pool *pool) {
  if (pool->num_threads == 1) return;
  const uint32_t seen = pool->passed.value();
  if (pool->num_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == pool->num_threads) {
    pool->num_arrived.store(0, std::memory_order_relaxed);
    pool->passed.advance();
  } else {
    pool->passed.wait(seen);
  }
}

void pool_run(op_pool *pool, Job job, void *context) {
  std::lock_guard<std::mutex> lock(pool->running);
  const DefaultFloats floats;
  pool->job = job;
  pool->context = context;
  pool->started.advance();
  job(context, 0);
  pool_barrier(pool);
}

}  // namespace outpace

op_pool *op_pool_new(int32_t num_threads, char *error) {
  if (num_threads < 1 || num_threads > 1024) {
    std::snprintf(error, OP_ERROR_BYTES, "a pool has 1 to 1024 threads, got %d", num_threads);
    return nullptr;
  }
  op_pool *pool = nullptr;
  try {
    pool = new op_pool;
    pool->num_threads = num_threads;
    pool->workers.reserve(num_threads - 1);
    for (int thread = 1; thread < num_threads; thread++)
      pool->workers.emplace_back([pool, thread] { pool->work(thread); });
    return pool;
  } catch (const std::exception &failure) {
    std::snprintf(error, OP_ERROR_BYTES, "%d threads cannot be started (%s)", num_threads,
                  failure.what());
    delete pool;
    return nullptr;
  }
}

void op_pool_free(op_pool *pool) { delete pool; }

namespace {

struct ReadJob {
  op_pool *pool;
  const unsigned char *bytes;
  size_t num_bytes;
  std::atomic<uint64_t> sum{0};
};

// Several places at once and a prefetch further ahead than the processor's own: one simple stream reads
// only half of what memory gives.
void read_share(void *context, int thread) {
  constexpr size_t LINE = 64, AHEAD = 2048, STREAMS = 4;
  ReadJob &job = *static_cast<ReadJob *>(context);
  const size_t parts = (size_t)outpace::pool_size(job.pool) * STREAMS;
  const size_t lines = job.num_bytes / LINE / parts;  // of each stream
  uint64_t sums[LINE / sizeof(uint64_t)] = {};
  for (size_t line = 0; line < lines; line++)
    for (size_t stream = 0; stream < STREAMS; stream++) {
      const unsigned char *p = job.bytes + ((thread * STREAMS + stream) * lines + line) * LINE;
      __builtin_prefetch(p + AHEAD);
      uint64_t words[LINE / sizeof(uint64_t)];
      std::memcpy(words, p, LINE);
      for (size_t i = 0; i < LINE / sizeof(uint64_t); i++) sums[i] += words[i];
    }
  for (uint64_t sum : sums) job.sum.fetch_add(sum, std::memory_order_relaxed);
}

}  // namespace

double op_pool_read(op_pool *pool, const void *buffer, size_t num_bytes) {
  ReadJob job;
  job.pool = pool;
  job.bytes = static_cast<const unsigned char *>(buffer);
  job.num_bytes = num_bytes;
  const auto start = outpace::Clock::now();
  outpace::pool_run(pool, read_share, &job);
  return std::chrono::duration<double>(outpace::Clock::now() - start).count();
}
