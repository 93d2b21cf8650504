// The next norm's input, for kernels with a block per row: as `pack` computes it (gemm/pack.cu),
// from a row that the block has just written.
#pragma once

#include "gemm/packed_activations.cuh"
#include "layer/quads.cuh"

// Sum over the block; every thread gets it. `scratch` holds a float per warp.
__device__ __forceinline__ float sum_of_block(float value, float* scratch) {
    const uint32_t lane = threadIdx.x % WARP;
    value = warp_sum(value);
    if (lane == 0)
        scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    return warp_sum(lane < blockDim.x / WARP ? scratch[lane] : 0.0f);
}

// packed[r] = f16(x * norm * factor), factor = rsqrt(mean(x^2) + eps), which is also stored. A
// thread has the numbers 4 * threadIdx.x .. + 4 of x (`first_x`) and of the norm's weights
// (`first_norm`) in registers, then every 4 * blockDim.x further. `squares`: its share of the sum
// of x^2.
__device__ __forceinline__ void pack_next_norm(const PackedRef& packed, float* factors, uint32_t r,
                                               const float* x, const float* norm, uint32_t width,
                                               float eps, float squares, const float (&first_x)[4],
                                               const float (&first_norm)[4], float* scratch) {
    const uint32_t first = threadIdx.x * 4, step = blockDim.x * 4;
    // Packed rows are padded to whole segments.
    const uint32_t end = packed.segments * 128;
    const float factor = rsqrtf(sum_of_block(squares, scratch) / float(width) + eps);
    if (threadIdx.x == 0)
        factors[r] = factor;
    const auto pack = [&](const float (&its)[4], const float (&weights)[4], uint32_t k) {
        float values[4];
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            // Padding stays zero if the factor is not a number.
            values[c] = k + c < width ? its[c] * factor * weights[c] : 0.0f;
        store_packed(packed, r, k, values);
    };
    if (first < end)
        pack(first_x, first_norm, first);
#pragma unroll 1
    for (uint32_t k = first + step; k < end; k += step) {
        // This thread wrote these numbers of x.
        float its[4], weights[4];
        read_quad(x, k, width, its);
        read_quad(norm, k, width, weights);
        pack(its, weights, k);
    }
}
