// sample_scan, sample_draw: draw a token for every output that asks for one, as walla_device's Op::Sample says.
// logits: [outputs, vocab] f32, left as they are. Oracle: walla_cpu's sampler.
//
// sample_scan cuts the vocabulary into chunks of CHUNK tokens, a block each: applies biases, penalties and temperature, and leaves
// the chunk's statistics and its best tokens by score, in order, and (if asked) by logit; all scores only for who needs them. Tokens
// that the output's mask forbids have negative infinity for a score and no key.
// sample_draw, a block an output, merges the chunks in order. Top-k up to TOP_MAX needs the chunks' best alone. A larger top-k, or
// top-p without one, counts and weighs the scores in bins of 1/64 and more below the largest (one pass), looks at the tokens of the bin in
// which the cut falls (a pass for each cut) and draws (a pass); where a cut falls far below the largest score or into a crowded
// bin, it narrows a key range over all scores eight bits at a time. Anything else is one pass.
// A key orders tokens: the score's bits made monotone above, the complement of the id below; so the larger key comes first, and
// every cut keeps the tokens from some key on.
// Memory-bound, 8 bytes a token. Sums of probability are of integers (2^-40 units), so their order does not matter.
#include "sample_cut.cuh"
#include "sample_top.cuh"

// Biases and penalties, on the block's tokens only.
__device__ __forceinline__ void adjust(const SampleParams& p, const OutputRow& output, float* chunk, uint32_t first,
                                       uint32_t count) {
    __shared__ uint32_t window[PENALTY_WINDOW_MAX];
    // A token that has several is changed by the thread of the first of them, in order.
#pragma unroll 1
    for (uint32_t b = threadIdx.x; b < output.bias_count; b += SCAN_THREADS) {
        const BiasRow bias = p.step.bias(output.bias_first + b);
        if (bias.token - first >= count) continue;
        bool is_first = true;
#pragma unroll 1
        for (uint32_t before = 0; before < b; before++) is_first = is_first && p.step.bias(output.bias_first + before).token != bias.token;
        if (!is_first) continue;
        float value = chunk[bias.token - first] + bias.bias;
#pragma unroll 1
        for (uint32_t later = b + 1; later < output.bias_count; later++) {
            const BiasRow its = p.step.bias(output.bias_first + later);
            if (its.token == bias.token) value += its.bias;
        }
        chunk[bias.token - first] = value;
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
    // Marks what the output's mask forbids; a warp's tokens are a word of it.
    const auto forbid = [&](float mark) {
        const uint32_t* mask = p.masks + (output.mask - 1) * div_up(p.vocab, WARP) + first / WARP;
#pragma unroll 1
        for (uint32_t t = threadIdx.x; t < count; t += SCAN_THREADS)
            if (!(mask[t / WARP] >> lane & 1u)) chunk[t] = mark;
        __syncthreads();
    };
    // Out of line: it must not take the address of the registers. What is no number has no key.
    const auto stored_key = [id, first, count](float divisor) {
        return [id, first, count, divisor](uint32_t i) {
            const float value = chunk[id(i)];
            return id(i) < count && value == value ? key_of(value / divisor, first + id(i)) : 0;
        };
    };
    if (output.candidates > 0) {
        store();
        if (output.mask) forbid(NAN);
        block_top<SCAN_THREADS, PER_THREAD>(stored_key(1.0f), CANDIDATES_MAX, p.likely + at * CANDIDATES_MAX);
    }
    if (output.bias_count > 0 || output.penalty_window > 0 || output.mask) {
        store();
        adjust(p, output, chunk, first, count);
        if (output.mask) forbid(-INFINITY);
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
    // What has no probability at all needs no key: tokens beyond the end, forbidden ones.
    block_top_sorted<SCAN_THREADS>(
        values, [&](uint32_t i) { return values[i] > -INFINITY ? key_of(values[i] / temperature, first + id(i)) : 0; }, store,
        stored_key(temperature), best_of_chunk(output), p.top + at * TOP_MAX);
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
#pragma unroll 1
    for (uint32_t i = threadIdx.x; fits && i < entries; i += DRAW_THREADS)
        found[entries + i] = top[size_t(i / need) * TOP_MAX + i % need];
    if (threadIdx.x == 0) threshold = 0, found_count = 0;
    if (threadIdx.x < TOP_MAX) sorted[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll 1
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
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < entries; i += DRAW_THREADS) {
        const uint64_t key = lists[i / need * stride + i % need];
        if (key && key >= threshold) found[atomicAdd(&found_count, 1)] = key;
    }
    __syncthreads();
    const uint32_t count = found_count;
#pragma unroll 1
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

// Draws for one output. Its first thread alone writes what others read.
__device__ __forceinline__ void draw_one(const SampleParams& p, const StepHeader& header, uint32_t o) {
    __shared__ uint64_t sorted[TOP_MAX];
    __shared__ float weights[TOP_MAX];
    __shared__ uint64_t scratch[DRAW_THREADS / WARP];
    __shared__ uint32_t kept;
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
#pragma unroll 1
        for (uint32_t c = threadIdx.x; c < p.chunks; c += DRAW_THREADS) {
            const uint64_t key = top[size_t(c) * TOP_MAX];
            best = key > best ? key : best;
        }
        best = draw.block_max(best);
        // No key at all: a mask without bits.
        bad = !best || value_of(best) == -INFINITY;
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
            if (threadIdx.x < kept && sorted[threadIdx.x]) mine = draw.gumbel(sorted[threadIdx.x]);
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
    // The likeliest tokens of the model alone: the best of what the chunks left, one after the other. A mask may leave fewer than asked for.
    const uint32_t wanted = min(output.candidates, CANDIDATES_MAX);
    const uint64_t* likely = p.likely + size_t(o) * p.chunks * CANDIDATES_MAX;
    uint64_t below = ~uint64_t(0);
    uint32_t listed = 0;
#pragma unroll 1
    for (; listed < wanted; listed++) {
        uint64_t next = 0;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < p.chunks * CANDIDATES_MAX; i += DRAW_THREADS)
            if (likely[i] < below && likely[i] > next) next = likely[i];
        next = draw.block_max(next);
        if (!next) break;
        if (threadIdx.x == 0)
            p.results.candidates(header.ring_slot, o)[listed] = Candidate{token_of(next), value_of(next) - maximum - log_mass};
        below = next;
    }
    if (threadIdx.x == 0) {
        const float logit = p.logits[size_t(o) * p.vocab + token];
        row = ResultRow{token, RESULT_SAMPLED, logit - maximum - log_mass, listed};
        p.last_sampled[output.sequence] = token;
    }
}

// The host may read the results, which lie in its memory, once the word stands there: whichever block is done last writes it, after
// everything that any block wrote. For the blocks' first threads.
__device__ __forceinline__ void tell_host(const SampleParams& p, const StepHeader& header, ResultHeader& result) {
    if (header.outputs > 1) {
        __threadfence();
        if (atomicAdd(p.arrivals, 1) + 1 < header.outputs) return;
        *p.arrivals = 0;
    }
    result.end_nanos = nanos();
    // What other blocks wrote before their fence comes before this block's count, and so, release being cumulative, before the word.
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(&result.done), "l"(header.step + 1) : "memory");
}

extern "C" __global__ void __launch_bounds__(DRAW_THREADS, 1) sample_draw(const __grid_constant__ SampleParams p) {
    let_successors_start();
    wait_for_predecessors();
    const StepHeader& header = p.step.header();
    const uint32_t o = blockIdx.x;
    ResultHeader& result = p.results.header(header.ring_slot);
    if (o == 0 && threadIdx.x == 0) {
        result.step = header.step;
        result.outputs = header.outputs;
    }
    if (o < header.outputs) draw_one(p, header, o);
    if (threadIdx.x != 0 || o >= max(1u, header.outputs)) return;
    if (p.arrivals)
        tell_host(p, header, result);
    else if (o == 0)
        result.end_nanos = nanos();
}
