// Epilogue of gemm_skinny.cuh: one thread per output adds the sums of its runs and splits in order
// and writes the result.
#pragma once

#include "common/stage_ring.cuh"
#include "gemm/gemm_skinny_scheduler.cuh"

// Locates an output of a wave.
__device__ __forceinline__ Output output_of(const SkinnyScheduler& scheduler, uint32_t index,
                                            uint32_t base) {
    const GemmSkinnyParams& p = scheduler.p;
    const GemmParams& g = p.gemm;
    const bool gated = g.mode >= GATE_SILU;
    const uint32_t height = gated ? 8 : 16;
    Output at = {};
    uint32_t n = index / height, wave_tile = 0;
#pragma unroll 1
    while (n >= scheduler.rows && wave_tile < p.wave_tiles)
        n -= scheduler.rows, wave_tile++;
    at.m = index % height, at.n = n, at.tile = wave_tile;
    at.is_valid = wave_tile < p.wave_tiles && base + wave_tile < g.tiles;
    if (!at.is_valid)
        return at;
    const TileOf tile = tile_of(g, base + at.tile);
    const MatrixPart& part = g.part[tile.part[0]];
    const uint32_t row = tile.row + at.m;
    at.is_valid = row < part.weight.rows;
    const uint32_t r = scheduler.row0 + at.n;
    at.out = part.out + size_t(r) * part.out_stride + row;
    at.packed =
        g.packed.rows ? g.packed.rows + packed_offset(g.packed, r, row) + row % 2 * 2 : nullptr;
    at.scale[0] = g.unscale * part.weight.scale;
    at.scale[1] = g.unscale * g.part[1].weight.scale;
    at.bias[0] = part.bias && at.is_valid ? part.bias[row] : 0.0f;
    at.bias[1] = gated && g.part[1].bias && at.is_valid ? g.part[1].bias[row] : 0.0f;
    at.norm = g.next_norm && at.is_valid ? g.next_norm[row] : 0.0f;
    return at;
}

// Writes an output. All lanes of a warp call it together, 16 of them for a tile's row of x.
__device__ __forceinline__ void write_output(const GemmParams& p, const Output& at, uint32_t base,
                                             uint32_t row0, float factor, float old,
                                             float pack_factor, float value, float up) {
    float y = value * (factor * at.scale[0]) + at.bias[0];
    if (p.mode >= GATE_SILU)
        y = activate(y, p.mode) * (up * (factor * at.scale[1]) + at.bias[1]);
    if (p.mode == ADD)
        y = old + y;
    if (p.mode >= GATE_SILU && at.packed) {
        if (at.is_valid)
            *reinterpret_cast<__half*>(at.packed) =
                __float2half_rn(clamp_to_half(y * p.packed.scale));
        return;
    }
    if (at.is_valid)
        *at.out = y;
    if (p.mode != ADD || !p.next_norm)
        return;
    float squares = at.is_valid ? y * y : 0.0f;
    if (at.is_valid)
        *reinterpret_cast<__half*>(at.packed) =
            __float2half_rn(clamp_to_half(y * pack_factor * at.norm * p.packed.scale));
#pragma unroll
    for (uint32_t offset = 1; offset < 16; offset *= 2)
        squares += __shfl_xor_sync(FULL_MASK, squares, offset);
    if (at.is_valid && at.m == 0)
        p.next_squares[size_t(row0 + at.n) * p.next_squares_count + base + at.tile] = squares;
}

// A warp's part of the epilogue: it locates the first outputs and loads their inputs before sums
// exist.
struct SkinnyEpilogue {
    const SkinnyScheduler& scheduler;
    const SkinnyLayout& layout;
    SkinnyShared& storage;
    bool is_first_cta, gated;
    uint32_t outputs; // of a wave
    // One warp computes the norm's factor of a row: it loads the inputs together with x, and
    // finishes after the products.
    float squares = 0.0f, pack_factor = 1.0f;

    __device__ __forceinline__ SkinnyEpilogue(const SkinnyScheduler& scheduler,
                                              const SkinnyLayout& layout, SkinnyShared& storage,
                                              CtaRange ctas)
        : scheduler(scheduler), layout(layout), storage(storage), is_first_cta(ctas.index == 0) {
        gated = scheduler.p.gemm.mode >= GATE_SILU;
        outputs = scheduler.p.wave_tiles * scheduler.rows * (gated ? 8 : 16);
        if (threadIdx.x < FIRST_OUTPUTS)
            storage.first_outputs[threadIdx.x] = output_of(scheduler, threadIdx.x, scheduler.base0);
    }

    // Loads inputs that the preceding kernel wrote.
    __device__ __forceinline__ void load_inputs() {
        const GemmParams& g = scheduler.p.gemm;
        if (g.squares && scheduler.warp < scheduler.rows)
            load_squares();
        if (g.mode != ADD || threadIdx.x >= FIRST_OUTPUTS)
            return;
        const Output& output = storage.first_outputs[threadIdx.x];
        if (output.is_valid) {
            prefetch_l1(output.out);
            if (g.next_norm)
                prefetch_l1(g.next_pack_factors + scheduler.row0 + output.n);
        }
    }
    __device__ __forceinline__ void load_squares() {
        const GemmParams& g = scheduler.p.gemm;
        const uint32_t r = scheduler.row_of(scheduler.warp);
        const float4* from =
            reinterpret_cast<const float4*>(g.squares + size_t(r) * g.squares_count);
#pragma unroll 1
        for (uint32_t i = scheduler.lane; i < g.squares_count / 4; i += WARP) {
            const float4 four = from[i];
            squares += (four.x + four.y) + (four.z + four.w);
        }
        pack_factor = g.pack_factors[r];
    }
    __device__ __forceinline__ void finish_factor() const {
        const GemmParams& g = scheduler.p.gemm;
        if (!g.squares || scheduler.warp >= scheduler.rows)
            return;
        const float norm_factor = rsqrtf(warp_sum(squares) * g.inverse_width + g.eps);
        if (scheduler.lane == 0) {
            storage.factor[scheduler.warp] = __fdividef(norm_factor, pack_factor);
            if (g.factors && is_first_cta)
                g.factors[scheduler.row_of(scheduler.warp)] = norm_factor;
        }
    }

    // Writes the outputs of a wave, or adds the splits of a pass that is not the wave's last.
    __device__ __forceinline__ void write_pass(const SkinnyPass& pass, const float* sums) const {
        const SkinnyScheduler& s = scheduler;
        const GemmParams& g = s.p.gemm;
#pragma unroll 1
        for (uint32_t first = s.warp * WARP; first < outputs; first += s.threads) {
            const uint32_t index = first + s.lane;
            const bool is_known = pass.base == s.base0 && index < FIRST_OUTPUTS;
            const Output output =
                is_known ? storage.first_outputs[index] : output_of(s, index, pass.base);
            const bool has_tile = output.tile < s.p.wave_tiles && pass.base + output.tile < g.tiles;
            const bool adds = g.mode == ADD && output.is_valid;
            const float old = adds ? *output.out : 0.0f,
                        next_pack_factor =
                            adds && g.next_norm ? g.next_pack_factors[s.row0 + output.n] : 0.0f;
            float value[2] = {};
            if (has_tile && pass.first_split > 0)
                value[0] = layout.totals[index].x, value[1] = layout.totals[index].y;
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                if (half == 1 && !gated)
                    continue;
                const float* from = sums + layout.sums_of(s.p, output.tile, 0) +
                                    output.n * SUM_STRIDE + half * 8 + output.m;
                add_splits(value[half], from, pass.splits, has_tile);
            }
            if (pass.first_split + pass.splits < g.splits) {
                if (has_tile)
                    layout.totals[index] = make_float2(value[0], value[1]);
            } else
                write_output(g, output, pass.base, s.row0,
                             g.squares ? storage.factor[output.n] : 1.0f, old, next_pack_factor,
                             value[0], value[1]);
        }
    }

  private:
    // Adds an output's splits in order, each the sum of its runs. SPLITS_AT_ONCE are loaded at
    // once.
    __device__ __forceinline__ void add_splits(float& value, const float* from, uint32_t splits,
                                               bool has_tile) const {
        const uint32_t runs = scheduler.p.gemm.runs, task_sums = layout.task_sums;
#pragma unroll 1
        for (uint32_t split = 0; split < splits;
             split += SPLITS_AT_ONCE, from += SPLITS_AT_ONCE * runs * task_sums) {
            float sums[SPLITS_AT_ONCE][RUNS_MAX];
#pragma unroll
            for (uint32_t i = 0; i < SPLITS_AT_ONCE; i++)
#pragma unroll
                for (uint32_t w = 0; w < RUNS_MAX; w++)
                    sums[i][w] = has_tile && split + i < splits && w < runs
                                     ? from[(i * runs + w) * task_sums]
                                     : 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < SPLITS_AT_ONCE; i++) {
                float all = 0.0f;
#pragma unroll
                for (uint32_t w = 0; w < RUNS_MAX; w++)
                    all += sums[i][w];
                value += all;
            }
        }
    }
};
