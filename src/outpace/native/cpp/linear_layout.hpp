// How weights lie in memory once packed: the same on every path.
//
// Outputs come in panels of 16, each panel contiguous, `in` outermost inside it:
//   F32            [in][16] floats
//   BF16           [in / 2][16][2], `in` padded with zeros to a multiple of 32 (AMX tiles are 32 deep)
//   packed formats groups of blocks of 32 along `in`: the quants of all blocks of the group, then their
//                  scales (half precision, [16] each; Q4_1: 16 scales, then 16 minimums)
// Q8_0 keeps quants as q + 128 in one byte, [8][16][4]; Q4_0 and Q4_1 as q in one nibble, [4][16][8].
// The order inside those runs of 4 and 8 (byte_of, nibble_of) is chosen so that masking a 32-bit word
// with 0x00ff00ff or 0x000f000f, after a shift, leaves neighbours (k, k + 1) in its two halves, and
// masking with 0x0f0f0f0f leaves four weights in the order of Q8_0's bytes.
//
// Functions are static so that every file that uses them gets its own copy, made for its own processor.
#pragma once

#include <cstdint>
#include <cstring>

#include "outpace_native.h"

namespace outpace::layout {

constexpr int PANEL_OUTPUTS = 16;
constexpr int BLOCK = 32;
constexpr int BF16_DEPTH = 32;
constexpr int LINE = 64;

static constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static constexpr bool is_packed(int32_t format) { return format >= OP_Q4_0 && format <= OP_Q8_0; }

// Per panel and block: bytes of quants, bytes of scales (and minimums), and blocks in a group, so many
// that a group is whole cache lines.
static constexpr int quant_bytes(int32_t format) { return format == OP_Q8_0 ? 512 : 256; }
static constexpr int scale_bytes(int32_t format) { return format == OP_Q4_1 ? 64 : 32; }
static constexpr int group_blocks(int32_t format) { return format == OP_Q4_1 ? 1 : 2; }

// What is taken off a stored quant to give its value in units of the scale.
static constexpr int quant_offset(int32_t format) {
  return format == OP_Q8_0 ? 128 : format == OP_Q4_0 ? 8 : 0;
}

static constexpr int byte_of(int k) { return (k & 1) * 2 + (k >> 1); }                 // k in 0..3
static constexpr int nibble_of(int k) { return (k & 1) * 4 + (k & 2) + (k >> 2); }     // k in 0..7

static constexpr int64_t panels(int64_t out) { return (out + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS; }

static constexpr int64_t group_bytes(int32_t format) {
  return (int64_t)group_blocks(format) * (quant_bytes(format) + scale_bytes(format));
}

static constexpr int64_t panel_bytes(int32_t format, int64_t in) {
  if (format == OP_F32) return in * PANEL_OUTPUTS * 4;
  if (format == OP_BF16) return round_up(in, BF16_DEPTH) * PANEL_OUTPUTS * 2;
  const int64_t blocks = in / BLOCK, whole = blocks / group_blocks(format);
  const int64_t rest = blocks - whole * group_blocks(format);
  return whole * group_bytes(format) +
         round_up(rest * (quant_bytes(format) + scale_bytes(format)), LINE);
}

// Offsets inside a panel of `blocks` blocks; the last group may be short.
static constexpr int64_t quant_offset_of(int32_t format, int64_t block) {
  const int64_t group = block / group_blocks(format);
  return group * group_bytes(format) +
         (block - group * group_blocks(format)) * quant_bytes(format);
}

static constexpr int64_t scale_offset_of(int32_t format, int64_t block, int64_t blocks) {
  const int64_t size = group_blocks(format), group = block / size, first = group * size;
  const int64_t held = blocks - first < size ? blocks - first : size;
  return group * group_bytes(format) + held * quant_bytes(format) +
         (block - first) * scale_bytes(format);
}

// IEEE half precision to single, exactly.
static inline float from_half(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31;
  const uint32_t fraction = half & 0x3ff;
  if (exponent == 0) {
    const float magnitude = (float)fraction * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const uint32_t bits =
      sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | (fraction << 13);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace outpace::layout
