// Weight matrices as `walla_cuda` repacks them at load (crates/walla_cuda/src/repack/): each part of a row in a plane of its
// own, so that a warp's loads are whole 16-byte pieces side by side.
//
// | type | quants (a row) | high (32 numbers) | scales (32 numbers) | supers (256 numbers) |
// |---|---|---|---|---|
// | F32, F16, BF16 | the numbers, padded with zeros to 32 | | | |
// | Q8_0 | i8 | | f16 d | |
// | Q4_0, Q4_1 | nibbles | | f16 d; Q4_1: f16 d, m | |
// | Q5_0, Q5_1 | nibbles | u32, bit i of number i | f16 d; Q5_1: f16 d, m | |
// | Q4_K | nibbles | | u8 scale, u8 minimum | f16 d, dmin |
// | Q5_K | nibbles | u32, bit i of number i | u8 scale, u8 minimum | f16 d, dmin |
// | Q6_K | nibbles | 2 u32, bits 2i and 2i + 1 of number i mod 16 | i8 of numbers 0..16, i8 of 16..32 | f16 d |
//
// Nibbles: byte i of the 16 bytes of 32 numbers holds number i below and number i + 16 above.
#pragma once

#include "walla.cuh"

enum WeightType : uint32_t { F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4K, Q5K, Q6K };

struct WeightRef {
    const uint8_t* quants;
    const uint8_t* high;
    const uint8_t* scales;
    const uint8_t* supers;
    uint32_t rows;
    uint32_t cols;  // a multiple of 32
    uint32_t type;
    uint32_t reserved;
};
static_assert(sizeof(WeightRef) == 48, "as in params.rs");

// Numbers that one 16-byte load of the quants brings.
__host__ __device__ constexpr uint32_t unit_numbers(uint32_t type) {
    return type == F32 ? 4 : type == F16 || type == BF16 ? 8 : type == Q8_0 ? 16 : 32;
}

// A number below 2^23 as a float, less `offset`: the magic 2^23 puts the integer into the mantissa.
__device__ __forceinline__ float integer(uint32_t bits, float offset) {
    return __uint_as_float(0x4B000000u | bits) - (8388608.0f + offset);
}

__device__ __forceinline__ float half_bits(uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// Unit `unit` of row `row`: `unit_numbers(TYPE)` consecutive numbers.
template <uint32_t TYPE>
struct Unit {
    static constexpr uint32_t NUMBERS = unit_numbers(TYPE);
    uint4 quants;
    uint32_t high[2];
    uint32_t scales;
    uint32_t supers;

    // Issues the loads; `decode` waits for them.
    __device__ __forceinline__ void load(const WeightRef& w, uint32_t row, uint32_t unit) {
        const size_t units = w.cols / NUMBERS;
        quants = __ldg(reinterpret_cast<const uint4*>(w.quants) + row * units + unit);
        if constexpr (TYPE == F32 || TYPE == F16 || TYPE == BF16) return;
        const size_t block = row * size_t(w.cols / 32) + (TYPE == Q8_0 ? unit / 2 : unit);
        if constexpr (TYPE == Q8_0 || TYPE == Q4_0 || TYPE == Q5_0 || TYPE == Q4K || TYPE == Q5K || TYPE == Q6K)
            scales = __ldg(reinterpret_cast<const uint16_t*>(w.scales) + block);
        if constexpr (TYPE == Q4_1 || TYPE == Q5_1)
            scales = __ldg(reinterpret_cast<const uint32_t*>(w.scales) + block);
        if constexpr (TYPE == Q5_0 || TYPE == Q5_1 || TYPE == Q5K)
            high[0] = __ldg(reinterpret_cast<const uint32_t*>(w.high) + block);
        if constexpr (TYPE == Q6K) {
            const uint2 both = __ldg(reinterpret_cast<const uint2*>(w.high) + block);
            high[0] = both.x;
            high[1] = both.y;
        }
        const size_t super = row * size_t(w.cols / 256) + unit / 8;
        if constexpr (TYPE == Q4K || TYPE == Q5K)
            supers = __ldg(reinterpret_cast<const uint32_t*>(w.supers) + super);
        if constexpr (TYPE == Q6K) supers = __ldg(reinterpret_cast<const uint16_t*>(w.supers) + super);
    }

    __device__ __forceinline__ void decode(float (&out)[NUMBERS]) const {
        const uint32_t words[4] = {quants.x, quants.y, quants.z, quants.w};
        if constexpr (TYPE == F32) {
#pragma unroll
            for (int i = 0; i < 4; i++) out[i] = __uint_as_float(words[i]);
        } else if constexpr (TYPE == F16) {
#pragma unroll
            for (int i = 0; i < 8; i++) out[i] = half_bits(words[i / 2] >> (16 * (i % 2)) & 0xffffu);
        } else if constexpr (TYPE == BF16) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                out[i] = __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
        } else if constexpr (TYPE == Q8_0) {
            const float d = half_bits(scales);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                // Excess 128, so that the byte is a plain integer.
                const uint32_t q = (words[i / 4] ^ 0x80808080u) >> (8 * (i % 4)) & 0xffu;
                out[i] = d * integer(q, 128.0f);
            }
        } else {
            float scale_low, scale_high, minimum, offset;
            blocks(scale_low, scale_high, minimum, offset);
#pragma unroll
            for (int i = 0; i < 32; i++) {
                uint32_t q = words[i % 16 / 4] >> (8 * (i % 4) + (i < 16 ? 0 : 4)) & 15u;
                if constexpr (TYPE == Q5_0 || TYPE == Q5_1 || TYPE == Q5K) q |= (high[0] >> i & 1u) << 4;
                if constexpr (TYPE == Q6K) q |= (high[i / 16] >> (2 * (i % 16)) & 3u) << 4;
                const float scale = i < 16 ? scale_low : scale_high;
                out[i] = fmaf(scale, integer(q, offset), minimum);
            }
        }
    }

  private:
    // The scales of numbers 0..16 and 16..32, what is added, and the offset of the integers.
    __device__ __forceinline__ void blocks(float& low, float& high_, float& minimum, float& offset) const {
        minimum = 0.0f;
        offset = 0.0f;
        if constexpr (TYPE == Q4_0 || TYPE == Q5_0) {
            low = high_ = half_bits(scales);
            offset = TYPE == Q4_0 ? 8.0f : 16.0f;
        } else if constexpr (TYPE == Q4_1 || TYPE == Q5_1) {
            low = high_ = half_bits(scales & 0xffffu);
            minimum = half_bits(scales >> 16);
        } else if constexpr (TYPE == Q4K || TYPE == Q5K) {
            low = high_ = half_bits(supers & 0xffffu) * float(scales & 0xffu);
            minimum = -(half_bits(supers >> 16) * float(scales >> 8));
        } else if constexpr (TYPE == Q6K) {
            const float d = half_bits(supers);
            low = d * float(static_cast<int8_t>(scales & 0xffu));
            high_ = d * float(static_cast<int8_t>(scales >> 8));
            offset = 32.0f;
        }
    }
};

// Calls `f` with the type as a constant.
template <typename F>
__device__ __forceinline__ void with_type(uint32_t type, F&& f) {
#define CASE(T) \
    case T: f(Unit<T>{}); break;
    switch (type) {
        CASE(F32) CASE(F16) CASE(BF16) CASE(Q8_0) CASE(Q4_0) CASE(Q4_1) CASE(Q5_0) CASE(Q5_1) CASE(Q4K) CASE(Q5K)
        CASE(Q6K)
    }
#undef CASE
}
