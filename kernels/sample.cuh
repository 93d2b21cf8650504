// What the sampler's two kernels share: parameters, and keys, which order tokens by score, the lower id first of equals.
#pragma once

#include "step.cuh"

constexpr uint32_t SCAN_THREADS = 256;
constexpr uint32_t DRAW_THREADS = 1024;
constexpr uint32_t CHUNK = 4096;
constexpr uint32_t PER_THREAD = CHUNK / SCAN_THREADS;
constexpr uint32_t TOP_MAX = 64;

struct ChunkStats {
    float maximum;  // of the logits alone
    float mass;     // sum of exp(logit - maximum)
    uint32_t bad;   // some logit is NaN or positive infinity
    uint32_t reserved;
};
static_assert(sizeof(ChunkStats) == 16, "as in lower.rs");

struct SampleParams {
    StepRef step;
    ResultRef results;
    const float* logits;
    uint32_t* last_sampled;  // [sequences]
    const uint32_t* recent;  // [sequences, PENALTY_WINDOW_MAX]
    float* scores;           // [outputs, vocab]
    ChunkStats* stats;       // [outputs, chunks]
    uint64_t* top;           // [outputs, chunks, TOP_MAX] by score
    uint64_t* likely;        // [outputs, chunks, CANDIDATES_MAX] by logit
    const uint32_t* masks;   // [masks, words of vocab]: a bit a token
    uint32_t* arrivals;      // blocks that are done, 0 between steps; null: nobody reads the results before the program has ended
    uint32_t vocab;
    uint32_t chunks;
};
static_assert(sizeof(SampleParams) == 136, "as in params.rs");

__device__ __forceinline__ uint64_t key_of(float value, uint32_t token) {
    // Minus zero and zero are equal: they must differ by id alone.
    const uint32_t bits = __float_as_uint(value == 0.0f ? 0.0f : value);
    const uint32_t monotone = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return uint64_t(monotone) << 32 | uint32_t(~token);
}
__device__ __forceinline__ uint32_t token_of(uint64_t key) { return ~uint32_t(key); }
__device__ __forceinline__ float value_of(uint64_t key) {
    const uint32_t monotone = uint32_t(key >> 32);
    return __uint_as_float(monotone & 0x80000000u ? monotone & 0x7fffffffu : ~monotone);
}

__device__ __forceinline__ uint64_t key_max(uint64_t key) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const uint64_t other = __shfl_xor_sync(FULL_MASK, key, offset);
        key = other > key ? other : key;
    }
    return key;
}
