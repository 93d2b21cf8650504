// Tiles of keys and values in shared memory: TILE cells of one head as operands of the tensor
// cores, from f16 or 8 bits.
//
// Both are 16 rows of a product. For keys the rows are cells and the depth is the head's numbers;
// for values (transposed) the rows are numbers and the depth is cells. Lane l = 4 g + t holds rows
// g and g + 8, and of each 16 of depth 2 t, 2 t + 1, 2 t + 8, 2 t + 9. Integers of 8 bits become
// exact halves. Keys' scales multiply scores, in f32; values are multiplied by their scales and
// rounded to f16.
#pragma once

#include "attention/kv.cuh"
#include "common/mma.cuh"

constexpr uint32_t CHUNK = 64;
constexpr uint32_t TILE = 16; // cells of one mma
constexpr uint32_t TILES = CHUNK / TILE;

// Bytes of a tile (`Tile::BYTES`). Tests of crates/walla_cuda evaluate this function, and the other
// `*_bytes`, and compare the results with the host's.
__host__ __device__ constexpr uint32_t tile_bytes(uint32_t dim, bool is_q8) {
    return is_q8 ? TILE * (dim + 2) : TILE * dim * 2;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
// Instructions ------------------------------------------------------------------------------------

// Copies the first `bytes` of 16 bytes to shared memory, and zeros for the rest. ONCE: evict-first,
// for data that is read once per step.
template <bool ONCE>
__device__ __forceinline__ void copy_16(uint32_t to, const void* from, uint32_t bytes) {
    if constexpr (ONCE)
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
                     "l"(from), "r"(bytes), "l"(evict_first_policy())
                     : "memory");
    else
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(bytes)
                     : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&a)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(from)
                 : "memory");
}
// 4 WORDS bytes of shared memory, aligned to their size.
template <uint32_t WORDS>
__device__ __forceinline__ void load_words(uint32_t (&out)[WORDS], uint32_t from) {
    if constexpr (WORDS == 1)
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(out[0]) : "r"(from) : "memory");
    else if constexpr (WORDS == 2)
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(out[0]), "=r"(out[1])
                     : "r"(from)
                     : "memory");
    else
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(from)
                     : "memory");
}
__device__ __forceinline__ uint32_t load_short(uint32_t from) {
    uint16_t value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(from) : "memory");
    return value;
}
__device__ __forceinline__ void store_words(uint32_t to, const uint4& words) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words.x), "r"(words.y),
                 "r"(words.z), "r"(words.w)
                 : "memory");
}

// One layer's keys or values.
template <typename Number>
struct Pages {
    const Number* numbers;
    const __half* scales;
};

// The row's own key or value, in storage format.
template <uint32_t DIM, typename Number>
struct Fresh {
    __align__(16) Number numbers[DIM];
    __half scale;
};

// ONCE: as in copy_16.
template <uint32_t DIM, typename Number, bool ONCE = true>
struct Tile;

// A warp copies the TILE cells from `cell` on, each of PIECES contiguous pieces of 16 bytes, to
// `place(cell, piece)`.
template <bool ONCE, uint32_t PIECES, typename Place>
__device__ __forceinline__ void copy_tile(uint32_t to, const void* numbers, uint32_t cell,
                                          uint32_t first, uint32_t begin, uint32_t end,
                                          Place place) {
    const uint32_t lane = threadIdx.x % WARP;
    const uint8_t* from =
        static_cast<const uint8_t*>(numbers) + lane * 16 + size_t(cell) * (PIECES * 16);
    const bool all_inside = first >= begin && first + TILE <= end;
#pragma unroll
    for (uint32_t i = 0; i < TILE * PIECES / WARP; i++) {
        const uint32_t c = (i * WARP + lane) / PIECES, piece = (i * WARP + lane) % PIECES;
        const bool inside = all_inside || first + c - begin < end - begin;
        copy_16<ONCE>(to + place(c, piece), from + i * WARP * 16, inside ? 16 : 0);
    }
}

// f16: piece i (16 bytes) of cell c is at place i ^ c % 8 of its row, so that equal pieces of eight
// cells are in different banks.
template <uint32_t DIM, bool ONCE>
struct Tile<DIM, __half, ONCE> {
    static constexpr uint32_t BYTES = tile_bytes(DIM, false);
    // Stride of a column's sums: 8 rows x 4 column pairs are in different banks.
    static constexpr uint32_t SUM_STRIDE = DIM + 4;

    static __device__ __forceinline__ uint32_t place(uint32_t cell, uint32_t piece) {
        return cell * DIM * 2 + (piece ^ cell % 8) * 16;
    }
    // Index in the head of row g (of 8; `half` 1: row g + 8) of product m of values.
    static __device__ __forceinline__ uint32_t number_of(uint32_t m, uint32_t half, uint32_t g) {
        return m * 16 + half * 8 + g;
    }
    // Index of number d in a column's sums, and the store of a lane's two numbers of product m.
    static __device__ __forceinline__ uint32_t sum_place(uint32_t, uint32_t d) { return d; }
    static __device__ __forceinline__ void store_sums(float* column_sums, uint32_t, uint32_t m,
                                                      uint32_t g, float low, float high) {
        column_sums[number_of(m, 0, g)] = low;
        column_sums[number_of(m, 1, g)] = high;
    }
    // First index in the head of a lane's pair `i` of keys, in the depth 16 k ...
    static __device__ __forceinline__ uint32_t depth_of(uint32_t k, uint32_t i, uint32_t t) {
        return k * 16 + i * 8 + t * 2;
    }

    // A warp fetches a tile: cells `first` .. of one page; `cell` is the index of the first among
    // all cells. Zeros outside begin .. end.
    static __device__ __forceinline__ void fetch(uint32_t to, const Pages<__half>& pages,
                                                 uint32_t cell, uint32_t first, uint32_t begin,
                                                 uint32_t end) {
        copy_tile<ONCE, DIM / 8>(to, pages.numbers, cell, first, begin, end,
                                 [](uint32_t c, uint32_t piece) { return place(c, piece); });
    }
    // Halves have no scales.
    static __device__ __forceinline__ void fetch_scales(uint32_t, const Pages<__half>&, uint32_t,
                                                        uint32_t, uint32_t, uint32_t, uint32_t) {}
    // Stores a key or value in a cell of the tile.
    static __device__ __forceinline__ void insert(uint32_t tile, const Fresh<DIM, __half>& fresh,
                                                  uint32_t cell) {
        const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
        for (uint32_t piece = lane; piece < DIM / 8; piece += WARP)
            store_words(tile + place(cell, piece),
                        *reinterpret_cast<const uint4*>(fresh.numbers + piece * 8));
        __syncwarp();
    }
    // Scores of NT consecutive tiles, tiles t0 .. of a chunk, for NS times 8 columns: s = K Q^T.
    template <uint32_t NT, uint32_t NS, uint32_t ALL>
    static __device__ __forceinline__ void score(float (&s)[NS][ALL][4], uint32_t t0,
                                                 uint32_t tiles,
                                                 const uint32_t (&q)[NS][DIM / 16][2]) {
        const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
        for (uint32_t k = 0; k < DIM / 16; k++)
#pragma unroll
            for (uint32_t t = 0; t < NT; t++) {
                uint32_t a[4];
                ldmatrix_x4(a, tiles + t * BYTES + place(lane % 16, 2 * k + lane / 16));
#pragma unroll
                for (uint32_t n = 0; n < NS; n++)
                    mma_m16n8k16(s[n][t0 + t], a, q[n][k][0], q[n][k][1]);
            }
    }
    // sums += V^T P^T of one tile for products m0 .. m0 + MN of the head's numbers.
    template <uint32_t MN, uint32_t NS>
    static __device__ __forceinline__ void multiply_values(float (&sums)[NS][MN][4], uint32_t tile,
                                                           const uint32_t (&p)[NS][2],
                                                           uint32_t m0) {
        const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
        for (uint32_t m = 0; m < MN; m++) {
            uint32_t a[4];
            ldmatrix_x4_trans(a,
                              tile + place(lane % 8 + lane / 16 * 8, 2 * (m0 + m) + lane / 8 % 2));
#pragma unroll
            for (uint32_t n = 0; n < NS; n++)
                mma_m16n8k16(sums[n][m], a, p[n][0], p[n][1]);
        }
    }
};

// 8 bits: a lane's numbers of a cell are contiguous; the order of the depth of keys and of the rows
// of values is free. Piece i of cell c is placed in lines of 128 bytes so that both access patterns
// use different banks. The scales are last.
template <uint32_t DIM, bool ONCE>
struct Tile<DIM, Biased, ONCE> {
    static constexpr uint32_t SCALES = TILE * DIM;
    static constexpr uint32_t BYTES = SCALES + TILE * 2;
    static_assert(BYTES == tile_bytes(DIM, true));
    static constexpr uint32_t SUM_STRIDE = DIM;
    static constexpr uint32_t PIECES = DIM / 16;

    static __device__ __forceinline__ uint32_t place(uint32_t cell, uint32_t piece) {
        if constexpr (DIM == 64)
            return cell / 2 * 128 + ((cell % 2 * 4 + piece) ^ (cell / 2 % 4 * 2)) * 16;
        return cell * DIM + (piece ^ (cell & 6) ^ (cell & 1) * 4) * 16;
    }
    static __device__ __forceinline__ uint32_t number_of(uint32_t m, uint32_t half, uint32_t g) {
        return DIM == 64 ? g * 8 + m * 2 + half : m / 8 * 128 + g * 16 + m % 8 * 2 + half;
    }
    static __device__ __forceinline__ uint32_t sum_place(uint32_t column, uint32_t d) {
        return d ^ (column & 6);
    }
    static __device__ __forceinline__ void store_sums(float* column_sums, uint32_t column,
                                                      uint32_t m, uint32_t g, float low,
                                                      float high) {
        *reinterpret_cast<float2*>(column_sums + sum_place(column, number_of(m, 0, g))) =
            make_float2(low, high);
    }
    static __device__ __forceinline__ uint32_t depth_of(uint32_t k, uint32_t i, uint32_t t) {
        return k / 4 * 64 + t * 16 + k % 4 * 4 + i * 2;
    }

    static __device__ __forceinline__ void fetch(uint32_t to, const Pages<Biased>& pages,
                                                 uint32_t cell, uint32_t first, uint32_t begin,
                                                 uint32_t end) {
        copy_tile<ONCE, PIECES>(to, pages.numbers, cell, first, begin, end,
                                [](uint32_t c, uint32_t piece) { return place(c, piece); });
    }
    // A lane fetches the scales of eight cells of a tile, lower (`half` 0) or upper ones; zeros
    // from `end` on. Cells before `begin` belong to the same sequence and page.
    static __device__ __forceinline__ void fetch_scales(uint32_t to, const Pages<Biased>& pages,
                                                        uint32_t cell, uint32_t half,
                                                        uint32_t first, uint32_t begin,
                                                        uint32_t end) {
        const uint32_t c = first + half * 8;
        const uint32_t cells = c + 8 <= begin || c >= end ? 0 : min(end - c, 8u);
        copy_16<ONCE>(to + SCALES + half * 16, pages.scales + cell + half * 8, cells * 2);
    }
    static __device__ __forceinline__ void insert(uint32_t tile, const Fresh<DIM, Biased>& fresh,
                                                  uint32_t cell) {
        const uint32_t lane = threadIdx.x % WARP;
        if (lane < PIECES)
            store_words(tile + place(cell, lane),
                        *reinterpret_cast<const uint4*>(fresh.numbers + lane * 16));
        if (lane == PIECES)
            asm volatile("st.shared.u16 [%0], %1;" ::"r"(tile + SCALES + cell * 2),
                         "h"(__half_as_ushort(fresh.scale))
                         : "memory");
        __syncwarp();
    }
    // Two bytes of a word as halves: 1024 + byte, minus 1152.
    static __device__ __forceinline__ __half2 halves(uint32_t word, uint32_t which) {
        const uint32_t biased = __byte_perm(word, 0x64646464, which ? 0x4342 : 0x4140);
        return __hsub2(*reinterpret_cast<const __half2*>(&biased),
                       __half2half2(__ushort_as_half(0x6480)));
    }
    static __device__ __forceinline__ uint32_t bits(__half2 two) {
        return *reinterpret_cast<const uint32_t*>(&two);
    }

    template <uint32_t NT, uint32_t NS, uint32_t ALL>
    static __device__ __forceinline__ void score(float (&s)[NS][ALL][4], uint32_t t0,
                                                 uint32_t tiles,
                                                 const uint32_t (&q)[NS][DIM / 16][2]) {
        const uint32_t g = threadIdx.x % WARP / 4, t4 = threadIdx.x % 4;
#pragma unroll
        for (uint32_t t = 0; t < NT; t++) {
            const uint32_t tile = tiles + t * BYTES;
#pragma unroll
            for (uint32_t j = 0; j < DIM / 64; j++) {
                uint32_t low[4], high[4];
                load_words(low, tile + place(g, t4 + 4 * j));
                load_words(high, tile + place(g + 8, t4 + 4 * j));
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    const uint32_t a[4] = {bits(halves(low[i], 0)), bits(halves(high[i], 0)),
                                           bits(halves(low[i], 1)), bits(halves(high[i], 1))};
#pragma unroll
                    for (uint32_t n = 0; n < NS; n++)
                        mma_m16n8k16(s[n][t0 + t], a, q[n][4 * j + i][0], q[n][4 * j + i][1]);
                }
            }
            const float scales[2] = {
                __half2float(__ushort_as_half(load_short(tile + SCALES + g * 2))),
                __half2float(__ushort_as_half(load_short(tile + SCALES + g * 2 + 16)))};
#pragma unroll
            for (uint32_t n = 0; n < NS; n++)
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    s[n][t0 + t][i] *= scales[i / 2];
        }
    }

    // A lane's numbers of a cell for products m0 .. m0 + MN (at most 8): contiguous bytes, two per
    // product.
    template <uint32_t MN>
    static __device__ __forceinline__ void load_numbers(uint32_t (&out)[(MN + 1) / 2],
                                                        uint32_t tile, uint32_t cell, uint32_t m0) {
        const uint32_t d = number_of(m0, 0, threadIdx.x % WARP / 4);
        const uint32_t from = tile + place(cell, d / 16) + d % 16;
        if constexpr (MN == 1)
            out[0] = load_short(from);
        else
            load_words(out, from);
    }
    template <uint32_t MN, uint32_t NS>
    static __device__ __forceinline__ void multiply_values(float (&sums)[NS][MN][4], uint32_t tile,
                                                           const uint32_t (&p)[NS][2],
                                                           uint32_t m0) {
        if constexpr (MN > 8) {
            // Two pieces of 16 bytes.
            multiply_values_piece<8>(sums, 0, tile, p, m0);
            multiply_values_piece<8>(sums, 8, tile, p, m0 + 8);
        } else {
            multiply_values_piece<MN>(sums, 0, tile, p, m0);
        }
    }
    template <uint32_t PN, uint32_t MN, uint32_t NS>
    static __device__ __forceinline__ void multiply_values_piece(float (&sums)[NS][MN][4],
                                                                 uint32_t into, uint32_t tile,
                                                                 const uint32_t (&p)[NS][2],
                                                                 uint32_t m0) {
        const uint32_t t4 = threadIdx.x % 4;
        uint32_t scales[2];
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t two[1];
            load_words(two, tile + SCALES + t4 * 4 + i * 16);
            scales[i] = two[0];
        }
        // Numbers of the lane's four cells.
        uint32_t words[4][(PN + 1) / 2];
#pragma unroll
        for (uint32_t c = 0; c < 4; c++)
            load_numbers<PN>(words[c], tile, t4 * 2 + c % 2 + c / 2 * 8, m0);
#pragma unroll
        for (uint32_t w = 0; w < (PN + 1) / 2; w++)
#pragma unroll
            for (uint32_t h = 0; h < (PN == 1 ? 1 : 2); h++) {
                // Interleaves bytes of two neighbouring cells: numbers d and d + 1 of both.
                uint32_t a[4];
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
                    const uint32_t both =
                        __byte_perm(words[2 * i][w], words[2 * i + 1][w], h ? 0x7362 : 0x5140);
                    const __half2 scale = *reinterpret_cast<const __half2*>(&scales[i]);
                    a[2 * i] = bits(__hmul2(halves(both, 0), scale));
                    a[2 * i + 1] = bits(__hmul2(halves(both, 1), scale));
                }
#pragma unroll
                for (uint32_t n = 0; n < NS; n++)
                    mma_m16n8k16(sums[n][into + 2 * w + h], a, p[n][0], p[n][1]);
            }
    }
};
#endif
