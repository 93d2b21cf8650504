// Weights from a record (weight.cuh) to f16 operands of the tensor cores: a lane's share of eight
// rows of 128 columns.
#pragma once

#include "common/mma.cuh"
#include "gemm/weight.cuh"

__device__ __forceinline__ __half2 as_half2(uint32_t bits) {
    return *reinterpret_cast<const __half2*>(&bits);
}
__device__ __forceinline__ uint32_t as_bits(__half2 two) {
    return *reinterpret_cast<const uint32_t*>(&two);
}
__device__ __forceinline__ __half2 both(float value) {
    return __float2half2_rn(value);
}

// A lane's share of half a tile, eight rows of W in a segment of 128 columns: one record
// (weight.cuh).
template <uint32_t TYPE>
struct HalfTile {
    using Record = ::Record<TYPE>;
    // The lane's 32 numbers of row lane / 4, and that row's scales.
    uint4 quants[Record::PIECES];
    uint32_t high[2];
    uint32_t scales[4];
    __half2 supers;

    __device__ __forceinline__ void load(const uint8_t* from, uint32_t lane) {
        const uint32_t row = lane / 4;
#pragma unroll
        for (uint32_t i = 0; i < Record::PIECES; i++)
            quants[i] = *reinterpret_cast<const uint4*>(from + (i * 32 + lane) * 16);
        if constexpr (Record::HIGH == 128)
            high[0] = reinterpret_cast<const uint32_t*>(from + Record::HIGH_AT)[lane];
        if constexpr (Record::HIGH == 256) {
            const uint2 two = reinterpret_cast<const uint2*>(from + Record::HIGH_AT)[lane];
            high[0] = two.x, high[1] = two.y;
        }
        if constexpr (Record::SCALES == 64) {
            const uint2 two = reinterpret_cast<const uint2*>(from + Record::SCALES_AT)[row];
            scales[0] = two.x, scales[1] = two.y;
        }
        if constexpr (Record::SCALES == 128) {
            const uint4 four = reinterpret_cast<const uint4*>(from + Record::SCALES_AT)[row];
            scales[0] = four.x, scales[1] = four.y, scales[2] = four.z, scales[3] = four.w;
        }
        if constexpr (Record::SUPERS == 16)
            supers = __half2half2(reinterpret_cast<const __half*>(from + Record::SUPERS_AT)[row]);
    }

    // Factors of block j's numbers 0 .. 16 and 16 .. 32, each twice: scale of integers in the
    // lowest bits of a half, scale of integers four bits up, and the addend.
    struct Factors {
        __half2 scale[2][2];
        __half2 minimum[2];
    };
    __device__ __forceinline__ Factors factors(uint32_t j) const {
        Factors f;
        if constexpr (TYPE == F16)
            return f;
        if constexpr (Record::HAS_MINIMUM) {
            const __half2 two = as_half2(scales[j]),
                          small = __hmul2(two, __floats2half2_rn(0x1p-4f, MINIMUM_UNIT));
            f.scale[0][0] = f.scale[1][0] = __low2half2(two);
            f.scale[0][1] = f.scale[1][1] = __low2half2(small);
            f.minimum[0] = f.minimum[1] = __high2half2(small);
        } else {
            // Scales of blocks j and j + 1, or of the two halves of block j.
            __half2 two;
            if constexpr (TYPE == Q6K) {
                // Both bytes as halves at once: 1024 + byte, minus 1024 and the excess.
                const __half2 bytes = __hsub2(
                    as_half2(__byte_perm(scales[j / 2], 0x64646464u, j % 2 ? 0x4342 : 0x4140)),
                    both(1152.0f));
                two = __hmul2(supers, bytes);
            } else {
                two = as_half2(scales[j / 2]);
            }
            const __half2 small = __hmul2(two, both(0x1p-4f)),
                          minimum = __hmul2(two, both(-Record::OFFSET * INTEGER_UNIT));
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                const bool high = TYPE == Q6K ? half : j % 2;
                f.scale[half][0] = high ? __high2half2(two) : __low2half2(two);
                f.scale[half][1] = high ? __high2half2(small) : __low2half2(small);
                f.minimum[half] = high ? __high2half2(minimum) : __low2half2(minimum);
            }
        }
        return f;
    }

    // Numbers 2 p and 2 p + 1 of block j's eight, as an operand of the tensor cores.
    __device__ __forceinline__ uint32_t halves(uint32_t j, uint32_t p, const Factors& f) const {
        if constexpr (TYPE == F16)
            return (&quants[j].x)[p];
        // An integer below 1024 is a subnormal half, exactly 2^-24 times itself: a mask suffices.
        uint32_t bits;
        uint32_t up = 0; // position of the integer's lowest bit
        if constexpr (TYPE == Q8_0) {
            const uint32_t word = (&quants[j / 2].x)[j % 2 * 2 + p / 2];
            bits = __byte_perm(word, 0, p % 2 ? 0x4342 : 0x4140);
        } else {
            const uint32_t word = (&quants[0].x)[j] >> (p / 2 * 8);
            up = p % 2 * 4;
            bits = word & (0x000f000fu << up);
            if constexpr (Record::HIGH > 0)
                bits |= high_of<TYPE>(high, 4 * j + p / 2 * 2) & HIGH_BITS<TYPE> << up;
        }
        return as_bits(__hfma2(as_half2(bits), f.scale[p / 2][up / 4], f.minimum[p / 2]));
    }
};

// Block j of a tile's segment as operands of the tensor cores: [mma][register].
template <uint32_t TYPE>
__device__ __forceinline__ void unpack(uint32_t (&a)[2][4], const HalfTile<TYPE> (&w)[2],
                                       uint32_t j) {
    const typename HalfTile<TYPE>::Factors f[2] = {w[0].factors(j), w[1].factors(j)};
#pragma unroll
    for (uint32_t k = 0; k < 2; k++)
#pragma unroll
        for (uint32_t h = 0; h < 4; h++)
            a[k][h] = w[h % 2].halves(j, 2 * k + h / 2, f[h % 2]);
}
