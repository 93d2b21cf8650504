// gemm_sm90: WGMMA GEMM (gemm_common.cuh; wgmma.cuh, sm_90a) for more than 8 rows of x, or 5 and
// more if K > 3,072 and there are more tiles than multiprocessors: out[r, m] (+)= sum_k W[m, k] *
// x[r, k], or a gate of two matrices.
//
// x: [rows, K] packed f16; W: [tiles * 16, K] in records (weight.cuh); out: [rows, M] f32, packed
// f16, or the sums of splits. A CTA takes N rows of x (16, 32, 64 or 128) and 8 tiles, 128 rows of
// W, or 4. W is operand A (registers, dequantised, M = 64 = four tiles), x is operand B (shared
// memory, N rows). Each consumer warp has a tile and a run of it. It copies its own weights; one
// producer warp copies the rows of x, which the warps of a run share, or one producer warp per run.
//
// From 65 rows of x on a warp computes all runs and splits of its tile in sequence
// (Sequential), unless a cluster is faster (lower/gemm_sm90/sequential.rs). Two warpgroups
// multiply; a third copies x and computes the norm's factors, and leaves its registers to them.
//
// gemm_sm90_config.cuh    split-K modes, shape of a CTA
// gemm_sm90_scheduler.cuh tile scheduler, shared memory
// gemm_sm90_producer.cuh  copies of weights, rows of x and the next attention's KV pages
// gemm_sm90_mainloop.cuh  a run of products
// gemm_sm90_epilogue.cuh  one epilogue per split-K mode
//
// Grid: (persistent CTAs, or CTA tiles * splits; rows of x / N); for a pair of products
// (ClusterSplitK, DeferredSplitK) the CTAs of one, then of the other.
// Bound: bytes of W up to some 32 rows of x, then reads of x from L2; with 128 rows per CTA
// unpacking, products and the epilogue.
// Oracle: walla_cpu's scalar linear (tests/gpu/parity.rs); the bits equal the results of
// gemm_skinny.cuh and gemm_sm80.cuh (tests/gpu/determinism.rs).
#pragma once

#include "gemm/gemm_sm90_epilogue.cuh"

template <typename G>
__device__ __forceinline__ void gemm_sm90(const GemmSm90Params& p, typename G::Shared& storage,
                                          CtaRange ctas) {
    using SplitK = typename G::SplitK;
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t warp = __shfl_sync(FULL_MASK, threadIdx.x / WARP, 0);
    const TileScheduler<G> scheduler(p, ctas);
    const SharedLayout<G> layout(scheduler, shared, storage);
    const uint32_t run = warp / G::TILES % G::RUNS, tile_in_cta = warp % G::TILES;
    WeightPipeline<G> weights = weight_pipeline(scheduler, layout, warp, run, tile_in_cta);
    if (p.by_output && scheduler.row0 >= p.gemm.step.header().outputs) {
        // No output names rows from here on: most chunks of a prompt have none.
        launch_dependents();
        grid_dependency_wait();
        return;
    }
    const uint32_t early = G::LOADS_LATE && p.gemm.mode >= GATE_SILU ? 1 : p.weight_depth;

    launch_dependents();
    if (warp < G::CONSUMER_WARPS) {
        init_own_barriers<DEPTH_MAX>(weights.barriers);
        weights.locate();
        weights.fetch(0, early);
        if (G::LEAVES_MEMORY_IDLE && p.next_pages.keys) {
            // Consecutive parts go to different CTAs: a multiprocessor fetches pages sequentially.
            const uint32_t all = gridDim.x * gridDim.y, cta = blockIdx.y * gridDim.x + blockIdx.x;
            prefetch_kv_l2(p, warp * all + cta, G::CONSUMER_WARPS * all);
        }
    } else if (warp == G::CONSUMER_WARPS) {
        init_activation_barriers(layout, scheduler);
    }
    __syncthreads();
    if (SplitK::IS_CLUSTER && !G::SUMS_REUSE_RINGS)
        cluster_arrive_relaxed();
    grid_dependency_wait();

    if (warp >= G::CONSUMER_WARPS) {
        if constexpr (SplitK::IS_SEQUENTIAL)
            registers_shrink<SEQUENTIAL_PRODUCER_REGISTERS>();
        if (!SplitK::IS_SEQUENTIAL || warp == G::CONSUMER_WARPS)
            produce_activations(scheduler, layout, warp);
        else if (warp <= G::CONSUMER_WARPS + FACTOR_WARPS)
            produce_factors<G>(storage.factor, scheduler.row0, warp - G::CONSUMER_WARPS - 1,
                               ctas.index == 0, p.gemm);
        return;
    }
    if constexpr (SplitK::IS_SEQUENTIAL)
        registers_grow<SEQUENTIAL_CONSUMER_REGISTERS>();
    Mainloop<G> mainloop(weights, layout, warp, run);
    const Consumer<G> consumer{scheduler, layout, mainloop, storage.factor, warp, run, tile_in_cta};
    if (!SplitK::IS_SEQUENTIAL && (SplitK::IS_CLUSTER || SplitK::IS_PERSISTENT)) {
        norm_factors<G::N, G::CONSUMER_WARPS>(storage.factor, scheduler.row0, ctas.index == 0,
                                              p.gemm);
        consumer.sync();
    } else if (SplitK::IS_DEFERRED && ctas.index == 0) {
        norm_factors<G::N, G::CONSUMER_WARPS>(storage.factor, scheduler.row0, true, p.gemm);
    }
    if constexpr (G::LOADS_LATE)
        weights.fetch(early, p.weight_depth);
    Epilogue<G>::run(consumer);
}

// Defines the kernel `NAME`: CTAS per multiprocessor. The files list their kernels by name, since
// the host looks them up by name. lower/gemm_sm90.rs selects them, so the lists have gaps:
// persistent N 16, 32 and 64; small (4 tiles) N 16 and 32; half_wave N 32 and 64; cluster and
// deferred all N, for Q4_1, Q5_1 and Q6_K as pairs; workspace N 64, and 32 for records of up to
// 1,024 bytes; wide (Sequential) N 64 and 128, for Q4_1, Q5_1 and Q6_K as pairs.
#define GEMM_SM90(NAME, TYPE, N, SPLIT_K, TILES, CTAS)                                             \
    extern "C" __global__ void __launch_bounds__(GemmSm90<TYPE, N, SPLIT_K, TILES>::THREADS, CTAS) \
        NAME(const __grid_constant__ GemmSm90Params p) {                                           \
        using G = GemmSm90<TYPE, N, SPLIT_K, TILES>;                                               \
        __shared__ G::Shared storage;                                                              \
        gemm_sm90<G>(p, storage, {blockIdx.x, gridDim.x});                                         \
    }
// The same for a product of TYPE, a product of OTHER, or one of each in one launch.
#define GEMM_SM90_PAIR(NAME, TYPE, OTHER, N, SPLIT_K, CTAS)                                      \
    extern "C" __global__ void __launch_bounds__(GemmSm90<TYPE, N, SPLIT_K, CTA_TILES>::THREADS, \
                                                 CTAS)                                           \
        NAME(const __grid_constant__ GemmSm90PairParams p) {                                     \
        using G = GemmSm90<TYPE, N, SPLIT_K, CTA_TILES>;                                         \
        using H = GemmSm90<OTHER, N, SPLIT_K, CTA_TILES>;                                        \
        static_assert(G::THREADS == H::THREADS);                                                 \
        __shared__ G::Shared storage;                                                            \
        dispatch_pair(                                                                           \
            p, [&](CtaRange ctas) { gemm_sm90<G>(p.first, storage, ctas); },                     \
            [&](CtaRange ctas) { gemm_sm90<H>(p.second, storage, ctas); });                      \
    }
