// gather: to[n] = from[output(n).row]: copies the rows of x that outputs name
// (packed_activations.cuh), with their sums of squares and factors, in the order of outputs, so
// that the head multiplies contiguous rows.
// from, to: packed f16; squares: [rows, squares_count] f32.
// Grid: one block per output.
// Bound: memory, 4 bytes per number.
// Oracle: copies, bit by bit (tests/gpu/determinism.rs).
#include "gemm/packed_activations.cuh"
#include "step/step.cuh"

struct GatherParams {
    StepRef step;
    PackedRef from;
    PackedRef to;
    const float* squares;      // [rows, squares_count], squares_count a multiple of 4; or null
    float* squares_to;         // [outputs, squares_count]
    const float* pack_factors; // [rows]
    float* pack_factors_to;    // [outputs]
    uint32_t squares_count;
    uint32_t rows_last; // index of the last row of x
};
static_assert(sizeof(GatherParams) == 120, "as in params.rs");

constexpr uint32_t GATHER_THREADS = 256;

extern "C" __global__ void __launch_bounds__(GATHER_THREADS)
    gather(const __grid_constant__ GatherParams p) {
    launch_dependents();
    // Outputs' rows are in the step block, which is complete.
    const uint32_t n = blockIdx.x, r = min(p.step.output(n).row, p.rows_last), i = threadIdx.x;
    grid_dependency_wait();
    // A thread's first loads of each array are in flight at once.
    const bool has_squares = p.squares && i < p.squares_count / 4;
    const float4* from = reinterpret_cast<const float4*>(p.squares + size_t(r) * p.squares_count);
    const float4 first = has_squares ? from[i] : float4();
    const float pack_factor = p.squares && i == 0 ? p.pack_factors[r] : 0.0f;
#pragma unroll 2
    for (uint32_t piece = i; piece < p.from.segments * 16; piece += GATHER_THREADS)
        *reinterpret_cast<uint4*>(p.to.rows + piece_of(p.to, n, piece)) =
            *reinterpret_cast<const uint4*>(p.from.rows + piece_of(p.from, r, piece));
    if (!has_squares)
        return;
    float4* to = reinterpret_cast<float4*>(p.squares_to + size_t(n) * p.squares_count);
    to[i] = first;
    for (uint32_t k = i + GATHER_THREADS; k < p.squares_count / 4; k += GATHER_THREADS)
        to[k] = from[k];
    if (i == 0)
        p.pack_factors_to[n] = pack_factor;
}
