// read_words: reads `words` words of 16 bytes once and discards them, to measure memory bandwidth.
// words: [words] of 16 bytes. sink: one word, written only if the sum equals an unlikely number, so
// that the compiler cannot remove the loads.
// Grid: any; a block takes every gridDim.x-th stretch of READS * blockDim.x words, so that
// neighbouring threads read neighbouring words.
// Bound: memory, 16 * words bytes. Loads have no cache hint: the last words read stay in L2, so
// reading twice the L2 size evicts everything else.
// Oracle: none; the result is the time.
#include "common/walla.cuh"

// in flight per thread: 128 bytes, times 2,048 threads per multiprocessor
constexpr uint32_t READS = 8;

struct ReadParams {
    const uint4* words;
    uint32_t* sink;
    uint64_t count;
};
static_assert(sizeof(ReadParams) == 24, "as in params.rs");

extern "C" __global__ void __launch_bounds__(256) read_words(const ReadParams p) {
    uint32_t sum = 0;
    const uint64_t stretch = (uint64_t)READS * blockDim.x;
    for (uint64_t at = blockIdx.x * stretch; at < p.count; at += gridDim.x * stretch) {
        uint4 word[READS];
#pragma unroll
        for (uint32_t i = 0; i < READS; i++) {
            const uint64_t index = at + i * blockDim.x + threadIdx.x;
            word[i] = index < p.count ? p.words[index] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (uint32_t i = 0; i < READS; i++)
            sum += word[i].x ^ word[i].y ^ word[i].z ^ word[i].w;
    }
    grid_dependency_wait();
    launch_dependents();
    if (sum == 0x7fa57a57u)
        *p.sink = sum;
}
