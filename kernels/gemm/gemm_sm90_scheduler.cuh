// Tile scheduler of gemm_sm90.cuh: a CTA's tiles, its split, and the segments of its runs.
#pragma once

#include "gemm/gemm_sm90_config.cuh"

// The tile of a number. Tiles are numbered as if all waves were full, 8 per CTA and wave; in a half
// wave, the last, only the lower half of each CTA's numbers have a tile. p.gemm.tiles or more:
// none.
template <bool HAS_HALF_WAVE>
__device__ __forceinline__ uint32_t tile_at(const GemmSm90Params& p, uint32_t number) {
    if (!HAS_HALF_WAVE || number < p.full_wave_tiles)
        return number;
    const uint32_t in = number % CTA_TILES;
    return in < CTA_TILES_SMALL
               ? p.full_wave_tiles + (number - p.full_wave_tiles) / CTA_TILES * CTA_TILES_SMALL + in
               : p.gemm.tiles;
}

template <typename G>
struct TileScheduler {
    using SplitK = typename G::SplitK;
    const GemmSm90Params& p;
    uint32_t splits, split; // number of splits; this CTA's split
    // CTA tiles, of TILES tiles each: the first, all, the stride
    uint32_t cta_tile0, cta_tiles, cta_tile_step;
    uint32_t row0;                   // first row of x
    uint32_t split_begin, split_end; // segments
    uint32_t run_segments;           // of a warp: one run, all runs of the split, or all columns

    __device__ __forceinline__ TileScheduler(const GemmSm90Params& p, CtaRange ctas) : p(p) {
        splits = SplitK::IS_PERSISTENT ? 1 : p.gemm.splits;
        cta_tile0 =
            SplitK::IS_PERSISTENT ? ctas.index : fast_divide(ctas.index, p.splits_reciprocal);
        split = SplitK::IS_PERSISTENT ? 0 : ctas.index - cta_tile0 * splits;
        cta_tiles = SplitK::HAS_HALF_WAVE
                        ? div_up(p.full_wave_tiles, G::TILES) +
                              div_up(p.gemm.tiles - p.full_wave_tiles, CTA_TILES_SMALL)
                        : div_up(p.gemm.tiles, G::TILES);
        cta_tile_step = SplitK::IS_PERSISTENT ? ctas.count : cta_tiles;
        row0 = blockIdx.y * G::N;
        split_begin = split * p.gemm.split_segments;
        split_end = SplitK::IS_SEQUENTIAL
                        ? p.gemm.x.segments
                        : min(p.gemm.x.segments, split_begin + p.gemm.split_segments);
        run_segments = SplitK::IS_SEQUENTIAL ? p.gemm.x.segments
                       : SplitK::IS_CLUSTER  ? p.gemm.split_segments
                                             : p.gemm.run_segments;
    }
    __device__ __forceinline__ uint32_t run_begin(uint32_t run) const {
        return min(split_begin + run * run_segments, split_end);
    }
    __device__ __forceinline__ uint32_t run_count(uint32_t run) const {
        return min(run_begin(run) + run_segments, split_end) - run_begin(run);
    }
    // Numbers of a warp's tiles: the first, and the stride.
    __device__ __forceinline__ uint32_t first_number(uint32_t tile_in_cta) const {
        return cta_tile0 * G::TILES + tile_in_cta;
    }
    __device__ __forceinline__ uint32_t step() const { return cta_tile_step * G::TILES; }
    __device__ __forceinline__ uint32_t tile(uint32_t number) const {
        return tile_at<SplitK::HAS_HALF_WAVE>(p, number);
    }
    // Whether the warp of a number is idle in the half wave. (p.full_wave_tiles is a multiple of
    // TILES.)
    __device__ __forceinline__ bool is_idle(uint32_t number, uint32_t tile_in_cta) const {
        return SplitK::HAS_HALF_WAVE && number >= p.full_wave_tiles &&
               tile_in_cta >= CTA_TILES_SMALL;
    }
    // Tiles of a cluster's CTA tile, and how many of them this CTA owns.
    __device__ __forceinline__ uint32_t tiles_here() const {
        return min(G::TILES, p.gemm.tiles - cta_tile0 * G::TILES);
    }
    __device__ __forceinline__ uint32_t owned_tiles() const {
        const uint32_t here = tiles_here();
        return SplitK::IS_CLUSTER && here > split
                   ? fast_divide(here - split + splits - 1, p.splits_reciprocal)
                   : 0;
    }
};

// Dynamic shared memory: sums from the cluster's CTAs [owned tiles, splits, N / 8, lanes, 4];
// behind them, or with SUMS_REUSE_RINGS at the same address: x of every run; weights of every
// consumer warp; exchanged or kept sums. crates/walla_cuda/src/lower/gemm_sm90.rs computes the
// size (`sized`) from the functions of gemm_sm90_config.cuh.
template <typename G>
struct SharedLayout {
    uint8_t* shared;
    uint32_t received;               // bytes of the cluster's sums
    uint32_t x_at, x_bytes;          // bytes: of a run
    uint32_t weights_at, ring_bytes; // bytes: of a warp
    uint32_t barriers;               // shared-memory address

    __device__ __forceinline__ SharedLayout(const TileScheduler<G>& scheduler, uint8_t* shared,
                                            const typename G::Shared& storage)
        : shared(shared) {
        const GemmSm90Params& p = scheduler.p;
        const uint32_t splits = scheduler.splits;
        received = G::SplitK::IS_CLUSTER ? fast_divide(G::TILES + splits - 1, p.splits_reciprocal) *
                                               splits * G::TILE_BYTES
                                         : 0;
        x_at = G::SUMS_REUSE_RINGS ? 0 : received;
        x_bytes = p.x_depth * G::X_STAGE;
        ring_bytes = p.weight_depth * G::W_STAGE;
        weights_at = x_at + G::RUNS * x_bytes;
        barriers = shared_address(storage.barriers);
    }
    __device__ __forceinline__ uint8_t* weights(uint32_t warp) const {
        return shared + weights_at + warp * ring_bytes;
    }
    // Sums of the consumer warps, behind the rings.
    __device__ __forceinline__ float* sums() const {
        return reinterpret_cast<float*>(shared + weights_at + G::CONSUMER_WARPS * ring_bytes);
    }
    __device__ __forceinline__ uint32_t weight_barriers(uint32_t warp) const {
        return barriers + 8 * warp * DEPTH_MAX;
    }
    __device__ __forceinline__ uint32_t x_barriers(uint32_t run) const {
        return barriers + 8 * G::CONSUMER_WARPS * DEPTH_MAX + run * 8 * 2 * DEPTH_MAX;
    }
    // Counts the bytes of the cluster's sums.
    __device__ __forceinline__ uint32_t sums_barrier() const { return x_barriers(G::RUNS); }
};
