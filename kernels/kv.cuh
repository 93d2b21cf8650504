// Pages of keys and values: [pages, kv_heads, page_tokens, head_dim] of f32 or f16.
#pragma once

#include "step.cuh"

struct KvRef {
    uint8_t* keys;
    uint8_t* values;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t page_tokens;
    uint32_t page_magic;  // 2^32 / page_tokens rounded up, or 0 for pages of one token
};
static_assert(sizeof(KvRef) == 32, "as in params.rs");

// Index of the first number of a cell. `table` is the page table of the token's sequence. The product with the magic is the exact
// quotient for positions below 2^32 / page_tokens.
__device__ __forceinline__ size_t cell_of(const KvRef& kv, const uint32_t* table, uint32_t head, uint32_t position) {
    const uint32_t index = kv.page_magic ? __umulhi(position, kv.page_magic) : position;
    const uint32_t cell = position - index * kv.page_tokens;
    return ((size_t(table[index]) * kv.kv_heads + head) * kv.page_tokens + cell) * kv.head_dim;
}

__device__ __forceinline__ void store_number(float* to, float value) { *to = value; }
__device__ __forceinline__ void store_number(__half* to, float value) { *to = __float2half_rn(value); }
__device__ __forceinline__ float load_number(const float* from) { return *from; }
__device__ __forceinline__ float load_number(const __half* from) { return __half2float(*from); }

// Eight numbers side by side, aligned to their size.
__device__ __forceinline__ void load_eight(const float* from, float (&out)[8]) {
    const float4 a = *reinterpret_cast<const float4*>(from);
    const float4 b = *reinterpret_cast<const float4*>(from + 4);
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}

// Eight numbers as they lie in memory: loading and using them are apart, so that many loads can be under way.
template <typename Number>
struct Eight;
template <>
struct Eight<__half> {
    uint4 words;
    __device__ __forceinline__ void zero() { words = make_uint4(0, 0, 0, 0); }
    __device__ __forceinline__ void load(const __half* from) { words = *reinterpret_cast<const uint4*>(from); }
    __device__ __forceinline__ void decode(float (&out)[8]) const {
        const uint32_t all[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&all[i]));
            out[2 * i] = two.x;
            out[2 * i + 1] = two.y;
        }
    }
};
template <>
struct Eight<float> {
    float numbers[8];
    __device__ __forceinline__ void zero() {
#pragma unroll
        for (int i = 0; i < 8; i++) numbers[i] = 0.0f;
    }
    __device__ __forceinline__ void load(const float* from) { load_eight(from, numbers); }
    __device__ __forceinline__ void decode(float (&out)[8]) const {
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = numbers[i];
    }
};

// Which numbers of a head form pair `i` of `pairs`.
__device__ __forceinline__ uint2 pair_of(uint32_t i, uint32_t pairs, bool neighbours) {
    return neighbours ? make_uint2(2 * i, 2 * i + 1) : make_uint2(i, i + pairs);
}
