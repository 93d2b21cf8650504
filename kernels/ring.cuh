// Copies ahead: a ring of stages in shared memory that is a warp's own. From sm_90 on records come by bulk copies, each stage with a barrier
// that knows how many bytes are still to come; on sm_80 lanes copy 16 bytes each, in groups; before that they load and store.
#pragma once

#include "bulk.cuh"
#include "copies.cuh"

// A warp's ring of `depth` stages: records copied ahead, a barrier for each.
struct Ring {
    uint32_t stages;    // in shared memory
    uint32_t barriers;  // likewise
    uint32_t depth;
    uint32_t slot;
    uint32_t phase;

    __device__ __forceinline__ void next() {
        if (++slot == depth) slot = 0, phase ^= 1;
    }
};

#if __CUDA_ARCH__ >= 900
// A stage will be complete when `bytes` have come.
__device__ __forceinline__ void expect(const Ring& ring, uint32_t bytes) { expect_bytes(ring.barriers + 8 * ring.slot, bytes); }
__device__ __forceinline__ void copy_record(const Ring& ring, uint32_t to, const uint8_t* from, uint32_t bytes) {
    copy_bulk_once(to, from, bytes, ring.barriers + 8 * ring.slot);
}
__device__ __forceinline__ void await_stage(const Ring& ring) { await_phase(ring.barriers + 8 * ring.slot, ring.phase); }
#endif

// Brings a number's line into the first cache.
__device__ __forceinline__ void come_near(const float* at) { asm volatile("prefetch.global.L1 [%0];" ::"l"(at)); }
