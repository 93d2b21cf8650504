// Ring of step-block descriptors that the host writes: the device side of
// crates/walla_cuda/src/step_ring.rs.
//
// A descriptor holds the host address of the step block of the next launch. The host numbers
// descriptors from one and writes them into a ring in host memory before it launches; the device
// counts the descriptors that it has taken. The device can therefore read the descriptor of a step
// in flight while the previous step runs, and prefetch its block. A launch that finds no descriptor
// with its number leaves the block and the count unchanged.
#pragma once

#include "common/walla.cuh"

constexpr uint32_t RING_SLOTS = 64;
constexpr uint32_t STEP_RING_THREADS = 1024; // threads of a block that copies
constexpr uint32_t STEP_RING_BATCH = 4;      // words in flight per thread

struct StepDescriptor {
    uint64_t number; // written last
    const uint4* from;
    uint64_t words; // of 16 bytes each
    uint64_t reserved;
};
static_assert(sizeof(StepDescriptor) == 32, "as in step_ring.rs");

struct StepRingState {
    uint64_t count;
    uint64_t ahead; // number of the descriptor whose block was prefetched; 0: none
    uint64_t words; // of the prefetched block
    uint64_t reserved;
};
static_assert(sizeof(StepRingState) == 32, "as in step_ring.rs");

struct StepRingRef {
    const StepDescriptor* ring; // in host memory
    StepRingState* taken;
    uint4* ahead; // as large as the block, and at least STEP_RING_BATCH words per thread
    uint4* block;
};
static_assert(sizeof(StepRingRef) == 32, "as in params.rs");

// The descriptor with this number, or a descriptor with number 0 if it is absent.
__device__ __forceinline__ StepDescriptor find_descriptor(const StepRingRef& p, uint64_t number) {
    const StepDescriptor* at = p.ring + number % RING_SLOTS;
    StepDescriptor descriptor = {};
    uint64_t found;
    // Acquire: the host's writes before the number are visible with it.
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(found) : "l"(&at->number) : "memory");
    if (found != number)
        return descriptor;
    descriptor.number = number;
    descriptor.from = reinterpret_cast<const uint4*>(
        __ldcv(reinterpret_cast<const unsigned long long*>(&at->from)));
    descriptor.words = __ldcv(reinterpret_cast<const unsigned long long*>(&at->words));
    return descriptor;
}

// Copies the words of a descriptor from host memory with a block of STEP_RING_THREADS.
__device__ __forceinline__ void copy_step_block(const StepDescriptor& descriptor, uint4* to) {
#pragma unroll 1
    for (uint32_t first = threadIdx.x; first < descriptor.words;
         first += STEP_RING_BATCH * STEP_RING_THREADS) {
        uint4 words[STEP_RING_BATCH];
#pragma unroll
        for (uint32_t i = 0; i < STEP_RING_BATCH; i++)
            if (first + i * STEP_RING_THREADS < descriptor.words)
                words[i] = __ldcv(descriptor.from + first + i * STEP_RING_THREADS);
#pragma unroll
        for (uint32_t i = 0; i < STEP_RING_BATCH; i++)
            if (first + i * STEP_RING_THREADS < descriptor.words)
                to[first + i * STEP_RING_THREADS] = words[i];
    }
}

// Prefetches the step block of the next step if its descriptor exists. Runs in one block of a
// step's last kernel.
__device__ __forceinline__ void prefetch_step(const StepRingRef& p) {
    __shared__ StepDescriptor descriptor;
    const uint64_t number = p.taken->count + 1;
    // Once early, and once more when the preceding kernel has ended.
#pragma unroll 1
    for (uint32_t look = 0; look < 2; look++) {
        if (look == 1)
            grid_dependency_wait();
        if (threadIdx.x == 0)
            descriptor = find_descriptor(p, number);
        __syncthreads();
        if (descriptor.number == number)
            break;
        __syncthreads();
    }
    if (descriptor.number != number)
        return;
    copy_step_block(descriptor, p.ahead);
    __syncthreads();
    if (threadIdx.x == 0)
        p.taken->words = descriptor.words, p.taken->ahead = number;
}
