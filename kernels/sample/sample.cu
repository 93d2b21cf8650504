// sample_scan, sample_draw: draw a token for every output with OUTPUT_SAMPLE, as defined by
// walla_device's Op::Sample.
// logits: [outputs, vocab] f32, not modified.
// Oracle: walla_cpu's sampler (tests/gpu/sampling.rs).
//
// sample_scan, grid: (chunks of CHUNK tokens, outputs). Applies biases, penalties, the mask and
// temperature if an output has them. Writes each warp's statistics of the logits, the largest score
// (or logit) of each group of tokens, and all scores if the output needs them. Forbidden tokens
// have the score negative infinity.
// sample_draw, grid: one block per output, and one that prefetches the next step's block. It reads
// only the groups that can contain the first tokens; with top-k up to TOP_MAX these suffice. A
// larger top-k, or top-p without one, takes several passes over the scores: one counts and weighs
// them in bins of 1/64 and more below the largest, one per cut reads the tokens of the bin with the
// cut, and one draws. If a cut falls far below the largest score or into a crowded bin, it narrows
// a key range over all scores, eight bits per pass. Every other case is one pass. A key orders
// tokens: the score's monotone bits above, the complement of the id below. The larger key precedes,
// and every cut keeps the tokens from some key on.
// Bound: latency, and code that runs once; with many outputs memory, 4 bytes per token. Sums of
// probability are integers (2^-40 units), so their order does not matter.
#include "sample/sample_cut.cuh"

// Applies biases and penalties to the block's tokens. Needs a barrier before other threads read
// them.
__device__ __forceinline__ void adjust(const SampleParams& p, const OutputRow& output, float* chunk,
                                       uint32_t first, uint32_t count) {
    __shared__ uint32_t window[PENALTY_WINDOW_MAX];
    // If a token has several biases, the thread of the first one adds them all, in order.
#pragma unroll 1
    for (uint32_t b = threadIdx.x; b < output.bias_count; b += SCAN_THREADS) {
        const BiasRow bias = p.step.bias(output.bias_first + b);
        if (bias.token - first >= count)
            continue;
        bool is_first = true;
#pragma unroll 1
        for (uint32_t before = 0; before < b; before++)
            is_first = is_first && p.step.bias(output.bias_first + before).token != bias.token;
        if (!is_first)
            continue;
        float value = chunk[bias.token - first] + bias.bias;
#pragma unroll 1
        for (uint32_t later = b + 1; later < output.bias_count; later++) {
            const BiasRow its = p.step.bias(output.bias_first + later);
            if (its.token == bias.token)
                value += its.bias;
        }
        chunk[bias.token - first] = value;
    }
    __syncthreads();
    const uint32_t length =
        min(min(output.penalty_window, PENALTY_WINDOW_MAX), output.position + 1);
    const bool penalties =
        length > 0 && (output.repetition_penalty != 1.0f || output.presence_penalty != 0.0f ||
                       output.frequency_penalty != 0.0f);
    if (!penalties)
        return;
    const uint32_t i = threadIdx.x;
    static_assert(SCAN_THREADS == PENALTY_WINDOW_MAX, "a thread for each token of the window");
    if (i < length)
        window[i] = p.recent[output.sequence * PENALTY_WINDOW_MAX +
                             (output.position - i) % PENALTY_WINDOW_MAX];
    __syncthreads();
    if (i < length && window[i] - first < count) {
        uint32_t times = 0;
        bool is_first = true;
        for (uint32_t j = 0; j < length; j++)
            if (window[j] == window[i])
                times++, is_first = is_first && j >= i;
        if (is_first) {
            float value = chunk[window[i] - first];
            value = value > 0.0f ? value / output.repetition_penalty
                                 : value * output.repetition_penalty;
            chunk[window[i] - first] =
                value - (output.presence_penalty + float(times) * output.frequency_penalty);
        }
    }
}

// Blocks are short latency chains: several per multiprocessor saturate the memory.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS, 5)
    sample_scan(const __grid_constant__ SampleParams p) {
    __shared__ float chunk[CHUNK];
    launch_dependents();
    const uint32_t o = blockIdx.y, first = blockIdx.x * CHUNK;
    const bool is_asked = o < p.step.header().outputs;
    // A block beyond the outputs has no work but waits as well: the next kernel waits for this
    // kernel alone.
    const OutputRow& output = p.step.output(is_asked ? o : 0);
    const bool is_sampled = is_asked && (output.flags & OUTPUT_SAMPLE),
               has_scores = is_scored(output), has_candidates = output.candidates > 0;
    grid_dependency_wait();
    if (!is_sampled)
        return;
    const float* logits = p.logits + size_t(o) * p.vocab;
    // Lane index over all blocks of the output.
    const uint32_t place = blockIdx.x * SCAN_THREADS + threadIdx.x, lane = threadIdx.x % WARP;

    float values[PER_THREAD];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const float4 four = read_four(logits, four_of(place, i), p.vocab);
        values[4 * i] = four.x, values[4 * i + 1] = four.y, values[4 * i + 2] = four.z,
                   values[4 * i + 3] = four.w;
    }
    const auto largest = [&]() {
        float its = -INFINITY;
#pragma unroll
        for (uint32_t i = 0; i < PER_THREAD; i++)
            its = fmaxf(its, values[i]);
        return its;
    };
    // Maximum over a group, in all of its lanes.
    const auto of_group = [&](float its) {
#pragma unroll 1
        for (uint32_t offset = 1; offset >> p.group_bits == 0; offset *= 2)
            its = fmaxf(its, __shfl_xor_sync(FULL_MASK, its, offset));
        return its;
    };
    const size_t group = size_t(o) * groups_of(p) + (place >> p.group_bits);
    const bool is_first_of_group = place % (1u << p.group_bits) == 0;
    float own = largest();
    {
        const float maximum = warp_max(own), base = maximum == -INFINITY ? 0.0f : maximum;
        float mass = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < PER_THREAD; i++)
            mass += __expf(values[i] - base);
        mass = warp_sum(mass);
        if (lane == 0)
            p.stats[size_t(o) * warps_of(p) + place / WARP] = WarpStats{maximum, mass};
    }
    if (has_candidates || has_scores) {
        // Bits of the thread's tokens that are allowed: four neighbours are in one word.
        uint32_t allowed = ~0u;
        if (const uint32_t* mask = mask_of(p, output)) {
            allowed = 0;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t token = four_of(place, i);
                if (token < p.vocab)
                    allowed |= (mask[token / 32] >> token % 32 & 15u) << 4 * i;
            }
        }
        if (has_candidates) {
            float its = -INFINITY;
#pragma unroll
            for (uint32_t i = 0; i < PER_THREAD; i++)
                if (allowed >> i & 1u)
                    its = fmaxf(its, values[i]);
            its = of_group(its);
            if (is_first_of_group)
                p.likely[group] = its;
        }
        if (output.bias_count > 0 || output.penalty_window > 0) {
#pragma unroll
            for (uint32_t i = 0; i < PER_THREAD; i++)
                chunk[four_of(threadIdx.x, i / 4) + i % 4] = values[i];
            __syncthreads();
            adjust(p, output, chunk, first, min(CHUNK, p.vocab - first));
            __syncthreads();
#pragma unroll
            for (uint32_t i = 0; i < PER_THREAD; i++)
                values[i] = chunk[four_of(threadIdx.x, i / 4) + i % 4];
        }
        if (has_scores) {
            const float divisor = divisor_of(output);
            float* scores = p.scores + size_t(o) * p.vocab;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                float four[4];
#pragma unroll
                for (uint32_t c = 0; c < 4; c++)
                    four[c] = values[4 * i + c] =
                        allowed >> (4 * i + c) & 1u ? values[4 * i + c] / divisor : -INFINITY;
                write_four(scores, four_of(place, i), p.vocab, four);
            }
            own = largest();
        }
    }
    own = of_group(own);
    if (is_first_of_group)
        p.groups[group] = own;
}

// Number of the first `end` tokens that top-p and min-p keep, by one warp. `largest`: score of the
// first token.
__device__ __forceinline__ uint32_t kept_of(const Top& top, uint32_t end, float largest,
                                            float top_p, float min_p) {
    static_assert(TOP_MAX == 2 * WARP, "two tokens a lane");
    const uint32_t lane = threadIdx.x % WARP;
    const uint64_t keys[2] = {top.sorted[2 * lane], top.sorted[2 * lane + 1]};
    const float one = keys[0] ? expf(value_of(keys[0]) - largest) : 0.0f,
                two = keys[1] ? expf(value_of(keys[1]) - largest) : 0.0f;
    const double up_to = warp_prefix_sum(double(one) + double(two));
    const double wanted = double(top_p) * __shfl_sync(FULL_MASK, up_to, WARP - 1);
    // Tokens before which the cumulative sum is still below `wanted`.
    const bool takes_two = up_to - double(two) < wanted,
               takes_one = up_to - double(two) - double(one) < wanted;
    uint32_t kept = min(end, __popc(__ballot_sync(FULL_MASK, takes_one)) +
                                 __popc(__ballot_sync(FULL_MASK, takes_two)));
    if (!(top_p < 1.0f))
        kept = end;
    const uint32_t likely = __popc(__ballot_sync(FULL_MASK, 2 * lane < kept && one >= min_p)) +
                            __popc(__ballot_sync(FULL_MASK, 2 * lane + 1 < kept && two >= min_p));
    return max(1u, likely);
}

// Normalisation of the logits of the model, without sampling parameters.
struct Norm {
    float maximum, log_mass;
    bool is_bad; // a logit is NaN or positive infinity, or all are negative infinity
};
// Loads of warps' statistics by one warp: for 2^17 tokens at once.
struct StatsAhead {
    static constexpr uint32_t EACH = 8;
    WarpStats stats[EACH];

    __device__ __forceinline__ void read(const WarpStats* all, uint32_t warps) {
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            const uint32_t w = i * WARP + threadIdx.x % WARP;
            stats[i] = w < warps ? all[w] : WarpStats{-INFINITY, 0.0f};
        }
    }
    __device__ __forceinline__ Norm norm(const WarpStats* all, uint32_t warps) {
        float maximum = -INFINITY, mass = 0.0f, base = 0.0f;
        for (uint32_t first = 0;; first += EACH * WARP) {
            if (first)
                read(all + first, warps - first);
            float its = stats[0].maximum;
#pragma unroll
            for (uint32_t i = 1; i < EACH; i++)
                its = fmaxf(its, stats[i].maximum);
            maximum = fmaxf(maximum, warp_max(its));
            const float next = maximum == -INFINITY ? 0.0f : maximum;
            mass *= __expf(base - next), base = next;
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++)
                mass = fmaf(stats[i].mass, __expf(stats[i].maximum - base), mass);
            if (first + EACH * WARP >= warps)
                break;
        }
        mass = warp_sum(mass);
        return Norm{maximum, logf(mass), !(mass > 0.0f && maximum < INFINITY)};
    }
};

// Draws for one output. Only its first thread writes to memory that other kernels or the host read.
__device__ __forceinline__ void draw_one(const SampleParams& p, const StepHeader& header,
                                         uint32_t o, const OutputRow& output) {
#if __CUDA_ARCH__ >= 800
    __shared__ Top top;
#else
    // Turing's shared memory cannot hold both: Top and the bins of `cut` use the same bytes.
    static_assert(sizeof(Top) <= sizeof(Bins), "one lies where the other does");
    extern __shared__ __align__(16) uint8_t dynamic[];
    Top& top = *reinterpret_cast<Top*>(dynamic);
#endif
    __shared__ uint64_t drawn[TOP_MAX];
    __shared__ Norm norm;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    ResultRow& row = p.results.row(header.ring_slot, o);
    if (!(output.flags & OUTPUT_SAMPLE)) {
        if (threadIdx.x == 0)
            row = ResultRow{0, 0, 0.0f, 0};
        return;
    }
    const uint32_t groups = groups_of(p);
    const auto of_own_group = [&](const float* all) {
        return threadIdx.x < groups ? all[size_t(o) * groups + threadIdx.x] : -INFINITY;
    };
    const float* logits = p.logits + size_t(o) * p.vocab;
    const bool few = keeps_few(output), scored = is_scored(output);
    const uint32_t first_tokens = few ? min(output.top_k, p.vocab) : 1;
    const Scores scores = {scored ? p.scores + size_t(o) * p.vocab : logits,
                           scored ? 1.0f : divisor_of(output), nullptr, p.vocab};
    const WarpStats* stats = p.stats + size_t(o) * warps_of(p);
    StatsAhead ahead;
    if (warp == 1)
        ahead.read(stats, warps_of(p));
    find_top(top, scores, of_own_group(p.groups), p.group_bits, first_tokens);
    const uint64_t best = top.sorted[0];
    const float largest = value_of(best);
    const Draw draw = {output, scores, largest};
    // Four warps divide the next work: the number of kept tokens, the model's normalisation, the
    // random numbers of the draw (two warps).
    uint32_t kept = 1;
    if (warp == 0) {
        if (few && isfinite(largest))
            kept = kept_of(top, first_tokens, largest, output.top_p, output.min_p);
    } else if (warp == 1) {
        const Norm its = ahead.norm(stats, warps_of(p));
        if (lane == 0)
            norm = its;
    } else if (warp < 4) {
        const uint32_t i = threadIdx.x - 2 * WARP;
        drawn[i] = few && top.sorted[i] ? draw.gumbel(top.sorted[i]) : 0;
    }
    __syncthreads();
    if (norm.is_bad || !best) {
        // No key exists: the mask has no bits.
        if (threadIdx.x == 0)
            row = ResultRow{0, RESULT_NOT_FINITE, 0.0f, 0}, p.last_sampled[output.sequence] = 0;
        return;
    }

    uint32_t token = token_of(best);
    float logit = top.numbers[0];
    if (few) {
        if (warp == 0 && kept > 1) {
            const uint64_t one = 2 * lane < kept ? drawn[2 * lane] : 0,
                           two = 2 * lane + 1 < kept ? drawn[2 * lane + 1] : 0;
            const uint64_t mine = one > two ? one : two, chosen = key_max(mine);
            const uint32_t winner = __ffs(__ballot_sync(FULL_MASK, mine == chosen)) - 1;
            token = token_of(chosen);
            logit = __shfl_sync(FULL_MASK, top.numbers[2 * lane + (one > two ? 0 : 1)], winner);
        }
    } else if (output.temperature > 0.0f && isfinite(largest)) {
#if __CUDA_ARCH__ < 800
        __syncthreads(); // all threads have read `top`
#endif
        const uint64_t lowest = cut(draw);
        uint64_t mine = 0;
#pragma unroll 8
        for (uint32_t t = threadIdx.x; t < p.vocab; t += DRAW_THREADS) {
            const uint64_t key = key_of(scores.numbers[t], t);
            if (key < lowest || (output.min_p > 0.0f && !draw.likely(key)))
                continue;
            const uint64_t score = draw.gumbel(key);
            mine = score > mine ? score : mine;
        }
        token = token_of(block_max(mine));
    }
    if (scored && threadIdx.x == 0)
        logit = logits[token];
    uint32_t listed = 0;
    if (output.candidates > 0) {
        // The most probable tokens of the model. A mask may leave fewer than requested.
        __syncthreads();
        find_top(top, Scores{logits, 1.0f, mask_of(p, output), p.vocab}, of_own_group(p.likely),
                 p.group_bits, min(output.candidates, CANDIDATES_MAX));
        if (warp == 0) {
            const bool is_listed = lane < CANDIDATES_MAX && top.sorted[lane];
            if (is_listed)
                p.results.candidates(header.ring_slot, o)[lane] = Candidate{
                    token_of(top.sorted[lane]), top.numbers[lane] - norm.maximum - norm.log_mass};
            listed = __popc(__ballot_sync(FULL_MASK, is_listed));
            __syncwarp();
        }
    }
    if (threadIdx.x == 0) {
        row = ResultRow{token, RESULT_SAMPLED, logit - norm.maximum - norm.log_mass, listed};
        p.last_sampled[output.sequence] = token;
    }
}

// Completion flag. The results are in host memory; the host may read them after this word is set.
// The last block to finish sets it, after the writes of all blocks. Called by the blocks' first
// threads.
__device__ __forceinline__ void publish_result(const SampleParams& p, const StepHeader& header,
                                               ResultHeader& result) {
    if (header.outputs > 1) {
        // acq_rel: publishes this block's writes, acquires the other blocks' writes.
        uint32_t before;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(p.arrivals)
                     : "memory");
        if (before + 1 < header.outputs)
            return;
        *p.arrivals = 0;
    }
    result.end_nanos = nanos();
    // The last count acquired the other blocks' writes, so they precede the word, as this block's
    // writes do.
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(&result.done), "l"(header.step + 1)
                 : "memory");
}

extern "C" __global__ void __launch_bounds__(DRAW_THREADS, 1)
    sample_draw(const __grid_constant__ SampleParams p) {
    static_assert(DRAW_THREADS == STEP_RING_THREADS, "the last block brings the next step's block");
    launch_dependents();
    if (blockIdx.x == gridDim.x - 1)
        return prefetch_step(p.step_ring);
    const StepHeader header = p.step.header();
    const uint32_t o = blockIdx.x;
    const OutputRow output = p.step.output(o < header.outputs ? o : 0);
    grid_dependency_wait();
    ResultHeader& result = p.results.header(header.ring_slot);
    if (o == 0 && threadIdx.x == 0) {
        result.step = header.step;
        result.outputs = header.outputs;
    }
    if (o < header.outputs)
        draw_one(p, header, o, output);
    if (threadIdx.x != 0 || o >= max(1u, header.outputs))
        return;
    if (p.arrivals)
        publish_result(p, header, result);
    else if (o == 0)
        result.end_nanos = nanos();
}
