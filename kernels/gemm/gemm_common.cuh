// Declarations common to the GEMM kernels on tensor cores.
// out[r, m] (+)= sum_k W[m, k] * x[r, k] (+ bias[m]), sums in f32.
// mode GATE: out[r, m] = activation(G n)[m] * (U n)[m], with G and U the first two parts; n: x
// after its norm, if any.
// With `squares` the rows of x are a norm's input times its weights. The kernel computes the norm's
// factor from the sums of squares that the producer of x wrote: out[r] = factor(r) * W x[r],
// factor(r) = rsqrt(sum(squares[r]) / width + eps) / pack_factors[r].
// mode ADD with `next_norm`: the sums are also written as the next norm's input, packed, with their
// squares.
//
// x: packed rows (packed_activations.cuh), stored times `PackedRef::scale`; `unscale` undoes it. W:
// layout of weight.cuh; out: f32. Up to three matrices of one type are parts of one launch. Every
// weight becomes f16(scale * q + minimum), rows of x are f16. A tile is 16 rows of W (GATE: 8 of
// each matrix).
//
// The order of a row's sums depends on the matrices of an op alone. Every kernel that multiplies
// one of these matrices computes the same bits:
// 1. the columns are cut into `splits` of `split_segments` segments (the last may have fewer), a
//    split into runs of `run_segments`; the last runs may have fewer, or none, and then their sum
//    is zero;
// 2. a run's sum is one chain of products of 16 columns that begins with zero: its segments in
//    order, their blocks of 32 in order, columns 0 .. 16 of a block before 16 .. 32;
// 3. a split's sum is ((0 + run 0) + run 1) + …;
// 4. the sum is ((0 + split 0) + split 1) + ….
// `lower/order.rs` chooses the splits and runs, independently of the rows of x, the kernel and its
// grid.
#pragma once

#include <stddef.h>

#include "gemm/linear.cuh"
#include "gemm/packed_activations.cuh"

constexpr uint32_t RUNS_MAX = 2;  // per split
constexpr uint32_t DEPTH_MAX = 8; // stages of a ring

// A product, its epilogue and the order of its sums: parameters common to all GEMM kernels.
struct GemmParams {
    StepRef step;
    PackedRef x;
    PackedRef packed; // GATE: the result; ADD: the next norm's input; or null
    // [rows, squares_count], squares_count a multiple of 4; null: the factor is 1
    const float* squares;
    const float* pack_factors;      // [rows]: factors that x was packed with
    float* factors;                 // [rows]: output, the norm's factor
    const float* next_norm;         // weights of the next norm, or null
    const float* next_pack_factors; // [rows]: factor to pack with, close to the next norm's factor
    float* next_squares;            // [rows, next_squares_count]: one number per tile, then zeros
    uint32_t squares_count;
    uint32_t next_squares_count;
    float inverse_width; // 1 / width of the norm
    float eps;
    float unscale;     // 1 / x.scale
    uint32_t mode;     // LinearMode
    uint32_t rows_max; // rows of x from here on are not written
    uint32_t tiles;
    uint32_t splits;
    uint32_t split_segments; // the last split may have fewer
    uint32_t runs;           // per split
    uint32_t run_segments;
    MatrixPart part[3]; // part_from holds their first tiles
    // First tile of each part; beyond all tiles if the part is absent, or if a tile consists of two
    // parts.
    uint32_t part_from[4];
};
static_assert(sizeof(GemmParams) == 336 && offsetof(GemmParams, squares) == 80 &&
                  offsetof(GemmParams, squares_count) == 128 && offsetof(GemmParams, part) == 176,
              "as in params.rs");

// Index of a CTA among the CTAs of its product, and their number.
struct CtaRange {
    uint32_t index, count;
};
// Computes the product that this CTA belongs to. A launch of two products with the same rows of x
// has `first` and `second` parameters: the first CTAs compute one product, the others the other.
// With one product only, all CTAs belong to the first or to the second.
template <typename PairParams, typename First, typename Second>
__device__ __forceinline__ void dispatch_pair(const PairParams& p, First&& make_first,
                                              Second&& make_second) {
    if (blockIdx.x < p.first_ctas)
        make_first(CtaRange{blockIdx.x, p.first_ctas});
    else
        make_second(CtaRange{blockIdx.x - p.first_ctas, gridDim.x - p.first_ctas});
}

// The two half tiles of a tile: of one matrix, or of two.
struct TileOf {
    uint32_t part[2];
    uint32_t half[2]; // index among the part's half tiles
    uint32_t row;     // first row of the result
};

// The part of a tile's first half.
__device__ __forceinline__ uint32_t part_of(const GemmParams& p, uint32_t tile) {
    return (tile >= p.part_from[1]) + (tile >= p.part_from[2]);
}

__device__ __forceinline__ TileOf tile_of(const GemmParams& p, uint32_t tile) {
    TileOf at;
    if (p.mode >= GATE_SILU) {
        at.part[0] = 0, at.part[1] = 1;
        at.half[0] = at.half[1] = tile;
        at.row = tile * 8;
    } else {
        const uint32_t part = part_of(p, tile);
        at.part[0] = at.part[1] = part;
        tile -= p.part_from[part];
        at.half[0] = tile * 2, at.half[1] = tile * 2 + 1;
        at.row = tile * TILE_ROWS;
    }
    return at;
}

// n / d, with `reciprocal` = 2^31 / d rounded up: exact if n * d is below 2^31.
__device__ __forceinline__ uint32_t fast_divide(uint32_t n, uint32_t reciprocal) {
    return __umulhi(2 * n, reciprocal);
}

// Address of a segment of a tile's first half.
template <uint32_t RECORD>
__device__ __forceinline__ const uint8_t* first_half(const GemmParams& p, uint32_t tile,
                                                     uint32_t segment) {
    const uint32_t part = part_of(p, tile);
    const uint32_t half = (tile - p.part_from[part]) * (p.mode >= GATE_SILU ? 1 : 2);
    return p.part[part].weight.records + (size_t(half) * p.x.segments + segment) * RECORD;
}

// Offset from there to the tile's second half.
template <uint32_t RECORD>
__device__ __forceinline__ ptrdiff_t half_stride(const GemmParams& p) {
    return p.mode >= GATE_SILU ? p.part[1].weight.records - p.part[0].weight.records
                               : ptrdiff_t(p.x.segments) * RECORD;
}

// Stride between rows of x in the sums of a tile: the lanes of one store access 32 different banks.
constexpr uint32_t SUM_STRIDE = TILE_ROWS + 4;
// Index of sum c of a lane in a tile's sums [row of x][row of W].
__device__ __forceinline__ uint32_t sum_place(uint32_t c, uint32_t lane) {
    return (c / 4 * 8 + lane % 4 * 2 + c % 2) * SUM_STRIDE + c % 4 / 2 * 8 + lane / 4;
}

// Stores a lane's four sums, of eight rows of x, in that layout. All lanes of the warp call it.
__device__ __forceinline__ void transpose_sums(float* transposed, const float (&sums)[4],
                                               uint32_t lane) {
    __syncwarp();
#pragma unroll
    for (uint32_t c = 0; c < 4; c++)
        transposed[sum_place(c, lane)] = sums[c];
    __syncwarp();
}

constexpr uint32_t SPLITS_MAX = 8; // few tiles: one CTA of gemm_sm90.cuh per split
// Split-K workspace of splitk_reduce.cu: the sums of a tile and a group of eight rows of x in one
// split, four per lane. Layout: [splits, groups, tiles, lanes, 4].
__device__ __forceinline__ float4* split_sums(float* workspace, uint32_t groups, uint32_t tiles,
                                              uint32_t split, uint32_t group, uint32_t tile) {
    return reinterpret_cast<float4*>(workspace) +
           ((size_t(split) * groups + group) * tiles + tile) * WARP;
}

// Epilogue inputs of four neighbouring rows of the result, loaded before their sums exist. ADD: the
// old values, and the norm weights and factor for packing.
struct EpilogueInput {
    float old[4], norm[4], pack_factor;
};

__device__ __forceinline__ EpilogueInput epilogue_input(const GemmParams& p, const TileOf& tile,
                                                        uint32_t r, uint32_t quad) {
    const MatrixPart& part = p.part[tile.part[0]];
    const uint32_t row = tile.row + quad * 4;
    const uint32_t left =
        r < p.rows_max && row < part.weight.rows ? min(4u, part.weight.rows - row) : 0;
    EpilogueInput known = {};
    if (p.mode != ADD || left == 0)
        return known;
    const float* out = part.out + size_t(r) * part.out_stride + row;
    if (p.next_norm)
        known.pack_factor = p.next_pack_factors[r];
#pragma unroll
    for (uint32_t c = 0; c < 4; c++) {
        if (c >= left)
            continue;
        known.old[c] = out[c];
        if (p.next_norm)
            known.norm[c] = p.next_norm[row + c];
    }
    return known;
}

// Writes four neighbouring rows of the result for one row of x. `value` holds the sums of a tile;
// GATE: its lower half is the gate.
__device__ __forceinline__ void write_four(const GemmParams& p, const TileOf& tile, uint32_t r,
                                           uint32_t quad, float factor, const EpilogueInput& known,
                                           const float (&value)[2][4]) {
    const bool inside = r < p.rows_max;
    const MatrixPart& part = p.part[tile.part[0]];
    const uint32_t row = tile.row + quad * 4;
    const uint32_t left = inside && row < part.weight.rows ? min(4u, part.weight.rows - row) : 0;
    const auto scaled = [&](float (&to)[4], const float (&sums)[4], const MatrixPart& matrix) {
        const float unscale = factor * p.unscale * matrix.weight.scale;
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            to[c] = sums[c] * unscale;
        if (matrix.bias)
#pragma unroll
            for (uint32_t c = 0; c < 4; c++)
                if (c < left)
                    to[c] += matrix.bias[row + c];
    };
    float y[4];
    scaled(y, value[0], part);
    if (p.mode >= GATE_SILU) {
        float up[4];
        scaled(up, value[1], p.part[1]);
        // The activation is selected once.
        const auto activated = [&](LinearMode mode) {
#pragma unroll
            for (uint32_t c = 0; c < 4; c++)
                y[c] = c < left ? activate(y[c], mode) * up[c] : 0.0f;
        };
        if (p.mode == GATE_SILU)
            activated(GATE_SILU);
        else
            activated(GATE_GELU);
        if (left > 0 && p.packed.rows)
            store_packed(p.packed, r, row, y);
    }
    float* out = part.out + size_t(r) * part.out_stride + row;
    if (p.mode == ADD && left > 0) {
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            y[c] = c < left ? known.old[c] + y[c] : 0.0f;
    }
    if (left > 0 && !(p.mode >= GATE_SILU && p.packed.rows)) {
        if (left == 4 && part.out_stride % 4 == 0)
            *reinterpret_cast<float4*>(out) = make_float4(y[0], y[1], y[2], y[3]);
        else
#pragma unroll
            for (uint32_t c = 0; c < 4; c++)
                if (c < left)
                    out[c] = y[c];
    }
    if (p.mode != ADD || !p.next_norm)
        return;
    // The four lanes of a tile's row of x are neighbours.
    const uint32_t mask = 0xfu << threadIdx.x % WARP / 4 * 4;
    float square[4];
#pragma unroll
    for (uint32_t c = 0; c < 4; c++)
        square[c] = c < left ? y[c] * y[c] : 0.0f;
    float squares = (square[0] + square[1]) + (square[2] + square[3]);
    squares += __shfl_xor_sync(mask, squares, 1);
    squares += __shfl_xor_sync(mask, squares, 2);
    if (left == 0)
        return;
#pragma unroll
    for (uint32_t c = 0; c < 4; c++)
        y[c] = c < left ? y[c] * known.pack_factor * known.norm[c] : 0.0f;
    store_packed(p.packed, r, row, y);
    if (quad == 0)
        p.next_squares[size_t(r) * p.next_squares_count + tile.row / TILE_ROWS] = squares;
}

__device__ __forceinline__ void write_four(const GemmParams& p, const TileOf& tile, uint32_t r,
                                           uint32_t quad, float factor,
                                           const float (&value)[2][4]) {
    write_four(p, tile, r, quad, factor, epilogue_input(p, tile, r, quad), value);
}
