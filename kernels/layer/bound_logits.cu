// bound_logits: logits[o] = cap * tanh(logits[o] / cap), then negative infinity for up to
// SUPPRESSED_MAX tokens.
// logits: [outputs, vocab] f32.
// Grid: (vocab over 1,024, outputs). Bound: memory, 8 bytes per logit.
// Oracle: walla_cpu's scalar head (tests/gpu/layer_inputs.rs).
#include "layer/quads.cuh"
#include "step/step.cuh"

constexpr uint32_t SUPPRESSED_MAX = 64;

struct BoundLogitsParams {
    StepRef step;
    float* logits;
    uint32_t vocab;
    float cap; // 0: no bound
    uint32_t count;
    uint32_t reserved;
    uint32_t suppressed[SUPPRESSED_MAX];
};
static_assert(sizeof(BoundLogitsParams) == 312, "as in params.rs");

constexpr uint32_t BOUND_THREADS = 256;
constexpr uint32_t BOUND_LOGITS = 4 * BOUND_THREADS; // of a block

extern "C" __global__ void __launch_bounds__(BOUND_THREADS)
    bound_logits(const __grid_constant__ BoundLogitsParams p) {
    launch_dependents();
    const uint32_t first = blockIdx.x * BOUND_LOGITS;
    const bool is_output = blockIdx.y < p.step.header().outputs;
    grid_dependency_wait();
    if (!is_output)
        return;
    float* logits = p.logits + size_t(blockIdx.y) * p.vocab;
    if (p.cap > 0.0f) {
        float values[4];
        read_quad(logits, first + 4 * threadIdx.x, p.vocab, values);
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            values[c] = p.cap * tanhf(values[c] / p.cap);
        write_quad(logits, first + 4 * threadIdx.x, p.vocab, values);
    }
    __syncthreads();
    if (threadIdx.x >= p.count)
        return;
    const uint32_t token = p.suppressed[threadIdx.x];
    if (token >= first && token < min(first + BOUND_LOGITS, p.vocab))
        logits[token] = -INFINITY;
}
