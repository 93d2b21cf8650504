// Rows of x in the tensor cores' operand layout: f16(scale * value).
//
// Rows are in groups of 8, columns in pieces of 8: [groups, pieces, rows of the group, 16 bytes].
// In groups of 8 rows a piece is 128 bytes, a core matrix as ldmatrix and wgmma read it. A piece's
// columns are not neighbours: the weights' lane t (weight.cuh) owns columns 4 t .. 4 t + 4 and 16 +
// 4 t .. 16 + 4 t + 4 of a block of 32, and product m of a block's two takes columns 16 m .. 16 m +
// 16. Piece 4 * block + 2 * m + h holds columns 16 m + 4 t + 2 h and the next of its block, for t =
// 0 .. 4: k = 8 h .. 8 h + 8 of the product. One ldmatrix therefore loads the four pieces of a
// block for all lanes. Numbers beyond the width are zero.
#pragma once

#include "common/walla.cuh"

struct PackedRef {
    uint8_t* rows; // or null
    uint32_t segments;
    float scale;
    uint32_t group_rows; // capacity of a group in rows: 8, or all rows if there are fewer
    uint32_t reserved;
};
static_assert(sizeof(PackedRef) == 24, "as in params.rs");

// Stride between pieces of a row, in bytes.
__device__ __forceinline__ uint32_t piece_stride(const PackedRef& p) {
    return p.group_rows * 16;
}

// Byte offset of a piece of row r.
__device__ __forceinline__ size_t piece_of(const PackedRef& p, uint32_t r, uint32_t piece) {
    return (size_t(r / 8) * p.segments * 16 + piece) * piece_stride(p) + r % 8 * 16;
}

// Byte offset of an even column and its neighbour in row r.
__device__ __forceinline__ size_t packed_offset(const PackedRef& p, uint32_t r, uint32_t k) {
    return piece_of(p, r, k / 16 * 2 + k % 4 / 2) + k % 16 / 4 * 4;
}

// Finite numbers saturate at the largest half. Other numbers become NaN (zero times them), so that
// a row that is not finite stays so up to its logits.
__device__ __forceinline__ float clamp_to_half(float value) {
    return fmaf(value, 0.0f, fminf(fmaxf(value, -65504.0f), 65504.0f));
}

__device__ __forceinline__ uint32_t two_halves(float a, float b) {
    const __half2 two = __floats2half2_rn(clamp_to_half(a), clamp_to_half(b));
    return *reinterpret_cast<const uint32_t*>(&two);
}

__device__ __forceinline__ void store_packed(const PackedRef& p, uint32_t r, uint32_t k,
                                             float value) {
    uint8_t* at = p.rows + packed_offset(p, r, k) + k % 2 * 2;
    *reinterpret_cast<__half*>(at) = __float2half_rn(clamp_to_half(value * p.scale));
}

// Four neighbours, from a column that is a multiple of four.
__device__ __forceinline__ void store_packed(const PackedRef& p, uint32_t r, uint32_t k,
                                             const float (&values)[4]) {
    uint8_t* at = p.rows + packed_offset(p, r, k);
    *reinterpret_cast<uint32_t*>(at) = two_halves(values[0] * p.scale, values[1] * p.scale);
    *reinterpret_cast<uint32_t*>(at + piece_stride(p)) =
        two_halves(values[2] * p.scale, values[3] * p.scale);
}
