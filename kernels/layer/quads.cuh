// Rows of f32 in pieces of four neighbours.
#pragma once

#include "common/walla.cuh"

// Four neighbours; zeros beyond the width. `aligned`: the row begins at a multiple of 16 bytes.
__device__ __forceinline__ void read_quad(const float* from, uint32_t k, uint32_t width,
                                          bool aligned, float (&out)[4]) {
    if (aligned && k + 4 <= width) {
        const float4 four = *reinterpret_cast<const float4*>(from + k);
        out[0] = four.x, out[1] = four.y, out[2] = four.z, out[3] = four.w;
    } else {
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            out[c] = k + c < width ? from[k + c] : 0.0f;
    }
}

__device__ __forceinline__ void write_quad(float* to, uint32_t k, uint32_t width, bool aligned,
                                           const float (&values)[4]) {
    if (aligned && k + 4 <= width) {
        *reinterpret_cast<float4*>(to + k) =
            make_float4(values[0], values[1], values[2], values[3]);
    } else {
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            if (k + c < width)
                to[k + c] = values[c];
    }
}

// The same for rows of `width` numbers without gaps.
__device__ __forceinline__ void read_quad(const float* from, uint32_t k, uint32_t width,
                                          float (&out)[4]) {
    read_quad(from, k, width, width % 4 == 0, out);
}

__device__ __forceinline__ void write_quad(float* to, uint32_t k, uint32_t width,
                                           const float (&values)[4]) {
    write_quad(to, k, width, width % 4 == 0, values);
}
