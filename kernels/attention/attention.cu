// attention: out[r] = softmax(scale * q[r] K^T) V over the cells max(0, p + 1 - window) ..= p of
// the row's sequence. q, out: [rows, heads * head_dim] f32; pages as in kv.cuh. Softmax and sums in
// f32. head_dim <= 8 * LANES * PARTS, a multiple of 8: LANES lanes share a cell. A lane has 8
// numbers of each part of 8 * LANES, so a load is 16 bytes of f16, or 8 of 8 bits.
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

// Static shared memory of a block.
template <uint32_t GROUP, uint32_t LANES, uint32_t PARTS>
struct AttentionShared {
    static constexpr uint32_t CELLS = ATTENTION_THREADS / LANES, DIM_MAX = 8 * LANES * PARTS;
    // Cells per thread whose keys or values are in flight at once.
    static constexpr uint32_t AHEAD = 4 / PARTS;
    float scores[GROUP][CHUNK]; // then weights
    __align__(16) float sums[GROUP][CELLS][DIM_MAX];
    float maxima[GROUP], masses[GROUP];
    bool is_last;
};

// Queries of `heads` heads, a lane's numbers; zeros for other heads, and for parts beyond the head.
// `from`: the lane's first number, `d0` its place in the head.
template <uint32_t LANES, uint32_t GROUP, uint32_t PARTS>
__device__ __forceinline__ void load_queries(float (&q)[PARTS][GROUP][8], const float* from,
                                             uint32_t d0, uint32_t dim, uint32_t heads) {
#pragma unroll
    for (uint32_t part = 0; part < PARTS; part++)
#pragma unroll
        for (uint32_t g = 0; g < GROUP; g++) {
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                q[part][g][i] = 0.0f;
            if (g < heads && d0 + part * 8 * LANES < dim)
                load_eight(from + g * dim + part * 8 * LANES, q[part][g]);
        }
}

// A lane's share of the dot products of queries and keys.
template <typename Number, uint32_t GROUP, uint32_t PARTS, uint32_t AHEAD>
__device__ __forceinline__ void multiply_keys(float (&dots)[AHEAD][GROUP],
                                              const float (&q)[PARTS][GROUP][8],
                                              const Eight<Number> (&keys)[AHEAD][PARTS]) {
#pragma unroll
    for (uint32_t a = 0; a < AHEAD; a++) {
#pragma unroll
        for (uint32_t part = 0; part < PARTS; part++) {
            float key[8];
            keys[a][part].decode(key);
#pragma unroll
            for (uint32_t g = 0; g < GROUP; g++) {
                if (part == 0)
                    dots[a][g] = 0.0f;
#pragma unroll
                for (uint32_t i = 0; i < 8; i++)
                    dots[a][g] = fmaf(q[part][g][i], key[i], dots[a][g]);
            }
        }
    }
}

// Adds the dot products of the LANES lanes that share a cell.
template <uint32_t LANES, uint32_t GROUP, uint32_t AHEAD>
__device__ __forceinline__ void add_lanes(float (&dots)[AHEAD][GROUP]) {
#pragma unroll
    for (uint32_t offset = LANES / 2; offset > 0; offset /= 2)
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++)
#pragma unroll
            for (uint32_t g = 0; g < GROUP; g++)
                dots[a][g] += __shfl_xor_sync(FULL_MASK, dots[a][g], offset);
}

// Adds the weighted values of cells `c0`, `c0` + CELLS, ….
template <typename Number, uint32_t GROUP, uint32_t PARTS, uint32_t AHEAD, typename Shared>
__device__ __forceinline__ void add_values(float (&sum)[PARTS][GROUP][8], const Shared& sh,
                                           const Eight<Number> (&values)[AHEAD][PARTS], uint32_t c0,
                                           uint32_t heads) {
#pragma unroll
    for (uint32_t a = 0; a < AHEAD; a++) {
        // Beyond the last cell the values are zero, and so are the weights up to CHUNK.
        const uint32_t c = min(c0 + a * Shared::CELLS, CHUNK - 1);
#pragma unroll
        for (uint32_t part = 0; part < PARTS; part++) {
            float value[8];
            values[a][part].decode(value);
#pragma unroll
            for (uint32_t g = 0; g < GROUP; g++) {
                const float weight = g < heads ? sh.scores[g][c] : 0.0f;
#pragma unroll
                for (uint32_t i = 0; i < 8; i++)
                    sum[part][g][i] = fmaf(weight, value[i], sum[part][g][i]);
            }
        }
    }
}

// Softmax of `count` scores relative to their maximum, a warp per head: scores become weights.
template <typename Shared>
__device__ __forceinline__ void weigh_scores(Shared& sh, uint32_t heads, uint32_t count) {
    for (uint32_t g = threadIdx.x / WARP; g < heads; g += ATTENTION_WARPS) {
        const uint32_t lane = threadIdx.x % WARP;
        float own[CHUNK / WARP];
        float maximum = -INFINITY;
#pragma unroll
        for (uint32_t i = 0; i < CHUNK / WARP; i++) {
            own[i] = i * WARP + lane < count ? sh.scores[g][i * WARP + lane] : -INFINITY;
            maximum = fmaxf(maximum, own[i]);
        }
        maximum = warp_max(maximum);
        float mass = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < CHUNK / WARP; i++) {
            own[i] = i * WARP + lane < count ? expf(own[i] - maximum) : 0.0f;
            sh.scores[g][i * WARP + lane] = own[i];
            mass += own[i];
        }
        mass = warp_sum(mass);
        if (lane == 0)
            sh.maxima[g] = maximum, sh.masses[g] = mass;
    }
}

// Whether the block is the last of its row and heads. The whole block calls it.
__device__ __forceinline__ bool is_last_chunk(const AttentionParams& p, bool& is_last, uint32_t r,
                                              uint32_t chunks) {
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
        return false;
    __threadfence();
    return true;
}

// Merges the partial results of the row's chunks in order and writes the result.
__device__ __forceinline__ void merge_chunks(const AttentionParams& p, uint32_t r, uint32_t head0,
                                             uint32_t heads, uint32_t chunks) {
    const uint32_t dim = p.kv.head_dim, stride = dim + 2;
    for (uint32_t at = threadIdx.x; at < heads * dim; at += ATTENTION_THREADS) {
        const uint32_t g = at / dim, d = at % dim;
        const float* partial =
            p.partials + (size_t(r) * p.heads + head0 + g) * p.chunks_max * stride;
        float maximum = -INFINITY, mass = 0.0f, total = 0.0f;
#pragma unroll 4
        for (uint32_t c = 0; c < chunks; c++, partial += stride) {
            const float chunk_maximum = __ldcg(partial + dim);
            const float chunk_mass = __ldcg(partial + dim + 1);
            const float chunk_total = __ldcg(partial + d);
            const float both = fmaxf(maximum, chunk_maximum);
            const float old_factor = expf(maximum - both), factor = expf(chunk_maximum - both);
            mass = fmaf(mass, old_factor, chunk_mass * factor);
            total = fmaf(total, old_factor, chunk_total * factor);
            maximum = both;
        }
        store_out(p, r, head0 + g, d, total / mass);
    }
}

template <typename Number, uint32_t GROUP, uint32_t LANES, uint32_t PARTS>
__device__ __forceinline__ void attention(const AttentionParams& p) {
    using Shared = AttentionShared<GROUP, LANES, PARTS>;
    constexpr uint32_t CELLS = Shared::CELLS, AHEAD = Shared::AHEAD;
    __shared__ Shared sh;
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
    const uint32_t* table = p.step.table(row.table);
    const Number* keys = reinterpret_cast<const Number*>(p.kv.keys);
    const Number* values = reinterpret_cast<const Number*>(p.kv.values);
    Eight<Number> ahead[AHEAD][PARTS];
    const auto fetch = [&](bool is_value, uint32_t c0) {
        const Number* numbers = is_value ? values : keys;
        const __half* scales = is_value ? p.kv.value_scales : p.kv.key_scales;
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++) {
            const uint32_t c = c0 + a * CELLS + cell0;
            const size_t cell = c < count ? cell_of(p.kv, table, kv_head, from + c) : 0;
#pragma unroll
            for (uint32_t part = 0; part < PARTS; part++) {
                const uint32_t d = d0 + part * 8 * LANES;
                ahead[a][part].zero();
                if (c < count && d < dim)
                    ahead[a][part].load(numbers + cell * dim + d, scales + cell);
            }
        }
    };

    fetch(false, 0);
    {
        float q[PARTS][GROUP][8];
        load_queries<LANES>(q, p.q + (size_t(r) * p.heads + head0) * dim + d0, d0, dim, heads);
        // All lanes of a warp run the same number of iterations: the sums below are over whole
        // warps.
        for (uint32_t c0 = 0; c0 < count; c0 += CELLS * AHEAD) {
            float dots[AHEAD][GROUP];
            multiply_keys(dots, q, ahead);
            // The next keys, or the first values, are in flight during the lanes' reduction.
            const bool more = c0 + CELLS * AHEAD < count;
            fetch(!more, more ? c0 + CELLS * AHEAD : 0);
            add_lanes<LANES>(dots);
            if (lane == 0)
#pragma unroll
                for (uint32_t a = 0; a < AHEAD; a++)
#pragma unroll
                    for (uint32_t g = 0; g < GROUP; g++)
                        if (c0 + a * CELLS + cell0 < count)
                            sh.scores[g][c0 + a * CELLS + cell0] = dots[a][g] * p.scale;
        }
    }
    __syncthreads();
    __syncthreads();

    weigh_scores(sh, heads, count);
    __syncthreads();

    float sum[PARTS][GROUP][8] = {};
    for (uint32_t c0 = 0; c0 < count; c0 += CELLS * AHEAD) {
        Eight<Number> now[AHEAD][PARTS];
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++)
#pragma unroll
            for (uint32_t part = 0; part < PARTS; part++)
                now[a][part] = ahead[a][part];
        if (c0 + CELLS * AHEAD < count)
            fetch(true, c0 + CELLS * AHEAD);
        add_values(sum, sh, now, c0 + cell0, heads);
    }
#pragma unroll
    for (uint32_t part = 0; part < PARTS; part++)
#pragma unroll
        for (uint32_t g = 0; g < GROUP; g++) {
            const float (&its)[8] = sum[part][g];
            float4* to = reinterpret_cast<float4*>(&sh.sums[g][cell0][d0 + part * 8 * LANES]);
            to[0] = make_float4(its[0], its[1], its[2], its[3]);
            to[1] = make_float4(its[4], its[5], its[6], its[7]);
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
            total += sh.sums[g][c][d];
        if (chunks == 1)
            store_out(p, r, head0 + g, d, total / sh.masses[g]);
        else
            partial_of(g)[chunk * stride + d] = total;
    }
    if (chunks == 1)
        return;
    if (threadIdx.x < heads) {
        float* partial = partial_of(threadIdx.x) + chunk * stride;
        partial[dim] = sh.maxima[threadIdx.x];
        partial[dim + 1] = sh.masses[threadIdx.x];
    }
    if (is_last_chunk(p, sh.is_last, r, chunks))
        merge_chunks(p, r, head0, heads, chunks);
}

// Names: attention_<numbers>_<query heads>x<eights of numbers>.
#define ATTENTION_OF(NUMBER, NAME, GROUP, LANES, PARTS, EIGHTS)                            \
    extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS)                        \
        attention_##NAME##_##GROUP##x##EIGHTS(const __grid_constant__ AttentionParams p) { \
        attention<NUMBER, GROUP, LANES, PARTS>(p);                                         \
    }
#define ATTENTION(NUMBER, NAME, GROUP, LANES) ATTENTION_OF(NUMBER, NAME, GROUP, LANES, 1, LANES)
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
// Large heads: up to four query heads, whose sums fill the shared memory.
#define ATTENTIONS_LARGE(NUMBER, NAME)       \
    ATTENTION_OF(NUMBER, NAME, 1, 32, 2, 64) \
    ATTENTION_OF(NUMBER, NAME, 2, 32, 2, 64) ATTENTION_OF(NUMBER, NAME, 4, 32, 2, 64)
ATTENTIONS_LARGE(float, f32)
ATTENTIONS_LARGE(__half, f16)
ATTENTIONS_LARGE(Biased, q8)
ATTENTIONS(Biased, q8, 8)
ATTENTIONS(Biased, q8, 16)
ATTENTIONS(Biased, q8, 32)
