// walla: targets sm_90a
// splitk_reduce: out[r, m] += unscale * sum_s sums[s, r, m], the splits in order (gemm_sm90.cuh,
// WorkspaceSplitK); with `next_norm` also the next norm's input, packed, with its squares, as a
// product in mode ADD writes them (gemm_common.cuh). One matrix of whole tiles without a bias; rows
// of x need no factor.
// sums: [splits, rows / 8, tiles, lanes, 4] f32 (split_sums); out: [rows, out_stride] f32. A warp
// takes a tile's sums with eight rows of x.
// Grid: (tiles / REDUCE_WARPS, rows of x / 8).
// Bound: latency, and 64 * splits bytes of L2 per row of a tile.
// Oracle: walla_cpu's scalar linear (tests/gpu/determinism.rs).
#include "common/async_copy.cuh"
#include "gemm/gemm_common.cuh"

struct SplitkReduceParams {
    float* sums;
    float* out; // [rows, out_stride]
    PackedRef packed;
    const float* next_norm;         // weights of the next norm, or null; with it:
    const float* next_pack_factors; // [rows]: factor to pack with
    float* next_squares;            // [rows, next_squares_count]
    uint32_t next_squares_count;
    uint32_t out_stride;
    float unscale;     // of x and the matrix
    uint32_t rows_max; // rows of x from here on are not written
    uint32_t tiles;
    uint32_t splits;
};
static_assert(sizeof(SplitkReduceParams) == 88 && offsetof(SplitkReduceParams, unscale) == 72,
              "as in params.rs");

constexpr uint32_t REDUCE_WARPS = 4;

__device__ __forceinline__ void set(float (&to)[4], const float4& four) {
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

extern "C" __global__ void __launch_bounds__(REDUCE_WARPS* WARP)
    splitk_reduce(const __grid_constant__ SplitkReduceParams p) {
    __shared__ __align__(16) float transposed[REDUCE_WARPS][8 * SUM_STRIDE];
    // The splits, then the old value.
    __shared__ float4 fetched[REDUCE_WARPS][SPLITS_MAX + 1][WARP];
    __shared__ float factors[REDUCE_WARPS][WARP];
    launch_dependents();
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, group = blockIdx.y,
                   tile = blockIdx.x * REDUCE_WARPS + warp;
    const uint32_t quad = lane % 4, n = lane / 4, r = group * 8 + n,
                   row = tile * TILE_ROWS + quad * 4;
    if (tile >= p.tiles)
        return;
    auto& its = fetched[warp];
    const bool is_valid = r < p.rows_max;
    float4* out = reinterpret_cast<float4*>(p.out + size_t(r) * p.out_stride + row);
    const float4* from = split_sums(p.sums, gridDim.y, p.tiles, 0, group, tile) + lane;
    const uint32_t stride = gridDim.y * p.tiles * WARP;
    float norm[4] = {};
    if (p.next_norm)
        set(norm, *reinterpret_cast<const float4*>(p.next_norm + row));
    grid_dependency_wait();
    // All in flight at once: the compiler would sink register loads to their uses.
#pragma unroll
    for (uint32_t s = 0; s < SPLITS_MAX; s++)
        if (s < p.splits)
            copy_async(shared_address(&its[s][lane]), from + s * stride);
    if (is_valid) {
        copy_async(shared_address(&its[SPLITS_MAX][lane]), out);
        if (p.next_norm)
            copy_word_async(shared_address(&factors[warp][lane]), p.next_pack_factors + r);
    }
    cp_async_commit_group();
    cp_async_wait_group<0>();
    float old[4];
    set(old, its[SPLITS_MAX][lane]);
    const float pack_factor = factors[warp][lane];
    float total[4] = {};
#pragma unroll
    for (uint32_t s = 0; s < SPLITS_MAX; s++) {
        if (s >= p.splits)
            continue;
        const float4 four = its[s][lane];
        total[0] += four.x, total[1] += four.y, total[2] += four.z, total[3] += four.w;
    }
    transpose_sums(transposed[warp], total, lane);
    float y[4];
    set(y, *reinterpret_cast<const float4*>(transposed[warp] + n * SUM_STRIDE + quad * 4));
#pragma unroll
    for (uint32_t c = 0; c < 4; c++)
        y[c] = old[c] + y[c] * p.unscale;
    if (is_valid)
        *out = make_float4(y[0], y[1], y[2], y[3]);
    if (!p.next_norm)
        return;
    // In the order of `write_four`.
    float squares = (y[0] * y[0] + y[1] * y[1]) + (y[2] * y[2] + y[3] * y[3]);
    squares += __shfl_xor_sync(FULL_MASK, squares, 1);
    squares += __shfl_xor_sync(FULL_MASK, squares, 2);
    if (!is_valid)
        return;
#pragma unroll
    for (uint32_t c = 0; c < 4; c++)
        y[c] = y[c] * pack_factor * norm[c];
    store_packed(p.packed, r, row, y);
    if (quad == 0)
        p.next_squares[size_t(r) * p.next_squares_count + tile] = squares;
}
