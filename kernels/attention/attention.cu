// attention: out[r] = softmax(scale * q[r] K^T) V over the cells max(0, p + 1 - window) ..= p of
// the row's sequence.
// q, out: [rows, heads * head_dim] f32; pages as in kv.cuh. Softmax and sums in f32. head_dim <= 8
// * LANES, a multiple of 8: LANES lanes share a cell, 8 numbers each, so a load is 16 bytes of f16,
// or 8 of 8 bits.
//
// A block takes one row, one KV head with up to GROUP of its query heads, and CHUNK cells; the last
// block to finish for a row and head merges the chunks in order. Chunks start at the row's first
// cell, so a row's sums depend on its position alone.
// Grid: (kv_heads * query groups, chunks of context_max, rows); blocks beyond a row's chunks
// return.
// Bound: memory, keys and values read once per row.
// Oracle: walla_cpu's scalar attention (tests/gpu/attention.rs, parity.rs).
#include "attention/kv.cuh"
#include "gemm/packed_activations.cuh"

struct AttentionParams {
    StepRef step;
    KvRef kv;
    const float* q;
    float* out; // unless packed
    PackedRef packed;
    float* partials;    // [rows, heads, chunks_max, head_dim + 2]: sums, then maximum and mass
    uint32_t* arrivals; // [rows, grid.x], zero between launches
    uint32_t heads;
    uint32_t window; // 0: all
    float scale;
    uint32_t chunks_max;
};
static_assert(sizeof(AttentionParams) == 128 + sizeof(PackedRef), "as in params.rs");

constexpr uint32_t CHUNK = 128;
constexpr uint32_t ATTENTION_THREADS = 128;
constexpr uint32_t ATTENTION_WARPS = ATTENTION_THREADS / WARP;

__device__ __forceinline__ void store_out(const AttentionParams& p, uint32_t r, uint32_t head,
                                          uint32_t d, float value) {
    const uint32_t dim = p.kv.head_dim;
    if (p.packed.rows)
        store_packed(p.packed, r, head * dim + d, value);
    else
        p.out[(size_t(r) * p.heads + head) * dim + d] = value;
}

// Cells per thread whose keys or values are in flight at once.
constexpr uint32_t AHEAD = 4;

template <typename Number, uint32_t GROUP, uint32_t LANES>
__device__ __forceinline__ void attention(const AttentionParams& p) {
    constexpr uint32_t CELLS = ATTENTION_THREADS / LANES;
    constexpr uint32_t DIM_MAX = 8 * LANES;
    __shared__ float scores[GROUP][CHUNK];
    __shared__ __align__(16) float sums[GROUP][CELLS][DIM_MAX];
    __shared__ float maxima[GROUP];
    __shared__ float masses[GROUP];
    __shared__ bool is_last;
    launch_dependents();
    grid_dependency_wait();
    const uint32_t r = blockIdx.z;
    const StepRow row = p.step.row(r);
    const uint32_t end = row.position + 1;
    const uint32_t begin = p.window && end > p.window ? end - p.window : 0;
    const uint32_t chunks = div_up(end - begin, CHUNK);
    const uint32_t chunk = blockIdx.y;
    if (r >= p.step.header().rows || chunk >= chunks)
        return;
    const uint32_t from = begin + chunk * CHUNK;
    const uint32_t count = min(CHUNK, end - from);

    const uint32_t dim = p.kv.head_dim;
    const uint32_t per_kv = p.heads / p.kv.kv_heads;
    const uint32_t groups = div_up(per_kv, GROUP);
    const uint32_t kv_head = blockIdx.x / groups;
    const uint32_t first_of_kv = blockIdx.x % groups * GROUP;
    const uint32_t head0 = kv_head * per_kv + first_of_kv;
    const uint32_t heads = min(GROUP, per_kv - first_of_kv);

    const uint32_t lane = threadIdx.x % LANES;
    const uint32_t cell0 = threadIdx.x / LANES;
    const uint32_t d0 = lane * 8;
    const bool inside = d0 < dim;
    const uint32_t* table = p.step.table(row.table);
    const Number* keys = reinterpret_cast<const Number*>(p.kv.keys);
    const Number* values = reinterpret_cast<const Number*>(p.kv.values);
    Eight<Number> ahead[AHEAD];
    const auto fetch = [&](bool is_value, uint32_t c0) {
        const Number* numbers = is_value ? values : keys;
        const __half* scales = is_value ? p.kv.value_scales : p.kv.key_scales;
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++) {
            const uint32_t c = c0 + a * CELLS + cell0;
            ahead[a].zero();
            if (c < count && inside) {
                const size_t cell = cell_of(p.kv, table, kv_head, from + c);
                ahead[a].load(numbers + cell * dim + d0, scales + cell);
            }
        }
    };

    fetch(false, 0);
    {
        float q[GROUP][8];
#pragma unroll
        for (uint32_t g = 0; g < GROUP; g++) {
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                q[g][i] = 0.0f;
            if (g < heads && inside)
                load_eight(p.q + (size_t(r) * p.heads + head0 + g) * dim + d0, q[g]);
        }
        // All lanes of a warp run the same number of iterations: the sums below are over whole
        // warps.
        for (uint32_t c0 = 0; c0 < count; c0 += CELLS * AHEAD) {
            float dots[AHEAD][GROUP];
#pragma unroll
            for (uint32_t a = 0; a < AHEAD; a++) {
                float key[8];
                ahead[a].decode(key);
#pragma unroll
                for (uint32_t g = 0; g < GROUP; g++) {
                    dots[a][g] = 0.0f;
#pragma unroll
                    for (uint32_t i = 0; i < 8; i++)
                        dots[a][g] = fmaf(q[g][i], key[i], dots[a][g]);
                }
            }
            // The next keys, or the first values, are in flight during the lanes' reduction.
            const bool more = c0 + CELLS * AHEAD < count;
            fetch(!more, more ? c0 + CELLS * AHEAD : 0);
#pragma unroll
            for (uint32_t offset = LANES / 2; offset > 0; offset /= 2)
#pragma unroll
                for (uint32_t a = 0; a < AHEAD; a++)
#pragma unroll
                    for (uint32_t g = 0; g < GROUP; g++)
                        dots[a][g] += __shfl_xor_sync(FULL_MASK, dots[a][g], offset);
            if (lane == 0)
#pragma unroll
                for (uint32_t a = 0; a < AHEAD; a++)
#pragma unroll
                    for (uint32_t g = 0; g < GROUP; g++)
                        if (c0 + a * CELLS + cell0 < count)
                            scores[g][c0 + a * CELLS + cell0] = dots[a][g] * p.scale;
        }
    }
    __syncthreads();

    for (uint32_t g = threadIdx.x / WARP; g < heads; g += ATTENTION_WARPS) {
        const uint32_t l = threadIdx.x % WARP;
        float own[CHUNK / WARP];
        float maximum = -INFINITY;
#pragma unroll
        for (uint32_t i = 0; i < CHUNK / WARP; i++) {
            own[i] = i * WARP + l < count ? scores[g][i * WARP + l] : -INFINITY;
            maximum = fmaxf(maximum, own[i]);
        }
        maximum = warp_max(maximum);
        float mass = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < CHUNK / WARP; i++) {
            own[i] = i * WARP + l < count ? expf(own[i] - maximum) : 0.0f;
            scores[g][i * WARP + l] = own[i];
            mass += own[i];
        }
        mass = warp_sum(mass);
        if (l == 0)
            maxima[g] = maximum, masses[g] = mass;
    }
    __syncthreads();

    float sum[GROUP][8] = {};
    for (uint32_t c0 = 0; c0 < count; c0 += CELLS * AHEAD) {
        Eight<Number> now[AHEAD];
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++)
            now[a] = ahead[a];
        if (c0 + CELLS * AHEAD < count)
            fetch(true, c0 + CELLS * AHEAD);
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++) {
            // Beyond the last cell the values are zero, and so are the scores up to CHUNK.
            const uint32_t c = min(c0 + a * CELLS + cell0, CHUNK - 1);
            float value[8];
            now[a].decode(value);
#pragma unroll
            for (uint32_t g = 0; g < GROUP; g++) {
                const float e = g < heads ? scores[g][c] : 0.0f;
#pragma unroll
                for (uint32_t i = 0; i < 8; i++)
                    sum[g][i] = fmaf(e, value[i], sum[g][i]);
            }
        }
    }
#pragma unroll
    for (uint32_t g = 0; g < GROUP; g++) {
        float4* to = reinterpret_cast<float4*>(&sums[g][cell0][d0]);
        to[0] = make_float4(sum[g][0], sum[g][1], sum[g][2], sum[g][3]);
        to[1] = make_float4(sum[g][4], sum[g][5], sum[g][6], sum[g][7]);
    }
    __syncthreads();
    const uint32_t stride = dim + 2;
    const auto partial_of = [&](uint32_t g) {
        return p.partials + (size_t(r) * p.heads + head0 + g) * p.chunks_max * stride;
    };
    for (uint32_t at = threadIdx.x; at < heads * dim; at += ATTENTION_THREADS) {
        const uint32_t g = at / dim, d = at % dim;
        float total = 0.0f;
#pragma unroll
        for (uint32_t c = 0; c < CELLS; c++)
            total += sums[g][c][d];
        if (chunks == 1)
            store_out(p, r, head0 + g, d, total / masses[g]);
        else
            partial_of(g)[chunk * stride + d] = total;
    }
    if (chunks == 1)
        return;
    if (threadIdx.x < heads) {
        float* partial = partial_of(threadIdx.x) + chunk * stride;
        partial[dim] = maxima[threadIdx.x];
        partial[dim + 1] = masses[threadIdx.x];
    }
    __threadfence();
    __syncthreads();
    uint32_t* arrivals = p.arrivals + size_t(r) * gridDim.x + blockIdx.x;
    if (threadIdx.x == 0) {
        is_last = atomicAdd(arrivals, 1) == chunks - 1;
        if (is_last)
            *arrivals = 0;
    }
    __syncthreads();
    if (!is_last)
        return;
    __threadfence();
    for (uint32_t at = threadIdx.x; at < heads * dim; at += ATTENTION_THREADS) {
        const uint32_t g = at / dim, d = at % dim;
        const float* part = partial_of(g);
        float maximum = -INFINITY, mass = 0.0f, total = 0.0f;
#pragma unroll 4
        for (uint32_t c = 0; c < chunks; c++, part += stride) {
            const float its = __ldcg(part + dim);
            const float its_mass = __ldcg(part + dim + 1);
            const float its_total = __ldcg(part + d);
            const float both = fmaxf(maximum, its);
            const float old_factor = expf(maximum - both), factor = expf(its - both);
            mass = fmaf(mass, old_factor, its_mass * factor);
            total = fmaf(total, old_factor, its_total * factor);
            maximum = both;
        }
        store_out(p, r, head0 + g, d, total / mass);
    }
}

#define ATTENTION(NUMBER, NAME, GROUP, LANES)                                             \
    extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS)                       \
        attention_##NAME##_##GROUP##x##LANES(const __grid_constant__ AttentionParams p) { \
        attention<NUMBER, GROUP, LANES>(p);                                               \
    }
#define ATTENTIONS(NUMBER, NAME, LANES) \
    ATTENTION(NUMBER, NAME, 1, LANES)   \
    ATTENTION(NUMBER, NAME, 2, LANES)   \
    ATTENTION(NUMBER, NAME, 4, LANES) ATTENTION(NUMBER, NAME, 8, LANES)
ATTENTIONS(float, f32, 8)
ATTENTIONS(float, f32, 16)
ATTENTIONS(float, f32, 32)
ATTENTIONS(__half, f16, 8)
ATTENTIONS(__half, f16, 16)
ATTENTIONS(__half, f16, 32)
ATTENTIONS(Biased, q8, 8)
ATTENTIONS(Biased, q8, 16)
ATTENTIONS(Biased, q8, 32)
