// Attention on tensor cores over pages of f16: what the decode form and the mixed form share.
//
// The rule: bits of a row's result follow from its position, its query and its cells alone. So
// 1. cells are cut into chunks of CHUNK from cell 0 on, wherever a window begins;
// 2. a chunk leaves (maximum, mass, sums) of its own, starting from nothing; cells out of sight add exact zeros;
// 3. a row's chunks are folded in order, one by one, by `fold` and nothing else. A block that has a row's first chunks folds as it
//    goes; later chunks that other blocks have are left in memory one by one and folded by the block that ends last. So neither
//    the number of blocks nor who ends last decides;
// 4. a query is a column of the tensor cores' products, which do not look at other columns: its company changes nothing. A row
//    whose numbers are not finite may take with it rows of its own sequence in the same step, nobody else.
// S = K Q^T with 16 cells as M and 8 columns as N, so a row of one KV head's up to 8 query heads wastes nothing; the products'
// registers, rounded to f16 and transposed 8 x 8 in place, are the right-hand side of V^T P^T.
#pragma once

#include "copies.cuh"
#include "head.cuh"
#include "packed.cuh"
#include "tensor.cuh"

struct AttendParams {
    StepRef step;
    KvRef kv;           // page_tokens a multiple of TILE
    const float* input;  // decode: products, as in append.cu; mixed: q [rows, heads * head_dim]
    float* out;          // [rows, heads * head_dim], unless it is packed
    PackedRef packed;
    HeadRef head;
    float* partials;     // [slots_max, groups, columns, head_dim + 2]: sums, then maximum and mass
    uint32_t* arrivals;  // [rows, groups], zero between launches
    uint32_t window;     // 0: all
    float scale;
    uint32_t slots_max;
    uint32_t rows_max;
};
static_assert(sizeof(AttendParams) == 160 + sizeof(PackedRef), "as in params.rs");

constexpr uint32_t CHUNK = 64;
constexpr uint32_t TILE = 16;  // cells of one product
constexpr uint32_t TILES = CHUNK / TILE;
constexpr uint32_t COLUMNS = 8;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
// Instructions ---------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t shared_address(const void* at) { return uint32_t(__cvta_generic_to_shared(at)); }

// Copies 16 bytes to shared memory, or zeros.
__device__ __forceinline__ void copy_16(uint32_t to, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&a)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(from)
                 : "memory");
}
__device__ __forceinline__ uint32_t transpose(uint32_t matrix) {
    uint32_t out;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(matrix));
    return out;
}
// 2^x, within two units in the last place; 0 for minus infinity.
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ uint32_t pack_halves(float low, float high) {
    const __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
}

// Tiles in shared memory -----------------------------------------------------------------------------------------------------
// A tile is TILE cells of DIM halves; piece i (16 bytes) of cell c lies at place i ^ c % 8 of its row, so that eight cells' equal
// pieces lie in different banks.

template <uint32_t DIM>
constexpr uint32_t TILE_BYTES = TILE * DIM * 2;

template <uint32_t DIM>
__device__ __forceinline__ uint32_t piece_place(uint32_t cell, uint32_t piece) {
    return cell * DIM * 2 + (piece ^ cell % 8) * 16;
}

// Has a warp fetch a tile: cells `first` .. of one page, from their first number on; zeros outside of begin .. end.
template <uint32_t DIM>
__device__ __forceinline__ void fetch_tile(uint32_t to, const __half* from, uint32_t first, uint32_t begin, uint32_t end) {
    constexpr uint32_t PIECES = DIM / 8;
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t i = 0; i < TILE * PIECES / WARP; i++) {
        const uint32_t cell = (i * WARP + lane) / PIECES, piece = lane % PIECES + i * WARP % PIECES;
        const bool inside = first + cell >= begin && first + cell < end;
        copy_16(to + piece_place<DIM>(cell, piece), from + cell * DIM + piece * 8, inside);
    }
}

// Where the cells of one sequence and KV head lie. A tile lies in one page.
struct Cells {
    const KvRef& kv;
    const uint32_t* table;
    uint32_t head;
    uint32_t begin, end;  // those that are fetched

    __device__ __forceinline__ uint32_t index_of(uint32_t first) const {
        return kv.page_magic ? __umulhi(first, kv.page_magic) : first;
    }
    // Entry of the page table for a tile; pages of no cell are not looked up.
    __device__ __forceinline__ uint32_t page_of(uint32_t first) const {
        return first < end ? table[index_of(first)] : 0;
    }
    // First number of a tile.
    __device__ __forceinline__ size_t place_of(uint32_t page, uint32_t first) const {
        const uint32_t cell = first - index_of(first) * kv.page_tokens;
        return ((size_t(page) * kv.kv_heads + head) * kv.page_tokens + cell) * kv.head_dim;
    }
};

// A warp's share of a product ------------------------------------------------------------------------------------------------
// Lane l holds, of a product of 16 x 8, rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next.

// Scores of NT tiles of cells side by side, tiles t0 .. of a chunk, for NS times 8 columns: s = K Q^T. `q`: the columns' halves as
// the right-hand side.
template <uint32_t DIM, uint32_t NT, uint32_t NS>
__device__ __forceinline__ void score_tiles(float (&s)[NS][TILES][4], uint32_t t0, uint32_t tiles,
                                            const uint32_t (&q)[NS][DIM / 16][2]) {
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t n = 0; n < NS; n++)
#pragma unroll
        for (uint32_t t = 0; t < NT; t++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) s[n][t0 + t][i] = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < DIM / 16; k++)
#pragma unroll
        for (uint32_t t = 0; t < NT; t++) {
            uint32_t a[4];
            load_matrices(a, tiles + t * TILE_BYTES<DIM> + piece_place<DIM>(lane % 16, 2 * k + lane / 16));
#pragma unroll
            for (uint32_t n = 0; n < NS; n++) multiply(s[n][t0 + t], a, q[n][k][0], q[n][k][1]);
        }
}

// sums += V^T P^T for the same tiles, in order.
template <uint32_t DIM, uint32_t NT, uint32_t NS>
__device__ __forceinline__ void mix_tiles(float (&sums)[NS][DIM / 16][4], uint32_t t0, uint32_t tiles,
                                          const uint32_t (&p)[NS][TILES][2]) {
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t t = 0; t < NT; t++)
#pragma unroll
        for (uint32_t d = 0; d < DIM / 16; d++) {
            uint32_t a[4];
            load_matrices_transposed(
                a, tiles + t * TILE_BYTES<DIM> + piece_place<DIM>(lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
#pragma unroll
            for (uint32_t n = 0; n < NS; n++) multiply(sums[n][d], a, p[n][t0 + t][0], p[n][t0 + t][1]);
        }
}

// Which cells a column sees.
struct Sight {
    uint32_t begin, end;
};

// From scores of a chunk to weights relative to the chunk's maximum, of the lane's two columns; `scale`, positive, includes
// log2(e). Masses are sums of the weights as rounded.
__device__ __forceinline__ void weigh_chunk(float (&s)[TILES][4], uint32_t (&p)[TILES][2], float (&maximum)[2],
                                            float (&mass)[2], float scale, uint32_t first, const Sight (&sight)[2],
                                            bool all_seen) {
    maximum[0] = maximum[1] = -INFINITY;
    if (!all_seen) {
        const uint32_t row = first + threadIdx.x % WARP / 4;
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                // One comparison: cells before the beginning wrap around.
                const Sight& its = sight[i % 2];
                const bool seen = row + t * TILE + i / 2 * 8 - its.begin < its.end - its.begin;
                s[t][i] = seen ? s[t][i] : -INFINITY;
            }
    }
#pragma unroll
    for (uint32_t t = 0; t < TILES; t++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            s[t][i] *= scale;
            maximum[i % 2] = fmaxf(maximum[i % 2], s[t][i]);
        }
#pragma unroll
    for (uint32_t c = 0; c < 2; c++) {
#pragma unroll
        for (uint32_t offset = 4; offset < WARP; offset *= 2)
            maximum[c] = fmaxf(maximum[c], __shfl_xor_sync(FULL_MASK, maximum[c], offset));
        mass[c] = 0.0f;
    }
    // A chunk of which a column sees nothing weighs nothing.
    const float base[2] = {maximum[0] == -INFINITY ? 0.0f : maximum[0], maximum[1] == -INFINITY ? 0.0f : maximum[1]};
#pragma unroll
    for (uint32_t t = 0; t < TILES; t++)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const __half2 both = __floats2half2_rn(power_of_two(s[t][2 * i] - base[0]), power_of_two(s[t][2 * i + 1] - base[1]));
            const float2 rounded = __half22float2(both);
            mass[0] += rounded.x;
            mass[1] += rounded.y;
            p[t][i] = transpose(*reinterpret_cast<const uint32_t*>(&both));
        }
#pragma unroll
    for (uint32_t c = 0; c < 2; c++)
#pragma unroll
        for (uint32_t offset = 4; offset < WARP; offset *= 2) mass[c] += __shfl_xor_sync(FULL_MASK, mass[c], offset);
}

// Folding --------------------------------------------------------------------------------------------------------------------

// What chunks so far came to, but for the sums; `grow` answers the factors of the sums so far and of the next chunk's.
struct Folded {
    float maximum, mass;

    // Of no chunks. (Written out where it is used: nvcc 13.0 leaves zeros in two-dimensional arrays of members with initialisers.)
    static __device__ __forceinline__ Folded none() { return Folded{-INFINITY, 0.0f}; }

    __device__ __forceinline__ float2 grow(float next_maximum, float next_mass) {
        const float both = fmaxf(maximum, next_maximum);
        const float base = both == -INFINITY ? 0.0f : both;
        const float2 factor = make_float2(power_of_two(maximum - base), power_of_two(next_maximum - base));
        mass = fmaf(mass, factor.x, next_mass * factor.y);
        maximum = both;
        return factor;
    }
};
__device__ __forceinline__ float fold(float sum, float next, float2 factor) { return fmaf(sum, factor.x, next * factor.y); }

// Columns --------------------------------------------------------------------------------------------------------------------

// Query heads of one KV head go in groups of at most COLUMNS.
struct Group {
    uint32_t kv_head, first_head, heads, index_of_kv;
};
__device__ __forceinline__ uint32_t groups_of_kv(const AttendParams& p) {
    return div_up(p.head.heads / p.kv.kv_heads, COLUMNS);
}
__device__ __forceinline__ Group group_of(const AttendParams& p, uint32_t g) {
    const uint32_t per_kv = p.head.heads / p.kv.kv_heads;
    const uint32_t groups = div_up(per_kv, COLUMNS);
    const uint32_t kv_head = g / groups, index = g % groups;
    return Group{kv_head, kv_head * per_kv + index * COLUMNS, min(COLUMNS, per_kv - index * COLUMNS), index};
}

__device__ __forceinline__ void store_mixed(const AttendParams& p, uint32_t r, uint32_t head, uint32_t d, float value) {
    const uint32_t dim = p.kv.head_dim;
    if (p.packed.rows)
        store_packed(p.packed, r, head * dim + d, value);
    else
        p.out[(size_t(r) * p.head.heads + head) * dim + d] = value;
}

// The columns as right-hand sides, from shared memory: [columns, DIM + 8] halves.
template <uint32_t DIM>
__device__ __forceinline__ void load_columns(uint32_t (&q)[DIM / 16][2], const __half* columns) {
    const uint32_t lane = threadIdx.x % WARP;
    const __half* from = columns + lane / 4 * (DIM + 8) + lane % 4 * 2;
#pragma unroll
    for (uint32_t k = 0; k < DIM / 16; k++) {
        q[k][0] = *reinterpret_cast<const uint32_t*>(from + k * 16);
        q[k][1] = *reinterpret_cast<const uint32_t*>(from + k * 16 + 8);
    }
}
#endif
