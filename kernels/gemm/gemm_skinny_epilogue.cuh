// Epilogue of gemm_skinny.cuh: one thread per output.
#pragma once

#include "gemm/gemm_skinny_config.cuh"

// An output of a wave: its address, and its inputs that are known before x is read.
struct Output {
    uint8_t tile, n, m; // index in the wave, in the group, in the tile
    bool is_there;
    float* out;
    uint8_t* packed;
    float scale[2], bias[2];
    float norm;
};

__device__ __forceinline__ Output output_of(const GemmSkinnyParams& p, uint32_t index,
                                            uint32_t base, uint32_t row0, uint32_t rows_here) {
    const GemmParams& g = p.gemm;
    const bool gated = g.mode >= GATE_SILU;
    const uint32_t height = gated ? 8 : 16;
    Output at = {};
    uint32_t n = index / height, of_wave = 0;
#pragma unroll 1
    while (n >= rows_here && of_wave < p.wave_tiles)
        n -= rows_here, of_wave++;
    at.m = index % height, at.n = n, at.tile = of_wave;
    at.is_there = of_wave < p.wave_tiles && base + of_wave < g.tiles;
    if (!at.is_there)
        return at;
    const TileOf tile = tile_of(g, base + at.tile);
    const MatrixPart& part = g.part[tile.part[0]];
    const uint32_t row = tile.row + at.m;
    at.is_there = row < part.weight.rows;
    const uint32_t r = row0 + at.n;
    at.out = part.out + size_t(r) * part.out_stride + row;
    at.packed = g.packed.rows ? g.packed.rows + pair_of(g.packed, r, row) + row % 2 * 2 : nullptr;
    at.scale[0] = g.unscale * part.weight.scale;
    at.scale[1] = g.unscale * g.part[1].weight.scale;
    at.bias[0] = part.bias && at.is_there ? part.bias[row] : 0.0f;
    at.bias[1] = gated && g.part[1].bias && at.is_there ? g.part[1].bias[row] : 0.0f;
    at.norm = g.next_norm && at.is_there ? g.next_norm[row] : 0.0f;
    return at;
}

// Writes an output. All lanes of a warp call it together, 16 of them for a tile's row of x.
__device__ __forceinline__ void write_one(const GemmParams& p, const Output& at, uint32_t base,
                                          uint32_t row0, float factor, float old, float near,
                                          float value, float up) {
    float y = value * (factor * at.scale[0]) + at.bias[0];
    if (p.mode >= GATE_SILU)
        y = activate(y, p.mode) * (up * (factor * at.scale[1]) + at.bias[1]);
    if (p.mode == ADD)
        y = old + y;
    if (p.mode >= GATE_SILU && at.packed) {
        if (at.is_there)
            *reinterpret_cast<__half*>(at.packed) =
                __float2half_rn(within_half(y * p.packed.scale));
        return;
    }
    if (at.is_there)
        *at.out = y;
    if (p.mode != ADD || !p.next_norm)
        return;
    float squares = at.is_there ? y * y : 0.0f;
    if (at.is_there)
        *reinterpret_cast<__half*>(at.packed) =
            __float2half_rn(within_half(y * near * at.norm * p.packed.scale));
#pragma unroll
    for (uint32_t offset = 1; offset < 16; offset *= 2)
        squares += __shfl_xor_sync(FULL_MASK, squares, offset);
    if (at.is_there && at.m == 0)
        p.next_squares[size_t(row0 + at.n) * p.next_squares_count + base + at.tile] = squares;
}
