// gemm_skinny: out[r, m] (+)= sum_k W[m, k] * x[r, k], or a gate of two matrices (gemm_common.cuh),
// for groups of up to 8 rows of x, one group per block.
// x: [rows, K] packed f16; W: [tiles * 16, K] in records (weight.cuh); out: [rows, M] f32, or
// packed f16.
// Bound for 1 to 8 rows: bytes of W, and the node's latency if it has few of them. It takes more
// rows only if no other kernel fits: the blocks of a tile's groups run concurrently, so that all
// but one read W from L2.
//
// A block has 8 warps, and two blocks share a multiprocessor; or 16 warps if there are too few
// tiles for that or two blocks do not fit. It takes `wave_tiles` tiles per wave. A team has as many
// warps as a split has runs; it computes one split of a tile, one run per warp. Weights reach each
// warp through its own ring, `chunk` segments per stage, by two copies, for the two half tiles. The
// runs' sums meet in shared memory, where one thread adds the sums of an output in order.
//
// Weights never change. Before a block waits for its predecessor it starts copies for all stages of
// its ring (or for some, if the predecessor needs the memory bandwidth until its end), unpacks the
// first AHEAD segments of each warp and computes where its results go. It lets its successor start
// at once. Little work remains after the wait: x is copied, the tensor cores multiply, sums are
// added and written. Register spills cost more than everything else: they go to L1, and shared
// memory leaves almost none of it. Data that is known in advance about an output is therefore kept
// in shared memory. Code that runs once costs some 12 cycles per instruction, so it is short and
// its loops are not unrolled.
//
// Shared memory holds all of x, or `x_splits` splits of it at a time.
// Grid: (blocks, rows of x / 8); for a pair the blocks of one product, then of the other.
// Oracle: walla_cpu's scalar linear (tests/gpu/parity.rs); the bits equal the results of
// gemm_sm80.cuh and gemm_sm90.cuh (tests/gpu/determinism.rs).
#pragma once

#include "gemm/dequantise.cuh"
#include "gemm/gemm_skinny_epilogue.cuh"
#include "common/stage_ring.cuh"

// Static shared memory of a block.
struct SkinnyShared {
    __align__(8) uint64_t full[SKINNY_WARPS_LARGE * DEPTH_MAX];
    float factor[8];
    Output first_outputs[FIRST_OUTPUTS];
};

template <uint32_t TYPE>
__device__ __forceinline__ void gemm_skinny(const GemmSkinnyParams& p, SkinnyShared& of_cta,
                                            CtaRange ctas) {
    const GemmParams& g = p.gemm;
    constexpr uint32_t RECORD = Record<TYPE>::BYTES;
    extern __shared__ __align__(128) uint8_t shared[];
    [[maybe_unused]] auto& full = of_cta.full;
    auto& factor = of_cta.factor;
    auto& first_outputs = of_cta.first_outputs;
    let_successors_start();
    // Read once: special registers are slow.
    uint32_t lane = threadIdx.x % WARP;
    asm volatile("mov.u32 %0, %0;" : "+r"(lane));
    const uint32_t warp = __shfl_sync(FULL_MASK, threadIdx.x / WARP, 0);
    const uint32_t threads = blockDim.x;
    const uint32_t segments = g.x.segments, rows = g.x.group_rows;
    const uint32_t half_bytes = p.chunk * RECORD, stage_bytes = 2 * half_bytes,
                   ring_bytes = skinny_ring_bytes(p.depth, p.chunk, RECORD);
    const uint32_t shared_at = shared_of(shared), rings_bytes = threads / WARP * ring_bytes;
    const uint32_t wave_tiles = ctas.count * p.wave_tiles, base0 = ctas.index * p.wave_tiles;
    const uint32_t row0 = blockIdx.y * 8;
    const uint32_t rows_here = min(8, g.rows_max - row0);
    const auto row_of = [&](uint32_t n) {
        return p.by_output ? min(g.step.output(row0 + n).row, p.rows_last) : row0 + n;
    };

    // A team has one or two warps.
    static_assert(RUNS_MAX == 2);
    const uint32_t team = warp >> (g.runs - 1), run = warp & (g.runs - 1);
    const auto splits_from = [&](uint32_t first_split) {
        return min(p.x_splits, g.splits - first_split);
    };
    const auto begin_of = [&](uint32_t split) {
        return split * g.split_segments + run * g.run_segments;
    };
    const auto end_of = [&](uint32_t split) {
        return min(min(begin_of(split) + g.run_segments, (split + 1) * g.split_segments), segments);
    };
    // A warp's weights arrive in stages, numbered through all waves: the tasks of a wave's pass,
    // then the stages of a task. A task is one split of a tile; the splits whose x is in shared
    // memory are ordered tile by tile, and teams take them round-robin. Some stages are empty. The
    // path to the first copy is short, because nothing arrives before it: the host computes each
    // warp's first stage. Each lane then locates one of the next 32 stages, so all of them are
    // found at once, while the first copy is in flight.
    const uint32_t task_stages = p.stages, tasks = p.tasks;
#if __CUDA_ARCH__ >= 900
    const uint32_t early = p.early_stages;
#else
    const uint32_t early = p.depth; // before sm_90 no predecessor is running
#endif
    const ptrdiff_t stride = half_stride<RECORD>(g);
    const uint32_t ring_at = shared_at + warp * ring_bytes;
    const uint8_t* coming = nullptr;
    uint32_t coming_bytes = 0, fetched = 0;
    const auto find = [&](uint32_t stage) {
        coming_bytes = 0;
        const uint32_t task = divided(stage, p.by_stages), pass = divided(task, p.by_tasks),
                       round = divided(pass, p.by_passes);
        const uint32_t first_split = (pass - round * p.passes) * p.x_splits,
                       index = team + (task - pass * tasks) * p.teams;
        const uint32_t at = divided(index, p.by_x_splits),
                       split = first_split + index - at * p.x_splits;
        const uint32_t tile = base0 + round * wave_tiles + at,
                       begin = begin_of(split) + (stage - task * task_stages) * p.chunk,
                       end = end_of(split);
        if (at >= p.wave_tiles || tile >= g.tiles || begin >= end)
            return;
        coming = first_half<RECORD>(g, tile, begin);
        coming_bytes = min(p.chunk, end - begin) * RECORD;
    };
    // Starts the copies of the next stage; on sm_90 one elected lane calls it.
    const auto ask = [&](uint32_t slot, const uint8_t* from, uint32_t bytes) {
        const uint32_t to = ring_at + slot * stage_bytes;
#if __CUDA_ARCH__ >= 900
        const uint32_t barrier = shared_of(full) + 8 * (warp * DEPTH_MAX + slot);
        expect_bytes(barrier, 2 * bytes);
        if (bytes > 0) {
            copy_bulk_once(to, from, bytes, barrier);
            copy_bulk_once(to + half_bytes, from + stride, bytes, barrier);
        }
#else
        for (uint32_t i = lane * 16; i < bytes; i += WARP * 16) {
            copy_ahead(to + i, from + i);
            copy_ahead(to + half_bytes + i, from + stride + i);
        }
        close_copies();
#endif
    };
    // Starts the copies of the next stage after the first, if one is left.
    const auto fetch = [&](uint32_t slot) {
#if __CUDA_ARCH__ >= 900
        if (fetched >= p.all_stages)
            return;
#endif
        if (fetched == 1 || fetched % WARP == 0)
            find(fetched / WARP * WARP + lane);
        const uint32_t bytes = __shfl_sync(FULL_MASK, coming_bytes, fetched % WARP);
        const uint8_t* from = reinterpret_cast<const uint8_t*>(
            __shfl_sync(FULL_MASK, reinterpret_cast<unsigned long long>(coming), fetched % WARP));
        fetched++;
#if __CUDA_ARCH__ >= 900
        if (is_elected())
#endif
            ask(slot, from, bytes);
    };
#if __CUDA_ARCH__ >= 900
    init_own_barriers<DEPTH_MAX>(shared_of(full) + 8 * warp * DEPTH_MAX);
#endif
    const uint32_t first = p.first[warp], first_tile = base0 + (first & 0xff);
    const uint8_t* first_from = first_half<RECORD>(g, first_tile, first >> 16);
    const uint32_t first_bytes = first_tile < g.tiles ? (first >> 8 & 0xff) * RECORD : 0;
    fetched++;
#if __CUDA_ARCH__ >= 900
    if (is_elected())
#endif
        ask(0, first_from, first_bytes);
#pragma unroll 1
    for (uint32_t d = 1; d < early; d++)
        fetch(d);

    const uint32_t x_at = shared_at + rings_bytes;
    const uint32_t x_segments = min(segments, p.x_splits * g.split_segments);
    const bool gated = g.mode >= GATE_SILU;
    const uint32_t task_sums = rows * SUM_STRIDE;
    const uint32_t pass_sums = skinny_sums(p.wave_tiles, p.x_splits, g.runs, rows);
    float* sums = reinterpret_cast<float*>(shared + rings_bytes + skinny_x_bytes(x_segments, rows));
    // Sums over the splits of earlier passes.
    float2* totals = reinterpret_cast<float2*>(sums + 2 * pass_sums);
    const uint32_t outputs = p.wave_tiles * rows_here * (gated ? 8 : 16);
    if (threadIdx.x < FIRST_OUTPUTS)
        first_outputs[threadIdx.x] = output_of(p, threadIdx.x, base0, row0, rows_here);

    const auto fetch_x = [&](uint32_t first_segment) {
        const uint32_t pieces = min(segments - first_segment, x_segments) * 16;
        if (p.by_output) {
#pragma unroll 1
            for (uint32_t n = 0; n < rows_here; n++) {
                const uint8_t* from = g.x.rows + piece_of(g.x, row_of(n), first_segment * 16);
#pragma unroll 1
                for (uint32_t i = threadIdx.x; i < pieces; i += threads)
                    copy_ahead(x_at + (i * rows + n) * 16, from + i * piece_stride(g.x));
            }
        } else {
            const uint8_t* from = g.x.rows + piece_of(g.x, row0, first_segment * 16);
#pragma unroll 1
            for (uint32_t i = threadIdx.x; i < pieces * rows; i += threads)
                copy_ahead(x_at + i * 16, from + i * 16);
        }
        close_copies();
    };
    // One warp computes the norm's factor of a row: it loads the inputs together with x, and
    // finishes after the products.
    float squares = 0.0f, used = 1.0f;
    const auto fetch_squares = [&] {
        const uint32_t r = row_of(warp);
        const float4* from =
            reinterpret_cast<const float4*>(g.squares + size_t(r) * g.squares_count);
#pragma unroll 1
        for (uint32_t i = lane; i < g.squares_count / 4; i += WARP) {
            const float4 four = from[i];
            squares += (four.x + four.y) + (four.z + four.w);
        }
        used = g.used[r];
    };
    bool has_x = false;
    const auto await_x = [&] {
        wait_for_predecessors();
        fetch_x(0);
        if (g.squares && warp < rows_here)
            fetch_squares();
        if (g.mode == ADD && threadIdx.x < FIRST_OUTPUTS && first_outputs[threadIdx.x].is_there) {
            prefetch_l1(first_outputs[threadIdx.x].out);
            if (g.next_norm)
                prefetch_l1(g.next_factors + row0 + first_outputs[threadIdx.x].n);
        }
#pragma unroll 1
        for (uint32_t d = early; d < p.depth; d++)
            fetch(d);
        await_copies<0>();
        // Warps reach this barrier from different call sites.
        asm volatile("barrier.sync 1, %0;" ::"r"(threads) : "memory");
        has_x = true;
    };
#if __CUDA_ARCH__ < 900
    await_x();
#endif

    // Row lane % 8 of piece lane / 8; rows that are not there repeat the last.
    const uint32_t x_lane = x_at + (lane / 8 * rows + min(lane % 8, rows - 1)) * 16;
    // Sum c of a lane: row lane / 4 (+ 8 from the third on) of the tile, column 2 * (lane % 4) (+ 1
    // if c is odd) of x's rows.
    const uint32_t sum_at = run * task_sums + lane % 4 * 2 * SUM_STRIDE + lane / 4;
    bool odd = false, is_first = true;
    uint32_t slot = 0;
    [[maybe_unused]] uint32_t phase = 0;
    for (uint32_t base = base0; base < g.tiles; base += wave_tiles) {
        for (uint32_t first_split = 0; first_split < g.splits; first_split += p.x_splits) {
            const uint32_t splits_here = splits_from(first_split);
            const uint32_t x_first = p.x_splits < g.splits ? first_split * g.split_segments : 0;
            if (!is_first && p.x_splits < g.splits) {
                fetch_x(x_first);
                await_copies<0>();
                __syncthreads();
            }
            float* pass = sums + (odd ? pass_sums : 0);
            uint32_t at = 0, split = team;
            for (uint32_t task = 0; task < tasks; task++, split += p.teams) {
#pragma unroll 1
                while (split >= p.x_splits)
                    split -= p.x_splits, at++;
                const bool is_there =
                    at < p.wave_tiles && base + at < g.tiles && split < splits_here;
                const uint32_t end = is_there ? end_of(first_split + split) : 0;
                float sum[4] = {};
                uint32_t stage = begin_of(first_split + split);
                for (uint32_t i = 0; i < task_stages; i++, stage += p.chunk) {
                    const uint32_t stage_end = min(stage + p.chunk, end);
                    const uint8_t* from = shared + warp * ring_bytes + slot * stage_bytes;
#if __CUDA_ARCH__ >= 900
                    await_phase(shared_of(full) + 8 * (warp * DEPTH_MAX + slot), phase);
#else
                    await_copies(p.depth - 1);
                    __syncwarp();
#endif
                    // A warp whose first stage is empty unpacks the slot's undefined contents:
                    // loading x needs all warps, and its code shall exist once.
                    for (uint32_t s = stage; s < stage_end || !has_x;
                         s += AHEAD, from += AHEAD * RECORD) {
                        uint32_t a[AHEAD][4][2][4];
#pragma unroll
                        for (uint32_t u = 0; u < AHEAD; u++) {
                            if (u > 0 && s + u >= stage_end)
                                continue;
                            HalfTile<TYPE> w[2];
                            w[0].load(from + u * RECORD, lane);
                            w[1].load(from + half_bytes + u * RECORD, lane);
#pragma unroll
                            for (uint32_t j = 0; j < 4; j++)
                                unpack(a[u][j], w, j);
                        }
                        if (__builtin_expect(!has_x, 0)) {
                            await_x();
                            if (s >= stage_end)
                                break;
                        }
                        const uint32_t x = x_lane + (s - x_first) * rows * 256;
#pragma unroll
                        for (uint32_t u = 0; u < AHEAD; u++) {
                            if (u > 0 && s + u >= stage_end)
                                continue;
#pragma unroll
                            for (uint32_t j = 0; j < 4; j++) {
                                uint32_t b[4];
                                load_matrices(b, x + (u * 4 + j) * rows * 64);
                                multiply(sum, a[u][j][0], b[0], b[1]);
                                multiply(sum, a[u][j][1], b[2], b[3]);
                            }
                        }
                    }
                    __syncwarp();
                    fetch(slot);
                    if (++slot == p.depth)
                        slot = 0, phase ^= 1;
                }
                if (!is_there)
                    continue;
                float* to = pass + (at * p.x_splits + split) * g.runs * task_sums + sum_at;
#pragma unroll
                for (uint32_t c = 0; c < 4; c++)
                    if (lane % 4 * 2 + c % 2 < rows_here)
                        to[c % 2 * SUM_STRIDE + c / 2 * 8] = sum[c];
            }
            if (is_first && g.squares && warp < rows_here) {
                const float exact = rsqrtf(warp_sum(squares) * g.inverse_width + g.eps);
                if (lane == 0) {
                    factor[warp] = __fdividef(exact, used);
                    if (g.factors && ctas.index == 0)
                        g.factors[row_of(warp)] = exact;
                }
            }
            __syncthreads();
#pragma unroll 1
            for (uint32_t first = warp * WARP; first < outputs; first += threads) {
                const uint32_t index = first + lane;
                const bool is_known = base == base0 && index < FIRST_OUTPUTS;
                const Output output =
                    is_known ? first_outputs[index] : output_of(p, index, base, row0, rows_here);
                const bool is_any = output.tile < p.wave_tiles && base + output.tile < g.tiles;
                const bool adds = g.mode == ADD && output.is_there;
                const float old = adds ? *output.out : 0.0f,
                            near = adds && g.next_norm ? g.next_factors[row0 + output.n] : 0.0f;
                float value[2] = {};
                if (is_any && first_split > 0)
                    value[0] = totals[index].x, value[1] = totals[index].y;
#pragma unroll
                for (uint32_t half = 0; half < 2; half++) {
                    if (half == 1 && !gated)
                        continue;
                    const float* from = pass + output.tile * p.x_splits * g.runs * task_sums +
                                        output.n * SUM_STRIDE + half * 8 + output.m;
#pragma unroll 1
                    for (uint32_t split = 0; split < splits_here;
                         split += SPLITS_AT_ONCE, from += SPLITS_AT_ONCE * g.runs * task_sums) {
                        float its[SPLITS_AT_ONCE][RUNS_MAX];
#pragma unroll
                        for (uint32_t i = 0; i < SPLITS_AT_ONCE; i++)
#pragma unroll
                            for (uint32_t w = 0; w < RUNS_MAX; w++)
                                its[i][w] = is_any && split + i < splits_here && w < g.runs
                                                ? from[(i * g.runs + w) * task_sums]
                                                : 0.0f;
#pragma unroll
                        for (uint32_t i = 0; i < SPLITS_AT_ONCE; i++) {
                            float all = 0.0f;
#pragma unroll
                            for (uint32_t w = 0; w < RUNS_MAX; w++)
                                all += its[i][w];
                            value[half] += all;
                        }
                    }
                }
                if (first_split + splits_here < g.splits) {
                    if (is_any)
                        totals[index] = make_float2(value[0], value[1]);
                } else
                    write_one(g, output, base, row0, g.squares ? factor[output.n] : 1.0f, old, near,
                              value[0], value[1]);
            }
            odd = !odd, is_first = false;
        }
    }
}

// Defines the kernel `NAME`.
#define GEMM_SKINNY(NAME, TYPE)                                               \
    extern "C" __global__ void __launch_bounds__(SKINNY_WARPS_LARGE* WARP, 1) \
        NAME(const __grid_constant__ GemmSkinnyParams p) {                    \
        __shared__ SkinnyShared of_cta;                                       \
        gemm_skinny<TYPE>(p, of_cta, {blockIdx.x, gridDim.x});                \
    }
// The same for a product of TYPE, a product of OTHER, or one of each in one launch.
#define GEMM_SKINNY_PAIR(NAME, TYPE, OTHER)                                      \
    extern "C" __global__ void __launch_bounds__(SKINNY_WARPS_LARGE* WARP, 1)    \
        NAME(const __grid_constant__ GemmSkinnyPairParams p) {                   \
        __shared__ SkinnyShared of_cta;                                          \
        of_pair(                                                                 \
            p, [&](CtaRange ctas) { gemm_skinny<TYPE>(p.first, of_cta, ctas); }, \
            [&](CtaRange ctas) { gemm_skinny<OTHER>(p.second, of_cta, ctas); }); \
    }
