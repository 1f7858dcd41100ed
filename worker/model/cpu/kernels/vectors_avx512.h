// Sixteen lanes in one register, dot products by VNNI (unsigned by signed bytes, so byte weights are offset by 128).
#pragma once

#include <immintrin.h>

#include <cstring>

namespace headrace {

constexpr const char* kInstructions = "avx512vnni";
constexpr int kMaxTileRows = 12;  // 12 sums, 12 dot products and the weights fill 32 registers
constexpr int kMaxQueries = 12;
constexpr int kByteOffset = 128;

struct Ints {
  __m512i lanes;
  static Ints splat(int32_t value) { return {_mm512_set1_epi32(value)}; }
};

struct Floats {
  __m512 lanes;
  static Floats zero() { return {_mm512_setzero_ps()}; }
  static Floats splat(float value) { return {_mm512_set1_ps(value)}; }
  static Floats load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static Floats load(const uint16_t* halves) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)))};
  }
  void store(float* to) const { _mm512_storeu_ps(to, lanes); }
  void store(uint16_t* halves) const {
    const __m256i rounded = _mm512_cvtps_ph(lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(halves), rounded);
  }
};

inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.lanes, b.lanes)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.lanes, b.lanes)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.lanes, b.lanes)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.lanes, b.lanes)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)}; }
inline Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.lanes, b.lanes)}; }
inline Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.lanes, b.lanes)}; }
inline Floats abs(Floats a) { return {_mm512_abs_ps(a.lanes)}; }
inline bool is_finite(Floats a) { return _mm512_fpclass_ps_mask(a.lanes, 0x99) == 0; }
inline Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.lanes)}; }
inline Ints round_to_ints(Floats a) { return {_mm512_cvtps_epi32(a.lanes)}; }

// 2 to the power of each lane, for -126 to 127.
inline Floats power_of_two(Ints a) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(a.lanes, _mm512_set1_epi32(127)), 23))};
}

// Of neighbouring lanes (2i, 2i + 1): exchanged, both the first, both the second.
inline Floats swap_pairs(Floats a) { return {_mm512_permute_ps(a.lanes, 0xB1)}; }
inline Floats first_of_pairs(Floats a) { return {_mm512_moveldup_ps(a.lanes)}; }
inline Floats second_of_pairs(Floats a) { return {_mm512_movehdup_ps(a.lanes)}; }

// Lane i with lane i + 8, then i + 4, i + 2, i + 1: the same tree everywhere.
inline float sum(Floats a) {
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.lanes), 1));
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.lanes), high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float max_of(Floats a) { return _mm512_reduce_max_ps(a.lanes); }
inline int32_t sum(Ints a) { return _mm512_reduce_add_epi32(a.lanes); }
inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.lanes, b.lanes)}; }
template <int kBits>
inline Ints shifted(Ints a) {
  return {_mm512_slli_epi32(a.lanes, kBits)};
}
inline void store_bytes(Ints a, int8_t* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(a.lanes));
}

inline __m512i four_inputs(const int8_t* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof word);
  return _mm512_set1_epi32(word);
}

template <int R>
inline void add_nibble_dots(const uint8_t* weights, const int8_t* activations, Ints* dots) {
  const __m512i mask = _mm512_set1_epi8(15);
  HEADRACE_UNROLL
  for (int j = 0; j < kGroups / 2; ++j) {
    const __m512i both = _mm512_loadu_si512(weights + 64 * j);
    const __m512i low = _mm512_and_si512(both, mask);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r)
      dots[r].lanes = _mm512_dpbusd_epi32(dots[r].lanes, low, four_inputs(activations + 4 * (j * R + r)));
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r)
      dots[r].lanes = _mm512_dpbusd_epi32(dots[r].lanes, high, four_inputs(activations + 4 * ((j + 4) * R + r)));
  }
}

template <int R>
inline void add_byte_dots(const uint8_t* weights, const int8_t* activations, Ints* dots) {
  HEADRACE_UNROLL
  for (int j = 0; j < kGroups; ++j) {
    const __m512i group = _mm512_loadu_si512(weights + 64 * j);
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r)
      dots[r].lanes = _mm512_dpbusd_epi32(dots[r].lanes, group, four_inputs(activations + 4 * (j * R + r)));
  }
}

}  // namespace headrace
