// fetch: to[i] = from[i], from pinned host memory, for small blocks that a step needs soon: masks
// of allowed tokens, and step blocks that cannot be posted (step_ring.cuh).
// from, to: [bytes], allocated in whole words of 16 bytes.
// Grid: words / THREADS blocks; a thread copies one word, the last thread the remaining bytes.
// Bound: the bus, 1 to 2 us of latency plus the bytes. A kernel is used because a copy between two
// kernels of a stream switches to a copy engine and back, which leaves the GPU idle for some 6 us.
// Oracle: copies, byte by byte (tests/gpu/sampling.rs,
// masked_draws_match_the_oracle_and_are_allowed).
#include "common/walla.cuh"

constexpr uint32_t THREADS = 256;

struct FetchParams {
    const uint4* from;
    uint4* to;
    uint64_t bytes;
};
static_assert(sizeof(FetchParams) == 24, "as in fetch.rs");

extern "C" __global__ void __launch_bounds__(THREADS) fetch(const FetchParams p) {
    const uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    // The host wrote it before this launch. The wait is for the step that still reads `to`.
    const uint4 word = 16 * i < p.bytes ? __ldcv(p.from + i) : make_uint4(0, 0, 0, 0);
    grid_dependency_wait();
    // Successors start only when this kernel has ended: they read the new block before they wait.
    if (16 * i + 16 <= p.bytes) {
        p.to[i] = word;
    } else {
        const uint8_t* bytes = reinterpret_cast<const uint8_t*>(&word);
        uint8_t* to = reinterpret_cast<uint8_t*>(p.to);
        for (uint64_t at = 16 * i; at < p.bytes; at++)
            to[at] = bytes[at - 16 * i];
    }
}
