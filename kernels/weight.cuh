// Weight matrices as `walla_cuda` repacks them at load (crates/walla_cuda/src/repack.rs): rows in tiles of 16, columns in
// segments of 128 (padded with zeros), each part of a block of 32 numbers in a plane of its own.
//
// In a tile and segment, lane `4 g + t` (g < 8, t < 4) owns of row `g`, and 32 places on of row `g + 8`, of each of the four blocks
// the numbers 4 t .. 4 t + 4 and 16 + 4 t .. 16 + 4 t + 4: 32 numbers in all, in that order. That is what the tensor cores want of
// it: two multiplications a block, the first over its numbers 0 .. 16. And every load of a warp is 512 bytes side by side.
//
// | type | quants (a lane's 32 numbers) | high (same) | scales (a row's block) | supers (a row's 256 numbers) |
// |---|---|---|---|---|
// | F32, F16, BF16 | the numbers | | | |
// | Q8_0 | bytes, excess 128 | | f16 d | |
// | Q4_0, Q4_1 | nibbles, a word a block | | f16 d; Q4_1: f16 d, m | |
// | Q5_0, Q5_1 | nibbles | u32 | f16 d; Q5_1: f16 d, m | |
// | Q4_K | nibbles | | u8 scale, u8 minimum | f16 d, dmin |
// | Q5_K | nibbles | u32 | u8 scale, u8 minimum | f16 d, dmin |
// | Q6_K | nibbles | 2 u32 | i8 of numbers 0..16, i8 of 16..32 | f16 d |
//
// Nibbles: nibble i of word j holds number 8 j + (0, 2, 4, 6, 1, 3, 5, 7)[i] of the lane, so that a mask leaves two neighbours in
// the two halves of a word. Fifth bits: bit i of the lower half belongs to number 2 i, of the upper half to 2 i + 1. Upper bit
// pairs: the same with bits 2 i and 2 i + 1, 16 numbers a word.
#pragma once

#include "walla.cuh"

enum WeightType : uint32_t { F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4K, Q5K, Q6K };

struct WeightRef {
    const uint8_t* quants;
    const uint8_t* high;
    const uint8_t* scales;
    const uint8_t* supers;
    uint32_t rows;
    uint32_t cols;  // a multiple of 128
    uint32_t type;
    uint32_t reserved;
};
static_assert(sizeof(WeightRef) == 48, "as in params.rs");

constexpr uint32_t TILE_ROWS = 16;
constexpr uint32_t SEGMENT = 128;

// Numbers that one 16-byte load of the quants brings.
__host__ __device__ constexpr uint32_t unit_numbers(uint32_t type) {
    return type == F32 ? 4 : type == F16 || type == BF16 ? 8 : type == Q8_0 ? 16 : 32;
}
__host__ __device__ constexpr bool has_fifths(uint32_t type) { return type == Q5_0 || type == Q5_1 || type == Q5K; }

// A number below 2^23 as a float, less `offset`: the magic 2^23 puts the integer into the mantissa.
__device__ __forceinline__ float integer(uint32_t bits, float offset) {
    return __uint_as_float(0x4B000000u | bits) - (8388608.0f + offset);
}

__device__ __forceinline__ float half_bits(uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// 16 bytes that are read once: they need no room in the first cache.
__device__ __forceinline__ uint4 load_once(const uint8_t* from) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
}

// A lane's 32 numbers of one row and segment, as they lie in memory.
template <uint32_t TYPE>
struct Block {
    static constexpr uint32_t PIECES = 32 / unit_numbers(TYPE);
    static constexpr bool HAS_MINIMUM = TYPE == Q4_1 || TYPE == Q5_1 || TYPE == Q4K || TYPE == Q5K;
    // Taken from every integer.
    static constexpr float OFFSET =
        TYPE == Q8_0 ? 128.0f : TYPE == Q4_0 ? 8.0f : TYPE == Q5_0 ? 16.0f : TYPE == Q6K ? 32.0f : 0.0f;
    uint4 quants[PIECES];
    uint32_t high[2];
    uint32_t scales[4];
    uint32_t supers;

    // Where the numbers of a lane's place (0..32 for the first eight rows of a tile, from 32 on for the others) lie; `next` goes on
    // by a segment.
    struct Cursor {
        const uint8_t* quants;
        const uint8_t* high;
        const uint8_t* scales;
        const uint8_t* supers;
        uint32_t segment;

        __device__ __forceinline__ void at(const WeightRef& w, uint32_t tile, uint32_t segment_, uint32_t place) {
            const size_t from = size_t(tile) * (w.cols / SEGMENT) + segment_;
            const size_t lanes = from * 64 + place;
            const size_t rows = place % 32 / 4 + place / 32 * 8;
            segment = segment_;
            quants = w.quants + (lanes / 32 * PIECES * 32 + lanes % 32) * 16;
            high = w.high + lanes * HIGH_BYTES;
            scales = w.scales + (from * TILE_ROWS + rows) * SCALE_BYTES;
            supers = w.supers + (size_t(tile) * ((w.cols + 255) / 256) * TILE_ROWS + rows) * SUPER_BYTES;
        }
        __device__ __forceinline__ void next() {
            quants += 2 * PIECES * 32 * 16;
            high += 64 * HIGH_BYTES;
            scales += TILE_ROWS * SCALE_BYTES;
            segment++;
        }
    };
    static constexpr uint32_t HIGH_BYTES = has_fifths(TYPE) ? 4 : TYPE == Q6K ? 8 : 0;
    static constexpr uint32_t SCALE_BYTES = TYPE == Q4_1 || TYPE == Q5_1 ? 16 : TYPE > BF16 ? 8 : 0;
    static constexpr uint32_t SUPER_BYTES = TYPE == Q4K || TYPE == Q5K ? 4 : TYPE == Q6K ? 2 : 0;

    // Issues the loads; whoever uses the numbers waits for them. `below` is 1 for the place 32 on from the cursor's.
    __device__ __forceinline__ void load(const Cursor& from, uint32_t below) {
#pragma unroll
        for (uint32_t i = 0; i < PIECES; i++) quants[i] = load_once(from.quants + (below * PIECES + i) * 512);
        if constexpr (HIGH_BYTES == 4)
            high[0] = __ldg(reinterpret_cast<const uint32_t*>(from.high + below * 32 * HIGH_BYTES));
        if constexpr (HIGH_BYTES == 8) {
            const uint2 both = __ldg(reinterpret_cast<const uint2*>(from.high + below * 32 * HIGH_BYTES));
            high[0] = both.x;
            high[1] = both.y;
        }
        const uint8_t* row = from.scales + below * 8 * SCALE_BYTES;
        if constexpr (SCALE_BYTES == 16) {
            const uint4 four = __ldg(reinterpret_cast<const uint4*>(row));
            scales[0] = four.x, scales[1] = four.y, scales[2] = four.z, scales[3] = four.w;
        } else if constexpr (SCALE_BYTES == 8) {
            const uint2 two = __ldg(reinterpret_cast<const uint2*>(row));
            scales[0] = two.x, scales[1] = two.y;
        }
        const uint8_t* super = from.supers + (from.segment / 2 * TILE_ROWS + below * 8) * SUPER_BYTES;
        if constexpr (SUPER_BYTES == 4) supers = __ldg(reinterpret_cast<const uint32_t*>(super));
        if constexpr (SUPER_BYTES == 2) supers = __ldg(reinterpret_cast<const uint16_t*>(super));
    }

    // Place `place` (0..64) of a tile and segment.
    __device__ __forceinline__ void load(const WeightRef& w, uint32_t tile, uint32_t segment, uint32_t place) {
        Cursor cursor;
        cursor.at(w, tile, segment, place);
        load(cursor, 0);
    }

    // Of block j of the segment: number = scale * (integer - OFFSET) + minimum; Q6_K has a scale for each half of the block.
    __device__ __forceinline__ void factors(uint32_t j, float& low, float& upper, float& minimum) const {
        minimum = 0.0f;
        if constexpr (TYPE == Q4_1 || TYPE == Q5_1) {
            low = upper = half_bits(scales[j] & 0xffffu);
            minimum = half_bits(scales[j] >> 16);
            return;
        }
        const uint32_t two = scales[j / 2] >> (16 * (j % 2)) & 0xffffu;
        if constexpr (TYPE == Q8_0 || TYPE == Q4_0 || TYPE == Q5_0) {
            low = upper = half_bits(two);
        } else if constexpr (TYPE == Q4K || TYPE == Q5K) {
            // Both bytes as halves at once: 1024 + byte, less 1024.
            const uint32_t biased = __byte_perm(scales[j / 2], 0x64646464u, j % 2 ? 0x4342 : 0x4140);
            const __half2 bytes = __hsub2(*reinterpret_cast<const __half2*>(&biased), __float2half2_rn(1024.0f));
            low = upper = half_bits(supers & 0xffffu) * __low2float(bytes);
            minimum = -half_bits(supers >> 16) * __high2float(bytes);
        } else if constexpr (TYPE == Q6K) {
            const float d = half_bits(supers);
            low = d * integer((two & 0xffu) ^ 0x80u, 128.0f);
            upper = d * integer((two >> 8) ^ 0x80u, 128.0f);
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
            if constexpr (has_fifths(TYPE))
                two |= (pair < 4 ? high[0] << (4 - pair) : high[0] >> (pair - 4)) & 0x00100010u;
            if constexpr (TYPE == Q6K) {
                const uint32_t bits = high[pair / 8];
                const uint32_t at = 2 * (pair % 8);
                two |= (at < 4 ? bits << (4 - at) : bits >> (at - 4)) & 0x00300030u;
            }
            return two;
        }
    }

    // What the tensor cores take for numbers 2 * p and 2 * p + 1: themselves, or 1024 + integer in f16, which is exact and costs
    // one instruction.
    __device__ __forceinline__ uint32_t halves(uint32_t p) const {
        if constexpr (TYPE == F16 || TYPE == BF16) return (&quants[p / 4].x)[p % 4];
        if constexpr (TYPE == Q8_0) {
            const uint32_t word = (&quants[p / 8].x)[p % 8 / 2];
            return __byte_perm(word, 0x64646464u, p % 2 ? 0x4342 : 0x4140);
        }
        return pair(p) | 0x64006400u;
    }

    // All 32 numbers in f32, exact.
    __device__ __forceinline__ void decode(float (&out)[32]) const {
        if constexpr (TYPE == F32) {
#pragma unroll
            for (int i = 0; i < 32; i++) out[i] = __uint_as_float((&quants[i / 4].x)[i % 4]);
        } else if constexpr (TYPE == F16 || TYPE == BF16) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                const uint32_t word = (&quants[i / 8].x)[i % 8 / 2];
                if constexpr (TYPE == F16)
                    out[i] = half_bits(i % 2 ? word >> 16 : word & 0xffffu);
                else
                    out[i] = __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
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
                    out[8 * j + i] = fmaf(i < 4 ? low : upper, integer(q, OFFSET), minimum);
                }
            }
        }
    }
};

// Place of lane `t` of a row in its tile and segment.
__device__ __forceinline__ uint32_t place_of(uint32_t row, uint32_t t) {
    return row % TILE_ROWS / 8 * 32 + row % 8 * 4 + t;
}

// Column, in its segment, of number i of lane t's 32.
__host__ __device__ constexpr uint32_t column_of(uint32_t t, uint32_t i) {
    return i / 8 * 32 + i % 8 / 4 * 16 + 4 * t + i % 4;
}

// Calls `f` with an empty block of the type.
template <typename F>
__device__ __forceinline__ void with_type(uint32_t type, F&& f) {
#define CASE(T) \
    case T: f(Block<T>{}); break;
    switch (type) {
        CASE(F32) CASE(F16) CASE(BF16) CASE(Q8_0) CASE(Q4_0) CASE(Q4_1) CASE(Q5_0) CASE(Q5_1) CASE(Q4K) CASE(Q5K)
        CASE(Q6K)
    }
#undef CASE
}
