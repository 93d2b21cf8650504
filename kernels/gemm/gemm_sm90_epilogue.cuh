// Epilogues of gemm_sm90.cuh, one per split-K mode: `run` calls the main loop for the warp's tiles
// and reduces, exchanges or stores their sums.
#pragma once

#include "gemm/gemm_sm90_mainloop.cuh"

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

// Computes norm factors of EACH of the CTA's rows of x, `first` and every STRIDE-th; CTA 0 also
// writes them to memory. The loads of these rows are in flight together.
template <uint32_t EACH, uint32_t STRIDE>
__device__ __forceinline__ void norm_factors_of(float* factor, uint32_t row0, uint32_t first,
                                                bool is_first, const GemmParams& p) {
    constexpr uint32_t LANES = WARP / EACH;
    const uint32_t lane = threadIdx.x % WARP, mine = first + lane / LANES * STRIDE;
    const auto row_of = [&](uint32_t k) { return min(row0 + first + k * STRIDE, p.rows_max - 1); };
    float own_factor = 1.0f;
    if (p.squares) {
        const float pack_factor = p.pack_factors[row_of(lane / LANES)];
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
        const float norm_factor = rsqrtf(warp_sums(sum) * p.inverse_width + p.eps);
        own_factor = __fdividef(norm_factor, pack_factor);
        if (p.factors && is_first && lane % LANES == 0 && row0 + mine < p.rows_max)
            p.factors[row0 + mine] = norm_factor;
    }
    if (lane % LANES == 0)
        factor[mine] = own_factor;
}

// The same for all of the CTA's rows, by its consumer warps.
template <uint32_t N, uint32_t WARPS>
__device__ __forceinline__ void norm_factors(float* factor, uint32_t row0, bool is_first,
                                             const GemmParams& p) {
    norm_factors_of<N / WARPS, WARPS>(factor, row0, threadIdx.x / WARP, is_first, p);
}

// Sequential: two warps of the producer's warpgroup compute the factors while the others multiply;
// the consumers wait for them before they write the first tile. 4 rows at once, since these warps
// have few registers.
constexpr uint32_t FACTOR_WARPS = 2;
template <typename G>
__device__ __forceinline__ void sync_factors(bool waits) {
    constexpr uint32_t THREADS = (G::CONSUMER_WARPS + FACTOR_WARPS) * WARP;
    if (waits)
        asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
    else
        asm volatile("bar.arrive 1, %0;" ::"n"(THREADS) : "memory");
}
template <typename G>
__device__ __forceinline__ void produce_factors(float* factor, uint32_t row0, uint32_t warp,
                                                bool is_first, const GemmParams& p) {
    constexpr uint32_t EACH = 4;
#pragma unroll 1
    for (uint32_t first = warp * EACH; first < G::N; first += FACTOR_WARPS * EACH)
        norm_factors_of<EACH, 1>(factor, row0, first, is_first, p);
    sync_factors<G>(false);
}

// A consumer warp: its position in the CTA, and the inputs of its epilogue.
template <typename G>
struct Consumer {
    const TileScheduler<G>& scheduler;
    const SharedLayout<G>& layout;
    Mainloop<G>& mainloop;
    const float* factor; // [N], of the CTA's rows of x
    uint32_t warp, run, tile_in_cta;

    // Barrier of all consumer warps.
    static __device__ __forceinline__ void sync() {
        asm volatile("bar.sync 1, %0;" ::"n"(G::CONSUMER_WARPS * WARP) : "memory");
    }
    __device__ __forceinline__ uint32_t segments() const { return mainloop.weights.count; }
};

// The sums of two runs: a tile's two warps exchange half of their sums, and each adds the runs of
// its own half.
template <typename G>
struct RunExchange {
    static constexpr uint32_t N = G::N;
    static constexpr uint32_t COUNT = N / 2 / G::RUNS; // sums for which a warp adds the runs
    static constexpr uint32_t TRANSPOSED = transposed_sums(N), FLOATS = exchange_floats(N);
    static_assert(G::RUNS == 2);

    static __device__ __forceinline__ float* of(const Consumer<G>& consumer, uint32_t warp) {
        return consumer.layout.sums() + warp * FLOATS;
    }
    static __device__ __forceinline__ void run(float (&share)[COUNT], const float (&sum)[N / 2],
                                               const Consumer<G>& consumer) {
        const uint32_t lane = threadIdx.x % WARP;
        float *mine = of(consumer, consumer.warp), *other = of(consumer, consumer.warp ^ G::TILES);
        const auto sync = [&] {
            asm volatile("bar.sync %0, 64;" ::"r"(2 + consumer.tile_in_cta) : "memory");
        };
        sync();
#pragma unroll
        for (uint32_t c = 0; c < COUNT; c++)
            other[c * WARP + lane] = consumer.run ? sum[c] : sum[COUNT + c];
        sync();
#pragma unroll
        for (uint32_t c = 0; c < COUNT; c++)
            share[c] = (consumer.run ? sum[COUNT + c] : sum[c]) + mine[c * WARP + lane];
    }
};

// Reads a quad of outputs of a tile's transposed sums: of one matrix, or of gate and up.
__device__ __forceinline__ void read_quad(float (&value)[2][4], const float* from, uint32_t quad,
                                          bool gated) {
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        if (half == 1 && !gated)
            continue;
        const float4 four = *reinterpret_cast<const float4*>(from + half * 8 + quad * 4);
        value[half][0] = four.x, value[half][1] = four.y, value[half][2] = four.z,
        value[half][3] = four.w;
    }
}

template <typename G, typename SplitK = typename G::SplitK>
struct Epilogue;

// Persistent: both runs of all columns are in the CTA, whose warps write the results.
template <typename G>
struct PersistentEpilogue {
    using Exchange = RunExchange<G>;
    static constexpr uint32_t N = G::N, COUNT = Exchange::COUNT, ONCE = Exchange::TRANSPOSED;

    static __device__ __forceinline__ void run(const Consumer<G>& consumer) {
        const TileScheduler<G>& scheduler = consumer.scheduler;
        const GemmSm90Params& p = scheduler.p;
        float sum[N / 2], share[COUNT];
        for (uint32_t cta_tile = scheduler.cta_tile0; cta_tile < scheduler.cta_tiles;
             cta_tile += scheduler.cta_tile_step) {
            const uint32_t number = cta_tile * G::TILES + consumer.tile_in_cta;
            const uint32_t tile = scheduler.tile(number);
            if (scheduler.is_idle(number, consumer.tile_in_cta)) {
                consumer.mainloop.skip();
                break;
            }
            consumer.mainloop.multiply(sum, 0, consumer.segments(), tile < p.gemm.tiles);
            Exchange::run(share, sum, consumer);
            if (tile < p.gemm.tiles)
                write(share, tile, consumer);
        }
    }
    static __device__ __forceinline__ void write(const float (&share)[COUNT], uint32_t tile,
                                                 const Consumer<G>& consumer) {
        const GemmSm90Params& p = consumer.scheduler.p;
        const uint32_t lane = threadIdx.x % WARP;
        const bool gated = p.gemm.mode >= GATE_SILU;
        const uint32_t quads = gated ? 2 : 4;
        float* transposed = Exchange::of(consumer, consumer.warp);
        const TileOf place = tile_of(p.gemm, tile);
        // Not unrolled: a second iteration needs no instruction fetch.
        static_assert(COUNT <= 2 * ONCE);
#pragma unroll 1
        for (uint32_t c = 0; c < COUNT; c += ONCE) {
            __syncwarp();
#pragma unroll
            for (uint32_t i = 0; i < ONCE; i++)
                transposed[sum_place(i, lane)] = c == 0 ? share[i] : share[COUNT - ONCE + i];
            __syncwarp();
            for (uint32_t item = lane; item < ONCE * 2 * quads; item += WARP) {
                const uint32_t quad = item % quads, n = item / quads,
                               r = consumer.run * (N / 2) + c * 2 + n;
                float value[2][4] = {};
                read_quad(value, transposed + n * SUM_STRIDE, quad, gated);
                write_four(p.gemm, place, consumer.scheduler.row0 + r, quad, consumer.factor[r],
                           value);
            }
        }
    }
};
template <typename G>
struct Epilogue<G, Persistent> : PersistentEpilogue<G> {};
template <typename G>
struct Epilogue<G, PersistentHalfWave> : PersistentEpilogue<G> {};

// A lane's quads of a whole tile without bias: the same four rows of the result for up to ROWS rows
// of x, 8 apart, or 16 (gate). The same operations as in `write_four`, but what does not depend on
// the row is computed once: 90 instructions per quad of a gate instead of 500.
template <uint32_t ROWS>
struct QuadRows {
    const GemmParams& p;
    const MatrixPart& part;
    uint32_t m, r;       // first row of the result, first row of x
    const float* sums;   // transposed
    const float* factor; // of the row of x

    static constexpr uint32_t AHEAD = 4; // rows whose old values are loaded together

    __device__ __forceinline__ void write() const {
        if (p.mode == GATE_SILU)
            write_gates<GATE_SILU>();
        else if (p.mode == GATE_GELU)
            write_gates<GATE_GELU>();
        else if (p.mode == ADD)
            add();
        else
            store();
    }

  private:
    __device__ __forceinline__ uint8_t* packed() const {
        return p.packed.rows + packed_offset(p.packed, r, m);
    }
    // Stride between groups of 8 rows of x, in bytes. Groups are full.
    __device__ __forceinline__ size_t packed_group() const {
        return size_t(p.packed.segments) * (SEGMENT / 8) * 128;
    }
    __device__ __forceinline__ void store_packed_quad(uint8_t* at, const float (&y)[4]) const {
        const float scale = p.packed.scale;
        *reinterpret_cast<uint32_t*>(at) = two_halves(y[0] * scale, y[1] * scale);
        *reinterpret_cast<uint32_t*>(at + 128) = two_halves(y[2] * scale, y[3] * scale);
    }
    static __device__ __forceinline__ void scaled(float (&y)[4], const float* sums, float unscale) {
        const float4 four = *reinterpret_cast<const float4*>(sums);
        y[0] = four.x * unscale, y[1] = four.y * unscale;
        y[2] = four.z * unscale, y[3] = four.w * unscale;
    }
    static __device__ __forceinline__ float4 four_of(const float (&y)[4]) {
        return make_float4(y[0], y[1], y[2], y[3]);
    }

    template <LinearMode MODE>
    __device__ __forceinline__ void write_gates() const {
        constexpr uint32_t STEP = WARP / 2;
        const float gate_scale = part.weight.scale, up_scale = p.part[1].weight.scale;
        const bool is_packed = p.packed.rows;
        uint8_t* to = is_packed ? packed() : nullptr;
        const size_t step = STEP / 8 * packed_group();
        float* out = part.out + size_t(r) * part.out_stride + m;
#pragma unroll 1
        for (uint32_t n = 0; n < ROWS && r + n < p.rows_max; n += STEP, to += step) {
            const float unscale = factor[n] * p.unscale;
            float y[4], up[4];
            scaled(y, sums + n * SUM_STRIDE, unscale * gate_scale);
            scaled(up, sums + n * SUM_STRIDE + 8, unscale * up_scale);
#pragma unroll
            for (uint32_t c = 0; c < 4; c++)
                y[c] = activate(y[c], MODE) * up[c];
            if (is_packed)
                store_packed_quad(to, y);
            else
                *reinterpret_cast<float4*>(out + size_t(n) * part.out_stride) = four_of(y);
        }
    }
    __device__ __forceinline__ void store() const {
        constexpr uint32_t STEP = WARP / 4;
        float* out = part.out + size_t(r) * part.out_stride + m;
#pragma unroll 2
        for (uint32_t n = 0; n < ROWS && r + n < p.rows_max; n += STEP) {
            float y[4];
            scaled(y, sums + n * SUM_STRIDE, factor[n] * p.unscale * part.weight.scale);
            *reinterpret_cast<float4*>(out + size_t(n) * part.out_stride) = four_of(y);
        }
    }
    __device__ __forceinline__ void add() const {
        constexpr uint32_t STEP = WARP / 4;
        float* out = part.out + size_t(r) * part.out_stride + m;
        const float* norm = p.next_norm;
        const float4 norms = norm ? *reinterpret_cast<const float4*>(norm + m) : float4{};
        uint8_t* to = norm ? packed() : nullptr;
        const size_t group = packed_group();
        float* squares = p.next_squares + size_t(r) * p.next_squares_count + m / TILE_ROWS;
#pragma unroll 1
        for (uint32_t first = 0; first < ROWS; first += AHEAD * STEP) {
            float4 old[AHEAD];
            float pack_factor[AHEAD];
#pragma unroll
            for (uint32_t i = 0; i < AHEAD; i++) {
                const uint32_t n = first + i * STEP;
                if (r + n >= p.rows_max)
                    continue;
                old[i] = *reinterpret_cast<const float4*>(out + size_t(n) * part.out_stride);
                pack_factor[i] = norm ? p.next_pack_factors[r + n] : 0.0f;
            }
#pragma unroll
            for (uint32_t i = 0; i < AHEAD; i++) {
                const uint32_t n = first + i * STEP;
                if (r + n >= p.rows_max)
                    continue;
                float y[4];
                scaled(y, sums + n * SUM_STRIDE, factor[n] * p.unscale * part.weight.scale);
                y[0] = old[i].x + y[0], y[1] = old[i].y + y[1];
                y[2] = old[i].z + y[2], y[3] = old[i].w + y[3];
                *reinterpret_cast<float4*>(out + size_t(n) * part.out_stride) = four_of(y);
                if (!norm)
                    continue;
                // The four lanes of a row of x are neighbours.
                const uint32_t mask = 0xfu << threadIdx.x % WARP / 4 * 4;
                float square = (y[0] * y[0] + y[1] * y[1]) + (y[2] * y[2] + y[3] * y[3]);
                square += __shfl_xor_sync(mask, square, 1);
                square += __shfl_xor_sync(mask, square, 2);
                y[0] = y[0] * pack_factor[i] * norms.x, y[1] = y[1] * pack_factor[i] * norms.y;
                y[2] = y[2] * pack_factor[i] * norms.z, y[3] = y[3] * pack_factor[i] * norms.w;
                store_packed_quad(to + n / 8 * group, y);
                if (m % TILE_ROWS == 0)
                    squares[size_t(n) * p.next_squares_count] = square;
            }
        }
    }
};

// Sequential: a warp computes its tile's runs in sequence, adds them in order, and writes
// the result.
template <typename G>
struct Epilogue<G, Sequential> {
    static constexpr uint32_t N = G::N, FLOATS = sequential_floats(N);

    static __device__ __forceinline__ void run(const Consumer<G>& consumer) {
        const TileScheduler<G>& scheduler = consumer.scheduler;
        const GemmParams& p = scheduler.p.gemm;
        float total[N / 2];
        for (uint32_t cta_tile = scheduler.cta_tile0; cta_tile < scheduler.cta_tiles;
             cta_tile += scheduler.cta_tile_step) {
            const uint32_t tile = cta_tile * G::TILES + consumer.tile_in_cta;
            multiply(total, tile < p.tiles, consumer);
            if (cta_tile == scheduler.cta_tile0)
                sync_factors<G>(true);
            if (tile < p.tiles)
                write(total, tile, consumer);
        }
    }

    // The sum of the splits: a split's first run waits in shared memory for the second.
    static __device__ __forceinline__ void multiply(float (&total)[N / 2], bool is_tile,
                                                    const Consumer<G>& consumer) {
        const GemmParams& p = consumer.scheduler.p.gemm;
        const uint32_t lane = threadIdx.x % WARP, segments = consumer.segments();
        float4* kept = reinterpret_cast<float4*>(sums_of(consumer)) + lane;
        float sum[N / 2];
#pragma unroll
        for (uint32_t c = 0; c < N / 2; c++)
            total[c] = 0.0f;
#pragma unroll 1
        for (uint32_t begin = 0; begin < segments; begin += p.split_segments) {
            const uint32_t end = min(begin + p.split_segments, segments),
                           middle = min(begin + p.run_segments, end);
#pragma unroll 1
            for (uint32_t run = 0; run < p.runs; run++) {
                consumer.mainloop.multiply(sum, run ? middle : begin, run ? end : middle, is_tile);
                if (run + 1 < p.runs)
#pragma unroll
                    for (uint32_t c = 0; c < N / 2; c += 4)
                        kept[c / 4 * WARP] =
                            make_float4(sum[c], sum[c + 1], sum[c + 2], sum[c + 3]);
            }
            if (p.runs > 1)
#pragma unroll
                for (uint32_t c = 0; c < N / 2; c += 4) {
                    const float4 four = kept[c / 4 * WARP];
                    sum[c] = four.x + sum[c], sum[c + 1] = four.y + sum[c + 1];
                    sum[c + 2] = four.z + sum[c + 2], sum[c + 3] = four.w + sum[c + 3];
                }
#pragma unroll
            for (uint32_t c = 0; c < N / 2; c++)
                total[c] += sum[c];
        }
    }

    static __device__ __forceinline__ float* sums_of(const Consumer<G>& consumer) {
        return consumer.layout.sums() + consumer.warp * FLOATS;
    }

    static __device__ __forceinline__ void write(const float (&total)[N / 2], uint32_t tile,
                                                 const Consumer<G>& consumer) {
        const GemmParams& p = consumer.scheduler.p.gemm;
        const TileOf place = tile_of(p, tile);
        // Not unrolled: a second iteration needs no instruction fetch.
#pragma unroll 1
        for (uint32_t half = 0; half < 2; half++) {
            float* transposed = sums_of(consumer);
            __syncwarp();
#pragma unroll
            for (uint32_t c = 0; c < N / 4; c++)
                transposed[sum_place(c, threadIdx.x % WARP)] = half ? total[N / 4 + c] : total[c];
            __syncwarp();
            write_rows(transposed, half * (N / 2), place, consumer);
        }
        __syncwarp();
    }

    // Writes N / 2 rows of x of a tile, from row `row` of the CTA's. A lane has the same quad of
    // some rows.
    static __device__ __forceinline__ void write_rows(const float* transposed, uint32_t row,
                                                      const TileOf& place,
                                                      const Consumer<G>& consumer) {
        const GemmParams& p = consumer.scheduler.p.gemm;
        const MatrixPart& part = p.part[place.part[0]];
        const uint32_t lane = threadIdx.x % WARP, row0 = consumer.scheduler.row0 + row;
        const bool gated = p.mode >= GATE_SILU;
        const uint32_t quads = gated ? 2 : 4, quad = lane % quads, first = lane / quads;
        const float *from = transposed + first * SUM_STRIDE + quad * 4,
                    *factor = consumer.factor + row + first;
        if (place.row + (gated ? 8 : 16) <= part.weight.rows && !part.bias && !p.part[1].bias &&
            part.out_stride % 4 == 0) {
            const QuadRows<N / 2> rows{p, part, place.row + quad * 4, row0 + first, from, factor};
            rows.write();
            return;
        }
#pragma unroll 1
        for (uint32_t n = 0; first + n < N / 2; n += WARP / quads) {
            float value[2][4] = {};
            read_quad(value, from + n * SUM_STRIDE, 0, gated);
            write_four(p, place, row0 + first + n, quad, factor[n], value);
        }
    }
};

// Split-K workspace, in the layout of splitk_reduce.cu, four sums per lane.
template <typename G>
struct Epilogue<G, WorkspaceSplitK> {
    using Exchange = RunExchange<G>;
    static constexpr uint32_t N = G::N, COUNT = Exchange::COUNT;

    static __device__ __forceinline__ void run(const Consumer<G>& consumer) {
        const TileScheduler<G>& scheduler = consumer.scheduler;
        const GemmSm90Params& p = scheduler.p;
        const uint32_t lane = threadIdx.x % WARP;
        const uint32_t tile = scheduler.first_number(consumer.tile_in_cta);
        float sum[N / 2], share[COUNT];
        consumer.mainloop.multiply(sum, 0, consumer.segments(), tile < p.gemm.tiles);
        Exchange::run(share, sum, consumer);
        if (tile >= p.gemm.tiles)
            return;
        const uint32_t first = (scheduler.row0 + consumer.run * (N / 2)) / 8,
                       groups = div_up(p.gemm.rows_max, 8);
#pragma unroll
        for (uint32_t c = 0; c < COUNT; c += 4) {
            if (first + c / 4 >= groups)
                break;
            float4* to =
                split_sums(p.workspace, groups, p.gemm.tiles, scheduler.split, first + c / 4, tile);
            to[lane] = make_float4(share[c], share[c + 1], share[c + 2], share[c + 3]);
        }
    }
};

// Deferred split-K: the sums of the split in the layout of the result.
template <typename G>
struct Epilogue<G, DeferredSplitK> {
    static constexpr uint32_t N = G::N;

    static __device__ __forceinline__ void run(const Consumer<G>& consumer) {
        const TileScheduler<G>& scheduler = consumer.scheduler;
        const GemmSm90Params& p = scheduler.p;
        const uint32_t lane = threadIdx.x % WARP;
        const uint32_t tile = scheduler.first_number(consumer.tile_in_cta);
        float sum[N / 2];
        consumer.mainloop.multiply(sum, 0, consumer.segments(), tile < p.gemm.tiles);
        if (tile >= p.gemm.tiles)
            return;
        const TileOf place = tile_of(p.gemm, tile);
        const MatrixPart& part = p.gemm.part[place.part[0]];
        // A lane has two rows of the tile, eight apart, for two rows of x: a warp's stores fill
        // sectors of 32 bytes.
        const uint32_t r = scheduler.row0 + lane % 4 * 2;
        float* out = part.out + scheduler.split * p.deferred_stride + size_t(r) * part.out_stride +
                     place.row + lane / 4;
#pragma unroll
        for (uint32_t c = 0; c < N / 2; c++) {
            const uint32_t n = c / 4 * 8 + c % 2;
            if (r + n < p.gemm.rows_max)
                out[size_t(n) * part.out_stride + c % 4 / 2 * 8] = sum[c];
        }
    }
};

// Split-K in a cluster: warps store their sums in the shared memory of the CTA that owns the tile,
// which adds the splits in order and writes the results.
template <typename G>
struct Epilogue<G, ClusterSplitK> {
    static constexpr uint32_t N = G::N, TILE_BYTES = G::TILE_BYTES;
    static constexpr uint32_t KEPT = kept_floats(N);

    static __device__ __forceinline__ void run(const Consumer<G>& consumer) {
        const TileScheduler<G>& scheduler = consumer.scheduler;
        const GemmSm90Params& p = scheduler.p;
        const uint32_t lane = threadIdx.x % WARP, warp = consumer.warp, splits = scheduler.splits,
                       split = scheduler.split;
        const bool gated = p.gemm.mode >= GATE_SILU;
        const uint32_t quads = gated ? 2 : 4;
        float sum[N / 2];
        multiply_runs(sum, consumer);
        if (G::SUMS_REUSE_RINGS)
            cluster_arrive_relaxed();
        // Loads the epilogue inputs of the CTA's first tile while it waits for the other CTAs: a
        // warp has eight rows of x, a lane four outputs.
        static_assert(N / 8 <= G::CONSUMER_WARPS);
        const uint32_t quad = lane % quads, n = warp * 8 + lane / quads;
        const bool writes = warp < N / 8 && lane < 8 * quads;
        TileOf place = {};
        EpilogueInput input = {};
        const auto load_input = [&](uint32_t i) {
            place = tile_of(p.gemm, scheduler.cta_tile0 * G::TILES + split + i * splits);
            input = epilogue_input(p.gemm, place, scheduler.row0 + n, quad);
        };
        const uint32_t owned = scheduler.owned_tiles();
        if (owned > 0 && writes)
            load_input(0);
        cluster_wait();
        send(sum, consumer);
        if (owned == 0 || warp >= N / 8)
            return;
        if (splits > 1)
            mbarrier_wait_parity(consumer.layout.sums_barrier(), 0);
        constexpr bool REUSES = G::SUMS_REUSE_RINGS;
        float* transposed = reinterpret_cast<float*>(
                                consumer.layout.shared +
                                (REUSES ? consumer.layout.received : consumer.layout.weights_at)) +
                            warp * (REUSES ? 8 * SUM_STRIDE : consumer.layout.ring_bytes / 4);
        for (uint32_t i = 0; i < owned; i++) {
            if (i > 0 && writes)
                load_input(i);
            const float4* received =
                reinterpret_cast<const float4*>(consumer.layout.shared + i * splits * TILE_BYTES) +
                warp * WARP + lane;
            float total[4] = {};
#pragma unroll
            for (uint32_t s = 0; s < SPLITS_MAX; s++) {
                if (s >= splits)
                    continue;
                const float4 four = received[s * (TILE_BYTES / 16)];
                total[0] += four.x, total[1] += four.y, total[2] += four.z, total[3] += four.w;
            }
            transpose_sums(transposed, total, lane);
            if (!writes)
                continue;
            float value[2][4] = {};
            read_quad(value, transposed + lane / quads * SUM_STRIDE, quad, gated);
            write_four(p.gemm, place, scheduler.row0 + n, quad, consumer.factor[n], input, value);
        }
    }

    // The sums of the split's runs, computed sequentially.
    static __device__ __forceinline__ void multiply_runs(float (&sum)[N / 2],
                                                         const Consumer<G>& consumer) {
        const GemmSm90Params& p = consumer.scheduler.p;
        const uint32_t lane = threadIdx.x % WARP;
        float kept[KEPT ? 1 : N / 2];
        float* keeps = consumer.layout.sums() + consumer.warp * KEPT;
        const auto kept_of = [&](uint32_t c) -> float& {
            return KEPT ? keeps[c * WARP + lane] : kept[KEPT ? 0 : c];
        };
        const bool is_tile =
            consumer.scheduler.cta_tile0 * G::TILES + consumer.tile_in_cta < p.gemm.tiles;
        for (uint32_t run = 0; run < p.gemm.runs; run++) {
            if (run > 0)
#pragma unroll
                for (uint32_t c = 0; c < N / 2; c++)
                    kept_of(c) = sum[c];
            const uint32_t first = min(run * p.gemm.run_segments, consumer.segments()),
                           end = min(first + p.gemm.run_segments, consumer.segments());
            consumer.mainloop.multiply(sum, first, end, is_tile);
        }
        if (p.gemm.runs > 1)
#pragma unroll
            for (uint32_t c = 0; c < N / 2; c++)
                sum[c] = kept_of(c) + sum[c];
    }

    // Stores a tile's sums in the shared memory of its owner.
    static __device__ __forceinline__ void send(const float (&sum)[N / 2],
                                                const Consumer<G>& consumer) {
        const GemmSm90Params& p = consumer.scheduler.p;
        const uint32_t lane = threadIdx.x % WARP, splits = consumer.scheduler.splits,
                       tile = consumer.tile_in_cta;
        if (splits == 1) {
            // A single CTA stores its sums in the layout in which they would arrive.
            float4* to =
                reinterpret_cast<float4*>(consumer.layout.shared + tile * TILE_BYTES) + lane;
#pragma unroll
            for (uint32_t c = 0; c < N / 2; c += 4)
                to[c / 4 * WARP] = make_float4(sum[c], sum[c + 1], sum[c + 2], sum[c + 3]);
            consumer.sync();
        } else if (tile < consumer.scheduler.tiles_here()) {
            const uint32_t round = fast_divide(tile, p.splits_reciprocal),
                           owner = tile - round * splits,
                           barrier = map_shared_rank(consumer.layout.sums_barrier(), owner);
            const uint32_t to = map_shared_rank(
                shared_address(consumer.layout.shared) +
                    (round * splits + consumer.scheduler.split) * TILE_BYTES + lane * 16,
                owner);
#pragma unroll
            for (uint32_t c = 0; c < N / 2; c += 4)
                store_remote(to + c / 4 * (WARP * 16), sum[c], sum[c + 1], sum[c + 2], sum[c + 3],
                             barrier);
        }
    }
};
