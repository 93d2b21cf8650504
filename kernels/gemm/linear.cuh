// linear: out[r, m] (+)= sum_k W[m, k] * n(x[r])[k] (+ bias[m]), n the RMS norm or the identity, in
// f32 throughout.
// mode GATE: out[r, m] = activation(G n(x[r]))[m] * (U n(x[r]))[m], with G and U the first two
// parts.
//
// x: [rows, cols] f32; W: [rows of the part, cols]; out: f32 with its own stride. Up to three
// matrices of one type (query, key and value) are parts of one launch. With `by_output` row r is
// the row that output r names (the head).
// Grid: (pairs of W's rows / WARPS, rows of x / N). A warp computes two rows of W for N rows of x;
// lane l takes units l, l + 32, … in order, then a butterfly adds the lanes: the order depends on
// the width alone.
// Bound: memory at N = 1 (bytes of W), then shared-memory reads.
// Oracle: walla_cpu's scalar linear (tests/gpu/parity.rs).
#pragma once

#include "step/step.cuh"
#include "gemm/weight.cuh"

struct MatrixPart {
    WeightRef weight;
    const float* bias; // or null
    float* out;
    uint32_t out_stride;
    uint32_t first_pair; // first of the grid's pairs
};
static_assert(sizeof(MatrixPart) == 48, "as in params.rs");

enum LinearMode : uint32_t { STORE, ADD, GATE_SILU, GATE_GELU };

struct LinearParams {
    StepRef step;
    const float* x;
    const float* norm; // weight, or null
    uint32_t x_stride;
    uint32_t width; // numbers per row of x; the matrices' columns are padded beyond
    float eps;
    uint32_t mode;
    uint32_t by_output;
    uint32_t parts;
    MatrixPart part[3];
};
static_assert(sizeof(LinearParams) == 216, "as in params.rs");

constexpr uint32_t LINEAR_THREADS = 256;
constexpr uint32_t LINEAR_WARPS = LINEAR_THREADS / WARP;
// Columns staged at once: a multiple of a warp's widest stride (32 lanes * 32 numbers), so staging
// does not change a lane's share.
constexpr uint32_t LINEAR_COLS = 2048;
// Padding: 32 staged numbers occupy 36, so that lanes 32 numbers apart read different banks.
__host__ __device__ constexpr uint32_t padded(uint32_t k) {
    return k + k / 32 * 4;
}

__device__ __forceinline__ float activate(float gate, uint32_t mode) {
    if (mode == GATE_SILU)
        return __fdividef(gate, 1.0f + __expf(-gate));
    const float inner = 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate);
    return 0.5f * gate * (1.0f + tanhf(inner));
}

// rsqrt(mean(x^2) + eps) of one row; every thread gets it.
__device__ __forceinline__ float norm_factor(const float* x, uint32_t width, float eps,
                                             float* scratch) {
    float squares = 0.0f;
    for (uint32_t k = threadIdx.x; k < width; k += LINEAR_THREADS)
        squares = fmaf(x[k], x[k], squares);
    return rsqrtf(block_sum<LINEAR_THREADS>(squares, scratch) / float(width) + eps);
}

template <uint32_t TYPE, uint32_t N>
__device__ __forceinline__ void linear(const LinearParams& p) {
    extern __shared__ __align__(16) float staged[]; // [N][padded(LINEAR_COLS)]
    __shared__ float scratch[LINEAR_WARPS];
    constexpr uint32_t stride = padded(LINEAR_COLS);
    launch_dependents();
    grid_dependency_wait();
    const StepHeader& header = p.step.header();
    const uint32_t rows = p.by_output ? header.outputs : header.rows;
    const uint32_t first = blockIdx.y * N;
    if (first >= rows)
        return;

    const float* x[N];
    float factor[N];
#pragma unroll
    for (uint32_t n = 0; n < N; n++) {
        const uint32_t r = min(first + n, rows - 1);
        x[n] = p.x + size_t(p.by_output ? p.step.output(r).row : r) * p.x_stride;
        factor[n] = p.norm ? norm_factor(x[n], p.width, p.eps, scratch) : 1.0f;
    }

    // The two rows of W that this warp computes.
    const uint32_t pair = blockIdx.x * LINEAR_WARPS + threadIdx.x / WARP;
    const bool gated = p.mode >= GATE_SILU;
    uint32_t s = 0;
    while (s + 1 < p.parts && !gated && pair >= p.part[s + 1].first_pair)
        s++;
    const MatrixPart& part = p.part[s];
    const uint32_t m0 = gated ? pair : 2 * (pair - part.first_pair);
    const bool is_valid = m0 < part.weight.rows;
    const bool is_valid1 = gated ? is_valid : m0 + 1 < part.weight.rows;
    const WeightRef& w0 = part.weight;
    const WeightRef& w1 = gated ? p.part[1].weight : part.weight;
    const uint32_t m1 = gated ? m0 : (is_valid1 ? m0 + 1 : m0);

    float sum[2][N] = {};
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t cols = w0.cols;
    for (uint32_t from = 0; from < cols; from += LINEAR_COLS) {
        const uint32_t count = min(LINEAR_COLS, cols - from);
        __syncthreads();
        for (uint32_t k = threadIdx.x; k < count; k += LINEAR_THREADS) {
            const bool inside = from + k < p.width;
            const float weight = p.norm && inside ? p.norm[from + k] : 1.0f;
#pragma unroll
            for (uint32_t n = 0; n < N; n++)
                staged[n * stride + padded(k)] =
                    inside ? x[n][from + k] * factor[n] * weight : 0.0f;
        }
        __syncthreads();
        if (!is_valid)
            continue;
        for (uint32_t u = lane; u * 32 < count; u += WARP) {
            LaneNumbers<TYPE> share0, share1;
            const uint32_t share = from / 32 + u;
            share0.load(w0, m0, share / 4, u % 4);
            share1.load(w1, m1, share / 4, u % 4);
            float a[32], b[32];
            share0.decode(a);
            share1.decode(b);
            const float* at = staged + padded(u / 4 * SEGMENT);
#pragma unroll
            for (uint32_t n = 0; n < N; n++) {
#pragma unroll
                for (uint32_t i = 0; i < 32; i += 4) {
                    const float4 v = *reinterpret_cast<const float4*>(at + n * stride +
                                                                      padded(column_of(u % 4, i)));
                    sum[0][n] = fmaf(a[i], v.x, sum[0][n]);
                    sum[1][n] = fmaf(b[i], v.x, sum[1][n]);
                    sum[0][n] = fmaf(a[i + 1], v.y, sum[0][n]);
                    sum[1][n] = fmaf(b[i + 1], v.y, sum[1][n]);
                    sum[0][n] = fmaf(a[i + 2], v.z, sum[0][n]);
                    sum[1][n] = fmaf(b[i + 2], v.z, sum[1][n]);
                    sum[0][n] = fmaf(a[i + 3], v.w, sum[0][n]);
                    sum[1][n] = fmaf(b[i + 3], v.w, sum[1][n]);
                }
            }
        }
    }
    if (!is_valid)
        return;

#pragma unroll
    for (uint32_t n = 0; n < N; n++) {
        float y0 = warp_sum(sum[0][n]);
        float y1 = warp_sum(sum[1][n]);
        if (lane != 0 || first + n >= rows)
            continue;
        const float* bias1 = gated ? p.part[1].bias : part.bias;
        if (part.bias)
            y0 += part.bias[m0];
        if (bias1)
            y1 += bias1[m1];
        float* out = part.out + size_t(first + n) * part.out_stride;
        if (gated) {
            out[m0] = activate(y0, p.mode) * y1;
        } else if (p.mode == ADD) {
            out[m0] += y0;
            if (is_valid1)
                out[m0 + 1] += y1;
        } else {
            out[m0] = y0;
            if (is_valid1)
                out[m0 + 1] = y1;
        }
    }
}

// Defines the kernel `NAME`.
#define LINEAR(NAME, TYPE, N)                                    \
    extern "C" __global__ void __launch_bounds__(LINEAR_THREADS) \
        NAME(const __grid_constant__ LinearParams p) {           \
        linear<TYPE, N>(p);                                      \
    }
