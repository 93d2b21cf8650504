// A warp's ring of stages in shared memory. From sm_90 on bulk copies fill a stage, and its barrier
// counts the missing bytes; on sm_80 lanes copy 16 bytes each, in groups; before that they load and
// store.
#pragma once

#include "common/bulk_copy.cuh"
#include "common/async_copy.cuh"

// Position in a warp's ring of `depth` stages, with one barrier per stage.
struct Ring {
    uint32_t stages;   // shared-memory address
    uint32_t barriers; // shared-memory address
    uint32_t depth;
    uint32_t slot;
    uint32_t phase;

    __device__ __forceinline__ void next() {
        if (++slot == depth)
            slot = 0, phase ^= 1;
    }
};

#if __CUDA_ARCH__ >= 900
// The stage is complete when `bytes` have arrived.
__device__ __forceinline__ void expect(const Ring& ring, uint32_t bytes) {
    mbarrier_arrive_expect_tx(ring.barriers + 8 * ring.slot, bytes);
}
__device__ __forceinline__ void copy_record(const Ring& ring, uint32_t to, const uint8_t* from,
                                            uint32_t bytes) {
    copy_bulk_once(to, from, bytes, ring.barriers + 8 * ring.slot);
}
__device__ __forceinline__ void await_stage(const Ring& ring) {
    mbarrier_wait_parity(ring.barriers + 8 * ring.slot, ring.phase);
}
#endif

// Prefetches a number's line into L1.
__device__ __forceinline__ void prefetch_l1(const float* at) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}
