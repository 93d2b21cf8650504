// Rows as the tensor cores read them: f16(scale * value).
//
// Row r is lane group r % 8 of group r / 8: [groups, blocks of 32, rows of the group, 4 pieces]. A lane's piece of 16 bytes for one block of 32 numbers holds those that the lane owns
// of the weights (weight.cuh): 4 t .. 4 t + 4 and 16 + 4 t .. 16 + 4 t + 4. Numbers beyond the width are zero.
#pragma once

#include "walla.cuh"

struct PackedRef {
    uint8_t* rows;  // or null
    uint32_t segments;
    float scale;
    uint32_t group_rows;  // rows that a group has room for: 8, or all rows if they are fewer
    uint32_t reserved;
};
static_assert(sizeof(PackedRef) == 24, "as in params.rs");

// Byte offset of lane t's piece of block `block` of row r.
__device__ __forceinline__ size_t piece_of(const PackedRef& p, uint32_t r, uint32_t block, uint32_t t) {
    const size_t piece = (size_t(r / 8) * p.segments * 4 + block) * (p.group_rows * 4) + r % 8 * 4 + t;
    return piece * 16;
}

// The largest half: beyond it only a lost row can be.
__device__ __forceinline__ float within_half(float value) { return fminf(fmaxf(value, -65504.0f), 65504.0f); }

__device__ __forceinline__ uint32_t two_halves(float a, float b) {
    const __half2 two = __floats2half2_rn(within_half(a), within_half(b));
    return *reinterpret_cast<const uint32_t*>(&two);
}

__device__ __forceinline__ void store_packed(const PackedRef& p, uint32_t r, uint32_t k, float value) {
    uint8_t* at = p.rows + piece_of(p, r, k / 32, k % 16 / 4) + k % 32 / 16 * 8 + k % 4 * 2;
    *reinterpret_cast<__half*>(at) = __float2half_rn(within_half(value * p.scale));
}

// Four neighbours, from a column that is a multiple of four.
__device__ __forceinline__ void store_packed(const PackedRef& p, uint32_t r, uint32_t k, const float (&values)[4]) {
    uint8_t* at = p.rows + piece_of(p, r, k / 32, k % 16 / 4) + k % 32 / 16 * 8;
    *reinterpret_cast<uint2*>(at) = make_uint2(two_halves(values[0] * p.scale, values[1] * p.scale),
                                               two_halves(values[2] * p.scale, values[3] * p.scale));
}
