// Asynchronous copies to shared memory, awaited in groups: cp.async from sm_80 on, loads and stores
// before.
#pragma once

#include "common/walla.cuh"

// Copies 16 bytes to shared memory without waiting.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
    const uint4 value = *static_cast<const uint4*>(from);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w)
                 : "memory");
#endif
}
// The same for 4 bytes.
__device__ __forceinline__ void copy_word_async(uint32_t to, const void* from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
#else
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(*static_cast<const uint32_t*>(from))
                 : "memory");
#endif
}
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <uint32_t LEFT>
__device__ __forceinline__ void await_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}
// Waits until at most `left` of this thread's closed groups are in flight.
__device__ __forceinline__ void await_copies(uint32_t left) {
    switch (left) {
        case 0:
            await_copies<0>();
            break;
        case 1:
            await_copies<1>();
            break;
        case 2:
            await_copies<2>();
            break;
        case 3:
            await_copies<3>();
            break;
        case 4:
            await_copies<4>();
            break;
        case 5:
            await_copies<5>();
            break;
        case 6:
            await_copies<6>();
            break;
        default:
            await_copies<7>();
            break;
    }
}
