// Attention of up to COLUMNS columns over one sequence: the warps of a block divide the chunks.
//
// Every warp fetches its chunks through its own ring, RING tiles in two halves (4 tiles of keys,
// then 4 of values are a chunk). Warps wait for each other only once per round, when the block
// folds the round's WARPS chunks in order. At least half of the ring is in flight at any time: 64
// KiB with 16 warps per multiprocessor; saturating the memory takes some 40 KiB.
#pragma once

#include "attention/attention_heads.cuh"
#include "attention/attention_scheduler.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Bytes of `DecodeAttention::Shared`. Sums of f16 are padded by four numbers. 32: `spans[1][4]` and
// two `Folded`.
__host__ __device__ constexpr uint32_t decode_shared_bytes(uint32_t warps, uint32_t ring,
                                                           uint32_t dim, bool is_q8) {
    const uint32_t stride = is_q8 ? dim : dim + 4, tiles = warps * ring * tile_bytes(dim, is_q8),
                   sums = warps * COLUMNS * stride * 4,
                   spans = warps > 2 ? COLUMNS * (dim * 4 + 8) : 32,
                   statistics = 2 * warps * COLUMNS * 4, visible = COLUMNS * 8,
                   all = tiles + sums + spans + row_heads_bytes(dim, is_q8) + statistics + visible;
    return (all + 1 + 127) / 128 * 128;
}

template <uint32_t DIM_, uint32_t WARPS_, uint32_t RING_, typename Number_>
struct DecodeAttention {
    using Number = Number_;
    using T = Tile<DIM_, Number>;
    static constexpr uint32_t DIM = DIM_, WARPS = WARPS_, RING = RING_;
    static constexpr uint32_t THREADS = WARPS * WARP;
    static constexpr uint32_t HALF = RING / 2;
    static_assert(HALF == TILES || HALF == TILES / 2, "tiles have fixed places");
    static constexpr uint32_t STRIDE = T::SUM_STRIDE;
    // Numbers of the folded result per thread, neighbours of one column.
    static constexpr uint32_t EACH = COLUMNS * DIM / THREADS;
    static_assert(EACH % 2 == 0 && DIM % EACH == 0, "read in pairs");
    // Whether spans are kept in shared memory. Blocks of two warps are for chips with too little of
    // it.
    static constexpr bool KEEPS_HERE = WARPS > 2;

    struct Shared {
        __align__(128) uint8_t ring[WARPS][RING][T::BYTES];
        // before the first round: heads in preparation
        __align__(16) float sums[WARPS][COLUMNS][STRIDE];
        // Result of the earlier spans, without the current one.
        __align__(16) float spans[KEEPS_HERE ? COLUMNS : 1][KEEPS_HERE ? DIM : 4];
        Folded of_spans[KEEPS_HERE ? COLUMNS : 2];
        RowHeads<DIM, Number> heads;
        float bases[WARPS][COLUMNS];
        float masses[WARPS][COLUMNS];
        VisibleRange visible[COLUMNS];
        bool is_last;
    };
    static_assert(WARPS * DIM <= WARPS * COLUMNS * STRIDE, "scratch of a head for each warp");

    // A warp's pipeline: ring, page tables and position for its chunks `first + warp`, `first +
    // warp + WARPS` ...
    struct Pipe {
        const Cells& cells;
        Pages<Number> keys, values;
        uint32_t ring;
        uint32_t end;
        // lane t: first cell of tile t, for the current chunk and the warp's next chunk
        uint32_t places, next_places;

        __device__ __forceinline__ uint32_t look_up(uint32_t chunk) const {
            const uint32_t first = chunk * CHUNK + threadIdx.x % TILES * TILE;
            return chunk < end ? cells.cell_of(cells.page_of(first), first) : 0;
        }
        // Fetches HALF tiles from tile `t` of 2 * TILES of a chunk on: keys, then values.
        __device__ __forceinline__ void fetch(uint32_t chunk, uint32_t tile_places,
                                              uint32_t t) const {
            if (chunk < end) {
                const Pages<Number>& pages = t < TILES ? keys : values;
#pragma unroll
                for (uint32_t i = t; i < t + HALF; i++) {
                    const uint32_t cell = __shfl_sync(FULL_MASK, tile_places, i % TILES);
                    T::fetch(place(i), pages, cell, chunk * CHUNK + i % TILES * TILE, cells.begin,
                             cells.end);
                }
                // Scales of all tiles at once: each lane has the address of its tile.
                const uint32_t tile = threadIdx.x % TILES, half = threadIdx.x % WARP / TILES;
                if (half < 2 && tile / HALF == t % TILES / HALF)
                    T::fetch_scales(place(t / TILES * TILES + tile), pages, tile_places, half,
                                    chunk * CHUNK + tile * TILE, cells.begin, cells.end);
            }
            cp_async_commit_group();
        }
        __device__ __forceinline__ uint32_t place(uint32_t t) const {
            return ring + t % RING * T::BYTES;
        }
        // Call it after the half from tile `t` of `chunk` on was read: fetches the half RING tiles
        // later.
        __device__ __forceinline__ void refill(uint32_t chunk, uint32_t t) const {
            __syncwarp();
            if (t + RING < 2 * TILES)
                fetch(chunk, places, t + RING);
            else
                fetch(chunk + WARPS, next_places, t + RING - 2 * TILES);
        }
    };

    // Processes one chunk: writes its bases, masses and sums to shared memory. `own`: position of
    // the row's own cell, or none.
    static __device__ __forceinline__ void chunk(const AttendParams& p, Shared& sh, Pipe& pipe,
                                                 uint32_t c, const uint32_t (&q)[1][DIM / 16][2],
                                                 const VisibleRange (&visible)[2], bool all_visible,
                                                 uint32_t columns, uint32_t own) {
        const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        pipe.next_places = pipe.look_up(c + WARPS);
        const bool has_own = own / CHUNK == c;
        const uint32_t own_tile = own % CHUNK / TILE;
        float s[1][TILES][4] = {};
#pragma unroll
        for (uint32_t t = 0; t < TILES; t += HALF) {
            cp_async_wait_group<1>();
            __syncwarp();
            if (has_own && own_tile / HALF == t / HALF)
                T::insert(pipe.place(own_tile), sh.heads.fresh[0], own % TILE);
            T::template score<HALF, 1>(s, t, pipe.place(t), q);
            pipe.refill(c, t);
        }
        float base[2], mass[4] = {};
        uint32_t weights[TILES][1][2];
        mask_scores(s[0], c * CHUNK, visible, all_visible);
        find_base(s[0], scale_of(p), base);
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            weigh_tile(s[0][t], scale_of(p), base, weights[t][0]);
            add_mass(mass, weights[t][0]);
        }
        float sums[1][DIM / 16][4] = {};
#pragma unroll
        for (uint32_t t = 0; t < TILES; t += HALF) {
            cp_async_wait_group<1>();
            __syncwarp();
            if (has_own && own_tile / HALF == t / HALF)
                T::insert(pipe.place(TILES + own_tile), sh.heads.fresh[1], own % TILE);
#pragma unroll
            for (uint32_t i = t; i < t + HALF; i++)
                T::template multiply_values<DIM / 16, 1>(sums, pipe.place(TILES + i), weights[i],
                                                         0);
            pipe.refill(c, TILES + t);
        }
        pipe.places = pipe.next_places;
        const uint32_t row = lane / 4, column = lane % 4 * 2;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            if (column + i >= columns)
                continue;
#pragma unroll
            for (uint32_t m = 0; m < DIM / 16; m++)
                T::store_sums(sh.sums[warp][column + i], column, m, row, sums[0][m][i],
                              sums[0][m][2 + i]);
            if (row == 0)
                sh.bases[warp][column + i] = base[i], sh.masses[warp][column + i] = mass[i];
        }
    }

    // Slot in memory of a chunk or span result that another block folds: sums [columns, DIM], then
    // bases, then masses.
    static __device__ __forceinline__ float* slot(const AttendParams& p, const KvSplit& split,
                                                  uint32_t groups, uint32_t columns,
                                                  uint32_t index) {
        return p.partials +
               (size_t(split.slot + index) * groups + split.group) * columns * (DIM + 2);
    }

    // The folded result, spread over the threads: EACH contiguous numbers of [COLUMNS, DIM].
    struct Result {
        float sums[EACH];
        Folded folded;

        __device__ __forceinline__ void clear() {
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++)
                sums[i] = 0.0f;
            folded = Folded::none();
        }
        static __device__ __forceinline__ uint32_t column() { return threadIdx.x * EACH / DIM; }
        static __device__ __forceinline__ uint32_t number() { return threadIdx.x * EACH % DIM; }

        // Prepends the kept result of earlier spans. A column's numbers belong to one warp.
        static_assert(DIM / EACH <= WARP && WARP % (DIM / EACH) == 0);
        __device__ __forceinline__ void prepend(const Shared& sh, const Result& kept) {
            Folded all = KEEPS_HERE ? sh.of_spans[column()] : kept.folded;
            const float2 factor = all.grow(folded.base, folded.mass);
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++)
                sums[i] = fold(KEEPS_HERE ? sh.spans[column()][number() + i] : kept.sums[i],
                               sums[i], factor);
            folded = all;
        }
        // Keeps the result, and starts the next span.
        __device__ __forceinline__ void keep(Shared& sh, Result& kept) {
            if constexpr (KEEPS_HERE) {
#pragma unroll
                for (uint32_t i = 0; i < EACH; i++)
                    sh.spans[column()][number() + i] = sums[i];
                __syncwarp();
                if (number() == 0)
                    sh.of_spans[column()] = folded;
                __syncwarp();
            } else {
                kept = *this;
            }
            clear();
        }
        // Folds in a span's result, and starts the next span.
        __device__ __forceinline__ void fold_in(Result& span) {
            const float2 factor = folded.grow(span.folded.base, span.folded.mass);
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++)
                sums[i] = fold(sums[i], span.sums[i], factor);
            span.clear();
        }
        // Writes the result to a slot.
        __device__ __forceinline__ void store(float* to, uint32_t slot_columns) const {
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++)
                to[column() * DIM + number() + i] = sums[i];
            if (number() == 0) {
                to[slot_columns * DIM + column()] = folded.base;
                to[slot_columns * (DIM + 1) + column()] = folded.mass;
            }
        }

        // Folds in `count` chunks, at most BATCH, in order: `at(chunk, number)` returns two
        // numbers; `base(chunk)` and `mass(chunk)` return one. All loads are issued before the
        // first use, so that they take the latency of one.
        template <uint32_t BATCH, typename At, typename Base, typename Mass>
        __device__ __forceinline__ void fold_in(uint32_t count, At at, Base base, Mass mass) {
            float bases[BATCH], masses[BATCH];
            float2 next[BATCH][EACH / 2];
#pragma unroll
            for (uint32_t c = 0; c < BATCH; c++) {
                const bool is_valid = c < count;
                bases[c] = is_valid ? base(c) : 0.0f;
                masses[c] = is_valid ? mass(c) : 0.0f;
#pragma unroll
                for (uint32_t i = 0; i < EACH / 2; i++)
                    next[c][i] = is_valid ? at(c, number() + 2 * i) : make_float2(0.0f, 0.0f);
            }
#pragma unroll
            for (uint32_t c = 0; c < BATCH; c++) {
                if (c >= count)
                    break;
                const float2 factor = folded.grow(bases[c], masses[c]);
#pragma unroll
                for (uint32_t i = 0; i < EACH / 2; i++) {
                    sums[2 * i] = fold(sums[2 * i], next[c][i].x, factor);
                    sums[2 * i + 1] = fold(sums[2 * i + 1], next[c][i].y, factor);
                }
            }
        }
    };

    // The rounds of a split. On entry the pipeline is filled, and the columns are in shared memory,
    // after a barrier. `store(column, d, values)` receives the result, one number or four.
    template <typename Store>
    static __device__ __forceinline__ void run(const AttendParams& p, Shared& sh, Pipe& pipe,
                                               const KvSplit& split, uint32_t groups,
                                               uint32_t slot_columns, uint32_t columns,
                                               uint32_t visible_first, uint32_t visible_end,
                                               uint32_t own, Store store) {
        static_assert(sizeof(Shared) == decode_shared_bytes(WARPS, RING, DIM, sizeof(Number) == 1));
        const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        const bool is_first = split.first == split.unit_first,
                   folds = is_first || split.stores_spans();
        uint32_t q[1][DIM / 16][2];
        load_columns<DIM, Number>(q[0], sh.heads.columns[0]);
        const VisibleRange visible[2] = {sh.visible[lane % 4 * 2], sh.visible[lane % 4 * 2 + 1]};
        const uint32_t column = Result::column();
        static_assert(SPAN % WARPS == 0, "a round is of one span");
        Result result, kept;
        result.clear();
        if constexpr (!KEEPS_HERE)
            kept.clear();
        for (uint32_t round = split.first_round(WARPS); round < split.end; round += WARPS) {
            const uint32_t c = round + warp;
            if (c < split.end) {
                const bool all_visible =
                    c * CHUNK >= visible_first && (c + 1) * CHUNK <= visible_end;
                chunk(p, sh, pipe, c, q, visible, all_visible, columns, own);
            }
            __syncthreads();
            const uint32_t count = min(WARPS, split.end - round);
            if (folds) {
                if (column < columns)
                    result.template fold_in<WARPS>(
                        count,
                        [&](uint32_t w, uint32_t d) {
                            return *reinterpret_cast<const float2*>(
                                &sh.sums[w][column][T::sum_place(column, d)]);
                        },
                        [&](uint32_t w) { return sh.bases[w][column]; },
                        [&](uint32_t w) { return sh.masses[w][column]; });
                const uint32_t next = round + count;
                if (next % SPAN == 0 || next == split.end) {
                    if (!is_first) {
                        if (column < columns)
                            result.store(slot(p, split, groups, slot_columns, split.slot_of(round)),
                                         slot_columns);
                        result.clear();
                    } else {
                        if (round >= split.unit_first + SPAN)
                            result.prepend(sh, kept);
                        if (next < split.end)
                            result.keep(sh, kept);
                    }
                }
            } else {
                for (uint32_t w = 0; w < count; w++) {
                    float* to = slot(p, split, groups, slot_columns, split.slot_of(round + w));
                    for (uint32_t i = threadIdx.x; i < columns * DIM; i += THREADS)
                        to[i] = sh.sums[w][i / DIM][T::sum_place(i / DIM, i % DIM)];
                    if (threadIdx.x < columns) {
                        to[slot_columns * DIM + threadIdx.x] = sh.bases[w][threadIdx.x];
                        to[slot_columns * (DIM + 1) + threadIdx.x] = sh.masses[w][threadIdx.x];
                    }
                }
            }
            __syncthreads();
        }
        if (split.splits > 1) {
            if (is_first && column < columns)
                result.store(slot(p, split, groups, slot_columns, 0), slot_columns);
            if (!ends_last(p, sh, split, groups))
                return;
            merge(p, split, groups, slot_columns, columns, result);
        }
        if (column >= columns)
            return;
        const float inverse = 1.0f / result.folded.mass;
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++)
            result.sums[i] *= inverse;
        if constexpr (EACH % 4 == 0) {
#pragma unroll
            for (uint32_t i = 0; i < EACH; i += 4)
                store(column, Result::number() + i,
                      *reinterpret_cast<const float (*)[4]>(&result.sums[i]));
        } else {
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++)
                store(column, Result::number() + i, result.sums[i]);
        }
    }

    // Whether all other splits of the unit are complete. If so, their results are visible.
    static __device__ __forceinline__ bool ends_last(const AttendParams& p, Shared& sh,
                                                     const KvSplit& split, uint32_t groups) {
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t* arrivals = p.arrivals + size_t(split.row) * groups + split.group;
            // acq_rel: publishes this block's writes (ordered by the barrier), and acquires the
            // writes of others
            uint32_t before;
            asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                         : "=r"(before)
                         : "l"(arrivals)
                         : "memory");
            sh.is_last = before == split.splits - 1;
            if (sh.is_last)
                *arrivals = 0;
        }
        __syncthreads();
        return sh.is_last;
    }

    static __device__ __forceinline__ void merge(const AttendParams& p, const KvSplit& split,
                                                 uint32_t groups, uint32_t slot_columns,
                                                 uint32_t columns, Result& result) {
        Result span;
        result.clear(), span.clear();
        const uint32_t slots = split.slot_of(split.unit_end - 1) + 1;
        const size_t stride = size_t(groups) * slot_columns * (DIM + 2);
        constexpr uint32_t BATCH = EACH > 16 ? 4 : 8; // as many as fit in registers
        const uint32_t column = Result::column();
        if (column >= columns)
            return;
        // Chunk results of several spans are read up to the end of a span. The first slot holds
        // `each` chunks.
        const bool is_of_chunks = !split.stores_spans() && split.unit_end - split.unit_first > SPAN;
        for (uint32_t first = 0, count; first < slots; first += count) {
            const uint32_t to_end = is_of_chunks ? SPAN - (split.each + first - 1) % SPAN : slots;
            count = min(min(BATCH, slots - first), to_end);
            const float* from = slot(p, split, groups, slot_columns, first);
            span.template fold_in<BATCH>(
                count,
                [&](uint32_t s, uint32_t d) {
                    return __ldcg(
                        reinterpret_cast<const float2*>(from + s * stride + column * DIM + d));
                },
                [&](uint32_t s) { return __ldcg(from + s * stride + slot_columns * DIM + column); },
                [&](uint32_t s) {
                    return __ldcg(from + s * stride + slot_columns * (DIM + 1) + column);
                });
            if (is_of_chunks && count == to_end)
                result.fold_in(span);
        }
        if (is_of_chunks)
            result.fold_in(span);
        else
            result = span;
    }
};
#endif
