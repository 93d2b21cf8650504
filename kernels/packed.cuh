// Rows as the tensor cores read them: f16(scale * value), or a pair of bf16, upper and lower part, whose sum has 16 bits of
// mantissa.
//
// Row r is lane group r % 8 of group r / 8; a lane's piece of 16 bytes for one block of 32 numbers holds those that the lane owns
// of the weights (weight.cuh): 4 t .. 4 t + 4 and 16 + 4 t .. 16 + 4 t + 4. Numbers beyond the width are zero.
#pragma once

#include "walla.cuh"

struct PackedRef {
    uint8_t* rows;  // or null
    uint32_t segments;
    uint32_t lower_offset;  // bytes from the upper parts to the lower ones; 0: f16
    float scale;
    uint32_t reserved;
};
static_assert(sizeof(PackedRef) == 24, "as in params.rs");

// Byte offset of lane t's piece of block `block` of row r.
__device__ __forceinline__ size_t piece_of(uint32_t segments, uint32_t r, uint32_t block, uint32_t t) {
    const size_t piece = ((size_t(r / 8) * segments + block / 4) * 4 + block % 4) * 32 + r % 8 * 4 + t;
    return piece * 16;
}

// The largest half: beyond it only a lost row can be.
__device__ __forceinline__ float within_half(float value) { return fminf(fmaxf(value, -65504.0f), 65504.0f); }

__device__ __forceinline__ void store_packed(const PackedRef& p, uint32_t r, uint32_t k, float value) {
    value *= p.scale;
    uint8_t* at = p.rows + piece_of(p.segments, r, k / 32, k % 16 / 4) + k % 32 / 16 * 8 + k % 4 * 2;
    if (p.lower_offset) {
        const __nv_bfloat16 upper = __float2bfloat16_rn(value);
        *reinterpret_cast<__nv_bfloat16*>(at) = upper;
        *reinterpret_cast<__nv_bfloat16*>(at + p.lower_offset) = __float2bfloat16_rn(value - __bfloat162float(upper));
    } else {
        *reinterpret_cast<__half*>(at) = __float2half_rn(within_half(value));
    }
}
