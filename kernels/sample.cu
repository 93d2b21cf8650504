// sample_scan, sample_draw: draw a token for every output that asks for one, as walla_device's Op::Sample says.
// logits: [outputs, vocab] f32, left as they are. Oracle: walla_cpu's sampler.
//
// sample_scan cuts the vocabulary into chunks of CHUNK tokens, a block each: applies biases, penalties and temperature, and leaves
// the chunk's statistics and its best tokens by score, in order, and (if asked) by logit; all scores only for who needs them.
// sample_draw, a block an output, merges the chunks in order. Top-k up to TOP_MAX needs the chunks' best alone. A larger top-k, or
// top-p without one, counts and weighs the scores in bins of 1/64 and more below the largest (one pass), looks at the tokens of the bin in
// which the cut falls (a pass for each cut) and draws (a pass); where a cut falls far below the largest score or into a crowded
// bin, it narrows a key range over all scores eight bits at a time. Anything else is one pass.
// A key orders tokens: the score's bits made monotone above, the complement of the id below; so the larger key comes first, and
// every cut keeps the tokens from some key on.
// Memory-bound, 8 bytes a token. Sums of probability are of integers (2^-40 units), so their order does not matter.
#include "step.cuh"

constexpr uint32_t SCAN_THREADS = 256;
constexpr uint32_t DRAW_THREADS = 1024;
constexpr uint32_t CHUNK = 4096;
constexpr uint32_t PER_THREAD = CHUNK / SCAN_THREADS;
constexpr uint32_t TOP_MAX = 64;

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

// Puts the `count` largest of the block's keys into `out`, in no order. Each of THREADS threads has PER keys `key(i)`, no two equal,
// 0 for none; if there are fewer than `count`, zeros fill up. Narrows the lowest kept key eight bits at a time.
template <uint32_t THREADS, uint32_t PER, typename Key>
__device__ __noinline__ void block_top(Key key, uint32_t count, uint64_t* out) {
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
        for (uint32_t i = 0; i < PER; i++) {
            const uint64_t k = key(i);
            if (k && (shift == 56 || k >> (shift + 8) == above)) atomicAdd(&histogram[k >> shift & 255u], 1);
        }
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
        if (key(i) && key(i) >= lowest) out[atomicAdd(&taken, 1)] = key(i);
    __syncthreads();
}

// A threshold that at least `need` of the values of some sorted lists reach, and few more: for every depth j, the lists whose
// entry j is among the div_up(need, j + 1) largest hold that many. `rank_here`: how many lists have a larger entry here, ties by
// number of the list. Answers whether the caller's entry is such a threshold.
__device__ __forceinline__ bool is_threshold(uint32_t need, uint32_t depth, uint32_t rank_here) {
    return rank_here + 1 == div_up(need, depth + 1);
}

// Sorts a warp's values, the largest in lane 0.
__device__ __forceinline__ float warp_sort(float value) {
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (uint32_t size = 2; size <= WARP; size *= 2)
#pragma unroll
        for (uint32_t stride = size / 2; stride > 0; stride /= 2) {
            const float other = __shfl_xor_sync(FULL_MASK, value, stride);
            const bool keeps_larger = ((lane & size) == 0) == ((lane & stride) == 0);
            value = keeps_larger ? fmaxf(value, other) : fminf(value, other);
        }
    return value;
}

// A number's bits in an order that integers have.
__device__ __forceinline__ uint32_t monotone_of(float value) {
    const uint32_t bits = __float_as_uint(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float float_of(uint32_t monotone) {
    return __uint_as_float(monotone & 0x80000000u ? monotone & 0x7fffffffu : ~monotone);
}

// Puts the keys of the `need` largest scores of the block into `out` in order, zeros after the last. Each thread has PER values and
// keys `key(i)`, 0 for none; a larger value never has a smaller score, but its score may be equal.
// `all()` leaves the values where `stored(i)` finds keys as well: for the rare case that more equal values turn up than there is room.
template <uint32_t THREADS, uint32_t PER, typename Key, typename All, typename Stored>
__device__ __forceinline__ void block_top_sorted(const float (&values)[PER], Key key, All all, Stored stored, uint32_t need,
                                                 uint64_t* out) {
    constexpr uint32_t WARPS = THREADS / WARP, FOUND_MAX = 512;
    __shared__ float sorted[WARPS][WARP];
    __shared__ uint64_t found[FOUND_MAX];
    __shared__ uint32_t found_count, threshold_bits;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float best = -INFINITY;
#pragma unroll
    for (uint32_t i = 0; i < PER; i++) best = fmaxf(best, values[i]);
    if (threadIdx.x == 0) found_count = 0, threshold_bits = 0;
    sorted[warp][lane] = need > 1 ? warp_sort(best) : warp_max(best);
    __syncthreads();
    {
        const float here = sorted[warp][lane];
        uint32_t rank = 0;
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) rank += sorted[w][lane] > here || (sorted[w][lane] == here && w < warp);
        if (is_threshold(need, lane, rank)) atomicMax(&threshold_bits, monotone_of(here));
    }
    __syncthreads();
    // Scores are values divided by the temperature and rounded: values that little below may have the same.
    float threshold = float_of(threshold_bits);
    threshold -= fabsf(threshold) * 1e-6f;
#pragma unroll
    for (uint32_t i = 0; i < PER; i++)
        if (!(values[i] < threshold)) {
            const uint64_t its = key(i);
            const uint32_t at = its ? atomicAdd(&found_count, 1) : FOUND_MAX;
            if (at < FOUND_MAX) found[at] = its;
        }
    __syncthreads();
    uint32_t count = found_count, filled = min(count, need);
    if (count > FOUND_MAX) {
        // Many equal values, or fewer numbers than wanted.
        all();
        block_top<THREADS, PER>(stored, need, found);
        count = need;
        filled = __syncthreads_count(threadIdx.x < need && found[threadIdx.x] != 0);
    }
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        const uint64_t mine = found[i];
        uint32_t larger = 0;
        for (uint32_t j = 0; j < count; j++) larger += found[j] > mine;
        if (mine && larger < need) out[larger] = mine;
    }
    for (uint32_t i = filled + threadIdx.x; i < need; i += THREADS) out[i] = 0;
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

// Tokens of each chunk that the draw needs, by score.
__device__ __forceinline__ uint32_t best_of_chunk(const OutputRow& output) {
    const bool few = output.temperature > 0.0f && output.top_k > 0 && output.top_k <= TOP_MAX;
    return few ? output.top_k : 1;
}
// Whether the draw reads all scores.
__device__ __forceinline__ bool wants_scores(const OutputRow& output) {
    return output.temperature > 0.0f && best_of_chunk(output) != output.top_k;
}

// Blocks are short chains of latency: five a multiprocessor keep the memory busy.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS, 5) sample_scan(const __grid_constant__ SampleParams p) {
    __shared__ float chunk[CHUNK];
    __shared__ float maxima[SCAN_THREADS / WARP], masses[SCAN_THREADS / WARP];
    let_successors_start();
    wait_for_predecessors();
    const uint32_t o = blockIdx.y;
    if (o >= p.step.header().outputs) return;
    const OutputRow& output = p.step.output(o);
    if (!(output.flags & OUTPUT_SAMPLE)) return;
    const uint32_t first = blockIdx.x * CHUNK;
    const uint32_t count = min(CHUNK, p.vocab - first);
    const float* logits = p.logits + size_t(o) * p.vocab + first;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;

    float values[PER_THREAD];
#pragma unroll
    for (uint32_t i = 0; i < PER_THREAD; i++) {
        const uint32_t t = i * SCAN_THREADS + threadIdx.x;
        values[i] = t < count ? logits[t] : -INFINITY;
    }
    // Each warp sums relative to its own maximum.
    bool bad = false;
    float maximum = -INFINITY, mass = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < PER_THREAD; i++) {
        bad = bad || !(values[i] < INFINITY);
        maximum = fmaxf(maximum, values[i]);
    }
    maximum = warp_max(maximum);
    const float base = maximum == -INFINITY ? 0.0f : maximum;
#pragma unroll
    for (uint32_t i = 0; i < PER_THREAD; i++) mass += __expf(values[i] - base);
    mass = warp_sum(mass);
    if (lane == 0) maxima[warp] = maximum, masses[warp] = mass;
    bad = __syncthreads_or(bad);
    const size_t at = size_t(o) * p.chunks + blockIdx.x;
    if (threadIdx.x == 0) {
        for (uint32_t w = 0; w < SCAN_THREADS / WARP; w++) maximum = fmaxf(maximum, maxima[w]);
        mass = 0.0f;
        for (uint32_t w = 0; w < SCAN_THREADS / WARP && !bad; w++)
            if (maxima[w] != -INFINITY) mass = fmaf(masses[w], expf(maxima[w] - maximum), mass);
        p.stats[at] = ChunkStats{maximum, mass, bad, 0};
    }
    if (bad) return;

    const auto id = [](uint32_t i) { return i * SCAN_THREADS + threadIdx.x; };
    const auto store = [&]() {
#pragma unroll
        for (uint32_t i = 0; i < PER_THREAD; i++) chunk[id(i)] = values[i];
        __syncthreads();
    };
    // Greedy works on the logits themselves; others divide what they need.
    const float temperature = output.temperature > 0.0f ? output.temperature : 1.0f;
    // Out of line: it must not take the address of the registers.
    const auto stored_key = [id, first, count](float divisor) {
        return [id, first, count, divisor](uint32_t i) {
            return id(i) < count ? key_of(chunk[id(i)] / divisor, first + id(i)) : 0;
        };
    };
    if (output.candidates > 0) {
        store();
        block_top<SCAN_THREADS, PER_THREAD>(stored_key(1.0f), CANDIDATES_MAX, p.likely + at * CANDIDATES_MAX);
    }
    if (output.bias_count > 0 || output.penalty_window > 0) {
        store();
        adjust(p, output, chunk, first, count);
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < PER_THREAD; i++) values[i] = chunk[id(i)];
    }
    if (wants_scores(output)) {
        float* scores = p.scores + size_t(o) * p.vocab + first;
#pragma unroll
        for (uint32_t i = 0; i < PER_THREAD; i++)
            if (id(i) < count) scores[id(i)] = values[i] / temperature;
    }
    block_top_sorted<SCAN_THREADS>(
        values, [&](uint32_t i) { return id(i) < count ? key_of(values[i] / temperature, first + id(i)) : 0; }, store,
        stored_key(temperature), best_of_chunk(output), p.top + at * TOP_MAX);
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

// The lowest key that top-p keeps of those from `floor_` on, by narrowing.
__device__ uint64_t lowest_by_weight(const Draw& draw, const float* scores, uint64_t floor_, float top_p) {
    __shared__ unsigned long long total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    uint64_t sum = 0;
    for (uint32_t t = threadIdx.x; t < draw.p.vocab; t += DRAW_THREADS) {
        const uint64_t key = key_of(scores[t], t);
        if (key >= floor_) sum += draw.weight(key);
    }
    atomicAdd(&total, sum);
    __syncthreads();
    const uint64_t wanted = uint64_t(ceil(double(top_p) * double(total)));
    return lowest_kept(draw, scores, true, floor_, wanted > 0 ? wanted : 1);
}

// Scores in bins below the largest, 1/64 wide as far as DEPTH, then 1/16: how many, and what they weigh. The last bin has all that
// lies deeper, 28 below the largest, where weights are zero.
constexpr uint32_t BINS = 1024;
constexpr uint32_t BIN_MAX = 1024;  // tokens of a bin that are looked at one by one
constexpr uint32_t BINS_VOCAB_MAX = 1u << 18;  // limbs of 14 bits from as many tokens fit 32 bits
struct Bins {
    unsigned long long weights[BINS];
    uint32_t counts[BINS];
    uint32_t limbs[3][BINS];  // of the weights' sums, 14 bits a limb: shared memory adds 32 bits at a time
    uint64_t keys[BIN_MAX];
    uint64_t in_order[BIN_MAX];
    unsigned long long weights_in_order[BIN_MAX];
    unsigned long long total;
    uint32_t bin, found;
    unsigned long long before;
    uint64_t lowest;
};
static_assert(sizeof(Bins) == 49184, "as in lower/sample.rs");

// A larger key never falls into a later bin: differences and products round monotonously.
__device__ __forceinline__ uint32_t bin_of(float score, float top) {
    constexpr float DEPTH = 12.0f;
    const float depth = top - score;
    if (depth < DEPTH) return uint32_t(depth * 64.0f);
    const float place = DEPTH * 64.0f + (depth - DEPTH) * 16.0f;
    return place < float(BINS - 1) ? uint32_t(place) : BINS - 1;
}

// Sum of a list's first `end` entries; every thread of the block gets it.
__device__ unsigned long long sum_of(Bins& b, const unsigned long long* list, uint32_t end) {
    unsigned long long sum = 0;
    for (uint32_t i = threadIdx.x; i < end; i += DRAW_THREADS) sum += list[i];
    if (threadIdx.x == 0) b.total = 0;
    __syncthreads();
    if (sum) atomicAdd(&b.total, sum);
    __syncthreads();
    sum = b.total;
    __syncthreads();
    return sum;
}

// Finds the bin in which a list's sum reaches `need`, the last if it does not, and the sum before it.
template <typename Number>
__device__ void find_bin(Bins& b, const Number* list, unsigned long long need) {
    if (threadIdx.x < WARP) {
        constexpr uint32_t EACH = BINS / WARP;
        const uint32_t lane = threadIdx.x;
        unsigned long long own = 0;
        for (uint32_t i = 0; i < EACH; i++) own += list[lane * EACH + i];
        unsigned long long up_to = own;
        for (uint32_t offset = 1; offset < WARP; offset *= 2) {
            const unsigned long long other = __shfl_up_sync(FULL_MASK, up_to, offset);
            if (lane >= offset) up_to += other;
        }
        const uint32_t reached = __ballot_sync(FULL_MASK, up_to >= need);
        const uint32_t which = reached ? __ffs(reached) - 1 : WARP - 1;
        if (lane == which) {
            unsigned long long before = up_to - own;
            uint32_t bin = lane * EACH;
            for (; bin + 1 < (lane + 1) * EACH && before + list[bin] < need; bin++) before += list[bin];
            b.bin = bin;
            b.before = before;
        }
    }
    __syncthreads();
}

// Puts the tokens of a bin in order into `in_order`, their weights into `weights_in_order`; false if there are too many. A pass
// over the scores.
__device__ bool look_into(Bins& b, const Draw& draw, const float* scores, uint32_t bin) {
    if (bin == BINS - 1) return false;
    if (threadIdx.x == 0) b.found = 0;
    __syncthreads();
#pragma unroll 8
    for (uint32_t t = threadIdx.x; t < draw.p.vocab; t += DRAW_THREADS) {
        const float score = scores[t];
        if (bin_of(score, draw.top) != bin) continue;
        const uint32_t at = atomicAdd(&b.found, 1);
        if (at < BIN_MAX) b.keys[at] = key_of(score, t);
    }
    __syncthreads();
    const uint32_t count = b.found;
    if (count > BIN_MAX) return false;
    if (threadIdx.x < count) {
        const uint64_t key = b.keys[threadIdx.x];
        uint32_t larger = 0;
        for (uint32_t i = 0; i < count; i++) larger += b.keys[i] > key;
        b.in_order[larger] = key;
        b.weights_in_order[larger] = draw.weight(key);
    }
    __syncthreads();
    return true;
}

// The lowest key that top-k (when larger than TOP_MAX) and top-p keep.
__device__ uint64_t cut(const Draw& draw, const float* scores, const OutputRow& output) {
    extern __shared__ __align__(16) uint8_t dynamic[];
    Bins& b = *reinterpret_cast<Bins*>(dynamic);
    const bool by_count = output.top_k > 0 && output.top_k < draw.p.vocab, by_weight = output.top_p < 1.0f;
    if (!by_count && !by_weight) return 0;
    if (draw.p.vocab > BINS_VOCAB_MAX) {
        const uint64_t lowest = by_count ? lowest_kept(draw, scores, false, 0, output.top_k) : 0;
        return by_weight ? lowest_by_weight(draw, scores, lowest, output.top_p) : lowest;
    }
    for (uint32_t i = threadIdx.x; i < BINS; i += DRAW_THREADS)
        b.counts[i] = b.limbs[0][i] = b.limbs[1][i] = b.limbs[2][i] = 0;
    __syncthreads();
    // The weight has up to 41 bits.
#pragma unroll 8
    for (uint32_t t = threadIdx.x; t < draw.p.vocab; t += DRAW_THREADS) {
        const float score = scores[t];
        const uint32_t bin = bin_of(score, draw.top);
        if (by_count) atomicAdd(&b.counts[bin], 1);
        if (!by_weight || bin == BINS - 1) continue;  // that deep, weights are zero
        const uint64_t weight = draw.weight(key_of(score, t));
        if (weight) atomicAdd(&b.limbs[0][bin], uint32_t(weight) & 0x3fffu);
        if (weight >> 14) atomicAdd(&b.limbs[1][bin], uint32_t(weight >> 14) & 0x3fffu);
        if (weight >> 28) atomicAdd(&b.limbs[2][bin], uint32_t(weight >> 28));
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < BINS; i += DRAW_THREADS)
        b.weights[i] = b.limbs[0][i] + (uint64_t(b.limbs[1][i]) << 14) + (uint64_t(b.limbs[2][i]) << 28);
    __syncthreads();
    uint64_t lowest = 0;
    uint32_t last = BINS;             // the bin of the cut by count, whose tokens lie in order
    unsigned long long in_last = 0;  // what its kept tokens weigh
    if (by_count) {
        find_bin(b, b.counts, output.top_k);
        last = b.bin;
        const uint32_t kept = output.top_k - uint32_t(b.before);
        if (look_into(b, draw, scores, last)) {
            lowest = b.in_order[kept - 1];
            in_last = sum_of(b, b.weights_in_order, kept);
        } else {
            lowest = lowest_kept(draw, scores, false, 0, output.top_k);
            last = BINS;
            if (by_weight) return lowest_by_weight(draw, scores, lowest, output.top_p);
        }
    }
    if (!by_weight) return lowest;
    const unsigned long long total = sum_of(b, b.weights, min(last, BINS)) + in_last;
    const unsigned long long wanted = max(1ull, (unsigned long long)ceil(double(output.top_p) * double(total)));
    if (threadIdx.x == 0 && last < BINS) b.weights[last] = in_last;
    __syncthreads();
    find_bin(b, b.weights, min(wanted, total));
    const uint32_t bin = b.bin;
    if (bin != last && !look_into(b, draw, scores, bin)) return lowest_by_weight(draw, scores, lowest, output.top_p);
    if (threadIdx.x == 0) {
        unsigned long long sum = b.before;
        uint32_t i = 0;
        for (; i + 1 < b.found; i++) {
            sum += b.weights_in_order[i];
            if (sum >= wanted) break;
        }
        b.lowest = b.in_order[i];
    }
    __syncthreads();
    return b.lowest > lowest ? b.lowest : lowest;
}

// The `need` largest of the chunks' best, which lie in order, into `sorted` in order, then zeros up to TOP_MAX.
__device__ void merge_top(const uint64_t* top, uint32_t chunks, uint32_t need, uint64_t* sorted) {
    extern __shared__ __align__(16) uint8_t dynamic[];
    __shared__ unsigned long long threshold;
    __shared__ uint32_t found_count;
    // Lists and finds share the room of `Bins`; where it is too small for both, lists are read where they lie.
    const uint32_t entries = chunks * need;
    uint64_t* found = reinterpret_cast<uint64_t*>(dynamic);
    const bool fits = 2 * entries * sizeof(uint64_t) <= sizeof(Bins);
    const uint64_t* lists = fits ? found + entries : top;
    const uint32_t stride = fits ? need : TOP_MAX;
    for (uint32_t i = threadIdx.x; fits && i < entries; i += DRAW_THREADS)
        found[entries + i] = top[size_t(i / need) * TOP_MAX + i % need];
    if (threadIdx.x == 0) threshold = 0, found_count = 0;
    if (threadIdx.x < TOP_MAX) sorted[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < entries; i += DRAW_THREADS) {
        const uint32_t depth = i % need;
        const uint64_t here = lists[i / need * stride + depth];
        if (!here || div_up(need, depth + 1) > chunks) continue;
        uint32_t rank = 0;
#pragma unroll 8
        for (uint32_t c = 0; c < chunks; c++) rank += lists[c * stride + depth] > here;
        if (is_threshold(need, depth, rank)) atomicMax(&threshold, here);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < entries; i += DRAW_THREADS) {
        const uint64_t key = lists[i / need * stride + i % need];
        if (key && key >= threshold) found[atomicAdd(&found_count, 1)] = key;
    }
    __syncthreads();
    const uint32_t count = found_count;
    for (uint32_t i = threadIdx.x; i < count; i += DRAW_THREADS) {
        const uint64_t mine = found[i];
        uint32_t larger = 0;
#pragma unroll 8
        for (uint32_t j = 0; j < count; j++) larger += found[j] > mine;
        if (larger < need) sorted[larger] = mine;
    }
    __syncthreads();
}

// How many of the `end` likeliest tokens top-p and min-p keep; weights in order, by the first warp.
__device__ __forceinline__ uint32_t keep(const float* weights, uint32_t end, float top_p, float min_p) {
    static_assert(TOP_MAX == 2 * WARP, "two tokens a lane");
    const uint32_t lane = threadIdx.x % WARP;
    const float one = 2 * lane < end ? weights[2 * lane] : 0.0f, two = 2 * lane + 1 < end ? weights[2 * lane + 1] : 0.0f;
    double up_to = double(one) + double(two);
#pragma unroll
    for (uint32_t offset = 1; offset < WARP; offset *= 2) {
        const double other = __shfl_up_sync(FULL_MASK, up_to, offset);
        if (lane >= offset) up_to += other;
    }
    const double wanted = double(top_p) * __shfl_sync(FULL_MASK, up_to, WARP - 1);
    // Tokens before which the sum has not reached what is wanted.
    const bool takes_two = up_to - double(two) < wanted, takes_one = up_to - double(two) - double(one) < wanted;
    uint32_t kept = min(end, __popc(__ballot_sync(FULL_MASK, takes_one)) + __popc(__ballot_sync(FULL_MASK, takes_two)));
    if (!(top_p < 1.0f)) kept = end;
    const uint32_t likely = __popc(__ballot_sync(FULL_MASK, 2 * lane < kept && one >= min_p)) +
                            __popc(__ballot_sync(FULL_MASK, 2 * lane + 1 < kept && two >= min_p));
    return max(1u, likely);
}

extern "C" __global__ void __launch_bounds__(DRAW_THREADS) sample_draw(const __grid_constant__ SampleParams p) {
    __shared__ uint64_t sorted[TOP_MAX];
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
    const uint32_t lane = threadIdx.x % WARP;
    for (uint32_t c = lane; c < p.chunks; c += WARP) {
        bad = bad || stats[c].bad;
        maximum = fmaxf(maximum, stats[c].maximum);
    }
    maximum = warp_max(maximum);
    bad = __any_sync(FULL_MASK, bad) || maximum == -INFINITY;
    float mass = 0.0f;
    for (uint32_t c = lane; c < p.chunks && !bad; c += WARP)
        if (stats[c].maximum != -INFINITY) mass = fmaf(stats[c].mass, expf(stats[c].maximum - maximum), mass);
    const float log_mass = logf(warp_sum(mass));

    const uint64_t* top = p.top + size_t(o) * p.chunks * TOP_MAX;
    const float* scores = p.scores + size_t(o) * p.vocab;
    const bool few = output.top_k > 0 && output.top_k <= TOP_MAX && output.temperature > 0.0f;
    Draw draw{p, output, scratch, 0.0f};
    uint64_t best = 0;
    if (!bad) {
        for (uint32_t c = threadIdx.x; c < p.chunks; c += DRAW_THREADS) {
            const uint64_t key = top[size_t(c) * TOP_MAX];
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
            const uint32_t need = min(output.top_k, p.vocab);
            merge_top(top, p.chunks, need, sorted);
            if (threadIdx.x < TOP_MAX)
                weights[threadIdx.x] = sorted[threadIdx.x] ? expf(value_of(sorted[threadIdx.x]) - draw.top) : 0.0f;
            __syncthreads();
            if (threadIdx.x < WARP) {
                const uint32_t count = keep(weights, need, output.top_p, output.min_p);
                if (threadIdx.x == 0) kept = count;
            }
            __syncthreads();
            if (threadIdx.x < kept) mine = draw.gumbel(sorted[threadIdx.x]);
        } else {
            const uint64_t lowest = cut(draw, scores, output);
#pragma unroll 8
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
