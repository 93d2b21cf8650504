// gemm_sm80: out[r, m] (+)= sum_k W[m, k] * x[r, k], or a gate of two matrices (gemm_common.cuh),
// with mma for more than 8 rows of x, or 5 and more if K is large, if gemm_sm90.cuh does not
// compute them: GROUPS groups of 8 rows, 2 or 4.
// x: [rows, K] packed f16; W: [tiles * 16, K] in records (weight.cuh); out: [rows, M] f32, or
// packed f16.
//
// A team of one or two warps computes a tile at a time; each of its warps takes a run of
// neighbouring segments of 128 columns. Weights arrive through a ring in shared memory per warp,
// `chunk` segments at a time (from sm_90 on by bulk copies). The first copies start before the
// kernel waits for its predecessor, since weights never change. The rows of x of a split stay in
// shared memory. Every split has separate blocks; the last block to finish adds the splits.
//
// Grid: (blocks whose teams take tiles round-robin, rows of x / (8 * GROUPS), splits); small blocks
// share a multiprocessor.
// Bound: memory (bytes of W) up to some 32 rows, then tensor cores.
// Oracle: walla_cpu's scalar linear (tests/gpu/parity.rs); the difference is the rounding of x and
// W to f16. The bits equal the results of gemm_skinny.cuh (tests/gpu/determinism.rs).
#pragma once

#include "gemm/dequantise.cuh"
#include "gemm/gemm_common.cuh"
#include "common/stage_ring.cuh"

constexpr uint32_t SM80_WARPS_MAX = 16;

// Dynamic shared memory, in this order: the warps' rings; rows of x; sums of the warps. Tests of
// crates/walla_cuda evaluate these functions and compare the results with the host's.
__host__ __device__ constexpr uint32_t sm80_ring_bytes(uint32_t depth, uint32_t chunk,
                                                       uint32_t record) {
    return depth * 2 * chunk * record;
}
__host__ __device__ constexpr uint32_t sm80_group_bytes(uint32_t segments) {
    return segments * 8 * SEGMENT * 2;
}
__host__ __device__ constexpr uint32_t sm80_sums(uint32_t groups) {
    return 8 * groups * SUM_STRIDE;
}

struct GemmSm80Params {
    GemmParams gemm;
    float* partials;    // [splits, tiles, grid.y, 8 * GROUPS, 16]
    uint32_t* arrivals; // [grid.y, grid.x], zero between launches
    uint32_t by_output; // row r of x is the one that output r names (the head)
    uint32_t rows_last; // index of the last row of x
    uint32_t teams;     // per CTA; a warp of a team takes one run
    uint32_t depth;     // stages of a warp's ring, up to DEPTH_MAX
    uint32_t chunk;     // segments per stage
    uint32_t reserved;
};
static_assert(sizeof(GemmSm80Params) == 376 && offsetof(GemmSm80Params, by_output) == 352,
              "as in params.rs");

template <uint32_t TYPE, uint32_t GROUPS>
__device__ __forceinline__ void gemm_sm80(const GemmSm80Params& p) {
    const GemmParams& g = p.gemm;
    constexpr uint32_t RECORD = Record<TYPE>::BYTES;
    constexpr uint32_t COLUMNS = 8 * GROUPS;
    // Sums of one warp in one split.
    constexpr uint32_t SUMS = sm80_sums(GROUPS);
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(8) uint64_t barriers[SM80_WARPS_MAX * DEPTH_MAX + 1];
    __shared__ float factor[COLUMNS];
    __shared__ bool is_last;
    // Teams compute separate tiles; only the rows of x are common to the block.
    const uint32_t lane = threadIdx.x % WARP, warps = g.runs, threads = warps * WARP;
    const uint32_t team = threadIdx.x / WARP >> (warps - 1); // of one or two warps
    const uint32_t thread = threadIdx.x - team * threads, warp = thread / WARP;
    const uint32_t tile0 = blockIdx.x * p.teams + team, tile_step = gridDim.x * p.teams;
    const uint32_t segments = g.x.segments;
    const bool gated = g.mode >= GATE_SILU;
    const uint32_t split = blockIdx.z, first_segment = split * g.split_segments;
    const uint32_t segments_here = min(segments - first_segment, g.split_segments);
    // This warp's run of the split's segments; the last may be empty.
    const uint32_t run_begin = warp * g.run_segments,
                   run_end = min(run_begin + g.run_segments, segments_here);
    constexpr uint32_t SEGMENT_BYTES = 8 * 256; // of a group's rows of x
    const uint32_t group_bytes = sm80_group_bytes(segments_here);
    const uint32_t stage_bytes = 2 * p.chunk * RECORD;
    const uint32_t ring_at = threadIdx.x / WARP * p.depth * stage_bytes;
    const uint32_t ring_bytes = blockDim.x / WARP * sm80_ring_bytes(p.depth, p.chunk, RECORD);
    const uint32_t team_sums = warps * SUMS;
    float* sums =
        reinterpret_cast<float*>(shared + ring_bytes + GROUPS * group_bytes) + team * team_sums;
    const uint32_t shared_at = shared_address(shared);
    const uint32_t barriers_at = shared_address(barriers);
    Ring read = {shared_at + ring_at, barriers_at + threadIdx.x / WARP * (DEPTH_MAX * 8), p.depth,
                 0, 0};
    Ring write = read;

    // Next stage to copy: both halves of the tile, from this segment on. An empty run has none.
    uint32_t next_tile = run_begin < run_end ? tile0 : g.tiles, next_segment = run_begin;
    const uint8_t* tile_from =
        tile0 < g.tiles ? first_half<RECORD>(g, tile0, first_segment) : nullptr;
    const ptrdiff_t stride = half_stride<RECORD>(g);
    const auto fetch = [&] {
        if (next_tile < g.tiles && next_segment >= run_end) {
            next_tile += tile_step, next_segment = run_begin;
            if (next_tile < g.tiles)
                tile_from = first_half<RECORD>(g, next_tile, first_segment);
        }
        if (next_tile < g.tiles) {
            const uint32_t to = write.stages + write.slot * stage_bytes;
            const uint32_t bytes = min(p.chunk, run_end - next_segment) * RECORD;
            const uint8_t* from = tile_from + next_segment * RECORD;
#if __CUDA_ARCH__ >= 900
            if (lane == 0) {
                expect(write, 2 * bytes);
                copy_record(write, to, from, bytes);
                copy_record(write, to + p.chunk * RECORD, from + stride, bytes);
            }
#else
            for (uint32_t h = 0; h < 2; h++)
                for (uint32_t piece = lane * 16; piece < bytes; piece += WARP * 16)
                    copy_async(to + h * p.chunk * RECORD + piece, from + h * stride + piece);
#endif
            next_segment += p.chunk;
        }
#if __CUDA_ARCH__ < 900
        commit_copies();
#endif
        write.next();
    };
    const auto await_next = [&] {
#if __CUDA_ARCH__ >= 900
        await_stage(read);
#else
        await_copies(p.depth - 1);
        __syncwarp();
#endif
    };
#if __CUDA_ARCH__ >= 900
    init_own_barriers<DEPTH_MAX>(read.barriers);
    const Ring x_ring = {0, barriers_at + SM80_WARPS_MAX * DEPTH_MAX * 8, 1, 0, 0};
    if (threadIdx.x < WARP)
        init_own_barriers<1>(x_ring.barriers);
#endif
    for (uint32_t d = 0; d < p.depth; d++)
        fetch();
    launch_dependents();

    const uint8_t* stages = shared + ring_at;
    grid_dependency_wait();

    const uint32_t row0 = blockIdx.y * COLUMNS;
    const uint32_t x_at = shared_at + ring_bytes;
#if __CUDA_ARCH__ >= 900
    const bool copies_groups = !p.by_output;
    if (copies_groups && threadIdx.x == 0) {
        const uint32_t groups_here = min(GROUPS, div_up(g.rows_max - row0, 8));
        expect(x_ring, groups_here * group_bytes);
        for (uint32_t group = 0; group < groups_here; group++)
            copy_bulk(
                x_at + group * group_bytes,
                g.x.rows + (size_t(row0 / 8 + group) * segments + first_segment) * SEGMENT_BYTES,
                group_bytes, x_ring.barriers);
    }
#else
    const bool copies_groups = false;
#endif
    if (!copies_groups) {
        // Row by row: the four pieces of each block of 32.
        for (uint32_t s = threadIdx.x / WARP; s < segments_here; s += blockDim.x / WARP)
            for (uint32_t group = 0; group < GROUPS; group++) {
                const uint32_t n = min(row0 + group * 8 + lane / 4, g.rows_max - 1);
                const uint32_t r = p.by_output ? min(g.step.output(n).row, p.rows_last) : n;
#pragma unroll
                for (uint32_t j = 0; j < 4; j++)
                    copy_async(
                        x_at + group * group_bytes +
                            ((s * 16 + j * 4 + lane % 4) * 8 + lane / 4) * 16,
                        g.x.rows + piece_of(g.x, r, (first_segment + s) * 16 + j * 4 + lane % 4));
            }
        commit_copies();
    }
    for (uint32_t n = threadIdx.x / WARP; n < COLUMNS; n += blockDim.x / WARP) {
        float its = 1.0f;
        if (g.squares && row0 + n < g.rows_max) {
            const uint32_t r =
                p.by_output ? min(g.step.output(row0 + n).row, p.rows_last) : row0 + n;
            const float4* squares =
                reinterpret_cast<const float4*>(g.squares + size_t(r) * g.squares_count);
            float sum = 0.0f;
            for (uint32_t i = lane; i < g.squares_count / 4; i += WARP) {
                const float4 four = squares[i];
                sum += (four.x + four.y) + (four.z + four.w);
            }
            const float norm_factor = rsqrtf(warp_sum(sum) * g.inverse_width + g.eps);
            its = __fdividef(norm_factor, g.pack_factors[r]);
            if (g.factors && blockIdx.x == 0 && split == 0 && lane == 0)
                g.factors[r] = norm_factor;
        }
        if (lane == 0)
            factor[n] = its;
    }
    const uint32_t quads = gated ? 2 : 4;
    const uint32_t items = COLUMNS * quads;
    if (!copies_groups)
        await_copies<0>();
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    if (copies_groups)
        await_stage(x_ring);
#endif

    const auto sync_team = [&] {
        if (warps == 1)
            __syncwarp();
        else
            asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(threads) : "memory");
    };
    // Row lane % 8 of piece lane / 8.
    const uint32_t x = x_at + lane * 16;
    const uint32_t sum_at = (lane % 4 * 2) * SUM_STRIDE + lane / 4;
    float sum[GROUPS][4] = {};
    bool odd = false;
    for (uint32_t tile = tile0; tile < g.tiles; tile += tile_step, odd = !odd) {
        for (uint32_t first = run_begin; first < run_end; first += p.chunk) {
            const uint32_t chunk_end = min(first + p.chunk, run_end);
            const uint8_t* stage = stages + read.slot * stage_bytes;
            await_next();
            const auto multiply_block = [&](const uint32_t (&its)[2][4], uint32_t s, uint32_t j) {
#pragma unroll
                for (uint32_t group = 0; group < GROUPS; group++) {
                    uint32_t rows_of_x[4];
                    load_matrices(rows_of_x, x + group * group_bytes + (s * 4 + j) * 512);
                    multiply(sum[group], its[0], rows_of_x[0], rows_of_x[1]);
                    multiply(sum[group], its[1], rows_of_x[2], rows_of_x[3]);
                }
            };
            for (uint32_t s = first; s < chunk_end; s++) {
                HalfTile<TYPE> w[2];
                w[0].load(stage + (s - first) * RECORD, lane);
                w[1].load(stage + (p.chunk + s - first) * RECORD, lane);
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) {
                    uint32_t a[2][4];
                    unpack(a, w, j);
                    multiply_block(a, s, j);
                }
            }
            read.next();
            __syncwarp();
            fetch();
        }
        // Sum c of a lane: row lane / 4 (+ 8 from the third on) of the tile, column 2 * (lane % 4)
        // (+ 1 if c is odd) of the group.
        float* to = sums + warp * SUMS + sum_at;
#pragma unroll
        for (uint32_t group = 0; group < GROUPS; group++)
#pragma unroll
            for (uint32_t c = 0; c < 4; c++) {
                to[(group * 8 + c % 2) * SUM_STRIDE + c / 2 * 8] = sum[group][c];
                sum[group][c] = 0.0f;
            }
        sync_team();
        // Adds the warps' sums in order, four rows of the result per thread. If there is work for
        // some warps only, they alternate.
        const TileOf place = tile_of(g, tile);
        const uint32_t rotated = thread + (odd ? threads / 2 : 0);
        for (uint32_t item = rotated < threads ? rotated : rotated - threads; item < items;
             item += threads) {
            const uint32_t quad = item % quads, n = item / quads;
            float value[2][4] = {};
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                if (half == 1 && !gated)
                    continue;
                const float* at = sums + n * SUM_STRIDE + half * 8 + quad * 4;
#pragma unroll
                for (uint32_t w = 0; w < RUNS_MAX; w++) {
                    if (w >= warps)
                        continue;
                    const float4 four = *reinterpret_cast<const float4*>(at + w * SUMS);
                    value[half][0] += four.x, value[half][1] += four.y, value[half][2] += four.z,
                        value[half][3] += four.w;
                }
            }
            if (gridDim.z > 1) {
                float* to =
                    p.partials + ((size_t(split) * g.tiles + tile) * gridDim.y + blockIdx.y) *
                                     (COLUMNS * TILE_ROWS);
#pragma unroll
                for (uint32_t half = 0; half < 2; half++)
                    if (half == 0 || gated)
                        __stcg(reinterpret_cast<float4*>(to + n * TILE_ROWS + half * 8 + quad * 4),
                               make_float4(value[half][0], value[half][1], value[half][2],
                                           value[half][3]));
            } else {
                write_four(g, place, row0 + n, quad, factor[n], value);
            }
        }
        sync_team();
    }
    if (gridDim.z == 1)
        return;

    // The last block to finish adds the splits of all of its tiles.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t* arrivals = p.arrivals + blockIdx.y * gridDim.x + blockIdx.x;
        is_last = atomicAdd(arrivals, 1) == gridDim.z - 1;
        if (is_last)
            *arrivals = 0;
    }
    __syncthreads();
    if (!is_last)
        return;
    __threadfence();
    for (uint32_t tile = tile0; tile < g.tiles; tile += tile_step)
        for (uint32_t item = thread; item < items; item += threads) {
            const uint32_t quad = item % quads, n = item / quads;
            float value[2][4] = {};
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                if (half == 1 && !gated)
                    continue;
#pragma unroll 4
                for (uint32_t z = 0; z < g.splits; z++) {
                    const float* from = p.partials +
                                        ((size_t(z) * g.tiles + tile) * gridDim.y + blockIdx.y) *
                                            (COLUMNS * TILE_ROWS) +
                                        n * TILE_ROWS + half * 8 + quad * 4;
                    const float4 four = __ldcg(reinterpret_cast<const float4*>(from));
                    value[half][0] += four.x, value[half][1] += four.y, value[half][2] += four.z,
                        value[half][3] += four.w;
                }
            }
            write_four(g, tile_of(g, tile), row0 + n, quad, factor[n], value);
        }
}

// Defines the kernel `NAME`.
#define GEMM_SM80(NAME, TYPE, GROUPS)                                     \
    extern "C" __global__ void __launch_bounds__(SM80_WARPS_MAX* WARP, 1) \
        NAME(const __grid_constant__ GemmSm80Params p) {                  \
        gemm_sm80<TYPE, GROUPS>(p);                                       \
    }
