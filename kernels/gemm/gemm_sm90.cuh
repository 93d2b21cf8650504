// wide: WGMMA GEMM (gemm_common.cuh; wgmma.cuh, sm_90a) for more than 8 rows of x, or 5 and more if
// K is large. Weights become f16 in registers once for up to 64 rows of x, which are read from
// shared memory.
//
// A block takes 8 tiles, 128 rows of W, or 4. Each consumer warp has a tile and a run of it. It
// copies its own weights, two segments at a time, the first before it waits for its predecessor.
// One producer warp copies the rows of x, which the warps of a run share; or one producer warp per
// run.
// - SPLITS = ONE, for many tiles: 16 warps compute both runs of all columns. A tile's two warps
//   swap half of their sums and write their results. Blocks are persistent and take tiles
//   round-robin. With 4 tiles a block has 8 warps and two blocks share a multiprocessor: the first
//   of them is resident before the preceding kernel has ended, and loads its weights.
// - SPLITS = ONE_UNEVEN: as ONE, but the last wave is half full: each block has 4 tiles in it,
//   which half of its warps compute.
// - SPLITS = IN_CLUSTER, for few tiles: a block computes one split, its runs sequentially. A
//   cluster of one block per split computes the same tiles; warps store their sums in the shared
//   memory of the block that owns the tile, which adds the splits in order. Two blocks share a
//   multiprocessor.
// - SPLITS = IN_MEMORY, for few tiles with long splits: 16 warps compute both runs of a block's
//   split and write the sums to the split-K workspace of `fold` (splitk_reduce.cu). A block has a
//   multiprocessor alone; a cluster of eight such blocks could not be scheduled at once.
// - SPLITS = LEFT, for few tiles if the consumer adds the splits (LeftRef in attention.cuh): a
//   block computes one split, of one run, and stores its sums without the rows' factors, which
//   block 0 writes.
//
// Grid: (persistent blocks, or groups of tiles * splits; rows of x / N); for a pair of products
// (IN_CLUSTER, LEFT) the blocks of one, then of the other. Bound: bytes of W up to some 32 rows of
// x, then reads of x from L2. Oracle: walla_cpu's scalar linear; the bits equal the results of
// gemm_skinny.cuh and gemm_sm80.cuh.
#pragma once

#include "common/bulk_copy.cuh"
#include "gemm/dequantise.cuh"
#include "gemm/gemm_common.cuh"
#include "common/wgmma.cuh"

constexpr uint32_t WIDE_TILES = 8; // per block: two warpgroups of four
constexpr uint32_t WIDE_TILES_HALF = 4;
// Where the splits of a tile are added.
enum Splits : uint32_t { ONE, ONE_UNEVEN, IN_CLUSTER, IN_MEMORY, LEFT };
// Runs that a block computes at once.
template <Splits SPLITS>
constexpr uint32_t RUNS_OF = SPLITS == IN_CLUSTER || SPLITS == LEFT ? 1 : 2;
// Producer warps for the rows of x of `runs` runs. Each issues one copy per 60 cycles, so there is
// one per run if 64 rows of x are more bytes than the weights of 8 tiles.
__host__ __device__ constexpr uint32_t x_warps(uint32_t n, uint32_t runs, uint32_t record) {
    return n > 32 && record <= 1024 ? runs : 1;
}
template <uint32_t TYPE, uint32_t N, Splits SPLITS, uint32_t TILES>
constexpr uint32_t WIDE_THREADS =
    (TILES * RUNS_OF<SPLITS> + x_warps(N, RUNS_OF<SPLITS>, Record<TYPE>::BYTES)) * WARP;
// Segments per stage of weights: copies of 1 to 2 KB.
__host__ __device__ constexpr uint32_t weights_chunk(uint32_t record) {
    return record > 1200 ? 1 : 2;
}
template <uint32_t N>
constexpr uint32_t X_CHUNK = N > 32 ? 1 : 2;      // segments per stage of x
constexpr uint32_t GROUP_BYTES = 8 * SEGMENT * 2; // 8 rows of x, one segment

// The tile of a number. Tiles are numbered as if all waves were full, 8 per block and wave; in a
// half wave, the last, only the lower half of each block's numbers have a tile. p.tiles or more:
// none.
template <bool HAS_HALF_TURN>
__device__ __forceinline__ uint32_t tile_at(const MatmulParams& p, uint32_t number) {
    if (!HAS_HALF_TURN || number < p.turn_tiles)
        return number;
    const uint32_t in = number % WIDE_TILES;
    return in < WIDE_TILES_HALF
               ? p.turn_tiles + (number - p.turn_tiles) / WIDE_TILES * WIDE_TILES_HALF + in
               : p.tiles;
}

// A warp's weight pipeline: the copies of its tiles into its ring, wave by wave.
template <uint32_t TYPE, bool HAS_HALF_TURN>
struct Weights {
    static constexpr uint32_t RECORD = Record<TYPE>::BYTES, CHUNK = weights_chunk(RECORD),
                              HALF = CHUNK * RECORD, STAGE = 2 * HALF;
    const MatmulParams& p;
    uint32_t stages, barriers; // shared-memory addresses
    uint32_t number, step;     // of the next tile; stride to the one after it
    uint32_t begin, count;     // segments of every tile
    uint32_t fetched;          // segments of the next tile
    const uint8_t* from;
    Turn ahead, now;

    __device__ __forceinline__ uint32_t tile() const { return tile_at<HAS_HALF_TURN>(p, number); }
    __device__ __forceinline__ void find() {
        if (tile() < p.tiles)
            from = first_half<RECORD>(p, tile(), begin);
    }
    // Starts the copies of the next stage, if one is left: the whole warp calls it, one lane
    // copies.
    __device__ __forceinline__ void fetch() {
        if (tile() >= p.tiles || count == 0)
            return;
        const uint32_t bytes = min(CHUNK, count - fetched) * RECORD;
        const uint32_t to = stages + ahead.slot * STAGE, barrier = barriers + 8 * ahead.slot;
        if (is_elected()) {
            expect_bytes(barrier, 2 * bytes);
            copy_bulk_once(to, from + fetched * RECORD, bytes, barrier);
            copy_bulk_once(to + HALF, from + fetched * RECORD + halves_apart<RECORD>(p), bytes,
                           barrier);
        }
        ahead.next(p.depth);
        fetched += CHUNK;
        if (fetched < count)
            return;
        fetched = 0;
        number += step;
        find();
    }
};

// Ring of the rows of x of a run, read by one warp per tile.
struct XRing {
    uint32_t stages, full, empty;
};

// Computes a run: the chain of its segments, `first_segment` to `end` of the `weights.count` that
// the warp multiplies for a tile. `is_tile` is false for a warp without a tile, which only takes
// part in its warpgroup's instructions.
template <uint32_t TYPE, uint32_t N, bool HAS_HALF_TURN>
__device__ __forceinline__ void multiply_run(float (&sum)[N / 2], const uint8_t* weights_from,
                                             Weights<TYPE, HAS_HALF_TURN>& weights, const XRing& x,
                                             Turn& x_now, uint32_t first_segment, uint32_t end,
                                             bool is_tile) {
    using W = Weights<TYPE, HAS_HALF_TURN>;
    constexpr uint32_t X_STAGE = N / 8 * GROUP_BYTES * X_CHUNK<N>;
    const MatmulParams& p = weights.p;
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t c = 0; c < N / 2; c++)
        sum[c] = 0.0f;
    uint32_t due = 0; // barrier of the last stage of x that products in flight may read
    const auto release_weights = [&] {
        __syncwarp();
        weights.fetch();
        weights.now.next(p.depth);
    };
    const auto release_x = [&] {
        due = x.empty + 8 * x_now.slot;
        x_now.next(p.chunk);
    };
    // Uniform over the warp; the shuffle makes that known to the compiler.
    const auto stage_of_x = [&] {
        return matrices_at(__shfl_sync(FULL_MASK, x.stages + x_now.slot * X_STAGE, 0),
                           GROUP_BYTES * X_CHUNK<N>);
    };
    // Multiplies one segment, at offsets `w_in` and `x_in` of the stages. `ends_*`: it is the last
    // of its stage.
    const auto multiply_segment = [&](uint64_t b, uint32_t w_in, uint32_t x_in, bool ends_weights,
                                      bool ends_x) {
        if (w_in == 0 && is_tile)
            await_phase(weights.barriers + 8 * weights.now.slot, weights.now.phase);
        HalfTile<TYPE> w[2];
        const uint8_t* records = weights_from + weights.now.slot * W::STAGE + w_in * W::RECORD;
        w[0].load(records, lane);
        w[1].load(records + W::HALF, lane);
        uint32_t first[2][2][4];
#pragma unroll
        for (uint32_t j = 0; j < 2; j++)
            unpack(first[j], w, j);
        if (x_in == 0)
            await_phase(x.full + 8 * x_now.slot, x_now.phase);
        begin_products();
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            add_product(sum, first[k / 2][k % 2], further(b, k * 256));
        close_products();
        // Earlier products are complete: their registers and their rows of x are free.
        await_products<1>();
        if (x_in == 0) {
            if (due && lane == 0)
                arrive(due);
            due = 0;
        }
        uint32_t second[2][2][4];
#pragma unroll
        for (uint32_t j = 0; j < 2; j++)
            unpack(second[j], w, 2 + j);
        begin_products();
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            add_product(sum, second[k / 2][k % 2], further(b, (4 + k) * 256));
        close_products();
        // Products in flight read the registers of their left operand. F16 weights are loaded into
        // these registers directly from shared memory, so only after all products are complete.
        await_products<TYPE == F16 ? 0 : 1>();
        if (ends_weights)
            release_weights();
        if (ends_x)
            release_x();
    };
    if constexpr (N > 32 || TYPE == F16) {
        for (uint32_t s = first_segment; s < end; s++) {
            const uint32_t w_in = s % W::CHUNK, x_in = s % X_CHUNK<N>;
            const bool is_last = s + 1 == weights.count;
            multiply_segment(further(stage_of_x(), x_in * GROUP_BYTES), w_in, x_in,
                             w_in + 1 == W::CHUNK || is_last, x_in + 1 == X_CHUNK<N> || is_last);
        }
    } else {
        // Two segments per iteration, one stage of weights and one of x: a third fewer
        // instructions. 64 rows of x leave no registers for it. A run may begin and end within a
        // stage.
        static_assert(W::CHUNK == 2 && X_CHUNK<N> == 2);
        for (uint32_t s = first_segment / 2 * 2; s < end; s += 2) {
            const uint64_t b = stage_of_x();
            if (s >= first_segment)
                multiply_segment(b, 0, 0, false, false);
            if (s + 1 < end)
                multiply_segment(further(b, GROUP_BYTES), 1, 1, true, true);
        }
        if (end == weights.count && end % 2)
            release_weights(), release_x();
    }
    await_sums(sum);
    if (due && lane == 0)
        arrive(due);
}

// Releases the stages of x of a wave in which the warpgroup has no tiles.
template <uint32_t N>
__device__ __forceinline__ void pass_run(const XRing& x, Turn& x_now, uint32_t count,
                                         uint32_t depth) {
#pragma unroll 1
    for (uint32_t s = 0; s < count; s += X_CHUNK<N>) {
        await_phase(x.full + 8 * x_now.slot, x_now.phase);
        __syncwarp();
        if (threadIdx.x % WARP == 0)
            arrive(x.empty + 8 * x_now.slot);
        x_now.next(depth);
    }
}

// Sums of COUNT numbers over a warp, each in warp_sum's order: lane l gets the sum of number l /
// (WARP / COUNT).
template <uint32_t COUNT>
__device__ __forceinline__ float warp_sums(float (&of)[COUNT]) {
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t offset = WARP / 2;
#pragma unroll
    for (uint32_t left = COUNT / 2; left > 0; left /= 2, offset /= 2)
#pragma unroll
        for (uint32_t i = 0; i < left; i++) {
            const float mine = lane & offset ? of[i + left] : of[i],
                        other = lane & offset ? of[i] : of[i + left];
            of[i] = mine + __shfl_xor_sync(FULL_MASK, other, offset);
        }
#pragma unroll
    for (; offset > 0; offset /= 2)
        of[0] += __shfl_xor_sync(FULL_MASK, of[0], offset);
    return of[0];
}

// Whether gate and up leave memory bandwidth unused: true for 64 rows of x with quantised weights.
template <uint32_t TYPE, uint32_t N>
constexpr bool LEAVES_MEMORY_IDLE = N > 32 && TYPE != F16;

// Prefetches into L2 every `stride`-th of the pages that the next attention reads, as many as L2
// keeps. They are spread over the rows and their lengths, so that attention always finds some in L2
// while others come from memory. Few pages need no prefetch. `part` of `parts`: a warp's share.
__device__ __forceinline__ void bring_pages(const MatmulParams& p, uint32_t part, uint32_t parts) {
    const PagesRef& next = p.next_pages;
    const uint32_t rows = p.step.header().rows, lane = threadIdx.x % WARP;
    const auto page_of = [&](uint32_t cell) { return __umulhi(cell, next.page_magic); };
    // Pages of a row's earlier cells.
    const auto first_of = [&](uint32_t position) {
        return next.window && position >= next.window ? page_of(position + 1 - next.window) : 0;
    };
    const auto end_of = [&](uint32_t position) { return position ? page_of(position - 1) + 1 : 0; };
    uint32_t pages = 0;
    for (uint32_t r = lane; r < rows; r += WARP) {
        const uint32_t position = p.step.row(r).position;
        pages += end_of(position) - first_of(position);
    }
    pages = __reduce_add_sync(FULL_MASK, pages);
    if (pages <= 2 * next.pages_most)
        return;
    const uint32_t stride = div_up(pages, next.pages_most);
    // Equally many warps take the keys and the values of each row.
    const uint32_t streams = 2 * rows, takers = parts / streams, taker = part / streams,
                   stream = part - taker * streams;
    if (taker >= takers || !is_elected())
        return;
    const StepRow& row = p.step.row(stream / 2);
    const uint32_t* table = p.step.table(row.table);
    const uint8_t* from = stream % 2 ? next.values : next.keys;
    const uint32_t end = end_of(row.position);
#pragma unroll 1
    for (uint32_t page = first_of(row.position) + taker * stride; page < end;
         page += takers * stride)
        fetch_ahead(from + size_t(table[page]) * next.page_bytes, next.page_bytes);
}

// Whether gate and up load only one stage of weights before their predecessor has ended, and the
// others when rows of x are in flight: with 16 rows the full prefetch would take enough bandwidth
// to delay the preceding product.
template <uint32_t TYPE, uint32_t N, Splits SPLITS>
constexpr bool ASKS_LATE = SPLITS == ONE && N == 16 && TYPE != F16;

// Computes the norm factors of the block's rows of x, which block 0 also writes to memory. The
// loads of a warp's rows are in flight together.
template <uint32_t N, uint32_t WARPS>
__device__ __forceinline__ void find_factors(float* factor, uint32_t row0, bool is_first,
                                             const MatmulParams& p) {
    constexpr uint32_t EACH = N / WARPS, LANES = WARP / EACH;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP,
                   mine = warp + lane / LANES * WARPS;
    const auto row_of = [&](uint32_t k) { return min(row0 + warp + k * WARPS, p.rows_max - 1); };
    float its = 1.0f;
    if (p.squares) {
        const float used = p.used[row_of(lane / LANES)];
        float sum[EACH] = {};
#pragma unroll 1
        for (uint32_t i = lane; i < p.squares_count / 4; i += WARP) {
            float4 four[EACH];
#pragma unroll
            for (uint32_t k = 0; k < EACH; k++)
                four[k] = reinterpret_cast<const float4*>(p.squares +
                                                          size_t(row_of(k)) * p.squares_count)[i];
#pragma unroll
            for (uint32_t k = 0; k < EACH; k++)
                sum[k] += (four[k].x + four[k].y) + (four[k].z + four[k].w);
        }
        const float exact = rsqrtf(warp_sums(sum) * p.inverse_width + p.eps);
        its = __fdividef(exact, used);
        if (p.factors && is_first && lane % LANES == 0 && row0 + mine < p.rows_max)
            p.factors[row0 + mine] = exact;
    }
    if (lane % LANES == 0)
        factor[mine] = its;
}

// Sums of a tile for which a warp adds the runs.
template <uint32_t N, uint32_t RUNS>
constexpr uint32_t SHARE = N / 2 / RUNS;
// Sums that a warp transposes at once, of 8 or 16 rows of x: every lane then has a quad of outputs,
// even if a tile has only eight rows.
template <uint32_t N, uint32_t RUNS>
constexpr uint32_t TURNED = SHARE<N, RUNS> < 8 ? SHARE<N, RUNS> : 8;
// Floats of shared memory per warp to swap and transpose the sums.
template <uint32_t N, uint32_t RUNS>
constexpr uint32_t SWAP =
    RUNS == 1                                                  ? 0
    : SHARE<N, RUNS> * WARP < TURNED<N, RUNS> * 2 * SUM_STRIDE ? TURNED<N, RUNS> * 2 * SUM_STRIDE
                                                               : SHARE<N, RUNS> * WARP;

// A tile's two warps exchange half of their sums; each adds the runs of its own half.
template <uint32_t N>
__device__ __forceinline__ void swap_sums(float (&share)[N / 4], const float (&sum)[N / 2],
                                          float* mine, float* other, uint32_t run,
                                          uint32_t tile_in) {
    const uint32_t lane = threadIdx.x % WARP;
    const auto meet = [&] { asm volatile("bar.sync %0, 64;" ::"r"(2 + tile_in) : "memory"); };
    meet();
#pragma unroll
    for (uint32_t c = 0; c < N / 4; c++)
        other[c * WARP + lane] = run ? sum[c] : sum[N / 4 + c];
    meet();
#pragma unroll
    for (uint32_t c = 0; c < N / 4; c++)
        share[c] = (run ? sum[N / 4 + c] : sum[c]) + mine[c * WARP + lane];
}

// Whether a cluster's sums reuse the shared memory of x and weights, because they are large. A
// block then stores its sums only after all blocks have multiplied.
template <uint32_t N>
constexpr bool SUMS_LIE_LATE = N > 32;
// Floats of shared memory per warp of a cluster block that keep a run's sums while the warp
// computes the next; few sums stay in registers.
template <uint32_t N>
constexpr uint32_t KEPT = N > 32 ? N / 2 * WARP : 0;

// Static shared memory of a block.
template <uint32_t N, uint32_t RUNS, uint32_t TILES>
struct WideShared {
    __align__(8) uint64_t barriers[TILES * RUNS * DEPTH_MAX + RUNS * 2 * DEPTH_MAX + 1];
    float factor[N];
};

template <uint32_t TYPE, uint32_t N, Splits SPLITS, uint32_t TILES>
__device__ __forceinline__ void wide(const MatmulParams& p,
                                     WideShared<N, RUNS_OF<SPLITS>, TILES>& of_block,
                                     Blocks blocks) {
    constexpr bool HAS_HALF_TURN = SPLITS == ONE_UNEVEN, IN_TURNS = SPLITS == ONE || HAS_HALF_TURN,
                   CLUSTER = SPLITS == IN_CLUSTER;
    using W = Weights<TYPE, HAS_HALF_TURN>;
    constexpr uint32_t RUNS = RUNS_OF<SPLITS>;
    // Consumer warps and producer warps.
    constexpr uint32_t WARPS = TILES * RUNS, BRINGING = x_warps(N, RUNS, Record<TYPE>::BYTES),
                       X_STAGE = N / 8 * GROUP_BYTES * X_CHUNK<N>, TILE_BYTES = N * TILE_ROWS * 4;
    extern __shared__ __align__(128) uint8_t shared[];
    auto& barriers = of_block.barriers;
    auto& factor = of_block.factor;
    const uint32_t lane = threadIdx.x % WARP, warp = __shfl_sync(FULL_MASK, threadIdx.x / WARP, 0);
    const uint32_t splits = IN_TURNS ? 1 : p.splits;
    const uint32_t group0 = IN_TURNS ? blocks.index : divided(blocks.index, p.by_x_splits),
                   split = IN_TURNS ? 0 : blocks.index - group0 * splits;
    const uint32_t groups = HAS_HALF_TURN ? div_up(p.turn_tiles, TILES) +
                                                div_up(p.tiles - p.turn_tiles, WIDE_TILES_HALF)
                                          : div_up(p.tiles, TILES);
    const uint32_t group_step = IN_TURNS ? blocks.count : groups;
    const uint32_t row0 = blockIdx.y * N;
    constexpr bool IS_LATE = CLUSTER && SUMS_LIE_LATE<N>;
    // Segments of a warp: one run, or all runs of the split sequentially.
    const uint32_t split_begin = split * p.split_segments,
                   split_end = min(p.x.segments, split_begin + p.split_segments);
    const uint32_t each = CLUSTER ? p.split_segments : p.run;
    const auto begin_of = [&](uint32_t run) { return min(split_begin + run * each, split_end); };
    const auto count_of = [&](uint32_t run) {
        return min(begin_of(run) + each, split_end) - begin_of(run);
    };
    // Shared memory: sums from the cluster's blocks [own tiles, splits, N / 8, lanes, 4]; behind
    // them, or if IS_LATE at the same address: x of every run; weights; swapped or kept sums.
    const uint32_t here = min(TILES, p.tiles - group0 * TILES);
    const uint32_t own =
        CLUSTER && here > split ? divided(here - split + splits - 1, p.by_x_splits) : 0;
    const uint32_t received =
                       !CLUSTER ? 0
                                : divided(TILES + splits - 1, p.by_x_splits) * splits * TILE_BYTES,
                   x_shared = IS_LATE ? 0 : received;
    const uint32_t x_bytes = p.chunk * X_STAGE, weight_bytes = p.depth * W::STAGE,
                   weights_at = x_shared + RUNS * x_bytes;
    float* swaps = reinterpret_cast<float*>(shared + weights_at + WARPS * weight_bytes);
    const uint32_t barriers_at = shared_of(barriers),
                   x_barriers = barriers_at + 8 * WARPS * DEPTH_MAX;
    const uint32_t all_received = x_barriers + 8 * RUNS * 2 * DEPTH_MAX;
    const auto x_of = [&](uint32_t run) {
        const uint32_t at = x_barriers + run * 8 * 2 * DEPTH_MAX;
        return XRing{shared_of(shared) + x_shared + run * x_bytes, at, at + 8 * DEPTH_MAX};
    };
    const uint32_t run = warp / TILES % RUNS, tile_in = warp % TILES;
    W weights{p,
              shared_of(shared) + weights_at + warp * weight_bytes,
              barriers_at + 8 * warp * DEPTH_MAX,
              group0 * TILES + tile_in,
              group_step * TILES,
              begin_of(run),
              count_of(run),
              0};
    const uint32_t early = ASKS_LATE<TYPE, N, SPLITS> && p.mode >= GATE_SILU ? 1 : p.depth;
    let_successors_start();
    if (warp < WARPS) {
        init_own_barriers<DEPTH_MAX>(weights.barriers);
        weights.find();
#pragma unroll 1
        for (uint32_t d = 0; d < early; d++)
            weights.fetch();
        // Consecutive parts go to different blocks: a multiprocessor fetches pages sequentially.
        if (IN_TURNS && LEAVES_MEMORY_IDLE<TYPE, N> && p.next_pages.keys) {
            const uint32_t blocks_all = gridDim.x * gridDim.y,
                           block = blockIdx.y * gridDim.x + blockIdx.x;
            bring_pages(p, warp * blocks_all + block, WARPS * blocks_all);
        }
    } else if (BRINGING == 1 || warp == WARPS) {
        if (is_elected()) {
#pragma unroll
            for (uint32_t i = 0; i < RUNS * DEPTH_MAX; i++) {
                const XRing x = x_of(i / DEPTH_MAX);
                init_barrier(x.full + 8 * (i % DEPTH_MAX), 1);
                init_barrier(x.empty + 8 * (i % DEPTH_MAX), TILES);
            }
            if (CLUSTER) {
                init_barrier(all_received, 1);
                expect_bytes(all_received, own * splits * TILE_BYTES);
            }
            publish_barriers();
        }
    }
    __syncthreads();
    if (CLUSTER && !IS_LATE)
        arrive_in_cluster_silently();
    wait_for_predecessors();

    if (BRINGING == 1 ? warp == WARPS : warp >= WARPS) {
        // Each of the warp's runs has an equal share of the lanes, and each lane copies one group
        // of 8 rows of x.
        constexpr uint32_t EACH = RUNS / BRINGING, LANES = WARP / EACH;
        const uint32_t run = (BRINGING == 1 ? 0 : warp - WARPS) * EACH + lane / LANES,
                       group = lane % LANES, count = count_of(run), longest = count_of(0);
        const uint32_t groups_here = min(N / 8, div_up(p.rows_max - row0, 8));
        const XRing x = x_of(run);
        const uint8_t* from =
            p.x.rows + (size_t(row0 / 8 + group) * p.x.segments + begin_of(run)) * GROUP_BYTES;
        Turn turn;
        turn.phase = 1;
        for (uint32_t g = group0; g < groups; g += group_step)
            for (uint32_t s = 0; s < longest; s += X_CHUNK<N>) {
                const bool is_any = s < count;
                const uint32_t bytes = is_any ? min(X_CHUNK<N>, count - s) * GROUP_BYTES : 0;
                if (is_any)
                    await_phase(x.empty + 8 * turn.slot, turn.phase);
                if (is_any && group == 0)
                    expect_bytes(x.full + 8 * turn.slot, groups_here * bytes);
                __syncwarp();
                if (is_any && group < groups_here)
                    copy_bulk(x.stages + turn.slot * X_STAGE + group * GROUP_BYTES * X_CHUNK<N>,
                              from + s * GROUP_BYTES, bytes, x.full + 8 * turn.slot);
                if (is_any)
                    turn.next(p.chunk);
            }
        if (CLUSTER) {
            __syncwarp();
            if (IS_LATE)
                arrive_in_cluster_silently();
            await_cluster();
        }
        return;
    }
    const auto meet_all = [] { asm volatile("bar.sync 1, %0;" ::"n"(WARPS * WARP) : "memory"); };
    if (CLUSTER || IN_TURNS) {
        find_factors<N, WARPS>(factor, row0, blocks.index == 0, p);
        meet_all();
    } else if (SPLITS == LEFT && blocks.index == 0) {
        find_factors<N, WARPS>(factor, row0, true, p);
    }
    if constexpr (ASKS_LATE<TYPE, N, SPLITS>) {
#pragma unroll 1
        for (uint32_t d = early; d < p.depth; d++)
            weights.fetch();
    }
    const bool gated = p.mode >= GATE_SILU;
    const uint32_t quads = gated ? 2 : 4;
    const XRing x = x_of(run);
    const uint8_t* weights_from = shared + weights_at + warp * weight_bytes;
    constexpr uint32_t COUNT = SHARE<N, RUNS>, ONCE = TURNED<N, RUNS>;
    Turn x_now;
    float sum[N / 2];
    if constexpr (IN_TURNS) {
        float share[COUNT];
        float* mine = swaps + warp * SWAP<N, RUNS>;
        for (uint32_t group = group0; group < groups; group += group_step) {
            const uint32_t tile = tile_at<HAS_HALF_TURN>(p, group * TILES + tile_in);
            if (HAS_HALF_TURN && group * TILES >= p.turn_tiles && tile_in >= WIDE_TILES_HALF) {
                pass_run<N>(x, x_now, weights.count, p.chunk);
                break;
            }
            multiply_run<TYPE, N>(sum, weights_from, weights, x, x_now, 0, weights.count,
                                  tile < p.tiles);
            swap_sums<N>(share, sum, mine, swaps + (warp ^ TILES) * SWAP<N, RUNS>, run, tile_in);
            if (tile >= p.tiles)
                continue;
            const TileOf place = tile_of(p, tile);
            // Not unrolled: a second iteration needs no instruction fetch.
            static_assert(COUNT <= 2 * ONCE);
#pragma unroll 1
            for (uint32_t c = 0; c < COUNT; c += ONCE) {
                __syncwarp();
#pragma unroll
                for (uint32_t i = 0; i < ONCE; i++)
                    mine[sum_place(i, lane)] = c == 0 ? share[i] : share[COUNT - ONCE + i];
                __syncwarp();
                for (uint32_t item = lane; item < ONCE * 2 * quads; item += WARP) {
                    const uint32_t quad = item % quads, n = item / quads,
                                   r = run * (N / 2) + c * 2 + n;
                    float value[2][4] = {};
#pragma unroll
                    for (uint32_t half = 0; half < 2; half++) {
                        if (half == 1 && !gated)
                            continue;
                        const float4 four = *reinterpret_cast<const float4*>(mine + n * SUM_STRIDE +
                                                                             half * 8 + quad * 4);
                        value[half][0] = four.x, value[half][1] = four.y, value[half][2] = four.z,
                        value[half][3] = four.w;
                    }
                    write_four(p, place, row0 + r, quad, factor[r], value);
                }
            }
        }
    } else if constexpr (SPLITS == IN_MEMORY) {
        const uint32_t tile = group0 * TILES + tile_in;
        float share[COUNT];
        multiply_run<TYPE, N>(sum, weights_from, weights, x, x_now, 0, weights.count,
                              tile < p.tiles);
        swap_sums<N>(share, sum, swaps + warp * SWAP<N, RUNS>,
                     swaps + (warp ^ TILES) * SWAP<N, RUNS>, run, tile_in);
        if (tile >= p.tiles)
            return;
        // In the layout of `fold`, four per lane.
        const uint32_t first = (row0 + run * (N / 2)) / 8;
#pragma unroll
        for (uint32_t c = 0; c < COUNT; c += 4) {
            float4* to = split_sums(p, split, first + c / 4, tile);
            if (to)
                to[lane] = make_float4(share[c], share[c + 1], share[c + 2], share[c + 3]);
        }
    } else if constexpr (SPLITS == LEFT) {
        const uint32_t tile = group0 * TILES + tile_in;
        multiply_run<TYPE, N>(sum, weights_from, weights, x, x_now, 0, weights.count,
                              tile < p.tiles);
        if (tile >= p.tiles)
            return;
        const TileOf place = tile_of(p, tile);
        const Segment& part = p.part[place.part[0]];
        // A lane has two rows of the tile, eight apart, for two rows of x: a warp's stores fill
        // sectors of 32 bytes.
        const uint32_t r = row0 + lane % 4 * 2;
        float* out =
            part.out + split * p.splits_apart + size_t(r) * part.out_stride + place.row + lane / 4;
#pragma unroll
        for (uint32_t c = 0; c < N / 2; c++) {
            const uint32_t n = c / 4 * 8 + c % 2;
            if (r + n < p.rows_max)
                out[size_t(n) * part.out_stride + c % 4 / 2 * 8] = sum[c];
        }
    } else {
        // Runs sequentially.
        float kept[KEPT<N> ? 1 : N / 2];
        float* keeps = swaps + warp * KEPT<N>;
        const auto kept_of = [&](uint32_t c) -> float& {
            return KEPT<N> ? keeps[c * WARP + lane] : kept[KEPT<N> ? 0 : c];
        };
        for (uint32_t run = 0; run < p.warps; run++) {
            if (run > 0)
#pragma unroll
                for (uint32_t c = 0; c < N / 2; c++)
                    kept_of(c) = sum[c];
            const uint32_t first = min(run * p.run, weights.count),
                           end = min(first + p.run, weights.count);
            multiply_run<TYPE, N>(sum, weights_from, weights, x, x_now, first, end,
                                  group0 * TILES + tile_in < p.tiles);
        }
        if (p.warps > 1)
#pragma unroll
            for (uint32_t c = 0; c < N / 2; c++)
                sum[c] = kept_of(c) + sum[c];
        if (IS_LATE)
            arrive_in_cluster_silently();
        // Loads the epilogue inputs of the block's first tile while it waits for the other blocks:
        // a warp has eight rows of x, a lane four outputs.
        static_assert(N / 8 <= WARPS);
        const uint32_t quad = lane % quads, n = warp * 8 + lane / quads;
        const bool writes = warp < N / 8 && lane < 8 * quads;
        TileOf place = {};
        Known known = {};
        if (own > 0 && writes) {
            place = tile_of(p, group0 * TILES + split);
            known = known_of(p, place, row0 + n, quad);
        }
        await_cluster();
        if (splits == 1) {
            // A single block stores its sums in the layout in which they would arrive.
            float4* to = reinterpret_cast<float4*>(shared + tile_in * TILE_BYTES) + lane;
#pragma unroll
            for (uint32_t c = 0; c < N / 2; c += 4)
                to[c / 4 * WARP] = make_float4(sum[c], sum[c + 1], sum[c + 2], sum[c + 3]);
            meet_all();
        } else if (tile_in < here) {
            const uint32_t round = divided(tile_in, p.by_x_splits),
                           owner = tile_in - round * splits,
                           barrier = in_block(all_received, owner);
            const uint32_t to = in_block(
                shared_of(shared) + (round * splits + split) * TILE_BYTES + lane * 16, owner);
#pragma unroll
            for (uint32_t c = 0; c < N / 2; c += 4)
                store_there(to + c / 4 * (WARP * 16), sum[c], sum[c + 1], sum[c + 2], sum[c + 3],
                            barrier);
        }
        if (own == 0 || warp >= N / 8)
            return;
        if (splits > 1)
            await_phase(all_received, 0);
        float* turned = reinterpret_cast<float*>(shared + (IS_LATE ? received : weights_at)) +
                        warp * (IS_LATE ? 8 * SUM_STRIDE : weight_bytes / 4);
        for (uint32_t i = 0; i < own; i++) {
            if (i > 0 && writes) {
                place = tile_of(p, group0 * TILES + split + i * splits);
                known = known_of(p, place, row0 + n, quad);
            }
            const float4* its = reinterpret_cast<const float4*>(shared + i * splits * TILE_BYTES) +
                                warp * WARP + lane;
            float total[4] = {};
#pragma unroll
            for (uint32_t s = 0; s < WIDE_SPLITS_MAX; s++) {
                if (s >= splits)
                    continue;
                const float4 four = its[s * (TILE_BYTES / 16)];
                total[0] += four.x, total[1] += four.y, total[2] += four.z, total[3] += four.w;
            }
            turn_sums(turned, total, lane);
            if (!writes)
                continue;
            float value[2][4] = {};
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                if (half == 1 && !gated)
                    continue;
                const float4 four = *reinterpret_cast<const float4*>(
                    turned + lane / quads * SUM_STRIDE + half * 8 + quad * 4);
                value[half][0] = four.x, value[half][1] = four.y, value[half][2] = four.z,
                value[half][3] = four.w;
            }
            write_four(p, place, row0 + n, quad, factor[n], known, value);
        }
    }
}

#define WIDE(TYPE, NAME, FORM, N, SPLITS, TILES, BLOCKS)                                         \
    extern "C" __global__ void __launch_bounds__((WIDE_THREADS<TYPE, N, SPLITS, TILES>), BLOCKS) \
        wide##FORM##_##NAME##_##N(const __grid_constant__ MatmulParams p) {                      \
        __shared__ WideShared<N, RUNS_OF<SPLITS>, TILES> of_block;                               \
        wide<TYPE, N, SPLITS, TILES>(p, of_block, {blockIdx.x, gridDim.x});                      \
    }
#define WIDE_PAIR(TYPE, NAME, OTHER, OTHER_NAME, FORM, N, SPLITS)                                 \
    extern "C" __global__ void __launch_bounds__((WIDE_THREADS<TYPE, N, SPLITS, WIDE_TILES>), 2)  \
        wide##FORM##_##NAME##_##OTHER_NAME##_##N(const __grid_constant__ PairParams p) {          \
        __shared__ WideShared<N, RUNS_OF<SPLITS>, WIDE_TILES> of_block;                           \
        of_pair(                                                                                  \
            p,                                                                                    \
            [&](Blocks blocks) { wide<TYPE, N, SPLITS, WIDE_TILES>(p.first, of_block, blocks); }, \
            [&](Blocks blocks) {                                                                  \
                wide<OTHER, N, SPLITS, WIDE_TILES>(p.second, of_block, blocks);                   \
            });                                                                                   \
    }
#define WIDE_PAIRS(TYPE, NAME, OTHER, OTHER_NAME)                      \
    WIDE_PAIR(TYPE, NAME, OTHER, OTHER_NAME, _cluster, 16, IN_CLUSTER) \
    WIDE_PAIR(TYPE, NAME, OTHER, OTHER_NAME, _cluster, 32, IN_CLUSTER) \
    WIDE_PAIR(TYPE, NAME, OTHER, OTHER_NAME, _cluster, 64, IN_CLUSTER) \
    WIDE_PAIR(TYPE, NAME, OTHER, OTHER_NAME, _left, 16, LEFT)          \
    WIDE_PAIR(TYPE, NAME, OTHER, OTHER_NAME, _left, 32, LEFT)          \
    WIDE_PAIR(TYPE, NAME, OTHER, OTHER_NAME, _left, 64, LEFT)
// For types that share kernels with another type: those also run one of the two alone.
#define WIDES_BUT_PAIRED(TYPE, NAME)                         \
    WIDE(TYPE, NAME, , 16, ONE, WIDE_TILES, 1)               \
    WIDE(TYPE, NAME, , 32, ONE, WIDE_TILES, 1)               \
    WIDE(TYPE, NAME, , 64, ONE, WIDE_TILES, 1)               \
    WIDE(TYPE, NAME, _half, 16, ONE, WIDE_TILES_HALF, 2)     \
    WIDE(TYPE, NAME, _half, 32, ONE, WIDE_TILES_HALF, 2)     \
    WIDE(TYPE, NAME, _uneven, 32, ONE_UNEVEN, WIDE_TILES, 1) \
    WIDE(TYPE, NAME, _uneven, 64, ONE_UNEVEN, WIDE_TILES, 1) \
    WIDE(TYPE, NAME, _split, 64, IN_MEMORY, WIDE_TILES, 1)
#define WIDES(TYPE, NAME)                                     \
    WIDES_BUT_PAIRED(TYPE, NAME)                              \
    WIDE(TYPE, NAME, _cluster, 16, IN_CLUSTER, WIDE_TILES, 2) \
    WIDE(TYPE, NAME, _cluster, 32, IN_CLUSTER, WIDE_TILES, 2) \
    WIDE(TYPE, NAME, _cluster, 64, IN_CLUSTER, WIDE_TILES, 2) \
    WIDE(TYPE, NAME, _left, 16, LEFT, WIDE_TILES, 2)          \
    WIDE(TYPE, NAME, _left, 32, LEFT, WIDE_TILES, 2)          \
    WIDE(TYPE, NAME, _left, 64, LEFT, WIDE_TILES, 2)
