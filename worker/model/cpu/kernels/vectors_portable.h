// Sixteen lanes as an array, in plain loops that a compiler may turn into whatever the machine has.
#pragma once

#include <cmath>
#include <cstring>

namespace headrace {

constexpr const char* kInstructions = "portable";
constexpr int kMaxTileRows = 4;
constexpr int kMaxQueries = 4;
constexpr int kByteOffset = 0;

inline float widened(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, magnitude = half & 0x7FFF;
  float value;
  if (magnitude >= 0x0400) {
    const uint32_t bits = (magnitude << 13) + (magnitude < 0x7C00 ? (127 - 15) << 23 : 0x70000000);
    std::memcpy(&value, &bits, sizeof value);
  } else {
    value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // 2^-24
  }
  return sign ? -value : value;
}

inline uint16_t narrowed(float value) {  // to nearest, ties to even; not for infinities
  if (std::isnan(value)) return 0x7E00;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const float size = std::fabs(value);
  if (size < 6.103515625e-5f) return sign | static_cast<uint16_t>(std::nearbyint(size * 16777216.0f));
  std::memcpy(&bits, &size, sizeof bits);
  bits += 0xFFF + ((bits >> 13) & 1);
  return sign | static_cast<uint16_t>((bits >> 13) - ((127 - 15) << 10));
}

struct Ints {
  int32_t lanes[kLanes];
  static Ints splat(int32_t value) {
    Ints result;
    for (int i = 0; i < kLanes; ++i) result.lanes[i] = value;
    return result;
  }
};

struct Floats {
  float lanes[kLanes];
  static Floats splat(float value) {
    Floats result;
    for (int i = 0; i < kLanes; ++i) result.lanes[i] = value;
    return result;
  }
  static Floats zero() { return splat(0.0f); }
  static Floats load(const float* from) {
    Floats result;
    std::memcpy(result.lanes, from, sizeof result.lanes);
    return result;
  }
  static Floats load(const uint16_t* halves) {
    Floats result;
    for (int i = 0; i < kLanes; ++i) result.lanes[i] = widened(halves[i]);
    return result;
  }
  void store(float* to) const { std::memcpy(to, lanes, sizeof lanes); }
  void store(uint16_t* halves) const {
    for (int i = 0; i < kLanes; ++i) halves[i] = narrowed(lanes[i]);
  }
};

template <class Function>
inline Floats each_lane(Function function) {
  Floats result;
  for (int i = 0; i < kLanes; ++i) result.lanes[i] = function(i);
  return result;
}

inline float fused(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;  // rounds twice: a machine without the instruction has no other way that is fast
#endif
}

inline Floats operator+(Floats a, Floats b) { return each_lane([&](int i) { return a.lanes[i] + b.lanes[i]; }); }
inline Floats operator-(Floats a, Floats b) { return each_lane([&](int i) { return a.lanes[i] - b.lanes[i]; }); }
inline Floats operator*(Floats a, Floats b) { return each_lane([&](int i) { return a.lanes[i] * b.lanes[i]; }); }
inline Floats operator/(Floats a, Floats b) { return each_lane([&](int i) { return a.lanes[i] / b.lanes[i]; }); }
inline Floats fma(Floats a, Floats b, Floats c) {
  return each_lane([&](int i) { return fused(a.lanes[i], b.lanes[i], c.lanes[i]); });
}
inline Floats max(Floats a, Floats b) {
  return each_lane([&](int i) { return a.lanes[i] > b.lanes[i] ? a.lanes[i] : b.lanes[i]; });
}
inline Floats min(Floats a, Floats b) {
  return each_lane([&](int i) { return a.lanes[i] < b.lanes[i] ? a.lanes[i] : b.lanes[i]; });
}
inline Floats abs(Floats a) { return each_lane([&](int i) { return std::fabs(a.lanes[i]); }); }
inline bool is_finite(Floats a) {
  bool all = true;
  for (int i = 0; i < kLanes; ++i) all = all && std::isfinite(a.lanes[i]);
  return all;
}
inline Floats to_floats(Ints a) { return each_lane([&](int i) { return static_cast<float>(a.lanes[i]); }); }

inline Ints round_to_ints(Floats a) {
  Ints result;
  for (int i = 0; i < kLanes; ++i) result.lanes[i] = static_cast<int32_t>(std::nearbyint(a.lanes[i]));
  return result;
}

// 2 to the power of each lane, for -126 to 127.
inline Floats power_of_two(Ints a) {
  Floats result;
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t bits = static_cast<uint32_t>(a.lanes[i] + 127) << 23;
    std::memcpy(&result.lanes[i], &bits, sizeof bits);
  }
  return result;
}

// Of neighbouring lanes (2i, 2i + 1): exchanged, both the first, both the second.
inline Floats swap_pairs(Floats a) { return each_lane([&](int i) { return a.lanes[i ^ 1]; }); }
inline Floats first_of_pairs(Floats a) { return each_lane([&](int i) { return a.lanes[i & ~1]; }); }
inline Floats second_of_pairs(Floats a) { return each_lane([&](int i) { return a.lanes[i | 1]; }); }

// Lane i with lane i + 8, then i + 4, i + 2, i + 1: the same tree everywhere.
inline float sum(Floats a) {
  for (int half = kLanes / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) a.lanes[i] += a.lanes[i + half];
  return a.lanes[0];
}
inline float max_of(Floats a) {
  for (int half = kLanes / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) a.lanes[i] = a.lanes[i] > a.lanes[i + half] ? a.lanes[i] : a.lanes[i + half];
  return a.lanes[0];
}
inline int32_t sum(Ints a) {
  int32_t total = 0;
  for (int i = 0; i < kLanes; ++i) total += a.lanes[i];
  return total;
}
inline Ints operator+(Ints a, Ints b) {
  for (int i = 0; i < kLanes; ++i) a.lanes[i] += b.lanes[i];
  return a;
}
template <int kBits>
inline Ints shifted(Ints a) {
  for (int i = 0; i < kLanes; ++i) a.lanes[i] *= 1 << kBits;
  return a;
}
inline void store_bytes(Ints a, int8_t* to) {
  for (int i = 0; i < kLanes; ++i) to[i] = static_cast<int8_t>(a.lanes[i] > 127 ? 127 : a.lanes[i] < -128 ? -128 : a.lanes[i]);
}

inline int32_t dot_of_four(int32_t a, int32_t b, int32_t c, int32_t d, const int8_t* inputs) {
  return a * inputs[0] + b * inputs[1] + c * inputs[2] + d * inputs[3];
}

template <int R>
inline void add_nibble_dots(const uint8_t* weights, const int8_t* activations, Ints* dots) {
  for (int j = 0; j < kGroups / 2; ++j, weights += 64) {
    for (int r = 0; r < R; ++r) {
      const int8_t *low = activations + 4 * (j * R + r), *high = activations + 4 * ((j + 4) * R + r);
      for (int i = 0; i < kLanes; ++i) {
        const uint8_t* w = weights + 4 * i;
        dots[r].lanes[i] += dot_of_four(w[0] & 15, w[1] & 15, w[2] & 15, w[3] & 15, low);
        dots[r].lanes[i] += dot_of_four(w[0] >> 4, w[1] >> 4, w[2] >> 4, w[3] >> 4, high);
      }
    }
  }
}

template <int R>
inline void add_byte_dots(const uint8_t* weights, const int8_t* activations, Ints* dots) {
  const int8_t* signed_weights = reinterpret_cast<const int8_t*>(weights);
  for (int j = 0; j < kGroups; ++j, signed_weights += 64) {
    for (int r = 0; r < R; ++r) {
      const int8_t* inputs = activations + 4 * (j * R + r);
      for (int i = 0; i < kLanes; ++i) {
        const int8_t* w = signed_weights + 4 * i;
        dots[r].lanes[i] += dot_of_four(w[0], w[1], w[2], w[3], inputs);
      }
    }
  }
}

}  // namespace headrace
