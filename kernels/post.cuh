// Step blocks that the host posts: the device's side of crates/walla_cuda/src/posts.rs.
//
// A post says where the step block of the next launch lies in the host's memory. The host numbers
// posts from one on and writes them into a ring of its own memory before it launches; the device counts those that it has taken. So the post of a step that is in flight can be
// seen while the step before runs, and its block brought to the device ahead. A launch that finds no post of its number leaves block and count as they are.
#pragma once

#include "walla.cuh"

constexpr uint32_t POSTS = 64;
constexpr uint32_t POST_THREADS = 1024;  // of a block that copies
constexpr uint32_t POST_BATCH = 4;       // words that a thread has on their way at once

struct Post {
    uint64_t number;  // written last
    const uint4* from;
    uint64_t words;  // of 16 bytes
    uint64_t reserved;
};
static_assert(sizeof(Post) == 32, "as in posts.rs");

struct Taken {
    uint64_t count;
    uint64_t ahead;  // the number of the post whose block has been brought ahead; 0: none has
    uint64_t words;  // of it
    uint64_t reserved;
};
static_assert(sizeof(Taken) == 32, "as in posts.rs");

struct PostRef {
    const Post* ring;  // in the host's memory
    Taken* taken;
    uint4* ahead;  // as large as the block, and at least POST_BATCH words a thread
    uint4* block;
};
static_assert(sizeof(PostRef) == 32, "as in params.rs");

// The post of a number, or one of number 0.
__device__ __forceinline__ Post find_post(const PostRef& p, uint64_t number) {
    const Post* at = p.ring + number % POSTS;
    Post post = {};
    uint64_t found;
    // What the host wrote before the number can be seen with it.
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(found) : "l"(&at->number) : "memory");
    if (found != number) return post;
    post.number = number;
    post.from = reinterpret_cast<const uint4*>(__ldcv(reinterpret_cast<const unsigned long long*>(&at->from)));
    post.words = __ldcv(reinterpret_cast<const unsigned long long*>(&at->words));
    return post;
}

// Has a block of POST_THREADS copy the words of a post out of the host's memory.
__device__ __forceinline__ void copy_post(const Post& post, uint4* to) {
#pragma unroll 1
    for (uint32_t first = threadIdx.x; first < post.words; first += POST_BATCH * POST_THREADS) {
        uint4 words[POST_BATCH];
#pragma unroll
        for (uint32_t i = 0; i < POST_BATCH; i++)
            if (first + i * POST_THREADS < post.words) words[i] = __ldcv(post.from + first + i * POST_THREADS);
#pragma unroll
        for (uint32_t i = 0; i < POST_BATCH; i++)
            if (first + i * POST_THREADS < post.words) to[first + i * POST_THREADS] = words[i];
    }
}

// Brings the block of the next step to the device if its post is there: a block's work, while the last kernel of a step runs.
__device__ __forceinline__ void bring_ahead(const PostRef& p) {
    __shared__ Post post;
    const uint64_t number = p.taken->count + 1;
    // Early, and once more when the kernel before has ended.
#pragma unroll 1
    for (uint32_t look = 0; look < 2; look++) {
        if (look == 1) wait_for_predecessors();
        if (threadIdx.x == 0) post = find_post(p, number);
        __syncthreads();
        if (post.number == number) break;
        __syncthreads();
    }
    if (post.number != number) return;
    copy_post(post, p.ahead);
    __syncthreads();
    if (threadIdx.x == 0) p.taken->words = post.words, p.taken->ahead = number;
}
