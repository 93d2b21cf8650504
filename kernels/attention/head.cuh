// Head norm, then RoPE, of one head's product. append and decode attention share this code, so both
// compute the same bits.
#pragma once

#include "attention/kv.cuh"

struct HeadRef {
    const float* query_norm; // weight [head_dim], or null
    const float* key_norm;
    const float* frequencies; // [pairs], or null
    uint32_t pairs;           // rotated pairs of numbers; numbers from 2 * pairs on stay
    uint32_t interleaved;     // pairs of neighbours; otherwise of the two halves, as NeoX
    float sincos_scale;
    float query_eps;
    float key_eps;
    uint32_t heads;
};
static_assert(sizeof(HeadRef) == 48, "as in params.rs");

// Sine and cosine of pair i at a position, times `sincos_scale`. The angle is
// f32(position) * frequency[i], rounded to f32.
__device__ __forceinline__ float2 sincos_of(const HeadRef& h, uint32_t position, uint32_t i) {
    float sine, cosine;
    sincosf(float(position) * h.frequencies[i], &sine, &cosine);
    return make_float2(sine * h.sincos_scale, cosine * h.sincos_scale);
}

// Norm (`norm` may be null) and RoPE of a warp's head of `dim` numbers in `at`, in place.
// `sincos(i)` returns sine and cosine of a pair; it is not called without frequencies. Lanes must
// synchronise after writing `at`; on return they have synchronised again.
template <typename SinCos>
__device__ __forceinline__ void finish_head(const HeadRef& h, float* at, uint32_t dim,
                                            uint32_t lane, const float* norm, float eps,
                                            SinCos sincos) {
    if (norm) {
        float squares = 0.0f;
        for (uint32_t d = lane; d < dim; d += WARP)
            squares = fmaf(at[d], at[d], squares);
        const float factor = rsqrtf(warp_sum(squares) / float(dim) + eps);
        for (uint32_t d = lane; d < dim; d += WARP)
            at[d] = at[d] * factor * norm[d];
        __syncwarp();
    }
    if (h.frequencies) {
        for (uint32_t i = lane; i < h.pairs; i += WARP) {
            const uint2 pair = rope_pair(i, h.pairs, h.interleaved);
            const float2 its = sincos(i);
            const float a = at[pair.x];
            const float b = at[pair.y];
            at[pair.x] = a * its.y - b * its.x;
            at[pair.y] = a * its.x + b * its.y;
        }
        __syncwarp();
    }
}
