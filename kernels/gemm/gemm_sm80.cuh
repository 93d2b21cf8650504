// gemm_sm80: out[r, m] (+)= sum_k W[m, k] * x[r, k], or a gate of two matrices (gemm_common.cuh),
// with mma, if gemm_sm90.cuh does not compute them: for more than 8 rows of x, and for fewer that
// are padded to 8 rows (5 and more) if these exceed 5/8 of a block's opt-in shared memory (K >=
// 9,088 on an H100). A CTA takes GROUPS groups of 8 rows, 2 or 4.
// x: [rows, K] packed f16; W: [tiles * 16, K] in records (weight.cuh); out: [rows, M] f32, or
// packed f16.
//
// A team of one or two warps computes a tile at a time; each of its warps takes a run of
// neighbouring segments of 128 columns. Weights arrive through a ring in shared memory per warp,
// `stage_segments` segments at a time (from sm_90 on by bulk copies). The first copies start before
// the kernel waits for its predecessor, since weights never change. The rows of x of a split stay
// in shared memory. Every split has separate blocks; the last block to finish adds the splits.
//
// gemm_sm80_config.cuh   parameters, shared memory, scheduler
// gemm_sm80_producer.cuh copies of weights and of rows of x
// gemm_sm80_mainloop.cuh a run of products
// gemm_sm80_epilogue.cuh norm factors, sums of runs, sums of splits
//
// Grid: (blocks whose teams take tiles round-robin, rows of x / (8 * GROUPS), splits); small blocks
// share a multiprocessor.
// Bound: memory (bytes of W) up to some 32 rows, then tensor cores.
// Oracle: walla_cpu's scalar linear (tests/gpu/parity.rs); the difference is the rounding of x and
// W to f16. The bits equal the results of gemm_skinny.cuh (tests/gpu/determinism.rs).
#pragma once

#include "gemm/gemm_sm80_epilogue.cuh"
#include "gemm/gemm_sm80_mainloop.cuh"

template <uint32_t TYPE, uint32_t GROUPS>
__device__ __forceinline__ void gemm_sm80(const GemmSm80Params& p) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ Sm80Shared<GROUPS> storage;
    const Sm80Scheduler<GROUPS> scheduler(p);
    if (p.by_output && scheduler.row0 >= p.gemm.step.header().outputs) {
        // No output names rows from here on: most chunks of a prompt have none.
        launch_dependents();
        grid_dependency_wait();
        return;
    }
    const Sm80Layout<TYPE, GROUPS> layout(scheduler, shared);
    Sm80WeightPipeline<TYPE, GROUPS> weights(scheduler, layout, storage.barriers);
    const Sm80Activations<TYPE, GROUPS> activations(scheduler, layout, storage.barriers);
    for (uint32_t d = 0; d < p.depth; d++)
        weights.fetch();
    launch_dependents();
    grid_dependency_wait();

    activations.fetch();
    const Sm80Epilogue<TYPE, GROUPS> epilogue(scheduler, layout, storage);
    epilogue.norm_factors();
    activations.await();
    Sm80Mainloop<TYPE, GROUPS> mainloop{scheduler, layout, weights, layout.x + scheduler.lane * 16};
    float sum[GROUPS][4] = {};
    bool odd = false;
    for (uint32_t tile = scheduler.tile0; tile < p.gemm.tiles;
         tile += scheduler.tile_step, odd = !odd) {
        mainloop.multiply_run(sum);
        mainloop.store(sum);
        scheduler.sync_team();
        epilogue.write_tile(tile, odd);
        scheduler.sync_team();
    }
    if (gridDim.z > 1)
        epilogue.reduce_splits();
}

// Defines the kernel `NAME`.
#define GEMM_SM80(NAME, TYPE, GROUPS)                                     \
    extern "C" __global__ void __launch_bounds__(SM80_WARPS_MAX* WARP, 1) \
        NAME(const __grid_constant__ GemmSm80Params p) {                  \
        gemm_sm80<TYPE, GROUPS>(p);                                       \
    }
