// TMA bulk copies without a tensor map (cp.async.bulk), and the mbarriers that count their bytes
// (from sm_90 on).
#pragma once

#include "common/walla.cuh"

// Pipeline state: slot of a ring, and parity of the phase of its barrier.
struct PipelineState {
    uint32_t slot = 0, phase = 0;
    __device__ __forceinline__ void next(uint32_t depth) {
        if (++slot == depth)
            slot = 0, phase ^= 1;
    }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}
// Makes initialised barriers visible to copies and to the other blocks of a cluster.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// True for one lane of a converged warp.
__device__ __forceinline__ bool is_elected() {
    uint32_t is;
    asm volatile("{\n.reg .pred mine;\nelect.sync _|mine, 0xffffffff;\nselp.u32 %0, 1, 0, mine;\n}"
                 : "=r"(is));
    return is;
}
// Initialises the consecutive barriers of a warp's ring, for one arrival each. The whole warp calls
// it; one lane works, because the addresses are uniform.
template <uint32_t COUNT>
__device__ __forceinline__ void init_own_barriers(uint32_t barriers) {
    if (is_elected()) {
#pragma unroll
        for (uint32_t i = 0; i < COUNT; i++)
            mbarrier_init(barriers + 8 * i, 1);
        publish_barriers();
    }
    __syncwarp();
}
// Arrives; the phase ends when `bytes` have arrived, too.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void mbarrier_wait_parity(uint32_t barrier, uint32_t phase) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], "
        "%1;\n@!done bra again;\n}" ::"r"(barrier),
        "r"(phase)
        : "memory");
}
// Copies a multiple of 16 bytes; both addresses are multiples of 16.
__device__ __forceinline__ void copy_bulk(uint32_t to, const uint8_t* from, uint32_t bytes,
                                          uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
// The same with evict-first, for data that is read once per step, such as weights.
__device__ __forceinline__ void copy_bulk_once(uint32_t to, const uint8_t* from, uint32_t bytes,
                                               uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(evict_first_policy())
        : "memory");
}
// Prefetches a multiple of 16 bytes into L2, from an address that is a multiple of 16.
__device__ __forceinline__ void prefetch_l2(const uint8_t* from, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Address in another block of the cluster that corresponds to `shared` in this block.
__device__ __forceinline__ uint32_t map_shared_rank(uint32_t shared, uint32_t rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
    return there;
}
// Stores four words in the shared memory of a block of the cluster; its barrier counts the bytes.
__device__ __forceinline__ void store_remote(uint32_t to, float a, float b, float c, float d,
                                             uint32_t barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(to),
        "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(__float_as_uint(c)),
        "r"(__float_as_uint(d)), "r"(barrier)
        : "memory");
}
// The same for two words.
__device__ __forceinline__ void store_remote(uint32_t to, float a, float b, uint32_t barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
            to),
        "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(barrier)
        : "memory");
}
// Barrier of all threads of the cluster in two parts, arrive and await. This relaxed arrival orders
// nothing except barriers that were published before. It therefore does not wait for this thread's
// writes, which takes a memory round trip.
__device__ __forceinline__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
// The same with release semantics for all earlier accesses of this thread.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#endif
