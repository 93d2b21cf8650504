// attention_cluster: out[r] = softmax(scale * q[r] K^T) V for few rows, where latency is the bound:
// the same formula as attention_decode.cu and the same bits. From sm_90 on.
// input: products as in append.cu, or their splits; pages f16 or 8 bits; out: [rows, heads *
// head_dim] f32 or packed f16; head_dim 64, 128 or 256.
//
// Block `rank` of a cluster has the row's chunks rank, rank + RANKS, .... A team of four warps
// takes a chunk: each warp one tile of cells for the scores, then a quarter of the numbers. A
// chunk's result is written to the shared memory of all blocks of the cluster; each block folds its
// part of the numbers. An mbarrier there counts the bytes, because a cluster barrier with release
// semantics would wait for all earlier writes, including the row's own key and value in memory. A
// team's first chunk, the page table, the RoPE factors and the weights of head norms are read
// before the products: see attention_decode.cu.
// Grid: (RANKS * groups, rows), in clusters of RANKS blocks: one row and one group each.
// Bound: latency, of two cluster exchanges per round of 4 * RANKS chunks.
// Oracle: walla_cpu's scalar qkv and attention (tests/gpu/attention.rs).
#include "attention/attention_heads.cuh"
#include "common/bulk_copy.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

constexpr uint32_t TEAM_WARPS = TILES;
// Parts of a head's numbers; one block folds a part: the upper or the lower rows of one warp's
// products.
constexpr uint32_t PARTS = 2 * TEAM_WARPS;

__device__ __forceinline__ void team_barrier(uint32_t team) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "n"(TEAM_WARPS * WARP) : "memory");
}

constexpr uint32_t CLUSTER_RING = 2; // chunks per team: one in use, one in flight
// Warps without a team, which only prepare heads and fold. Only one team of large heads fits, which
// would prepare four heads, then the key and the value.
__host__ __device__ constexpr uint32_t cluster_helpers(uint32_t dim) {
    return dim / 256 * TILES;
}

// Bytes of `Cluster::Shared`.
__host__ __device__ constexpr uint32_t cluster_shared_bytes(uint32_t ranks, uint32_t teams,
                                                            uint32_t dim, bool is_q8) {
    const uint32_t tiles = teams * CLUSTER_RING * 2 * TILES * tile_bytes(dim, is_q8),
                   round = 4 * ranks, products = dim / 64,
                   sums = round * (2 * TILES / ranks) * products * 8 * COLUMNS * 4,
                   statistics = 2 * round * COLUMNS * 4,
                   head_scratch = (teams * TILES + cluster_helpers(dim)) * dim * 4,
                   weights = teams * TILES * WARP * 8, tile_bases = teams * TILES * COLUMNS * 4,
                   all = tiles + sums + statistics + row_heads_bytes(dim, is_q8) + head_scratch;
    return (all + weights + tile_bases + 8 + 127) / 128 * 128;
}

template <uint32_t DIM, uint32_t RANKS, uint32_t TEAMS, typename Number>
struct Cluster {
    // Large clusters are for four rows and fewer: their short contexts stay in L2 from step to
    // step.
    using T = Tile<DIM, Number, RANKS <= 2>;
    static constexpr uint32_t WARPS = TEAMS * TEAM_WARPS + cluster_helpers(DIM),
                              THREADS = WARPS * WARP;
    static constexpr uint32_t RING = CLUSTER_RING;
    static constexpr uint32_t PRODUCTS = DIM / 64; // per warp: 16 numbers each
    static constexpr uint32_t OWN = PARTS / RANKS; // parts folded by the block
    // chunks of the row between two cluster barriers
    static constexpr uint32_t ROUND = 4 * RANKS;

    struct Shared {
        __align__(128) uint8_t ring[TEAMS][RING][2 * TILES][T::BYTES];
        // This block's parts of the round's chunks.
        __align__(16) float sums[ROUND][OWN][PRODUCTS][8][COLUMNS];
        __align__(16) float bases[ROUND][COLUMNS];
        __align__(16) float masses[ROUND][COLUMNS];
        RowHeads<DIM, Number> heads;
        __align__(16) float head_scratch[WARPS][DIM];
        __align__(16) uint2 weights[TEAMS][TILES][WARP];
        __align__(16) float tile_bases[TEAMS][TILES][COLUMNS];
        uint64_t arrived; // counts the bytes of a round
    };

    // Bytes of a chunk that a block receives: its parts of the sums, bases and masses, of two
    // columns each.
    static __device__ __forceinline__ uint32_t bytes_of(uint32_t heads) {
        return div_up(heads, 2) * 8 * (OWN * PRODUCTS * 8 + 2);
    }
};

// A warp's chunks of a row and a group of heads.
template <uint32_t DIM, uint32_t RANKS, uint32_t TEAMS, typename Number>
struct ClusterChunks {
    using C = Cluster<DIM, RANKS, TEAMS, Number>;
    using T = typename C::T;
    const AttendParams& p;
    typename C::Shared& sh;
    uint32_t r, lane, rank, team, part; // `part`: index of the warp in its team
    HeadGroup group;
    uint32_t position, first_chunk, chunks;
    Cells cells;
    uint32_t arrived; // shared-memory address of the barrier

    __device__ __forceinline__ ClusterChunks(const AttendParams& p, typename C::Shared& sh,
                                             const StepRow& row)
        : p(p),
          sh(sh),
          r(blockIdx.y),
          lane(threadIdx.x % WARP),
          rank(blockIdx.x % RANKS),
          team(threadIdx.x / WARP / TEAM_WARPS),
          part(threadIdx.x / WARP % TEAM_WARPS),
          group(head_group_of(p, blockIdx.x / RANKS)),
          position(row.position),
          cells{p.kv, p.step.table(row.table), group.kv_head,
                p.window && position + 1 > p.window ? position + 1 - p.window : 0, position},
          arrived(shared_address(&sh.arrived)) {
        first_chunk = cells.begin / CHUNK;
        chunks = position / CHUNK + 1 - first_chunk;
    }
    // Chunk i of the row is the block's chunk i / RANKS; the teams take them round-robin.
    __device__ __forceinline__ uint32_t chunk_of(uint32_t iteration) const {
        return (iteration * TEAMS + team) * RANKS + rank;
    }
    // Whether the warp is of no team.
    __device__ __forceinline__ bool is_helper() const {
        return cluster_helpers(DIM) > 0 && team >= TEAMS;
    }
    // Starts the copies of the warp's tiles of keys and values.
    __device__ __forceinline__ void fetch(uint32_t iteration) const {
        const Pages<Number> keys{reinterpret_cast<const Number*>(p.kv.keys), p.kv.key_scales};
        const Pages<Number> values{reinterpret_cast<const Number*>(p.kv.values), p.kv.value_scales};
        const uint32_t i = chunk_of(iteration);
        if (i < chunks && !is_helper()) {
            const uint32_t first = (first_chunk + i) * CHUNK + part * TILE;
            const uint32_t cell = cells.cell_of(cells.page_of(first), first);
            const uint32_t to = shared_address(sh.ring[team][iteration % C::RING][part]);
            T::fetch(to, keys, cell, first, cells.begin, cells.end);
            T::fetch(to + TILES * T::BYTES, values, cell, first, cells.begin, cells.end);
            if (lane < 2) {
                T::fetch_scales(to, keys, cell, lane, first, cells.begin, cells.end);
                T::fetch_scales(to + TILES * T::BYTES, values, cell, lane, first, cells.begin,
                                cells.end);
            }
        }
        cp_async_commit_group();
    }
    // Computes the chunk of an iteration and sends its result to all blocks of the cluster.
    __device__ __forceinline__ void attend(uint32_t iteration,
                                           const uint32_t (&q)[1][DIM / 16][2]) const {
        const uint32_t i = chunk_of(iteration), t4 = lane % 4;
        cp_async_wait_group<0>();
        __syncwarp();
        const uint32_t tiles = shared_address(sh.ring[team][iteration % C::RING]);
        if (i + 1 == chunks && position % CHUNK / TILE == part) {
            T::insert(tiles + part * T::BYTES, sh.heads.fresh[0], position % TILE);
            T::insert(tiles + (TILES + part) * T::BYTES, sh.heads.fresh[1], position % TILE);
        }
        float s[1][1][4] = {}, base[2];
        score(s, base, first_chunk + i, tiles, q);
        if (lane / 4 == 0)
            *reinterpret_cast<float2*>(&sh.tile_bases[team][part][t4 * 2]) =
                make_float2(base[0], base[1]);
        team_barrier(team);
        // All warps of the team have finished with the previous chunk.
        fetch(iteration + 1);
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            const float2 bases = *reinterpret_cast<const float2*>(&sh.tile_bases[team][t][t4 * 2]);
            base[0] = fmaxf(base[0], bases.x), base[1] = fmaxf(base[1], bases.y);
        }
        uint32_t weights[2];
        weigh_tile(s[0][0], scale_of(p), base, weights);
        sh.weights[team][part][lane] = make_uint2(weights[0], weights[1]);
        team_barrier(team);
        float mass[4] = {}, sums[1][C::PRODUCTS][4] = {};
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            const uint2 pair = sh.weights[team][t][lane];
            const uint32_t both[1][2] = {{pair.x, pair.y}};
            add_mass(mass, both[0]);
            T::template multiply_values<C::PRODUCTS, 1>(sums, tiles + (TILES + t) * T::BYTES, both,
                                                        part * C::PRODUCTS);
        }
        if (t4 * 2 < group.heads)
            send(i % C::ROUND, sums[0], base, mass);
    }

  private:
    // Scores of the warp's tile and their base.
    __device__ __forceinline__ void score(float (&s)[1][1][4], float (&base)[2], uint32_t c,
                                          uint32_t tiles,
                                          const uint32_t (&q)[1][DIM / 16][2]) const {
        const uint32_t begin = cells.begin;
        const VisibleRange visible[2] = {{begin, position + 1}, {begin, position + 1}};
        const bool all_visible = c * CHUNK >= begin && (c + 1) * CHUNK <= position + 1;
        T::template score<1, 1>(s, 0, tiles + part * T::BYTES, q);
        mask_scores(s[0], c * CHUNK + part * TILE, visible, all_visible);
        find_base(s[0], scale_of(p), base);
    }
    // Stores the sums of two columns, and their bases and masses, in the shared memory of the
    // blocks that fold them: place `at` of the round.
    __device__ __forceinline__ void send(uint32_t at, const float (&sums)[C::PRODUCTS][4],
                                         const float (&base)[2], const float (&mass)[4]) const {
        const uint32_t g = lane / 4, t4 = lane % 4;
#pragma unroll
        for (uint32_t m = 0; m < C::PRODUCTS; m++)
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                const uint32_t to = part * 2 + half;
                store_remote(
                    map_shared_rank(shared_address(&sh.sums[at][to % C::OWN][m][g][t4 * 2]),
                                    to / C::OWN),
                    sums[m][2 * half], sums[m][2 * half + 1],
                    map_shared_rank(arrived, to / C::OWN));
            }
        const uint32_t to = part * 2 + g;
        if (g < 2 && to % C::OWN == 0) {
            const uint32_t barrier = map_shared_rank(arrived, to / C::OWN);
            store_remote(map_shared_rank(shared_address(&sh.bases[at][t4 * 2]), to / C::OWN),
                         base[0], base[1], barrier);
            store_remote(map_shared_rank(shared_address(&sh.masses[at][t4 * 2]), to / C::OWN),
                         mass[0], mass[1], barrier);
        }
    }
};

// Folds the chunks' results: the numbers of the block's parts, number `lane / 4` of 8 of each
// product for each column.
template <typename C>
struct ClusterFold {
    static constexpr uint32_t PLACES = C::OWN * C::PRODUCTS * 8 * COLUMNS;
    static constexpr uint32_t EACH = (PLACES + C::THREADS - 1) / C::THREADS;
    const typename C::Shared& sh;
    uint32_t column, first_span, span_left; // chunks: of the first span, left in the current span
    // Result of the complete spans, and of the current span's chunks.
    float result[EACH] = {}, span[EACH] = {};
    Folded folded = Folded::none(), of_span = Folded::none();

    __device__ __forceinline__ ClusterFold(const typename C::Shared& sh, uint32_t first_chunk)
        : sh(sh) {
        column = threadIdx.x % COLUMNS;
        first_span = SPAN - first_chunk % SPAN;
        span_left = first_span;
    }
    // Whether the thread has numbers.
    __device__ __forceinline__ bool is_valid(uint32_t heads) const {
        return threadIdx.x < PLACES && column < heads;
    }
    // Folds the `count` chunks of a round.
    __device__ __forceinline__ void fold_round(uint32_t count) {
        for (uint32_t i = 0;;) {
            const uint32_t end = min(count, i + span_left);
            span_left -= end - i;
#pragma unroll 4
            for (; i < end; i++) {
                const float2 factor = of_span.grow(sh.bases[i][column], sh.masses[i][column]);
#pragma unroll
                for (uint32_t e = 0; e < EACH; e++)
                    span[e] = fold(span[e], (&sh.sums[i][0][0][0][0])[e * C::THREADS + threadIdx.x],
                                   factor);
            }
            if (span_left > 0)
                break;
            close_span();
            span_left = SPAN;
            if (i == count)
                break;
        }
    }
    __device__ __forceinline__ void close_span() {
        const float2 factor = folded.grow(of_span.base, of_span.mass);
#pragma unroll
        for (uint32_t e = 0; e < EACH; e++)
            result[e] = fold(result[e], span[e], factor), span[e] = 0.0f;
        of_span = Folded::none();
    }
    __device__ __forceinline__ void write(const AttendParams& p, uint32_t r, uint32_t first_head,
                                          uint32_t rank, uint32_t chunks) {
        if (chunks > first_span)
            close_span();
        const bool is_one = chunks < first_span;
        const float inverse = 1.0f / (is_one ? of_span.mass : folded.mass);
#pragma unroll
        for (uint32_t e = 0; e < EACH; e++) {
            const uint32_t place = (e * C::THREADS + threadIdx.x) / COLUMNS;
            const uint32_t own = rank * C::OWN + place / (8 * C::PRODUCTS);
            const uint32_t d = C::T::number_of(own / 2 * C::PRODUCTS + place / 8 % C::PRODUCTS,
                                               own % 2, place % 8);
            store_output(p, r, first_head + column, d, (is_one ? span[e] : result[e]) * inverse);
        }
    }
};

template <uint32_t DIM, uint32_t RANKS, uint32_t TEAMS, typename Number>
__device__ __forceinline__ void attend_in_cluster(const AttendParams& p) {
    using C = Cluster<DIM, RANKS, TEAMS, Number>;
    extern __shared__ __align__(128) uint8_t dynamic[];
    typename C::Shared& sh = *reinterpret_cast<typename C::Shared*>(dynamic);
    static_assert(sizeof(typename C::Shared) ==
                  cluster_shared_bytes(RANKS, TEAMS, DIM, sizeof(Number) == 1));
    launch_dependents();
    if (blockIdx.y >= p.step.header().rows)
        return;
    const StepRow row = p.step.row(blockIdx.y);
    const ClusterChunks<DIM, RANKS, TEAMS, Number> own(p, sh, row);
    own.fetch(0);
    sh.heads.rope_sincos(p.head, own.position, C::THREADS);
    const auto norms = [&] {
        // With heads of 64 a lane loads two numbers, and most models have no head norms.
        if constexpr (DIM == 64) {
            return NormsInMemory();
        } else {
            NormsInRegisters<DIM / WARP> its;
            its.load(p.head, own.lane);
            return its;
        }
    }();
    if (threadIdx.x == 0)
        mbarrier_init(own.arrived, 1), publish_barriers();
    __syncwarp();
    // All blocks are resident and their barriers initialised before any block stores to another.
    cluster_arrive_relaxed();
    __syncthreads();
    grid_dependency_wait();

    const bool has_own = (own.chunks - 1) % RANKS == own.rank;
    if (own.rank < own.chunks)
        sh.heads.template make<C::WARPS>(
            p, own.r, own.group, norms, has_own,
            cell_of(p.kv, own.cells.table, own.group.kv_head, own.position),
            sh.head_scratch[threadIdx.x / WARP]);
    cluster_wait();
    __syncthreads();
    uint32_t q[1][DIM / 16][2];
    load_columns<DIM, Number>(q[0], sh.heads.columns[0]);

    ClusterFold<C> fold(sh, own.first_chunk);
    uint32_t iteration = 0;
    for (uint32_t round = 0, phase = 0; round < own.chunks; round += C::ROUND, phase ^= 1) {
        const uint32_t round_end = min(round + C::ROUND, own.chunks);
        if (threadIdx.x == 0)
            mbarrier_arrive_expect_tx(own.arrived,
                                      (round_end - round) * C::bytes_of(own.group.heads));
        for (; !own.is_helper() && own.chunk_of(iteration) < round_end; iteration++)
            own.attend(iteration, q);
        mbarrier_wait_parity(own.arrived, phase);
        if (fold.is_valid(own.group.heads))
            fold.fold_round(round_end - round);
        if (round_end < own.chunks) {
            // All blocks have read the results of this round.
            cluster_arrive();
            cluster_wait();
        }
    }
    if (fold.is_valid(own.group.heads))
        fold.write(p, own.r, own.group.first_head, own.rank, own.chunks);
}

// Names: attention_cluster_<numbers>_<head_dim>_<ranks>x<teams>.
// BLOCKS: blocks per multiprocessor, for __launch_bounds__.
#define ATTENTION_CLUSTER(NAME, NUMBER, DIM, RANKS, TEAMS, BLOCKS)             \
    extern "C" __global__ void __cluster_dims__(RANKS, 1, 1)                   \
        __launch_bounds__(Cluster<DIM, RANKS, TEAMS, NUMBER>::THREADS, BLOCKS) \
            NAME(const __grid_constant__ AttendParams p) {                     \
        attend_in_cluster<DIM, RANKS, TEAMS, NUMBER>(p);                       \
    }
ATTENTION_CLUSTER(attention_cluster_f16_64_8x2, __half, 64, 8, 2, 2)
ATTENTION_CLUSTER(attention_cluster_f16_64_4x2, __half, 64, 4, 2, 2)
ATTENTION_CLUSTER(attention_cluster_f16_64_2x2, __half, 64, 2, 2, 2)
ATTENTION_CLUSTER(attention_cluster_f16_128_8x1, __half, 128, 8, 1, 2)
ATTENTION_CLUSTER(attention_cluster_f16_128_4x2, __half, 128, 4, 2, 1)
ATTENTION_CLUSTER(attention_cluster_f16_128_2x2, __half, 128, 2, 2, 1)
ATTENTION_CLUSTER(attention_cluster_f16_256_8x1, __half, 256, 8, 1, 1)
ATTENTION_CLUSTER(attention_cluster_q8_64_8x2, Biased, 64, 8, 2, 2)
ATTENTION_CLUSTER(attention_cluster_q8_64_4x2, Biased, 64, 4, 2, 2)
ATTENTION_CLUSTER(attention_cluster_q8_128_8x2, Biased, 128, 8, 2, 2)
ATTENTION_CLUSTER(attention_cluster_q8_128_4x2, Biased, 128, 4, 2, 2)
ATTENTION_CLUSTER(attention_cluster_q8_128_2x2, Biased, 128, 2, 2, 2)
ATTENTION_CLUSTER(attention_cluster_q8_256_8x1, Biased, 256, 8, 1, 1)
#endif
