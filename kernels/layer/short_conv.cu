// short_conv: u = b * v; out[r] = c * sum_t kernel[:, t] * u(p - (taps - 1) + t), causal and per
// channel; then short_conv_state stores the inputs of each sequence's last taps - 1 tokens.
// products: [rows, 3 * width] f32: b, c, v; kernel: [width, taps]; state: [sequences, taps - 1,
// width], oldest first. taps <= 8.
// An earlier u is read from a row of this step, otherwise from the state, and is zero before
// position 0.
// Grid: (width / 256, rows).
// Bound: memory, 16 bytes per number.
// Oracle: walla_cpu's scalar short_conv (tests/gpu/parity.rs,
// every_feature_agrees_with_the_oracle).
#include "step/step.cuh"

struct ShortConvParams {
    StepRef step;
    const float* products;
    const float* kernel;
    float* state;
    float* out;
    uint32_t width;
    uint32_t taps;
};
static_assert(sizeof(ShortConvParams) == 72, "as in params.rs");

constexpr uint32_t TAPS_MAX = 8;

// u(p - back) of the row's sequence, for `back` = 0 .. taps - 1; only the first `wanted` are set.
__device__ __forceinline__ void inputs(const ShortConvParams& p, uint32_t r, uint32_t i,
                                       uint32_t wanted, float (&u)[TAPS_MAX]) {
    const StepRow row = p.step.row(r);
    int32_t at = int32_t(r);
    uint32_t in_step = 0;
#pragma unroll
    for (uint32_t back = 0; back < TAPS_MAX; back++) {
        u[back] = 0.0f;
        if (back >= wanted || back > row.position)
            continue;
        if (at >= 0) {
            const float* products = p.products + size_t(at) * 3 * p.width;
            u[back] = products[i] * products[2 * p.width + i];
            at = p.step.row(uint32_t(at)).previous;
            in_step++;
        } else {
            const uint32_t entry = p.taps - 2 - (back - in_step);
            u[back] = p.state[(size_t(row.sequence) * (p.taps - 1) + entry) * p.width + i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    short_conv(const __grid_constant__ ShortConvParams p) {
    launch_dependents();
    grid_dependency_wait();
    const uint32_t r = blockIdx.y;
    const uint32_t i = blockIdx.x * 256 + threadIdx.x;
    if (r >= p.step.header().rows || i >= p.width)
        return;
    float u[TAPS_MAX];
    inputs(p, r, i, p.taps, u);
    float sum = 0.0f;
#pragma unroll
    for (uint32_t back = TAPS_MAX; back-- > 0;)
        if (back < p.taps)
            sum = fmaf(p.kernel[size_t(i) * p.taps + p.taps - 1 - back], u[back], sum);
    p.out[size_t(r) * p.width + i] = p.products[(size_t(r) * 3 + 1) * p.width + i] * sum;
}

extern "C" __global__ void __launch_bounds__(256)
    short_conv_state(const __grid_constant__ ShortConvParams p) {
    launch_dependents();
    grid_dependency_wait();
    const uint32_t r = blockIdx.y;
    const uint32_t i = blockIdx.x * 256 + threadIdx.x;
    if (r >= p.step.header().rows || i >= p.width)
        return;
    const StepRow row = p.step.row(r);
    if (!(row.flags & ROW_LAST_OF_SEQUENCE))
        return;
    // All reads precede all writes: one thread owns a channel of a sequence.
    float u[TAPS_MAX];
    inputs(p, r, i, p.taps - 1, u);
#pragma unroll
    for (uint32_t back = 0; back < TAPS_MAX; back++)
        if (back + 1 < p.taps)
            p.state[(size_t(row.sequence) * (p.taps - 1) + p.taps - 2 - back) * p.width + i] =
                u[back];
}
