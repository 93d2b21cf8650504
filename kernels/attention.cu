// attention: out[r] = softmax(scale * q[r] K^T) V over the cells max(0, p + 1 - window) ..= p of the row's sequence.
// q, out: [rows, heads * head_dim] f32; pages as in kv.cuh. Softmax and sums in f32.
//
// A block takes one row, one KV head with up to GROUP of its query heads, and CHUNK cells; the block that ends last for a row and
// head merges the chunks in order. Chunks start at the row's first cell, so a row's sums depend on its position alone.
// Grid: (kv_heads * query groups, chunks of context_max, rows); blocks beyond a row's chunks return. head_dim <= 256, a
// multiple of 8: `lanes` lanes share a cell, 8 numbers each, so a load is 16 bytes of f16.
// Memory-bound: keys and values read once a row. Oracle: walla_cpu's scalar attention.
#include "kv.cuh"

struct AttentionParams {
    StepRef step;
    KvRef kv;
    const float* q;
    float* out;
    float* partials;     // [rows, heads, chunks_max, head_dim + 2]: sums, then maximum and mass
    uint32_t* arrivals;  // [rows, grid.x], zero between launches
    uint32_t heads;
    uint32_t window;  // 0: all
    float scale;
    uint32_t chunks_max;
    uint32_t lanes;  // a power of two, 8 * lanes >= head_dim
    uint32_t reserved;
};
static_assert(sizeof(AttentionParams) == 120, "as in params.rs");

constexpr uint32_t CHUNK = 128;
constexpr uint32_t ATTENTION_THREADS = 128;
constexpr uint32_t ATTENTION_WARPS = ATTENTION_THREADS / WARP;
constexpr uint32_t ATTENTION_DIM_MAX = 256;

template <typename Number, uint32_t GROUP>
__device__ __forceinline__ void attention(const AttentionParams& p) {
    __shared__ float scores[GROUP][CHUNK];
    __shared__ float sums[ATTENTION_WARPS][ATTENTION_DIM_MAX];
    __shared__ float maxima[GROUP];
    __shared__ float masses[GROUP];
    __shared__ bool is_last;
    let_successors_start();
    wait_for_predecessors();
    const uint32_t r = blockIdx.z;
    if (r >= p.step.header().rows) return;
    const StepRow row = p.step.row(r);
    const uint32_t end = row.position + 1;
    const uint32_t begin = p.window && end > p.window ? end - p.window : 0;
    const uint32_t chunks = div_up(end - begin, CHUNK);
    const uint32_t chunk = blockIdx.y;
    if (chunk >= chunks) return;
    const uint32_t from = begin + chunk * CHUNK;
    const uint32_t count = min(CHUNK, end - from);

    const uint32_t dim = p.kv.head_dim;
    const uint32_t per_kv = p.heads / p.kv.kv_heads;
    const uint32_t groups = div_up(per_kv, GROUP);
    const uint32_t kv_head = blockIdx.x / groups;
    const uint32_t first_of_kv = blockIdx.x % groups * GROUP;
    const uint32_t head0 = kv_head * per_kv + first_of_kv;
    const uint32_t heads = min(GROUP, per_kv - first_of_kv);

    const uint32_t lanes = p.lanes;
    const uint32_t lane = threadIdx.x % lanes;
    const uint32_t cell0 = threadIdx.x / lanes;
    const uint32_t cells_step = ATTENTION_THREADS / lanes;
    const uint32_t d0 = lane * 8;
    const bool inside = d0 < dim;
    const uint32_t* table = p.step.table(row.table);
    const Number* keys = reinterpret_cast<const Number*>(p.kv.keys);
    const Number* values = reinterpret_cast<const Number*>(p.kv.values);

    {
        float q[GROUP][8];
#pragma unroll
        for (uint32_t g = 0; g < GROUP; g++)
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) q[g][i] = 0.0f;
#pragma unroll
        for (uint32_t g = 0; g < GROUP; g++)
            if (g < heads && inside) load_eight(p.q + (size_t(r) * p.heads + head0 + g) * dim + d0, q[g]);
        // All lanes of a warp take the same number of rounds: the sums below are of whole warps.
        for (uint32_t c0 = 0; c0 < count; c0 += cells_step) {
            const uint32_t c = c0 + cell0;
            float key[8] = {};
            if (c < count && inside) load_eight(keys + cell_of(p.kv, table, kv_head, from + c) + d0, key);
#pragma unroll
            for (uint32_t g = 0; g < GROUP; g++) {
                float dot = 0.0f;
#pragma unroll
                for (uint32_t i = 0; i < 8; i++) dot = fmaf(q[g][i], key[i], dot);
                for (uint32_t offset = lanes / 2; offset > 0; offset /= 2)
                    dot += __shfl_xor_sync(FULL_MASK, dot, offset);
                if (lane == 0 && c < count && g < heads) scores[g][c] = dot * p.scale;
            }
        }
    }
    __syncthreads();

    for (uint32_t g = threadIdx.x / WARP; g < heads; g += ATTENTION_WARPS) {
        const uint32_t l = threadIdx.x % WARP;
        float maximum = -INFINITY;
        for (uint32_t c = l; c < count; c += WARP) maximum = fmaxf(maximum, scores[g][c]);
        maximum = warp_max(maximum);
        float mass = 0.0f;
        for (uint32_t c = l; c < count; c += WARP) {
            const float e = expf(scores[g][c] - maximum);
            scores[g][c] = e;
            mass += e;
        }
        mass = warp_sum(mass);
        if (l == 0) maxima[g] = maximum, masses[g] = mass;
    }
    __syncthreads();

    float sum[GROUP][8] = {};
    for (uint32_t c = cell0; c < count && inside; c += cells_step) {
        float value[8];
        load_eight(values + cell_of(p.kv, table, kv_head, from + c) + d0, value);
#pragma unroll
        for (uint32_t g = 0; g < GROUP; g++) {
            const float e = g < heads ? scores[g][c] : 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) sum[g][i] = fmaf(e, value[i], sum[g][i]);
        }
    }
    const uint32_t stride = dim + 2;
#pragma unroll
    for (uint32_t g = 0; g < GROUP; g++) {
        if (g >= heads) break;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            for (uint32_t offset = lanes; offset < WARP; offset *= 2)
                sum[g][i] += __shfl_xor_sync(FULL_MASK, sum[g][i], offset);
        __syncthreads();
        if (threadIdx.x % WARP < lanes && inside)
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) sums[threadIdx.x / WARP][d0 + i] = sum[g][i];
        __syncthreads();
        const size_t head = size_t(r) * p.heads + head0 + g;
        float* partial = p.partials + (head * p.chunks_max + chunk) * stride;
        for (uint32_t d = threadIdx.x; d < dim; d += ATTENTION_THREADS) {
            float total = 0.0f;
#pragma unroll
            for (uint32_t w = 0; w < ATTENTION_WARPS; w++) total += sums[w][d];
            if (chunks == 1)
                p.out[head * dim + d] = total / masses[g];
            else
                partial[d] = total;
        }
        if (chunks > 1 && threadIdx.x == 0) partial[dim] = maxima[g], partial[dim + 1] = masses[g];
    }
    if (chunks == 1) return;

    __threadfence();
    __syncthreads();
    uint32_t* arrivals = p.arrivals + size_t(r) * gridDim.x + blockIdx.x;
    if (threadIdx.x == 0) {
        is_last = atomicAdd(arrivals, 1) == chunks - 1;
        if (is_last) *arrivals = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    for (uint32_t g = 0; g < heads; g++) {
        const size_t head = size_t(r) * p.heads + head0 + g;
        const float* partial = p.partials + head * p.chunks_max * stride;
        float maximum = -INFINITY;
        for (uint32_t c = 0; c < chunks; c++) maximum = fmaxf(maximum, __ldcg(partial + c * stride + dim));
        float mass = 0.0f;
        for (uint32_t c = 0; c < chunks; c++) {
            const float* part = partial + c * stride;
            mass = fmaf(expf(__ldcg(part + dim) - maximum), __ldcg(part + dim + 1), mass);
        }
        for (uint32_t d = threadIdx.x; d < dim; d += ATTENTION_THREADS) {
            float total = 0.0f;
            for (uint32_t c = 0; c < chunks; c++) {
                const float* part = partial + c * stride;
                total = fmaf(expf(__ldcg(part + dim) - maximum), __ldcg(part + d), total);
            }
            p.out[head * dim + d] = total / mass;
        }
    }
}

#define ATTENTION(NUMBER, NAME, GROUP)                                                                      \
    extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS) attention_##NAME##_##GROUP(            \
        const __grid_constant__ AttentionParams p) {                                                        \
        attention<NUMBER, GROUP>(p);                                                                        \
    }
#define ATTENTIONS(NUMBER, NAME) \
    ATTENTION(NUMBER, NAME, 1) ATTENTION(NUMBER, NAME, 2) ATTENTION(NUMBER, NAME, 4) ATTENTION(NUMBER, NAME, 8)
ATTENTIONS(float, f32)
ATTENTIONS(__half, f16)
