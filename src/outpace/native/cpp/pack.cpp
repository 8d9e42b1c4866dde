// Packing weights into panels, and reading one row back. The layout is described in linear_layout.hpp.

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "linear_layout.hpp"
#include "outpace_native.h"

namespace outpace {
namespace {

using namespace layout;

__attribute__((format(printf, 2, 3))) int32_t fail(char *error, const char *message, ...) {
  if (error) {
    va_list values;
    va_start(values, message);
    std::vsnprintf(error, OP_ERROR_BYTES, message, values);
    va_end(values);
  }
  return -1;
}

template <class T>
T read(const uint8_t *from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

struct Source {
  int32_t format, out, in;
  const uint8_t *data;

  // GGUF block `block` of output `o`.
  const uint8_t *block(int64_t o, int64_t block) const {
    const int64_t bytes = format == OP_Q8_0 ? 34 : format == OP_Q4_1 ? 20 : 18;
    return data + (o * (in / BLOCK) + block) * bytes;
  }
};

void pack_f32(const Source &source, int64_t panel, int lanes, uint8_t *packed) {
  float *to = (float *)packed;
  for (int lane = 0; lane < lanes; lane++) {
    const float *from = (const float *)source.data + (panel * PANEL_OUTPUTS + lane) * source.in;
    for (int64_t k = 0; k < source.in; k++) to[k * PANEL_OUTPUTS + lane] = from[k];
  }
}

void pack_bf16(const Source &source, int64_t panel, int lanes, uint8_t *packed) {
  uint16_t *to = (uint16_t *)packed;
  for (int lane = 0; lane < lanes; lane++) {
    const uint16_t *from = (const uint16_t *)source.data + (panel * PANEL_OUTPUTS + lane) * source.in;
    for (int64_t k = 0; k < source.in; k++)
      to[((k >> 1) * PANEL_OUTPUTS + lane) * 2 + (k & 1)] = from[k];
  }
}

// One block of 32 of one output: 4-bit quants q[j] and q[j + 16] share byte j in GGUF.
void pack_nibbles(const uint8_t *from, int lane, uint8_t *quants) {
  for (int word = 0; word < BLOCK / 8; word++) {
    uint32_t bits = 0;
    for (int i = 0; i < 8; i++) {
      const int k = word * 8 + i;
      const uint32_t q = k < 16 ? from[k] & 15 : from[k - 16] >> 4;
      bits |= q << (4 * nibble_of(i));
    }
    std::memcpy(quants + (word * PANEL_OUTPUTS + lane) * 4, &bits, 4);
  }
}

void pack_bytes(const uint8_t *from, int lane, uint8_t *quants) {
  for (int k = 0; k < BLOCK; k++)
    quants[((k / 4) * PANEL_OUTPUTS + lane) * 4 + byte_of(k % 4)] = from[k] ^ 0x80;
}

void pack_blocks(const Source &source, int64_t panel, int lanes, uint8_t *packed) {
  const int64_t blocks = source.in / BLOCK;
  const int halves = scale_bytes(source.format) / 32;
  for (int lane = 0; lane < lanes; lane++) {
    for (int64_t b = 0; b < blocks; b++) {
      const uint8_t *from = source.block(panel * PANEL_OUTPUTS + lane, b);
      uint8_t *scales = packed + scale_offset_of(source.format, b, blocks);
      for (int i = 0; i < halves; i++) std::memcpy(scales + i * 32 + lane * 2, from + i * 2, 2);
      uint8_t *quants = packed + quant_offset_of(source.format, b);
      if (source.format == OP_Q8_0)
        pack_bytes(from + 2, lane, quants);
      else
        pack_nibbles(from + halves * 2, lane, quants);
    }
  }
}

void pack_panel(const Source &source, int64_t panel, int lanes, uint8_t *packed) {
  if (source.format == OP_F32)
    pack_f32(source, panel, lanes, packed);
  else if (source.format == OP_BF16)
    pack_bf16(source, panel, lanes, packed);
  else
    pack_blocks(source, panel, lanes, packed);
}

void unpack_blocks(const op_linear &linear, const uint8_t *panel, int lane, float *values) {
  const int64_t blocks = linear.in / BLOCK;
  const float offset = (float)quant_offset(linear.format);
  for (int64_t b = 0; b < blocks; b++) {
    const uint8_t *scales = panel + scale_offset_of(linear.format, b, blocks) + lane * 2;
    const uint8_t *quants = panel + quant_offset_of(linear.format, b) + lane * 4;
    const float scale = from_half(read<uint16_t>(scales));
    const float minimum = linear.format == OP_Q4_1 ? from_half(read<uint16_t>(scales + 32)) : 0.0f;
    for (int k = 0; k < BLOCK; k++) {
      uint32_t q;
      if (linear.format == OP_Q8_0)
        q = quants[k / 4 * LINE + byte_of(k % 4)];
      else
        q = read<uint32_t>(quants + k / 8 * LINE) >> (4 * nibble_of(k % 8)) & 15;
      values[b * BLOCK + k] = scale * ((float)q - offset) + minimum;
    }
  }
}

}  // namespace
}  // namespace outpace

using namespace outpace;

int64_t op_packed_bytes(int32_t format, int32_t out, int32_t in, char *error) {
  if (format < OP_F32 || format > OP_Q8_0)
    return fail(error, "unknown weight format %d; known are %d to %d", format, OP_F32, OP_Q8_0);
  if (out < 1 || in < 1)
    return fail(error, "a weight matrix of %d outputs and %d inputs; it needs at least one of each",
                out, in);
  if (is_packed(format) && in % BLOCK != 0)
    return fail(error,
                "a matrix of %d inputs cannot be kept in 4 or 8 bits: blocks are 32 inputs long; use "
                "float32 or bfloat16",
                in);
  return panels(out) * panel_bytes(format, in);
}

int32_t op_pack(int32_t format, int32_t out, int32_t in, const void *source, void *packed,
                char *error) {
  const int64_t bytes = op_packed_bytes(format, out, in, error);
  if (bytes < 0) return -1;
  if (!source || !packed) return fail(error, "packing needs a source and a target buffer");
  const Source from = {format, out, in, (const uint8_t *)source};
  const int64_t stride = panel_bytes(format, in);
  for (int64_t panel = 0; panel < panels(out); panel++) {
    uint8_t *to = (uint8_t *)packed + panel * stride;
    const int64_t left = out - panel * PANEL_OUTPUTS;
    std::memset(to, 0, (size_t)stride);
    pack_panel(from, panel, left < PANEL_OUTPUTS ? (int)left : PANEL_OUTPUTS, to);
  }
  return 0;
}

void op_unpack_row(const op_linear *linear, int32_t row, float *values) {
  const int64_t stride = panel_bytes(linear->format, linear->in);
  const uint8_t *panel = (const uint8_t *)linear->data + row / PANEL_OUTPUTS * stride;
  const int lane = row % PANEL_OUTPUTS;
  if (is_packed(linear->format)) {
    unpack_blocks(*linear, panel, lane, values);
    return;
  }
  for (int64_t k = 0; k < linear->in; k++) {
    if (linear->format == OP_F32) {
      values[k] = ((const float *)panel)[k * PANEL_OUTPUTS + lane];
    } else {
      const uint32_t bits =
          (uint32_t)((const uint16_t *)panel)[((k >> 1) * PANEL_OUTPUTS + lane) * 2 + (k & 1)] << 16;
      std::memcpy(values + k, &bits, 4);
    }
  }
}
