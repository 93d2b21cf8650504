// Attention of up to COLUMNS columns that see one sequence: the warps of a block share out the chunks.
//
// Every warp fetches its own chunks through a ring of its own, RING tiles in two halves (4 tiles of keys, then 4 of values make a
// chunk), and never waits for another warp but once a round, when the block folds the WARPS chunks of the round in order.
// At least half of the ring is on its way at any time: with 16 warps a multiprocessor, 64 KiB; the memory wants some 40.
#pragma once

#include "attend.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Rows that have one table and one head group, as one block or several take them: `chunks` of them from `first_chunk` on, out of
// the unit's `unit_first .. unit_end`.
struct Share {
    uint32_t row, rows;
    uint32_t group;  // of all groups
    uint32_t unit_first, unit_end;
    uint32_t first, end;
    uint32_t slot;   // the unit's first
    uint32_t first_share_end;
    uint32_t shares;
};

template <uint32_t DIM_, uint32_t WARPS_, uint32_t RING_>
struct Few {
    static constexpr uint32_t DIM = DIM_, WARPS = WARPS_, RING = RING_;
    static constexpr uint32_t THREADS = WARPS * WARP;
    static constexpr uint32_t HALF = RING / 2;
    static_assert(HALF == TILES || HALF == TILES / 2, "tiles have fixed places");
    static constexpr uint32_t STRIDE = DIM + 4;  // of a column's sums: 8 rows x 4 column pairs in different banks
    // Numbers of the folded result that a thread holds, and columns that these belong to.
    static constexpr uint32_t EACH = COLUMNS * DIM / THREADS;
    static constexpr uint32_t A_COLUMN = DIM > THREADS ? DIM / THREADS : 1;

    struct Shared {
        __align__(128) uint8_t ring[WARPS][RING][TILE_BYTES<DIM>];
        __align__(16) float sums[WARPS][COLUMNS][STRIDE];  // before the first round: heads in the making
        __align__(16) __half columns[COLUMNS][DIM + 8];
        __align__(16) __half fresh[2][DIM];  // the row's own key and value
        float2 turns[DIM / 2];
        float maxima[WARPS][COLUMNS];
        float masses[WARPS][COLUMNS];
        Sight sight[COLUMNS];
        bool is_last;
    };
    static_assert(WARPS * DIM <= WARPS * COLUMNS * STRIDE, "a head in the making for each warp");

    // Ring, tables and position of one warp in its chunks `first + warp`, `first + warp + WARPS` ...
    struct Pipe {
        const Cells& cells;
        const __half *keys, *values;
        uint32_t ring;
        uint32_t end;
        uint32_t pages, next_pages;  // lane t: the page of tile t, of the chunk in hand and of the warp's next

        __device__ __forceinline__ uint32_t look_up(uint32_t chunk) const {
            const uint32_t lane = threadIdx.x % WARP;
            return lane < TILES && chunk < end ? cells.page_of(chunk * CHUNK + lane * TILE) : 0;
        }
        // Fetches HALF tiles from tile `t` of 2 * TILES of a chunk on: keys, then values.
        __device__ __forceinline__ void fetch(uint32_t chunk, uint32_t table, uint32_t t) const {
            if (chunk < end) {
#pragma unroll
                for (uint32_t i = t; i < t + HALF; i++) {
                    const uint32_t first = chunk * CHUNK + i % TILES * TILE;
                    const uint32_t page = __shfl_sync(FULL_MASK, table, i % TILES);
                    const __half* from = (t < TILES ? keys : values) + cells.place_of(page, first);
                    fetch_tile<DIM>(place(i), from, first, cells.begin, cells.end);
                }
            }
            close_copies();
        }
        __device__ __forceinline__ uint32_t place(uint32_t t) const { return ring + t % RING * TILE_BYTES<DIM>; }
        // After the half from tile `t` of `chunk` on has been read: fetches what comes RING tiles later.
        __device__ __forceinline__ void refill(uint32_t chunk, uint32_t t) const {
            __syncwarp();
            if (t + RING < 2 * TILES)
                fetch(chunk, pages, t + RING);
            else
                fetch(chunk + WARPS, next_pages, t + RING - 2 * TILES);
        }
    };

    // Puts the row's own key or value into the tile that has its cell.
    static __device__ __forceinline__ void insert(uint32_t tile, const __half* fresh, uint32_t cell) {
        const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
        for (uint32_t piece = lane; piece < DIM / 8; piece += WARP) {
            const uint4 words = *reinterpret_cast<const uint4*>(fresh + piece * 8);
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(tile + piece_place<DIM>(cell, piece)), "r"(words.x),
                         "r"(words.y), "r"(words.z), "r"(words.w)
                         : "memory");
        }
        __syncwarp();
    }

    // One chunk: leaves its maxima, masses and sums in shared memory. `own`: position of the row's own cell, or none.
    static __device__ __forceinline__ void chunk(const AttendParams& p, Shared& sh, Pipe& pipe, uint32_t c,
                                                 const uint32_t (&q)[1][DIM / 16][2], const Sight (&sight)[2], bool all_seen,
                                                 uint32_t columns, uint32_t own) {
        const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        pipe.next_pages = pipe.look_up(c + WARPS);
        const bool has_own = own / CHUNK == c;
        const uint32_t own_tile = own % CHUNK / TILE;
        float s[1][TILES][4];
#pragma unroll
        for (uint32_t t = 0; t < TILES; t += HALF) {
            await_copies<1>();
            __syncwarp();
            if (has_own && own_tile / HALF == t / HALF) insert(pipe.place(own_tile), sh.fresh[0], own % TILE);
            score_tiles<DIM, HALF, 1>(s, t, pipe.place(t), q);
            pipe.refill(c, t);
        }
        uint32_t weights[1][TILES][2];
        float maximum[2], mass[2];
        weigh_chunk(s[0], weights[0], maximum, mass, p.scale * 1.44269504f, c * CHUNK, sight, all_seen);
        float sums[1][DIM / 16][4] = {};
#pragma unroll
        for (uint32_t t = 0; t < TILES; t += HALF) {
            await_copies<1>();
            __syncwarp();
            if (has_own && own_tile / HALF == t / HALF) insert(pipe.place(TILES + own_tile), sh.fresh[1], own % TILE);
            mix_tiles<DIM, HALF, 1>(sums, t, pipe.place(TILES + t), weights);
            pipe.refill(c, TILES + t);
        }
        pipe.pages = pipe.next_pages;
        const uint32_t row = lane / 4, column = lane % 4 * 2;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            if (column + i >= columns) continue;
#pragma unroll
            for (uint32_t d = 0; d < DIM / 16; d++) {
                sh.sums[warp][column + i][d * 16 + row] = sums[0][d][i];
                sh.sums[warp][column + i][d * 16 + row + 8] = sums[0][d][2 + i];
            }
            if (row == 0) sh.maxima[warp][column + i] = maximum[i], sh.masses[warp][column + i] = mass[i];
        }
    }

    // Where a chunk that is not folded at once goes: sums [columns, DIM], then maxima, then masses.
    static __device__ __forceinline__ float* slot(const AttendParams& p, const Share& share, uint32_t groups, uint32_t columns,
                                                  uint32_t index) {
        return p.partials + (size_t(share.slot + index) * groups + share.group) * columns * (DIM + 2);
    }

    // The folded result, spread over the threads: number i of a thread is number `place(i)` of [COLUMNS, DIM].
    struct Result {
        float sums[EACH];
        Folded folded[EACH / A_COLUMN];

        __device__ __forceinline__ void clear() {
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++) sums[i] = 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < EACH / A_COLUMN; j++) folded[j] = Folded::none();
        }
        static __device__ __forceinline__ uint32_t place(uint32_t i) { return i * THREADS + threadIdx.x; }

        // Folds in `count` chunks, at most BATCH, in order: `at(chunk, column, d)`, `maximum(chunk, column)`, `mass(chunk, column)`.
        // All are read before the first is used, so that reading takes the time of one.
        template <uint32_t BATCH, typename At, typename Maximum, typename Mass>
        __device__ __forceinline__ void take(uint32_t count, uint32_t columns, At at, Maximum maximum, Mass mass) {
#pragma unroll
            for (uint32_t j = 0; j < EACH / A_COLUMN; j++) {
                const uint32_t column = place(j * A_COLUMN) / DIM;
                if (column >= columns) break;  // of later numbers too
                float maxima[BATCH], masses[BATCH], next[BATCH][A_COLUMN];
#pragma unroll
                for (uint32_t c = 0; c < BATCH; c++) {
                    const bool is_there = c < count;
                    maxima[c] = is_there ? maximum(c, column) : 0.0f;
                    masses[c] = is_there ? mass(c, column) : 0.0f;
#pragma unroll
                    for (uint32_t i = 0; i < A_COLUMN; i++)
                        next[c][i] = is_there ? at(c, column, place(j * A_COLUMN + i) % DIM) : 0.0f;
                }
#pragma unroll
                for (uint32_t c = 0; c < BATCH; c++) {
                    if (c >= count) break;
                    const float2 factor = folded[j].grow(maxima[c], masses[c]);
#pragma unroll
                    for (uint32_t i = 0; i < A_COLUMN; i++)
                        sums[j * A_COLUMN + i] = fold(sums[j * A_COLUMN + i], next[c][i], factor);
                }
            }
        }
    };

    // The rounds of a share. On entry the pipe is filled and the columns lie in shared memory, behind a barrier.
    // `store(column, d, value)` takes the result.
    template <typename Store>
    static __device__ __forceinline__ void run(const AttendParams& p, Shared& sh, Pipe& pipe, const Share& share, uint32_t groups,
                                               uint32_t slot_columns, uint32_t columns, uint32_t seen_first, uint32_t seen_end,
                                               uint32_t own, Store store) {
        const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        const bool is_first = share.first == share.unit_first;
        uint32_t q[1][DIM / 16][2];
        load_columns<DIM>(q[0], sh.columns[0]);
        const Sight sight[2] = {sh.sight[lane % 4 * 2], sh.sight[lane % 4 * 2 + 1]};
        Result result;
        result.clear();
        for (uint32_t round = share.first; round < share.end; round += WARPS) {
            const uint32_t c = round + warp;
            if (c < share.end) {
                const bool all_seen = c * CHUNK >= seen_first && (c + 1) * CHUNK <= seen_end;
                chunk(p, sh, pipe, c, q, sight, all_seen, columns, own);
            }
            __syncthreads();
            const uint32_t count = min(WARPS, share.end - round);
            if (is_first) {
                result.template take<WARPS>(
                    count, columns, [&](uint32_t w, uint32_t column, uint32_t d) { return sh.sums[w][column][d]; },
                    [&](uint32_t w, uint32_t column) { return sh.maxima[w][column]; },
                    [&](uint32_t w, uint32_t column) { return sh.masses[w][column]; });
            } else {
                for (uint32_t w = 0; w < count; w++) {
                    float* to = slot(p, share, groups, slot_columns, 1 + round + w - share.first_share_end);
                    for (uint32_t i = threadIdx.x; i < columns * DIM; i += THREADS) to[i] = sh.sums[w][i / DIM][i % DIM];
                    if (threadIdx.x < columns) {
                        to[slot_columns * DIM + threadIdx.x] = sh.maxima[w][threadIdx.x];
                        to[slot_columns * (DIM + 1) + threadIdx.x] = sh.masses[w][threadIdx.x];
                    }
                }
            }
            __syncthreads();
        }
        if (share.shares > 1) {
            if (is_first) {
                float* to = slot(p, share, groups, slot_columns, 0);
#pragma unroll
                for (uint32_t i = 0; i < EACH; i++) {
                    const uint32_t place = Result::place(i), column = place / DIM;
                    if (column >= columns) continue;
                    to[place] = result.sums[i];
                    if (place % DIM == 0) {
                        to[slot_columns * DIM + column] = result.folded[i / A_COLUMN].maximum;
                        to[slot_columns * (DIM + 1) + column] = result.folded[i / A_COLUMN].mass;
                    }
                }
            }
            if (!ends_last(p, sh, share, groups)) return;
            merge(p, share, groups, slot_columns, columns, result);
        }
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            const uint32_t place = Result::place(i), column = place / DIM;
            if (column >= columns) continue;
            const float inverse = 1.0f / result.folded[i / A_COLUMN].mass;
            store(column, place % DIM, result.sums[i] * inverse);
        }
    }

    // Whether all other shares of the unit are in memory; they can be seen then.
    static __device__ __forceinline__ bool ends_last(const AttendParams& p, Shared& sh, const Share& share, uint32_t groups) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();  // of all that the barrier ordered before it
            uint32_t* arrivals = p.arrivals + size_t(share.row) * groups + share.group;
            sh.is_last = atomicAdd(arrivals, 1) == share.shares - 1;
            if (sh.is_last) *arrivals = 0;
            __threadfence();
        }
        __syncthreads();
        return sh.is_last;
    }

    static __device__ __forceinline__ void merge(const AttendParams& p, const Share& share, uint32_t groups,
                                                 uint32_t slot_columns, uint32_t columns, Result& result) {
        result.clear();
        const uint32_t slots = 1 + share.unit_end - share.first_share_end;
        const size_t stride = size_t(groups) * slot_columns * (DIM + 2);
        constexpr uint32_t BATCH = A_COLUMN == 1 ? 8 : 4;
        for (uint32_t first = 0; first < slots; first += BATCH) {
            const float* from = slot(p, share, groups, slot_columns, first);
            result.template take<BATCH>(
                min(BATCH, slots - first), columns,
                [&](uint32_t s, uint32_t column, uint32_t d) { return __ldcg(from + s * stride + column * DIM + d); },
                [&](uint32_t s, uint32_t column) { return __ldcg(from + s * stride + slot_columns * DIM + column); },
                [&](uint32_t s, uint32_t column) { return __ldcg(from + s * stride + slot_columns * (DIM + 1) + column); });
        }
    }
};

// Who takes what -------------------------------------------------------------------------------------------------------------

// Shares of all units of a step, made by the first warp of every block alike, from lengths in the step block: as many chunks a
// share as spread the step over the grid, but a round of the block at least.
struct Shares {
    uint32_t* first_share;  // [units + 1], of each unit, counted over all units
    uint32_t* first_slot;   // [units + 1]
    uint32_t* chunks;       // [units]
    uint32_t units, segment;

    // Chunks of each share of a unit but the last. The smallest segment is one round of a block: a second round costs less than
    // sharing does.
    static __device__ __forceinline__ uint32_t size(uint32_t chunks, uint32_t segment, uint32_t warps) {
        const uint32_t near = max(1u, (chunks + segment / 2) / segment);
        const uint32_t shares = segment > warps || near == 1 ? near : div_up(chunks, segment);
        return div_up(chunks, shares);
    }

    // By the first warp; `chunks` of a unit with the top bit set is taken whole. Needs a barrier before others read.
    __device__ __forceinline__ void make(uint32_t groups, uint32_t warps, uint32_t slots_max, uint32_t* segment_out) const {
        const uint32_t lane = threadIdx.x % WARP;
        uint32_t total = 0;
        for (uint32_t u = lane; u < units; u += WARP) total += chunks[u] & ~WHOLE;
        total = __reduce_add_sync(FULL_MASK, total);
        uint32_t wanted = max(warps, div_up(total * groups, gridDim.x));
        for (;; wanted *= 2) {
            uint32_t shares = 0, slots = 0;
            for (uint32_t base = 0; base < units; base += WARP) {
                const uint32_t u = base + lane;
                const uint32_t n = u < units ? chunks[u] : 0;
                uint32_t its_shares = u < units ? 1 : 0, its_slots = 0;
                if (n && !(n & WHOLE)) {
                    const uint32_t each = size(n, wanted, warps);
                    its_shares = div_up(n, each);
                    its_slots = its_shares > 1 ? 1 + n - each : 0;
                }
                uint32_t a = its_shares, b = its_slots;
#pragma unroll
                for (uint32_t offset = 1; offset < WARP; offset *= 2) {
                    const uint32_t other_a = __shfl_up_sync(FULL_MASK, a, offset);
                    const uint32_t other_b = __shfl_up_sync(FULL_MASK, b, offset);
                    if (lane >= offset) a += other_a, b += other_b;
                }
                if (u < units) first_share[u] = shares + a - its_shares, first_slot[u] = slots + b - its_slots;
                shares += __shfl_sync(FULL_MASK, a, WARP - 1);
                slots += __shfl_sync(FULL_MASK, b, WARP - 1);
            }
            if (lane == 0) first_share[units] = shares, *segment_out = wanted;
            if (slots <= slots_max) break;
        }
    }
    static constexpr uint32_t WHOLE = 0x80000000u;

    // The unit of a share.
    __device__ __forceinline__ uint32_t unit_of(uint32_t share) const {
        if (first_share[units] == units) return share;
        uint32_t low = 0, high = units;
        while (high - low > 1) {
            const uint32_t middle = (low + high) / 2;
            if (first_share[middle] <= share)
                low = middle;
            else
                high = middle;
        }
        return low;
    }
};
#endif
