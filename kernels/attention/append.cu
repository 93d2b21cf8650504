// append: q = position_scale * rope(head_norm(Q n)); the row's cell gets rope(head_norm(K n)) and
// V n, from the products of Q, K and V. position_scale(p) = 1 + slope * ln(1 + floor(p / period)).
// Without KV heads there are queries only.
// products: [rows, (heads + 2 * kv_heads) * head_dim] f32, query heads first, then keys, then
// values; q: [rows, heads * head_dim]. head_dim <= 512.
// Grid: (up to heads + 2 * kv_heads over 4, rows): warps take a row's heads round-robin. With many
// rows there are fewer blocks per row, so that sines are computed once for several heads.
// Bound: memory, some KiB per row.
// Oracle: walla_cpu's scalar qkv (tests/gpu/parity.rs).
#include "attention/head.cuh"

struct AppendParams {
    StepRef step;
    KvRef kv;
    const float* products;
    float* q;
    HeadRef head;
    float position_slope; // 0: a scale of 1
    uint32_t position_period;
};
static_assert(sizeof(AppendParams) == 152, "as in params.rs");

constexpr uint32_t APPEND_WARPS = 4;
constexpr uint32_t HEAD_DIM_MAX = 512;

template <typename Number>
__device__ __forceinline__ void append(const AppendParams& p) {
    constexpr uint32_t LANE_PAIRS = HEAD_DIM_MAX / 2 / WARP;
    __shared__ float staged[APPEND_WARPS][HEAD_DIM_MAX];
    launch_dependents();
    const uint32_t r = blockIdx.y, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (r >= p.step.header().rows)
        return;
    const StepRow row = p.step.row(r);
    // The same for all heads of the row.
    float2 sincos[LANE_PAIRS];
    if (p.head.frequencies)
#pragma unroll
        for (uint32_t k = 0; k < LANE_PAIRS; k++)
            if (lane + k * WARP < p.head.pairs)
                sincos[k] = sincos_of(p.head, row.position, lane + k * WARP);
    const float scale =
        p.position_slope != 0.0f
            ? fmaf(p.position_slope, log1pf(float(row.position / p.position_period)), 1.0f)
            : 1.0f;
    grid_dependency_wait();
    const uint32_t heads = p.head.heads, all_heads = heads + 2 * p.kv.kv_heads, dim = p.kv.head_dim;
    float* at = staged[warp];
    for (uint32_t head = blockIdx.x * APPEND_WARPS + warp; head < all_heads;
         head += gridDim.x * APPEND_WARPS) {
        const bool is_query = head < heads;
        const bool is_value = head >= heads + p.kv.kv_heads;
        const float* product = p.products + (size_t(r) * all_heads + head) * dim;
        __syncwarp();
        for (uint32_t d = lane; d < dim; d += WARP)
            at[d] = product[d];
        __syncwarp();
        if (!is_value)
            finish_head<HEAD_DIM_MAX / WARP>(p.head, at, dim, lane, is_query, NormsInMemory(),
                                             [&](uint32_t i) {
                                                 float2 its = sincos[0];
#pragma unroll
                                                 for (uint32_t k = 1; k < LANE_PAIRS; k++)
                                                     its = i / WARP == k ? sincos[k] : its;
                                                 return its;
                                             });
        if (is_query) {
            float* q = p.q + (size_t(r) * heads + head) * dim;
            for (uint32_t d = lane; d < dim; d += WARP)
                q[d] = at[d] * scale;
            continue;
        }
        const uint32_t kv_head = head - heads - (is_value ? p.kv.kv_heads : 0);
        store_head<Number>(p.kv, is_value,
                           cell_of(p.kv, p.step.table(row.table), kv_head, row.position), at, lane);
    }
}

extern "C" __global__ void __launch_bounds__(APPEND_WARPS* WARP)
    append_f32(const __grid_constant__ AppendParams p) {
    append<float>(p);
}
extern "C" __global__ void __launch_bounds__(APPEND_WARPS* WARP)
    append_f16(const __grid_constant__ AppendParams p) {
    append<__half>(p);
}
extern "C" __global__ void __launch_bounds__(APPEND_WARPS* WARP)
    append_q8(const __grid_constant__ AppendParams p) {
    append<Biased>(p);
}
