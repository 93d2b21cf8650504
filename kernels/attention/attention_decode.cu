// attention_decode: appends and attends in one launch, for steps in which all rows belong to
// different sequences (the program guarantees it). q = rope(head_norm(Q n)); the key and value of
// the row are written to its cell as append does; out[r] = softmax(scale * q K^T) V over the cells
// max(0, p + 1 - window) ..= p.
// input: products as in append.cu; pages f16 or 8 bits; head_dim 64, 128 or 256.
//
// Grid: at most as many blocks as are resident at once; each takes KV splits
// (attention_scheduler.cuh) round-robin. Lengths are read on the device.
// Bound: memory, 4 * head_dim bytes per cell and KV head, half of that for 8 bits.
// Oracle: walla_cpu's scalar qkv and attention (tests/gpu/attention.rs).
//
// Cells before the row's own were written by earlier steps or by cache ops. A program's first
// kernels launch without overlap, so all earlier work of the stream is complete before any kernel
// of this step starts. This kernel therefore reads the step block and fetches old cells before it
// waits for its predecessor, and waits only for the products. It fetches no more than half a ring
// early: cells compete for bandwidth with weights that the products still need.
#include "attention/attention_decode.cuh"

// The instructions need sm_80; older chips use attention.cu.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

template <uint32_t DIM, uint32_t WARPS, uint32_t RING, typename Number>
__device__ __forceinline__ void decode(const AttendParams& p) {
    using F = DecodeAttention<DIM, WARPS, RING, Number>;
    extern __shared__ __align__(128) uint8_t dynamic[];
    typename F::Shared& sh = *reinterpret_cast<typename F::Shared*>(dynamic);
    uint32_t* lists = reinterpret_cast<uint32_t*>(dynamic + sizeof(typename F::Shared));
    __shared__ uint32_t split_chunks;
    launch_dependents();
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint32_t groups = groups_of_kv(p) * p.kv.kv_heads;
    KvScheduler scheduler{lists, lists + p.rows_max + 1, lists + 2 * (p.rows_max + 1), 0, 0};
    const auto begin_of = [&](uint32_t position) {
        return p.window && position + 1 > p.window ? position + 1 - p.window : 0;
    };
    scheduler.units = p.step.header().rows;
    if (warp == 0) {
        for (uint32_t r = lane; r < p.rows_max; r += WARP) {
            const uint32_t position = p.step.row(r).position;
            if (r < scheduler.units)
                scheduler.chunks[r] =
                    KvScheduler::count(begin_of(position) / CHUNK, position / CHUNK);
        }
        __syncwarp();
        scheduler.make<false>(groups, WARPS, p.slots_max, &split_chunks);
    }
    __syncthreads();
    const uint32_t items = scheduler.first_split[scheduler.units] * groups;
    bool waited = false;
    for (uint32_t item = blockIdx.x; item < items; item += gridDim.x) {
        KvSplit split;
        const uint32_t index = item / groups;
        split.group = item % groups;
        split.row = scheduler.unit_of(index);
        split.rows = 1;
        const StepRow row = p.step.row(split.row);
        const uint32_t position = row.position;
        const HeadGroup group = head_group_of(p, split.group);
        const uint32_t begin = begin_of(position);
        const KvScheduler::Cut cut =
            KvScheduler::cut(scheduler.chunks[split.row], split_chunks, WARPS);
        KvScheduler::place(split, index - scheduler.first_split[split.row], begin / CHUNK,
                           position / CHUNK, cut);
        split.slot = scheduler.first_slot[split.row];
        const bool has_own = split.end == split.unit_end;

        const uint32_t* table = p.step.table(row.table);
        const Cells cells{p.kv, table, group.kv_head, begin, position};
        typename F::Pipe pipe{cells,
                              {reinterpret_cast<const Number*>(p.kv.keys), p.kv.key_scales},
                              {reinterpret_cast<const Number*>(p.kv.values), p.kv.value_scales},
                              shared_address(sh.ring[warp]),
                              split.end,
                              0,
                              0};
        const uint32_t first = split.first_round(WARPS) + warp;
        pipe.places = pipe.look_up(first);
        pipe.fetch(first, pipe.places, 0);
        sh.heads.rope_sincos(p.head, position, F::THREADS);
        if (threadIdx.x < COLUMNS)
            sh.visible[threadIdx.x] = VisibleRange{begin, position + 1};
        __syncthreads();
        if (!waited)
            grid_dependency_wait();
        waited = true;
        pipe.fetch(first, pipe.places, F::HALF);

        sh.heads.template make<WARPS>(p, split.row, group, NormsInMemory(), has_own,
                                      cell_of(p.kv, table, group.kv_head, position),
                                      &sh.sums[0][0][0] + warp * DIM);
        __syncthreads();
        const uint32_t own = has_own ? position : ~0u;
        const uint32_t slot_columns = min(COLUMNS, p.head.heads / p.kv.kv_heads);
        F::run(p, sh, pipe, split, groups, slot_columns, group.heads, begin, position + 1, own,
               [&](uint32_t column, uint32_t d, const auto& value) {
                   store_output(p, split.row, group.first_head + column, d, value);
               });
        __syncthreads();
    }
}

// Names: attention_decode_<numbers>_<head_dim>_<warps>x<ring tiles per warp>.
// BLOCKS: blocks per multiprocessor, for __launch_bounds__.
#define ATTENTION_DECODE(NAME, NUMBER, DIM, WARPS, RING, BLOCKS)      \
    extern "C" __global__ void __launch_bounds__(WARPS* WARP, BLOCKS) \
        NAME(const __grid_constant__ AttendParams p) {                \
        decode<DIM, WARPS, RING, NUMBER>(p);                          \
    }
ATTENTION_DECODE(attention_decode_f16_64_4x4, __half, 64, 4, 4, 4)
ATTENTION_DECODE(attention_decode_f16_128_4x4, __half, 128, 4, 4, 2)
ATTENTION_DECODE(attention_decode_f16_256_4x4, __half, 256, 4, 4, 1)
ATTENTION_DECODE(attention_decode_f16_256_2x4, __half, 256, 2, 4, 1)
ATTENTION_DECODE(attention_decode_q8_64_4x8, Biased, 64, 4, 8, 4)
ATTENTION_DECODE(attention_decode_q8_128_4x8, Biased, 128, 4, 8, 2)
ATTENTION_DECODE(attention_decode_q8_256_4x4, Biased, 256, 4, 4, 1)
ATTENTION_DECODE(attention_decode_q8_256_2x8, Biased, 256, 2, 8, 1)
#endif
