// gather: the rows of x that outputs name (packed.cuh), with what their norm's factors follow from, in the order of outputs. So the head
// multiplies with rows that lie side by side.
// Grid: a block an output. Memory-bound: 4 bytes a number. Oracle: copies, bit by bit.
#include "packed.cuh"
#include "step.cuh"

struct GatherParams {
    StepRef step;
    PackedRef from;
    PackedRef to;
    const float* squares;  // [rows, squares_count], squares_count a multiple of 4; or null
    float* squares_to;     // [outputs, squares_count]
    const float* used;     // [rows]
    float* used_to;        // [outputs]
    uint32_t squares_count;
    uint32_t rows_last;  // no row of x is beyond
};
static_assert(sizeof(GatherParams) == 120, "as in params.rs");

constexpr uint32_t GATHER_THREADS = 128;

extern "C" __global__ void __launch_bounds__(GATHER_THREADS) gather(const __grid_constant__ GatherParams p) {
    let_successors_start();
    wait_for_predecessors();
    const uint32_t n = blockIdx.x, r = min(p.step.output(n).row, p.rows_last);
    for (uint32_t piece = threadIdx.x; piece < p.from.segments * 16; piece += GATHER_THREADS)
        *reinterpret_cast<uint4*>(p.to.rows + piece_of(p.to, n, piece)) =
            *reinterpret_cast<const uint4*>(p.from.rows + piece_of(p.from, r, piece));
    if (!p.squares) return;
    const float4* from = reinterpret_cast<const float4*>(p.squares + size_t(r) * p.squares_count);
    float4* to = reinterpret_cast<float4*>(p.squares_to + size_t(n) * p.squares_count);
    for (uint32_t i = threadIdx.x; i < p.squares_count / 4; i += GATHER_THREADS) to[i] = from[i];
    if (threadIdx.x == 0) p.used_to[n] = p.used[r];
}
