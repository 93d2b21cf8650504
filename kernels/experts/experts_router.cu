// experts_router: products[r, e] = sum_k R[e, k] * x[r, k] * norm[k] * rsqrt(mean(x[r]^2) + eps),
// from which the experts of a row are chosen, in f32 throughout.
//
// x: [rows, width] f32, width a multiple of 4; R: [experts, width] F32 or F16 (weight.cuh).
// Grid: (experts / 8, rows / N). A warp takes segments warp, warp + ROUTER_WARPS, … of eight
// experts, for N rows; the factor of the norm multiplies the sums. Lanes, then warps, are added in
// order: the order depends on the width alone.
// The first segments of R are loaded before x exists.
// Bound: latency, of one round trip to memory; bytes of R.
// Oracle: walla_cpu's scalar linear (tests/gpu/experts.rs).
#include "gemm/weight.cuh"
#include "step/step.cuh"

struct ExpertsRouterParams {
    StepRef step;
    const float* x;
    const float* norm;
    float* products;
    WeightRef weight;
    uint32_t width;
    float eps;
};
static_assert(sizeof(ExpertsRouterParams) == 88, "as in params/experts.rs");

constexpr uint32_t ROUTER_WARPS = 8;
constexpr uint32_t ROUTER_EXPERTS = 8; // per block
constexpr uint32_t ROUTER_AHEAD = 2;   // segments of a warp that are loaded before x exists

template <uint32_t TYPE, uint32_t N>
__device__ __forceinline__ void experts_router(const ExpertsRouterParams& p) {
    __shared__ float sums[ROUTER_WARPS][ROUTER_EXPERTS][N];
    __shared__ float squares[ROUTER_WARPS][N];
    launch_dependents();
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, t = lane % 4;
    const uint32_t segments = p.weight.cols / SEGMENT;
    const uint32_t expert = blockIdx.x * ROUTER_EXPERTS + lane / 4;
    LaneNumbers<TYPE> ahead[ROUTER_AHEAD];
#pragma unroll
    for (uint32_t i = 0; i < ROUTER_AHEAD; i++)
        if (warp + i * ROUTER_WARPS < segments)
            ahead[i].load(p.weight, expert, warp + i * ROUTER_WARPS, t);
    grid_dependency_wait();
    const uint32_t rows = p.step.header().rows, first = blockIdx.y * N;
    if (first >= rows)
        return;

    float sum[N] = {}, square[N] = {};
    const auto multiply = [&](const LaneNumbers<TYPE>& numbers, uint32_t segment) {
        float a[32];
        numbers.decode(a);
#pragma unroll
        for (uint32_t i = 0; i < 32; i += 4) {
            const uint32_t k = segment * SEGMENT + column_of(t, i);
            if (k >= p.width)
                continue;
            const float4 norm = __ldg(reinterpret_cast<const float4*>(p.norm + k));
#pragma unroll
            for (uint32_t n = 0; n < N; n++) {
                const uint32_t r = min(first + n, rows - 1);
                const float4 x = *reinterpret_cast<const float4*>(p.x + size_t(r) * p.width + k);
                square[n] = fmaf(x.x, x.x, square[n]), square[n] = fmaf(x.y, x.y, square[n]);
                square[n] = fmaf(x.z, x.z, square[n]), square[n] = fmaf(x.w, x.w, square[n]);
                sum[n] = fmaf(a[i], x.x * norm.x, sum[n]);
                sum[n] = fmaf(a[i + 1], x.y * norm.y, sum[n]);
                sum[n] = fmaf(a[i + 2], x.z * norm.z, sum[n]);
                sum[n] = fmaf(a[i + 3], x.w * norm.w, sum[n]);
            }
        }
    };
#pragma unroll
    for (uint32_t i = 0; i < ROUTER_AHEAD; i++)
        if (warp + i * ROUTER_WARPS < segments)
            multiply(ahead[i], warp + i * ROUTER_WARPS);
#pragma unroll 1
    for (uint32_t s = warp + ROUTER_AHEAD * ROUTER_WARPS; s < segments; s += ROUTER_WARPS) {
        LaneNumbers<TYPE> numbers;
        numbers.load(p.weight, expert, s, t);
        multiply(numbers, s);
    }
#pragma unroll
    for (uint32_t n = 0; n < N; n++) {
#pragma unroll
        for (uint32_t offset = 1; offset < 4; offset *= 2) {
            sum[n] += __shfl_xor_sync(FULL_MASK, sum[n], offset);
            square[n] += __shfl_xor_sync(FULL_MASK, square[n], offset);
        }
        if (t == 0)
            sums[warp][lane / 4][n] = sum[n];
        if (lane == 0)
            squares[warp][n] = square[n];
    }
    __syncthreads();
    const uint32_t e = threadIdx.x % ROUTER_EXPERTS, n = threadIdx.x / ROUTER_EXPERTS;
    const uint32_t at = blockIdx.x * ROUTER_EXPERTS + e;
    if (n >= N || first + n >= rows || at >= p.weight.rows)
        return;
    float product = 0.0f, all = 0.0f;
#pragma unroll
    for (uint32_t w = 0; w < ROUTER_WARPS; w++)
        product += sums[w][e][n], all += squares[w][n];
    const float factor = rsqrtf(all / float(p.width) + p.eps);
    p.products[size_t(first + n) * p.weight.rows + at] = product * factor * p.weight.scale;
}

// Defines the kernel `NAME`.
#define EXPERTS_ROUTER(NAME, TYPE, N)                                \
    extern "C" __global__ void __launch_bounds__(ROUTER_WARPS* WARP) \
        NAME(const __grid_constant__ ExpertsRouterParams p) {        \
        experts_router<TYPE, N>(p);                                  \
    }
EXPERTS_ROUTER(experts_router_f32_1, F32, 1)
EXPERTS_ROUTER(experts_router_f32_2, F32, 2)
EXPERTS_ROUTER(experts_router_f32_4, F32, 4)
EXPERTS_ROUTER(experts_router_f32_8, F32, 8)
EXPERTS_ROUTER(experts_router_f16_1, F16, 1)
EXPERTS_ROUTER(experts_router_f16_2, F16, 2)
EXPERTS_ROUTER(experts_router_f16_4, F16, 4)
EXPERTS_ROUTER(experts_router_f16_8, F16, 8)
