// Sixteen lanes of float or int32, whatever the machine has: one set of operations, three implementations.
//
// Everything above this file is written once, on sixteen lanes, so the order in which numbers are added is the same
// on every machine. Implementations with fused multiply-add (AVX-512, AVX2, NEON) agree to the last bit.
//
//     Floats  load store splat zero + - * / fma max min is_finite, from half precision and back, to and from Ints;
//             max and min give their second argument where a lane of either is no number (NaN)
//     Ints    splat, exact dot products of int8 blocks (see below)
//
// A block is 32 inputs (k) of 16 outputs (lanes), as eight groups of four k, with the activations of R rows:
//
//     nibble weights  [4][16 lanes][4 k]   low half: group j, high half: group j + 4; values 0 to 15
//     byte weights    [8][16 lanes][4 k]   int8, offset by kByteOffset
//     activations     [8][R rows][4 k]     int8
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__clang__)
#define HEADRACE_UNROLL _Pragma("unroll")
#else
#define HEADRACE_UNROLL _Pragma("GCC unroll 16")
#endif

namespace headrace {

constexpr int kLanes = 16;
constexpr int kBlock = 32;   // inputs that share a scale
constexpr int kGroups = 8;   // of four inputs, in a block

}  // namespace headrace

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#include "vectors_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "vectors_avx2.h"
#else
#include "vectors_portable.h"
#endif
