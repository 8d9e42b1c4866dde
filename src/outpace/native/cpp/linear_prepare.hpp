// Activations as the kernels read them: rounded row by row, each row contiguous, whole rows apart.
//
// Which of four forms a row takes depends on the weights and on the path:
//   FLOATS   float32, rounded to bfloat16 first where that is asked for
//   HALVES   bfloat16 (paths with instructions for it)
//   WORDS    integers of 16 bits, in order (paths that multiply pairs of words)
//   BYTES    integers as one digit of 8 bits, or as two, x = 256 * high + low: a block's high digits,
//            then its low ones, each run of 4 in the order layout::byte_of of the weights
// For packed weights the row's values are followed by one BlockScale per block.
#pragma once

#include <cstring>

#include "linear_layout.hpp"
#include "linear.hpp"
#include "simd.hpp"

namespace outpace::OUTPACE_PATH {

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)
inline constexpr bool HAS_BF16 = true, HAS_BYTES = true;
#else
inline constexpr bool HAS_BF16 = false, HAS_BYTES = false;
#endif

enum class Form { FLOATS, HALVES, WORDS, BYTES };

// x is about scale * integer. Blocks that start from an integer (formats whose quants have an offset)
// start at -offset * sum of the integers; Q4_1 adds minimum * `sum`, the block's sum in units of x.
struct BlockScale {
  float scale;
  union {
    int32_t start;
    float sum;
  };
};

// The largest integer that activations are rounded to. 15 bits leave room for a low digit of -128..127
// and a high one of -127..127.
inline constexpr int INT8_LIMIT = 127, INT16_LIMIT = 127 * 256;
// A block whose largest magnitude is below this becomes zero, so that its inverse stays finite.
inline constexpr float SMALLEST_BLOCK = 1e-30f;

struct Prepared {
  Form form;
  int value_bytes;  // of one activation, all digits
  int64_t scales;   // offset of a row's first BlockScale
  int64_t stride;   // bytes from row to row
};

static inline Form form_of(const op_linear &w, int activations) {
  if (w.format == OP_F32) return Form::FLOATS;
  if (w.format == OP_BF16) return HAS_BF16 ? Form::HALVES : Form::FLOATS;
  if (activations == OP_ACT_BF16) return Form::FLOATS;
  return HAS_BYTES ? Form::BYTES : Form::WORDS;
}

static inline Prepared prepared_layout(const op_linear &w, int activations) {
  const Form form = form_of(w, activations);
  const int size = form == Form::FLOATS ? 4 : form == Form::BYTES && activations == OP_ACT_INT8 ? 1 : 2;
  const int64_t depth = w.format == OP_BF16 ? layout::round_up(w.in, layout::BF16_DEPTH) : w.in;
  const int64_t values = layout::round_up(depth * size, layout::LINE);
  const int64_t scales =
      layout::is_packed(w.format) ? w.in / layout::BLOCK * (int64_t)sizeof(BlockScale) : 0;
  // An odd number of lines: rows that all start in the same cache set would push each other out.
  const int64_t lines = layout::round_up(values + scales, layout::LINE) / layout::LINE | 1;
  return {form, size, values, lines * layout::LINE};
}

static inline void round_floats(const float *x, int n, int padded, float *to) {
  for (int k = 0; k < n; k++) to[k] = from_bf16(to_bf16(x[k]));
  for (int k = n; k < padded; k++) to[k] = 0.0f;
}

static inline void round_halves(const float *x, int n, int padded, uint16_t *to) {
  for (int k = 0; k < n; k++) to[k] = to_bf16(x[k]);
  for (int k = n; k < padded; k++) to[k] = 0;
}

// Rounds one block to integers of at most `limit`; returns its scale: 0 for a block of (almost) zeros,
// NaN for one that holds an infinity or NaN, so that every output of the row becomes NaN.
static inline float quantise(const float *x, int limit, int32_t *integers) {
  int32_t largest = 0;
  for (int k = 0; k < layout::BLOCK; k++) {
    int32_t bits;
    std::memcpy(&bits, x + k, 4);
    bits &= 0x7fffffff;  // in the order of magnitudes, NaN above infinity
    largest = bits > largest ? bits : largest;
  }
  float magnitude;
  std::memcpy(&magnitude, &largest, 4);
  const bool finite = largest < 0x7f800000;
  const bool usable = finite && magnitude >= SMALLEST_BLOCK;
  const vf inverse = set1(usable ? (float)limit / magnitude : 0.0f);
  for (int k = 0; k < layout::BLOCK; k += LANES) {
    const vi rounded = usable ? to_int(vround(load(x + k) * inverse)) : iset1(0);
    std::memcpy(integers + k, &rounded, sizeof rounded);
  }
  return usable ? magnitude / (float)limit : finite ? 0.0f : __builtin_nanf("");
}

static inline BlockScale block_scale(int32_t format, float scale, const int32_t *integers) {
  int32_t sum = 0;
  for (int k = 0; k < layout::BLOCK; k++) sum += integers[k];
  BlockScale result;
  result.scale = scale;
  if (format == OP_Q4_1)
    result.sum = scale * (float)sum;
  else
    result.start = -layout::quant_offset(format) * sum;
  return result;
}

#if defined(__AVX512VNNI__)
// The low bytes of 32 integers, each run of 4 in the order of layout::byte_of.
static inline __m256i low_bytes(__m512i first, __m512i second) {
  const __m256i order = _mm256_set_epi8(15, 13, 14, 12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0,  //
                                        15, 13, 14, 12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0);
  return _mm256_shuffle_epi8(_mm256_set_m128i(_mm512_cvtepi32_epi8(second),
                                              _mm512_cvtepi32_epi8(first)),
                             order);
}

static inline void store_integers(const int32_t *integers, bool two, char *to) {
  const __m512i first = _mm512_load_si512(integers), second = _mm512_load_si512(integers + 16);
  if (!two) {
    _mm256_storeu_si256((__m256i *)to, low_bytes(first, second));
    return;
  }
  const __m512i half = _mm512_set1_epi32(128);
  const __m256i high = low_bytes(_mm512_srai_epi32(_mm512_add_epi32(first, half), 8),
                                 _mm512_srai_epi32(_mm512_add_epi32(second, half), 8));
  _mm256_storeu_si256((__m256i *)to, high);
  // Modulo 256 the low digit is the integer itself.
  _mm256_storeu_si256((__m256i *)(to + layout::BLOCK), low_bytes(first, second));
}
#else
static inline void store_integers(const int32_t *integers, bool, char *to) {
  for (int k = 0; k < layout::BLOCK; k++) ((int16_t *)to)[k] = (int16_t)integers[k];
}
#endif

static inline void round_integers(const op_linear &w, int activations, const Prepared &prepared,
                                  const float *x, char *to) {
  const bool two = activations == OP_ACT_INT16;
  BlockScale *scales = (BlockScale *)(to + prepared.scales);
  for (int k = 0; k < w.in; k += layout::BLOCK) {
    alignas(64) int32_t integers[layout::BLOCK];
    const float scale = quantise(x + k, two ? INT16_LIMIT : INT8_LIMIT, integers);
    store_integers(integers, two, to + k * prepared.value_bytes);
    scales[k / layout::BLOCK] = block_scale(w.format, scale, integers);
  }
}

// bfloat16 for packed weights: nothing to scale by; Q4_1 needs the block's sum.
static inline void round_blocks(const op_linear &w, const Prepared &prepared, const float *x,
                                char *to) {
  float *values = (float *)to;
  BlockScale *scales = (BlockScale *)(to + prepared.scales);
  round_floats(x, w.in, w.in, values);
  for (int b = 0; b < w.in / layout::BLOCK; b++) {
    scales[b].scale = 1.0f;
    scales[b].sum = 0.0f;
    for (int k = 0; k < layout::BLOCK; k++) scales[b].sum += values[b * layout::BLOCK + k];
  }
}

static inline void prepare_row(const op_linear &w, int activations, const Prepared &prepared,
                               const float *x, char *to) {
  const int padded = (int)layout::round_up(w.in, layout::BF16_DEPTH);
  if (w.format == OP_F32)
    std::memcpy(to, x, (size_t)w.in * 4);
  else if (prepared.form == Form::HALVES)
    round_halves(x, w.in, padded, (uint16_t *)to);
  else if (w.format == OP_BF16)
    round_floats(x, w.in, padded, (float *)to);
  else if (prepared.form == Form::FLOATS)
    round_blocks(w, prepared, x, to);
  else
    round_integers(w, activations, prepared, x, to);
}

}  // namespace outpace::OUTPACE_PATH
