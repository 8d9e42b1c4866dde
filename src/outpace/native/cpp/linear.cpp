// Matrix products over packed weights: rounding of activations, and the choice of a kernel.

#include "linear.hpp"

#include "linear_amx.hpp"
#include "linear_avx2.hpp"
#include "linear_blocks.hpp"
#include "linear_fma.hpp"
#include "linear_job.hpp"
#include "linear_prepare.hpp"
#include "linear_vnni.hpp"

namespace outpace::OUTPACE_PATH {

size_t prepared_bytes(const op_linear &w, int activations, int rows) {
  const int64_t padded = layout::round_up(rows, PANEL);  // kernels may read, never use, further rows
  return (size_t)(padded * prepared_layout(w, activations).stride);
}

void prepare(const op_linear &w, int activations, const float *x, int64_t ldx, int, int row_begin,
             int row_end, void *prepared) {
  const Prepared to = prepared_layout(w, activations);
  for (int64_t row = row_begin; row < row_end; row++)
    prepare_row(w, activations, to, x + row * ldx, (char *)prepared + row * to.stride);
}

#if defined(__AVX512VNNI__)
// Tile registers, where there are any, or vector registers, whichever was measured to be quicker for
// this many rows. The bits are the same.
template <class Format, int DIGITS>
static void multiply_bytes(const Job &job) {
#if defined(__AMX_INT8__)
  if (job.num_rows > 12) return AmxBlocks<Format, DIGITS, 16>::run(job);
  if constexpr (DIGITS == 2) {
    if (job.num_rows == 7 || job.num_rows == 8) return AmxBlocks<Format, DIGITS, 8>::run(job);
  }
#endif
  run<BlockKernel<Format, BytesTile<Format, DIGITS>>>(job);
}
#endif

template <class Format>
static void multiply_packed(const Job &job, int activations) {
  if (activations == OP_ACT_BF16) return run<BlockKernel<Format, FloatsTile<Format>>>(job);
#if defined(__AVX512VNNI__)
  if (activations == OP_ACT_INT16) return multiply_bytes<Format, 2>(job);
  return multiply_bytes<Format, 1>(job);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return run_in_turns<WordsKernel<Format>>(job);
#else
  return run<BlockKernel<Format, WordsTile<Format>>>(job);
#endif
}

static void multiply_f32(const Job &job) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return multiply_lines<FloatWeights>(job);
#else
  return run<FmaKernel<FloatWeights>>(job);
#endif
}

static void multiply_bf16(const Job &job) {
#if defined(__AMX_BF16__)
  return multiply_bf16_amx(job);
#elif defined(__AVX512BF16__)
  return run<FmaKernel<PairWeights>>(job);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return multiply_lines<HalfWeights>(job);
#else
  return run<FmaKernel<HalfWeights>>(job);
#endif
}

void multiply(const op_linear &w, int activations, const void *prepared, int rows, int panel_begin,
              int panel_end, const float *residual, float *y, int64_t ldy) {
  const Job job = {&w,
                   (const char *)w.data,
                   layout::panel_bytes(w.format, w.in),
                   (const char *)prepared,
                   prepared_layout(w, activations),
                   rows,
                   panel_begin,
                   panel_end,
                   residual,
                   y,
                   ldy};
  switch (w.format) {
    case OP_F32:
      return multiply_f32(job);
    case OP_BF16:
      return multiply_bf16(job);
    case OP_Q4_0:
      return multiply_packed<Packed<OP_Q4_0>>(job, activations);
    case OP_Q4_1:
      return multiply_packed<Packed<OP_Q4_1>>(job, activations);
    default:
      return multiply_packed<Packed<OP_Q8_0>>(job, activations);
  }
}

void enter_kernels() {}

void leave_kernels() {
#if defined(__AMX_TILE__)
  _tile_release();
#endif
}

}  // namespace outpace::OUTPACE_PATH
