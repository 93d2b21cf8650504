// pack: packed[r] = f16(scale * x[r] * norm * factor(r)) in the operand layout
// (packed_activations.cuh), factor(r) = rsqrt(mean(x[r]^2) + eps); without `norm`, f16(scale *
// x[r]).
// x: [rows, width] f32; factors: [rows].
// Grid: one block per row.
// Bound: memory, 6 bytes per number.
// Oracle: walla_cpu's scalar norm (tests/gpu/parity.rs).
#include "gemm/packed_activations.cuh"

struct PackParams {
    const float* x;
    const float* norm; // weight, or null
    PackedRef packed;
    float* factors; // [rows], or null
    uint32_t width;
    float eps;
};
static_assert(sizeof(PackParams) == 56, "as in params.rs");

constexpr uint32_t PACK_THREADS = 256;

// The numbers that lane i % 4 owns of block i / 4 of a row.
__device__ __forceinline__ void read_owned(const float* x, uint32_t i, uint32_t width,
                                           float (&out)[8]) {
    const uint32_t k = i / 4 * 32 + i % 4 * 4;
    if (width % 4 == 0 && k + 20 <= width) {
        const float4 a = *reinterpret_cast<const float4*>(x + k);
        const float4 b = *reinterpret_cast<const float4*>(x + k + 16);
        out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
        out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    } else {
#pragma unroll
        for (uint32_t n = 0; n < 8; n++) {
            const uint32_t at = k + n / 4 * 16 + n % 4;
            out[n] = at < width ? x[at] : 0.0f;
        }
    }
}

extern "C" __global__ void __launch_bounds__(PACK_THREADS)
    pack(const __grid_constant__ PackParams p) {
    __shared__ float scratch[PACK_THREADS / WARP];
    launch_dependents();
    // Weights never change: the thread's first ones are loaded while the predecessor writes x.
    float first_weights[8];
    if (p.norm)
        read_owned(p.norm, threadIdx.x, p.width, first_weights);
    grid_dependency_wait();
    const uint32_t r = blockIdx.x;
    const float* x = p.x + size_t(r) * p.width;
    const uint32_t shares = p.packed.segments * 16;
    float first[8];
    read_owned(x, threadIdx.x, p.width, first);
    float factor = 1.0f;
    if (p.norm) {
        float squares = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            squares = fmaf(first[i], first[i], squares);
        for (uint32_t share = PACK_THREADS + threadIdx.x; share < shares; share += PACK_THREADS) {
            float more[8];
            read_owned(x, share, p.width, more);
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                squares = fmaf(more[i], more[i], squares);
        }
        factor = rsqrtf(block_sum<PACK_THREADS>(squares, scratch) / float(p.width) + p.eps);
    }
    if (p.factors && threadIdx.x == 0)
        p.factors[r] = factor;
    for (uint32_t share = threadIdx.x; share < shares; share += PACK_THREADS) {
        float values[8], weights[8];
        if (share == threadIdx.x) {
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                values[i] = first[i], weights[i] = first_weights[i];
        } else {
            read_owned(x, share, p.width, values);
            if (p.norm)
                read_owned(p.norm, share, p.width, weights);
        }
        if (p.norm) {
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                // Numbers beyond the width stay zero if the factor is NaN: the next kernel that
                // packs this row does not write them.
                const uint32_t at = share / 4 * 32 + share % 4 * 4 + i / 4 * 16 + i % 4;
                values[i] = at < p.width ? values[i] * factor * weights[i] : 0.0f;
            }
        }
        const uint32_t k = share / 4 * 32 + share % 4 * 4;
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const float four[4] = {values[4 * half], values[4 * half + 1], values[4 * half + 2],
                                   values[4 * half + 3]};
            store_packed(p.packed, r, k + 16 * half, four);
        }
    }
}
