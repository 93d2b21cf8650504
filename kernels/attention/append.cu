// append: q = rope(head_norm(Q n)); the row's cell gets rope(head_norm(K n)) and V n, from the
// products of Q, K and V.
// products: [rows, (heads + 2 * kv_heads) * head_dim] f32, query heads first, then keys, then
// values; q: [rows, heads * head_dim]. head_dim <= 256.
// Grid: (heads + 2 * kv_heads over 4, rows), one warp per head.
// Bound: memory, some KiB per row.
// Oracle: walla_cpu's scalar qkv (tests/gpu/parity.rs).
#include "attention/head.cuh"

struct AppendParams {
    StepRef step;
    KvRef kv;
    const float* products;
    float* q;
    HeadRef head;
};
static_assert(sizeof(AppendParams) == 144, "as in params.rs");

constexpr uint32_t APPEND_WARPS = 4;
constexpr uint32_t HEAD_DIM_MAX = 256;

template <typename Number>
__device__ __forceinline__ void append(const AppendParams& p) {
    __shared__ float staged[APPEND_WARPS][HEAD_DIM_MAX];
    launch_dependents();
    grid_dependency_wait();
    const uint32_t r = blockIdx.y;
    const uint32_t head = blockIdx.x * APPEND_WARPS + threadIdx.x / WARP;
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t heads = p.head.heads;
    const uint32_t all_heads = heads + 2 * p.kv.kv_heads;
    if (r >= p.step.header().rows || head >= all_heads)
        return;
    const StepRow row = p.step.row(r);
    const uint32_t dim = p.kv.head_dim;
    const bool is_query = head < heads;
    const bool is_value = head >= heads + p.kv.kv_heads;
    float* at = staged[threadIdx.x / WARP];

    const float* product = p.products + (size_t(r) * all_heads + head) * dim;
    for (uint32_t d = lane; d < dim; d += WARP)
        at[d] = product[d];
    __syncwarp();
    if (!is_value)
        finish_head(p.head, at, dim, lane, is_query ? p.head.query_norm : p.head.key_norm,
                    is_query ? p.head.query_eps : p.head.key_eps,
                    [&](uint32_t i) { return sincos_of(p.head, row.position, i); });
    if (is_query) {
        float* q = p.q + (size_t(r) * heads + head) * dim;
        for (uint32_t d = lane; d < dim; d += WARP)
            q[d] = at[d];
        return;
    }
    const uint32_t kv_head = head - heads - (is_value ? p.kv.kv_heads : 0);
    store_head<Number>(p.kv, is_value,
                       cell_of(p.kv, p.step.table(row.table), kv_head, row.position), at, lane);
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
