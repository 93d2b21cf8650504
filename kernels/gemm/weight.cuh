// Weight matrices as `walla_cuda` repacks them at load (crates/walla_cuda/src/repack.rs): rows in
// tiles of 16, columns in segments of 128 (padded with zeros). A record is half a tile, 8 rows, of
// one segment. All data that a warp needs of it is contiguous, so one bulk copy loads it. The
// records of a half tile are consecutive, followed by the records of the other half, then the next
// tile.
//
// Lane `4 g + t` (g < 8, t < 4) owns, in row `g` of the record and in each of its four blocks of
// 32, the numbers 4 t .. 4 t + 4 and 16 + 4 t .. 16 + 4 t + 4: 32 numbers in all, in that order.
// This is the tensor cores' operand layout: two mma per block, the first over its numbers 0 .. 16.
//
// The parts of a record, in order:
//
// | type | quants (a lane's 32) | high (same) | scales (row, block) | supers (row, 256 numbers) |
// |---|---|---|---|---|
// | F32, F16 | the numbers | | | |
// | Q8_0 | bytes, excess 128 | | f16 d | |
// | Q4_0, Q4_1 | nibbles, one word per block | | f16 d; Q4_1: f16 d, m | |
// | Q5_0, Q5_1 | nibbles | u32 | f16 d; Q5_1: f16 d, m | |
// | Q6_K | nibbles | 2 u32 | i8 of numbers 0..16, i8 of 16..32, excess 128 | f16 d |
//
// Q4_K and Q5_K are stored as Q4_1 and Q5_1: the scale is d times the integer of a block's scale,
// rounded to f16. The minimum is minus dmin times the integer of its minimum, and compensates for
// the scale's rounding.
// Numbers are divided by a power of two of the whole matrix (`scale`, exact). Therefore BF16
// becomes F16, exact except for numbers more than 2^29 below the largest, and quantised numbers are
// INTEGER_UNIT times their integers with scales (d) in f16's upper range. Minimums (m) are stored
// MINIMUM_UNIT / INTEGER_UNIT = 16 times smaller than scales, so that they fit f16.
//
// Nibbles: nibble i of word j holds number 8 j + (0, 2, 4, 6, 1, 3, 5, 7)[i] of the lane, so that a
// mask leaves two neighbours in the two halves of a word. High bits (the fifth, or the fifth and
// sixth; of 32 or of 16 numbers per word): the bits of number 2 i are in the lower half, the bits
// of 2 i + 1 at the same position of the upper half, see `high_place`. The quants of a record are
// pieces of 16 bytes, piece i of all lanes before piece i + 1.
#pragma once

#include "common/walla.cuh"

enum WeightType : uint32_t { F32, F16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q6K };

struct WeightRef {
    const uint8_t* records;
    uint32_t rows;
    uint32_t cols; // a multiple of 128
    uint32_t type;
    float scale; // of all numbers of the matrix
};
static_assert(sizeof(WeightRef) == 24, "as in params.rs");

constexpr float INTEGER_UNIT = 0x1p-24f, MINIMUM_UNIT = 0x1p-20f;
constexpr uint32_t TILE_ROWS = 16;
constexpr uint32_t SEGMENT = 128;

// Numbers per 16-byte load of the quants.
__host__ __device__ constexpr uint32_t unit_numbers(uint32_t type) {
    return type == F32 ? 4 : type == F16 ? 8 : type == Q8_0 ? 16 : 32;
}
__host__ __device__ constexpr bool has_fifths(uint32_t type) {
    return type == Q5_0 || type == Q5_1;
}

// Position of a pair's high bits in each half of its word. The bits of an odd pair are four above
// the bits of the previous pair, as are their nibbles: one shift aligns both.
template <uint32_t TYPE>
__host__ __device__ constexpr int high_place(uint32_t pair) {
    return has_fifths(TYPE) ? int(pair / 8 * 8 + pair % 2 * 4 + pair % 8 / 2)
                            : int(pair % 8 / 4 * 8 + pair % 2 * 4 + pair % 4 / 2 * 2);
}

// Mask of a pair's high bits after that shift.
template <uint32_t TYPE>
constexpr uint32_t HIGH_BITS = TYPE == Q6K ? 0x00300030u : 0x00100010u;
// Word with a pair's high bits, shifted to just above nibbles in the lowest bits.
template <uint32_t TYPE>
__device__ __forceinline__ uint32_t high_of(const uint32_t (&high)[2], uint32_t pair) {
    const uint32_t word = high[TYPE == Q6K ? pair / 8 : 0];
    const int up = 4 - high_place<TYPE>(pair);
    return up >= 0 ? word << up : word >> -up;
}

// An integer below 2^23 as a float, minus `offset`: the magic 2^23 places the integer in the
// mantissa.
__device__ __forceinline__ float integer(uint32_t bits, float offset) {
    return __uint_as_float(0x4B000000u | bits) - (8388608.0f + offset);
}

__device__ __forceinline__ float half_bits(uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// Sizes and offsets of a record's parts, in bytes.
template <uint32_t TYPE>
struct Record {
    static constexpr uint32_t PIECES = 32 / unit_numbers(TYPE);
    static constexpr bool HAS_MINIMUM = TYPE == Q4_1 || TYPE == Q5_1;
    // Subtracted from every integer.
    static constexpr float OFFSET = TYPE == Q8_0   ? 128.0f
                                    : TYPE == Q4_0 ? 8.0f
                                    : TYPE == Q5_0 ? 16.0f
                                    : TYPE == Q6K  ? 32.0f
                                                   : 0.0f;
    static constexpr uint32_t HIGH = 32 * (has_fifths(TYPE) ? 4 : TYPE == Q6K ? 8 : 0);
    static constexpr uint32_t SCALES = 8 * (TYPE == Q4_1 || TYPE == Q5_1 ? 16 : TYPE > F16 ? 8 : 0);
    static constexpr uint32_t SUPERS = 8 * (TYPE == Q6K ? 2 : 0);
    static constexpr uint32_t HIGH_AT = 512 * PIECES;
    static constexpr uint32_t SCALES_AT = HIGH_AT + HIGH;
    static constexpr uint32_t SUPERS_AT = SCALES_AT + SCALES;
    static constexpr uint32_t BYTES = SUPERS_AT + SUPERS;
};

// A lane's 32 numbers of one row and segment, in storage format.
template <uint32_t TYPE>
struct LaneNumbers : Record<TYPE> {
    using R = Record<TYPE>;
    uint4 quants[R::PIECES];
    uint32_t high[2];
    uint32_t scales[4];
    uint32_t supers;

    // Loads the numbers of lane t in row `row` of the matrix.
    __device__ __forceinline__ void load(const WeightRef& w, uint32_t row, uint32_t segment,
                                         uint32_t t) {
        const uint32_t tile = row / TILE_ROWS, half = row % TILE_ROWS / 8, g = row % 8;
        const uint8_t* record =
            w.records + (size_t(tile * 2 + half) * (w.cols / SEGMENT) + segment) * R::BYTES;
#pragma unroll
        for (uint32_t i = 0; i < R::PIECES; i++)
            quants[i] = __ldg(reinterpret_cast<const uint4*>(record + (i * 32 + g * 4 + t) * 16));
#pragma unroll
        for (uint32_t i = 0; i < R::HIGH / 128; i++)
            high[i] = __ldg(reinterpret_cast<const uint32_t*>(record + R::HIGH_AT) +
                            (g * 4 + t) * (R::HIGH / 128) + i);
#pragma unroll
        for (uint32_t i = 0; i < R::SCALES / 32; i++)
            scales[i] = __ldg(reinterpret_cast<const uint32_t*>(record + R::SCALES_AT) +
                              g * (R::SCALES / 32) + i);
        if constexpr (R::SUPERS == 16)
            supers = __ldg(reinterpret_cast<const uint16_t*>(record + R::SUPERS_AT) + g);
    }

    // Factors of block j of the segment: number = factor * (integer - OFFSET) + minimum; Q6_K has
    // one scale per half block.
    __device__ __forceinline__ void factors(uint32_t j, float& low, float& upper,
                                            float& minimum) const {
        minimum = 0.0f;
        if constexpr (TYPE == Q4_1 || TYPE == Q5_1) {
            low = upper = half_bits(scales[j] & 0xffffu) * INTEGER_UNIT;
            minimum = half_bits(scales[j] >> 16) * MINIMUM_UNIT;
            return;
        }
        const uint32_t two = scales[j / 2] >> (16 * (j % 2)) & 0xffffu;
        if constexpr (TYPE == Q8_0 || TYPE == Q4_0 || TYPE == Q5_0) {
            low = upper = half_bits(two) * INTEGER_UNIT;
        } else if constexpr (TYPE == Q6K) {
            const float d = half_bits(supers) * INTEGER_UNIT;
            low = d * integer(two & 0xffu, 128.0f);
            upper = d * integer(two >> 8, 128.0f);
        }
    }

    // Integers of numbers 2 * pair and 2 * pair + 1 in the lower and the upper half of a word.
    __device__ __forceinline__ uint32_t pair(uint32_t pair) const {
        if constexpr (TYPE == Q8_0) {
            const uint32_t word = (&quants[pair / 8].x)[pair % 8 / 2];
            return __byte_perm(word, 0, pair % 2 ? 0x4342 : 0x4140);
        } else {
            const uint32_t word = (&quants[0].x)[pair / 4];
            uint32_t two = word >> (4 * (pair % 4)) & 0x000f000fu;
            if constexpr (R::HIGH > 0)
                two |= high_of<TYPE>(high, pair) & HIGH_BITS<TYPE>;
            return two;
        }
    }

    // All 32 numbers in f32, exact.
    __device__ __forceinline__ void decode(float (&out)[32]) const {
        if constexpr (TYPE == F32) {
#pragma unroll
            for (int i = 0; i < 32; i++)
                out[i] = __uint_as_float((&quants[i / 4].x)[i % 4]);
        } else if constexpr (TYPE == F16) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                const uint32_t word = (&quants[i / 8].x)[i % 8 / 2];
                out[i] = half_bits(i % 2 ? word >> 16 : word & 0xffffu);
            }
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float low, upper, minimum;
                factors(j, low, upper, minimum);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const uint32_t two = pair(4 * j + i / 2);
                    const uint32_t q = i % 2 ? two >> 16 : two & 0xffffu;
                    out[8 * j + i] = fmaf(i < 4 ? low : upper, integer(q, R::OFFSET), minimum);
                }
            }
        }
    }
};

// Column within the segment of number i of lane t's 32.
__host__ __device__ constexpr uint32_t column_of(uint32_t t, uint32_t i) {
    return i / 8 * 32 + i % 8 / 4 * 16 + 4 * t + i % 4;
}

// Calls `f` with an empty `LaneNumbers` of the type.
template <typename F>
__device__ __forceinline__ void with_type(uint32_t type, F&& f) {
#define CASE(T)              \
    case T:                  \
        f(LaneNumbers<T>{}); \
        break;
    switch (type) {
        CASE(F32) CASE(F16) CASE(Q8_0) CASE(Q4_0) CASE(Q4_1) CASE(Q5_0) CASE(Q5_1) CASE(Q6K)
    }
#undef CASE
}
