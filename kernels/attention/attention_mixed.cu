// attention_mixed: out[r] = softmax(scale * q[r] K^T) V over the cells max(0, p + 1 - window) ..= p
// of the row's sequence, for any step; append runs before it.
// input: q [rows, heads * head_dim] f32; out: the same, or packed f16; pages f16 or 8 bits;
// head_dim 64, 128 or 256.
//
// Neighbouring rows of one sequence are processed together: their columns (a row's query heads of
// one KV head are neighbours) share one pass over keys and values. Prefill path: a unit has up to
// COLUMNS_MAX columns (64 at most), 8 or 16 per warp, and all warps read the same tiles. Decode
// path: a unit has up to 8 columns, and the warps divide the cells (attention_decode.cuh). A run of
// rows takes the prefill path if it has more than COLUMNS_MAX columns and either more than
// RUN_COLUMNS columns, or at least RUN_WORK column-chunks, or if prefill units of the whole step
// occupy half of the blocks; its last unit takes the decode path if it has no more than 8 columns.
// Both paths split spans over several blocks and compute the same bits (attention.cuh).
// Grid: as many blocks as are resident at once. Each takes splits round-robin, from the step's last
// row backwards, because the last rows of a prompt see the most cells.
// Bound: memory for few columns, otherwise tensor cores.
// Oracle: walla_cpu's scalar attention (tests/gpu/attention.rs).
#include "attention/attention_decode.cuh"

// The instructions need sm_80; older chips use attention.cu.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

constexpr uint32_t ROWS_MAX = 512; // of the largest step
// Runs of up to RUN_COLUMNS columns use the decode path while columns times chunks are fewer than
// RUN_WORK, because more blocks can share the work. Both are measured: 256 in
// benches/results/cuda-attention.md, 8,192 in benches/results/cuda-step-bench.md.
constexpr uint32_t RUN_COLUMNS = 256, RUN_WORK = 8192;

// Prefill path: WARPS * NS * 8 columns over all chunks, in a ring of whole chunks; the ring has one
// stage if two do not fit.
template <typename F, uint32_t NS>
struct PrefillAttention {
    using T = typename F::T;
    using Number = typename F::Number;
    static constexpr uint32_t DIM = F::DIM, WARPS = F::WARPS;
    static constexpr uint32_t COLUMNS_MAX = WARPS * NS * COLUMNS;
    static constexpr uint32_t STAGE_BYTES = 2 * TILES * T::BYTES;
    static constexpr uint32_t STAGES = F::WARPS * F::RING * T::BYTES / STAGE_BYTES;
    static_assert(TILES % WARPS == 0 && STAGES >= 1,
                  "each warp fetches as many tiles of keys and of values");

    // Result of a part, COLUMNS columns, in the products' layout: two columns per lane.
    struct Part {
        float sums[DIM / 16][4];
        Folded folded[2];

        __device__ __forceinline__ void clear() {
#pragma unroll
            for (uint32_t d = 0; d < DIM / 16; d++)
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    sums[d][i] = 0.0f;
            folded[0] = folded[1] = Folded::none();
        }
        __device__ __forceinline__ void fold_in(const float (&next)[DIM / 16][4],
                                                const float2 (&factor)[2]) {
#pragma unroll
            for (uint32_t d = 0; d < DIM / 16; d++)
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    sums[d][i] = fold(sums[d][i], next[d][i], factor[i % 2]);
        }
        __device__ __forceinline__ void fold_in(const Part& next) {
            float2 factor[2];
#pragma unroll
            for (uint32_t i = 0; i < 2; i++)
                factor[i] = folded[i].grow(next.folded[i].base, next.folded[i].mass);
            fold_in(next.sums, factor);
        }
        // Writes to and reads from a slot. Its sums are in lane order: only this kernel reads them.
        __device__ __forceinline__ void store(float* slot) const {
            const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
            for (uint32_t d = 0; d < DIM / 16; d++)
                reinterpret_cast<float4*>(slot)[d * WARP + lane] =
                    make_float4(sums[d][0], sums[d][1], sums[d][2], sums[d][3]);
            if (lane < COLUMNS / 2) {
                reinterpret_cast<float2*>(slot + COLUMNS * DIM)[lane] =
                    make_float2(folded[0].base, folded[1].base);
                reinterpret_cast<float2*>(slot + COLUMNS * (DIM + 1))[lane] =
                    make_float2(folded[0].mass, folded[1].mass);
            }
        }
        __device__ __forceinline__ void read(const float* slot) {
            const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
            for (uint32_t d = 0; d < DIM / 16; d++) {
                const float4 four = __ldcg(reinterpret_cast<const float4*>(slot) + d * WARP + lane);
                sums[d][0] = four.x, sums[d][1] = four.y, sums[d][2] = four.z, sums[d][3] = four.w;
            }
            const float2 bases =
                __ldcg(reinterpret_cast<const float2*>(slot + COLUMNS * DIM) + lane % 4);
            const float2 masses =
                __ldcg(reinterpret_cast<const float2*>(slot + COLUMNS * (DIM + 1)) + lane % 4);
            folded[0] = Folded{bases.x, masses.x}, folded[1] = Folded{bases.y, masses.y};
        }
    };

    // Columns `first` .. of the unit as right-hand sides; missing columns are zeros.
    static __device__ __forceinline__ void load(const AttendParams& p, const KvSplit& split,
                                                const HeadGroup& group, uint32_t columns,
                                                uint32_t first, uint32_t (&q)[NS][DIM / 16][2]) {
        const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
        for (uint32_t n = 0; n < NS; n++) {
            const uint32_t column = first + n * COLUMNS + lane / 4;
            const uint32_t r = split.row + column / group.heads,
                           head = group.first_head + column % group.heads;
            const float* from = p.input + (size_t(r) * p.head.heads + head) * DIM;
#pragma unroll
            for (uint32_t k = 0; k < 2 * (DIM / 16); k++) {
                const uint32_t d = T::depth_of(k / 2, k % 2, lane % 4);
                const float2 two = column < columns ? *reinterpret_cast<const float2*>(from + d)
                                                    : make_float2(0.0f, 0.0f);
                q[n][k / 2][k % 2] = pack_halves(two.x, two.y);
            }
        }
    }

    static __device__ __forceinline__ void run(const AttendParams& p, typename F::Shared& sh,
                                               const KvSplit& split, const Cells& cells,
                                               uint32_t groups, uint32_t position) {
        const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        const HeadGroup group = head_group_of(p, split.group);
        const uint32_t columns = split.rows * group.heads;
        const uint32_t ring = shared_address(sh.ring);
        const bool is_first = split.first == split.unit_first;
        const uint32_t begin = max(split.first, split.visible_first);
        const Pages<Number> keys{reinterpret_cast<const Number*>(p.kv.keys), p.kv.key_scales};
        const Pages<Number> values{reinterpret_cast<const Number*>(p.kv.values), p.kv.value_scales};
        const auto fetch = [&](uint32_t c) {
            if (c < split.end) {
#pragma unroll
                for (uint32_t tile = warp; tile < TILES; tile += WARPS) {
                    const uint32_t first = c * CHUNK + tile * TILE;
                    const uint32_t cell = cells.cell_of(cells.page_of(first), first);
                    const uint32_t to = ring + c % STAGES * STAGE_BYTES + tile * T::BYTES;
                    T::fetch(to, keys, cell, first, cells.begin, cells.end);
                    T::fetch(to + TILES * T::BYTES, values, cell, first, cells.begin, cells.end);
                    if (lane < 2) {
                        T::fetch_scales(to, keys, cell, lane, first, cells.begin, cells.end);
                        T::fetch_scales(to + TILES * T::BYTES, values, cell, lane, first,
                                        cells.begin, cells.end);
                    }
                }
            }
            cp_async_commit_group();
        };
#pragma unroll
        for (uint32_t i = 0; i + 1 < STAGES; i++)
            fetch(begin + i);

        const uint32_t first_column = warp * NS * COLUMNS;
        uint32_t q[NS][DIM / 16][2];
        load(p, split, group, columns, first_column, q);
        // Visible ranges of the lane's columns, and their intersection and union over the warp.
        // Missing columns have the range of the last.
        const auto end_of = [&](uint32_t column) {
            return position + min(column, columns - 1) / group.heads + 1;
        };
        const auto begin_of = [&](uint32_t end) {
            return p.window && end > p.window ? end - p.window : 0;
        };
        VisibleRange visible[NS][2];
#pragma unroll
        for (uint32_t n = 0; n < NS; n++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t end = end_of(first_column + n * COLUMNS + lane % 4 * 2 + i);
                visible[n][i] = VisibleRange{begin_of(end), end};
            }
        const uint32_t end_min = end_of(first_column),
                       end_max = end_of(first_column + NS * COLUMNS - 1);
        const uint32_t begin_min = begin_of(end_min), begin_max = begin_of(end_max);

        // The slot of the warp's part n within the unit's slot `index`.
        const uint32_t parts = div_up(columns, COLUMNS);
        const auto slot = [&](uint32_t index, uint32_t n) {
            return F::slot(p, split, groups, COLUMNS, index * parts + warp * NS + n);
        };
        const auto is_valid = [&](uint32_t n) { return warp * NS + n < parts; };
        // Result of the complete spans, and of the current span's chunks.
        Part result[NS], span[NS];
#pragma unroll
        for (uint32_t n = 0; n < NS; n++)
            result[n].clear(), span[n].clear();
        // Ends the span of chunk `c`: the first split folds it in, other splits write it to a slot.
        const auto close_span = [&](uint32_t c) {
#pragma unroll
            for (uint32_t n = 0; n < NS; n++) {
                if (is_first)
                    result[n].fold_in(span[n]);
                else if (is_valid(n))
                    span[n].store(slot(split.slot_of(c), n));
                span[n].clear();
            }
        };
        for (uint32_t c = begin; c < split.end; c++) {
            if constexpr (STAGES == 1) {
                // One stage only: the chunk is fetched after all warps have finished with the
                // previous one.
                __syncthreads();
                fetch(c);
                cp_async_wait_group<0>();
                __syncthreads();
            } else {
                cp_async_wait_group<STAGES - 2>();
                __syncthreads();
                fetch(c + STAGES - 1);
            }
            const uint32_t first = c * CHUNK;
            if (c % SPAN == 0 && c > begin)
                close_span(c - 1);
            if (first_column >= columns || first >= end_max || first + CHUNK <= begin_min)
                continue;
            const bool all_visible = first >= begin_max && first + CHUNK <= end_min;
            const uint32_t tiles = ring + c % STAGES * STAGE_BYTES;
            float s[NS][TILES][4] = {};
            T::template score<TILES, NS>(s, 0, tiles, q);
            uint32_t weights[TILES][NS][2];
            float2 factor[NS][2];
#pragma unroll
            for (uint32_t n = 0; n < NS; n++) {
                float base[2], mass[4] = {};
                mask_scores(s[n], first, visible[n], all_visible);
                find_base(s[n], scale_of(p), base);
#pragma unroll
                for (uint32_t t = 0; t < TILES; t++) {
                    weigh_tile(s[n][t], scale_of(p), base, weights[t][n]);
                    add_mass(mass, weights[t][n]);
                }
#pragma unroll
                for (uint32_t i = 0; i < 2; i++)
                    factor[n][i] = span[n].folded[i].grow(base[i], mass[i]);
            }
            float next[NS][DIM / 16][4] = {};
#pragma unroll
            for (uint32_t t = 0; t < TILES; t++)
                T::template multiply_values<DIM / 16, NS>(next, tiles + (TILES + t) * T::BYTES,
                                                          weights[t], 0);
#pragma unroll
            for (uint32_t n = 0; n < NS; n++)
                span[n].fold_in(next[n], factor[n]);
        }
        close_span(split.end - 1);
        __syncthreads();
        if (split.splits > 1) {
            if (is_first)
#pragma unroll
                for (uint32_t n = 0; n < NS; n++)
                    if (is_valid(n))
                        result[n].store(slot(0, n));
            if (!F::ends_last(p, sh, split, groups))
                return;
            merge(split, slot, is_valid, result);
        }
#pragma unroll
        for (uint32_t n = 0; n < NS; n++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t column = first_column + n * COLUMNS + lane % 4 * 2 + i;
                if (column >= columns)
                    continue;
                const uint32_t r = split.row + column / group.heads,
                               head = group.first_head + column % group.heads;
                const float inverse = 1.0f / result[n].folded[i].mass;
#pragma unroll
                for (uint32_t d = 0; d < DIM / 16; d++) {
                    store_output(p, r, head, T::number_of(d, 0, lane / 4),
                                 result[n].sums[d][i] * inverse);
                    store_output(p, r, head, T::number_of(d, 1, lane / 4),
                                 result[n].sums[d][2 + i] * inverse);
                }
            }
    }

    // Folds the first split's result, then the spans of the others, in order. Several are loaded
    // before the first is folded in.
    template <typename Slot, typename IsThere>
    static __device__ __forceinline__ void merge(const KvSplit& split, Slot slot, IsThere is_valid,
                                                 Part (&result)[NS]) {
        constexpr uint32_t BATCH = DIM > 128 ? 1 : 4 * 64 / DIM;
        const uint32_t slots = split.slot_of(split.unit_end - 1) + 1;
#pragma unroll
        for (uint32_t n = 0; n < NS; n++) {
            if (!is_valid(n))
                continue;
            result[n].clear();
            for (uint32_t first = 0; first < slots; first += BATCH) {
                Part next[BATCH];
#pragma unroll
                for (uint32_t i = 0; i < BATCH; i++)
                    next[i].read(slot(min(first + i, slots - 1), n));
#pragma unroll
                for (uint32_t i = 0; i < BATCH; i++)
                    if (first + i < slots)
                        result[n].fold_in(next[i]);
            }
        }
    }
};

// Cuts a step's rows into units: runs of neighbouring rows with one page table and consecutive
// positions, cut into pieces.
struct Units {
    static constexpr uint32_t WORDS = ROWS_MAX / WARP + 1;
    static_assert(WORDS <= WARP, "a lane per word");
    struct Shared {
        uint32_t starts[WORDS]; // a bit per row that begins a run, and one for the end of all rows
        uint32_t before[WORDS]; // last start before the word, or 0
        uint32_t after[WORDS];  // first start after the word
    };
    Shared& sh;
    // [rows], copies: the loops below would wait for memory in each iteration.
    const uint32_t *tables, *positions;

    // Called by the block; needs a barrier after it.
    __device__ __forceinline__ void find_starts(uint32_t rows) const {
        for (uint32_t r = threadIdx.x; r / WARP <= rows / WARP; r += blockDim.x) {
            bool is_start = r == 0 || r == rows;
            if (r > 0 && r < rows)
                is_start = tables[r] != tables[r - 1] || positions[r] != positions[r - 1] + 1;
            const uint32_t bits = __ballot_sync(FULL_MASK, is_start);
            if (threadIdx.x % WARP == 0)
                sh.starts[r / WARP] = bits;
        }
    }
    // Called by the first warp.
    __device__ __forceinline__ void find_neighbours(uint32_t rows) const {
        const uint32_t lane = threadIdx.x % WARP, bits = lane <= rows / WARP ? sh.starts[lane] : 0;
        uint32_t last = bits ? lane * WARP + 31 - __clz(bits) : 0,
                 first = bits ? lane * WARP + __ffs(bits) - 1 : ~0u;
#pragma unroll
        for (uint32_t offset = 1; offset < WARP; offset *= 2) {
            const uint32_t lower = __shfl_up_sync(FULL_MASK, last, offset),
                           upper = __shfl_down_sync(FULL_MASK, first, offset);
            if (lane >= offset)
                last = max(last, lower);
            if (lane + offset < WARP)
                first = min(first, upper);
        }
        const uint32_t before = __shfl_up_sync(FULL_MASK, last, 1),
                       after = __shfl_down_sync(FULL_MASK, first, 1);
        if (lane < WORDS)
            sh.before[lane] = before, sh.after[lane] = after;
        __syncwarp();
    }
    __device__ __forceinline__ uint32_t run_begin(uint32_t r) const {
        const uint32_t word = r / WARP, bits = sh.starts[word] & (FULL_MASK >> (31 - r % WARP));
        return bits ? word * WARP + 31 - __clz(bits) : sh.before[word];
    }
    __device__ __forceinline__ uint32_t run_end(uint32_t r) const {
        const uint32_t word = (r + 1) / WARP,
                       bits = sh.starts[word] & (FULL_MASK << (r + 1) % WARP);
        return bits ? word * WARP + __ffs(bits) - 1 : sh.after[word];
    }

    // Called by the first warp of a block; `work_of(position, rows)` is columns times chunks of a
    // run. Returns the number of units; calls `add(unit, row, position, rows)` for each.
    template <typename WorkOf, typename Add>
    __device__ __forceinline__ uint32_t cut(uint32_t rows, uint32_t heads, uint32_t columns_max,
                                            bool is_full, WorkOf work_of, Add add) const {
        const uint32_t lane = threadIdx.x % WARP;
        find_neighbours(rows);
        uint32_t units = 0;
        for (uint32_t base = 0; base < rows; base += WARP) {
            const uint32_t r = base + lane;
            bool is_unit = false;
            uint32_t length = 0;
            if (r < rows) {
                const uint32_t first = run_begin(r), end = run_end(r);
                const uint32_t columns = (end - first) * heads;
                const bool is_decode =
                    columns <= columns_max || (columns <= RUN_COLUMNS && !is_full &&
                                               work_of(positions[first], end - first) < RUN_WORK);
                const uint32_t each = max(1u, (is_decode ? COLUMNS : columns_max) / heads);
                is_unit = (r - first) % each == 0;
                length = min(each, end - r);
            }
            const uint32_t all = __ballot_sync(FULL_MASK, is_unit);
            if (is_unit)
                add(units + __popc(all & ((1u << lane) - 1)), r, positions[r], length);
            units += __popc(all);
        }
        __syncwarp();
        return units;
    }
};

template <uint32_t DIM, uint32_t WARPS, uint32_t RING, uint32_t NS, typename Number>
__device__ __forceinline__ void mixed(const AttendParams& p) {
    using F = DecodeAttention<DIM, WARPS, RING, Number>;
    using M = PrefillAttention<F, NS>;
    extern __shared__ __align__(128) uint8_t dynamic[];
    typename F::Shared& sh = *reinterpret_cast<typename F::Shared*>(dynamic);
    uint32_t* lists = reinterpret_cast<uint32_t*>(dynamic + sizeof(typename F::Shared));
    __shared__ uint32_t split_chunks, units_count;
    __shared__ Units::Shared runs;
    launch_dependents();
    const uint32_t warp = threadIdx.x / WARP;
    const uint32_t groups = groups_of_kv(p) * p.kv.kv_heads;
    const uint32_t heads_max = min(COLUMNS, p.head.heads / p.kv.kv_heads);
    const uint32_t length = p.rows_max + 1;
    KvScheduler scheduler{lists, lists + length, lists + 2 * length, 0, 0};
    // per unit: its first row, and in the upper half its number of rows
    uint32_t* places = lists + 3 * length;
    const auto begin_of = [&](uint32_t position) {
        return p.window && position + 1 > p.window ? position + 1 - p.window : 0;
    };
    const auto chunks_of = [&](uint32_t position, uint32_t rows) {
        return KvScheduler::count(begin_of(position) / CHUNK, (position + rows - 1) / CHUNK);
    };
    // These lists are free until the splits are made.
    uint32_t *tables = scheduler.first_split, *positions = scheduler.first_slot;
    const uint32_t rows_here = p.step.header().rows;
    for (uint32_t r = threadIdx.x; r < rows_here; r += F::THREADS) {
        const StepRow row = p.step.row(r);
        tables[r] = row.table, positions[r] = row.position;
    }
    const Units units{runs, tables, positions};
    __syncthreads();
    units.find_starts(rows_here);
    __syncthreads();
    if (warp == 0) {
        const auto work_of = [&](uint32_t position, uint32_t rows) {
            return rows * heads_max * chunks_of(position, rows);
        };
        const bool is_full = 2 * rows_here * heads_max * groups >= gridDim.x * M::COLUMNS_MAX;
        scheduler.units =
            units.cut(rows_here, heads_max, M::COLUMNS_MAX, is_full, work_of,
                      [&](uint32_t unit, uint32_t row, uint32_t position, uint32_t rows) {
                          scheduler.chunks[unit] =
                              chunks_of(position, rows) | (div_up(rows * heads_max, COLUMNS) - 1)
                                                              << KvScheduler::PARTS_AT;
                          places[unit] = row | rows << 16;
                      });
        scheduler.make<true>(groups, WARPS, p.slots_max, &split_chunks);
        if (threadIdx.x == 0)
            units_count = scheduler.units;
    }
    __syncthreads();
    scheduler.units = units_count;
    const uint32_t count = scheduler.first_split[scheduler.units];
    grid_dependency_wait();
    for (uint32_t item = blockIdx.x; item < count * groups; item += gridDim.x) {
        const uint32_t index = count - 1 - item / groups;
        const uint32_t unit = scheduler.unit_of(index);
        KvSplit split;
        split.group = item % groups;
        split.row = places[unit] & 0xffff;
        split.rows = places[unit] >> 16;
        const StepRow row = p.step.row(split.row);
        const uint32_t position = row.position;
        const uint32_t last = position + split.rows - 1;
        const bool is_decode = KvScheduler::parts_of(scheduler.chunks[unit]) == 1;
        const uint32_t chunks = KvScheduler::chunks_of(scheduler.chunks[unit]);
        const KvScheduler::Cut cut = is_decode
                                         ? KvScheduler::cut(chunks, split_chunks, WARPS)
                                         : KvScheduler::cut_prompt(chunks, split_chunks, WARPS);
        KvScheduler::place(split, index - scheduler.first_split[unit], begin_of(position) / CHUNK,
                           last / CHUNK, cut);
        split.slot = scheduler.first_slot[unit];
        const HeadGroup group = head_group_of(p, split.group);
        const Cells cells{p.kv, p.step.table(row.table), group.kv_head, begin_of(position),
                          last + 1};
        if (!is_decode) {
            M::run(p, sh, split, cells, groups, position);
            continue;
        }
        typename F::Pipe pipe{cells,
                              {reinterpret_cast<const Number*>(p.kv.keys), p.kv.key_scales},
                              {reinterpret_cast<const Number*>(p.kv.values), p.kv.value_scales},
                              shared_address(sh.ring[warp]),
                              split.end,
                              0,
                              0};
        const uint32_t first = split.first_round(WARPS) + warp;
        pipe.places = pipe.look_up(first);
#pragma unroll
        for (uint32_t t = 0; t < RING; t += F::HALF)
            pipe.fetch(first, pipe.places, t);
        const uint32_t columns = split.rows * group.heads;
        for (uint32_t i = threadIdx.x; i < COLUMNS * DIM; i += F::THREADS) {
            const uint32_t column = i / DIM, d = i % DIM;
            const uint32_t r = split.row + column / group.heads,
                           head = group.first_head + column % group.heads;
            const float q =
                column < columns ? p.input[(size_t(r) * p.head.heads + head) * DIM + d] : 0.0f;
            sh.heads.columns[column][d] = __float2half_rn(q);
        }
        if (threadIdx.x < COLUMNS) {
            const uint32_t its = position + min(threadIdx.x, columns - 1) / group.heads;
            sh.visible[threadIdx.x] = VisibleRange{begin_of(its), its + 1};
        }
        __syncthreads();
        F::run(p, sh, pipe, split, groups, COLUMNS, columns, begin_of(last), position + 1, ~0u,
               [&](uint32_t column, uint32_t d, const auto& value) {
                   store_output(p, split.row + column / group.heads,
                                group.first_head + column % group.heads, d, value);
               });
        __syncthreads();
    }
}

// Names: attention_mixed_<numbers>_<head_dim>_<warps>x<ring tiles per warp>. NS: groups of 8
// columns per warp of the prefill path. BLOCKS: blocks per multiprocessor, for __launch_bounds__.
#define ATTENTION_MIXED(NAME, NUMBER, DIM, WARPS, RING, NS, BLOCKS)   \
    extern "C" __global__ void __launch_bounds__(WARPS* WARP, BLOCKS) \
        NAME(const __grid_constant__ AttendParams p) {                \
        mixed<DIM, WARPS, RING, NS, NUMBER>(p);                       \
    }
ATTENTION_MIXED(attention_mixed_f16_64_4x8, __half, 64, 4, 8, 2, 2)
ATTENTION_MIXED(attention_mixed_f16_128_4x4, __half, 128, 4, 4, 1, 2)
ATTENTION_MIXED(attention_mixed_f16_256_4x4, __half, 256, 4, 4, 1, 1)
ATTENTION_MIXED(attention_mixed_f16_256_2x4, __half, 256, 2, 4, 1, 1)
ATTENTION_MIXED(attention_mixed_q8_64_4x8, Biased, 64, 4, 8, 2, 2)
ATTENTION_MIXED(attention_mixed_q8_128_4x8, Biased, 128, 4, 8, 1, 2)
ATTENTION_MIXED(attention_mixed_q8_256_4x4, Biased, 256, 4, 4, 1, 1)
ATTENTION_MIXED(attention_mixed_q8_256_2x8, Biased, 256, 2, 8, 1, 1)
#endif
