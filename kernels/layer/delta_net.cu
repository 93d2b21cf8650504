// Gated DeltaNet between its input projections and the norm of its heads (mixer_gate.cu):
//
// delta_conv: c[r] = silu(sum_t kernel[:, t] * u(p - (taps - 1) + t)); [q, k, v] = c;
//   k = k * rsqrt(sum k^2 + eps), q likewise times query_scale, per head;
//   g = exp(decay * softplus(alpha + step_bias)), b = sigmoid(beta), per value head.
// delta_rule, per value head j with key head j % key_heads, for the rows of a sequence in order:
//   M = g M; M += k (b (v - M^T k))^T; out[r] = M^T q.
//   The last row of each sequence stores M and the inputs u of its last taps - 1 tokens.
//
// products: [rows, stride] f32: u [channels], alpha and beta [value_heads]; kernel: [channels,
// taps]; convolved: [rows, channels]: q, k, v; gates: [rows, value_heads]: g and b; out: [rows,
// value_heads * head_dim]. An earlier u is read from a row of this step, otherwise from the state.
// State and u are zero before position 0. taps <= 8; head_dim is a multiple of 16, at most 256.
//
// State of a sequence: the matrices, then u [taps - 1, channels], oldest first. Columns of a matrix
// are independent, so a block has a strip of 32 of them, in registers while it passes the rows of
// its sequence. A thread has two columns and an eighth of their rows: pieces of four rows, every
// eighth piece. The matrices are stored as the threads hold them: [value_heads, strips, pieces of a
// thread, threads, 4]; rows and columns beyond head_dim are zero.
//
// Grid: delta_conv (heads over 4, rows), a warp per head; delta_rule (value heads * strips,
// sequences).
// Bound: one row: latency, and the state read and written once; many rows of one sequence: four
// operations per number of the state and row, on the multiprocessors that the strips occupy.
// Oracle: walla_cpu's scalar DeltaNet (tests/gpu/recurrent.rs).
#include "gemm/linear.cuh"

struct DeltaParams {
    StepRef step;
    const float* products;
    const float* kernel;
    const float* decay;     // [value_heads]
    const float* step_bias; // [value_heads]
    float* state;           // [sequences, state_numbers]
    float* convolved;
    float2* gates;
    float* out;
    uint32_t stride;
    uint32_t alpha_at; // first column among the products
    uint32_t beta_at;
    uint32_t key_heads;
    uint32_t value_heads;
    uint32_t head_dim;
    uint32_t taps;
    uint32_t state_numbers; // of one sequence
    uint32_t inputs_at;     // of u within them
    float eps;
    float query_scale;
    uint32_t reserved;
};
static_assert(sizeof(DeltaParams) == 144, "as in params.rs");

constexpr uint32_t TAPS_MAX = 8;
constexpr uint32_t DELTA_HEAD_DIM_MAX = 256;
constexpr uint32_t DELTA_CONV_WARPS = 4;
constexpr uint32_t DELTA_THREADS = 128;
constexpr uint32_t DELTA_COLUMNS = 32; // of a strip
constexpr uint32_t ROW_LANES = 8;      // lanes that share a column

__device__ __forceinline__ uint32_t channels_of(const DeltaParams& p) {
    return (2 * p.key_heads + p.value_heads) * p.head_dim;
}

// Addresses of u(p - back) of row r, for `back` = 0 .. wanted - 1; null where u is zero.
__device__ __forceinline__ void inputs(const DeltaParams& p, uint32_t r, uint32_t wanted,
                                       const float* (&u)[TAPS_MAX]) {
    const StepRow row = p.step.row(r);
    const float* stored = p.state + size_t(row.sequence) * p.state_numbers + p.inputs_at;
    int32_t at = int32_t(r);
    uint32_t in_step = 0;
#pragma unroll
    for (uint32_t back = 0; back < TAPS_MAX; back++) {
        u[back] = nullptr;
        if (back >= wanted || back > row.position)
            continue;
        if (at >= 0) {
            u[back] = p.products + size_t(at) * p.stride;
            at = p.step.row(uint32_t(at)).previous;
            in_step++;
        } else {
            u[back] = stored + size_t(p.taps - 2 - (back - in_step)) * channels_of(p);
        }
    }
}

// ln(1 + e^x). Beyond 20 the difference to x is below one unit in the last place.
__device__ __forceinline__ float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

extern "C" __global__ void __launch_bounds__(DELTA_CONV_WARPS* WARP)
    delta_conv(const __grid_constant__ DeltaParams p) {
    constexpr uint32_t EACH = DELTA_HEAD_DIM_MAX / WARP;
    launch_dependents();
    const uint32_t r = blockIdx.y, lane = threadIdx.x % WARP;
    const uint32_t head = blockIdx.x * DELTA_CONV_WARPS + threadIdx.x / WARP;
    const bool is_row = r < p.step.header().rows;
    grid_dependency_wait();
    if (!is_row || head >= 2 * p.key_heads + p.value_heads)
        return;
    const float* u[TAPS_MAX];
    inputs(p, r, p.taps, u);
    float c[EACH], squares = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t d = i * WARP + lane, channel = head * p.head_dim + d;
        c[i] = 0.0f;
        if (d >= p.head_dim)
            continue;
        float sum = 0.0f;
#pragma unroll
        for (uint32_t back = TAPS_MAX; back-- > 0;)
            if (u[back])
                sum = fmaf(p.kernel[size_t(channel) * p.taps + p.taps - 1 - back], u[back][channel],
                           sum);
        c[i] = activate(sum, GATE_SILU);
        squares = fmaf(c[i], c[i], squares);
    }
    float factor = 1.0f;
    if (head < 2 * p.key_heads) {
        factor = rsqrtf(warp_sum(squares) + p.eps);
        factor *= head < p.key_heads ? p.query_scale : 1.0f;
    } else if (lane == 0) {
        const uint32_t its = head - 2 * p.key_heads;
        const float* products = p.products + size_t(r) * p.stride;
        const float step = softplus(products[p.alpha_at + its] + p.step_bias[its]);
        const float strength = __fdividef(1.0f, 1.0f + __expf(-products[p.beta_at + its]));
        p.gates[size_t(r) * p.value_heads + its] = make_float2(expf(p.decay[its] * step), strength);
    }
    float* out = p.convolved + size_t(r) * channels_of(p) + head * p.head_dim;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t d = i * WARP + lane;
        if (d < p.head_dim)
            out[d] = c[i] * factor;
    }
}

// Stores u of the last taps - 1 tokens up to row r: the block's share of the channels.
__device__ __forceinline__ void store_inputs(const DeltaParams& p, uint32_t r, uint32_t head,
                                             uint32_t strip) {
    const uint32_t part = threadIdx.x / DELTA_COLUMNS;
    const uint32_t d = strip * DELTA_COLUMNS + threadIdx.x % DELTA_COLUMNS;
    // The blocks of the first value heads also store their channels of queries and keys.
    if (d >= p.head_dim || part > 2 || (part > 0 && head >= p.key_heads))
        return;
    const uint32_t of_part = part == 0 ? 2 * p.key_heads : part == 1 ? 0 : p.key_heads;
    const uint32_t channel = (of_part + head) * p.head_dim + d;
    const float* u[TAPS_MAX];
    inputs(p, r, p.taps - 1, u);
    // All reads precede all writes: one thread owns a channel of a sequence.
    float values[TAPS_MAX];
#pragma unroll
    for (uint32_t back = 0; back < TAPS_MAX; back++)
        values[back] = u[back] ? u[back][channel] : 0.0f;
    float* stored = p.state + size_t(p.step.row(r).sequence) * p.state_numbers + p.inputs_at;
#pragma unroll
    for (uint32_t back = 0; back < TAPS_MAX; back++)
        if (back + 1 < p.taps)
            stored[size_t(p.taps - 2 - back) * channels_of(p) + channel] = values[back];
}

// Sum over the lanes that share a column; each of them gets it.
__device__ __forceinline__ float column_sum(float value) {
#pragma unroll
    for (uint32_t offset = ROW_LANES / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(FULL_MASK, value, offset);
    return value;
}

// DIM: head_dim, rounded up.
template <uint32_t DIM>
__device__ __forceinline__ void delta_rule(const DeltaParams& p) {
    constexpr uint32_t PIECES = DIM / (4 * ROW_LANES); // of a column, per thread
    constexpr uint32_t QUADS = DIM / 4;                // of a query or a key
    __shared__ float4 staged[2][2][QUADS];             // two rows: query and key
    __shared__ uint32_t ends[2];                       // first and last row of the sequence
    launch_dependents();
    const uint32_t strips = div_up(p.head_dim, DELTA_COLUMNS);
    const uint32_t head = blockIdx.x / strips, strip = blockIdx.x % strips;
    const uint32_t rows = p.step.header().rows;
    if (threadIdx.x < 2)
        ends[threadIdx.x] = rows;
    __syncthreads();
    for (uint32_t r = threadIdx.x; r < rows; r += DELTA_THREADS) {
        const StepRow& row = p.step.row(r);
        if (row.table != blockIdx.y)
            continue;
        if (row.previous < 0)
            ends[0] = r;
        if (row.flags & ROW_LAST_OF_SEQUENCE)
            ends[1] = r;
    }
    __syncthreads();
    const uint32_t first = ends[0], last = ends[1];
    if (last >= rows)
        return;
    const StepRow row = p.step.row(first);
    const uint32_t lane = threadIdx.x % WARP, part = lane % ROW_LANES;
    const uint32_t column = strip * DELTA_COLUMNS + threadIdx.x / ROW_LANES * 2;
    float4* state = reinterpret_cast<float4*>(p.state + size_t(row.sequence) * p.state_numbers) +
                    size_t(blockIdx.x) * 2 * PIECES * DELTA_THREADS + threadIdx.x;
    grid_dependency_wait();
    float m[2][4 * PIECES];
#pragma unroll
    for (uint32_t i = 0; i < 2 * PIECES; i++) {
        const float4 four = row.position == 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f)
                                              : state[size_t(i) * DELTA_THREADS];
        float* to = &m[i / PIECES][i % PIECES * 4];
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    }
    if (p.taps > 1)
        store_inputs(p, last, head, strip);

    // The thread's piece of a row's query or key, its two values, decay and strength.
    const uint32_t channels = channels_of(p), d = threadIdx.x % QUADS * 4;
    const bool has_piece = threadIdx.x < 2 * QUADS && d < p.head_dim;
    const bool has_columns = column < p.head_dim;
    const float* piece_at =
        p.convolved + (threadIdx.x / QUADS * p.key_heads + head % p.key_heads) * p.head_dim + d;
    const float* values_at = p.convolved + (2 * p.key_heads + head) * p.head_dim + column;
    float4 piece = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float2 values = make_float2(0.0f, 0.0f), gates;
    const auto fetch = [&](uint32_t r) {
        if (has_piece)
            piece = *reinterpret_cast<const float4*>(piece_at + size_t(r) * channels);
        if (has_columns)
            values = *reinterpret_cast<const float2*>(values_at + size_t(r) * channels);
        gates = p.gates[size_t(r) * p.value_heads + head];
    };
    fetch(first);
    for (uint32_t r = first; r <= last; r++) {
        float4(&now)[2][QUADS] = staged[(r - first) % 2];
        if (threadIdx.x < 2 * QUADS)
            now[threadIdx.x / QUADS][threadIdx.x % QUADS] = piece;
        const float v[2] = {values.x, values.y};
        const float decay = gates.x, strength = gates.y;
        __syncthreads();
        if (r < last)
            fetch(r + 1);
        float keys[4 * PIECES], sums[2] = {};
#pragma unroll
        for (uint32_t i = 0; i < PIECES; i++) {
            const float4 four = now[1][i * ROW_LANES + part];
            keys[4 * i] = four.x, keys[4 * i + 1] = four.y, keys[4 * i + 2] = four.z,
                     keys[4 * i + 3] = four.w;
        }
#pragma unroll
        for (uint32_t c = 0; c < 2; c++)
#pragma unroll
            for (uint32_t i = 0; i < 4 * PIECES; i++) {
                m[c][i] *= decay;
                sums[c] = fmaf(m[c][i], keys[i], sums[c]);
            }
        float change[2], out[2] = {};
#pragma unroll
        for (uint32_t c = 0; c < 2; c++)
            change[c] = strength * (v[c] - column_sum(sums[c]));
#pragma unroll
        for (uint32_t i = 0; i < PIECES; i++) {
            const float4 four = now[0][i * ROW_LANES + part];
            const float query[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (uint32_t c = 0; c < 2; c++)
#pragma unroll
                for (uint32_t e = 0; e < 4; e++) {
                    m[c][4 * i + e] = fmaf(keys[4 * i + e], change[c], m[c][4 * i + e]);
                    out[c] = fmaf(m[c][4 * i + e], query[e], out[c]);
                }
        }
        const float2 both = make_float2(column_sum(out[0]), column_sum(out[1]));
        if (part == 0 && has_columns)
            *reinterpret_cast<float2*>(p.out + (size_t(r) * p.value_heads + head) * p.head_dim +
                                       column) = both;
    }
#pragma unroll
    for (uint32_t i = 0; i < 2 * PIECES; i++) {
        const float* from = &m[i / PIECES][i % PIECES * 4];
        state[size_t(i) * DELTA_THREADS] = make_float4(from[0], from[1], from[2], from[3]);
    }
}

// Defines the kernel `NAME`.
#define DELTA_RULE(NAME, DIM)                                   \
    extern "C" __global__ void __launch_bounds__(DELTA_THREADS) \
        NAME(const __grid_constant__ DeltaParams p) {           \
        delta_rule<DIM>(p);                                     \
    }
DELTA_RULE(delta_rule_32, 32)
DELTA_RULE(delta_rule_64, 64)
DELTA_RULE(delta_rule_128, 128)
DELTA_RULE(delta_rule_256, 256)
