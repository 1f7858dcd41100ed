// Sixteen lanes in two registers, dot products by multiplying bytes to 16-bit sums that cannot overflow.
#pragma once

#include <immintrin.h>

#include <cstring>

namespace headrace {

constexpr const char* kInstructions = "avx2";
constexpr int kMaxTileRows = 4;
constexpr int kMaxQueries = 4;
constexpr int kByteOffset = 0;

struct Ints {
  __m256i low, high;
  static Ints splat(int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
};

struct Floats {
  __m256 low, high;
  static Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Floats splat(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static Floats load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  static Floats load(const uint16_t* halves) {
    const __m128i* from = reinterpret_cast<const __m128i*>(halves);
    return {_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from + 1))};
  }
  void store(float* to) const {
    _mm256_storeu_ps(to, low);
    _mm256_storeu_ps(to + 8, high);
  }
  void store(uint16_t* halves) const {
    __m128i* to = reinterpret_cast<__m128i*>(halves);
    _mm_storeu_si128(to, _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(to + 1, _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

inline Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Floats fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Floats abs(Floats a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
inline bool is_finite(Floats a) {
  const __m256 infinity = _mm256_castsi256_ps(_mm256_set1_epi32(0x7F800000));
  const Floats size = abs(a);
  const __m256 both = _mm256_and_ps(_mm256_cmp_ps(size.low, infinity, _CMP_LT_OQ),
                                    _mm256_cmp_ps(size.high, infinity, _CMP_LT_OQ));
  return _mm256_movemask_ps(both) == 0xFF;
}
inline Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
inline Ints round_to_ints(Floats a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }

// 2 to the power of each lane, for -126 to 127.
inline __m256 power_of_two(__m256i a) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(a, _mm256_set1_epi32(127)), 23));
}
inline Floats power_of_two(Ints a) { return {power_of_two(a.low), power_of_two(a.high)}; }

// Of neighbouring lanes (2i, 2i + 1): exchanged, both the first, both the second.
inline Floats swap_pairs(Floats a) { return {_mm256_permute_ps(a.low, 0xB1), _mm256_permute_ps(a.high, 0xB1)}; }
inline Floats first_of_pairs(Floats a) { return {_mm256_moveldup_ps(a.low), _mm256_moveldup_ps(a.high)}; }
inline Floats second_of_pairs(Floats a) { return {_mm256_movehdup_ps(a.low), _mm256_movehdup_ps(a.high)}; }

// Lane i with lane i + 8, then i + 4, i + 2, i + 1: the same tree everywhere.
inline float sum(Floats a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float max_of(Floats a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline int32_t sum(Ints a) {
  const __m256i eight = _mm256_add_epi32(a.low, a.high);
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}
inline Ints operator+(Ints a, Ints b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
template <int kBits>
inline Ints shifted(Ints a) {
  return {_mm256_slli_epi32(a.low, kBits), _mm256_slli_epi32(a.high, kBits)};
}
inline void store_bytes(Ints a, int8_t* to) {
  const __m256i words = _mm256_packs_epi32(a.low, a.high);  // lanes 0-3 8-11 4-7 12-15
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xD8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

inline __m256i four_inputs(const int8_t* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof word);
  return _mm256_set1_epi32(word);
}
inline __m256i load_bytes(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// 15 * 128 * 2 a group: eight groups stay below 2^15.
template <int R>
inline void add_nibble_dots(const uint8_t* weights, const int8_t* activations, Ints* dots) {
  const __m256i mask = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  __m256i low[R], high[R];
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) low[r] = high[r] = _mm256_setzero_si256();
  HEADRACE_UNROLL
  for (int group = 0; group < kGroups; ++group) {
    __m256i first = load_bytes(weights + 64 * (group % 4)), second = load_bytes(weights + 64 * (group % 4) + 32);
    if (group >= 4) {
      first = _mm256_srli_epi16(first, 4);
      second = _mm256_srli_epi16(second, 4);
    }
    first = _mm256_and_si256(first, mask);
    second = _mm256_and_si256(second, mask);
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256i inputs = four_inputs(activations + 4 * (group * R + r));
      low[r] = _mm256_add_epi16(low[r], _mm256_maddubs_epi16(first, inputs));
      high[r] = _mm256_add_epi16(high[r], _mm256_maddubs_epi16(second, inputs));
    }
  }
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    dots[r].low = _mm256_add_epi32(dots[r].low, _mm256_madd_epi16(low[r], ones));
    dots[r].high = _mm256_add_epi32(dots[r].high, _mm256_madd_epi16(high[r], ones));
  }
}

// The instruction wants one side unsigned: the weight's sign moves to the activation. 128 * 127 * 2 < 2^15.
inline __m256i signed_dots(__m256i weights, __m256i inputs) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(inputs, weights));
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

template <int R>
inline void add_byte_dots(const uint8_t* weights, const int8_t* activations, Ints* dots) {
  HEADRACE_UNROLL
  for (int j = 0; j < kGroups; ++j) {
    const __m256i low = load_bytes(weights + 64 * j), high = load_bytes(weights + 64 * j + 32);
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256i inputs = four_inputs(activations + 4 * (j * R + r));
      dots[r].low = _mm256_add_epi32(dots[r].low, signed_dots(low, inputs));
      dots[r].high = _mm256_add_epi32(dots[r].high, signed_dots(high, inputs));
    }
  }
}

}  // namespace headrace
