// experts_gemm: the products of a mixture of experts. For every choice c (experts.cuh) of an expert
// e, with x its row:
// mode GATE: h[c] = activation(G_e x)[..] * (U_e x)[..], packed;
// mode STORE: y[c] = D_e x.
//
// x: packed rows (packed_activations.cuh): row c / used, times factors[c / used] (GATE, if not
// null), or row c. G, U, D: [experts * height, K] in records (weight.cuh), height a multiple of 16,
// sums in f32. A tile is 8 rows of G and 8 of U, or 16 rows of D.
//
// The order of a sum depends on the matrix alone: the columns are cut into `runs` of `run_segments`
// segments (the last may have fewer). A run's sum is one chain of products of 16 columns that
// begins with zero, as in gemm_common.cuh; the sum is (0 + run 0) + run 1 + ….
//
// A CTA takes `block_tiles` tiles of one item's expert, and a warp one run of every tile of its
// team. Weights reach each warp through its own ring of stages, and are unpacked to f16 in
// registers once for all rows of a pass: `pass_rows` of the item's rows, which are gathered into
// shared memory. An item takes several passes, which read the weights again, only if its rows do
// not fit. The runs' sums meet in shared memory. Rings get the memory that the item's rows leave.
// Weights of D do not wait for h: its kernel starts when all CTAs of GATE have seen the choices
// (they call `launch_dependents` after their wait), so that it may read the choices, and fetch its
// first weights, before its own wait.
//
// Grid: (tiles of an expert / block_tiles, items of the bucket).
// Bound: bytes of the weights of the experts in use.
// Oracle: walla_cpu's scalar experts (tests/gpu/experts.rs).
#pragma once

#include "common/stage_ring.cuh"
#include "experts/experts.cuh"
#include "gemm/dequantise.cuh"
#include "gemm/gemm_common.cuh"

struct ExpertsGemmParams {
    ChoicesRef choices;
    PackedRef x;
    PackedRef h; // GATE: the result
    float* y;    // STORE: the result, [choices, height]
    const float* factors;
    WeightRef weight[2]; // G and U, or D twice
    uint32_t height;
    uint32_t mode;  // LinearMode: STORE or GATE
    float unscale;  // 1 / x.scale
    uint32_t tiles; // of an expert
    uint32_t block_tiles;
    uint32_t runs; // 1, 2 or 4
    uint32_t run_segments;
    uint32_t stage_segments; // of a stage of a ring
    uint32_t pass_rows;      // up to 8, or 8 * GROUPS
    uint32_t shared_bytes;   // dynamic shared memory
};
static_assert(sizeof(ExpertsGemmParams) == 200, "as in params/experts.rs");

constexpr uint32_t EXPERTS_WARPS = 8;
constexpr uint32_t EXPERTS_RUNS_MAX = 4;

// Dynamic shared memory, in this order: rows of x; sums of the runs of two waves; rings of the
// warps. Tests of crates/walla_cuda evaluate these functions and compare the results with the
// host's.
__host__ __device__ constexpr uint32_t experts_x_bytes(uint32_t segments, uint32_t rows) {
    return segments * SEGMENT * 2 * rows;
}
__host__ __device__ constexpr uint32_t experts_sums_bytes(uint32_t rows) {
    return 2 * EXPERTS_WARPS * ((rows + 7) / 8 * 8) * SUM_STRIDE * 4;
}
__host__ __device__ constexpr uint32_t experts_stage_bytes(uint32_t segments, uint32_t record) {
    return EXPERTS_WARPS * segments * 2 * record;
}

// Static shared memory of a CTA.
struct ExpertsShared {
    __align__(8) uint64_t full[EXPERTS_WARPS * DEPTH_MAX];
    uint32_t choices[ITEM_ROWS_MAX];
    float factors[ITEM_ROWS_MAX];
};

// Runs of a warp and their weights.
template <uint32_t TYPE>
struct ExpertsWeights {
    static constexpr uint32_t RECORD = Record<TYPE>::BYTES;
    const uint8_t* shared; // ring of the warp
    uint32_t ring;         // its address in shared memory
    uint32_t barriers;
    uint32_t depth, stage_segments, half_bytes;
    uint32_t begin, end;             // segments of the run
    uint32_t first, tile_end, teams; // tiles of the team: first, first + teams, …
    const uint8_t* records[2];       // of the item's expert and the run's first segment
    size_t tile_bytes;               // from a tile to the next, of one half
    // Next stage to fetch.
    uint32_t tile, segment, stages_left;
    PipelineState write, read;

    // Starts the copies of the next stage, if one is left. All lanes call it.
    __device__ __forceinline__ void fetch() {
        if (stages_left > 0) {
            stages_left--;
            const uint32_t bytes = min(stage_segments, end - segment) * RECORD;
            const size_t at = tile * tile_bytes + (segment - begin) * RECORD;
            issue(records[0] + at, records[1] + at, bytes);
            segment += stage_segments;
            if (segment >= end) {
                segment = begin, tile += teams;
                if (tile >= tile_end)
                    tile = first; // the next pass
            }
        }
#if __CUDA_ARCH__ < 900
        cp_async_commit_group();
#endif
        write.next(depth);
    }
    // Waits for the next stage.
    __device__ __forceinline__ const uint8_t* await_stage() const {
#if __CUDA_ARCH__ >= 900
        mbarrier_wait_parity(barriers + 8 * read.slot, read.phase);
#else
        cp_async_wait_group(depth - 1);
        __syncwarp();
#endif
        return shared + read.slot * 2 * half_bytes;
    }
    // Refills the stage that was read.
    __device__ __forceinline__ void release_stage() {
        __syncwarp();
        fetch();
        read.next(depth);
    }

  private:
    __device__ __forceinline__ void issue(const uint8_t* a, const uint8_t* b,
                                          uint32_t bytes) const {
        const uint32_t to = ring + write.slot * 2 * half_bytes;
#if __CUDA_ARCH__ >= 900
        if (!is_elected())
            return;
        const uint32_t barrier = barriers + 8 * write.slot;
        mbarrier_arrive_expect_tx(barrier, 2 * bytes);
        copy_bulk_once(to, a, bytes, barrier);
        copy_bulk_once(to + half_bytes, b, bytes, barrier);
#else
        for (uint32_t i = threadIdx.x % WARP * 16; i < bytes; i += WARP * 16) {
            copy_async(to + i, a + i);
            copy_async(to + half_bytes + i, b + i);
        }
#endif
    }
};

// Rows of x of a pass in shared memory: [groups, pieces, rows of a group, 16 bytes].
struct ExpertsRows {
    uint32_t x;          // shared-memory address
    uint32_t group_rows; // up to 8

    __device__ __forceinline__ uint32_t group_bytes(uint32_t segments) const {
        return segments * 16 * group_rows * 16;
    }
    // Copies the rows of choices, and waits for them. Threads that are neighbours copy the same
    // piece of a group's rows.
    __device__ __forceinline__ void gather(const ExpertsGemmParams& p, const uint32_t* choices,
                                           uint32_t count) const {
        const uint32_t pieces = p.x.segments * 16;
        for (uint32_t first = 0; first < count; first += 8) {
            const uint32_t rows = min(count - first, 8);
            const uint32_t n = threadIdx.x % rows, step = EXPERTS_WARPS * WARP / rows;
            const uint32_t choice = choices[first + n];
            const uint32_t row = p.mode == STORE ? choice : choice / p.choices.used;
            const uint8_t* from = p.x.rows + piece_of(p.x, row, 0);
            const uint32_t to = x + first / 8 * group_bytes(p.x.segments) + n * 16;
            for (uint32_t i = threadIdx.x / rows; i < pieces; i += step)
                if (threadIdx.x < rows * step)
                    copy_async(to + i * group_rows * 16, from + i * piece_stride(p.x));
        }
        cp_async_commit_group();
        cp_async_wait_group<0>();
        __syncthreads();
    }
};

// Multiplies a run of a tile by all rows of a pass. Sum c of a lane: row lane / 4 (+ 8 from the
// third on) of the tile, column 2 * (lane % 4) (+ 1 if c is odd) of a group. Sums of the first
// `LIVE` groups: without branches, loads for a group overlap products of another.
template <uint32_t LIVE, uint32_t TYPE, uint32_t GROUPS>
__device__ __forceinline__ void multiply_run(float (&sum)[GROUPS][4], ExpertsWeights<TYPE>& weights,
                                             const ExpertsRows& rows, uint32_t segments) {
    const uint32_t lane = threadIdx.x % WARP;
    // Row lane % 8 of piece lane / 8. Rows that do not exist repeat the last.
    const uint32_t x =
        rows.x + (lane / 8 * rows.group_rows + min(lane % 8, rows.group_rows - 1)) * 16;
    for (uint32_t first = weights.begin; first < weights.end; first += weights.stage_segments) {
        const uint8_t* records = weights.await_stage();
        const uint32_t end = min(first + weights.stage_segments, weights.end);
        for (uint32_t s = first; s < end; s++, records += ExpertsWeights<TYPE>::RECORD) {
            HalfTile<TYPE> w[2];
            w[0].load(records, lane);
            w[1].load(records + weights.half_bytes, lane);
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                uint32_t a[2][4];
                unpack(a, w, j);
#pragma unroll
                for (uint32_t g = 0; g < LIVE; g++) {
                    uint32_t b[4];
                    ldmatrix_x4(b, x + g * rows.group_bytes(segments) +
                                       (s * 4 + j) * 4 * rows.group_rows * 16);
                    mma_m16n8k16(sum[g], a[0], b[0], b[1]);
                    mma_m16n8k16(sum[g], a[1], b[2], b[3]);
                }
            }
        }
        weights.release_stage();
    }
}

// Adds the runs of four neighbouring rows of a tile, in order.
__device__ __forceinline__ void add_runs(float (&value)[4], const float* sums, uint32_t runs,
                                         uint32_t stride) {
#pragma unroll
    for (uint32_t c = 0; c < 4; c++)
        value[c] = 0.0f;
    for (uint32_t run = 0; run < runs; run++, sums += stride) {
        const float4 four = *reinterpret_cast<const float4*>(sums);
        value[0] += four.x, value[1] += four.y, value[2] += four.z, value[3] += four.w;
    }
}

// Writes the results of a wave of tiles: four neighbours per thread.
__device__ __forceinline__ void write_wave(const ExpertsGemmParams& p, const ExpertsShared& storage,
                                           const float* sums, uint32_t warp_sums, uint32_t base,
                                           uint32_t tiles, uint32_t count) {
    const bool gated = p.mode != STORE;
    const uint32_t quads = gated ? 2 : 4;
    for (uint32_t i = threadIdx.x; i < tiles * count * quads; i += EXPERTS_WARPS * WARP) {
        const uint32_t quad = i % quads, n = i / quads % count, tile = i / quads / count;
        const float* from = sums + tile * p.runs * warp_sums + n * SUM_STRIDE + quad * 4;
        const uint32_t choice = storage.choices[n];
        const float factor = storage.factors[n] * p.unscale;
        const uint32_t row = (base + tile) * quads * 4 + quad * 4;
        float value[4];
        add_runs(value, from, p.runs, warp_sums);
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            value[c] *= factor * p.weight[0].scale;
        if (!gated) {
            *reinterpret_cast<float4*>(p.y + size_t(choice) * p.height + row) =
                make_float4(value[0], value[1], value[2], value[3]);
            continue;
        }
        float up[4];
        add_runs(up, from + 8, p.runs, warp_sums);
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            value[c] = activate(value[c], p.mode) * (up[c] * (factor * p.weight[1].scale));
        store_packed(p.h, choice, row, value);
    }
}

template <uint32_t TYPE, uint32_t GROUPS>
__device__ __forceinline__ void experts_gemm(const ExpertsGemmParams& p, ExpertsShared& storage) {
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr uint32_t RECORD = Record<TYPE>::BYTES;
    const bool gated = p.mode != STORE;
    const uint32_t lane = threadIdx.x % WARP, warp = __shfl_sync(FULL_MASK, threadIdx.x / WARP, 0);
    if (gated)
        grid_dependency_wait();
    launch_dependents();
    // Not through L1, where lines of an earlier launch may be.
    if (blockIdx.y >= __ldcg(p.choices.counts))
        return;
    const uint4 words = __ldcg(reinterpret_cast<const uint4*>(p.choices.items) + blockIdx.y);
    const ExpertItem item = {words.x, words.y, words.z, words.w};

    // Memory for whole groups: one, two or four.
    const uint32_t segments = p.x.segments, passes = div_up(item.count, p.pass_rows);
    const uint32_t rows_max = min(item.count, p.pass_rows);
    const uint32_t rows = rows_max > 16 ? 32 : rows_max > 8 ? 16 : min(p.pass_rows, 8);
    const uint32_t groups_max = div_up(rows, 8);
    const uint32_t x_bytes = experts_x_bytes(segments, rows);
    const uint32_t sums_bytes = experts_sums_bytes(rows), warp_sums = groups_max * 8 * SUM_STRIDE;
    float* sums = reinterpret_cast<float*>(shared + x_bytes);
    const ExpertsRows x = {shared_address(shared), min(p.pass_rows, 8)};

    const uint32_t teams = EXPERTS_WARPS / p.runs, team = warp / p.runs, run = warp % p.runs;
    const uint32_t tile0 = blockIdx.x * p.block_tiles,
                   tile_end = min(tile0 + p.block_tiles, p.tiles);
    ExpertsWeights<TYPE> weights;
    weights.stage_segments = p.stage_segments, weights.half_bytes = p.stage_segments * RECORD;
    weights.depth =
        min((p.shared_bytes - x_bytes - sums_bytes) / experts_stage_bytes(p.stage_segments, RECORD),
            DEPTH_MAX);
    const uint32_t ring_at = x_bytes + sums_bytes + warp * weights.depth * 2 * weights.half_bytes;
    weights.shared = shared + ring_at, weights.ring = shared_address(shared) + ring_at;
    weights.barriers = shared_address(storage.full) + 8 * warp * DEPTH_MAX;
    weights.begin = run * p.run_segments;
    weights.end = min(weights.begin + p.run_segments, segments);
    weights.first = tile0 + team, weights.tile_end = tile_end, weights.teams = teams;
    weights.tile_bytes = size_t(gated ? 1 : 2) * segments * RECORD;
    const size_t half = size_t(item.expert) * (p.height / 8);
    weights.records[0] = p.weight[0].records + (half * segments + weights.begin) * RECORD;
    weights.records[1] = gated ? p.weight[1].records + (half * segments + weights.begin) * RECORD
                               : weights.records[0] + size_t(segments) * RECORD;
    weights.tile = weights.first, weights.segment = weights.begin;
    const uint32_t team_tiles =
        weights.first < tile_end ? div_up(tile_end - weights.first, teams) : 0;
    const uint32_t run_stages =
        weights.begin < weights.end ? div_up(weights.end - weights.begin, p.stage_segments) : 0;
    weights.stages_left = passes * team_tiles * run_stages;
#if __CUDA_ARCH__ >= 900
    init_own_barriers<DEPTH_MAX>(weights.barriers);
#endif
    for (uint32_t i = 0; i < weights.depth; i++)
        weights.fetch();
    if (!gated)
        grid_dependency_wait();

    bool odd = false;
    for (uint32_t pass = 0; pass < passes; pass++) {
        const uint32_t from = pass * p.pass_rows, count = min(item.count - from, p.pass_rows);
        // The last wave of the pass before has read them.
        __syncthreads();
        if (threadIdx.x < count) {
            const uint32_t choice = __ldcg(p.choices.list + item.first + from + threadIdx.x);
            storage.choices[threadIdx.x] = choice;
            storage.factors[threadIdx.x] = p.factors ? p.factors[choice / p.choices.used] : 1.0f;
        }
        __syncthreads();
        x.gather(p, storage.choices, count);
        for (uint32_t base = tile0; base < tile_end; base += teams, odd = !odd) {
            float sum[GROUPS][4] = {};
            float* its_sums = sums + (odd ? EXPERTS_WARPS * warp_sums : 0);
            // Rows from `count` on are undefined: only their own sums are.
            if (base + team < tile_end) {
                if (GROUPS > 2 && count > 16)
                    multiply_run<GROUPS>(sum, weights, x, segments);
                else if (GROUPS > 1 && count > 8)
                    multiply_run < GROUPS<2 ? GROUPS : 2>(sum, weights, x, segments);
                else
                    multiply_run<1>(sum, weights, x, segments);
            }
#pragma unroll
            for (uint32_t g = 0; g < GROUPS; g++)
                if (g < groups_max)
#pragma unroll
                    for (uint32_t c = 0; c < 4; c++)
                        its_sums[warp * warp_sums + g * 8 * SUM_STRIDE + sum_place(c, lane)] =
                            sum[g][c];
            __syncthreads();
            write_wave(p, storage, its_sums, warp_sums, base, min(teams, tile_end - base), count);
        }
    }
}

// Defines the kernel `NAME`.
#define EXPERTS_GEMM(NAME, TYPE, GROUPS)                                                   \
    extern "C" __global__ void __launch_bounds__(EXPERTS_WARPS* WARP, GROUPS <= 2 ? 2 : 1) \
        NAME(const __grid_constant__ ExpertsGemmParams p) {                                \
        __shared__ ExpertsShared storage;                                                  \
        experts_gemm<TYPE, GROUPS>(p, storage);                                            \
    }
// The kernels of a type, for passes of 8, 16 and 32 rows.
#define EXPERTS_GEMMS(NAME, TYPE)    \
    EXPERTS_GEMM(NAME##_8, TYPE, 1)  \
    EXPERTS_GEMM(NAME##_16, TYPE, 2) \
    EXPERTS_GEMM(NAME##_32, TYPE, 4)
