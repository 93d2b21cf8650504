// Cuts of top-k and top-p over all scores, and the random numbers of a draw.
#pragma once

#include "sample/sample_top.cuh"

// Ten rounds of Philox4x32 (walla_device's philox.rs): the first word for counter
// (position, token, 0, 0).
__device__ __forceinline__ uint32_t philox(uint32_t position, uint32_t token, uint32_t key0,
                                           uint32_t key1) {
    uint32_t c0 = position, c1 = token, c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ key0;
        c1 = low1;
        c2 = high0 ^ c3 ^ key1;
        c3 = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c0;
}

struct Draw {
    const OutputRow& output;
    const Scores& scores;
    float top; // the largest score

    // Key of the draw (Gumbel-max): the largest wins, the lower id among equals.
    __device__ uint64_t gumbel(uint64_t key) const {
        const uint32_t token = token_of(key);
        const uint32_t word = philox(output.position + 1, token, output.seed[0], output.seed[1]);
        const float u = (float(word >> 9) + 0.5f) / 8388608.0f;
        return key_of(value_of(key) - logf(-logf(u)), token);
    }

    __device__ bool likely(uint64_t key) const { return expf(value_of(key) - top) >= output.min_p; }

    __device__ uint64_t weight(uint64_t key) const { return weight_of(key, top); }
    // Probability in units of 2^-40 of the most probable token's: integers, whose sums do not
    // depend on order.
    static __device__ uint64_t weight_of(uint64_t key, float top) {
        return uint64_t(double(expf(value_of(key) - top)) * 1099511627776.0);
    }
};

// Largest key of a block.
__device__ uint64_t block_max(uint64_t key) {
    static_assert(DRAW_THREADS / WARP == WARP, "one warp merges what all warps found");
    __shared__ uint64_t scratch[WARP];
    key = key_max(key);
    if (threadIdx.x % WARP == 0)
        scratch[threadIdx.x / WARP] = key;
    __syncthreads();
    return key_max(scratch[threadIdx.x % WARP]);
}

// Lowest key that top-p keeps of the keys from `floor_` on, by narrowing.
__device__ uint64_t lowest_by_weight(const Draw& draw, uint64_t floor_, float top_p) {
    __shared__ unsigned long long total;
    if (threadIdx.x == 0)
        total = 0;
    __syncthreads();
    uint64_t sum = 0;
    for (uint32_t t = threadIdx.x; t < draw.scores.vocab; t += DRAW_THREADS) {
        const uint64_t key = draw.scores.key(t);
        if (key && key >= floor_)
            sum += draw.weight(key);
    }
    atomicAdd(&total, sum);
    __syncthreads();
    const uint64_t wanted = uint64_t(ceil(double(top_p) * double(total)));
    return lowest_kept(
        draw.scores, floor_, wanted > 0 ? wanted : 1,
        [top = draw.top](uint64_t key) -> unsigned long long { return Draw::weight_of(key, top); });
}

// Histogram of scores below the largest, in bins 1/64 wide up to DEPTH, then 1/16: counts and
// weights. The last bin has all lower scores, 28 below the largest, where weights are zero.
constexpr uint32_t BINS = 1024;
constexpr uint32_t BIN_MAX = 1024; // tokens of a bin that can be processed one by one
// Limbs of 11 bits: sums of 2^21 tokens fit 32 bits, and sample_scan's groups allow 2^19 at most.
// Four limbs hold the weight's 41 bits.
constexpr uint32_t LIMBS = 4, LIMB_BITS = 11;
struct Bins {
    unsigned long long weights[BINS];
    uint32_t counts[BINS];
    uint32_t limbs[LIMBS][BINS]; // of the weights' sums: shared-memory atomics are 32 bits wide
    uint64_t keys[BIN_MAX];
    uint64_t in_order[BIN_MAX];
    unsigned long long weights_in_order[BIN_MAX];
    unsigned long long total;
    uint32_t bin, found;
    unsigned long long before;
    uint64_t lowest;
};
static_assert(sizeof(Bins) == 53280, "as in lower/sample.rs");

// Monotone: a larger key never falls into a later bin, because differences and products round
// monotonically.
__device__ __forceinline__ uint32_t bin_of(float score, float top) {
    constexpr float DEPTH = 12.0f;
    const float depth = top - score;
    if (depth < DEPTH)
        return uint32_t(depth * 64.0f);
    const float place = DEPTH * 64.0f + (depth - DEPTH) * 16.0f;
    return place < float(BINS - 1) ? uint32_t(place) : BINS - 1;
}

// Sum of a list's first `end` entries; every thread of the block gets it.
__device__ unsigned long long sum_of(Bins& b, const unsigned long long* list, uint32_t end) {
    unsigned long long sum = 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < end; i += DRAW_THREADS)
        sum += list[i];
    if (threadIdx.x == 0)
        b.total = 0;
    __syncthreads();
    if (sum)
        atomicAdd(&b.total, sum);
    __syncthreads();
    sum = b.total;
    __syncthreads();
    return sum;
}

// Finds the bin in which a list's sum reaches `need`, or the last bin, and the sum before it.
template <typename Number>
__device__ void find_bin(Bins& b, const Number* list, unsigned long long need) {
    if (threadIdx.x < WARP) {
        constexpr uint32_t EACH = BINS / WARP;
        const uint32_t lane = threadIdx.x;
        unsigned long long own = 0;
        for (uint32_t i = 0; i < EACH; i++)
            own += list[lane * EACH + i];
        const unsigned long long up_to = warp_prefix_sum(own);
        const uint32_t reached = __ballot_sync(FULL_MASK, up_to >= need);
        const uint32_t which = reached ? __ffs(reached) - 1 : WARP - 1;
        if (lane == which) {
            unsigned long long before = up_to - own;
            uint32_t bin = lane * EACH;
#pragma unroll 1
            for (; bin + 1 < (lane + 1) * EACH && before + list[bin] < need; bin++)
                before += list[bin];
            b.bin = bin;
            b.before = before;
        }
    }
    __syncthreads();
}

// Sorts the tokens of a bin into `in_order`, and their weights into `weights_in_order`; false if
// there are too many. One pass over the scores.
__device__ bool refine_bin(Bins& b, const Draw& draw, uint32_t bin) {
    if (bin == BINS - 1)
        return false;
    const float* scores = draw.scores.numbers;
    const uint32_t vocab = draw.scores.vocab;
    if (threadIdx.x == 0)
        b.found = 0;
    __syncthreads();
#pragma unroll 8
    for (uint32_t t = threadIdx.x; t < vocab; t += DRAW_THREADS) {
        const float score = scores[t];
        if (bin_of(score, draw.top) != bin)
            continue;
        const uint32_t at = atomicAdd(&b.found, 1);
        if (at < BIN_MAX)
            b.keys[at] = key_of(score, t);
    }
    __syncthreads();
    const uint32_t count = b.found;
    if (count > BIN_MAX)
        return false;
    if (threadIdx.x < count) {
        const uint64_t key = b.keys[threadIdx.x];
        uint32_t larger = 0;
        for (uint32_t i = 0; i < count; i++)
            larger += b.keys[i] > key;
        b.in_order[larger] = key;
        b.weights_in_order[larger] = draw.weight(key);
    }
    __syncthreads();
    return true;
}

// Lowest key that top-k (if larger than TOP_MAX) and top-p keep.
__device__ uint64_t cut(const Draw& draw) {
    extern __shared__ __align__(16) uint8_t dynamic[];
    Bins& b = *reinterpret_cast<Bins*>(dynamic);
    const OutputRow& output = draw.output;
    const float* scores = draw.scores.numbers;
    const uint32_t vocab = draw.scores.vocab;
    const bool by_count = output.top_k > 0 && output.top_k < vocab, by_weight = output.top_p < 1.0f;
    if (!by_count && !by_weight)
        return 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < BINS; i += DRAW_THREADS) {
        b.counts[i] = 0;
#pragma unroll
        for (uint32_t limb = 0; limb < LIMBS; limb++)
            b.limbs[limb][i] = 0;
    }
    __syncthreads();
#pragma unroll 8
    for (uint32_t t = threadIdx.x; t < vocab; t += DRAW_THREADS) {
        const float score = scores[t];
        const uint32_t bin = bin_of(score, draw.top);
        if (by_count)
            atomicAdd(&b.counts[bin], 1);
        if (!by_weight || bin == BINS - 1)
            continue; // weights are zero there
        const uint64_t weight = draw.weight(key_of(score, t));
#pragma unroll
        for (uint32_t limb = 0; limb < LIMBS; limb++) {
            const uint64_t rest = weight >> limb * LIMB_BITS;
            if (rest)
                atomicAdd(&b.limbs[limb][bin], uint32_t(rest) & (1u << LIMB_BITS) - 1);
        }
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < BINS; i += DRAW_THREADS)
        b.weights[i] = b.limbs[0][i] + (uint64_t(b.limbs[1][i]) << LIMB_BITS) +
                       (uint64_t(b.limbs[2][i]) << 2 * LIMB_BITS) +
                       (uint64_t(b.limbs[3][i]) << 3 * LIMB_BITS);
    __syncthreads();
    uint64_t lowest = 0;
    uint32_t last = BINS;           // bin of the cut by count, whose tokens are sorted
    unsigned long long in_last = 0; // weight of its kept tokens
    if (by_count) {
        find_bin(b, b.counts, output.top_k);
        last = b.bin;
        const uint32_t kept = output.top_k - uint32_t(b.before);
        if (refine_bin(b, draw, last)) {
            lowest = b.in_order[kept - 1];
            in_last = sum_of(b, b.weights_in_order, kept);
        } else {
            lowest = lowest_by_count(draw.scores, output.top_k);
            last = BINS;
            if (by_weight)
                return lowest_by_weight(draw, lowest, output.top_p);
        }
    }
    if (!by_weight)
        return lowest;
    const unsigned long long total = sum_of(b, b.weights, min(last, BINS)) + in_last;
    const unsigned long long wanted =
        max(1ull, (unsigned long long)ceil(double(output.top_p) * double(total)));
    if (threadIdx.x == 0 && last < BINS)
        b.weights[last] = in_last;
    __syncthreads();
    find_bin(b, b.weights, min(wanted, total));
    const uint32_t bin = b.bin;
    if (bin != last && !refine_bin(b, draw, bin))
        return lowest_by_weight(draw, lowest, output.top_p);
    if (threadIdx.x == 0) {
        unsigned long long sum = b.before;
        uint32_t i = 0;
#pragma unroll 1
        for (; i + 1 < b.found; i++) {
            sum += b.weights_in_order[i];
            if (sum >= wanted)
                break;
        }
        b.lowest = b.in_order[i];
    }
    __syncthreads();
    return b.lowest > lowest ? b.lowest : lowest;
}
