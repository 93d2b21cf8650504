// gate: h[r] = activation(products[r][..hidden]) * products[r][hidden..], for gate and up matrices
// of different types.
// products: [rows, 2 * hidden] f32; h: [rows, hidden] f32.
// Grid: (hidden / 256, rows). Bound: memory, 12 bytes per number.
// Oracle: walla_cpu's scalar gate_up (tests/gpu/parity.rs, mixed_types_agree_with_the_oracle).
#include "gemm/linear.cuh"

struct GateParams {
    StepRef step;
    const float* products;
    float* h;
    uint32_t hidden;
    uint32_t mode;
};
static_assert(sizeof(GateParams) == 56, "as in params.rs");

extern "C" __global__ void __launch_bounds__(256) gate(const __grid_constant__ GateParams p) {
    launch_dependents();
    grid_dependency_wait();
    const uint32_t r = blockIdx.y;
    const uint32_t i = blockIdx.x * 256 + threadIdx.x;
    if (r >= p.step.header().rows || i >= p.hidden)
        return;
    const float* products = p.products + size_t(r) * 2 * p.hidden;
    p.h[size_t(r) * p.hidden + i] = activate(products[i], p.mode) * products[p.hidden + i];
}
