// Study v1 (README.md), its small launch.
// walla: targets sm_90a
// fold: adds the splits that mlp (mlp.cuh) leaves, in order, to the hidden state, and leaves the sums as the next norm's input, as a product in mode ADD does (product.cuh). Clears what blocks of mlp
// told each other.
// p: down's parameters; turn_tiles: tiles of a block; partials: [splits, rows, tiles * 16] f32.
// Grid: blocks of 16 * turn_tiles * rows threads, rounded up to warps. Bound: latency. Oracle: walla_cpu's scalar linear.
#include "few.cuh"

constexpr uint32_t FOLD_SPLITS_MAX = 8;

extern "C" __global__ void __launch_bounds__(256) fold(const __grid_constant__ MatmulParams p) {
    let_successors_start();
    const uint32_t base = blockIdx.x * p.turn_tiles, rows = p.x.group_rows;
    const Output at = output_of(p, threadIdx.x, base, 0, rows);
    const bool is_any = at.tile < p.turn_tiles && base + at.tile < p.tiles;
    wait_for_predecessors();
    const float old = at.is_there ? *at.out : 0.0f, near = at.is_there && p.next_norm ? p.next_factors[at.n] : 0.0f;
    float its[FOLD_SPLITS_MAX], value = 0.0f;
#pragma unroll
    for (uint32_t s = 0; s < FOLD_SPLITS_MAX; s++)
        its[s] = is_any && s < p.splits ? p.partials[(size_t(s) * rows + at.n) * (p.tiles * TILE_ROWS) + (base + at.tile) * TILE_ROWS + at.m] : 0.0f;
#pragma unroll
    for (uint32_t s = 0; s < FOLD_SPLITS_MAX; s++)
        if (s < p.splits) value += its[s];
    write_one(p, at, base, 0, 1.0f, old, near, value, 0.0f);
    uint4* h = reinterpret_cast<uint4*>(p.x.rows);
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < p.x.segments * 16 * rows; i += gridDim.x * blockDim.x) h[i] = uint4{};
}
