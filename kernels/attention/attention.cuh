// Tensor-core attention over pages of f16 or 8 bits: declarations common to all its kernels.
//
// The bits of a row's result depend on its position, its query and its cells alone. Therefore:
// 1. cells are cut into chunks of CHUNK, counted from cell 0, even if a window begins later;
// 2. a chunk yields a separate partial result that starts from zero, with s = q k:
//      base = ceil(max s * scale * log2 e), an integer
//      w = f16(2^(s * scale * log2 e - base)), exactly zero for masked cells
//      mass = sum w, sums = sum w v
//    The row's result is sums / mass. Weights of several chunks differ by exact factors;
// 3. a row's chunks are folded in order, one by one, and only by `fold` (online softmax with exact
//    power-of-two factors): SPAN chunks, counted from cell 0, into a span's result that starts from
//    zero, and the spans' results likewise into the row's. The block with a row's first chunks
//    folds as it proceeds. Other blocks write their results (the chunks of a single span one by
//    one, otherwise spans) to memory or to the shared memory of a cluster. The last block to
//    finish, or the blocks that own the numbers, fold them. Neither the number of blocks nor the
//    order in which they finish affects the result;
// 4. a query is a column of the tensor cores' products, which do not depend on other columns, so
//    other rows change nothing. A row whose numbers are not finite may affect rows of the same
//    sequence in the same step, but no other sequence.
// S = K Q^T with 16 cells as M and 8 columns as N, so a row's up to 8 query heads of one KV head
// waste nothing. The products' registers, rounded to f16 and transposed 8 x 8 in place, are the
// right-hand side of V^T P^T.
#pragma once

#include "common/async_copy.cuh"
#include "attention/head.cuh"
#include "gemm/packed_activations.cuh"
#include "attention/kv_tiles.cuh"

// Deferred split-K: products stored as the sums of their splits (gemm_common.cuh). Decode attention
// adds the splits in order and multiplies by norm factor / pack factor of the row, and by
// the matrix's scale.
struct DeferredSplits {
    const float* norm_factors; // [rows]; null: already applied to x
    const float* pack_factors; // [rows]: factors that x was packed with
    uint32_t count;            // splits; 0: products are complete
    uint32_t stride;           // stride between splits, in numbers
    float scales[3];           // of the query, key and value matrices
    uint32_t reserved;
};
static_assert(sizeof(DeferredSplits) == 40, "as in params.rs");

struct AttendParams {
    StepRef step;
    KvRef kv; // page_tokens a multiple of TILE
    // decode: products, as in append.cu, or their splits; mixed: q [rows, heads * head_dim]
    const float* input;
    float* out; // [rows, heads * head_dim], unless packed
    PackedRef packed;
    HeadRef head;
    // [slots_max, groups]: sums [columns, head_dim], then bases [columns], then masses [columns];
    // decode has as many columns as heads share a KV head, at most COLUMNS
    float* partials;
    uint32_t* arrivals; // [rows, groups], zero between launches
    uint32_t window;    // 0: all
    float scale;
    uint32_t slots_max;
    uint32_t rows_max;
    DeferredSplits deferred;
};
static_assert(sizeof(AttendParams) == 216 + sizeof(PackedRef), "as in params.rs");

constexpr uint32_t COLUMNS = 8;
constexpr uint32_t DEFERRED_SPLITS_MAX = 8; // splits of products (`SPLITS_MAX`)
constexpr uint32_t DEFERRED_DIM_MAX = 128;  // largest head_dim whose splits attention adds
constexpr uint32_t SPAN = 8;                // chunks

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
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

// Addresses of the cells of one sequence and KV head. A tile is within one page.
struct Cells {
    const KvRef& kv;
    const uint32_t* table;
    uint32_t head;
    uint32_t begin, end; // cells that are fetched

    __device__ __forceinline__ uint32_t index_of(uint32_t first) const {
        return kv.page_magic ? __umulhi(first, kv.page_magic) : first;
    }
    // Page table entry for a tile; tiles from `end` on are not looked up.
    __device__ __forceinline__ uint32_t page_of(uint32_t first) const {
        return first < end ? table[index_of(first)] : 0;
    }
    // Index of a tile's first cell among all cells; below 2^32.
    __device__ __forceinline__ uint32_t cell_of(uint32_t page, uint32_t first) const {
        const uint32_t cell = first - index_of(first) * kv.page_tokens;
        return (page * kv.kv_heads + head) * kv.page_tokens + cell;
    }
};

// Visible range of cells of a column.
struct VisibleRange {
    uint32_t begin, end;
};

// Scores are products of queries and keys. Times this scale, which is positive and includes
// log2(e), they are exponents of two.
__device__ __forceinline__ float scale_of(const AttendParams& p) {
    return p.scale * 1.44269504f;
}

// Masks cells outside a column's visible range: scores of tiles `first` .. of cells, for the lane's
// two columns.
template <uint32_t NT>
__device__ __forceinline__ void mask_scores(float (&s)[NT][4], uint32_t first,
                                            const VisibleRange (&visible)[2], bool all_visible) {
    if (all_visible)
        return;
    const uint32_t row = first + threadIdx.x % WARP / 4;
#pragma unroll
    for (uint32_t t = 0; t < NT; t++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            // One comparison: cells before the range's beginning wrap around.
            const VisibleRange& its = visible[i % 2];
            if (row + t * TILE + i / 2 * 8 - its.begin >= its.end - its.begin)
                s[t][i] = -INFINITY;
        }
}

// Base of the weights: the largest exponent of each of the lane's two columns in a warp's tiles,
// rounded up to an integer. Weights relative to different chunks therefore differ by exact powers
// of two.
template <uint32_t NT>
__device__ __forceinline__ void find_base(const float (&s)[NT][4], float scale, float (&base)[2]) {
#pragma unroll
    for (uint32_t c = 0; c < 2; c++) {
        base[c] = fmaxf(s[0][c], s[0][c + 2]);
#pragma unroll
        for (uint32_t t = 1; t < NT; t++)
            base[c] = fmaxf(base[c], fmaxf(s[t][c], s[t][c + 2]));
#pragma unroll
        for (uint32_t offset = 4; offset < WARP; offset *= 2)
            base[c] = fmaxf(base[c], __shfl_xor_sync(FULL_MASK, base[c], offset));
        base[c] = ceilf(base[c] * scale);
    }
}

// Weights of a tile relative to `base`, rounded to f16, as the right-hand side of V^T P^T.
__device__ __forceinline__ void weigh_tile(const float (&s)[4], float scale, const float (&base)[2],
                                           uint32_t (&p)[2]) {
    // If a column sees no cell of the chunk, all its weights are zero.
    const float from[2] = {base[0] == -INFINITY ? 0.0f : base[0],
                           base[1] == -INFINITY ? 0.0f : base[1]};
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        p[i] = transpose(pack_halves(power_of_two(fmaf(s[2 * i], scale, -from[0])),
                                     power_of_two(fmaf(s[2 * i + 1], scale, -from[1]))));
}

// mass += the weights of a tile, as rounded, of the lane's two columns: a product with ones.
__device__ __forceinline__ void add_mass(float (&mass)[4], const uint32_t (&p)[2]) {
    constexpr uint32_t ONES = 0x3c003c00;
    const uint32_t ones[4] = {ONES, ONES, ONES, ONES};
    mma_m16n8k16(mass, ones, p[0], p[1]);
}

// Folding -----------------------------------------------------------------------------------------

// 2^x for an integer x <= 0; 0 from -127 on.
__device__ __forceinline__ float exact_power(float x) {
    // Adding a number whose unit is 1 leaves the exponent in the lowest bits.
    return __int_as_float(__float_as_int(fmaxf(x, -127.0f) + (12582912.0f + 127.0f)) << 23);
}

// Base and mass of the chunks folded so far. `grow` returns the factors for the sums so far and for
// the next chunk's sums.
struct Folded {
    float base, mass;

    // No chunks. (Written out at each use: nvcc 13.0 leaves zeros in two-dimensional arrays of
    // members with initialisers.)
    static __device__ __forceinline__ Folded none() { return Folded{-INFINITY, 0.0f}; }

    __device__ __forceinline__ float2 grow(float next_base, float next_mass) {
        const float larger = fmaxf(base, next_base);
        const float finite = larger == -INFINITY ? 0.0f : larger;
        const float2 factor =
            make_float2(exact_power(base - finite), exact_power(next_base - finite));
        mass = fmaf(mass, factor.x, next_mass * factor.y);
        base = larger;
        return factor;
    }
};
__device__ __forceinline__ float fold(float sum, float next, float2 factor) {
    return fmaf(sum, factor.x, next * factor.y);
}

// Columns -----------------------------------------------------------------------------------------

// Query heads of one KV head are in groups of at most COLUMNS.
struct HeadGroup {
    uint32_t kv_head, first_head, heads, index_of_kv;
};
__device__ __forceinline__ uint32_t groups_of_kv(const AttendParams& p) {
    return div_up(p.head.heads / p.kv.kv_heads, COLUMNS);
}
__device__ __forceinline__ HeadGroup head_group_of(const AttendParams& p, uint32_t g) {
    const uint32_t per_kv = p.head.heads / p.kv.kv_heads;
    const uint32_t groups = div_up(per_kv, COLUMNS);
    const uint32_t kv_head = g / groups, index = g % groups;
    return HeadGroup{kv_head, kv_head * per_kv + index * COLUMNS,
                     min(COLUMNS, per_kv - index * COLUMNS), index};
}

// Stores one number of the result, or four neighbours from a multiple of four.
__device__ __forceinline__ void store_output(const AttendParams& p, uint32_t r, uint32_t head,
                                             uint32_t d, float value) {
    const uint32_t dim = p.kv.head_dim;
    if (p.packed.rows)
        store_packed(p.packed, r, head * dim + d, value);
    else
        p.out[(size_t(r) * p.head.heads + head) * dim + d] = value;
}

__device__ __forceinline__ void store_output(const AttendParams& p, uint32_t r, uint32_t head,
                                             uint32_t d, const float (&values)[4]) {
    const uint32_t dim = p.kv.head_dim;
    if (p.packed.rows)
        store_packed(p.packed, r, head * dim + d, values);
    else
        *reinterpret_cast<float4*>(p.out + (size_t(r) * p.head.heads + head) * dim + d) =
            make_float4(values[0], values[1], values[2], values[3]);
}

// Loads the columns as right-hand sides from shared memory: [columns, DIM + 8] halves.
template <uint32_t DIM, typename Number>
__device__ __forceinline__ void load_columns(uint32_t (&q)[DIM / 16][2], const __half* columns) {
    const uint32_t lane = threadIdx.x % WARP;
    const __half* from = columns + lane / 4 * (DIM + 8);
#pragma unroll
    for (uint32_t k = 0; k < DIM / 16; k++)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            q[k][i] = *reinterpret_cast<const uint32_t*>(
                from + Tile<DIM, Number>::depth_of(k, i, lane % 4));
}
#endif
