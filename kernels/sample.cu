// sample (greedy only): the largest logit of each output that asks for a token, the lower id of equals.
// logits: [outputs, vocab] f32. One block an output. Oracle: walla_cpu's scalar sampler.
#include "step.cuh"

struct SampleParams {
    StepRef step;
    ResultRef results;
    const float* logits;
    uint32_t* last_sampled;  // [sequences]
    uint32_t vocab;
    uint32_t reserved;
};
static_assert(sizeof(SampleParams) == 80, "as in params.rs");

constexpr uint32_t SAMPLE_THREADS = 1024;

extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS) sample(const __grid_constant__ SampleParams p) {
    __shared__ float best_value[SAMPLE_THREADS / WARP];
    __shared__ uint32_t best_token[SAMPLE_THREADS / WARP];
    __shared__ float scratch[SAMPLE_THREADS / WARP];
    let_successors_start();
    wait_for_predecessors();
    const StepHeader& header = p.step.header();
    const uint32_t o = blockIdx.x;
    if (o == 0 && threadIdx.x == 0) {
        ResultHeader& out = p.results.header(header.ring_slot);
        out.step = header.step;
        out.outputs = header.outputs;
    }
    if (o >= header.outputs) return;
    const OutputRow& output = p.step.output(o);
    if (!(output.flags & OUTPUT_SAMPLE)) return;
    const float* logits = p.logits + size_t(o) * p.vocab;
    float value = -INFINITY;
    uint32_t token = 0;
    for (uint32_t t = threadIdx.x; t < p.vocab; t += SAMPLE_THREADS)
        if (logits[t] > value) value = logits[t], token = t;
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(FULL_MASK, value, offset);
        const uint32_t other_token = __shfl_xor_sync(FULL_MASK, token, offset);
        if (other > value || (other == value && other_token < token)) value = other, token = other_token;
    }
    if (threadIdx.x % WARP == 0) best_value[threadIdx.x / WARP] = value, best_token[threadIdx.x / WARP] = token;
    __syncthreads();
    for (uint32_t w = 0; w < SAMPLE_THREADS / WARP; w++)
        if (best_value[w] > value || (best_value[w] == value && best_token[w] < token))
            value = best_value[w], token = best_token[w];
    float mass = 0.0f;
    for (uint32_t t = threadIdx.x; t < p.vocab; t += SAMPLE_THREADS) mass += expf(logits[t] - value);
    mass = block_sum<SAMPLE_THREADS>(mass, scratch);
    if (threadIdx.x == 0) {
        ResultRow& row = p.results.row(header.ring_slot, o);
        row.token = token;
        row.flags = RESULT_SAMPLED;
        row.log_probability = -logf(mass);
        row.candidates = 0;
        p.last_sampled[output.sequence] = token;
    }
}
