// Copies ahead: a ring of stages in shared memory that is a warp's own. From sm_90 on records come by bulk copies, each stage with a barrier
// that knows how many bytes are still to come; on sm_80 lanes copy 16 bytes each, in groups; before that they load and store.
#pragma once

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
// A barrier in shared memory that `count` arrivals, and all bytes that it expects, complete.
__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive_at(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void await_barrier(uint32_t barrier, uint32_t phase) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(barrier),
        "r"(phase)
        : "memory");
}
// Copies whole pieces of 16 bytes to shared memory; the barrier knows when they have come.
__device__ __forceinline__ void copy_bulk(uint32_t barrier, uint32_t to, const uint8_t* from, uint32_t bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void init_barriers(const Ring& ring) {
    const uint32_t d = threadIdx.x % WARP;
    if (d < ring.depth) init_barrier(ring.barriers + 8 * d, 1);
    fence_barriers();
    __syncwarp();
}
// A stage will be complete when `bytes` have come.
__device__ __forceinline__ void expect(const Ring& ring, uint32_t bytes) { expect(ring.barriers + 8 * ring.slot, bytes); }
__device__ __forceinline__ void copy_record(const Ring& ring, uint32_t to, const uint8_t* from, uint32_t bytes) {
    copy_bulk(ring.barriers + 8 * ring.slot, to, from, bytes);
}
__device__ __forceinline__ void await_stage(const Ring& ring) { await_barrier(ring.barriers + 8 * ring.slot, ring.phase); }
#endif

// Brings a number's line into the first cache.
__device__ __forceinline__ void come_near(const float* at) { asm volatile("prefetch.global.L1 [%0];" ::"l"(at)); }
