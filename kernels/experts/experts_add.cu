// experts_add: x[r] += sum_i weights[r, i] * y[r * used + i], the chosen experts of row r in
// ascending order (experts.cuh); with `next_norm` also packed[r] = f16(x[r] * next_norm *
// factor(r)), as `pack` computes it from the new x (gemm/pack.cu), factor(r) = rsqrt(mean(x[r]^2) +
// next_eps).
// x: [rows, width] f32, width a multiple of 16; y: [rows * used, width] f32.
// Grid: one block per row, with a thread for each four numbers, up to 1,024 threads.
// Bound: memory, (4 * used + 10) * width bytes per row, from L2 if rows are few.
// Oracle: walla_cpu's scalar experts (tests/gpu/experts.rs).
#include "experts/experts.cuh"
#include "layer/next_norm.cuh"
#include "step/step.cuh"

struct ExpertsAddParams {
    StepRef step;
    const float* y;
    const float* weights; // [rows, used]
    float* x;
    const float* next_norm; // weights of the next norm, or null; with it:
    PackedRef packed;
    float* factors; // [rows]
    uint32_t width;
    uint32_t used;
    float next_eps;
    uint32_t reserved;
};
static_assert(sizeof(ExpertsAddParams) == 112, "as in params/experts.rs");

constexpr uint32_t EXPERTS_ADD_THREADS_MAX = 1024;
constexpr uint32_t ADDED_AT_ONCE = 4; // experts whose numbers are loaded at once

// to += sum_i weights[i] * y[i][k ..], for four neighbours from k on.
__device__ __forceinline__ void add_choices(float (&to)[4], const ExpertsAddParams& p, uint32_t r,
                                            uint32_t k) {
    const float* weights = p.weights + size_t(r) * p.used;
    const float* y = p.y + size_t(r) * p.used * p.width + k;
    for (uint32_t first = 0; first < p.used; first += ADDED_AT_ONCE) {
        float4 its[ADDED_AT_ONCE];
        float weight[ADDED_AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < ADDED_AT_ONCE; i++) {
            if (first + i >= p.used)
                continue;
            its[i] = *reinterpret_cast<const float4*>(y + size_t(first + i) * p.width);
            weight[i] = weights[first + i];
        }
#pragma unroll
        for (uint32_t i = 0; i < ADDED_AT_ONCE; i++) {
            if (first + i >= p.used)
                continue;
            to[0] += weight[i] * its[i].x, to[1] += weight[i] * its[i].y;
            to[2] += weight[i] * its[i].z, to[3] += weight[i] * its[i].w;
        }
    }
}

extern "C" __global__ void __launch_bounds__(EXPERTS_ADD_THREADS_MAX)
    experts_add(const __grid_constant__ ExpertsAddParams p) {
    __shared__ float scratch[EXPERTS_ADD_THREADS_MAX / WARP];
    launch_dependents();
    const uint32_t r = blockIdx.x, first = threadIdx.x * 4, step = blockDim.x * 4;
    // Weights never change: the thread's first ones are loaded while the predecessor writes y.
    float first_norm[4] = {};
    if (p.next_norm)
        read_quad(p.next_norm, first, p.width, first_norm);
    const bool is_row = r < p.step.header().rows;
    grid_dependency_wait();
    if (!is_row)
        return;
    float* x = p.x + size_t(r) * p.width;
    float first_x[4] = {};
    float squares = 0.0f;
    const auto add = [&](float (&to)[4], uint32_t k) {
        read_quad(x, k, p.width, to);
        add_choices(to, p, r, k);
        write_quad(x, k, p.width, to);
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            squares = fmaf(to[c], to[c], squares);
    };
    if (first < p.width)
        add(first_x, first);
#pragma unroll 1
    for (uint32_t k = first + step; k < p.width; k += step) {
        float more[4];
        add(more, k);
    }
    if (p.next_norm)
        pack_next_norm(p.packed, p.factors, r, x, p.next_norm, p.width, p.next_eps, squares,
                       first_x, first_norm, scratch);
}
