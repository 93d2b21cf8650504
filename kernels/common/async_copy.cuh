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
__device__ __forceinline__ void cp_async_commit_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <uint32_t LEFT>
__device__ __forceinline__ void cp_async_wait_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}
// Waits until at most `left` of this thread's committed groups are in flight.
__device__ __forceinline__ void cp_async_wait_group(uint32_t left) {
    switch (left) {
        case 0:
            cp_async_wait_group<0>();
            break;
        case 1:
            cp_async_wait_group<1>();
            break;
        case 2:
            cp_async_wait_group<2>();
            break;
        case 3:
            cp_async_wait_group<3>();
            break;
        case 4:
            cp_async_wait_group<4>();
            break;
        case 5:
            cp_async_wait_group<5>();
            break;
        case 6:
            cp_async_wait_group<6>();
            break;
        default:
            cp_async_wait_group<7>();
            break;
    }
}
