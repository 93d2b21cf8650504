// The largest keys of all tokens, in order. The groups' largest numbers determine which groups can
// contain them; only these groups are read.
#pragma once

#include "sample/sample.cuh"

constexpr uint32_t GROUP_BINS = 128;
constexpr uint32_t FOUND_MAX = 1024;

struct Top {
    __align__(16) uint32_t bins[GROUP_BINS]; // histogram of the groups' largest numbers
    uint64_t found[FOUND_MAX];
    float found_numbers[FOUND_MAX];
    uint32_t groups[DRAW_THREADS];
    uint64_t sorted[TOP_MAX];         // zeros after the last
    float numbers[TOP_MAX];           // of `sorted`, before division
    uint32_t most[WARP], least[WARP]; // per warp
    uint32_t group_count, found_count;
    float threshold;
};

// Lowest key that a cut by count or by weight keeps of the keys from `from` on: eight bits per pass
// over all tokens. `weight(key)` returns a key's weight.
template <typename Weight>
__device__ __noinline__ uint64_t lowest_kept(const Scores scores, uint64_t from, uint64_t wanted,
                                             Weight weight) {
    __shared__ unsigned long long histogram[256];
    __shared__ uint64_t prefix, need;
    if (threadIdx.x == 0)
        prefix = 0, need = wanted;
    for (uint32_t shift = 64; shift > 0;) {
        shift -= 8;
        __syncthreads();
        if (threadIdx.x < 256)
            histogram[threadIdx.x] = 0;
        __syncthreads();
        const uint64_t above = shift == 56 ? 0 : prefix >> (shift + 8);
#pragma unroll 1
        for (uint32_t t = threadIdx.x; t < scores.vocab; t += DRAW_THREADS) {
            const uint64_t key = scores.key(t);
            if (!key || key < from || (shift < 56 && key >> (shift + 8) != above))
                continue;
            atomicAdd(&histogram[key >> shift & 255u], weight(key));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint64_t sum = 0;
            uint32_t digit = 255;
            // Reaches digit 0 only if rounding left the sum short: all keys are kept then.
#pragma unroll 1
            for (; digit > 0 && sum + histogram[digit] < need; digit--)
                sum += histogram[digit];
            prefix |= uint64_t(digit) << shift;
            need -= sum;
        }
    }
    __syncthreads();
    return prefix > from ? prefix : from;
}

// Lowest of the `need` first keys. Keys of forbidden tokens are zero and do not count.
__device__ __forceinline__ uint64_t lowest_by_count(const Scores& scores, uint64_t need) {
    return lowest_kept(scores, 1, need, [](uint64_t) { return 1ull; });
}

// A threshold that the largest numbers of at least `need` groups reach, and of few more; the lowest
// float if fewer groups have a number at all. `largest`: of the thread's own group, negative
// infinity for none.
// One histogram between the smallest and the largest of them. If it is too coarse, more groups are
// read, which only costs time.
__device__ __forceinline__ float threshold_of_groups(Top& top, float largest, uint32_t need) {
    constexpr float LIMIT = 3.4028235e38f;
    static_assert(GROUP_BINS == 4 * WARP, "four bins a lane");
    const uint32_t lane = threadIdx.x % WARP;
    const bool is_one = largest > -INFINITY;
    largest = fminf(largest, LIMIT);
    if (threadIdx.x < GROUP_BINS)
        top.bins[threadIdx.x] = 0;
    const uint32_t bits = monotone_of(largest);
    const uint32_t own_max = warp_max_bits(bits), own_min = warp_min_bits(is_one ? bits : ~0u);
    if (lane == 0)
        top.most[threadIdx.x / WARP] = own_max, top.least[threadIdx.x / WARP] = own_min;
    __syncthreads();
    const float most = float_of(warp_max_bits(top.most[lane])),
                least = float_of(warp_min_bits(top.least[lane]));
    const float width = most * (1.0f / GROUP_BINS) - least * (1.0f / GROUP_BINS),
                inverse = width > 0.0f ? fminf(__fdividef(1.0f, width), LIMIT) : 0.0f;
    if (is_one)
        atomicAdd(&top.bins[min(uint32_t((most - largest) * inverse), GROUP_BINS - 1)], 1);
    __syncthreads();
    if (threadIdx.x < WARP) {
        // The bin in which the count is reached.
        const uint4 counts = reinterpret_cast<const uint4*>(top.bins)[lane];
        const uint32_t own = (counts.x + counts.y) + (counts.z + counts.w);
        const uint32_t up_to = warp_prefix_sum(own);
        const uint32_t reached = __ballot_sync(FULL_MASK, up_to >= need);
        if (!reached) {
            // Too few groups: keep all of them.
            if (lane == 0)
                top.threshold = -LIMIT;
        } else if (lane == __ffs(reached) - 1) {
            const uint32_t one = up_to - own + counts.x, two = one + counts.y,
                           three = two + counts.z;
            const uint32_t bin = 4 * lane + (one < need) + (two < need) + (three < need);
            const float limit = most - float(bin + 1) * width;
            // Safety margin for rounding: of the differences, and of scores, which are rounded
            // quotients by the temperature, so that slightly smaller numbers may have the same
            // score.
            top.threshold = limit - 1e-6f * (fabsf(limit) + float(GROUP_BINS) * width);
        }
    }
    __syncthreads();
    return top.threshold;
}

// Four neighbouring tokens of the listed groups, by index over all groups.
struct ListedTokens {
    const Top& top;
    uint32_t group_bits;

    __device__ __forceinline__ uint32_t fours() const { return top.group_count << group_bits + 2; }
    __device__ __forceinline__ uint32_t first(uint32_t i) const {
        const uint32_t fours_bits = group_bits + 2; // of one group
        return four_of(
            (top.groups[i >> fours_bits] << group_bits) + ((i & (1u << fours_bits) - 1) >> 2),
            i % 4);
    }
};

// A higher threshold, if more than FOUND_MAX numbers of the listed groups reach `threshold`: the
// `need` first keys reach it, and few more. A mask can leave many tokens in few groups; a threshold
// from the groups' largest numbers then excludes too few. A histogram of ten bits of the numbers
// per pass; equal numbers may still be too many.
__device__ __noinline__ float raised_threshold(Top& top, const Scores scores, uint32_t group_bits,
                                               float threshold, uint32_t need) {
    constexpr uint32_t DIGIT = 10, BINS_OF_DIGIT = 1u << DIGIT, EACH = BINS_OF_DIGIT / WARP;
    static_assert(sizeof(top.found) >= 4 * BINS_OF_DIGIT, "the keys found are not used yet");
    uint32_t* bins = reinterpret_cast<uint32_t*>(top.found);
    const ListedTokens tokens = {top, group_bits};
    const uint32_t fours = tokens.fours(), lane = threadIdx.x % WARP;
    uint32_t prefix = 0, above = 0, shift = 32 - DIGIT;
    for (;; shift -= DIGIT) {
        for (uint32_t i = threadIdx.x; i < BINS_OF_DIGIT; i += DRAW_THREADS)
            bins[i] = 0;
        __syncthreads();
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < fours; i += DRAW_THREADS) {
            const uint32_t token = tokens.first(i);
            const float4 four = read_four(scores.numbers, token, scores.vocab);
            const float numbers[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (uint32_t c = 0; c < 4; c++) {
                const uint32_t bits = monotone_of(numbers[c]);
                const bool has_prefix = shift + DIGIT == 32 || bits >> (shift + DIGIT) == prefix;
                if (numbers[c] >= threshold && has_prefix && scores.key(numbers[c], token + c))
                    atomicAdd(&bins[bits >> shift & BINS_OF_DIGIT - 1], 1);
            }
        }
        __syncthreads();
        // The bin in which the count is reached, from the largest numbers on.
        if (threadIdx.x < WARP) {
            const uint32_t last = BINS_OF_DIGIT - 1 - lane * EACH;
            uint32_t own = 0;
            for (uint32_t i = 0; i < EACH; i++)
                own += bins[last - i];
            const uint32_t up_to = warp_prefix_sum(own);
            const uint32_t reached = __ballot_sync(FULL_MASK, above + up_to >= need);
            if (lane == (reached ? __ffs(reached) - 1 : WARP - 1)) {
                uint32_t before = above + up_to - own, bin = last;
                for (uint32_t i = 1; i < EACH && before + bins[bin] < need; i++)
                    before += bins[bin--];
                top.bins[0] = bin, top.bins[1] = before, top.bins[2] = before + bins[bin];
            }
        }
        __syncthreads();
        prefix = prefix << DIGIT | top.bins[0], above = top.bins[1];
        if (top.bins[2] <= FOUND_MAX || shift < DIGIT)
            break;
        __syncthreads();
    }
    const float limit = float_of(prefix << shift);
    // Safety margin for rounding of scores, as in threshold_of_groups.
    return fmaxf(threshold, limit - 1e-6f * fabsf(limit));
}

// Writes the keys of the `need` first tokens to `top.sorted`, in order, with the whole block.
// `largest`: the largest number of the thread's own group.
__device__ __noinline__ void find_top(Top& top, const Scores scores, float largest,
                                      uint32_t group_bits, uint32_t need) {
    if (threadIdx.x == 0)
        top.group_count = top.found_count = 0;
    if (threadIdx.x < TOP_MAX)
        top.sorted[threadIdx.x] = 0;
    float threshold = threshold_of_groups(top, largest, need);
    if (largest > -INFINITY && largest >= threshold)
        top.groups[atomicAdd(&top.group_count, 1)] = threadIdx.x;
    __syncthreads();
    const ListedTokens tokens = {top, group_bits};
    const uint32_t fours = tokens.fours();
    const auto reached = [&](const float4& four) {
        return uint32_t(four.x >= threshold) | uint32_t(four.y >= threshold) << 1 |
               uint32_t(four.z >= threshold) << 2 | uint32_t(four.w >= threshold) << 3;
    };
    for (bool is_raised = false;; is_raised = true) {
        // Two loads in flight per iteration. Few numbers reach the threshold, so they are loaded
        // again.
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < fours; i += 2 * DRAW_THREADS) {
            const bool has_other = i + DRAW_THREADS < fours;
            const uint32_t token = tokens.first(i),
                           other = tokens.first(has_other ? i + DRAW_THREADS : i);
            const float4 its = read_four(scores.numbers, token, scores.vocab),
                         others = read_four(scores.numbers, other, scores.vocab);
#pragma unroll 1
            for (uint32_t which = reached(its) | (has_other ? reached(others) << 4 : 0); which;
                 which &= which - 1) {
                const uint32_t place = __ffs(which) - 1,
                               t = (place < 4 ? token : other) + place % 4;
                const float number = scores.numbers[t];
                const uint64_t key = scores.key(number, t);
                const uint32_t at = key ? atomicAdd(&top.found_count, 1) : FOUND_MAX;
                if (at < FOUND_MAX)
                    top.found[at] = key, top.found_numbers[at] = number;
            }
        }
        __syncthreads();
        if (is_raised || top.found_count <= FOUND_MAX)
            break;
        __syncthreads();
        threshold = raised_threshold(top, scores, group_bits, threshold, need);
        if (threadIdx.x == 0)
            top.found_count = 0;
        __syncthreads();
    }
    uint32_t count = top.found_count;
    if (count > FOUND_MAX) {
        // Many equal numbers.
        __syncthreads();
        if (threadIdx.x == 0)
            top.found_count = 0;
        const uint64_t lowest = lowest_by_count(scores, need);
        for (uint32_t t = threadIdx.x; t < scores.vocab; t += DRAW_THREADS) {
            const uint64_t key = scores.key(t);
            if (key < lowest)
                continue;
            const uint32_t at = atomicAdd(&top.found_count, 1);
            top.found[at] = key, top.found_numbers[at] = scores.numbers[t];
        }
        __syncthreads();
        count = top.found_count;
    }
    // A key's index is the number of larger keys; eight lanes count for one key.
    constexpr uint32_t SHARES = 8;
#pragma unroll 1
    for (uint32_t first = 0; first < count; first += DRAW_THREADS / SHARES) {
        // no key of this warp is left
        if (first + threadIdx.x / WARP * (WARP / SHARES) >= count)
            break;
        const uint32_t i = first + threadIdx.x / SHARES;
        const uint64_t mine = i < count ? top.found[i] : 0;
        uint32_t larger = 0;
#pragma unroll 4
        for (uint32_t j = threadIdx.x % SHARES; j < count; j += SHARES)
            larger += top.found[j] > mine;
#pragma unroll
        for (uint32_t offset = 1; offset < SHARES; offset *= 2)
            larger += __shfl_xor_sync(FULL_MASK, larger, offset);
        if (threadIdx.x % SHARES == 0 && i < count && larger < need)
            top.sorted[larger] = mine, top.numbers[larger] = top.found_numbers[i];
    }
    __syncthreads();
}
