// Sum over a block of any size, for kernels with a block per row.
#pragma once

#include "common/walla.cuh"

// Sum over the block; every thread gets it. `scratch` holds a float per warp.
__device__ __forceinline__ float sum_of_block(float value, float* scratch) {
    const uint32_t lane = threadIdx.x % WARP;
    value = warp_sum(value);
    if (lane == 0)
        scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    return warp_sum(lane < blockDim.x / WARP ? scratch[lane] : 0.0f);
}
