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

// Weights of head norms, from memory: `norm` of the head, the lane's number i.
struct NormsInMemory {
    __device__ __forceinline__ float operator()(const float* norm, bool, uint32_t i,
                                                uint32_t lane) const {
        return norm[i * WARP + lane];
    }
};
// The same in registers, for kernels with few rows. Weights never change, so a kernel loads them
// before it waits for its predecessor. Otherwise each load would take a round trip to L2, one after
// the other, because the compiler keeps them in order with the stores of the head's numbers.
template <uint32_t EACH>
struct NormsInRegisters {
    float query[EACH], key[EACH]; // not set without norms

    // A model has both norms or none.
    __device__ __forceinline__ void load(const HeadRef& h, uint32_t lane) {
        if (!h.query_norm)
            return;
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++)
            query[i] = h.query_norm[i * WARP + lane], key[i] = h.key_norm[i * WARP + lane];
    }
    __device__ __forceinline__ float operator()(const float*, bool is_query, uint32_t i,
                                                uint32_t) const {
        return is_query ? query[i] : key[i];
    }
};

// Norm (if the head has one) and RoPE of a warp's head of `dim` numbers in `at`, in place; `dim` is
// at most EACH * WARP. `sincos(i)` returns sine and cosine of a pair; it is not called without
// frequencies. Lanes must synchronise after writing `at`; on return they have synchronised again.
template <uint32_t EACH, typename Norms, typename SinCos>
__device__ __forceinline__ void finish_head(const HeadRef& h, float* at, uint32_t dim,
                                            uint32_t lane, bool is_query, const Norms& norms,
                                            SinCos sincos) {
    if (const float* norm = is_query ? h.query_norm : h.key_norm) {
        float squares = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            const uint32_t d = i * WARP + lane;
            if (d < dim)
                squares = fmaf(at[d], at[d], squares);
        }
        const float eps = is_query ? h.query_eps : h.key_eps,
                    factor = rsqrtf(warp_sum(squares) / float(dim) + eps);
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            const uint32_t d = i * WARP + lane;
            if (d < dim)
                at[d] = at[d] * factor * norms(norm, is_query, i, lane);
        }
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
