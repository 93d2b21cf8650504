// Cache ops between steps, one small launch per command (walla_device's CacheCommand):
// copy_page: cells of page `to` = cells of page `from`, for keys, values and scales of all layers.
// move_cells: the same for cells within pages; keys are rotated by `position_shift` positions.
// shift_recent: recent tokens of a sequence move to the positions of their moved cells.
// copy_sequence: recent tokens, last sampled token and states of sequence `from`, to `to`.
// clear_sequence: recent tokens and states of `to` = 0.
// Pages as in kv.cuh; states: [sequences, state_numbers] f32 per layer; recent: [sequences,
// PENALTY_WINDOW_MAX].
// Grid: at each kernel.
// Bound: memory, each byte read and written once.
// Oracle: walla_cpu's cache (tests/gpu/cache.rs).
#include "attention/kv.cuh"

// A layer's cache: pages (state is null), or states of sequences (keys is null).
struct LayerRef {
    uint8_t* keys;
    uint8_t* values;
    __half* key_scales; // of 8 bits, else null
    __half* value_scales;
    float* state; // [sequences, state_numbers]
    const float* frequencies;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t pairs;
    uint32_t interleaved;
    uint32_t state_numbers;
    uint32_t reserved;
};
static_assert(sizeof(LayerRef) == 72, "as in params.rs");

struct CacheParams {
    const LayerRef* layers;
    uint32_t* last_sampled;
    uint32_t* recent;
    uint32_t layer_count;
    uint32_t page_tokens;
    uint32_t number_bytes;
    uint32_t from;      // page, sequence or first old position
    uint32_t from_cell; // first cell, or end of the old positions
    uint32_t to;        // page or sequence
    uint32_t to_cell;
    uint32_t cells;
    int32_t position_shift; // of moved cells
    uint32_t reserved;
};
static_assert(sizeof(CacheParams) == 64, "as in params.rs");

// Grid: (blocks, layers, keys and values).
extern "C" __global__ void __launch_bounds__(256) copy_page(const __grid_constant__ CacheParams p) {
    grid_dependency_wait();
    const LayerRef& layer = p.layers[blockIdx.y];
    if (!layer.keys)
        return;
    const size_t cells = size_t(layer.kv_heads) * p.page_tokens;
    const size_t bytes = cells * layer.head_dim * p.number_bytes;
    uint8_t* pages = blockIdx.z ? layer.values : layer.keys;
    // A head has a multiple of eight numbers, so pages are whole words.
    const uint64_t* from = reinterpret_cast<const uint64_t*>(pages + p.from * bytes);
    uint64_t* to = reinterpret_cast<uint64_t*>(pages + p.to * bytes);
    const size_t first = blockIdx.x * 256 + threadIdx.x, stride = size_t(gridDim.x) * 256;
    for (size_t i = first; i < bytes / 8; i += stride)
        to[i] = from[i];
    if (!layer.key_scales)
        return;
    __half* scales = blockIdx.z ? layer.value_scales : layer.key_scales;
    for (size_t i = first; i < cells; i += stride)
        scales[p.to * cells + i] = scales[p.from * cells + i];
}

// move_cells: values are copied; keys are rotated by `position_shift` positions. Grid: (KV heads of
// the widest layer, layers). A thread owns its numbers in all cells and takes the cells in order.
// If source and destination overlap, a cell is overwritten only after the same thread has read it.
template <typename Number>
__device__ __forceinline__ void move_cells(const CacheParams& p) {
    grid_dependency_wait();
    const LayerRef& layer = p.layers[blockIdx.y];
    const uint32_t head = blockIdx.x;
    if (!layer.keys || head >= layer.kv_heads)
        return;
    const uint32_t dim = layer.head_dim;
    const size_t from0 =
        ((size_t(p.from) * layer.kv_heads + head) * p.page_tokens + p.from_cell) * dim;
    const size_t to0 = ((size_t(p.to) * layer.kv_heads + head) * p.page_tokens + p.to_cell) * dim;
    Number* keys = reinterpret_cast<Number*>(layer.keys);
    Number* values = reinterpret_cast<Number*>(layer.values);
    for (uint32_t d = threadIdx.x; d < dim; d += blockDim.x)
        for (uint32_t c = 0; c < p.cells; c++)
            values[to0 + size_t(c) * dim + d] = values[from0 + size_t(c) * dim + d];
    const uint32_t pairs = layer.frequencies ? layer.pairs : 0;
    for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x) {
        const uint2 pair = rope_pair(i, pairs, layer.interleaved);
        float sine, cosine;
        sincosf(float(p.position_shift) * layer.frequencies[i], &sine, &cosine);
        for (uint32_t c = 0; c < p.cells; c++) {
            const Number* from = keys + from0 + size_t(c) * dim;
            Number* to = keys + to0 + size_t(c) * dim;
            const float a = load_number(from + pair.x);
            const float b = load_number(from + pair.y);
            store_number(to + pair.x, a * cosine - b * sine);
            store_number(to + pair.y, a * sine + b * cosine);
        }
    }
    for (uint32_t d = 2 * pairs + threadIdx.x; d < dim; d += blockDim.x)
        for (uint32_t c = 0; c < p.cells; c++)
            keys[to0 + size_t(c) * dim + d] = keys[from0 + size_t(c) * dim + d];
}
extern "C" __global__ void __launch_bounds__(128)
    move_cells_f32(const __grid_constant__ CacheParams p) {
    move_cells<float>(p);
}
extern "C" __global__ void __launch_bounds__(128)
    move_cells_f16(const __grid_constant__ CacheParams p) {
    move_cells<__half>(p);
}

// The same for 8 bits: a cell's key is quantised again after its rotation, so one warp has all of
// it; the other warps copy the values.
constexpr uint32_t MOVE_THREADS = 128;
constexpr uint32_t HEAD_DIM_MAX = 512;
extern "C" __global__ void __launch_bounds__(MOVE_THREADS)
    move_cells_q8(const __grid_constant__ CacheParams p) {
    __shared__ float at[HEAD_DIM_MAX];
    grid_dependency_wait();
    const LayerRef& layer = p.layers[blockIdx.y];
    const uint32_t head = blockIdx.x;
    if (!layer.keys || head >= layer.kv_heads)
        return;
    const uint32_t dim = layer.head_dim;
    const size_t from0 = (size_t(p.from) * layer.kv_heads + head) * p.page_tokens + p.from_cell;
    const size_t to0 = (size_t(p.to) * layer.kv_heads + head) * p.page_tokens + p.to_cell;
    Biased* keys = reinterpret_cast<Biased*>(layer.keys);
    Biased* values = reinterpret_cast<Biased*>(layer.values);
    if (threadIdx.x >= WARP) {
        for (uint32_t d = threadIdx.x - WARP; d < dim; d += MOVE_THREADS - WARP)
            for (uint32_t c = 0; c < p.cells; c++)
                values[(to0 + c) * dim + d] = values[(from0 + c) * dim + d];
        if (threadIdx.x == WARP)
            for (uint32_t c = 0; c < p.cells; c++)
                layer.value_scales[to0 + c] = layer.value_scales[from0 + c];
        return;
    }
    const uint32_t lane = threadIdx.x;
    const uint32_t pairs = layer.frequencies ? layer.pairs : 0;
    for (uint32_t c = 0; c < p.cells; c++) {
        const float scale = __half2float(layer.key_scales[from0 + c]);
        for (uint32_t d = lane; d < dim; d += WARP)
            at[d] = load_number(keys + (from0 + c) * dim + d, scale);
        __syncwarp();
        for (uint32_t i = lane; i < pairs; i += WARP) {
            const uint2 pair = rope_pair(i, pairs, layer.interleaved);
            float sine, cosine;
            sincosf(float(p.position_shift) * layer.frequencies[i], &sine, &cosine);
            const float a = at[pair.x], b = at[pair.y];
            at[pair.x] = a * cosine - b * sine;
            at[pair.y] = a * sine + b * cosine;
        }
        __syncwarp();
        const Encoder<Biased> encoder(at, dim, lane);
        for (uint32_t d = lane; d < dim; d += WARP)
            encoder.store(keys + (to0 + c) * dim + d, at[d]);
        encoder.store_scale(layer.key_scales + to0 + c, lane);
        __syncwarp();
    }
}

// Grid: one block of PENALTY_WINDOW_MAX threads. `from`: first old position; `from_cell`: old end;
// `to`: sequence.
extern "C" __global__ void __launch_bounds__(PENALTY_WINDOW_MAX)
    shift_recent(const __grid_constant__ CacheParams p) {
    grid_dependency_wait();
    uint32_t* recent = p.recent + p.to * PENALTY_WINDOW_MAX;
    const uint32_t back = threadIdx.x + 1;
    const bool moves = p.from_cell >= back && p.from_cell - back >= p.from;
    const uint32_t position = p.from_cell - back;
    const uint32_t token = moves ? recent[position % PENALTY_WINDOW_MAX] : 0;
    __syncthreads();
    if (moves)
        recent[(position + uint32_t(p.position_shift)) % PENALTY_WINDOW_MAX] = token;
}

// Grid: (blocks, layers + 1). The last block copies the data that belongs to no layer. `clear`
// writes zeros.
__device__ __forceinline__ void sequence(const CacheParams& p, bool clear) {
    grid_dependency_wait();
    if (blockIdx.y < p.layer_count) {
        const LayerRef& layer = p.layers[blockIdx.y];
        if (!layer.state)
            return;
        const uint32_t stride = gridDim.x * blockDim.x;
        for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < layer.state_numbers;
             i += stride)
            layer.state[size_t(p.to) * layer.state_numbers + i] =
                clear ? 0.0f : layer.state[size_t(p.from) * layer.state_numbers + i];
        return;
    }
    if (blockIdx.x > 0)
        return;
    for (uint32_t i = threadIdx.x; i < PENALTY_WINDOW_MAX; i += blockDim.x)
        p.recent[p.to * PENALTY_WINDOW_MAX + i] =
            clear ? 0 : p.recent[p.from * PENALTY_WINDOW_MAX + i];
    if (threadIdx.x == 0)
        p.last_sampled[p.to] = clear ? 0 : p.last_sampled[p.from];
}
extern "C" __global__ void __launch_bounds__(256)
    copy_sequence(const __grid_constant__ CacheParams p) {
    sequence(p, false);
}
extern "C" __global__ void __launch_bounds__(256)
    clear_sequence(const __grid_constant__ CacheParams p) {
    sequence(p, true);
}
