// One vector of floats, as wide as the path has it. Every function is compiled once per path, in
// that path's namespace, so that no code made for one processor is ever linked into another's.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace outpace::OUTPACE_PATH {

#if defined(__AVX512F__)
using vf = __m512;
using vi = __m512i;
inline constexpr int LANES = 16;
static inline vf load(const float *p) { return _mm512_loadu_ps(p); }
static inline void store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf set1(float x) { return _mm512_set1_ps(x); }
static inline vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vround(vf a) { return _mm512_roundscale_ps(a, 0x08); }
static inline vf as_float(vi a) { return _mm512_castsi512_ps(a); }
static inline vi to_int(vf a) { return _mm512_cvtps_epi32(a); }
static inline vf to_float(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vi iset1(int32_t x) { return _mm512_set1_epi32(x); }
static inline vf load_bf16(const uint16_t *p) {
  return as_float(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
#elif defined(__AVX2__)
using vf = __m256;
using vi = __m256i;
inline constexpr int LANES = 8;
static inline vf load(const float *p) { return _mm256_loadu_ps(p); }
static inline void store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf set1(float x) { return _mm256_set1_ps(x); }
static inline vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vround(vf a) { return _mm256_round_ps(a, 0x08); }
static inline vf as_float(vi a) { return _mm256_castsi256_ps(a); }
static inline vi to_int(vf a) { return _mm256_cvtps_epi32(a); }
static inline vf to_float(vi a) { return _mm256_cvtepi32_ps(a); }
static inline vi iset1(int32_t x) { return _mm256_set1_epi32(x); }
static inline vf load_bf16(const uint16_t *p) {
  return as_float(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
#else
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
inline constexpr int LANES = 4;
static inline vf load(const float *p) { vf x; std::memcpy(&x, p, sizeof x); return x; }
static inline void store(float *p, vf x) { std::memcpy(p, &x, sizeof x); }
static inline vf set1(float x) { return vf{x, x, x, x}; }
static inline vf fma(vf a, vf b, vf c) { return a * b + c; }  // rounded twice: no such instruction
static inline vf vmax(vf a, vf b) { return a > b ? a : b; }
static inline vf vmin(vf a, vf b) { return a < b ? a : b; }
static inline vf vround(vf a) {
  const vf magic = set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to even; |a| < 2^22
  return (a + magic) - magic;
}
static inline vf as_float(vi a) { return (vf)a; }
static inline vi to_int(vf a) { return __builtin_convertvector(vround(a), vi); }
static inline vf to_float(vi a) { return __builtin_convertvector(a, vf); }
static inline vi iset1(int32_t x) { return vi{x, x, x, x}; }
static inline vf load_bf16(const uint16_t *p) {
  vi x = {p[0], p[1], p[2], p[3]};
  return as_float(x << 16);
}
#endif

// Round to nearest even; NaN stays NaN. The same on every path.
static inline uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

static inline float from_bf16(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Lanes added in order, first to last.
static inline float sum(vf x) {
  float lanes[LANES];
  store(lanes, x);
  float total = lanes[0];
  for (int i = 1; i < LANES; i++) total += lanes[i];
  return total;
}

}  // namespace outpace::OUTPACE_PATH
