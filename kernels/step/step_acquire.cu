// step_acquire: block = the step block that the host posted for this launch, if it posted one.
// First kernel of every program. If the previous step prefetched the block (`prefetch_step`), it is
// read from device memory, otherwise from host memory. The next kernel starts when this one has
// ended, because kernels read the step block before they wait.
// block: [words] of 16 bytes.
// Grid: 1 block.
// Bound: latency, of two memory round trips, or of two bus round trips and the bytes.
// Oracle: the posted blocks (tests/gpu/step_ring.rs).
#include "step/step_ring.cuh"

extern "C" __global__ void __launch_bounds__(STEP_RING_THREADS, 1)
    step_acquire(const __grid_constant__ StepRingRef p) {
    __shared__ StepDescriptor descriptor;
    grid_dependency_wait();
    const StepRingState taken = *p.taken;
    // Loaded speculatively, before the count is known.
    uint4 words[STEP_RING_BATCH];
#pragma unroll
    for (uint32_t i = 0; i < STEP_RING_BATCH; i++)
        words[i] = p.ahead[i * STEP_RING_THREADS + threadIdx.x];
    const uint64_t number = taken.count + 1;
    bool is_valid = taken.ahead == number;
    if (is_valid) {
#pragma unroll
        for (uint32_t i = 0; i < STEP_RING_BATCH; i++)
            if (i * STEP_RING_THREADS + threadIdx.x < taken.words)
                p.block[i * STEP_RING_THREADS + threadIdx.x] = words[i];
#pragma unroll 1
        for (uint32_t i = STEP_RING_BATCH * STEP_RING_THREADS + threadIdx.x; i < taken.words;
             i += STEP_RING_THREADS)
            p.block[i] = p.ahead[i];
    } else {
        if (threadIdx.x == 0)
            descriptor = find_descriptor(p, number);
        __syncthreads();
        is_valid = descriptor.number == number;
        copy_step_block(descriptor, p.block);
    }
    // All threads have read the count.
    __syncthreads();
    if (threadIdx.x == 0 && is_valid)
        p.taken->count = number;
}
