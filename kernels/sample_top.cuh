// The largest of a block's keys: in order by a threshold over sorted warps, or in any order by narrowing.
#pragma once

#include "sample.cuh"

// Puts the `count` largest of the block's keys into `out`, in no order. Each of THREADS threads has PER keys `key(i)`, no two equal,
// 0 for none; if there are fewer than `count`, zeros fill up. Narrows the lowest kept key eight bits at a time.
template <uint32_t THREADS, uint32_t PER, typename Key>
__device__ __noinline__ void block_top(Key key, uint32_t count, uint64_t* out) {
    __shared__ uint32_t histogram[256];
    __shared__ uint64_t prefix;
    __shared__ uint32_t wanted, taken;
    if (threadIdx.x == 0) prefix = 0, wanted = count, taken = 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) out[i] = 0;
    uint32_t shift = 64;
    while (shift > 0) {
        shift -= 8;
        if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
        __syncthreads();
        const uint64_t above = shift == 56 ? 0 : prefix >> (shift + 8);
#pragma unroll
        for (uint32_t i = 0; i < PER; i++) {
            const uint64_t k = key(i);
            if (k && (shift == 56 || k >> (shift + 8) == above)) atomicAdd(&histogram[k >> shift & 255u], 1);
        }
        __syncthreads();
        // The first warp finds the digit at which the count is reached, from the top.
        if (threadIdx.x < WARP) {
            uint32_t sum = 0;
            for (uint32_t j = 0; j < 8; j++) sum += histogram[255 - (threadIdx.x * 8 + j)];
            uint32_t before = sum;
            for (uint32_t offset = 1; offset < WARP; offset *= 2) {
                const uint32_t other = __shfl_up_sync(FULL_MASK, before, offset);
                if (threadIdx.x >= offset) before += other;
            }
            const uint32_t total = __shfl_sync(FULL_MASK, before, WARP - 1);
            before -= sum;
            const uint32_t need = wanted;
            __syncwarp();
            if (total < need) {
                // Fewer keys than wanted (this can only be at the first digit): keep them all.
                if (threadIdx.x == 0) prefix = 1, wanted = 0;
            } else if (before < need && before + sum >= need) {
                for (uint32_t j = 0; j < 8; j++) {
                    const uint32_t digit = 255 - (threadIdx.x * 8 + j);
                    if (before + histogram[digit] >= need) {
                        prefix |= uint64_t(digit) << shift;
                        // The whole digit is kept: what is below it need not be told apart.
                        wanted = before + histogram[digit] == need ? 0 : need - before;
                        break;
                    }
                    before += histogram[digit];
                }
            }
        }
        __syncthreads();
        if (wanted == 0) break;
    }
    const uint64_t lowest = prefix;
#pragma unroll
    for (uint32_t i = 0; i < PER; i++)
        if (key(i) && key(i) >= lowest) out[atomicAdd(&taken, 1)] = key(i);
    __syncthreads();
}

// A threshold that at least `need` of the values of some sorted lists reach, and few more: for every depth j, the lists whose
// entry j is among the div_up(need, j + 1) largest hold that many. `rank_here`: how many lists have a larger entry here, ties by
// number of the list. Answers whether the caller's entry is such a threshold.
__device__ __forceinline__ bool is_threshold(uint32_t need, uint32_t depth, uint32_t rank_here) {
    return rank_here + 1 == div_up(need, depth + 1);
}

// Sorts a warp's values, the largest in lane 0.
__device__ __forceinline__ float warp_sort(float value) {
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t size = 2; size <= WARP; size *= 2)
#pragma unroll
        for (uint32_t stride = size / 2; stride > 0; stride /= 2) {
            const float other = __shfl_xor_sync(FULL_MASK, value, stride);
            const bool keeps_larger = ((lane & size) == 0) == ((lane & stride) == 0);
            value = keeps_larger ? fmaxf(value, other) : fminf(value, other);
        }
    return value;
}

// A number's bits in an order that integers have.
__device__ __forceinline__ uint32_t monotone_of(float value) {
    const uint32_t bits = __float_as_uint(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float float_of(uint32_t monotone) {
    return __uint_as_float(monotone & 0x80000000u ? monotone & 0x7fffffffu : ~monotone);
}

// Puts the keys of the `need` largest scores of the block into `out` in order, zeros after the last. Each thread has PER values and
// keys `key(i)`, 0 for none; a larger value never has a smaller score, but its score may be equal.
// `all()` leaves the values where `stored(i)` finds keys as well: for the rare case that more equal values turn up than there is room.
template <uint32_t THREADS, uint32_t PER, typename Key, typename All, typename Stored>
__device__ __forceinline__ void block_top_sorted(const float (&values)[PER], Key key, All all, Stored stored, uint32_t need,
                                                 uint64_t* out) {
    constexpr uint32_t WARPS = THREADS / WARP, FOUND_MAX = 512;
    __shared__ float sorted[WARPS][WARP];
    __shared__ uint64_t found[FOUND_MAX];
    __shared__ uint32_t found_count, threshold_bits;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float best = -INFINITY;
#pragma unroll
    for (uint32_t i = 0; i < PER; i++) best = fmaxf(best, values[i]);
    if (threadIdx.x == 0) found_count = 0, threshold_bits = 0;
    sorted[warp][lane] = need > 1 ? warp_sort(best) : warp_max(best);
    __syncthreads();
    {
        const float here = sorted[warp][lane];
        uint32_t rank = 0;
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) rank += sorted[w][lane] > here || (sorted[w][lane] == here && w < warp);
        if (is_threshold(need, lane, rank)) atomicMax(&threshold_bits, monotone_of(here));
    }
    __syncthreads();
    // Scores are values divided by the temperature and rounded: values that little below may have the same.
    float threshold = float_of(threshold_bits);
    threshold -= fabsf(threshold) * 1e-6f;
#pragma unroll
    for (uint32_t i = 0; i < PER; i++)
        if (!(values[i] < threshold)) {
            const uint64_t its = key(i);
            const uint32_t at = its ? atomicAdd(&found_count, 1) : FOUND_MAX;
            if (at < FOUND_MAX) found[at] = its;
        }
    __syncthreads();
    uint32_t count = found_count, filled = min(count, need);
    if (count > FOUND_MAX) {
        // Many equal values, or fewer numbers than wanted.
        all();
        block_top<THREADS, PER>(stored, need, found);
        count = need;
        filled = __syncthreads_count(threadIdx.x < need && found[threadIdx.x] != 0);
    }
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        const uint64_t mine = found[i];
        uint32_t larger = 0;
        for (uint32_t j = 0; j < count; j++) larger += found[j] > mine;
        if (mine && larger < need) out[larger] = mine;
    }
#pragma unroll 1
    for (uint32_t i = filled + threadIdx.x; i < need; i += THREADS) out[i] = 0;
}
