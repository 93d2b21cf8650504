// What every kernel of walla shares: launch ordering, reductions in a fixed order.
//
// Rules
// 1. A kernel takes one parameter struct by value. Addresses in it never change, so a captured launch never does.
// 2. A program's first two kernels (the first, `take`, brings the step block) do not overlap with what is ahead of them. So a kernel may read at once what is complete when the
//    second one starts: the step block, weights, and what earlier programs left (cells). It calls `wait_for_predecessors()` before it reads anything else that another kernel writes,
//    and before it writes at all.
// 3. In every kernel at least one block waits, whatever is in the step (which has a row): the next kernel waits for this one alone, and would otherwise read, and write
//    over, what the one before this still uses.
// 4. A kernel calls `let_successors_start()` once, as early as it likes: a successor waits for the whole of it in any case. Those that write what successors read without waiting never
//    call it: `take`, `fetch`, the kernels of cache.cu.
// 5. Lengths and counts of a step are read on the device. Blocks beyond them return at once, or make all rows of the bucket, which nobody reads (pack, gather, products on tensor cores).
// 6. A row's sums are made in an order that depends on the row alone: never on the bucket, other rows or arrival.
//
// Raise the number when a kernel's name, grid or meaning changes while its structs stay as they are: images of other interfaces are refused.
// walla: interface 15
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define WARP 32u
#define FULL_MASK 0xffffffffu

// Waits until the kernels ahead in the stream have ended and what they wrote can be seen (no work before sm_90, where a
// kernel starts only then).
__device__ __forceinline__ void wait_for_predecessors() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel of the stream be set up while this one runs.
__device__ __forceinline__ void let_successors_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ uint32_t div_up(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// The policy of copies of what is read once a step: it leaves the second cache before anything else does, of ours and of the game's. From sm_80 on.
__device__ __forceinline__ uint64_t leaves_first() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Where something lies in the block's shared memory.
__device__ __forceinline__ uint32_t shared_of(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }

// Sum over a warp; every lane gets it. A butterfly, so the order is fixed.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(FULL_MASK, value, offset);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(FULL_MASK, value, offset));
    return value;
}

// Sum over a block of `THREADS`; every thread gets it. `scratch` holds one float a warp and is free again on return.
template <uint32_t THREADS>
__device__ __forceinline__ float block_sum(float value, float* scratch) {
    constexpr uint32_t warps = THREADS / WARP;
    value = warp_sum(value);
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (uint32_t w = 0; w < warps; w++) sum += scratch[w];
    __syncthreads();
    return sum;
}
