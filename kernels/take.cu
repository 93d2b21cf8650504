// take: block = the step block that the host has posted for this launch, if it has posted one. The first kernel of every program.
// What the step before has brought ahead (`bring_ahead`) lies in memory of the device; else it comes from the host's.
// Grid: 1 block. Bound by latency: memory twice, or the bus twice and the bytes. The kernel after it starts when it has ended, since kernels read the step block before they wait.
#include "post.cuh"

extern "C" __global__ void __launch_bounds__(POST_THREADS, 1) take(const __grid_constant__ PostRef p) {
    __shared__ Post post;
    wait_for_predecessors();
    const Taken taken = *p.taken;
    // Before it is known whether they are wanted.
    uint4 words[POST_BATCH];
#pragma unroll
    for (uint32_t i = 0; i < POST_BATCH; i++) words[i] = p.ahead[i * POST_THREADS + threadIdx.x];
    const uint64_t number = taken.count + 1;
    bool is_there = taken.ahead == number;
    if (is_there) {
#pragma unroll
        for (uint32_t i = 0; i < POST_BATCH; i++)
            if (i * POST_THREADS + threadIdx.x < taken.words) p.block[i * POST_THREADS + threadIdx.x] = words[i];
#pragma unroll 1
        for (uint32_t i = POST_BATCH * POST_THREADS + threadIdx.x; i < taken.words; i += POST_THREADS) p.block[i] = p.ahead[i];
    } else {
        if (threadIdx.x == 0) post = find_post(p, number);
        __syncthreads();
        is_there = post.number == number;
        copy_post(post, p.block);
    }
    // Everybody has read the count.
    __syncthreads();
    if (threadIdx.x == 0 && is_there) p.taken->count = number;
}
