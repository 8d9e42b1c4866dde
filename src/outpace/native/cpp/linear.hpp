// Matrix products over packed weights: what the step asks of them.
//
// Everything in this file is compiled once per instruction-set path, in that path's namespace.
// One accumulator per (row, output), `in` ascending and never split, activations rounded row by row:
// that is what makes a row's bits independent of the rows beside it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "outpace_native.h"

namespace outpace::OUTPACE_PATH {

inline constexpr int PANEL = 16;  // outputs per panel; a matrix has ceil(out / PANEL) of them

// Bytes of the activations of `rows` rows, rounded and laid out for the kernels (64-byte aligned).
size_t prepared_bytes(const op_linear &w, int activations, int rows);

// Round and lay out rows row_begin .. row_end - 1 of x (row stride ldx floats) into `prepared`, which
// is made for `rows` rows in all. Threads may prepare different rows at the same time.
void prepare(const op_linear &w, int activations, const float *x, int64_t ldx, int rows,
             int row_begin, int row_end, void *prepared);

// y[r][o] (row stride ldy) = (residual ? residual[r][o] : 0) + x W^T + bias, for outputs of panels
// panel_begin .. panel_end - 1; residual has y's stride and may be y. Outputs past w.out are not stored.
void multiply(const op_linear &w, int activations, const void *prepared, int rows, int panel_begin,
              int panel_end, const float *residual, float *y, int64_t ldy);

// Each thread calls these around its calls of `multiply` in one pass (tile registers, where there are any).
void enter_kernels();
void leave_kernels();

}  // namespace outpace::OUTPACE_PATH
