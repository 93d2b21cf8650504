// append: from the products of Q, K and V: q = rope(head_norm(Q n)), and rope(head_norm(K n)) and V n into the row's cell.
// products: [rows, (heads + 2 * kv_heads) * head_dim] f32, query heads first, then keys, then values; q: [rows, heads * head_dim].
// The angle of pair i at position p is f32(p) * frequency[i], rounded to f32; head_dim <= 256.
// Grid: (heads + 2 * kv_heads over 4, rows), a warp a head. Memory-bound, some KiB a row. Oracle: walla_cpu's scalar qkv.
#include "kv.cuh"

struct AppendParams {
    StepRef step;
    KvRef kv;
    const float* products;
    float* q;
    const float* query_norm;  // weight [head_dim], or null
    const float* key_norm;
    const float* frequencies;  // [pairs], or null
    uint32_t pairs;
    uint32_t neighbours;
    float magnitude;
    float query_eps;
    float key_eps;
    uint32_t heads;
};
static_assert(sizeof(AppendParams) == 128, "as in params.rs");

constexpr uint32_t APPEND_WARPS = 4;
constexpr uint32_t HEAD_DIM_MAX = 256;

template <typename Number>
__device__ __forceinline__ void append(const AppendParams& p) {
    __shared__ float staged[APPEND_WARPS][HEAD_DIM_MAX];
    let_successors_start();
    wait_for_predecessors();
    const uint32_t r = blockIdx.y;
    const uint32_t head = blockIdx.x * APPEND_WARPS + threadIdx.x / WARP;
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t all_heads = p.heads + 2 * p.kv.kv_heads;
    if (r >= p.step.header().rows || head >= all_heads) return;
    const StepRow row = p.step.row(r);
    const uint32_t dim = p.kv.head_dim;
    const bool is_query = head < p.heads;
    const bool is_value = head >= p.heads + p.kv.kv_heads;
    const float* norm = is_query ? p.query_norm : p.key_norm;
    float* at = staged[threadIdx.x / WARP];

    const float* product = p.products + (size_t(r) * all_heads + head) * dim;
    float squares = 0.0f;
    for (uint32_t d = lane; d < dim; d += WARP) {
        at[d] = product[d];
        squares = fmaf(at[d], at[d], squares);
    }
    if (norm && !is_value) {
        const float factor = rsqrtf(warp_sum(squares) / float(dim) + (is_query ? p.query_eps : p.key_eps));
        for (uint32_t d = lane; d < dim; d += WARP) at[d] = at[d] * factor * norm[d];
    }
    __syncwarp();
    if (p.frequencies && !is_value) {
        for (uint32_t i = lane; i < p.pairs; i += WARP) {
            const uint2 pair = pair_of(i, p.pairs, p.neighbours);
            float sine, cosine;
            sincosf(float(row.position) * p.frequencies[i], &sine, &cosine);
            sine *= p.magnitude;
            cosine *= p.magnitude;
            const float a = at[pair.x];
            const float b = at[pair.y];
            at[pair.x] = a * cosine - b * sine;
            at[pair.y] = a * sine + b * cosine;
        }
        __syncwarp();
    }
    if (is_query) {
        float* q = p.q + (size_t(r) * p.heads + head) * dim;
        for (uint32_t d = lane; d < dim; d += WARP) q[d] = at[d];
        return;
    }
    const uint32_t kv_head = head - p.heads - (is_value ? p.kv.kv_heads : 0);
    Number* base = reinterpret_cast<Number*>(is_value ? p.kv.values : p.kv.keys);
    Number* cell = base + cell_of(p.kv, p.step.table(row.table), kv_head, row.position);
    for (uint32_t d = lane; d < dim; d += WARP) store_number(cell + d, at[d]);
}

extern "C" __global__ void __launch_bounds__(APPEND_WARPS* WARP) append_f32(const __grid_constant__ AppendParams p) {
    append<float>(p);
}
extern "C" __global__ void __launch_bounds__(APPEND_WARPS* WARP) append_f16(const __grid_constant__ AppendParams p) {
    append<__half>(p);
}
