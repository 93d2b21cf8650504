// Study v1 (README.md): a launch and a small one. 1B Q4_K_M, one agent of 128 cells: 0.435 ms where launches of their own take 0.459.
//
// mlp: gate, up and down for 1 to 4 rows of x in one launch: h = activation(G n) * (U n), then the splits of D h, which `fold` (fold.cu) adds. `first` has the parameters of gate and up (product.cuh,
// one split), `second` those of down.
//
// Between two products a kernel's end would cost its slowest block, what the hardware needs for it, and the beginning of the next: some three microseconds in which little comes from
// memory. Here the ring of a warp goes on with down's weights while gate and up's are multiplied. A split of down is a group of blocks: they make the columns of h that it
// is over, 16 tiles of gate and up for each of its segments, and then its tiles of down, whose sums are the split's (product.cuh): so a group waits for its own blocks alone.
//
// h goes from block to block through memory that is zero when the launch begins: a half is stored with all bits turned, and the one that would be zero then (a NaN that no conversion leaves) is
// never made. Readers look at each piece until none of its halves is zero. `fold` clears what was read. So all blocks have to be there at once, two a multiprocessor.
//
// What is in the header of few.cuh holds here, too. Grid: splits of down * blocks of a group. Oracle: walla_cpu's scalar linear; the bits are those of few.cuh.
#pragma once

#include "half_tile.cuh"
#include "few.cuh"
#include "product.cuh"
#include "ring.cuh"

constexpr uint32_t MLP_WARPS = 8;
constexpr uint32_t MLP_THREADS = MLP_WARPS * WARP;

// What a block shares, besides what is as large as a launch asks for.
struct MlpShared {
    __align__(8) uint64_t full[MLP_WARPS * DEPTH_MAX];
    float factor[8];
    Output first_outputs[FIRST_OUTPUTS];
};

// Sixteen bytes of h that another block stores.
__device__ __forceinline__ uint4 look_at(const uint8_t* at) {
    uint4 its;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(its.x), "=r"(its.y), "=r"(its.z), "=r"(its.w) : "l"(at) : "memory");
    return its;
}
__device__ __forceinline__ void store_turned(uint8_t* at, __half value) {
    asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(at), "h"(static_cast<unsigned short>(~__half_as_ushort(value))) : "memory");
}
// Whether both halves of a word are not zero.
__device__ __forceinline__ bool has_both(uint32_t word) { return (word & 0xffffu) != 0 && word >> 16 != 0; }
__device__ __forceinline__ bool has_all(const uint4& its) { return has_both(its.x) && has_both(its.y) && has_both(its.z) && has_both(its.w); }

// The ring of a warp, and the stages of both products that come through it, one after the other.
template <uint32_t TYPE, uint32_t DOWN>
struct MlpRing {
    const PairParams& p;
    uint32_t lane, warp, gate_tile, gate_end, down_tile, down_segment, down_segment_end;
    uint32_t stages, barriers, slot_bytes;  // in shared memory
    const uint8_t* coming;
    uint32_t coming_bytes, coming_half, fetched;
    ptrdiff_t coming_apart;

    // Finds where a stage lies.
    __device__ __forceinline__ void find(uint32_t stage) {
        coming_bytes = 0;
        const uint32_t of_gate = p.first.tasks * p.first.stages;
        const bool is_gate = stage < of_gate;
        const MatmulParams& q = is_gate ? p.first : p.second;
        if (!is_gate) stage -= of_gate;
        const uint32_t task = divided(stage, q.by_stages), in_task = stage - task * q.stages;
        const uint32_t team = warp >> (q.warps - 1), run = warp & (q.warps - 1), at = team + task * q.teams;
        const uint32_t tile = (is_gate ? gate_tile : down_tile) + at;
        const uint32_t run_begin = (is_gate ? 0 : down_segment) + run * q.run;
        const uint32_t begin = run_begin + in_task * q.chunk, end = min(run_begin + q.run, is_gate ? q.x.segments : down_segment_end);
        if (task >= q.tasks || at >= q.turn_tiles || tile >= (is_gate ? gate_end : q.tiles) || begin >= end) return;
        const uint32_t record = is_gate ? Record<TYPE>::BYTES : Record<DOWN>::BYTES;
        coming = is_gate ? first_half<Record<TYPE>::BYTES>(q, tile, begin) : first_half<Record<DOWN>::BYTES>(q, tile, begin);
        coming_bytes = min(q.chunk, end - begin) * record;
    }
    __device__ __forceinline__ void ask(uint32_t slot, bool is_gate, const uint8_t* from, uint32_t bytes) {
        const uint32_t to = stages + slot * slot_bytes, barrier = barriers + 8 * slot;
        expect_bytes(barrier, 2 * bytes);
        if (bytes > 0) {
            const ptrdiff_t apart = is_gate ? halves_apart<Record<TYPE>::BYTES>(p.first) : halves_apart<Record<DOWN>::BYTES>(p.second);
            copy_bulk_once(to, from, bytes, barrier);
            copy_bulk_once(to + slot_bytes / 2, from + apart, bytes, barrier);
        }
    }
    // Asks for the next stage but the first, if there is one.
    __device__ __forceinline__ void fetch(uint32_t slot) {
        if (fetched >= p.first.all_stages) return;
        if (fetched == 1 || fetched % WARP == 0) find(fetched / WARP * WARP + lane);
        const uint32_t bytes = __shfl_sync(FULL_MASK, coming_bytes, fetched % WARP);
        const uint8_t* from = reinterpret_cast<const uint8_t*>(__shfl_sync(FULL_MASK, reinterpret_cast<unsigned long long>(coming), fetched % WARP));
        const bool is_gate = fetched < p.first.tasks * p.first.stages;
        fetched++;
        if (is_elected()) ask(slot, is_gate, from, bytes);
    }
};

// The products of a warp's tasks: `to` has the sums of a task, `sums_apart` floats from a tile's to the next. `await` is called once before x is read.
template <uint32_t TYPE, typename Ring, typename Await>
__device__ __forceinline__ void make_tasks(const MatmulParams& q, Ring& ring, const uint8_t* shared_ring, uint32_t& slot, uint32_t& phase, uint32_t base, uint32_t tiles_end, uint32_t x_at,
                                           uint32_t segments, uint32_t rows, float* sums, bool& has_x, Await&& await) {
    constexpr uint32_t RECORD = Record<TYPE>::BYTES;
    const uint32_t lane = ring.lane, team = ring.warp >> (q.warps - 1), run = ring.warp & (q.warps - 1);
    const uint32_t x_lane = x_at + (lane / 8 * rows + min(lane % 8, rows - 1)) * 16;
    const uint32_t half_bytes = ring.slot_bytes / 2, task_sums = rows * SUM_STRIDE;
#pragma unroll 1
    for (uint32_t task = 0; task < q.tasks; task++) {
        const uint32_t at = team + task * q.teams;
        const bool is_there = at < q.turn_tiles && base + at < tiles_end;
        const uint32_t begin = run * q.run, end = is_there ? min(begin + q.run, segments) : 0;
        float sum[4] = {};
        uint32_t stage = begin;
#pragma unroll 1
        for (uint32_t i = 0; i < q.stages; i++, stage += q.chunk) {
            const uint32_t stage_end = min(stage + q.chunk, end);
            const uint8_t* from = shared_ring + slot * ring.slot_bytes;
            await_phase(ring.barriers + 8 * slot, phase);
#pragma unroll 1
            for (uint32_t s = stage; s < stage_end; s += AHEAD, from += AHEAD * RECORD) {
                uint32_t a[AHEAD][4][2][4];
#pragma unroll
                for (uint32_t u = 0; u < AHEAD; u++) {
                    if (u > 0 && s + u >= stage_end) continue;
                    HalfTile<TYPE> w[2];
                    w[0].load(from + u * RECORD, lane);
                    w[1].load(from + half_bytes + u * RECORD, lane);
#pragma unroll
                    for (uint32_t j = 0; j < 4; j++) unpack(a[u][j], w, j);
                }
                if (__builtin_expect(!has_x, 0)) await();
                const uint32_t x = x_lane + s * rows * 256;
#pragma unroll
                for (uint32_t u = 0; u < AHEAD; u++) {
                    if (u > 0 && s + u >= stage_end) continue;
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
            ring.fetch(slot);
            if (++slot == q.depth) slot = 0, phase ^= 1;
        }
        if (!is_there) continue;
        float* to = sums + (at * q.warps + run) * task_sums + lane % 4 * 2 * SUM_STRIDE + lane / 4;
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            if (lane % 4 * 2 + c % 2 < rows) to[c % 2 * SUM_STRIDE + c / 2 * 8] = sum[c];
    }
    if (__builtin_expect(!has_x, 0)) await();
}

// A split's sum of an output: its runs in order.
__device__ __forceinline__ float runs_of(const float* from, uint32_t runs, uint32_t task_sums) {
    float all = 0.0f;
#pragma unroll
    for (uint32_t w = 0; w < RUNS_MAX; w++) all += w < runs ? from[w * task_sums] : 0.0f;
    return all;
}

template <uint32_t TYPE, uint32_t DOWN>
__device__ __forceinline__ void mlp(const PairParams& p, MlpShared& of_block) {
    extern __shared__ __align__(128) uint8_t shared[];
    const MatmulParams &gate = p.first, &down = p.second;
    let_successors_start();
    uint32_t lane = threadIdx.x % WARP;
    asm volatile("mov.u32 %0, %0;" : "+r"(lane));
    const uint32_t warp = __shfl_sync(FULL_MASK, threadIdx.x / WARP, 0);
    const uint32_t split = divided(blockIdx.x, p.reserved), in_group = blockIdx.x - split * p.first_blocks;
    const uint32_t rows = gate.x.group_rows;
    const uint32_t first_segment = split * down.split_segments, its_segments = min(down.split_segments, down.x.segments - first_segment);
    // Eight columns of h a tile.
    const uint32_t gate_first = first_segment * (SEGMENT / 8), gate_end = min(gate.tiles, gate_first + its_segments * (SEGMENT / 8));
    const uint32_t gate_tile = gate_first + in_group * gate.turn_tiles, down_tile = in_group * down.turn_tiles;
    const uint32_t shared_at = shared_of(shared), slot_bytes = 2 * max(gate.chunk * Record<TYPE>::BYTES, down.chunk * Record<DOWN>::BYTES), ring_bytes = gate.depth * slot_bytes;
    MlpRing<TYPE, DOWN> ring{p, lane, warp, gate_tile, gate_end, down_tile, first_segment, first_segment + its_segments, shared_at + warp * ring_bytes,
                             shared_of(of_block.full) + 8 * warp * DEPTH_MAX, slot_bytes, nullptr, 0, 0, 0, 0};
    init_own_barriers<DEPTH_MAX>(ring.barriers);
    const uint32_t first = gate.first[warp], first_tile = gate_tile + (first & 0xff);
    const uint8_t* first_from = first_half<Record<TYPE>::BYTES>(gate, first_tile, first >> 16);
    const uint32_t first_bytes = first_tile < gate_end ? (first >> 8 & 0xff) * Record<TYPE>::BYTES : 0;
    ring.fetched++;
    if (is_elected()) ring.ask(0, true, first_from, first_bytes);
#pragma unroll 1
    for (uint32_t d = 1; d < gate.depth; d++) ring.fetch(d);

    const uint32_t x_at = shared_at + MLP_WARPS * ring_bytes, h_at = x_at + gate.x.segments * rows * 256;
    float* sums = reinterpret_cast<float*>(shared + MLP_WARPS * ring_bytes + (gate.x.segments + down.split_segments) * rows * 256);
    const uint32_t task_sums = rows * SUM_STRIDE;
    float* down_sums = sums + gate.turn_tiles * gate.warps * task_sums;
    const uint32_t outputs = gate.turn_tiles * rows * 8;
    if (threadIdx.x < FIRST_OUTPUTS) of_block.first_outputs[threadIdx.x] = output_of(gate, threadIdx.x, gate_tile, 0, rows);

    float squares = 0.0f, used = 1.0f;
    bool has_x = false;
    const auto meet = [] { asm volatile("barrier.sync 1, %0;" ::"n"(MLP_THREADS) : "memory"); };
    const auto await_x = [&] {
        wait_for_predecessors();
        const uint8_t* from = gate.x.rows;
        const uint32_t pieces = gate.x.segments * 16 * rows;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < pieces; i += MLP_THREADS) copy_ahead(x_at + i * 16, from + i * 16);
        close_copies();
        if (gate.squares && warp < rows) {
            const float4* its = reinterpret_cast<const float4*>(gate.squares + size_t(warp) * gate.squares_count);
#pragma unroll 1
            for (uint32_t i = lane; i < gate.squares_count / 4; i += WARP) {
                const float4 four = its[i];
                squares += (four.x + four.y) + (four.z + four.w);
            }
            used = gate.used[warp];
        }
        await_copies<0>();
        meet();
        has_x = true;
    };
    uint32_t slot = 0, phase = 0;
    const uint8_t* shared_ring = shared + warp * ring_bytes;
    make_tasks<TYPE>(gate, ring, shared_ring, slot, phase, gate_tile, gate_end, x_at, gate.x.segments, rows, sums, has_x, await_x);
    if (gate.squares && warp < rows) {
        const float exact = rsqrtf(warp_sum(squares) * gate.inverse_width + gate.eps);
        if (lane == 0) {
            of_block.factor[warp] = __fdividef(exact, used);
            if (gate.factors && blockIdx.x == 0) gate.factors[warp] = exact;
        }
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t index = threadIdx.x; index < outputs; index += MLP_THREADS) {
        const Output output = index < FIRST_OUTPUTS ? of_block.first_outputs[index] : output_of(gate, index, gate_tile, 0, rows);
        if (!output.is_there || gate_tile + output.tile >= gate_end) continue;
        const float* from = sums + output.tile * gate.warps * task_sums + output.n * SUM_STRIDE + output.m;
        const float factor = gate.squares ? of_block.factor[output.n] : 1.0f;
        const float value = 0.0f + runs_of(from, gate.warps, task_sums), up = 0.0f + runs_of(from + 8, gate.warps, task_sums);
        float y = value * (factor * output.scale[0]) + output.bias[0];
        y = activate(y, gate.mode) * (up * (factor * output.scale[1]) + output.bias[1]);
        store_turned(output.packed, __float2half_rn(within_half(y * gate.packed.scale)));
    }

    // The group's columns of h, from whichever block.
    bool has_h = false;
    const auto await_h = [&] {
        const uint8_t* from = down.x.rows + size_t(first_segment) * 16 * rows * 16;
        const uint32_t pieces = its_segments * 16 * rows;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < pieces; i += MLP_THREADS) {
            uint4 its;
            do its = look_at(from + i * 16);
            while (!has_all(its));
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(h_at + i * 16), "r"(~its.x), "r"(~its.y), "r"(~its.z), "r"(~its.w) : "memory");
        }
        meet();
        has_h = true;
    };
    make_tasks<DOWN>(down, ring, shared_ring, slot, phase, down_tile, down.tiles, h_at, its_segments, rows, down_sums, has_h, await_h);
    __syncthreads();
    // [splits, rows, tiles * 16]
    const uint32_t down_outputs = down.turn_tiles * rows * TILE_ROWS;
#pragma unroll 1
    for (uint32_t index = threadIdx.x; index < down_outputs; index += MLP_THREADS) {
        const uint32_t m = index % TILE_ROWS, at = index / TILE_ROWS % down.turn_tiles, n = index / (TILE_ROWS * down.turn_tiles);
        if (down_tile + at >= down.tiles) continue;
        const float* from = down_sums + at * down.warps * task_sums + n * SUM_STRIDE + m;
        down.partials[(size_t(split) * rows + n) * (down.tiles * TILE_ROWS) + (down_tile + at) * TILE_ROWS + m] = runs_of(from, down.warps, task_sums);
    }
}

#define MLP(TYPE, NAME, DOWN, DOWN_NAME)                                                                                        \
    extern "C" __global__ void __launch_bounds__(MLP_THREADS, 2) mlp_##NAME##_##DOWN_NAME(const __grid_constant__ PairParams p) { \
        __shared__ MlpShared of_block;                                                                                          \
        mlp<TYPE, DOWN>(p, of_block);                                                                                           \
    }
