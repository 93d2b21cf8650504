// experts_route: the experts of each row, from the router's products l[r] = R n(x[r]).
//
// score[e] = l[e] or 1 / (1 + exp(-l[e])). The `used` experts with the largest score[e] + bias[e]
// are chosen, of equal ones the lower. Weights of the chosen experts: softmax of l over them, or
// score / max(sum of their scores, 6e-5); sums in ascending order of the experts. Then choices are
// grouped by expert (experts.cuh).
// With `squares` it also computes the norm's factors of rows, as the products of gemm_common.cuh:
// factors[r] = rsqrt(sum(squares[r]) / width + eps) / pack_factors[r].
//
// products: [rows, experts] f32 (experts_router.cu); experts <= 512, used <= 32.
// Grid: blocks of ROUTE_WARPS rows, a warp per row. The block that arrives last groups the choices
// of all rows: it marks them in a bitmap [experts, rows], in which the place of a choice in the
// list is a count of bits. The list does not depend on the order of arrival.
// Bound: latency, of `used` reductions over a warp per row and of some ten barriers.
// Oracle: walla_cpu's experts::choose and experts::group (tests/gpu/experts.rs).
#include "experts/experts.cuh"
#include "step/step.cuh"

struct ExpertsRouteParams {
    StepRef step;
    ChoicesRef choices;
    const float* products;
    const float* bias;    // [experts], or null
    const float* squares; // [rows, squares_count], squares_count a multiple of 4; or null; with it:
    const float* pack_factors; // [rows]
    float* factors;            // [rows]
    uint32_t squares_count;
    float inverse_width; // 1 / width of the norm
    float eps;
    uint32_t is_sigmoid;
    uint32_t row_words; // words of a row of the bitmap
    uint32_t item_rows; // up to ITEM_ROWS_MAX
};
static_assert(sizeof(ExpertsRouteParams) == 144, "as in params/experts.rs");

constexpr uint32_t ROUTE_THREADS = 512;
constexpr uint32_t ROUTE_WARPS = ROUTE_THREADS / WARP;
constexpr uint32_t EXPERTS_MAX = 512;
static_assert(EXPERTS_MAX <= ROUTE_THREADS, "a thread each");
constexpr uint32_t EXPERTS_FEW = 128; // a lane has few of them in registers
constexpr float SUM_MIN = 6e-5f;

// A number as a positive integer with the order of IEEE 754's totalOrder, but -0 equals 0.
__device__ __forceinline__ uint32_t ordered(float value) {
    const uint32_t bits = __float_as_uint(value + 0.0f);
    return max(bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u), 1u);
}

__device__ __forceinline__ uint32_t largest_of_warp(uint32_t value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(FULL_MASK, value);
#else
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        value = max(value, __shfl_xor_sync(FULL_MASK, value, offset));
    return value;
#endif
}

// Sum of the values of the first `count` lanes, in order; every lane gets it.
__device__ __forceinline__ float sum_in_order(float value, uint32_t count) {
    float sum = 0.0f;
    for (uint32_t i = 0; i < count; i++)
        sum += __shfl_sync(FULL_MASK, value, i);
    return sum;
}

__device__ __forceinline__ float score_of(const ExpertsRouteParams& p, float product) {
    return p.is_sigmoid ? 1.0f / (1.0f + expf(-product)) : product;
}

// Experts and weights of a row. A lane has up to LANE_EXPERTS experts in registers.
template <uint32_t LANE_EXPERTS>
__device__ __forceinline__ void route(const ExpertsRouteParams& p, uint32_t r, uint32_t lane) {
    const uint32_t experts = p.choices.experts, used = p.choices.used;
    const float* products = p.products + size_t(r) * experts;
    // Scores of the experts that remain; of others 0.
    uint32_t keys[LANE_EXPERTS];
#pragma unroll
    for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
        const uint32_t expert = i * WARP + lane;
        keys[i] = 0;
        if (expert < experts) {
            const float bias = p.bias ? __ldg(p.bias + expert) : 0.0f;
            keys[i] = ordered(score_of(p, products[expert]) + bias);
        }
    }
    uint32_t chosen = 0xffffffffu;
    for (uint32_t n = 0; n < used; n++) {
        uint32_t best = 0;
#pragma unroll
        for (uint32_t i = 0; i < LANE_EXPERTS; i++)
            best = max(best, keys[i]);
        best = largest_of_warp(best);
        // Of equal ones the lowest expert: the largest complement.
        uint32_t its = 0;
#pragma unroll
        for (uint32_t i = 0; i < LANE_EXPERTS; i++)
            its = keys[i] == best ? max(its, ~(i * WARP + lane)) : its;
        const uint32_t expert = ~largest_of_warp(its);
        if (lane == n)
            chosen = expert;
#pragma unroll
        for (uint32_t i = 0; i < LANE_EXPERTS; i++)
            keys[i] = i * WARP + lane == expert ? 0 : keys[i];
    }
    // The place of this lane's expert, then the expert of this lane's place.
    uint32_t place = 0, mine = 0;
    for (uint32_t n = 0; n < used; n++)
        place += __shfl_sync(FULL_MASK, chosen, n) < chosen;
    for (uint32_t n = 0; n < used; n++) {
        const uint32_t its_place = __shfl_sync(FULL_MASK, place, n);
        const uint32_t expert = __shfl_sync(FULL_MASK, chosen, n);
        mine = its_place == lane ? expert : mine;
    }
    const bool is_mine = lane < used;
    const float score = score_of(p, products[is_mine ? mine : 0]);
    float weight = score, lowest = SUM_MIN;
    if (!p.is_sigmoid) {
        const float largest = warp_max(is_mine ? score : -INFINITY);
        weight = expf(score - largest), lowest = 0.0f;
    }
    // A sum that is not a number stays so.
    const float sum = sum_in_order(weight, used);
    weight /= sum < lowest ? lowest : sum;
    if (is_mine) {
        p.choices.chosen[r * used + lane] = mine;
        p.choices.weights[r * used + lane] = weight;
    }
}

// The norm's factor of a row, relative to the factor that the row was packed with.
__device__ __forceinline__ void norm_factor(const ExpertsRouteParams& p, uint32_t r,
                                            uint32_t lane) {
    const float4* from = reinterpret_cast<const float4*>(p.squares + size_t(r) * p.squares_count);
    float squares = 0.0f;
#pragma unroll 4
    for (uint32_t i = lane; i < p.squares_count / 4; i += WARP) {
        const float4 four = from[i];
        squares += (four.x + four.y) + (four.z + four.w);
    }
    const float factor = rsqrtf(warp_sum(squares) * p.inverse_width + p.eps);
    if (lane == 0)
        p.factors[r] = __fdividef(factor, p.pack_factors[r]);
}

// Inclusive sums over the threads of a block. `scratch` holds a number per warp.
__device__ __forceinline__ uint32_t inclusive_sum(uint32_t value, uint32_t* scratch) {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    value = warp_prefix_sum(value);
    if (lane == WARP - 1)
        scratch[warp] = value;
    __syncthreads();
    uint32_t earlier = lane < warp ? scratch[lane] : 0;
#pragma unroll
    for (uint32_t offset = 16; offset > 0; offset /= 2)
        earlier += __shfl_xor_sync(FULL_MASK, earlier, offset);
    return value + earlier;
}

// Groups the choices of `rows` rows by expert.
__device__ __forceinline__ void group(const ExpertsRouteParams& p, uint32_t rows) {
    extern __shared__ uint32_t bitmap[]; // [experts, row_words]
    __shared__ uint32_t firsts[EXPERTS_MAX];
    __shared__ uint32_t scratch[2][ROUTE_WARPS];
    const ChoicesRef& c = p.choices;
    const uint32_t choices = rows * c.used, e = threadIdx.x;
    for (uint32_t i = threadIdx.x; i < c.experts * p.row_words; i += ROUTE_THREADS)
        bitmap[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < choices; i += ROUTE_THREADS) {
        const uint32_t r = i / c.used;
        atomicOr(bitmap + __ldcg(c.chosen + i) * p.row_words + r / 32, 1u << r % 32);
    }
    __syncthreads();
    uint32_t count = 0;
    if (e < c.experts)
        for (uint32_t word = 0; word < p.row_words; word++)
            count += __popc(bitmap[e * p.row_words + word]);
    const uint32_t items = div_up(count, p.item_rows);
    const uint32_t first = inclusive_sum(count, scratch[0]) - count;
    const uint32_t items_end = inclusive_sum(items, scratch[1]);
    if (e < c.experts)
        firsts[e] = first;
    for (uint32_t i = 0; i < items; i++) {
        const uint32_t begin = i * p.item_rows;
        c.items[items_end - items + i] = {e, first + begin, min(count - begin, p.item_rows), 0};
    }
    if (threadIdx.x == ROUTE_THREADS - 1)
        c.counts[0] = items_end;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < choices; i += ROUTE_THREADS) {
        const uint32_t expert = __ldcg(c.chosen + i), r = i / c.used;
        const uint32_t* its = bitmap + expert * p.row_words;
        uint32_t place = firsts[expert] + __popc(its[r / 32] & ((1u << r % 32) - 1));
        for (uint32_t word = 0; word < r / 32; word++)
            place += __popc(its[word]);
        c.list[place] = i;
    }
}

extern "C" __global__ void __launch_bounds__(ROUTE_THREADS)
    experts_route(const __grid_constant__ ExpertsRouteParams p) {
    __shared__ bool is_last;
    launch_dependents();
    grid_dependency_wait();
    const uint32_t rows = p.step.header().rows, lane = threadIdx.x % WARP;
    const uint32_t r = blockIdx.x * ROUTE_WARPS + threadIdx.x / WARP;
    if (r < rows) {
        if (p.choices.experts <= EXPERTS_FEW)
            route<EXPERTS_FEW / WARP>(p, r, lane);
        else
            route<EXPERTS_MAX / WARP>(p, r, lane);
        if (p.squares)
            norm_factor(p, r, lane);
    }
    // The choices of this block are visible to the block that groups them.
    __threadfence();
    __syncthreads();
    if (gridDim.x > 1) {
        if (threadIdx.x == 0) {
            is_last = atomicAdd(p.choices.counts + 1, 1) == gridDim.x - 1;
            if (is_last)
                p.choices.counts[1] = 0;
            __threadfence();
        }
        __syncthreads();
        if (!is_last)
            return;
    }
    group(p, rows);
}
