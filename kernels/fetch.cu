// fetch: to[i] = from[i], from pinned memory of the host, for blocks that are small and hurried: masks of allowed tokens.
// from, to: [bytes], whole words of 16 bytes allocated. Grid: words / THREADS blocks; a thread copies one word, the last one what is left of it.
// Step blocks are posted (post.cuh); those that cannot be come this way, too.
// Why not a copy: a kernel stays on the multiprocessors, while a copy between two kernels of a stream hands over to a copy engine and back,
// some 6 us in which nothing runs. Bound by the bus: 1 to 2 us of latency, the bytes.
#include "walla.cuh"

constexpr uint32_t THREADS = 256;

struct FetchParams {
    const uint4* from;
    uint4* to;
    uint64_t bytes;
};
static_assert(sizeof(FetchParams) == 24, "as in fetch.rs");

extern "C" __global__ void __launch_bounds__(THREADS) fetch(const FetchParams p) {
    const uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    // The host wrote it before it launched this; the step that still reads `to` is what there is to wait for.
    const uint4 word = 16 * i < p.bytes ? __ldcv(p.from + i) : make_uint4(0, 0, 0, 0);
    wait_for_predecessors();
    // Successors start when this has ended, not before: what they read of the block before they wait is new.
    if (16 * i + 16 <= p.bytes) {
        p.to[i] = word;
    } else {
        const uint8_t* bytes = reinterpret_cast<const uint8_t*>(&word);
        uint8_t* to = reinterpret_cast<uint8_t*>(p.to);
        for (uint64_t at = 16 * i; at < p.bytes; at++) to[at] = bytes[at - 16 * i];
    }
}
