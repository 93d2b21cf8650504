// KV pages: [pages, kv_heads, page_tokens, head_dim] of f32, f16 or 8 bits. With 8 bits each cell
// also has a scale, [pages, kv_heads, page_tokens] f16: a number is scale * q, q in -127 ..= 127,
// and the scale is the largest magnitude / 127.
#pragma once

#include "step/step.cuh"

struct KvRef {
    uint8_t* keys;
    uint8_t* values;
    __half* key_scales; // of 8 bits, else null
    __half* value_scales;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t page_tokens;
    uint32_t page_magic; // 2^32 / page_tokens rounded up, or 0 for pages of one token
};
static_assert(sizeof(KvRef) == 48, "as in params.rs");

// Index of a cell: of its scale, and times head_dim of its first number. `table` is the page table
// of the token's sequence. The product with the magic is the exact quotient for positions below
// 2^32 / page_tokens.
__device__ __forceinline__ size_t cell_of(const KvRef& kv, const uint32_t* table, uint32_t head,
                                          uint32_t position) {
    const uint32_t index = kv.page_magic ? __umulhi(position, kv.page_magic) : position;
    const uint32_t cell = position - index * kv.page_tokens;
    return (size_t(table[index]) * kv.kv_heads + head) * kv.page_tokens + cell;
}

// A number of 8 bits in storage format: q + 128. Zeroed pages decode to zeros: their scales are 0.
struct Biased {
    uint8_t number;
};
static_assert(sizeof(Biased) == 1, "a byte");

__device__ __forceinline__ void store_number(float* to, float value) {
    *to = value;
}
__device__ __forceinline__ void store_number(__half* to, float value) {
    *to = __float2half_rn(value);
}
__device__ __forceinline__ float load_number(const float* from) {
    return *from;
}
__device__ __forceinline__ float load_number(const __half* from) {
    return __half2float(*from);
}

// Converts a warp's key or value in `at` to a page's number type. The whole warp constructs it,
// then calls `store` for each number.
template <typename Number>
struct Encoder {
    __device__ __forceinline__ Encoder(const float*, uint32_t, uint32_t) {}
    __device__ __forceinline__ void store(Number* to, float value) const {
        store_number(to, value);
    }
    __device__ __forceinline__ void store_scale(__half*, uint32_t) const {}
};
template <>
struct Encoder<Biased> {
    __half scale;
    // A row that is not finite gets a NaN scale, so that the error remains visible.
    __device__ __forceinline__ Encoder(const float* at, uint32_t dim, uint32_t lane) {
        float largest = 0.0f;
        bool finite = true;
        for (uint32_t d = lane; d < dim; d += WARP) {
            largest = fmaxf(largest, fabsf(at[d]));
            finite = finite && fabsf(at[d]) <= 3.4028235e38f;
        }
        finite = __all_sync(FULL_MASK, finite);
        scale = finite ? __float2half_rn(fminf(__fdiv_rn(warp_max(largest), 127.0f), 65504.0f))
                       : __ushort_as_half(0x7e00);
    }
    __device__ __forceinline__ void store(Biased* to, float value) const {
        const float its = __half2float(scale);
        const float units = its > 0.0f ? rintf(__fdiv_rn(value, its)) : 0.0f;
        to->number = uint8_t(int(fminf(fmaxf(units, -127.0f), 127.0f)) + 128);
    }
    __device__ __forceinline__ void store_scale(__half* scales, uint32_t lane) const {
        if (lane == 0)
            *scales = scale;
    }
};
__device__ __forceinline__ float load_number(const Biased* from, float scale) {
    return scale * float(int(from->number) - 128);
}

// A warp stores its key or value in `at` in a cell.
template <typename Number>
__device__ __forceinline__ void store_head(const KvRef& kv, bool is_value, size_t cell,
                                           const float* at, uint32_t lane) {
    const Encoder<Number> encoder(at, kv.head_dim, lane);
    Number* to = reinterpret_cast<Number*>(is_value ? kv.values : kv.keys) + cell * kv.head_dim;
    for (uint32_t d = lane; d < kv.head_dim; d += WARP)
        encoder.store(to + d, at[d]);
    encoder.store_scale((is_value ? kv.value_scales : kv.key_scales) + cell, lane);
}

// Eight contiguous numbers, aligned to their size.
__device__ __forceinline__ void load_eight(const float* from, float (&out)[8]) {
    const float4 a = *reinterpret_cast<const float4*>(from);
    const float4 b = *reinterpret_cast<const float4*>(from + 4);
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}

// Eight numbers in storage format. Loading and decoding are separate, so that many loads can be in
// flight.
template <typename Number>
struct Eight;
template <>
struct Eight<__half> {
    uint4 words;
    __device__ __forceinline__ void zero() { words = make_uint4(0, 0, 0, 0); }
    __device__ __forceinline__ void load(const __half* from, const __half*) {
        words = *reinterpret_cast<const uint4*>(from);
    }
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
        for (int i = 0; i < 8; i++)
            numbers[i] = 0.0f;
    }
    __device__ __forceinline__ void load(const float* from, const __half*) {
        load_eight(from, numbers);
    }
    __device__ __forceinline__ void decode(float (&out)[8]) const {
#pragma unroll
        for (int i = 0; i < 8; i++)
            out[i] = numbers[i];
    }
};

template <>
struct Eight<Biased> {
    uint2 words;
    float scale;
    __device__ __forceinline__ void zero() { words = make_uint2(0, 0), scale = 0.0f; }
    __device__ __forceinline__ void load(const Biased* from, const __half* its) {
        words = *reinterpret_cast<const uint2*>(from);
        scale = __half2float(*its);
    }
    __device__ __forceinline__ void decode(float (&out)[8]) const {
#pragma unroll
        for (int i = 0; i < 8; i++)
            out[i] = scale * float(int((i < 4 ? words.x : words.y) >> i % 4 * 8 & 255) - 128);
    }
};

// The two indices in a head of pair `i` of `pairs`: neighbours, or one of each half (as NeoX).
__device__ __forceinline__ uint2 rope_pair(uint32_t i, uint32_t pairs, bool interleaved) {
    return interleaved ? make_uint2(2 * i, 2 * i + 1) : make_uint2(i, i + pairs);
}
