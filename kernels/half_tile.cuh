// Weights on their way from a record (weight.cuh) to the tensor cores: eight rows of 128 columns, a lane's share of them, as f16.
#pragma once

#include "tensor.cuh"
#include "weight.cuh"

__device__ __forceinline__ __half2 as_half2(uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); }
__device__ __forceinline__ uint32_t as_bits(__half2 two) { return *reinterpret_cast<const uint32_t*>(&two); }
__device__ __forceinline__ __half2 both(float value) { return __float2half2_rn(value); }

// (a & mask) | c in one instruction, which takes c from a register.
template <uint32_t MASK>
__device__ __forceinline__ uint32_t mask_or(uint32_t a, uint32_t c) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "n"(MASK), "r"(c));
    return d;
}

// Eight of W's rows (half a tile) in a segment of 128 columns: a record (weight.cuh), and what a lane needs of it.
template <uint32_t TYPE>
struct HalfTile {
    using Planes = Record<TYPE>;
    // The lane's 32 numbers of row lane / 4, and that row's scales.
    uint4 quants[Planes::PIECES];
    uint32_t high[2];
    uint32_t scales[4];
    __half2 supers;

    __device__ __forceinline__ void load(const uint8_t* from, uint32_t lane) {
        const uint32_t row = lane / 4;
#pragma unroll
        for (uint32_t i = 0; i < Planes::PIECES; i++)
            quants[i] = *reinterpret_cast<const uint4*>(from + (i * 32 + lane) * 16);
        if constexpr (Planes::HIGH == 128) high[0] = reinterpret_cast<const uint32_t*>(from + Planes::HIGH_AT)[lane];
        if constexpr (Planes::HIGH == 256) {
            const uint2 two = reinterpret_cast<const uint2*>(from + Planes::HIGH_AT)[lane];
            high[0] = two.x, high[1] = two.y;
        }
        if constexpr (Planes::SCALES == 64) {
            const uint2 two = reinterpret_cast<const uint2*>(from + Planes::SCALES_AT)[row];
            scales[0] = two.x, scales[1] = two.y;
        }
        if constexpr (Planes::SCALES == 128) {
            const uint4 four = reinterpret_cast<const uint4*>(from + Planes::SCALES_AT)[row];
            scales[0] = four.x, scales[1] = four.y, scales[2] = four.z, scales[3] = four.w;
        }
        if constexpr (Planes::SUPERS == 32) supers = reinterpret_cast<const __half2*>(from + Planes::SUPERS_AT)[row];
        if constexpr (Planes::SUPERS == 16) supers = __half2half2(reinterpret_cast<const __half*>(from + Planes::SUPERS_AT)[row]);
    }

    // The factors of block j: scale (of its two halves) and minimum, each twice.
    struct Factors {
        __half2 scale[2];
        __half2 minimum;
    };
    __device__ __forceinline__ Factors factors(uint32_t j) const {
        Factors f;
        f.minimum = both(0.0f);
        if constexpr (TYPE == Q4_1 || TYPE == Q5_1) {
            const __half2 two = as_half2(scales[j]);
            f.scale[0] = f.scale[1] = __low2half2(two);
            f.minimum = __high2half2(two);
        } else if constexpr (TYPE == Q8_0 || TYPE == Q4_0 || TYPE == Q5_0) {
            const __half2 two = as_half2(scales[j / 2]);
            f.scale[0] = f.scale[1] = j % 2 ? __high2half2(two) : __low2half2(two);
        } else if constexpr (TYPE == Q4K || TYPE == Q5K) {
            // Both bytes as halves at once: 1024 + byte, less 1024.
            const __half2 bytes = __hsub2(as_half2(__byte_perm(scales[j / 2], 0x64646464u, j % 2 ? 0x4342 : 0x4140)), both(1024.0f));
            const __half2 two = __hmul2(supers, bytes);
            f.scale[0] = f.scale[1] = __low2half2(two);
            f.minimum = __hneg2(__high2half2(two));
        } else if constexpr (TYPE == Q6K) {
            const uint32_t biased = scales[j / 2] ^ 0x80808080u;
            const __half2 bytes = __hsub2(as_half2(__byte_perm(biased, 0x64646464u, j % 2 ? 0x4342 : 0x4140)), both(1152.0f));
            const __half2 two = __hmul2(supers, bytes);
            f.scale[0] = __low2half2(two);
            f.scale[1] = __high2half2(two);
        }
        return f;
    }

    // Numbers 2 p and 2 p + 1 of block j's eight, as the tensor cores take them. `thousand` is 0x64006400, in a register.
    __device__ __forceinline__ uint32_t halves(uint32_t j, uint32_t p, const Factors& f, uint32_t thousand) const {
        if constexpr (TYPE == F16) return (&quants[j].x)[p];
        // The integers, exact: a mask puts them under the exponent of 1024; those four bits up come as 16 times themselves.
        __half2 q;
        if constexpr (TYPE == Q8_0) {
            const uint32_t word = (&quants[j / 2].x)[j % 2 * 2 + p / 2];
            q = __hsub2(as_half2(__byte_perm(word, thousand, p % 2 ? 0x5352 : 0x5150)), both(1024.0f + 128.0f));
        } else {
            constexpr float offset = Planes::OFFSET;
            const uint32_t word = (&quants[0].x)[j] >> (p / 2 * 8);
            const uint32_t up = p % 2 * 4;
            uint32_t bits = up ? mask_or<0x00f000f0u>(word, thousand) : mask_or<0x000f000fu>(word, thousand);
            if constexpr (has_fifths(TYPE)) {
                const int at = int(4 + up) - int(4 * j + p);
                const uint32_t fifths = at >= 0 ? high[0] << at : high[0] >> -at;
                bits = up ? mask_or<0x01000100u>(fifths, bits) : mask_or<0x00100010u>(fifths, bits);
            }
            if constexpr (TYPE == Q6K) {
                const int at = int(4 + up) - int(2 * (4 * (j % 2) + p));
                const uint32_t pairs = at >= 0 ? high[j / 2] << at : high[j / 2] >> -at;
                bits = up ? mask_or<0x03000300u>(pairs, bits) : mask_or<0x00300030u>(pairs, bits);
            }
            q = up ? __hfma2(as_half2(bits), both(0.0625f), both(-64.0f - offset)) : __hsub2(as_half2(bits), both(1024.0f + offset));
        }
        const __half2 scale = f.scale[p / 2];
        return as_bits(Planes::HAS_MINIMUM ? __hfma2(q, scale, f.minimum) : __hmul2(q, scale));
    }
};

// Block j of a tile's segment as the tensor cores take it: multiplication, register.
template <uint32_t TYPE>
__device__ __forceinline__ void unpack(uint32_t (&a)[2][4], const HalfTile<TYPE> (&w)[2], uint32_t j, uint32_t thousand) {
    const typename HalfTile<TYPE>::Factors f[2] = {w[0].factors(j), w[1].factors(j)};
#pragma unroll
    for (uint32_t k = 0; k < 2; k++)
#pragma unroll
        for (uint32_t h = 0; h < 4; h++) a[k][h] = w[h % 2].halves(j, 2 * k + h / 2, f[h % 2], thousand);
}
