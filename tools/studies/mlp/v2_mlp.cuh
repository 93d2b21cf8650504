// Study v2 (README.md): one launch, bounded waits. It compiles (115 to 121 registers, nothing spilled) and has never run.
//
// mlp: gate, up and down for 1 to 4 rows of x in one launch: h = activation(G n) * (U n), then out += D h. `first` has the parameters of gate and up (product.cuh, one split), `second` those of
// down, as a launch of its own would have them but for `chunk`, `depth`, `teams`, `turn_tiles`, `stages`, `tasks` and `all_stages` (of both products); see below for `partials` and `arrivals`.
//
// Between two launches memory brings little: the first one's slowest block, a kernel's end, the way of the next one's first weights. Here a warp's ring goes on to down's weights while gate and up are
// multiplied, and what is left of the wait is h's way from block to block. A share of down is four splits of its columns. The blocks of a share make the columns of h that it is over, 16 tiles of gate
// and up a segment, and then all tiles of down, the share's splits of each: so a block waits for those of its share alone. A cluster has a block of each share, with the same tiles of down: the sums of
// a tile's splits meet in the shared memory of the block that owns it, which adds them in order.
//
// h goes through memory that is zero when the launch begins: a half is stored with all its bits turned, which is never zero (that would be a NaN that no conversion makes). Readers look at a piece
// until none of its halves is zero. A launch clears the two places (`partials` of both) that it does not use, and two launches in a row never use the same. So all blocks have to be there at
// once, two a multiprocessor: lower/mlp.rs makes sure of it. If one should not come all the same, nobody waits for ever: after LOOKS_MAX looks, a tenth of a second, what is not there counts as NaN,
// which the sampler tells the host.
//
// What is said in few.cuh holds here, too. Grid: blocks of a share * shares. Bound: bytes of W, and latency. Oracle: walla_cpu's scalar linear; the bits are those of few.cuh.
#pragma once

#include "few.cuh"

constexpr uint32_t MLP_WARPS = 8;
constexpr uint32_t MLP_THREADS = MLP_WARPS * WARP;
constexpr uint32_t MLP_ROWS_MAX = 4;
constexpr uint32_t SHARE_SPLITS = 4;
constexpr uint32_t LOOKS_MAX = 1 << 18;

// A type of weights, for code that is chosen when it is compiled.
template <uint32_t ITS>
struct Of {
    static constexpr uint32_t TYPE = ITS;
};

// What a block shares, besides what is as large as a launch asks for.
struct MlpShared {
    __align__(8) uint64_t full[MLP_WARPS * DEPTH_MAX], received;
    float factor[MLP_ROWS_MAX];
    Output outputs[FIRST_OUTPUTS];  // of gate and up, then those of down that the block owns
    float old[FIRST_OUTPUTS], near[FIRST_OUTPUTS];
};

// Sixteen bytes of h, as far as they are there.
__device__ __forceinline__ uint4 look_at(const uint8_t* at) {
    uint4 its;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(its.x), "=r"(its.y), "=r"(its.z), "=r"(its.w) : "l"(at) : "memory");
    return its;
}
__device__ __forceinline__ void store_turned(uint8_t* at, __half value) {
    asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(at), "h"(static_cast<unsigned short>(~__half_as_ushort(value))) : "memory");
}
__device__ __forceinline__ bool has_both(uint32_t halves) { return (halves & 0xffffu) != 0 && halves >> 16 != 0; }
__device__ __forceinline__ bool has_all(const uint4& its) { return has_both(its.x) && has_both(its.y) && has_both(its.z) && has_both(its.w); }

// What a block has of a product: its tiles, and the splits of each (of gate and up the only one).
struct Share {
    const MatmulParams& p;
    uint32_t tile, tiles_end;     // the first, and the end of those that are there
    uint32_t splits;              // that a tile has here
    uint32_t segment, segments;   // the first, and how many
};
// A run of a split of a tile: what a warp makes at a time.
struct Task {
    uint32_t at, split;   // its tile of the block's, its split of the share's
    uint32_t begin, end;  // segments of the share's; none if it is not there
};
__device__ __forceinline__ Task task_of(const Share& its, uint32_t warp, uint32_t number) {
    const MatmulParams& p = its.p;
    const uint32_t index = (warp >> (p.warps - 1)) + number * p.teams, run = warp & (p.warps - 1);
    Task task;
    task.at = its.splits == 1 ? index : index / SHARE_SPLITS, task.split = its.splits == 1 ? 0 : index % SHARE_SPLITS;
    const uint32_t first = task.split * p.split_segments;
    const bool is_there = number < p.tasks && task.at < p.turn_tiles && its.tile + task.at < its.tiles_end;
    task.begin = first + run * p.run;
    task.end = is_there ? min(min(task.begin + p.run, first + p.split_segments), its.segments) : 0;
    return task;
}

// The ring of a warp, through which the stages of both products come.
template <uint32_t TYPE, uint32_t DOWN>
struct MlpRing {
    const Share &gate, &down;
    uint32_t lane, warp;
    uint32_t stages, barriers, slot_bytes;  // in shared memory
    uint32_t fetched;
    const uint8_t* coming;
    uint32_t coming_bytes;

    // Finds where a stage lies.
    __device__ __forceinline__ void find(uint32_t stage) {
        coming_bytes = 0;
        const uint32_t of_gate = gate.p.tasks * gate.p.stages;
        const auto find_in = [&](const Share& its, uint32_t stage, auto type) {
            constexpr uint32_t RECORD = Record<decltype(type)::TYPE>::BYTES;
            const uint32_t number = divided(stage, its.p.by_stages);
            const Task task = task_of(its, warp, number);
            const uint32_t begin = task.begin + (stage - number * its.p.stages) * its.p.chunk;
            if (begin >= task.end) return;
            coming = first_half<RECORD>(its.p, its.tile + task.at, its.segment + begin);
            coming_bytes = min(its.p.chunk, task.end - begin) * RECORD;
        };
        if (stage < of_gate)
            find_in(gate, stage, Of<TYPE>{});
        else
            find_in(down, stage - of_gate, Of<DOWN>{});
    }
    // An elected lane's call.
    __device__ __forceinline__ void ask(uint32_t slot, ptrdiff_t apart, const uint8_t* from, uint32_t bytes) {
        const uint32_t to = stages + slot * slot_bytes, barrier = barriers + 8 * slot;
        expect_bytes(barrier, 2 * bytes);
        if (bytes == 0) return;
        copy_bulk_once(to, from, bytes, barrier);
        copy_bulk_once(to + slot_bytes / 2, from + apart, bytes, barrier);
    }
    // Asks for the next stage but the first, if there is one.
    __device__ __forceinline__ void fetch(uint32_t slot) {
        if (fetched >= gate.p.all_stages) return;
        if (fetched == 1 || fetched % WARP == 0) find(fetched / WARP * WARP + lane);
        const uint32_t bytes = __shfl_sync(FULL_MASK, coming_bytes, fetched % WARP);
        const uint8_t* from = reinterpret_cast<const uint8_t*>(__shfl_sync(FULL_MASK, reinterpret_cast<unsigned long long>(coming), fetched % WARP));
        const bool is_gate = fetched < gate.p.tasks * gate.p.stages;
        fetched++;
        if (is_elected()) ask(slot, is_gate ? halves_apart<Record<TYPE>::BYTES>(gate.p) : halves_apart<Record<DOWN>::BYTES>(down.p), from, bytes);
    }
};

// The products of a warp's tasks: `sums` has those of each run, [tiles, splits, runs, rows, SUM_STRIDE]. `await` is called once, before x is read.
template <uint32_t TYPE, typename Ring, typename Await>
__device__ __forceinline__ void make_tasks(const Share& its, Ring& ring, const uint8_t* stages, Turn& now, uint32_t x_at, uint32_t rows, float* sums, Await&& await) {
    constexpr uint32_t RECORD = Record<TYPE>::BYTES;
    const MatmulParams& p = its.p;
    const uint32_t lane = ring.lane, run = ring.warp & (p.warps - 1);
    const uint32_t x_lane = x_at + (lane / 8 * rows + min(lane % 8, rows - 1)) * 16;
    const uint32_t half_bytes = ring.slot_bytes / 2, task_sums = rows * SUM_STRIDE;
    bool has_x = false;
#pragma unroll 1
    for (uint32_t number = 0; number < p.tasks; number++) {
        const Task task = task_of(its, ring.warp, number);
        float sum[4] = {};
        uint32_t stage = task.begin;
#pragma unroll 1
        for (uint32_t i = 0; i < p.stages; i++, stage += p.chunk) {
            const uint32_t stage_end = min(stage + p.chunk, task.end);
            const uint8_t* from = stages + now.slot * ring.slot_bytes;
            await_phase(ring.barriers + 8 * now.slot, now.phase);
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
                if (__builtin_expect(!has_x, 0)) await(), has_x = true;
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
            ring.fetch(now.slot);
            now.next(p.depth);
        }
        if (task.end == 0) continue;
        float* to = sums + ((task.at * its.splits + task.split) * p.warps + run) * task_sums + lane % 4 * 2 * SUM_STRIDE + lane / 4;
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            if (lane % 4 * 2 + c % 2 < rows) to[c % 2 * SUM_STRIDE + c / 2 * 8] = sum[c];
    }
    if (__builtin_expect(!has_x, 0)) await();
}

// The sum of a split's runs, in order.
__device__ __forceinline__ float add_runs(const float* from, uint32_t runs, uint32_t task_sums) {
    float all = 0.0f;
#pragma unroll
    for (uint32_t run = 0; run < RUNS_MAX; run++) all += run < runs ? from[run * task_sums] : 0.0f;
    return all;
}

template <uint32_t TYPE, uint32_t DOWN>
__device__ __forceinline__ void mlp(const PairParams& p, MlpShared& of_block) {
    extern __shared__ __align__(128) uint8_t shared[];
    let_successors_start();
    uint32_t lane = threadIdx.x % WARP;
    asm volatile("mov.u32 %0, %0;" : "+r"(lane));
    const uint32_t warp = __shfl_sync(FULL_MASK, threadIdx.x / WARP, 0);
    const uint32_t shares = p.first_blocks, block = divided(blockIdx.x, p.by_first_blocks), share = blockIdx.x - block * shares;
    const uint32_t rows = p.first.x.group_rows, task_sums = rows * SUM_STRIDE;
    const uint32_t first_split = share * SHARE_SPLITS, first_segment = first_split * p.second.split_segments;
    const uint32_t segments = min(SHARE_SPLITS * p.second.split_segments, p.second.x.segments - first_segment);
    // Eight columns of h a tile.
    const uint32_t first_tile = first_segment * (SEGMENT / 8);
    const Share gate = {p.first, first_tile + block * p.first.turn_tiles, first_tile + segments * (SEGMENT / 8), 1, 0, p.first.x.segments};
    const Share down = {p.second, block * p.second.turn_tiles, p.second.tiles, SHARE_SPLITS, first_segment, segments};
    const uint32_t slot_bytes = 2 * max(gate.p.chunk * Record<TYPE>::BYTES, down.p.chunk * Record<DOWN>::BYTES), ring_bytes = gate.p.depth * slot_bytes;
    const uint32_t shared_at = shared_of(shared), received = shared_of(&of_block.received);
    MlpRing<TYPE, DOWN> ring = {gate, down, lane, warp, shared_at + warp * ring_bytes, shared_of(of_block.full) + 8 * warp * DEPTH_MAX, slot_bytes, 0, nullptr, 0};
    init_own_barriers<DEPTH_MAX>(ring.barriers);
    const uint32_t first = gate.p.first[warp], its_tile = gate.tile + (first & 0xff);
    const uint8_t* first_from = first_half<Record<TYPE>::BYTES>(gate.p, its_tile, first >> 16);
    const uint32_t first_bytes = its_tile < gate.tiles_end ? (first >> 8 & 0xff) * Record<TYPE>::BYTES : 0;
    ring.fetched++;
    if (is_elected()) ring.ask(0, halves_apart<Record<TYPE>::BYTES>(gate.p), first_from, first_bytes);
#pragma unroll 1
    for (uint32_t d = 1; d < gate.p.depth; d++) ring.fetch(d);

    // Tile `share` of the block's is this block's to add up.
    const bool owns = share < down.p.turn_tiles && down.tile + share < down.tiles_end;
    if (warp == 0) {
        if (is_elected()) {
            init_barrier(received, 1);
            if (owns) expect_bytes(received, down.p.splits * rows * TILE_ROWS * 4);
            publish_barriers();
        }
        __syncwarp();
    }
    arrive_in_cluster_silently();
    // Shared memory, behind the rings: x, the share's columns of h, sums of runs, and of splits that other blocks leave here: [splits, rows, TILE_ROWS].
    const uint32_t x_at = shared_at + MLP_WARPS * ring_bytes, h_at = x_at + gate.segments * rows * 256;
    float* sums = reinterpret_cast<float*>(shared + MLP_WARPS * ring_bytes + (gate.segments + SHARE_SPLITS * down.p.split_segments) * rows * 256);
    float* down_sums = sums + gate.p.turn_tiles * gate.p.warps * task_sums;
    float* split_sums = down_sums + down.p.turn_tiles * SHARE_SPLITS * down.p.warps * task_sums;
    static_assert(FIRST_OUTPUTS <= MLP_THREADS && FIRST_OUTPUTS >= MLP_ROWS_MAX * TILE_ROWS);
    if (threadIdx.x < FIRST_OUTPUTS) of_block.outputs[threadIdx.x] = output_of(gate.p, threadIdx.x, gate.tile, 0, rows);

    // The norm's factor of a row is a warp's work.
    static_assert(MLP_WARPS >= MLP_ROWS_MAX);
    float squares = 0.0f, used = 1.0f;
    const auto meet = [] { asm volatile("barrier.sync 1, %0;" ::"n"(MLP_THREADS) : "memory"); };
    const auto await_x = [&] {
        wait_for_predecessors();
        const uint32_t pieces = gate.segments * 16 * rows;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < pieces; i += MLP_THREADS) copy_ahead(x_at + i * 16, gate.p.x.rows + i * 16);
        close_copies();
        if (gate.p.squares && warp < rows) {
            const float4* its = reinterpret_cast<const float4*>(gate.p.squares + size_t(warp) * gate.p.squares_count);
#pragma unroll 1
            for (uint32_t i = lane; i < gate.p.squares_count / 4; i += WARP) {
                const float4 four = its[i];
                squares += (four.x + four.y) + (four.z + four.w);
            }
            used = gate.p.used[warp];
        }
        await_copies<0>();
        meet();
    };
    Turn now;
    const uint8_t* stages = shared + warp * ring_bytes;
    make_tasks<TYPE>(gate, ring, stages, now, x_at, rows, sums, await_x);
    if (gate.p.squares && warp < rows) {
        const float exact = rsqrtf(warp_sum(squares) * gate.p.inverse_width + gate.p.eps);
        if (lane == 0) {
            of_block.factor[warp] = __fdividef(exact, used);
            if (gate.p.factors && blockIdx.x == 0) gate.p.factors[warp] = exact;
        }
    }
    __syncthreads();
    const uint32_t outputs = gate.p.turn_tiles * rows * 8;
#pragma unroll 1
    for (uint32_t index = threadIdx.x; index < outputs; index += MLP_THREADS) {
        const Output output = index < FIRST_OUTPUTS ? of_block.outputs[index] : output_of(gate.p, index, gate.tile, 0, rows);
        if (!output.is_there || gate.tile + output.tile >= gate.tiles_end) continue;
        const float* from = sums + output.tile * gate.p.warps * task_sums + output.n * SUM_STRIDE + output.m;
        const float factor = gate.p.squares ? of_block.factor[output.n] : 1.0f;
        const float value = add_runs(from, gate.p.warps, task_sums), up = add_runs(from + 8, gate.p.warps, task_sums);
        float y = value * (factor * output.scale[0]) + output.bias[0];
        y = activate(y, gate.p.mode) * (up * (factor * output.scale[1]) + output.bias[1]);
        store_turned(output.packed, __float2half_rn(within_half(y * gate.p.packed.scale)));
    }

    const uint32_t owned = rows * TILE_ROWS;
    const auto await_h = [&] {
        await_cluster();
        if (owns && threadIdx.x < owned) {
            // Its outputs of gate and up, if there were any, this thread has written.
            const Output output = output_of(down.p, threadIdx.x, down.tile + share, 0, rows);
            of_block.outputs[threadIdx.x] = output;
            of_block.old[threadIdx.x] = output.is_there ? *output.out : 0.0f;
            of_block.near[threadIdx.x] = output.is_there && down.p.next_norm ? down.p.next_factors[output.n] : 0.0f;
        }
        // What the launches before and after this one use.
        for (uint32_t i = blockIdx.x * MLP_THREADS + threadIdx.x; i < down.p.x.segments * 16 * MLP_ROWS_MAX; i += gridDim.x * MLP_THREADS) {
            reinterpret_cast<uint4*>(gate.p.partials)[i] = uint4{};
            reinterpret_cast<uint4*>(down.p.partials)[i] = uint4{};
        }
        const uint8_t* from = down.p.x.rows + size_t(first_segment) * 256 * rows;
        const uint32_t pieces = segments * 16 * rows;
        uint32_t left = LOOKS_MAX;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < pieces; i += MLP_THREADS) {
            uint4 its;
            do its = look_at(from + i * 16);
            while (!has_all(its) && left-- > 0);
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(h_at + i * 16), "r"(~its.x), "r"(~its.y), "r"(~its.z), "r"(~its.w) : "memory");
        }
        meet();
    };
    make_tasks<DOWN>(down, ring, stages, now, h_at, rows, down_sums, await_h);
    __syncthreads();
    // To each tile's owner, four numbers a thread.
    const uint32_t quads = down.p.turn_tiles * SHARE_SPLITS * rows * 4;
#pragma unroll 1
    for (uint32_t index = threadIdx.x; index < quads; index += MLP_THREADS) {
        const uint32_t quad = index % 4, task = index / 4 % (down.p.turn_tiles * SHARE_SPLITS), n = index / 4 / (down.p.turn_tiles * SHARE_SPLITS);
        const uint32_t at = task / SHARE_SPLITS, split = first_split + task % SHARE_SPLITS;
        if (down.tile + at >= down.tiles_end || split >= down.p.splits) continue;
        const float* from = down_sums + task * down.p.warps * task_sums + n * SUM_STRIDE + quad * 4;
        float its[4];
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) its[c] = add_runs(from + c, down.p.warps, task_sums);
        store_there(in_block(shared_of(split_sums + (split * rows + n) * TILE_ROWS + quad * 4), at), its[0], its[1], its[2], its[3], in_block(received, at));
    }
    if (!owns || warp * WARP >= owned) return;
    await_phase(received, 0);
    const Output output = of_block.outputs[threadIdx.x < owned ? threadIdx.x : 0];
    const bool is_mine = threadIdx.x < owned && output.is_there;
    float value = 0.0f;
#pragma unroll 1
    for (uint32_t split = 0; split < down.p.splits; split++) value += is_mine ? split_sums[split * owned + threadIdx.x] : 0.0f;
    Output its = output;
    its.is_there = is_mine;
    write_one(down.p, its, down.tile + share, 0, 1.0f, of_block.old[threadIdx.x % FIRST_OUTPUTS], of_block.near[threadIdx.x % FIRST_OUTPUTS], value, 0.0f);
}

#define MLP(TYPE, NAME, DOWN, DOWN_NAME)                                                                                        \
    extern "C" __global__ void __launch_bounds__(MLP_THREADS, 2) mlp_##NAME##_##DOWN_NAME(const __grid_constant__ PairParams p) { \
        __shared__ MlpShared of_block;                                                                                          \
        mlp<TYPE, DOWN>(p, of_block);                                                                                           \
    }
