// Copies of gemm_sm80.cuh: each warp copies its own weights, the first before it waits for its
// predecessor; all warps copy the rows of x.
#pragma once

#include "common/stage_ring.cuh"
#include "gemm/gemm_sm80_config.cuh"

// A warp's weight pipeline: the copies of its tiles into its ring.
template <uint32_t TYPE, uint32_t GROUPS>
struct Sm80WeightPipeline {
    static constexpr uint32_t RECORD = Record<TYPE>::BYTES;
    const Sm80Scheduler<GROUPS>& scheduler;
    const Sm80Layout<TYPE, GROUPS>& layout;
    Ring read, write;
    // Next stage to copy: both halves of the tile, from this segment on.
    uint32_t next_tile, next_segment;
    const uint8_t* tile_from;
    ptrdiff_t stride; // from a tile's first half to its second

    __device__ __forceinline__ Sm80WeightPipeline(const Sm80Scheduler<GROUPS>& scheduler,
                                                  const Sm80Layout<TYPE, GROUPS>& layout,
                                                  const uint64_t* barriers)
        : scheduler(scheduler), layout(layout) {
        const GemmSm80Params& p = scheduler.p;
        read = {layout.ring_at, shared_address(barriers) + threadIdx.x / WARP * (DEPTH_MAX * 8),
                p.depth, 0, 0};
        write = read;
        // An empty run has no stage.
        next_tile = scheduler.run_begin < scheduler.run_end ? scheduler.tile0 : p.gemm.tiles;
        next_segment = scheduler.run_begin;
        tile_from = nullptr;
        if (scheduler.tile0 < p.gemm.tiles)
            locate(scheduler.tile0);
        stride = half_stride<RECORD>(p.gemm);
#if __CUDA_ARCH__ >= 900
        init_own_barriers<DEPTH_MAX>(read.barriers);
#endif
    }
    __device__ __forceinline__ void locate(uint32_t tile) {
        tile_from = first_half<RECORD>(scheduler.p.gemm, tile, scheduler.first_segment);
    }
    // Starts the copies of the next stage, if one is left.
    __device__ __forceinline__ void fetch() {
        const GemmSm80Params& p = scheduler.p;
        if (next_tile < p.gemm.tiles && next_segment >= scheduler.run_end) {
            next_tile += scheduler.tile_step, next_segment = scheduler.run_begin;
            if (next_tile < p.gemm.tiles)
                locate(next_tile);
        }
        if (next_tile < p.gemm.tiles) {
            issue_copies(tile_from + next_segment * RECORD,
                         min(p.stage_segments, scheduler.run_end - next_segment) * RECORD);
            next_segment += p.stage_segments;
        }
#if __CUDA_ARCH__ < 900
        cp_async_commit_group();
#endif
        write.next();
    }
    __device__ __forceinline__ void issue_copies(const uint8_t* from, uint32_t bytes) const {
        const uint32_t to = write.stages + write.slot * layout.stage_bytes,
                       half_bytes = scheduler.p.stage_segments * RECORD;
#if __CUDA_ARCH__ >= 900
        if (scheduler.lane == 0) {
            expect(write, 2 * bytes);
            copy_record(write, to, from, bytes);
            copy_record(write, to + half_bytes, from + stride, bytes);
        }
#else
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t piece = scheduler.lane * 16; piece < bytes; piece += WARP * 16)
                copy_async(to + h * half_bytes + piece, from + h * stride + piece);
#endif
    }
    // Waits for the next stage and returns it.
    __device__ __forceinline__ const uint8_t* await_next() const {
        const uint8_t* stage = layout.ring + read.slot * layout.stage_bytes;
#if __CUDA_ARCH__ >= 900
        await_stage(read);
#else
        cp_async_wait_group(scheduler.p.depth - 1);
        __syncwarp();
#endif
        return stage;
    }
    // Refills the stage that was read.
    __device__ __forceinline__ void release() {
        read.next();
        __syncwarp();
        fetch();
    }
};

// Copies of the rows of x of the CTA's split: from sm_90 on one bulk copy per group of 8 rows, if
// the rows are consecutive.
template <uint32_t TYPE, uint32_t GROUPS>
struct Sm80Activations {
    static constexpr uint32_t SEGMENT_BYTES = 8 * 256; // of a group
    const Sm80Scheduler<GROUPS>& scheduler;
    const Sm80Layout<TYPE, GROUPS>& layout;
    Ring ring; // of one stage
    bool copies_groups;

    __device__ __forceinline__ Sm80Activations(const Sm80Scheduler<GROUPS>& scheduler,
                                               const Sm80Layout<TYPE, GROUPS>& layout,
                                               const uint64_t* barriers)
        : scheduler(scheduler), layout(layout) {
        ring = {0, shared_address(barriers) + SM80_WARPS_MAX * DEPTH_MAX * 8, 1, 0, 0};
#if __CUDA_ARCH__ >= 900
        copies_groups = !scheduler.p.by_output;
        if (threadIdx.x < WARP)
            init_own_barriers<1>(ring.barriers);
#else
        copies_groups = false;
#endif
    }
    __device__ __forceinline__ void fetch() const {
#if __CUDA_ARCH__ >= 900
        if (copies_groups && threadIdx.x == 0)
            fetch_groups();
#endif
        if (!copies_groups)
            fetch_rows();
    }
    // The whole CTA calls it.
    __device__ __forceinline__ void await() const {
        if (!copies_groups)
            cp_async_wait_group<0>();
        __syncthreads();
#if __CUDA_ARCH__ >= 900
        if (copies_groups)
            await_stage(ring);
#endif
    }

  private:
#if __CUDA_ARCH__ >= 900
    __device__ __forceinline__ void fetch_groups() const {
        const GemmParams& g = scheduler.p.gemm;
        const uint32_t groups_here = min(GROUPS, div_up(g.rows_max - scheduler.row0, 8));
        expect(ring, groups_here * layout.group_bytes);
        for (uint32_t group = 0; group < groups_here; group++)
            copy_bulk(layout.x + group * layout.group_bytes,
                      g.x.rows + (size_t(scheduler.row0 / 8 + group) * g.x.segments +
                                  scheduler.first_segment) *
                                     SEGMENT_BYTES,
                      layout.group_bytes, ring.barriers);
    }
#endif
    // Row by row: the four pieces of each block of 32.
    __device__ __forceinline__ void fetch_rows() const {
        const GemmSm80Params& p = scheduler.p;
        const GemmParams& g = p.gemm;
        const uint32_t lane = scheduler.lane;
        for (uint32_t s = threadIdx.x / WARP; s < scheduler.segments; s += blockDim.x / WARP)
            for (uint32_t group = 0; group < GROUPS; group++) {
                const uint32_t n = min(scheduler.row0 + group * 8 + lane / 4, g.rows_max - 1);
                const uint32_t r = p.by_output ? min(g.step.output(n).row, p.rows_last) : n;
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) {
                    const uint32_t piece = j * 4 + lane % 4;
                    copy_async(
                        layout.x + group * layout.group_bytes +
                            ((s * 16 + piece) * 8 + lane / 4) * 16,
                        g.x.rows + piece_of(g.x, r, (scheduler.first_segment + s) * 16 + piece));
                }
            }
        cp_async_commit_group();
    }
};
