// add_norm: x[r] = scale * (x[r] + n(y[r])), n(y) = y * weight * rsqrt(mean(y^2) + eps), or y
// without weight, for models with post norms or scaled layers; with `next_norm` also packed[r] =
// f16(x[r] * next_norm * factor(r)), as `pack` computes it from the new x (gemm/pack.cu), factor(r)
// = rsqrt(mean(x[r]^2) + next_eps). x, y: [rows, width] f32. Grid: one block per row, with a thread
// for each four numbers, up to 1,024 threads. Bound: latency, of one round trip to L2 and two
// reductions; 14 * width bytes per row. Oracle: walla_cpu's scalar project with a post norm
// (tests/gpu/parity.rs, every_feature_agrees_with_the_oracle).
#include "layer/next_norm.cuh"
#include "step/step.cuh"

struct AddNormParams {
    StepRef step;
    const float* y;
    const float* weight; // or null
    float* x;
    const float* next_norm; // weights of the next norm, or null; with it:
    PackedRef packed;
    float* factors; // [rows]
    uint32_t width;
    float eps;
    float next_eps;
    float scale;
};
static_assert(sizeof(AddNormParams) == 112, "as in params.rs");

constexpr uint32_t ADD_NORM_THREADS_MAX = 1024;

extern "C" __global__ void __launch_bounds__(ADD_NORM_THREADS_MAX)
    add_norm(const __grid_constant__ AddNormParams p) {
    __shared__ float scratch[2][ADD_NORM_THREADS_MAX / WARP];
    launch_dependents();
    const uint32_t r = blockIdx.x, first = threadIdx.x * 4, step = blockDim.x * 4;
    // Weights never change: the thread's first ones are loaded while the predecessor writes y.
    float first_weight[4] = {1.0f, 1.0f, 1.0f, 1.0f}, first_norm[4] = {};
    if (p.weight)
        read_quad(p.weight, first, p.width, first_weight);
    if (p.next_norm)
        read_quad(p.next_norm, first, p.width, first_norm);
    const bool is_row = r < p.step.header().rows;
    grid_dependency_wait();
    if (!is_row)
        return;
    const float* y = p.y + size_t(r) * p.width;
    float* x = p.x + size_t(r) * p.width;

    float first_y[4], first_x[4];
    read_quad(y, first, p.width, first_y);
    read_quad(x, first, p.width, first_x);
    float squares = 0.0f;
#pragma unroll
    for (uint32_t c = 0; c < 4; c++)
        squares = fmaf(first_y[c], first_y[c], squares);
#pragma unroll 1
    for (uint32_t k = first + step; k < p.width; k += step) {
        float more[4];
        read_quad(y, k, p.width, more);
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            squares = fmaf(more[c], more[c], squares);
    }
    const float mean = sum_of_block(squares, scratch[0]) / float(p.width);
    const float factor = p.weight ? rsqrtf(mean + p.eps) : 1.0f;

    squares = 0.0f;
    const auto add = [&](float (&to)[4], const float (&its)[4], const float (&weight)[4],
                         uint32_t k) {
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
            to[c] = (to[c] + its[c] * factor * weight[c]) * p.scale;
            // Padding stays zero if the factor is not a number.
            to[c] = k + c < p.width ? to[c] : 0.0f;
            squares = fmaf(to[c], to[c], squares);
        }
        write_quad(x, k, p.width, to);
    };
    add(first_x, first_y, first_weight, first);
#pragma unroll 1
    for (uint32_t k = first + step; k < p.width; k += step) {
        float more[4], its[4], weight[4] = {1.0f, 1.0f, 1.0f, 1.0f};
        read_quad(x, k, p.width, more);
        read_quad(y, k, p.width, its);
        if (p.weight)
            read_quad(p.weight, k, p.width, weight);
        add(more, its, weight, k);
    }
    if (p.next_norm)
        pack_next_norm(p.packed, p.factors, r, x, p.next_norm, p.width, p.next_eps, squares,
                       first_x, first_norm, scratch[1]);
}
