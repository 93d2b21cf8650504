// Inputs of decode attention from a row's products, or their splits, in the same launch: columns in
// shared memory, and the row's own key and value, in its cell and in shared memory.
#pragma once

#include "attention/attention.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// A lane's neighbouring numbers of a head.
template <uint32_t EACH>
struct Numbers {
    float number[EACH];

    // Loads the numbers that another kernel wrote, or zeros unless `is_valid`. Loads are issued in
    // the order of the calls, without a branch, so that all loads of a lane are in flight at once.
    __device__ __forceinline__ void load(const float* from, bool is_valid) {
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++)
            number[i] = 0.0f;
        if constexpr (EACH == 2)
            asm volatile(
                "{ .reg .pred q; setp.ne.u32 q, %3, 0; @q ld.global.v2.f32 {%0, %1}, [%2]; }"
                : "+f"(number[0]), "+f"(number[1])
                : "l"(from), "r"(uint32_t(is_valid)));
        else
#pragma unroll
            for (uint32_t i = 0; i < EACH; i += 4)
                asm volatile(
                    "{ .reg .pred q; setp.ne.u32 q, %5, 0; @q ld.global.v4.f32 {%0, %1, %2, %3}, "
                    "[%4]; }"
                    : "+f"(number[i]), "+f"(number[i + 1]), "+f"(number[i + 2]), "+f"(number[i + 3])
                    : "l"(from + i), "r"(uint32_t(is_valid)));
    }
    __device__ __forceinline__ void store(float* to) const {
#pragma unroll
        for (uint32_t i = 0; i < EACH; i += 2)
            *reinterpret_cast<float2*>(to + i) = make_float2(number[i], number[i + 1]);
    }
};

// Bytes of `RowHeads`.
__host__ __device__ constexpr uint32_t row_heads_bytes(uint32_t dim, bool is_q8) {
    const uint32_t number = is_q8 ? 1 : 2, fresh = 2 * (dim * number + 16);
    return COLUMNS * (dim + 8) * 2 + fresh + dim / 2 * 8;
}

// Shared memory of a decode attention block for its row.
template <uint32_t DIM, typename Number>
struct RowHeads {
    static constexpr uint32_t EACH = DIM / WARP; // numbers of a head per lane
    static constexpr bool MAY_BE_DEFERRED = DIM <= DEFERRED_DIM_MAX;
    using Numbers = ::Numbers<EACH>;
    __align__(16) __half columns[COLUMNS][DIM + 8];
    Fresh<DIM, Number> fresh[2]; // key, value
    float2 sincos[DIM / 2];

    __device__ __forceinline__ void rope_sincos(const HeadRef& head, uint32_t position,
                                                uint32_t threads) {
        if (head.frequencies)
            for (uint32_t i = threadIdx.x; i < head.pairs; i += threads)
                sincos[i] = sincos_of(head, position, i);
    }

    // Prepares the query heads of the group and, if `has_own`, the key and the value, one warp
    // each; all loads are in flight at once. `at`: the warp's buffer for one head. `own_cell`:
    // index of the row's cell. Needs a barrier before other warps read.
    template <uint32_t WARPS, typename Norms>
    __device__ __forceinline__ void make(const AttendParams& p, uint32_t row,
                                         const HeadGroup& group, const Norms& norms, bool has_own,
                                         size_t own_cell, float* at) {
        const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        constexpr uint32_t JOBS = (COLUMNS + 2 + WARPS - 1) / WARPS;
        const uint32_t jobs = group.heads + (has_own ? 2 : 0);
        const uint32_t all_heads = p.head.heads + 2 * p.kv.kv_heads;
        const float* products = p.input + size_t(row) * all_heads * DIM + lane * EACH;
        const auto head_of = [&](uint32_t job) {
            return job < group.heads
                       ? group.first_head + job
                       : p.head.heads + (job - group.heads) * p.kv.kv_heads + group.kv_head;
        };
        Numbers made[JOBS];
        if (MAY_BE_DEFERRED && p.deferred.count > 0) {
            Numbers its[JOBS][DEFERRED_SPLITS_MAX];
#pragma unroll
            for (uint32_t j = 0; j < JOBS; j++)
#pragma unroll
                for (uint32_t s = 0; s < DEFERRED_SPLITS_MAX; s++) {
                    const uint32_t job = j * WARPS + warp;
                    its[j][s].load(products + head_of(job) * DIM + s * p.deferred.stride,
                                   job < jobs && s < p.deferred.count);
                }
            const float factor = p.deferred.norm_factors ? __fdividef(p.deferred.norm_factors[row],
                                                                      p.deferred.pack_factors[row])
                                                         : 1.0f;
#pragma unroll
            for (uint32_t j = 0; j < JOBS; j++) {
                const uint32_t job = j * WARPS + warp,
                               matrix = job < group.heads ? 0 : 1 + job - group.heads;
                const float unscale = factor * (matrix == 0   ? p.deferred.scales[0]
                                                : matrix == 1 ? p.deferred.scales[1]
                                                              : p.deferred.scales[2]);
#pragma unroll
                for (uint32_t i = 0; i < EACH; i++) {
                    float total = 0.0f;
#pragma unroll
                    for (uint32_t s = 0; s < DEFERRED_SPLITS_MAX; s++)
                        total += its[j][s].number[i];
                    made[j].number[i] = total * unscale;
                }
            }
        } else {
#pragma unroll
            for (uint32_t j = 0; j < JOBS; j++)
                made[j].load(products + head_of(j * WARPS + warp) * DIM, j * WARPS + warp < jobs);
        }
#pragma unroll
        for (uint32_t j = 0; j < JOBS; j++) {
            const uint32_t job = j * WARPS + warp;
            if (job >= max(jobs, COLUMNS))
                break;
            const bool is_query = job < group.heads, is_value = job == group.heads + 1;
            made[j].store(at + lane * EACH);
            __syncwarp();
            if (job < jobs && !is_value)
                finish_head<EACH>(p.head, at, DIM, lane, is_query, norms,
                                  [&](uint32_t i) { return sincos[i]; });
            if (!is_query && job < jobs) {
                const Encoder<Number> encoder(at, DIM, lane);
                Number* numbers =
                    reinterpret_cast<Number*>(is_value ? p.kv.values : p.kv.keys) + own_cell * DIM;
#pragma unroll
                for (uint32_t i = 0; i < EACH; i++) {
                    const uint32_t d = i * WARP + lane;
                    encoder.store(&fresh[is_value].numbers[d], at[d]);
                    if (group.index_of_kv == 0)
                        numbers[d] = fresh[is_value].numbers[d];
                }
                encoder.store_scale(&fresh[is_value].scale, lane);
                if (group.index_of_kv == 0)
                    encoder.store_scale((is_value ? p.kv.value_scales : p.kv.key_scales) + own_cell,
                                        lane);
            }
            // Columns beyond the group's heads are zeros.
            if (is_query || (job >= jobs && job < COLUMNS))
#pragma unroll
                for (uint32_t i = 0; i < EACH; i++)
                    columns[job][i * WARP + lane] = __float2half_rn(at[i * WARP + lane]);
            __syncwarp();
        }
        for (uint32_t i = threadIdx.x; i < (min(jobs, COLUMNS) - group.heads) * DIM;
             i += WARPS * WARP)
            columns[group.heads + i / DIM][i % DIM] = __half();
    }
};
#endif
