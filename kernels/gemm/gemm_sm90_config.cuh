// Configuration of gemm_sm90.cuh: split-K modes, and the shape of a CTA's pipelines.
#pragma once

#include "common/bulk_copy.cuh"
#include "gemm/gemm_common.cuh"

constexpr uint32_t CTA_TILES = 8; // two warpgroups of four
constexpr uint32_t CTA_TILES_SMALL = 4;
constexpr uint32_t GROUP_BYTES = 8 * SEGMENT * 2; // 8 rows of x, one segment

// KV pages that the next attention reads, or null. A product that leaves memory bandwidth unused
// prefetches some of them into L2.
struct PagesRef {
    const uint8_t* keys;
    const uint8_t* values;
    uint32_t page_bytes; // of keys or of values
    uint32_t page_magic; // as in KvRef, not 0
    uint32_t pages_most; // pages that L2 keeps until then
    uint32_t window;     // 0: all
};
static_assert(sizeof(PagesRef) == 32, "as in params.rs");

struct GemmSm90Params {
    GemmParams gemm;
    PagesRef next_pages;
    float* workspace;           // WorkspaceSplitK: see split_sums
    uint32_t deferred_stride;   // DeferredSplitK: stride between splits, in numbers
    uint32_t full_wave_tiles;   // PersistentHalfWave: tiles of all full waves
    uint32_t weight_depth;      // stages of a warp's ring of weights, up to DEPTH_MAX
    uint32_t x_depth;           // stages of a run's ring of x, up to DEPTH_MAX
    uint32_t splits_reciprocal; // reciprocal of the splits for `fast_divide`
    uint32_t by_output;         // x has a row per output of the step (the head)
};
static_assert(sizeof(GemmSm90Params) == 400 && offsetof(GemmSm90Params, workspace) == 368 &&
                  offsetof(GemmSm90Params, splits_reciprocal) == 392,
              "as in params.rs");

// Products of two types (dispatch_pair).
struct GemmSm90PairParams {
    GemmSm90Params first, second;
    uint32_t first_ctas;
    uint32_t reserved;
};
static_assert(sizeof(GemmSm90PairParams) == 808, "as in params.rs");

// Producer warps for the rows of x of `runs` runs. Each issues one copy per 60 cycles, so there is
// one per run if 64 rows of x are more bytes than the weights of 8 tiles.
__host__ __device__ constexpr uint32_t producer_warps(uint32_t n, uint32_t runs, uint32_t record) {
    return n > 32 && record <= 1024 ? runs : 1;
}
// Segments per stage of weights: copies of 1 to 2 KB.
__host__ __device__ constexpr uint32_t weights_stage_segments(uint32_t record) {
    return record > 1200 ? 1 : 2;
}
// Segments and bytes of a stage of n rows of x.
__host__ __device__ constexpr uint32_t x_stage_segments(uint32_t n) {
    return n > 32 ? 1 : 2;
}
__host__ __device__ constexpr uint32_t x_stage(uint32_t n) {
    return n / 8 * GROUP_BYTES * x_stage_segments(n);
}
// Floats per warp to exchange and transpose the sums of two runs: a quarter of a tile's sums, of 8
// or 16 rows of x at once. Every lane then has a quad of outputs, even if a tile has only eight
// rows.
__host__ __device__ constexpr uint32_t transposed_sums(uint32_t n) {
    return n / 4 < 8 ? n / 4 : 8;
}
__host__ __device__ constexpr uint32_t exchange_floats(uint32_t n) {
    const uint32_t transposed = transposed_sums(n) * 2 * SUM_STRIDE;
    return n / 4 * WARP < transposed ? transposed : n / 4 * WARP;
}
// Floats per warp that keep a run's sums in a cluster while the warp computes the next; few sums
// stay in registers.
__host__ __device__ constexpr uint32_t kept_floats(uint32_t n) {
    return n > 32 ? n / 2 * WARP : 0;
}
// Floats per warp of Sequential: all sums of the first of two runs, then half of the result,
// transposed.
__host__ __device__ constexpr uint32_t sequential_floats(uint32_t n) {
    return n / 2 * WARP;
}

// Split-K modes. RUNS: runs that a CTA computes at once.
//
// Persistent, for many tiles: 16 warps compute both runs of all columns. A tile's two warps
// exchange half of their sums and write their results. CTAs take tiles round-robin. With 4 tiles a
// CTA has 8 warps and two CTAs share a multiprocessor: the first of them is resident before the
// preceding kernel has ended, and loads its weights.
struct Persistent {
    static constexpr bool IS_PERSISTENT = true, HAS_HALF_WAVE = false, IS_CLUSTER = false,
                          IS_DEFERRED = false, IS_SEQUENTIAL = false;
    static constexpr uint32_t RUNS = 2;
};
// The same, but the last wave is half full: each CTA has 4 tiles in it, which half of its warps
// compute.
struct PersistentHalfWave {
    static constexpr bool IS_PERSISTENT = true, HAS_HALF_WAVE = true, IS_CLUSTER = false,
                          IS_DEFERRED = false, IS_SEQUENTIAL = false;
    static constexpr uint32_t RUNS = 2;
};
// For few tiles: a CTA computes one split, its runs sequentially. A cluster of one CTA per split
// computes the same tiles; warps store their sums in the shared memory of the CTA that owns the
// tile, which adds the splits in order. Two CTAs share a multiprocessor.
struct ClusterSplitK {
    static constexpr bool IS_PERSISTENT = false, HAS_HALF_WAVE = false, IS_CLUSTER = true,
                          IS_DEFERRED = false, IS_SEQUENTIAL = false;
    static constexpr uint32_t RUNS = 1;
};
// For few tiles with long splits: 16 warps compute both runs of a CTA's split and write the sums to
// the workspace of splitk_reduce.cu. A CTA has a multiprocessor alone; a cluster of eight such CTAs
// could not be scheduled at once.
struct WorkspaceSplitK {
    static constexpr bool IS_PERSISTENT = false, HAS_HALF_WAVE = false, IS_CLUSTER = false,
                          IS_DEFERRED = false, IS_SEQUENTIAL = false;
    static constexpr uint32_t RUNS = 2;
};
// For few tiles if the consumer adds the splits (DeferredSplits in attention.cuh): a CTA computes
// one split, of one run, and stores its sums without the rows' factors, which CTA 0 writes.
struct DeferredSplitK {
    static constexpr bool IS_PERSISTENT = false, HAS_HALF_WAVE = false, IS_CLUSTER = false,
                          IS_DEFERRED = true, IS_SEQUENTIAL = false;
    static constexpr uint32_t RUNS = 1;
};
// A warpgroup with one warp that copies: it gives its registers to the consumer warps.
constexpr uint32_t SEQUENTIAL_PRODUCER_WARPS = 4;
constexpr uint32_t SEQUENTIAL_PRODUCER_REGISTERS = 40, SEQUENTIAL_CONSUMER_REGISTERS = 232;
// For many rows of x: 8 warps compute all splits and runs of a tile sequentially, each dequantising
// its weights once for 64 or 128 rows. CTAs take tiles round-robin.
struct Sequential {
    static constexpr bool IS_PERSISTENT = true, HAS_HALF_WAVE = false, IS_CLUSTER = false,
                          IS_DEFERRED = false, IS_SEQUENTIAL = true;
    static constexpr uint32_t RUNS = 1;
};

// Static shared memory of a CTA: barriers of the consumer warps' weights, then of each run's rows
// of x (full, empty), then of a cluster's sums.
template <uint32_t N, uint32_t RUNS, uint32_t TILES>
struct GemmSm90Shared {
    __align__(8) uint64_t barriers[TILES * RUNS * DEPTH_MAX + RUNS * 2 * DEPTH_MAX + 1];
    float factor[N];
};

// Shape of a CTA's pipelines. N: rows of x per CTA.
template <uint32_t TYPE_, uint32_t N_, typename SplitK_, uint32_t TILES_>
struct GemmSm90 {
    using SplitK = SplitK_;
    static constexpr uint32_t TYPE = TYPE_, N = N_, TILES = TILES_;
    static constexpr uint32_t RUNS = SplitK::RUNS, RECORD = Record<TYPE>::BYTES;
    static constexpr uint32_t CONSUMER_WARPS = TILES * RUNS,
                              PRODUCER_WARPS = SplitK::IS_SEQUENTIAL
                                                   ? SEQUENTIAL_PRODUCER_WARPS
                                                   : producer_warps(N, RUNS, RECORD),
                              THREADS = (CONSUMER_WARPS + PRODUCER_WARPS) * WARP;
    // Segments and bytes of a stage of weights, of half a tile and of both halves.
    static constexpr uint32_t W_STAGE_SEGMENTS =
                                  SplitK::IS_SEQUENTIAL ? 1 : weights_stage_segments(RECORD),
                              W_HALF = W_STAGE_SEGMENTS * RECORD, W_STAGE = 2 * W_HALF;
    // Segments and bytes of a stage of x.
    static constexpr uint32_t X_STAGE_SEGMENTS = x_stage_segments(N), X_STAGE = x_stage(N);
    // Bytes of a tile's sums.
    static constexpr uint32_t TILE_BYTES = N * TILE_ROWS * 4;
    // Whether a cluster's sums reuse the shared memory of x and weights, because they are large. A
    // CTA then stores its sums only after all CTAs have multiplied.
    static constexpr bool SUMS_REUSE_RINGS = SplitK::IS_CLUSTER && N > 32;
    // Whether gate and up load only one stage of weights before their predecessor has ended, and
    // the others when rows of x are in flight: with 16 rows the full prefetch would take enough
    // bandwidth to delay the preceding product.
    static constexpr bool LOADS_LATE =
        SplitK::IS_PERSISTENT && !SplitK::HAS_HALF_WAVE && N == 16 && TYPE != F16;
    // Whether gate and up leave memory bandwidth unused: true for 64 rows of x with quantised
    // weights.
    static constexpr bool LEAVES_MEMORY_IDLE =
        SplitK::IS_PERSISTENT && !SplitK::IS_SEQUENTIAL && N > 32 && TYPE != F16;
    using Shared = GemmSm90Shared<N, RUNS, TILES>;
};
