// sample_scan, sample_draw: draw a token for every output that asks for one, as walla_device's Op::Sample says.
// logits: [outputs, vocab] f32, left as they are. Oracle: walla_cpu's sampler.
//
// sample_scan cuts the vocabulary into chunks of CHUNK tokens, a block each: copies the logits with biases, penalties and
// temperature applied to `scores`, and leaves the chunk's statistics and its best tokens by score and (if asked) by logit.
// sample_draw, a block an output, merges the chunks in order. Top-k up to TOP_MAX needs the chunks' best alone; a larger top-k,
// or top-p without one, narrows a key range over all scores instead; anything else is one pass.
// A key orders tokens: the score's bits made monotone above, the complement of the id below; so the larger key comes first, and
// every cut keeps the tokens from some key on.
// Memory-bound, 8 bytes a token. Sums of probability are of integers (2^-40 units), so their order does not matter.
#include "step.cuh"

constexpr uint32_t SCAN_THREADS = 256;
constexpr uint32_t DRAW_THREADS = 1024;
constexpr uint32_t CHUNK = 4096;
constexpr uint32_t PER_THREAD = CHUNK / SCAN_THREADS;
constexpr uint32_t TOP_MAX = 64;
// Keys of a thread when the chunks are merged: bounds the vocabulary at DRAW_KEYS * DRAW_THREADS / TOP_MAX chunks, 524,288 tokens.
constexpr uint32_t DRAW_KEYS = 8;

struct ChunkStats {
    float maximum;  // of the logits alone
    float mass;     // sum of exp(logit - maximum)
    uint32_t bad;   // some logit is NaN or positive infinity
    uint32_t reserved;
};
static_assert(sizeof(ChunkStats) == 16, "as in lower.rs");

struct SampleParams {
    StepRef step;
    ResultRef results;
    const float* logits;
    uint32_t* last_sampled;  // [sequences]
    const uint32_t* recent;  // [sequences, PENALTY_WINDOW_MAX]
    float* scores;           // [outputs, vocab]
    ChunkStats* stats;       // [outputs, chunks]
    uint64_t* top;           // [outputs, chunks, TOP_MAX] by score
    uint64_t* likely;        // [outputs, chunks, CANDIDATES_MAX] by logit
    uint32_t vocab;
    uint32_t chunks;
};
static_assert(sizeof(SampleParams) == 120, "as in params.rs");

__device__ __forceinline__ uint64_t key_of(float value, uint32_t token) {
    // Minus zero and zero are equal: they must differ by id alone.
    const uint32_t bits = __float_as_uint(value == 0.0f ? 0.0f : value);
    const uint32_t monotone = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return uint64_t(monotone) << 32 | uint32_t(~token);
}
__device__ __forceinline__ uint32_t token_of(uint64_t key) { return ~uint32_t(key); }
__device__ __forceinline__ float value_of(uint64_t key) {
    const uint32_t monotone = uint32_t(key >> 32);
    return __uint_as_float(monotone & 0x80000000u ? monotone & 0x7fffffffu : ~monotone);
}

__device__ __forceinline__ uint64_t key_max(uint64_t key) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const uint64_t other = __shfl_xor_sync(FULL_MASK, key, offset);
        key = other > key ? other : key;
    }
    return key;
}

// Puts the `count` largest of the block's keys into `out`, in no order. Each of THREADS threads holds PER keys, no two equal, 0
// for none; if there are fewer than `count`, zeros fill up. Narrows the lowest kept key eight bits at a time.
template <uint32_t THREADS, uint32_t PER>
__device__ __forceinline__ void block_top(const uint64_t (&keys)[PER], uint32_t count, uint64_t* out) {
    __shared__ uint32_t histogram[256];
    __shared__ uint64_t prefix;
    __shared__ uint32_t wanted, taken;
    if (threadIdx.x == 0) prefix = 0, wanted = count, taken = 0;
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) out[i] = 0;
    uint32_t shift = 64;
    while (shift > 0) {
        shift -= 8;
        if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
        __syncthreads();
        const uint64_t above = shift == 56 ? 0 : prefix >> (shift + 8);
#pragma unroll
        for (uint32_t i = 0; i < PER; i++)
            if (keys[i] && (shift == 56 || keys[i] >> (shift + 8) == above))
                atomicAdd(&histogram[keys[i] >> shift & 255u], 1);
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
        if (keys[i] && keys[i] >= lowest) out[atomicAdd(&taken, 1)] = keys[i];
    __syncthreads();
}

// Biases and penalties, on the block's tokens only.
__device__ __forceinline__ void adjust(const SampleParams& p, const OutputRow& output, float* chunk, uint32_t first,
                                       uint32_t count) {
    __shared__ uint32_t window[PENALTY_WINDOW_MAX];
    for (uint32_t b = threadIdx.x; b < output.bias_count; b += SCAN_THREADS) {
        const BiasRow bias = p.step.bias(output.bias_first + b);
        if (bias.token - first < count) chunk[bias.token - first] += bias.bias;
    }
    __syncthreads();
    const uint32_t length = min(min(output.penalty_window, PENALTY_WINDOW_MAX), output.position + 1);
    const bool penalties = length > 0 && (output.repetition_penalty != 1.0f || output.presence_penalty != 0.0f ||
                                          output.frequency_penalty != 0.0f);
    if (!penalties) return;
    const uint32_t i = threadIdx.x;
    static_assert(SCAN_THREADS == PENALTY_WINDOW_MAX, "a thread for each token of the window");
    if (i < length)
        window[i] = p.recent[output.sequence * PENALTY_WINDOW_MAX + (output.position - i) % PENALTY_WINDOW_MAX];
    __syncthreads();
    if (i < length && window[i] - first < count) {
        uint32_t times = 0;
        bool is_first = true;
        for (uint32_t j = 0; j < length; j++)
            if (window[j] == window[i]) times++, is_first = is_first && j >= i;
        if (is_first) {
            float value = chunk[window[i] - first];
            value = value > 0.0f ? value / output.repetition_penalty : value * output.repetition_penalty;
            chunk[window[i] - first] = value - (output.presence_penalty + float(times) * output.frequency_penalty);
        }
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(SCAN_THREADS) sample_scan(const __grid_constant__ SampleParams p) {
    __shared__ float chunk[CHUNK];
    __shared__ float scratch[SCAN_THREADS / WARP];
    let_successors_start();
    wait_for_predecessors();
    const uint32_t o = blockIdx.y;
    if (o >= p.step.header().outputs) return;
    const OutputRow output = p.step.output(o);
    if (!(output.flags & OUTPUT_SAMPLE)) return;
    const uint32_t first = blockIdx.x * CHUNK;
    const uint32_t count = min(CHUNK, p.vocab - first);
    const float* logits = p.logits + size_t(o) * p.vocab + first;

    bool bad = false;
    float maximum = -INFINITY;
    uint64_t keys[PER_THREAD];
#pragma unroll
    for (uint32_t i = 0; i < PER_THREAD; i++) {
        const uint32_t t = i * SCAN_THREADS + threadIdx.x;
        const float logit = t < count ? logits[t] : -INFINITY;
        chunk[t] = logit;
        bad = bad || isnan(logit) || logit == INFINITY;
        maximum = fmaxf(maximum, logit);
        keys[i] = t < count ? key_of(logit, first + t) : 0;
    }
    // A thread's own logits are read back from `chunk` by itself alone until the next barrier.
    bad = __syncthreads_or(bad);
    maximum = warp_max(maximum);
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = maximum;
    __syncthreads();
    maximum = -INFINITY;
    for (uint32_t w = 0; w < SCAN_THREADS / WARP; w++) maximum = fmaxf(maximum, scratch[w]);
    __syncthreads();
    float mass = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < PER_THREAD; i++) {
        const float logit = chunk[i * SCAN_THREADS + threadIdx.x];
        if (logit != -INFINITY) mass += expf(logit - maximum);
    }
    mass = block_sum<SCAN_THREADS>(mass, scratch);
    const size_t at = size_t(o) * p.chunks + blockIdx.x;
    if (threadIdx.x == 0) p.stats[at] = ChunkStats{maximum, mass, bad, 0};
    if (bad) return;

    if (output.candidates > 0) block_top<SCAN_THREADS>(keys, CANDIDATES_MAX, p.likely + at * CANDIDATES_MAX);
    adjust(p, output, chunk, first, count);
    float* scores = p.scores + size_t(o) * p.vocab + first;
#pragma unroll
    for (uint32_t i = 0; i < PER_THREAD; i++) {
        const uint32_t t = i * SCAN_THREADS + threadIdx.x;
        if (t >= count) continue;
        // Greedy works on the logits themselves.
        const float score = output.temperature > 0.0f ? chunk[t] / output.temperature : chunk[t];
        scores[t] = score;
        keys[i] = key_of(score, first + t);
    }
    const bool few = output.top_k > 0 && output.top_k <= TOP_MAX && output.temperature > 0.0f;
    block_top<SCAN_THREADS>(keys, few ? TOP_MAX : 1, p.top + at * TOP_MAX);
}

// Ten rounds of Philox4x32 (walla_device's philox.rs): the first word for counter (position, token, 0, 0).
__device__ __forceinline__ uint32_t philox(uint32_t position, uint32_t token, uint32_t key0, uint32_t key1) {
    uint32_t c0 = position, c1 = token, c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ key0;
        c1 = low1;
        c2 = high0 ^ c3 ^ key1;
        c3 = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c0;
}

struct Draw {
    const SampleParams& p;
    const OutputRow& output;
    uint64_t* scratch;  // [DRAW_THREADS / WARP]
    float top;          // the largest score

    __device__ uint64_t block_max(uint64_t key) const {
        key = key_max(key);
        if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = key;
        __syncthreads();
        key = key_max(scratch[threadIdx.x % WARP]);
        __syncthreads();
        return key;
    }

    // What the draw compares: the larger wins, the lower id of equals.
    __device__ uint64_t gumbel(uint64_t key) const {
        const uint32_t token = token_of(key);
        const uint32_t word = philox(output.position + 1, token, output.seed[0], output.seed[1]);
        const float u = (float(word >> 9) + 0.5f) / 8388608.0f;
        return key_of(value_of(key) - logf(-logf(u)), token);
    }

    __device__ bool likely(uint64_t key) const { return expf(value_of(key) - top) >= output.min_p; }

    // Probability in units of 2^-40 of the likeliest token's: integers, whose sums do not depend on order.
    __device__ uint64_t weight(uint64_t key) const {
        return uint64_t(double(expf(value_of(key) - top)) * 1099511627776.0);
    }
};

static_assert(DRAW_THREADS / WARP == WARP, "one warp merges what all warps found");

// The lowest key that top-k (when larger than TOP_MAX) and top-p keep, found over all scores, eight bits at a time: first by
// count, then by weight among what the count keeps.
__device__ uint64_t lowest_kept(const Draw& draw, const float* scores, bool by_weight, uint64_t floor_, uint64_t wanted) {
    __shared__ unsigned long long histogram[256];
    __shared__ uint64_t prefix, need;
    if (threadIdx.x == 0) prefix = 0, need = wanted;
    for (uint32_t shift = 64; shift > 0;) {
        shift -= 8;
        __syncthreads();
        if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
        __syncthreads();
        const uint64_t above = shift == 56 ? 0 : prefix >> (shift + 8);
        for (uint32_t t = threadIdx.x; t < draw.p.vocab; t += DRAW_THREADS) {
            const uint64_t key = key_of(scores[t], t);
            if (key < floor_ || (shift < 56 && key >> (shift + 8) != above)) continue;
            atomicAdd(&histogram[key >> shift & 255u], by_weight ? draw.weight(key) : 1ull);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint64_t sum = 0;
            uint32_t digit = 255;
            // Falls through to digit 0 only if rounding left the sum short: then everything is kept.
            for (; digit > 0 && sum + histogram[digit] < need; digit--) sum += histogram[digit];
            prefix |= uint64_t(digit) << shift;
            need -= sum;
        }
    }
    __syncthreads();
    return prefix > floor_ ? prefix : floor_;
}

extern "C" __global__ void __launch_bounds__(DRAW_THREADS) sample_draw(const __grid_constant__ SampleParams p) {
    __shared__ uint64_t merged[TOP_MAX], sorted[TOP_MAX];
    __shared__ float weights[TOP_MAX];
    __shared__ uint64_t scratch[DRAW_THREADS / WARP];
    __shared__ uint32_t kept;
    let_successors_start();
    wait_for_predecessors();
    const StepHeader& header = p.step.header();
    const uint32_t o = blockIdx.x;
    ResultHeader& result = p.results.header(header.ring_slot);
    if (o == 0 && threadIdx.x == 0) {
        result.step = header.step;
        result.outputs = header.outputs;
        result.end_nanos = nanos();
    }
    if (o >= header.outputs) return;
    ResultRow& row = p.results.row(header.ring_slot, o);
    const OutputRow output = p.step.output(o);
    if (!(output.flags & OUTPUT_SAMPLE)) {
        if (threadIdx.x == 0) row = ResultRow{0, 0, 0.0f, 0};
        return;
    }
    const ChunkStats* stats = p.stats + size_t(o) * p.chunks;
    float maximum = -INFINITY;
    bool bad = false;
    for (uint32_t c = 0; c < p.chunks; c++) {
        bad = bad || stats[c].bad;
        maximum = fmaxf(maximum, stats[c].maximum);
    }
    bad = bad || maximum == -INFINITY;
    float mass = 0.0f;
    for (uint32_t c = 0; c < p.chunks && !bad; c++)
        if (stats[c].maximum != -INFINITY) mass = fmaf(stats[c].mass, expf(stats[c].maximum - maximum), mass);
    const float log_mass = logf(mass);

    const uint64_t* top = p.top + size_t(o) * p.chunks * TOP_MAX;
    const float* scores = p.scores + size_t(o) * p.vocab;
    const bool few = output.top_k > 0 && output.top_k <= TOP_MAX && output.temperature > 0.0f;
    Draw draw{p, output, scratch, 0.0f};
    uint64_t best = 0;
    if (!bad) {
        for (uint32_t i = threadIdx.x; i < p.chunks * (few ? TOP_MAX : 1); i += DRAW_THREADS) {
            const uint64_t key = top[few ? i : size_t(i) * TOP_MAX];
            best = key > best ? key : best;
        }
        best = draw.block_max(best);
        bad = value_of(best) == -INFINITY;
    }
    if (bad) {
        if (threadIdx.x == 0) row = ResultRow{0, RESULT_NOT_FINITE, 0.0f, 0}, p.last_sampled[output.sequence] = 0;
        return;
    }
    draw.top = value_of(best);

    uint64_t chosen = best;
    if (output.temperature > 0.0f && isfinite(draw.top)) {
        uint64_t mine = 0;
        if (few) {
            uint64_t keys[DRAW_KEYS];
#pragma unroll
            for (uint32_t i = 0; i < DRAW_KEYS; i++) {
                const uint32_t k = i * DRAW_THREADS + threadIdx.x;
                keys[i] = k < p.chunks * TOP_MAX ? top[k] : 0;
            }
            block_top<DRAW_THREADS>(keys, TOP_MAX, merged);
            // Each key's place is the number of larger ones; zeros share the places at the end.
            if (threadIdx.x < TOP_MAX) sorted[threadIdx.x] = 0;
            __syncthreads();
            if (threadIdx.x < TOP_MAX && merged[threadIdx.x]) {
                uint32_t larger = 0;
                for (uint32_t i = 0; i < TOP_MAX; i++) larger += merged[i] > merged[threadIdx.x];
                sorted[larger] = merged[threadIdx.x];
                weights[larger] = expf(value_of(merged[threadIdx.x]) - draw.top);
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                uint32_t end = min(output.top_k, p.vocab);
                if (output.top_p < 1.0f) {
                    double total = 0.0, sum = 0.0;
                    for (uint32_t i = 0; i < end; i++) total += double(weights[i]);
                    const double wanted = double(output.top_p) * total;
                    uint32_t i = 0;
                    while (i < end) {
                        sum += double(weights[i++]);
                        if (sum >= wanted) break;
                    }
                    end = i;
                }
                while (end > 1 && !(weights[end - 1] >= output.min_p)) end--;
                kept = end;
            }
            __syncthreads();
            if (threadIdx.x < kept) mine = draw.gumbel(sorted[threadIdx.x]);
        } else {
            uint64_t lowest = 0;
            if (output.top_k > 0 && output.top_k < p.vocab) lowest = lowest_kept(draw, scores, false, 0, output.top_k);
            if (output.top_p < 1.0f) {
                __shared__ unsigned long long total;
                if (threadIdx.x == 0) total = 0;
                __syncthreads();
                uint64_t sum = 0;
                for (uint32_t t = threadIdx.x; t < p.vocab; t += DRAW_THREADS) {
                    const uint64_t key = key_of(scores[t], t);
                    if (key >= lowest) sum += draw.weight(key);
                }
                atomicAdd(&total, sum);
                __syncthreads();
                const uint64_t wanted = uint64_t(ceil(double(output.top_p) * double(total)));
                lowest = lowest_kept(draw, scores, true, lowest, wanted > 0 ? wanted : 1);
            }
            for (uint32_t t = threadIdx.x; t < p.vocab; t += DRAW_THREADS) {
                const uint64_t key = key_of(scores[t], t);
                if (key < lowest || (output.min_p > 0.0f && !draw.likely(key))) continue;
                const uint64_t score = draw.gumbel(key);
                mine = score > mine ? score : mine;
            }
        }
        chosen = draw.block_max(mine);
    }
    const uint32_t token = token_of(chosen);
    const uint32_t candidates = min(min(output.candidates, CANDIDATES_MAX), p.vocab);
    if (threadIdx.x == 0) {
        const float logit = p.logits[size_t(o) * p.vocab + token];
        row = ResultRow{token, RESULT_SAMPLED, logit - maximum - log_mass, candidates};
        p.last_sampled[output.sequence] = token;
    }
    // The likeliest tokens of the model alone: the best of what the chunks left, one after the other.
    const uint64_t* likely = p.likely + size_t(o) * p.chunks * CANDIDATES_MAX;
    uint64_t below = ~uint64_t(0);
    for (uint32_t c = 0; c < candidates; c++) {
        uint64_t next = 0;
        for (uint32_t i = threadIdx.x; i < p.chunks * CANDIDATES_MAX; i += DRAW_THREADS)
            if (likely[i] < below && likely[i] > next) next = likely[i];
        next = draw.block_max(next);
        if (threadIdx.x == 0)
            p.results.candidates(header.ring_slot, o)[c] = Candidate{token_of(next), value_of(next) - maximum - log_mass};
        below = next;
    }
    if (o == 0 && threadIdx.x == 0) result.end_nanos = nanos();
}
