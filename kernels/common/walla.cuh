// Launch ordering and fixed-order reductions, common to all kernels.
//
// Rules
// 1. A kernel takes one parameter struct by value. Its addresses never change, so a captured launch
//    stays valid.
// 2. A program's first two kernels (the first is `step_acquire`, which copies the step block) do
//    not overlap with earlier work in the stream. Every kernel may therefore read at once the data
//    that is complete when the second kernel starts: the step block, weights, and cells that
//    earlier programs wrote. A kernel calls `grid_dependency_wait()` before it reads anything else
//    that another kernel writes, and before its first write.
// 3. In every kernel at least one block waits, for every step (a step has at least one row). The
//    next kernel waits for this kernel only. Without the wait it could read or overwrite data that
//    the kernel before this one still uses.
// 4. A kernel calls `launch_dependents()` once, as early as possible: a successor still waits for
//    the whole kernel. Kernels whose output is read without waiting never call it: `step_acquire`,
//    `fetch`, the kernels of cache_ops.cu.
// 5. Lengths and counts of a step are read on the device. Blocks beyond them return at once, or
//    compute all rows of the bucket; the extra rows are not read (pack, gather, products on tensor
//    cores).
// 6. The order of a row's sums depends on the row alone: never on the bucket, other rows or arrival
//    order.
//
// Increment the number when a kernel's name, grid or semantics change while its structs do not:
// images with another interface are rejected.
// walla: interface 16
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define WARP 32u
#define FULL_MASK 0xffffffffu

// Programmatic dependent launch (PDL, griddepcontrol.wait and launch_dependents): waits until the
// preceding kernels of the stream have ended and their writes are visible. Before sm_90 it is
// empty: a kernel starts only then.
__device__ __forceinline__ void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Allows the next kernel of the stream to launch while this one runs.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ uint32_t div_up(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

// L2 evict-first policy for data that is read once per step: it is evicted before other lines, ours
// and the game's. From sm_80 on.
__device__ __forceinline__ uint64_t evict_first_policy() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Shared-memory address of a pointer.
__device__ __forceinline__ uint32_t shared_address(const void* at) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// Sum over a warp; every lane gets it. Butterfly reduction, so the order is fixed.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(FULL_MASK, value, offset);
    return value;
}

// Sum over a warp's lanes up to the own one.
template <typename Number>
__device__ __forceinline__ Number warp_prefix_sum(Number own) {
#pragma unroll
    for (uint32_t offset = 1; offset < WARP; offset *= 2) {
        const Number other = __shfl_up_sync(FULL_MASK, own, offset);
        if (threadIdx.x % WARP >= offset)
            own += other;
    }
    return own;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(FULL_MASK, value, offset));
    return value;
}

// Sum over a block of `THREADS`; every thread gets it. `scratch` holds one float per warp and may
// be reused on return.
template <uint32_t THREADS>
__device__ __forceinline__ float block_sum(float value, float* scratch) {
    constexpr uint32_t warps = THREADS / WARP;
    value = warp_sum(value);
    if (threadIdx.x % WARP == 0)
        scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (uint32_t w = 0; w < warps; w++)
        sum += scratch[w];
    __syncthreads();
    return sum;
}
