// read_words: reads `words` words of 16 bytes once and keeps nothing, to measure what the memory gives.
// words: [words] of 16 bytes. sink: one word, written only if the sum of what was read is an unlikely number: the compiler cannot know.
// Grid: any; a block takes every gridDim.x-th stretch of READS * blockDim.x words, so that neighbouring threads read neighbouring words.
// Memory-bound: 16 * words bytes. Loads are plain ones: what is read last stays in the second cache, so that twice its size takes all else out of it.
#include "walla.cuh"

constexpr uint32_t READS = 8;  // in flight a thread: 128 bytes, times 2,048 threads a multiprocessor

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
        for (uint32_t i = 0; i < READS; i++) sum += word[i].x ^ word[i].y ^ word[i].z ^ word[i].w;
    }
    wait_for_predecessors();
    let_successors_start();
    if (sum == 0x7fa57a57u) *p.sink = sum;
}
