// Epilogue of gemm_sm80.cuh: a team adds the sums of its runs and writes the results, or, with
// several splits, partial sums that the last CTA of a group of tiles adds.
#pragma once

#include "gemm/gemm_sm80_config.cuh"

// Adds four sums to a quad of outputs.
__device__ __forceinline__ void add_quad(float (&value)[4], const float4& sums) {
    value[0] += sums.x, value[1] += sums.y, value[2] += sums.z, value[3] += sums.w;
}

template <uint32_t TYPE, uint32_t GROUPS>
struct Sm80Epilogue {
    static constexpr uint32_t N = 8 * GROUPS; // rows of x per CTA
    const Sm80Scheduler<GROUPS>& scheduler;
    const Sm80Layout<TYPE, GROUPS>& layout;
    Sm80Shared<GROUPS>& storage;
    bool gated;
    uint32_t quads, items; // of a row of x; of a tile: four rows of the result each

    __device__ __forceinline__ Sm80Epilogue(const Sm80Scheduler<GROUPS>& scheduler,
                                            const Sm80Layout<TYPE, GROUPS>& layout,
                                            Sm80Shared<GROUPS>& storage)
        : scheduler(scheduler), layout(layout), storage(storage) {
        gated = scheduler.p.gemm.mode >= GATE_SILU;
        quads = gated ? 2 : 4;
        items = N * quads;
    }

    // Computes the norm's factors of the CTA's rows, a warp per row.
    __device__ __forceinline__ void norm_factors() const {
        const GemmParams& g = scheduler.p.gemm;
        const uint32_t lane = scheduler.lane;
        for (uint32_t n = threadIdx.x / WARP; n < N; n += blockDim.x / WARP) {
            float factor = 1.0f;
            if (g.squares && scheduler.row0 + n < g.rows_max) {
                const uint32_t r = scheduler.row_of(n);
                const float4* squares =
                    reinterpret_cast<const float4*>(g.squares + size_t(r) * g.squares_count);
                float sum = 0.0f;
                for (uint32_t i = lane; i < g.squares_count / 4; i += WARP) {
                    const float4 four = squares[i];
                    sum += (four.x + four.y) + (four.z + four.w);
                }
                const float norm_factor = rsqrtf(warp_sum(sum) * g.inverse_width + g.eps);
                factor = __fdividef(norm_factor, g.pack_factors[r]);
                if (g.factors && blockIdx.x == 0 && scheduler.split == 0 && lane == 0)
                    g.factors[r] = norm_factor;
            }
            if (lane == 0)
                storage.factor[n] = factor;
        }
    }

    // Adds the runs of a tile in order, four rows of the result per thread. If there is work for
    // some warps only, they alternate: `odd` tiles begin with the other half.
    __device__ __forceinline__ void write_tile(uint32_t tile, bool odd) const {
        const GemmParams& g = scheduler.p.gemm;
        const uint32_t threads = scheduler.threads;
        const TileOf place = tile_of(g, tile);
        const uint32_t rotated = scheduler.thread + (odd ? threads / 2 : 0);
        for (uint32_t item = rotated < threads ? rotated : rotated - threads; item < items;
             item += threads) {
            const uint32_t quad = item % quads, n = item / quads;
            float value[2][4] = {};
            add_runs(value, n, quad);
            if (gridDim.z > 1)
                store_partial(value, tile, n, quad);
            else
                write_four(g, place, scheduler.row0 + n, quad, storage.factor[n], value);
        }
    }

    // Adds the splits, in the last CTA to finish: all of its tiles.
    __device__ __forceinline__ void reduce_splits() const {
        if (!is_last())
            return;
        const GemmParams& g = scheduler.p.gemm;
        for (uint32_t tile = scheduler.tile0; tile < g.tiles; tile += scheduler.tile_step)
            for (uint32_t item = scheduler.thread; item < items; item += scheduler.threads) {
                const uint32_t quad = item % quads, n = item / quads;
                float value[2][4] = {};
#pragma unroll
                for (uint32_t half = 0; half < 2; half++) {
                    if (half == 1 && !gated)
                        continue;
#pragma unroll 4
                    for (uint32_t z = 0; z < g.splits; z++)
                        add_quad(value[half],
                                 __ldcg(reinterpret_cast<const float4*>(
                                     partial(z, tile) + n * TILE_ROWS + half * 8 + quad * 4)));
                }
                write_four(g, tile_of(g, tile), scheduler.row0 + n, quad, storage.factor[n], value);
            }
    }

  private:
    // Partial sums of a tile: [N, TILE_ROWS].
    __device__ __forceinline__ float* partial(uint32_t split, uint32_t tile) const {
        const GemmSm80Params& p = scheduler.p;
        return p.partials +
               ((size_t(split) * p.gemm.tiles + tile) * gridDim.y + blockIdx.y) * (N * TILE_ROWS);
    }
    __device__ __forceinline__ void add_runs(float (&value)[2][4], uint32_t n,
                                             uint32_t quad) const {
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            if (half == 1 && !gated)
                continue;
            const float* from = layout.sums + n * SUM_STRIDE + half * 8 + quad * 4;
#pragma unroll
            for (uint32_t w = 0; w < RUNS_MAX; w++) {
                if (w >= scheduler.warps)
                    continue;
                add_quad(value[half],
                         *reinterpret_cast<const float4*>(from + w * sm80_sums(GROUPS)));
            }
        }
    }
    __device__ __forceinline__ void store_partial(const float (&value)[2][4], uint32_t tile,
                                                  uint32_t n, uint32_t quad) const {
        float* to = partial(scheduler.split, tile);
#pragma unroll
        for (uint32_t half = 0; half < 2; half++)
            if (half == 0 || gated)
                __stcg(reinterpret_cast<float4*>(to + n * TILE_ROWS + half * 8 + quad * 4),
                       make_float4(value[half][0], value[half][1], value[half][2], value[half][3]));
    }
    // Whether the CTA is the last of its splits. The whole CTA calls it.
    __device__ __forceinline__ bool is_last() const {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t* arrivals = scheduler.p.arrivals + blockIdx.y * gridDim.x + blockIdx.x;
            storage.is_last = atomicAdd(arrivals, 1) == gridDim.z - 1;
            if (storage.is_last)
                *arrivals = 0;
        }
        __syncthreads();
        if (!storage.is_last)
            return false;
        __threadfence();
        return true;
    }
};
