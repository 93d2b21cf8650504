// Copies of gemm_skinny.cuh: each warp copies its own weights, the first stages before it waits for
// its predecessor; all warps copy the rows of x.
#pragma once

#include "common/stage_ring.cuh"
#include "gemm/gemm_skinny_scheduler.cuh"

// A warp's ring of weights: `stage_segments` segments per stage, by two copies, for the two half
// tiles. Each lane locates one of 32 stages, so all of them are found at once, while the first copy
// is in flight.
template <uint32_t TYPE>
struct SkinnyWeightRing {
    static constexpr uint32_t RECORD = Record<TYPE>::BYTES;
    const SkinnyScheduler& scheduler;
    const uint8_t* shared;
    uint32_t half_bytes, stage_bytes, ring_bytes;
    uint32_t stages, barriers; // shared-memory addresses
    ptrdiff_t stride;          // from a tile's first half to its second
    const uint8_t* next_source = nullptr;
    uint32_t next_bytes = 0; // of half a tile
    uint32_t fetched = 0;    // stages
    PipelineState read;

    __device__ __forceinline__ SkinnyWeightRing(const SkinnyScheduler& scheduler,
                                                const uint8_t* shared, const uint64_t* full)
        : scheduler(scheduler), shared(shared) {
        const GemmSkinnyParams& p = scheduler.p;
        half_bytes = p.stage_segments * RECORD, stage_bytes = 2 * half_bytes;
        ring_bytes = skinny_ring_bytes(p.depth, p.stage_segments, RECORD);
        stages = shared_address(shared) + scheduler.warp * ring_bytes;
        barriers = shared_address(full) + 8 * scheduler.warp * DEPTH_MAX;
        stride = half_stride<RECORD>(p.gemm);
    }
    // Bytes of the rings of all warps.
    __device__ __forceinline__ uint32_t rings_bytes() const {
        return scheduler.threads / WARP * ring_bytes;
    }
    // Locates the lane's one of the 32 stages around the next.
    __device__ __forceinline__ void locate_stages() {
        const SkinnyStage stage = scheduler.stage(fetched / WARP * WARP + scheduler.lane);
        next_bytes = stage.count * RECORD;
        if (stage.count > 0)
            next_source = first_half<RECORD>(scheduler.p.gemm, stage.tile, stage.segment);
    }
    // Starts the copies of a stage. All lanes call it; on sm_90 an elected one copies.
    __device__ __forceinline__ void issue_copies(uint32_t slot, const uint8_t* from,
                                                 uint32_t bytes) const {
        const uint32_t to = stages + slot * stage_bytes;
#if __CUDA_ARCH__ >= 900
        if (!is_elected())
            return;
        const uint32_t barrier = barriers + 8 * slot;
        mbarrier_arrive_expect_tx(barrier, 2 * bytes);
        if (bytes > 0) {
            copy_bulk_once(to, from, bytes, barrier);
            copy_bulk_once(to + half_bytes, from + stride, bytes, barrier);
        }
#else
        for (uint32_t i = scheduler.lane * 16; i < bytes; i += WARP * 16) {
            copy_async(to + i, from + i);
            copy_async(to + half_bytes + i, from + stride + i);
        }
        cp_async_commit_group();
#endif
    }
    // Starts the copies of the first stage.
    __device__ __forceinline__ void fetch_first() {
#if __CUDA_ARCH__ >= 900
        init_own_barriers<DEPTH_MAX>(barriers);
#endif
        const SkinnyStage stage = scheduler.first_stage();
        const uint8_t* from = first_half<RECORD>(scheduler.p.gemm, stage.tile, stage.segment);
        fetched++;
        issue_copies(0, from, stage.count * RECORD);
    }
    // Starts the copies of the next stage after the first, if one is left.
    __device__ __forceinline__ void fetch(uint32_t slot) {
#if __CUDA_ARCH__ >= 900
        if (fetched >= scheduler.p.all_stages)
            return;
#endif
        if (fetched == 1 || fetched % WARP == 0)
            locate_stages();
        const uint32_t bytes = __shfl_sync(FULL_MASK, next_bytes, fetched % WARP);
        const uint8_t* from = reinterpret_cast<const uint8_t*>(__shfl_sync(
            FULL_MASK, reinterpret_cast<unsigned long long>(next_source), fetched % WARP));
        fetched++;
        issue_copies(slot, from, bytes);
    }
    // The same for slots `first` .. `end`.
    __device__ __forceinline__ void fetch(uint32_t first, uint32_t end) {
#pragma unroll 1
        for (uint32_t slot = first; slot < end; slot++)
            fetch(slot);
    }
    // Number of stages that are loaded before the grid dependency.
    __device__ __forceinline__ uint32_t early() const {
#if __CUDA_ARCH__ >= 900
        return scheduler.p.early_stages;
#else
        return scheduler.p.depth; // before sm_90 no predecessor is running
#endif
    }
    // The stage to read.
    __device__ __forceinline__ const uint8_t* stage() const {
        return shared + scheduler.warp * ring_bytes + read.slot * stage_bytes;
    }
    __device__ __forceinline__ void await_stage() const {
#if __CUDA_ARCH__ >= 900
        mbarrier_wait_parity(barriers + 8 * read.slot, read.phase);
#else
        cp_async_wait_group(scheduler.p.depth - 1);
        __syncwarp();
#endif
    }
    // Refills the stage that was read.
    __device__ __forceinline__ void release_stage() {
        __syncwarp();
        fetch(read.slot);
        read.next(scheduler.p.depth);
    }
};

// Starts the copies of the rows of x, from a segment on.
__device__ __forceinline__ void fetch_activations(const SkinnyScheduler& scheduler,
                                                  const SkinnyLayout& layout,
                                                  uint32_t first_segment) {
    const PackedRef& x = scheduler.p.gemm.x;
    const uint32_t pieces = min(x.segments - first_segment, layout.x_segments) * 16;
    if (scheduler.p.by_output) {
#pragma unroll 1
        for (uint32_t n = 0; n < scheduler.rows; n++) {
            const uint8_t* from = x.rows + piece_of(x, scheduler.row_of(n), first_segment * 16);
#pragma unroll 1
            for (uint32_t i = threadIdx.x; i < pieces; i += scheduler.threads)
                copy_async(layout.x + (i * x.group_rows + n) * 16, from + i * piece_stride(x));
        }
    } else {
        const uint8_t* from = x.rows + piece_of(x, scheduler.row0, first_segment * 16);
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < pieces * x.group_rows; i += scheduler.threads)
            copy_async(layout.x + i * 16, from + i * 16);
    }
    cp_async_commit_group();
}
