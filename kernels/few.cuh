// few: a product (product.cuh) for 1 to 8 rows of x: bound by the bytes of W, and by the latency of a node that has few of them.
//
// A block takes `turn_tiles` tiles a turn. The segments of a split of a tile are a stage of the block's ring: two copies, for its two half
// tiles. A team of warps takes a stage, a run each; the runs' sums meet in shared memory, where a thread adds those of an output in order.
//
// Weights never change: a block asks for as many as its ring holds, unpacks the first AHEAD segments of each warp and finds out where its
// results go before it waits for its predecessor, and lets its successor start at once. What is left after the wait is short: x comes near,
// tensor cores multiply, sums are added and written. Registers that do not suffice cost more than everything else: what is spilled goes to
// the first cache, of which shared memory leaves next to nothing. So what is known ahead of an output waits in shared memory.
//
// x is in shared memory as a whole, or `x_splits` splits of it at a time.
// Grid: (blocks, rows of x / 8). Oracle: walla_cpu's scalar linear.
#pragma once

#include "half_tile.cuh"
#include "product.cuh"
#include "ring.cuh"

constexpr uint32_t FEW_WARPS_MAX = 8;
constexpr uint32_t FIRST_OUTPUTS = 64;  // that are found out before x comes
constexpr uint32_t AHEAD = 2;  // segments that are unpacked before x comes

// An output of a turn: where it goes, and what is known of it before x comes.
struct Output {
    uint32_t tile, n, m;  // of the turn, of the group, of the tile
    bool is_there;
    float* out;
    uint8_t* packed;
    float scale[2], bias[2];
    float norm;
};

__device__ __forceinline__ Output output_of(const MatmulParams& p, uint32_t index, uint32_t base, uint32_t row0, uint32_t rows_here) {
    const bool gated = p.mode >= GATE_SILU;
    const uint32_t height = gated ? 8 : 16;
    Output at;
    at.m = index % height, at.n = index / height, at.tile = 0;
    while (at.n >= rows_here && at.tile < p.turn_tiles) at.n -= rows_here, at.tile++;
    at.is_there = at.tile < p.turn_tiles && base + at.tile < p.tiles;
    if (!at.is_there) return at;
    const TileOf tile = tile_of(p, base + at.tile);
    const Segment& part = p.part[tile.part[0]];
    const uint32_t row = tile.row + at.m;
    at.is_there = row < part.weight.rows;
    const uint32_t r = row0 + at.n;
    at.out = part.out + size_t(r) * part.out_stride + row;
    at.packed = p.packed.rows ? p.packed.rows + pair_of(p.packed, r, row) + row % 2 * 2 : nullptr;
    at.scale[0] = p.unscale * part.weight.scale;
    at.scale[1] = p.unscale * p.part[1].weight.scale;
    at.bias[0] = part.bias && at.is_there ? part.bias[row] : 0.0f;
    at.bias[1] = gated && p.part[1].bias && at.is_there ? p.part[1].bias[row] : 0.0f;
    at.norm = p.next_norm && at.is_there ? p.next_norm[row] : 0.0f;
    return at;
}

// Writes an output. All 16 lanes of a tile's row of x come here together.
__device__ __forceinline__ void write_one(const MatmulParams& p, const Output& at, uint32_t base, uint32_t row0, float factor, float old, float near,
                                          float value, float up) {
    float y = value * (factor * at.scale[0]) + at.bias[0];
    if (p.mode >= GATE_SILU) y = activate(y, p.mode) * (up * (factor * at.scale[1]) + at.bias[1]);
    if (p.mode == ADD) y = old + y;
    if (p.mode >= GATE_SILU && at.packed) {
        if (at.is_there) *reinterpret_cast<__half*>(at.packed) = __float2half_rn(within_half(y * p.packed.scale));
        return;
    }
    if (at.is_there) *at.out = y;
    if (p.mode != ADD || !p.next_norm) return;
    float squares = at.is_there ? y * y : 0.0f;
    if (at.is_there) *reinterpret_cast<__half*>(at.packed) = __float2half_rn(within_half(y * near * at.norm * p.packed.scale));
    const uint32_t mask = 0xffffu << threadIdx.x % WARP / 16 * 16;
#pragma unroll
    for (uint32_t offset = 1; offset < 16; offset *= 2) squares += __shfl_xor_sync(mask, squares, offset);
    if (at.m == 0) p.next_squares[size_t(row0 + at.n) * p.next_squares_count + base + at.tile] = squares;
}

template <uint32_t TYPE>
__device__ __forceinline__ void few(const MatmulParams& p) {
    constexpr uint32_t RECORD = Record<TYPE>::BYTES;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(8) uint64_t full[DEPTH_MAX], empty[DEPTH_MAX];
    __shared__ float factor[8];
    __shared__ Output first_outputs[FIRST_OUTPUTS];
    let_successors_start();
    // Read once: special registers are slow.
    uint32_t lane = threadIdx.x % WARP;
    asm volatile("mov.u32 %0, %0;" : "+r"(lane));
    const uint32_t warp = threadIdx.x / WARP;
    const uint32_t threads = blockDim.x;
    const uint32_t segments = p.x.segments, rows = p.x.group_rows;
    const uint32_t half_bytes = p.split_segments * RECORD, stage_bytes = 2 * half_bytes;
    const uint32_t shared_at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const uint32_t full_at = static_cast<uint32_t>(__cvta_generic_to_shared(full)), empty_at = static_cast<uint32_t>(__cvta_generic_to_shared(empty));
    const uint32_t turn = gridDim.x * p.turn_tiles, base0 = blockIdx.x * p.turn_tiles;
    const uint32_t row0 = blockIdx.y * 8;
    const uint32_t rows_here = min(8, p.rows_max - row0);
    const auto row_of = [&](uint32_t n) { return p.by_output ? min(p.step.output(row0 + n).row, p.rows_last) : row0 + n; };

    // Stages in order: of the turn's tiles one after another, of a tile its splits.
    struct Stage {
        uint32_t base, at, split, slot, phase;
    };
    const auto next_stage = [&](Stage& s) {
        s.split += p.teams, s.slot += p.teams;
        while (s.split >= p.splits) {
            s.split -= p.splits;
            if (++s.at == p.turn_tiles) s.at = 0, s.base += turn;
        }
        if (s.slot >= p.depth) s.slot -= p.depth, s.phase ^= 1;
    };
    const auto halves_of = [&](const Stage& s, const uint8_t*(&halves)[2]) {
        const TileOf tile = tile_of(p, s.base + s.at);
#pragma unroll
        for (uint32_t h = 0; h < 2; h++)
            halves[h] = p.part[tile.part[h]].weight.records + (size_t(tile.half[h]) * segments + s.split * p.split_segments) * RECORD;
        return min(p.split_segments, segments - s.split * p.split_segments) * RECORD;
    };
    uint32_t team = 0, run = warp;
    while (run >= p.warps) run -= p.warps, team++;
    // A team's stages have slots of their own, which one of its lanes fills.
    Stage ahead = {base0, 0, team, team, 0};
    while (ahead.split >= p.splits) ahead.split -= p.splits, ahead.at++;
#if __CUDA_ARCH__ >= 900
    const auto fetch = [&](const Stage& ahead) {
        if (ahead.base + ahead.at >= p.tiles) return;
        const uint8_t* halves[2];
        const uint32_t bytes = halves_of(ahead, halves), to = shared_at + ahead.slot * stage_bytes, barrier = full_at + 8 * ahead.slot;
        expect_bytes(barrier, 2 * bytes);
        copy_bulk(to, halves[0], bytes, barrier);
        copy_bulk(to + half_bytes, halves[1], bytes, barrier);
    };
    if (run == 0 && lane == 0) {
        for (uint32_t slot = team; slot < p.depth; slot += p.teams) init_barrier(full_at + 8 * slot, 1), init_barrier(empty_at + 8 * slot, p.warps);
        publish_barriers();
    }
    __syncthreads();
    if (run == 0 && lane == 0) {
        for (; ahead.phase == 0; next_stage(ahead)) fetch(ahead);
    }
#endif

    const uint32_t x_at = shared_at + p.depth * stage_bytes;
    const uint32_t x_segments = min(segments, p.x_splits * p.split_segments);
    const bool gated = p.mode >= GATE_SILU;
    const uint32_t task_sums = rows * SUM_STRIDE;
    const uint32_t pass_sums = p.turn_tiles * p.x_splits * p.warps * task_sums;
    float* sums = reinterpret_cast<float*>(shared + p.depth * stage_bytes + x_segments * rows * 256);
    // What splits come to whose rows of x were here before.
    float2* totals = reinterpret_cast<float2*>(sums + 2 * pass_sums);
    const uint32_t outputs = p.turn_tiles * rows_here * (gated ? 8 : 16);
    if (threadIdx.x < FIRST_OUTPUTS) first_outputs[threadIdx.x] = output_of(p, threadIdx.x, base0, row0, rows_here);
    uint32_t thousand;
    asm volatile("mov.u32 %0, 0x64006400;" : "=r"(thousand));

    const auto fetch_x = [&](uint32_t first_segment) {
        const uint32_t pieces = min(segments - first_segment, x_segments) * 16;
        if (p.by_output) {
            for (uint32_t n = 0; n < rows_here; n++) {
                const uint8_t* from = p.x.rows + piece_of(p.x, row_of(n), first_segment * 16);
                for (uint32_t i = threadIdx.x; i < pieces; i += threads) copy_ahead(x_at + (i * rows + n) * 16, from + i * piece_stride(p.x));
            }
        } else {
            const uint8_t* from = p.x.rows + piece_of(p.x, row0, first_segment * 16);
            for (uint32_t i = threadIdx.x; i < pieces * rows; i += threads) copy_ahead(x_at + i * 16, from + i * 16);
        }
        close_copies();
    };
    // The norm's factor of a row is a warp's work; what it is made of comes near with x, the rest is done when the products are.
    const auto squares_of = [&](uint32_t n) {
        float sum = 0.0f;
        if (n >= rows_here) return sum;
        const float4* squares = reinterpret_cast<const float4*>(p.squares + size_t(row_of(n)) * p.squares_count);
        for (uint32_t i = lane; i < p.squares_count / 4; i += WARP) {
            const float4 four = squares[i];
            sum += (four.x + four.y) + (four.z + four.w);
        }
        return sum;
    };
    float squares = 0.0f;
    bool has_x = false;
    const auto await_x = [&] {
        wait_for_predecessors();
        fetch_x(0);
        if (p.squares) squares = squares_of(warp);
        if (p.mode == ADD && threadIdx.x < FIRST_OUTPUTS && first_outputs[threadIdx.x].is_there)
            come_near(first_outputs[threadIdx.x].out);
        await_copies<0>();
        __syncthreads();
        has_x = true;
    };
#if __CUDA_ARCH__ < 900
    await_x();
#endif

    // Row lane % 8 of piece lane / 8; rows that are not there repeat the last.
    const uint32_t x_lane = x_at + (lane / 8 * rows + min(lane % 8, rows - 1)) * 16;
    // Sum c of a lane: row lane / 4 (+ 8 from the third on) of the tile, column 2 * (lane % 4) (+ 1 for odd ones) of x's rows.
    const uint32_t sum_at = run * task_sums + lane % 4 * 2 * SUM_STRIDE + lane / 4;
    [[maybe_unused]] const bool has_more = p.turn_tiles * p.splits > p.depth || base0 + turn < p.tiles;
    bool odd = false, is_first = true;
    uint32_t slot = team, phase = 0;
    for (uint32_t base = base0; base < p.tiles; base += turn) {
        for (uint32_t first_split = 0; first_split < p.splits; first_split += p.x_splits) {
            const uint32_t splits_here = min(p.x_splits, p.splits - first_split);
            const uint32_t x_first = p.x_splits < p.splits ? first_split * p.split_segments : 0;
            if (has_x && p.x_splits < p.splits) {
                fetch_x(x_first);
                await_copies<0>();
                __syncthreads();
            }
            float* pass = sums + (odd ? pass_sums : 0);
            uint32_t at = 0, split = team;
            while (split >= splits_here) split -= splits_here, at++;
            while (at < p.turn_tiles && base + at < p.tiles) {
                const uint32_t first = (first_split + split) * p.split_segments + run * p.run;
                const uint32_t end = min(min(first + p.run, (first_split + split + 1) * p.split_segments), segments);
                const uint8_t* from = shared + slot * stage_bytes + run * p.run * RECORD;
#if __CUDA_ARCH__ >= 900
                await_phase(full_at + 8 * slot, phase);
#else
                // A stage at a time, by the team that needs it.
                {
                    const auto meet_team = [&] { asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(p.warps * WARP) : "memory"); };
                    const uint8_t* halves[2];
                    const uint32_t bytes = halves_of({base, at, first_split + split, 0, 0}, halves), to = shared_at + team * stage_bytes;
                    from = shared + team * stage_bytes + run * p.run * RECORD;
                    meet_team();
                    for (uint32_t i = (run * WARP + lane) * 16; i < bytes; i += p.warps * WARP * 16)
                        copy_ahead(to + i, halves[0] + i), copy_ahead(to + half_bytes + i, halves[1] + i);
                    close_copies();
                    await_copies<0>();
                    meet_team();
                }
#endif
                float sum[4] = {};
                for (uint32_t s = first; s < end; s += AHEAD, from += AHEAD * RECORD) {
                    uint32_t a[AHEAD][4][2][4];
#pragma unroll
                    for (uint32_t u = 0; u < AHEAD; u++) {
                        if (u > 0 && s + u >= end) continue;
                        HalfTile<TYPE> w[2];
                        w[0].load(from + u * RECORD, lane);
                        w[1].load(from + half_bytes + u * RECORD, lane);
#pragma unroll
                        for (uint32_t j = 0; j < 4; j++) unpack(a[u][j], w, j, thousand);
                    }
                    if (!has_x) await_x();
                    const uint32_t x = x_lane + (s - x_first) * rows * 256;
#pragma unroll
                    for (uint32_t u = 0; u < AHEAD; u++) {
                        if (u > 0 && s + u >= end) continue;
#pragma unroll
                        for (uint32_t j = 0; j < 4; j++) {
                            uint32_t b[4];
                            load_matrices(b, x + (u * 4 + j) * rows * 64);
                            multiply(sum, a[u][j][0], b[0], b[1]);
                            multiply(sum, a[u][j][1], b[2], b[3]);
                        }
                    }
                }
#if __CUDA_ARCH__ >= 900
                __syncwarp();
                if (lane == 0) {
                    arrive(empty_at + 8 * slot);
                    // What comes next into this slot.
                    Stage next = {base, at, first_split + split, slot, phase};
                    if (run == 0 && has_more) {
                        for (uint32_t d = 0; d < p.depth; d += p.teams) next_stage(next);
                        if (next.base + next.at < p.tiles) {
                            await_phase(empty_at + 8 * slot, phase);
                            fetch(next);
                        }
                    }
                }
#endif
                float* to = pass + (at * p.x_splits + split) * p.warps * task_sums + sum_at;
#pragma unroll
                for (uint32_t c = 0; c < 4; c++)
                    if (lane % 4 * 2 + c % 2 < rows_here) to[c % 2 * SUM_STRIDE + c / 2 * 8] = sum[c];
                split += p.teams, slot += p.teams;
                while (split >= splits_here) split -= splits_here, at++;
                if (slot >= p.depth) slot -= p.depth, phase ^= 1;
            }
            if (!has_x) await_x();
            if (is_first && p.squares)
                for (uint32_t n = warp; n < rows_here; n += threads / WARP, squares = squares_of(n)) {
                    const float exact = rsqrtf(warp_sum(squares) * p.inverse_width + p.eps);
                    if (lane != 0) continue;
                    const uint32_t r = row_of(n);
                    factor[n] = __fdividef(exact, p.used[r]);
                    if (p.factors && blockIdx.x == 0) p.factors[r] = exact;
                }
            __syncthreads();
            for (uint32_t index = threadIdx.x; index < outputs; index += threads) {
                const bool is_known = base == base0 && index < FIRST_OUTPUTS;
                const Output output = is_known ? first_outputs[index] : output_of(p, index, base, row0, rows_here);
                if (output.tile >= p.turn_tiles || base + output.tile >= p.tiles) continue;
                const bool adds = p.mode == ADD && output.is_there;
                const float old = adds ? *output.out : 0.0f, near = adds && p.next_norm ? p.next_factors[row0 + output.n] : 0.0f;
                float value[2] = {};
                if (first_split > 0) value[0] = totals[index].x, value[1] = totals[index].y;
#pragma unroll
                for (uint32_t half = 0; half < 2; half++) {
                    if (half == 1 && !gated) continue;
                    const float* from = pass + output.tile * p.x_splits * p.warps * task_sums + output.n * SUM_STRIDE + half * 8 + output.m;
                    for (uint32_t split = 0; split < splits_here; split++, from += p.warps * task_sums) {
                        float its[RUNS_MAX];
#pragma unroll
                        for (uint32_t w = 0; w < RUNS_MAX; w++) its[w] = w < p.warps ? from[w * task_sums] : 0.0f;
                        float all = 0.0f;
#pragma unroll
                        for (uint32_t w = 0; w < RUNS_MAX; w++) all += its[w];
                        value[half] += all;
                    }
                }
                if (first_split + splits_here < p.splits)
                    totals[index] = make_float2(value[0], value[1]);
                else
                    write_one(p, output, base, row0, p.squares ? factor[output.n] : 1.0f, old, near, value[0], value[1]);
            }
            odd = !odd, is_first = false;
        }
    }
}

#define FEW(TYPE, NAME)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(FEW_WARPS_MAX * WARP, 2) matmul_##NAME##_1(const __grid_constant__ MatmulParams p) { \
        few<TYPE>(p);                                                                                                    \
    }
