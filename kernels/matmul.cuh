// matmul: out[r, m] (+)= sum_k W[m, k] * x[r, k] (+ bias[m]) on tensor cores, sums in f32.
// mode GATE: out[r, m] = activation(G n)[m] * (U n)[m], with G and U the first two segments.
//
// x: packed rows (packed.cuh), divided by their scale; W: as weight.cuh has it; out: f32. Up to three matrices of one type are segments of one launch.
//
// Quantised numbers are d * (q - offset) + m. The tensor cores multiply 1024 + q, which takes one instruction for two numbers and
// is exact in f16; a constant 1024 in place of W gives 1024 * sum(x) of a block once for all of W's rows, so that
// sum(w x) = d * (sum((1024 + q) x) - S) + (m - d * offset) * S / 1024 with S that sum. F16 and BF16 are multiplied as they are; for
// BF16 the rows come in two parts.
//
// A block makes TILES tiles of 16 of W's rows for GROUPS groups of 8 rows of x. Its warps share out the segments of 128 columns;
// their sums are added in the order of the warps. How many warps there are follows from the columns alone, and a column of a
// matrix product depends on no other: so a row's sums depend on nothing but the matrix.
// Grid: (at most tiles / TILES, rows of x / (8 * GROUPS)): as many blocks as fit the device, each taking turns. Memory-bound (bytes of W) up to some 64 rows.
// Oracle: walla_cpu's scalar linear; what differs is the rounding of x and W to f16.
#pragma once

#include "linear.cuh"
#include "packed.cuh"

struct MatmulParams {
    PackedRef x;
    PackedRef h;  // where a gated product goes, if it is packed
    uint32_t mode;
    uint32_t segments;
    uint32_t rows_max;  // rows of x beyond are not written
    uint32_t turns;     // of TILES tiles each
    Segment segment[3];  // first_pair counts tiles
};
static_assert(sizeof(MatmulParams) == 280, "as in params.rs");

constexpr uint32_t MATMUL_WARPS_MAX = 8;

// d += a * b for 16 x 16 times 16 x 8.
template <bool BF>
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    if constexpr (BF)
        asm(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    // Turing multiplies half as many columns at once, and no bf16: its BF16 matrices go to the linear kernel.
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

// Which tile of which matrix: tile `i` of a turn of TILES tiles.
struct TileOf {
    uint32_t segment;
    uint32_t tile;
    bool live;
};

template <uint32_t TILES>
__device__ __forceinline__ TileOf tile_of(const MatmulParams& p, uint32_t turn, uint32_t i) {
    TileOf at;
    if (p.mode >= GATE_SILU) {
        // The first half of the block's tiles is of the gate, the second of up.
        at.segment = i / (TILES > 1 ? TILES / 2 : 1);
        at.tile = turn * (TILES / 2) + i % (TILES > 1 ? TILES / 2 : 1);
    } else {
        const uint32_t tile = turn * TILES + i;
        at.segment = 0;
        while (at.segment + 1 < p.segments && tile >= p.segment[at.segment + 1].first_pair) at.segment++;
        at.tile = tile - p.segment[at.segment].first_pair;
    }
    at.live = at.tile * TILE_ROWS < p.segment[at.segment].weight.rows;
    return at;
}

// Small products lie side by side for every warp; of large ones the warps take turns to add theirs.
__host__ __device__ constexpr bool side_by_side(uint32_t groups, uint32_t tiles) { return tiles * groups <= 4; }

// Adds the warps' sums of a turn, in order, and writes them. Leaves the sums zero.
template <uint32_t GROUPS, uint32_t TILES, typename Sums>
__device__ __forceinline__ void finish(const MatmulParams& p, uint32_t turn, uint32_t group0,
                                       float (&sum)[TILES][GROUPS][4], Sums& sums) {
    constexpr bool apart = side_by_side(GROUPS, TILES);
    constexpr uint32_t rows = TILES * TILE_ROWS, columns = GROUPS * 8;
    const uint32_t warps = blockDim.x / WARP;
    const uint32_t warp = threadIdx.x / WARP;
    const uint32_t lane = threadIdx.x % WARP;
    // Sum c of a lane: row lane / 4 (+ 8 from the third on) of the tile, column 2 * (lane % 4) (+ 1 for odd ones) of the group.
    for (uint32_t w = 0; w < (apart ? 1 : warps); w++) {
        if (apart || w == warp)
#pragma unroll
            for (uint32_t i = 0; i < TILES; i++)
#pragma unroll
                for (uint32_t g = 0; g < GROUPS; g++)
#pragma unroll
                    for (uint32_t c = 0; c < 4; c++) {
                        float& at = sums[apart ? warp : 0][g * 8 + lane % 4 * 2 + c % 2]
                                        [i * TILE_ROWS + lane / 4 + c / 2 * 8];
                        at = apart || w == 0 ? sum[i][g][c] : at + sum[i][g][c];
                        sum[i][g][c] = 0.0f;
                    }
        __syncthreads();
    }
    const bool gated = p.mode >= GATE_SILU;
    const float unscale = 1.0f / p.x.scale;
    const uint32_t written = gated ? rows / 2 : rows;
    for (uint32_t at = threadIdx.x; at < columns * written; at += blockDim.x) {
        const uint32_t n = at / written, m = at % written;
        const uint32_t r = group0 * 8 + n;
        const TileOf tile = tile_of<TILES>(p, turn, m / TILE_ROWS);
        const Segment& segment = p.segment[tile.segment];
        const uint32_t row = tile.tile * TILE_ROWS + m % TILE_ROWS;
        if (r >= p.rows_max || !tile.live || row >= segment.weight.rows) continue;
        float* out = segment.out + size_t(r) * segment.out_stride + row;
        const float before = p.mode == ADD ? *out : 0.0f;
        const auto total = [&](uint32_t from) {
            float value = sums[0][n][from];
            if constexpr (apart)
                for (uint32_t w = 1; w < warps; w++) value += sums[w][n][from];
            return value * unscale;
        };
        float y = total(m);
        if (segment.bias) y += segment.bias[row];
        if (gated) {
            float up = total(rows / 2 + m);
            if (p.segment[1].bias) up += p.segment[1].bias[row];
            const float h = activate(y, p.mode) * up;
            if (p.h.rows)
                store_packed(p.h, r, row, h);
            else
                *out = h;
        } else {
            *out = p.mode == ADD ? before + y : y;
        }
    }
    // The next turn's sums must not be written over these.
    __syncthreads();
}

template <uint32_t TYPE, uint32_t GROUPS, uint32_t TILES>
__device__ __forceinline__ void matmul(const MatmulParams& p) {
    constexpr bool bf = TYPE == BF16;
    __shared__ float sums[side_by_side(GROUPS, TILES) ? MATMUL_WARPS_MAX : 1][GROUPS * 8][TILES * TILE_ROWS + 1];
    const uint32_t warps = blockDim.x / WARP;
    const uint32_t warp = threadIdx.x / WARP;
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t from = warp * p.x.segments / warps;
    const uint32_t to = (warp + 1) * p.x.segments / warps;

    constexpr bool plain = TYPE == F16 || bf;
    // How many segments are on their way at once: what registers (and the first instruction cache) allow.
    constexpr uint32_t DEPTH = plain && GROUPS > 2 ? 1 : 2;
    // A block takes every gridDim.x-th turn; a warp's share of them all is one run of steps, a segment of a turn each, so that
    // the next turn's weights are on their way while this one's sums are added.
    const uint32_t turns_all = div_up(p.turns - blockIdx.x, gridDim.x);
    const uint32_t share = to - from;
    const uint32_t steps = turns_all * share;
    Block<TYPE> next[DEPTH][TILES][2];
    typename Block<TYPE>::Cursor cursor[TILES];
    uint32_t ahead_turn = blockIdx.x;
    const auto point = [&]() {
#pragma unroll
        for (uint32_t i = 0; i < TILES; i++) {
            const TileOf at = tile_of<TILES>(p, ahead_turn, i);
            // Beyond the last tile the first is read and nothing written.
            cursor[i].at(p.segment[at.segment].weight, at.live ? at.tile : 0, from, lane);
        }
    };
    point();
    const auto fetch = [&](uint32_t d) {
#pragma unroll
        for (uint32_t i = 0; i < TILES; i++) {
            next[d][i][0].load(cursor[i], 0);
            next[d][i][1].load(cursor[i], 1);
            cursor[i].next();
        }
        if (cursor[0].segment < to) return;
        ahead_turn += gridDim.x;
        point();
    };
    // Weights never change: the first of them can be on their way while the kernels ahead still run.
#pragma unroll
    for (uint32_t d = 0; d < DEPTH; d++)
        if (d < steps) fetch(d);
    let_successors_start();
    wait_for_predecessors();

    float sum[TILES][GROUPS][4] = {};
    const uint32_t group0 = blockIdx.y * GROUPS;
    uint32_t turn = blockIdx.x, s = from;
    for (uint32_t step0 = 0; step0 < steps; step0 += DEPTH) {
#pragma unroll
        for (uint32_t d = 0; d < DEPTH; d++) {
            if (step0 + d >= steps) break;
            uint4 x[4][GROUPS], x_lower[4][GROUPS];
            const auto fetch_x = [&](uint32_t j) {
#pragma unroll
                for (uint32_t g = 0; g < GROUPS; g++) {
                    const size_t piece = ((size_t(group0 + g) * p.x.segments + s) * 4 + j) * 32 + lane;
                    x[j][g] = x_lower[j][g] = make_uint4(0, 0, 0, 0);
                    if ((group0 + g) * 8 + lane / 4 < p.rows_max) {
                        x[j][g] = *reinterpret_cast<const uint4*>(p.x.rows + piece * 16);
                        if constexpr (bf)
                            x_lower[j][g] = *reinterpret_cast<const uint4*>(p.x.rows + p.x.lower_offset + piece * 16);
                    }
                }
            };
            // A few rows of x are fetched for the whole segment, many as they are used.
            if constexpr (GROUPS <= 2)
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) fetch_x(j);
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                if constexpr (GROUPS > 2) fetch_x(j);
                float shift[GROUPS][2][4] = {};
                if constexpr (!plain) {
                    const uint32_t constant[4] = {0x64006400u, 0x64006400u, 0x64006400u, 0x64006400u};
#pragma unroll
                    for (uint32_t g = 0; g < GROUPS; g++) {
                        multiply<bf>(shift[g][0], constant, x[j][g].x, x[j][g].y);
                        multiply<bf>(shift[g][TYPE == Q6K], constant, x[j][g].z, x[j][g].w);
                    }
                }
#pragma unroll
                for (uint32_t i = 0; i < TILES; i++) {
                    const Block<TYPE>* w = next[d][i];
                    uint32_t a[2][4];
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++)
#pragma unroll
                        for (uint32_t h = 0; h < 4; h++) a[k][h] = w[h % 2].halves(4 * j + 2 * k + h / 2);
                    if constexpr (plain) {
#pragma unroll
                        for (uint32_t g = 0; g < GROUPS; g++) {
                            multiply<bf>(sum[i][g], a[0], x[j][g].x, x[j][g].y);
                            multiply<bf>(sum[i][g], a[1], x[j][g].z, x[j][g].w);
                            if constexpr (bf) {
                                multiply<bf>(sum[i][g], a[0], x_lower[j][g].x, x_lower[j][g].y);
                                multiply<bf>(sum[i][g], a[1], x_lower[j][g].z, x_lower[j][g].w);
                            }
                        }
                    } else {
                        // Of rows lane / 4 and lane / 4 + 8: the scales of the block's halves and what 1024 stands for.
                        float scale[2][2], rest[2][2];
#pragma unroll
                        for (uint32_t h = 0; h < 2; h++) {
                            float minimum;
                            w[h].factors(j, scale[h][0], scale[h][1], minimum);
#pragma unroll
                            for (uint32_t k = 0; k < 2; k++)
                                rest[h][k] = fmaf(scale[h][k], -(1024.0f + Block<TYPE>::OFFSET) / 1024.0f, minimum * (1.0f / 1024.0f));
                        }
#pragma unroll
                        for (uint32_t g = 0; g < GROUPS; g++) {
                            float product[2][4] = {};
                            multiply<bf>(product[0], a[0], x[j][g].x, x[j][g].y);
                            multiply<bf>(product[TYPE == Q6K], a[1], x[j][g].z, x[j][g].w);
#pragma unroll
                            for (uint32_t k = 0; k <= (TYPE == Q6K); k++)
#pragma unroll
                                for (uint32_t c = 0; c < 4; c++) {
                                    sum[i][g][c] = fmaf(scale[c / 2][k], product[k][c], sum[i][g][c]);
                                    sum[i][g][c] = fmaf(rest[c / 2][k], shift[g][k][c], sum[i][g][c]);
                                }
                        }
                    }
                }
            }
            if (step0 + d + DEPTH < steps) fetch(d);
            if (++s < to) continue;
            finish<GROUPS, TILES>(p, turn, group0, sum, sums);
            turn += gridDim.x;
            s = from;
        }
    }
}

#define MATMUL(TYPE, NAME, GROUPS, TILES)                                                                            \
    extern "C" __global__ void __launch_bounds__(MATMUL_WARPS_MAX* WARP,                                           \
                                                  GROUPS* TILES <= (TYPE == F16 || TYPE == BF16 ? 1 : 2) ? 2 : 1)    \
        matmul_##NAME##_##GROUPS##x##TILES(                                                                          \
        const __grid_constant__ MatmulParams p) {                                                                    \
        matmul<TYPE, GROUPS, TILES>(p);                                                                              \
    }
#define MATMULS(TYPE, NAME)                                                                     \
    MATMUL(TYPE, NAME, 1, 1) MATMUL(TYPE, NAME, 1, 2) MATMUL(TYPE, NAME, 2, 1) MATMUL(TYPE, NAME, 2, 2)   \
    MATMUL(TYPE, NAME, 4, 1) MATMUL(TYPE, NAME, 4, 2)
