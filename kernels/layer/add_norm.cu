// add_norm: x[r] += y[r] * weight * rsqrt(mean(y[r]^2) + eps), for models with post norms. x, y:
// [rows, width] f32.
// Grid: one block per row.
// Bound: memory, 12 * width bytes per row.
// Oracle: walla_cpu's scalar project with a post norm (tests/gpu/parity.rs,
// every_feature_agrees_with_the_oracle).
#include "step/step.cuh"

struct AddNormParams {
    StepRef step;
    const float* y;
    const float* weight;
    float* x;
    uint32_t width;
    float eps;
};
static_assert(sizeof(AddNormParams) == 64, "as in params.rs");

constexpr uint32_t ADD_NORM_THREADS = 256;

extern "C" __global__ void __launch_bounds__(ADD_NORM_THREADS)
    add_norm(const __grid_constant__ AddNormParams p) {
    __shared__ float scratch[ADD_NORM_THREADS / WARP];
    launch_dependents();
    grid_dependency_wait();
    const uint32_t r = blockIdx.x;
    if (r >= p.step.header().rows)
        return;
    const float* y = p.y + size_t(r) * p.width;
    float* x = p.x + size_t(r) * p.width;
    float squares = 0.0f;
    for (uint32_t k = threadIdx.x; k < p.width; k += ADD_NORM_THREADS)
        squares = fmaf(y[k], y[k], squares);
    const float factor =
        rsqrtf(block_sum<ADD_NORM_THREADS>(squares, scratch) / float(p.width) + p.eps);
    for (uint32_t k = threadIdx.x; k < p.width; k += ADD_NORM_THREADS)
        x[k] += y[k] * factor * p.weight[k];
}
