// gemm_skinny: out[r, m] (+)= sum_k W[m, k] * x[r, k], or a gate of two matrices (gemm_common.cuh),
// for groups of up to 8 rows of x, one group per CTA.
// x: [rows, K] packed f16; W: [tiles * 16, K] in records (weight.cuh); out: [rows, M] f32, or
// packed f16.
// Bound for 1 to 8 rows: bytes of W, and the node's latency if it has few of them. It takes more
// rows only if no other kernel fits: the CTAs of a tile's groups run concurrently, so that all
// but one read W from L2.
//
// A CTA has 8 warps, and two CTAs share a multiprocessor; or 16 warps if there are too few tiles
// for that or two CTAs do not fit. It takes `wave_tiles` tiles per wave. A team has as many warps
// as a split has runs; it computes one split of a tile, one run per warp. Weights reach each warp
// through its own ring. The runs' sums meet in shared memory, where one thread adds the sums of an
// output in order. Shared memory holds all of x, or `x_splits` splits of it at a time: a pass.
//
// gemm_skinny_config.cuh    parameters, shared memory
// gemm_skinny_scheduler.cuh waves, passes, tasks and stages
// gemm_skinny_producer.cuh  copies of weights and of rows of x
// gemm_skinny_mainloop.cuh  unpacks and multiplies the runs of a pass
// gemm_skinny_epilogue.cuh  adds runs and splits, writes outputs
//
// Weights never change. Before a CTA waits for its predecessor it starts copies for all stages of
// its rings (or for some, if the predecessor needs the memory bandwidth until its end), unpacks the
// first AHEAD segments of each warp and computes where its results go. It lets its successor start
// at once. Little work remains after the wait: x is copied, the tensor cores multiply, sums are
// added and written. Register spills cost more than everything else: they go to L1, and shared
// memory leaves almost none of it. Data that is known in advance about an output is therefore kept
// in shared memory. Code that runs once costs some 12 cycles per instruction, so it is short and
// its loops are not unrolled.
//
// Grid: (CTAs, rows of x / 8); for a pair the CTAs of one product, then of the other.
// Oracle: walla_cpu's scalar linear (tests/gpu/parity.rs); the bits equal the results of
// gemm_sm80.cuh and gemm_sm90.cuh (tests/gpu/determinism.rs).
#pragma once

#include "gemm/gemm_skinny_mainloop.cuh"

template <uint32_t TYPE>
__device__ __forceinline__ void gemm_skinny(const GemmSkinnyParams& p, SkinnyShared& storage,
                                            CtaRange ctas) {
    extern __shared__ __align__(128) uint8_t shared[];
    launch_dependents();
    const SkinnyScheduler scheduler(p, ctas);
    SkinnyWeightRing<TYPE> weights(scheduler, shared, storage.full);
    weights.fetch_first();
    weights.fetch(1, weights.early());

    const SkinnyLayout layout(scheduler, shared, weights.rings_bytes());
    SkinnyEpilogue epilogue(scheduler, layout, storage, ctas);
    SkinnyMainloop<TYPE> mainloop(scheduler, layout, weights, epilogue);
#if __CUDA_ARCH__ < 900
    mainloop.await_x();
#endif
    bool odd = false, is_first = true;
    for (uint32_t base = scheduler.base0; base < p.gemm.tiles; base += scheduler.wave_step) {
        for (uint32_t first_split = 0; first_split < p.gemm.splits; first_split += p.x_splits) {
            const SkinnyPass pass = scheduler.pass(base, first_split);
            if (!is_first && p.x_splits < p.gemm.splits) {
                fetch_activations(scheduler, layout, pass.x_segment);
                cp_async_wait_group<0>();
                __syncthreads();
            }
            float* sums = layout.sums + (odd ? layout.pass_sums : 0);
            mainloop.multiply_pass(pass, sums);
            if (is_first)
                epilogue.finish_factor();
            __syncthreads();
            epilogue.write_pass(pass, sums);
            odd = !odd, is_first = false;
        }
    }
}

// Defines the kernel `NAME`.
#define GEMM_SKINNY(NAME, TYPE)                                               \
    extern "C" __global__ void __launch_bounds__(SKINNY_WARPS_LARGE* WARP, 1) \
        NAME(const __grid_constant__ GemmSkinnyParams p) {                    \
        __shared__ SkinnyShared storage;                                      \
        gemm_skinny<TYPE>(p, storage, {blockIdx.x, gridDim.x});               \
    }
// The same for a product of TYPE, a product of OTHER, or one of each in one launch.
#define GEMM_SKINNY_PAIR(NAME, TYPE, OTHER)                                       \
    extern "C" __global__ void __launch_bounds__(SKINNY_WARPS_LARGE* WARP, 1)     \
        NAME(const __grid_constant__ GemmSkinnyPairParams p) {                    \
        __shared__ SkinnyShared storage;                                          \
        dispatch_pair(                                                            \
            p, [&](CtaRange ctas) { gemm_skinny<TYPE>(p.first, storage, ctas); }, \
            [&](CtaRange ctas) { gemm_skinny<OTHER>(p.second, storage, ctas); }); \
    }
