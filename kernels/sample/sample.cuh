// Declarations of the sampler's two kernels: parameters, address of scores, and keys, which order
// tokens by score, and by lower id among equals.
#pragma once

#include "step/step_ring.cuh"
#include "step/step.cuh"

constexpr uint32_t SCAN_THREADS = 256;
constexpr uint32_t DRAW_THREADS = 1024;
constexpr uint32_t PER_THREAD = 16; // tokens per thread of sample_scan: four times four neighbours
constexpr uint32_t CHUNK = SCAN_THREADS * PER_THREAD;
constexpr uint32_t TOP_MAX = 64;

// Statistics of the logits of a warp's tokens.
struct WarpStats {
    float maximum;
    float mass; // sum of exp(logit - maximum): NaN if a logit is NaN or positive infinity
};
static_assert(sizeof(WarpStats) == 8, "as in lower/sample.rs");

struct SampleParams {
    StepRef step;
    ResultRef results;
    const float* logits;
    uint32_t* last_sampled; // [sequences]
    const uint32_t* recent; // [sequences, PENALTY_WINDOW_MAX]
    float* scores;          // [outputs, vocab]
    WarpStats* stats;       // [outputs, warps]
    // [outputs, groups]: each group's largest score, or logit: see is_scored
    float* groups;
    // [outputs, groups]: each group's largest allowed logit; for outputs with candidates
    float* likely;
    const uint32_t* masks; // [masks, words of vocab]: one bit per token
    // number of finished blocks, 0 between steps; null: results are read only after the program has
    // ended
    uint32_t* arrivals;
    StepRingRef step_ring;
    uint32_t vocab;
    // 2^group_bits lanes of sample_scan are a group, such that there are at most DRAW_THREADS
    // groups
    uint32_t group_bits;
};
static_assert(sizeof(SampleParams) == 168, "as in params.rs");

__device__ __forceinline__ uint32_t warps_of(const SampleParams& p) {
    return div_up(p.vocab, CHUNK) * (SCAN_THREADS / WARP);
}
__device__ __forceinline__ uint32_t groups_of(const SampleParams& p) {
    return warps_of(p) * WARP >> p.group_bits;
}
// The words of an output's mask; null if it allows all tokens.
__device__ __forceinline__ const uint32_t* mask_of(const SampleParams& p, const OutputRow& output) {
    return output.mask ? p.masks + size_t(output.mask - 1) * div_up(p.vocab, 32) : nullptr;
}

// First of four neighbouring tokens: the i-th four of a lane, counted over all lanes of all blocks
// of sample_scan.
__device__ __forceinline__ uint32_t four_of(uint32_t lane, uint32_t i) {
    return lane / 8 * (8 * PER_THREAD) + i * 32 + lane % 8 * 4;
}

// Four neighbours of `count` numbers, negative infinity beyond the last.
__device__ __forceinline__ float4 read_four(const float* numbers, uint32_t first, uint32_t count) {
    if (first + 4 <= count && count % 4 == 0)
        return *reinterpret_cast<const float4*>(numbers + first);
    float four[4];
#pragma unroll
    for (uint32_t c = 0; c < 4; c++)
        four[c] = first + c < count ? numbers[first + c] : -INFINITY;
    return make_float4(four[0], four[1], four[2], four[3]);
}

__device__ __forceinline__ void write_four(float* numbers, uint32_t first, uint32_t count,
                                           const float (&four)[4]) {
    if (first + 4 <= count && count % 4 == 0) {
        *reinterpret_cast<float4*>(numbers + first) =
            make_float4(four[0], four[1], four[2], four[3]);
    } else {
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            if (first + c < count)
                numbers[first + c] = four[c];
    }
}

// Whether top-k is small enough to process the kept tokens one by one.
__device__ __forceinline__ bool keeps_few(const OutputRow& output) {
    return output.temperature > 0.0f && output.top_k > 0 && output.top_k <= TOP_MAX;
}
// Whether sample_scan writes all scores. Outputs that change logits or draw from more than a few
// tokens need them; other outputs read the logits.
__device__ __forceinline__ bool is_scored(const OutputRow& output) {
    return output.bias_count > 0 || output.penalty_window > 0 || output.mask > 0 ||
           (output.temperature > 0.0f && !keeps_few(output));
}
// Divisor of the logits. Greedy sampling uses the logits themselves.
__device__ __forceinline__ float divisor_of(const OutputRow& output) {
    return output.temperature > 0.0f ? output.temperature : 1.0f;
}

// A float's bits as an unsigned integer with the same order.
__device__ __forceinline__ uint32_t monotone_of(float value) {
    const uint32_t bits = __float_as_uint(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float float_of(uint32_t monotone) {
    return __uint_as_float(monotone & 0x80000000u ? monotone & 0x7fffffffu : ~monotone);
}

__device__ __forceinline__ uint64_t key_of(float value, uint32_t token) {
    // Minus zero equals zero: their keys may differ by id alone.
    return uint64_t(monotone_of(value == 0.0f ? 0.0f : value)) << 32 | uint32_t(~token);
}
__device__ __forceinline__ uint32_t token_of(uint64_t key) {
    return ~uint32_t(key);
}
__device__ __forceinline__ float value_of(uint64_t key) {
    return float_of(uint32_t(key >> 32));
}

// Scores of all tokens that may be drawn or listed.
struct Scores {
    const float* numbers; // [vocab]
    float divisor;
    const uint32_t* mask; // or null
    uint32_t vocab;

    // Tokens without probability have key 0: forbidden tokens and NaN.
    __device__ __forceinline__ uint64_t key(float number, uint32_t token) const {
        const bool allowed = number > -INFINITY && (!mask || mask[token / 32] >> token % 32 & 1u);
        return allowed ? key_of(number / divisor, token) : 0;
    }
    __device__ __forceinline__ uint64_t key(uint32_t token) const {
        return key(numbers[token], token);
    }
};

// Largest and smallest of a warp's values; every lane gets it.
__device__ __forceinline__ uint32_t warp_max_bits(uint32_t bits) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(FULL_MASK, bits);
#else
    for (int offset = 16; offset > 0; offset /= 2)
        bits = max(bits, __shfl_xor_sync(FULL_MASK, bits, offset));
    return bits;
#endif
}
__device__ __forceinline__ uint32_t warp_min_bits(uint32_t bits) {
    return ~warp_max_bits(~bits);
}
__device__ __forceinline__ uint64_t key_max(uint64_t key) {
    const uint32_t upper = uint32_t(key >> 32), most = warp_max_bits(upper);
    return uint64_t(most) << 32 | warp_max_bits(upper == most ? uint32_t(key) : 0);
}
