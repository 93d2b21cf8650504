// Warpgroup products (sm_90a): 64 x 16 times 16 x N of f16, sums in f32, bit by bit as
// `mma_m16n8k16` of mma.cuh computes them. The left operand is in registers: warp w of the group
// has its rows 16 w .. 16 w + 16 in the layout of `mma_m16n8k16`. The right operand is read from
// shared memory.
#pragma once

#include "common/walla.cuh"

#define WALLA_SUM(i) "+f"(d[i])
#define WALLA_SUMS4(i) WALLA_SUM(i), WALLA_SUM(i + 1), WALLA_SUM(i + 2), WALLA_SUM(i + 3)
#define WALLA_SUMS16(i) WALLA_SUMS4(i), WALLA_SUMS4(i + 4), WALLA_SUMS4(i + 8), WALLA_SUMS4(i + 12)
#define WALLA_OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)

// Shared-memory descriptor of operand B: K-major, no swizzle, in units of 16 bytes: start address,
// leading byte offset 128 (next 8 of K), stride byte offset `stride` (next 8 rows of x).
__device__ __forceinline__ uint64_t smem_descriptor(uint32_t shared, uint32_t stride) {
    return uint64_t((shared & 0x3ffff) >> 4) | uint64_t(128 >> 4) << 16 |
           uint64_t(stride >> 4) << 32;
}
// Descriptor some bytes further. There is no carry: addresses have 14 bits of the lower half. With
// 64-bit arithmetic the compiler would mask the lower half again for each product.
__device__ __forceinline__ uint64_t advance(uint64_t descriptor, uint32_t bytes) {
    uint64_t there;
    asm("mov.b64 %0, {%1, %2};"
        : "=l"(there)
        : "r"(uint32_t(descriptor) + (bytes >> 4)), "r"(uint32_t(descriptor >> 32)));
    return there;
}

// d += a * b, asynchronous: d and a must not be accessed until it is awaited. The immediates 1, 1,
// 1, 0 are scale-d, scale-a, scale-b, and B not transposed.
__device__ __forceinline__ void wgmma_mma(float (&d)[8], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, "
        "{%8,%9,%10,%11}, %12, 1, 1, 1, 0;"
        : WALLA_SUMS4(0), WALLA_SUMS4(4)
        : WALLA_OPERANDS);
}
__device__ __forceinline__ void wgmma_mma(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
        "{%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
        : WALLA_SUMS16(0)
        : WALLA_OPERANDS);
}
__device__ __forceinline__ void wgmma_mma(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, "
        "1, 1, 1, 0;"
        : WALLA_SUMS16(0), WALLA_SUMS16(16)
        : WALLA_OPERANDS);
}
__device__ __forceinline__ void wgmma_mma(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, "
        "%68, 1, 1, 1, 0;"
        : WALLA_SUMS16(0), WALLA_SUMS16(16), WALLA_SUMS16(32), WALLA_SUMS16(48)
        : WALLA_OPERANDS);
}

// Changes the registers of each thread of a warpgroup, which all its warps call.
template <uint32_t COUNT>
__device__ __forceinline__ void registers_shrink() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <uint32_t COUNT>
__device__ __forceinline__ void registers_grow() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Earlier writes to registers and shared memory are visible to products from here on.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most LEFT of the committed groups are in flight.
template <uint32_t LEFT>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// Waits until the sums are complete. The compiler may read them from here on and no sooner.
template <uint32_t COUNT>
__device__ __forceinline__ void wgmma_wait_sums(float (&d)[COUNT]) {
    wgmma_wait_group<0>();
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
