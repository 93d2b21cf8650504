// Copies of gemm_sm90.cuh: each consumer warp copies its own weights, two segments at a time, the
// first before it waits for its predecessor; producer warps copy the rows of x.
#pragma once

#include "gemm/gemm_sm90_scheduler.cuh"

// A warp's weight pipeline: the copies of its tiles into its ring, wave by wave.
template <typename G>
struct WeightPipeline {
    static constexpr uint32_t RECORD = G::RECORD;
    const GemmSm90Params& p;
    uint32_t stages, barriers; // shared-memory addresses
    uint32_t number, step;     // of the next tile; stride to the one after it
    uint32_t begin, count;     // segments of every tile
    uint32_t fetched;          // segments of the next tile
    const uint8_t* from;
    PipelineState write, read;

    __device__ __forceinline__ uint32_t tile() const {
        return tile_at<G::SplitK::HAS_HALF_WAVE>(p, number);
    }
    __device__ __forceinline__ void locate() {
        if (tile() < p.gemm.tiles)
            from = first_half<RECORD>(p.gemm, tile(), begin);
    }
    // Starts the copies of the next stage, if one is left: the whole warp calls it, one lane
    // copies.
    __device__ __forceinline__ void fetch() {
        if (tile() >= p.gemm.tiles || count == 0)
            return;
        const uint32_t bytes = min(G::W_STAGE_SEGMENTS, count - fetched) * RECORD;
        const uint32_t to = stages + write.slot * G::W_STAGE, barrier = barriers + 8 * write.slot;
        if (is_elected()) {
            mbarrier_arrive_expect_tx(barrier, 2 * bytes);
            copy_bulk_once(to, from + fetched * RECORD, bytes, barrier);
            copy_bulk_once(to + G::W_HALF, from + fetched * RECORD + half_stride<RECORD>(p.gemm),
                           bytes, barrier);
        }
        write.next(p.weight_depth);
        fetched += G::W_STAGE_SEGMENTS;
        if (fetched < count)
            return;
        fetched = 0;
        if (G::SplitK::IS_PERSISTENT) {
            number += step;
            locate();
        } else {
            number = p.gemm.tiles;
        }
    }
    // Starts the copies of stages `first` .. `end`.
    __device__ __forceinline__ void fetch(uint32_t first, uint32_t end) {
#pragma unroll 1
        for (uint32_t d = first; d < end; d++)
            fetch();
    }
};

template <typename G>
__device__ __forceinline__ WeightPipeline<G> weight_pipeline(const TileScheduler<G>& scheduler,
                                                             const SharedLayout<G>& layout,
                                                             uint32_t warp, uint32_t run,
                                                             uint32_t tile_in_cta) {
    return {scheduler.p,
            shared_address(layout.shared) + layout.weights_at + warp * layout.ring_bytes,
            layout.weight_barriers(warp),
            scheduler.first_number(tile_in_cta),
            scheduler.step(),
            scheduler.run_begin(run),
            scheduler.run_count(run),
            0};
}

// Ring of the rows of x of a run, read by one warp per tile: shared-memory addresses of the stages
// and of their barriers.
struct ActivationRing {
    uint32_t stages, full, empty;
};
template <typename G>
__device__ __forceinline__ ActivationRing activation_ring(const SharedLayout<G>& layout,
                                                          uint32_t run) {
    const uint32_t at = layout.x_barriers(run);
    return {shared_address(layout.shared) + layout.x_at + run * layout.x_bytes, at,
            at + 8 * DEPTH_MAX};
}

// Initialises the barriers of x and of a cluster's sums. One warp calls it.
template <typename G>
__device__ __forceinline__ void init_activation_barriers(const SharedLayout<G>& layout,
                                                         const TileScheduler<G>& scheduler) {
    if (is_elected()) {
#pragma unroll
        for (uint32_t i = 0; i < G::RUNS * DEPTH_MAX; i++) {
            const ActivationRing x = activation_ring(layout, i / DEPTH_MAX);
            mbarrier_init(x.full + 8 * (i % DEPTH_MAX), 1);
            mbarrier_init(x.empty + 8 * (i % DEPTH_MAX), G::TILES);
        }
        if (G::SplitK::IS_CLUSTER) {
            mbarrier_init(layout.sums_barrier(), 1);
            mbarrier_arrive_expect_tx(layout.sums_barrier(),
                                      scheduler.owned_tiles() * scheduler.splits * G::TILE_BYTES);
        }
        publish_barriers();
    }
}

// Producer warp: copies the rows of x of its runs, for every CTA tile. Each of the warp's
// runs has an equal share of the lanes, and each lane copies one group of 8 rows of x.
template <typename G>
__device__ __forceinline__ void produce_activations(const TileScheduler<G>& scheduler,
                                                    const SharedLayout<G>& layout, uint32_t warp) {
    constexpr uint32_t WARP_RUNS = G::SplitK::IS_SEQUENTIAL ? 1 : G::RUNS / G::PRODUCER_WARPS,
                       LANES = WARP / WARP_RUNS, X_STAGE_SEGMENTS = G::X_STAGE_SEGMENTS;
    const GemmSm90Params& p = scheduler.p;
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t run = (G::RUNS == 1 || G::PRODUCER_WARPS == 1 ? 0 : warp - G::CONSUMER_WARPS) *
                             WARP_RUNS +
                         lane / LANES,
                   group = lane % LANES, count = scheduler.run_count(run),
                   longest = scheduler.run_count(0), row0 = scheduler.row0;
    const uint32_t groups_here = min(G::N / 8, div_up(p.gemm.rows_max - row0, 8));
    const ActivationRing x = activation_ring(layout, run);
    const uint8_t* from =
        p.gemm.x.rows +
        (size_t(row0 / 8 + group) * p.gemm.x.segments + scheduler.run_begin(run)) * GROUP_BYTES;
    PipelineState write;
    // Waiting for parity 1 of a fresh barrier returns at once: all stages are empty.
    write.phase = 1;
    for (uint32_t cta_tile = scheduler.cta_tile0; cta_tile < scheduler.cta_tiles;
         cta_tile += scheduler.cta_tile_step)
        for (uint32_t s = 0; s < longest; s += X_STAGE_SEGMENTS) {
            const bool is_any = s < count;
            const uint32_t bytes = is_any ? min(X_STAGE_SEGMENTS, count - s) * GROUP_BYTES : 0;
            if (is_any)
                mbarrier_wait_parity(x.empty + 8 * write.slot, write.phase);
            if (is_any && group == 0)
                mbarrier_arrive_expect_tx(x.full + 8 * write.slot, groups_here * bytes);
            __syncwarp();
            if (is_any && group < groups_here)
                copy_bulk(
                    x.stages + write.slot * G::X_STAGE + group * GROUP_BYTES * X_STAGE_SEGMENTS,
                    from + s * GROUP_BYTES, bytes, x.full + 8 * write.slot);
            if (is_any)
                write.next(p.x_depth);
        }
    // All threads of a cluster take part in its barrier.
    if (G::SplitK::IS_CLUSTER) {
        __syncwarp();
        if (G::SUMS_REUSE_RINGS)
            cluster_arrive_relaxed();
        cluster_wait();
    }
}

// Prefetches into L2 every `stride`-th of the pages that the next attention reads, as many as L2
// keeps. They are spread over the rows and their lengths, so that attention always finds some in L2
// while others come from memory. Few pages need no prefetch. `part` of `parts`: a warp's share.
__device__ __forceinline__ void prefetch_kv_l2(const GemmSm90Params& p, uint32_t part,
                                               uint32_t parts) {
    const PagesRef& next = p.next_pages;
    const uint32_t rows = p.gemm.step.header().rows, lane = threadIdx.x % WARP;
    const auto page_of = [&](uint32_t cell) { return __umulhi(cell, next.page_magic); };
    // Pages of a row's earlier cells.
    const auto first_of = [&](uint32_t position) {
        return next.window && position >= next.window ? page_of(position + 1 - next.window) : 0;
    };
    const auto end_of = [&](uint32_t position) { return position ? page_of(position - 1) + 1 : 0; };
    uint32_t pages = 0;
    for (uint32_t r = lane; r < rows; r += WARP) {
        const uint32_t position = p.gemm.step.row(r).position;
        pages += end_of(position) - first_of(position);
    }
    pages = __reduce_add_sync(FULL_MASK, pages);
    if (pages <= 2 * next.pages_most)
        return;
    const uint32_t stride = div_up(pages, next.pages_most);
    // Equally many warps take the keys and the values of each row.
    const uint32_t streams = 2 * rows, takers = parts / streams, taker = part / streams,
                   stream = part - taker * streams;
    if (taker >= takers || !is_elected())
        return;
    const StepRow& row = p.gemm.step.row(stream / 2);
    const uint32_t* table = p.gemm.step.table(row.table);
    const uint8_t* from = stream % 2 ? next.values : next.keys;
    const uint32_t end = end_of(row.position);
#pragma unroll 1
    for (uint32_t page = first_of(row.position) + taker * stride; page < end;
         page += takers * stride)
        prefetch_l2(from + size_t(table[page]) * next.page_bytes, next.page_bytes);
}
