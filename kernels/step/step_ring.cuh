// Ring of step-block descriptors (posts) that the host writes: the device side of
// crates/walla_cuda/src/step_ring.rs.
//
// A post holds the host address of the step block of the next launch. The host numbers posts from
// one and writes them into a ring in host memory before it launches; the device counts the posts
// that it has taken. The device can therefore read the post of a step in flight while the previous
// step runs, and prefetch its block. A launch that finds no post with its number leaves the block
// and the count unchanged.
#pragma once

#include "common/walla.cuh"

constexpr uint32_t POSTS = 64;
constexpr uint32_t POST_THREADS = 1024; // threads of a block that copies
constexpr uint32_t POST_BATCH = 4;      // words in flight per thread

struct Post {
    uint64_t number; // written last
    const uint4* from;
    uint64_t words; // of 16 bytes each
    uint64_t reserved;
};
static_assert(sizeof(Post) == 32, "as in step_ring.rs");

struct Taken {
    uint64_t count;
    uint64_t ahead; // number of the post whose block was prefetched; 0: none
    uint64_t words; // of the prefetched block
    uint64_t reserved;
};
static_assert(sizeof(Taken) == 32, "as in step_ring.rs");

struct PostRef {
    const Post* ring; // in host memory
    Taken* taken;
    uint4* ahead; // as large as the block, and at least POST_BATCH words per thread
    uint4* block;
};
static_assert(sizeof(PostRef) == 32, "as in params.rs");

// The post with this number, or a post with number 0 if it is absent.
__device__ __forceinline__ Post find_post(const PostRef& p, uint64_t number) {
    const Post* at = p.ring + number % POSTS;
    Post post = {};
    uint64_t found;
    // Acquire: the host's writes before the number are visible with it.
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(found) : "l"(&at->number) : "memory");
    if (found != number)
        return post;
    post.number = number;
    post.from = reinterpret_cast<const uint4*>(
        __ldcv(reinterpret_cast<const unsigned long long*>(&at->from)));
    post.words = __ldcv(reinterpret_cast<const unsigned long long*>(&at->words));
    return post;
}

// Copies the words of a post from host memory with a block of POST_THREADS.
__device__ __forceinline__ void copy_post(const Post& post, uint4* to) {
#pragma unroll 1
    for (uint32_t first = threadIdx.x; first < post.words; first += POST_BATCH * POST_THREADS) {
        uint4 words[POST_BATCH];
#pragma unroll
        for (uint32_t i = 0; i < POST_BATCH; i++)
            if (first + i * POST_THREADS < post.words)
                words[i] = __ldcv(post.from + first + i * POST_THREADS);
#pragma unroll
        for (uint32_t i = 0; i < POST_BATCH; i++)
            if (first + i * POST_THREADS < post.words)
                to[first + i * POST_THREADS] = words[i];
    }
}

// Prefetches the step block of the next step if its post exists. Runs in one block of a step's last
// kernel.
__device__ __forceinline__ void bring_ahead(const PostRef& p) {
    __shared__ Post post;
    const uint64_t number = p.taken->count + 1;
    // Once early, and once more when the preceding kernel has ended.
#pragma unroll 1
    for (uint32_t look = 0; look < 2; look++) {
        if (look == 1)
            wait_for_predecessors();
        if (threadIdx.x == 0)
            post = find_post(p, number);
        __syncthreads();
        if (post.number == number)
            break;
        __syncthreads();
    }
    if (post.number != number)
        return;
    copy_post(post, p.ahead);
    __syncthreads();
    if (threadIdx.x == 0)
        p.taken->words = post.words, p.taken->ahead = number;
}
