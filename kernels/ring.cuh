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
__device__ __forceinline__ void init_barriers(const Ring& ring) {
    const uint32_t d = threadIdx.x % WARP;
    if (d < ring.depth)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(ring.barriers + 8 * d) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncwarp();
}
// A stage will be complete when `bytes` have come.
__device__ __forceinline__ void expect(const Ring& ring, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ring.barriers + 8 * ring.slot), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_record(const Ring& ring, uint32_t to, const uint8_t* from, uint32_t bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(ring.barriers + 8 * ring.slot)
                 : "memory");
}
__device__ __forceinline__ void await_stage(const Ring& ring) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(
            ring.barriers + 8 * ring.slot),
        "r"(ring.phase)
        : "memory");
}
#endif

// Brings a number's line into the first cache.
__device__ __forceinline__ void come_near(const float* at) { asm volatile("prefetch.global.L1 [%0];" ::"l"(at)); }
