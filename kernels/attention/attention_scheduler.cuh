// KV scheduler of attention_decode.cu and attention_mixed.cu: cuts the chunks of a step's units
// into KV splits that blocks take round-robin.
#pragma once

#include "attention/attention.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// KV split of a unit. A unit is rows with one page table and one head group, processed by one block
// or several; a split is the chunks `first .. end` of the unit's `unit_first .. unit_end`. A unit
// begins at a span boundary; its chunks before `visible_first` are not visible. KV splits are one
// round of a block each, or whole spans (`KvScheduler::cut`).
struct KvSplit {
    uint32_t row, rows;
    uint32_t group; // index among all groups
    uint32_t unit_first, unit_end, visible_first;
    uint32_t first, end;
    uint32_t slot; // the unit's first slot
    uint32_t each; // chunks of each split but the last
    uint32_t splits;

    // Whether later splits write span results rather than chunk results.
    __device__ __forceinline__ bool stores_spans() const { return each >= SPAN; }
    // Slot of chunk `c` of a later split, or of its span. The first split has slot 0.
    __device__ __forceinline__ uint32_t slot_of(uint32_t c) const {
        const uint32_t later = c - unit_first - each;
        return 1 + (stores_spans() ? later / SPAN : later);
    }
    // First chunk of the first round. Rounds begin at multiples of the warps. The first split
    // begins with the first round that has visible cells; other splits write results for all their
    // chunks.
    __device__ __forceinline__ uint32_t first_round(uint32_t warps) const {
        return first == unit_first ? max(first, visible_first / warps * warps) : first;
    }
};

// KV splits of all units of a step. The first warp of every block computes the same ones from the
// lengths in the step block: enough chunks per split to spread the step over the grid, but at least
// one round of the block.
struct KvScheduler {
    uint32_t* first_split; // [units + 1], index of each unit's first split
    uint32_t* first_slot;  // [units + 1]
    // [units]: chunks; from bit PARTS_AT on: parts of COLUMNS columns beyond the first (a unit with
    // several is processed as a prompt)
    uint32_t* chunks;
    uint32_t units, split_chunks;

    // `each`: chunks of a unit's splits but the last. The smallest split_chunks is one round of a
    // block: a second round costs less than a split. Larger splits are whole spans, and so are
    // splits of many chunks, to limit the number of results. The three cases, in order: one split;
    // one round per split, whose results are chunks'; whole spans. (A division takes some 30
    // instructions, before a block's first load.)
    struct Cut {
        uint32_t each, splits;
    };
    static __device__ __forceinline__ Cut cut(uint32_t chunks, uint32_t split_chunks,
                                              uint32_t warps) {
        const uint32_t near = (chunks + split_chunks / 2) / split_chunks;
        if (near <= 1 || (chunks <= SPAN && split_chunks > warps))
            return Cut{chunks, 1};
        if (chunks <= CHUNKS_FEW && split_chunks == warps)
            return Cut{warps, div_up(chunks, warps)};
        const uint32_t spans = split_chunks > warps ? div_up(chunks / SPAN, near) : 1;
        const uint32_t each = spans * SPAN,
                       splits = spans == 1 ? div_up(chunks, SPAN) : div_up(chunks, each);
        return Cut{each, split_chunks > warps ? min(splits, near) : splits};
    }

    // The same for prompts, where a block processes one chunk in the time of a round: whole spans.
    // Rounded down: one split more than there are blocks would add a wave.
    static __device__ __forceinline__ Cut cut_prompt(uint32_t chunks, uint32_t split_chunks,
                                                     uint32_t warps) {
        const uint32_t near = max(1u, chunks * warps / split_chunks);
        const uint32_t each = div_up(div_up(chunks, SPAN), near) * SPAN;
        return Cut{each, div_up(chunks, each)};
    }

    // Slots that a part of a unit writes. Tests of crates/walla_cuda evaluate `cut`, `cut_prompt`
    // and `slots_of` (kernel_source.rs).
    static __device__ __forceinline__ uint32_t slots_of(uint32_t chunks, uint32_t each,
                                                        uint32_t splits) {
        if (splits == 1)
            return 0;
        const uint32_t later = chunks - each;
        return 1 + (each >= SPAN ? div_up(later, SPAN) : later);
    }

    // Sets begin and end of split `index` of a unit. `last`: the last chunk; `visible_first`: the
    // first visible one.
    static __device__ __forceinline__ void place(KvSplit& split, uint32_t index,
                                                 uint32_t visible_first, uint32_t last,
                                                 const Cut& cut) {
        split.visible_first = visible_first;
        split.unit_first = visible_first / SPAN * SPAN, split.unit_end = last + 1;
        split.each = cut.each, split.splits = cut.splits;
        split.first = split.unit_first + index * cut.each;
        split.end = index + 1 < cut.splits ? split.first + cut.each : split.unit_end;
    }
    // Chunks of a unit, including the invisible ones at the beginning of its first span.
    static __device__ __forceinline__ uint32_t count(uint32_t visible_first, uint32_t last) {
        return last + 1 - visible_first / SPAN * SPAN;
    }

    static constexpr uint32_t PARTS_AT = 28;
    static __device__ __forceinline__ uint32_t chunks_of(uint32_t unit) {
        return unit & ((1u << PARTS_AT) - 1);
    }
    static __device__ __forceinline__ uint32_t parts_of(uint32_t unit) {
        return (unit >> PARTS_AT) + 1;
    }

    // Called by the first warp. Without HAS_PROMPTS no unit is processed as a prompt. Needs a
    // barrier before other warps read.
    template <bool HAS_PROMPTS>
    __device__ __forceinline__ void make(uint32_t groups, uint32_t warps, uint32_t slots_max,
                                         uint32_t* split_chunks_out) const {
        const uint32_t lane = threadIdx.x % WARP;
        uint32_t total = 0;
        for (uint32_t u = lane; u < units; u += WARP) {
            if constexpr (HAS_PROMPTS)
                total += chunks_of(chunks[u]) * (parts_of(chunks[u]) > 1 ? warps : 1);
            else
                total += chunks[u];
        }
        total = __reduce_add_sync(FULL_MASK, total);
        uint32_t wanted = max(warps, div_up(total * groups, gridDim.x));
        // Doubles the chunks per split until the partial results fit `slots_max`.
        for (;; wanted *= 2) {
            uint32_t splits = 0, slots = 0;
            for (uint32_t base = 0; base < units; base += WARP) {
                const uint32_t u = base + lane;
                const uint32_t n = u < units ? chunks[u] : 0;
                uint32_t its_splits = u < units ? 1 : 0, its_slots = 0;
                if (HAS_PROMPTS && parts_of(n) > 1) {
                    const Cut its = cut_prompt(chunks_of(n), wanted, warps);
                    its_splits = its.splits;
                    its_slots = slots_of(chunks_of(n), its.each, its.splits) * parts_of(n);
                } else if (n) {
                    const Cut its = cut(n, wanted, warps);
                    its_splits = its.splits;
                    its_slots = slots_of(n, its.each, its.splits);
                }
                uint32_t a = its_splits, b = its_slots;
#pragma unroll
                for (uint32_t offset = 1; offset < WARP; offset *= 2) {
                    const uint32_t other_a = __shfl_up_sync(FULL_MASK, a, offset);
                    const uint32_t other_b = __shfl_up_sync(FULL_MASK, b, offset);
                    if (lane >= offset)
                        a += other_a, b += other_b;
                }
                if (u < units)
                    first_split[u] = splits + a - its_splits, first_slot[u] = slots + b - its_slots;
                splits += __shfl_sync(FULL_MASK, a, WARP - 1);
                slots += __shfl_sync(FULL_MASK, b, WARP - 1);
            }
            if (lane == 0)
                first_split[units] = splits, *split_chunks_out = wanted;
            if (slots <= slots_max)
                break;
        }
    }
    // Most chunks of a unit for which blocks write chunk results one by one.
    static constexpr uint32_t CHUNKS_FEW = 32;

    // The unit of a split.
    __device__ __forceinline__ uint32_t unit_of(uint32_t split) const {
        if (first_split[units] == units)
            return split;
        uint32_t low = 0, high = units;
        while (high - low > 1) {
            const uint32_t middle = (low + high) / 2;
            if (first_split[middle] <= split)
                low = middle;
            else
                high = middle;
        }
        return low;
    }
};
#endif
