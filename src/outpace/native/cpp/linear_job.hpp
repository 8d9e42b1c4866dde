// What every kernel is given, how its sums reach y, and how rows and panels are cut into tiles.
#pragma once

#include "linear_prepare.hpp"

namespace outpace::OUTPACE_PATH {

inline constexpr int VECTORS = PANEL / LANES;  // vectors of floats in one panel's outputs

// Weights are fetched this far ahead of their use: further than the processor does by itself while it
// is busy with several rows.
inline constexpr int64_t FETCH_AHEAD = 8192;

template <int BYTES>
static inline void fetch(const char *weights) {
#pragma GCC unroll 16
  for (int at = 0; at < BYTES; at += layout::LINE)
    __builtin_prefetch(weights + FETCH_AHEAD + at, 0, 3);
}

// The same for BYTES at offset `at` of each of `panels` panels that are read side by side: past their
// end the next ones follow.
template <int BYTES, int PANELS>
static inline void fetch_side_by_side(const char *weights, int64_t panel_bytes, int64_t at) {
  const int64_t skipped = at + FETCH_AHEAD < panel_bytes ? 0 : (PANELS - 1) * panel_bytes;
#pragma GCC unroll 4
  for (int p = 0; p < PANELS; p++) fetch<BYTES>(weights + p * panel_bytes + at + skipped);
}

// One call of `multiply`.
struct Job {
  const op_linear *w;
  const char *weights;  // panel 0
  int64_t panel_bytes;
  const char *rows;  // row 0 of the prepared activations
  Prepared prepared;
  int num_rows;
  int panel_begin, panel_end;
  const float *residual;
  float *y;
  int64_t ldy;

  const char *panel(int p) const { return weights + p * panel_bytes; }
  const char *row(int64_t r) const { return rows + r * prepared.stride; }
};

// Stores the sums of `rows` rows and `panels` panels, sums[row][panel][output], with bias and residual
// added in that order. Kept out of the tiles, which are unrolled many times over.
__attribute__((noinline)) static void store_sums(const Job &job, int64_t row, int rows, int panel,
                                                 int panels, const float *sums) {
  for (int r = 0; r < rows; r++) {
    for (int p = 0; p < panels; p++, sums += PANEL) {
      const int64_t first = (int64_t)(panel + p) * PANEL, at = (row + r) * job.ldy + first;
      const float *bias = job.w->bias ? job.w->bias + first : nullptr;
      const float *residual = job.residual ? job.residual + at : nullptr;
      if (first + PANEL <= job.w->out) {
        for (int v = 0; v < PANEL; v += LANES) {
          vf value = load(sums + v);
          if (bias) value = value + load(bias + v);
          if (residual) value = load(residual + v) + value;
          store(job.y + at + v, value);
        }
        continue;
      }
      for (int i = 0; i < job.w->out - (int)first; i++) {
        float value = sums[i];
        if (bias) value = value + bias[i];
        if (residual) value = residual[i] + value;
        job.y[at + i] = value;
      }
    }
  }
}

// Where R rows of activations are being read. One pointer for every three rows, and every access at a
// constant distance from it: left alone, GCC 12 keeps a pointer for every access, more than there are
// registers.
template <int R>
struct RowPointers {
  static constexpr int SHARED = 3;
  const char *bases[(R + SHARED - 1) / SHARED];
  int64_t stride;

  inline __attribute__((always_inline)) RowPointers(const Job &job, int64_t row, int64_t offset = 0)
      : stride(job.prepared.stride) {
#pragma GCC unroll 6
    for (int i = 0; i * SHARED < R; i++) bases[i] = job.row(row + i * SHARED) + offset;
  }

  inline __attribute__((always_inline)) const char *operator[](int r) const {
    return bases[r / SHARED] + (r % SHARED) * stride;
  }

  inline __attribute__((always_inline)) void advance(int64_t bytes) {
#pragma GCC unroll 6
    for (int i = 0; i * SHARED < R; i++) {
      bases[i] += bytes;
      asm("" : "+r"(bases[i]));
    }
  }
};

// The BlockScales of R rows.
template <int R>
struct ScalePointers : RowPointers<R> {
  inline __attribute__((always_inline)) ScalePointers(const Job &job, int64_t row)
      : RowPointers<R>(job, row, job.prepared.scales) {}

  inline __attribute__((always_inline)) const BlockScale &operator[](int r) const {
    return *(const BlockScale *)RowPointers<R>::operator[](r);
  }
};

template <class Kernel, int PANELS, int ROWS>
static inline void run_tile(const Job &job, int64_t row, int rows, int panel) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS)
      Kernel::template tile<ROWS, PANELS>(job, row, panel);
    else
      run_tile<Kernel, PANELS, ROWS - 1>(job, row, rows, panel);
  }
}

// Rows begin .. end - 1 over all panels, in blocks of nearly equal size that a tile can hold. Panels
// are outermost: their weights stay in the nearest cache while all rows pass over them.
template <class Kernel>
static inline void run_rows(const Job &job, int64_t begin, int64_t end) {
  const int64_t rows = end - begin, blocks = (rows + Kernel::ROWS - 1) / Kernel::ROWS;
  for (int panel = job.panel_begin; panel < job.panel_end;) {
    const bool full = job.panel_end - panel >= Kernel::PANELS;
    for (int64_t i = 0; i < blocks; i++) {
      const int64_t row = begin + i * rows / blocks;
      const int count = (int)(begin + (i + 1) * rows / blocks - row);
      if (full)
        run_tile<Kernel, Kernel::PANELS, Kernel::ROWS>(job, row, count, panel);
      else
        run_tile<Kernel, 1, Kernel::ROWS>(job, row, count, panel);
    }
    panel += full ? Kernel::PANELS : 1;
  }
}

// Rows taken together: as many as leave their activations in a cache of about a megabyte.
static inline int64_t rows_at_once(const Job &job, int64_t multiple) {
  const int64_t rows = (int64_t)(1 << 20) / job.prepared.stride / multiple * multiple;
  return rows < 4 * multiple ? 4 * multiple : rows;
}

template <class Kernel>
static inline void run(const Job &job) {
  const int64_t step = rows_at_once(job, Kernel::ROWS);
  for (int64_t row = 0; row < job.num_rows; row += step)
    run_rows<Kernel>(job, row, row + step < job.num_rows ? row + step : job.num_rows);
}

}  // namespace outpace::OUTPACE_PATH
