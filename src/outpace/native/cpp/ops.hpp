// Functions of a row: exponential and what follows from it, norms, rotations.
//
// A value's result depends on the value alone, whatever its lane and whatever stands beside it, and
// a row's on the row alone.
#pragma once

#include "model.hpp"
#include "simd.hpp"

namespace outpace::OUTPACE_PATH {

typedef uint32_t vu __attribute__((vector_size(LANES * sizeof(float))));

static inline vf load_part(const float *p, int count) {
  float lanes[LANES] = {};
  for (int i = 0; i < count; i++) lanes[i] = p[i];
  return load(lanes);
}

static inline void store_part(float *p, vf x, int count) {
  float lanes[LANES];
  store(lanes, x);
  for (int i = 0; i < count; i++) p[i] = lanes[i];
}

// count: how many values are left; no more than a vector of them is touched.
static inline vf load_some(const float *p, int count) {
  return count >= LANES ? load(p) : load_part(p, count);
}

static inline void store_some(float *p, vf x, int count) {
  if (count >= LANES)
    store(p, x);
  else
    store_part(p, x, count);
}

// e^x to 1 ulp for -87.3 <= x <= 88.3; 0 below, e^88.3 above; NaN stays NaN. x = n ln 2 + r, e^r by a
// polynomial (minimax on |r| <= ln 2 / 2).
static inline vf vexp(vf x) {
  const vf low = set1(-87.3f);
  // The second operand is what both return where one is NaN.
  const vf clamped = vmin(set1(88.3f), vmax(low, x));
  const vf n = vround(clamped * set1(1.44269504f));
  vf r = fma(n, set1(-0.693359375f), clamped);
  r = fma(n, set1(2.12194440e-4f), r);
  vf p = fma(r, set1(1.3814467e-3f), set1(8.3687808e-3f));
  p = fma(p, r, set1(4.1668393e-2f));
  p = fma(p, r, set1(1.6666520e-1f));
  p = fma(p, r, set1(0.5f));
  p = fma(p * r, r, r) + set1(1.0f);
  const vu power = ((vu)to_int(n) + 127u) << 23;
  return x < low ? set1(0.0f) : p * (vf)power;
}

// tanh: odd polynomial near 0 (minimax on |x| <= 0.625), else by e^2x.
static inline vf vtanh(vf x) {
  const vf z = x * x;
  vf p = fma(z, set1(-5.7049873e-3f), set1(2.0639088e-2f));
  p = fma(p, z, set1(-5.3739715e-2f));
  p = fma(p, z, set1(1.3331441e-1f));
  p = fma(p, z, set1(-3.3333281e-1f));
  const vf near = fma(p * z, x, x);
  const vf far = set1(1.0f) - set1(2.0f) / (vexp(x + x) + set1(1.0f));
  return z < set1(0.390625f) ? near : far;
}

static inline vf silu(vf x) { return x / (set1(1.0f) + vexp(-x)); }

// x times the normal distribution function, which for -a <= 0 is e^-G(a), G by a polynomial (least
// largest error of a e^-G(a) on 0 <= a <= 5.5, 1e-8; beyond, the function counts as 0).
static inline vf gelu(vf x) {
  const vf a = x < set1(0.0f) ? -x : x;
  vf g = fma(a, set1(-2.9025969e-7f), set1(5.6949984e-6f));
  g = fma(g, a, set1(-4.6547422e-5f));
  g = fma(g, a, set1(1.8047783e-4f));
  g = fma(g, a, set1(1.8599132e-5f));
  g = fma(g, a, set1(-4.8332731e-3f));
  g = fma(g, a, set1(3.6360878e-2f));
  g = fma(g, a, set1(3.1830382e-1f));
  g = fma(g, a, set1(7.9788512e-1f));
  g = fma(g, a, set1(6.9314718e-1f));
  const vf tail = a > set1(5.5f) ? set1(0.0f) : vexp(-g);
  return x < set1(0.0f) ? x * tail : x * (set1(1.0f) - tail);
}

// 0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
static inline vf gelu_tanh(vf x) {
  const vf u = x * fma(x * x, set1(0.044715f), set1(1.0f)) * set1(0.79788456f);
  return x / (set1(1.0f) + vexp(set1(-2.0f) * u));
}

static inline vf activate(int activation, vf x) {
  if (activation == OP_SILU) return silu(x);
  return activation == OP_GELU ? gelu(x) : gelu_tanh(x);
}

// inner = act(gate) * up, gate and up side by side in runs of 16.
static inline void gate_run(int activation, const float *gate_up, float *inner) {
  for (int i = 0; i < BLOCK; i += LANES)
    store(inner + i, activate(activation, load(gate_up + i)) * load(gate_up + BLOCK + i));
}

static inline void activate_run(int activation, const float *up, float *inner) {
  for (int i = 0; i < BLOCK; i += LANES) store(inner + i, activate(activation, load(up + i)));
}

// c tanh(x / c) in place.
static inline void cap(float c, float *x, int64_t n) {
  const vf limit = set1(c), inverse = set1(1.0f / c);
  for (int64_t i = 0; i < n; i += LANES) {
    const int count = n - i < LANES ? (int)(n - i) : LANES;
    store_some(x + i, limit * vtanh(load_some(x + i, count) * inverse), count);
  }
}

static inline float sum_of(const float *x, int n) {
  vf total[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  for (int i = 0, k = 0; i < n; i += LANES, k = (k + 1) % 4)
    total[k] = total[k] + load_some(x + i, n - i);
  return sum((total[0] + total[1]) + (total[2] + total[3]));
}

// Sum of (x - mean)^2.
static inline float sum_of_squares(const float *x, int n, float mean) {
  vf total[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  int i = 0;
  for (int k = 0; i + LANES <= n; i += LANES, k = (k + 1) % 4) {
    const vf d = load(x + i) - set1(mean);
    total[k] = fma(d, d, total[k]);
  }
  float rest = 0.0f;
  for (; i < n; i++) rest += (x[i] - mean) * (x[i] - mean);
  return sum((total[0] + total[1]) + (total[2] + total[3])) + rest;
}

// y = w x / sqrt(mean(x^2) + eps) (RMSNorm, 1910.07467), or w (x - mean) / sqrt(var + eps) + b
// (LayerNorm, 1607.06450); y may be x.
static inline void norm_row(int kind, const op_norm &norm, float eps, int n, const float *x,
                            float *y) {
  const float mean = kind == OP_NORM_LAYER ? sum_of(x, n) / n : 0.0f;
  const float scale = 1.0f / __builtin_sqrtf(sum_of_squares(x, n, mean) / n + eps);
  for (int i = 0; i < n; i += LANES) {
    const vf unit = (load_some(x + i, n - i) - set1(mean)) * set1(scale);
    const vf weight = load_some(norm.weight + i, n - i);
    const vf bias = norm.bias ? load_some(norm.bias + i, n - i) : set1(0.0f);
    store_some(y + i, fma(unit, weight, bias), n - i);
  }
}

// Turn the pairs (i, i + half) of one head by the angles of its position (RoFormer, 2104.09864).
static inline void rotate(const Rope &rope, int position, float *head) {
  const float *cos = rope.cos + (int64_t)position * rope.half;
  const float *sin = rope.sin + (int64_t)position * rope.half;
  for (int i = 0; i < rope.half; i += LANES) {
    const int count = rope.half - i;
    float *low = head + i, *high = head + rope.half + i;
    const vf a = load_some(low, count), b = load_some(high, count);
    const vf c = load_some(cos + i, count), s = load_some(sin + i, count);
    store_some(low, fma(a, c, -(b * s)), count);
    store_some(high, fma(b, c, a * s), count);
  }
}

// Where the greatest of n values exceeds `best`: the index of the first of its kind, and `best`
// becomes it. Else -1. NaN exceeds nothing.
static inline int first_greatest(const float *x, int n, float &best) {
  vf lanes = set1(best);
  int i = 0;
  for (; i + LANES <= n; i += LANES) lanes = vmax(load(x + i), lanes);
  float greatest = best, values[LANES];
  store(values, lanes);
  for (float value : values) greatest = value > greatest ? value : greatest;
  for (; i < n; i++) greatest = x[i] > greatest ? x[i] : greatest;
  if (!(greatest > best)) return -1;
  best = greatest;
  for (i = 0; x[i] != greatest; i++) {
  }
  return i;
}

// One token's key or value head to its slot.
static inline void write_cache(const op_cache &cache, unsigned char *head, int slot, bool is_key,
                               const float *x) {
  const int64_t keys = cache.key_channels * cache.capacity;
  const bool wide = cache.kv_type == OP_KV_F32;
  // Where channel 0 lies, counted in elements, and how far apart channels are (key pairs in bfloat16:
  // two neighbours, then a block further).
  const int64_t first = is_key ? slot / BLOCK * BLOCK * cache.key_channels + slot % BLOCK * (wide ? 1 : 2)
                               : keys + slot * cache.value_channels;
  for (int c = 0; c < cache.head_dim; c++) {
    const int64_t channel = !is_key ? c : wide ? (int64_t)c * BLOCK : (int64_t)(c / 2) * 2 * BLOCK + c % 2;
    if (wide)
      ((float *)head)[first + channel] = x[c];
    else
      ((uint16_t *)head)[first + channel] = to_bf16(x[c]);
  }
}

}  // namespace outpace::OUTPACE_PATH
