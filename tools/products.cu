// The products of a decode step (kernels/few.cuh to 8 rows, kernels/wide.cuh) without anything
// around them: checks every launch bit by bit against a plain chain of products, and times the
// products of 16 layers and the head of Llama 3.2 1B in one graph, and each sort of launch alone.
// Compiles in seconds, so kernels are tried here first.
//
// The cuts are a copy of what crates/walla_cuda/src/lower/{order,tiling,wide}.rs made at commit
// c937637, which nothing compares with today's. Since then tiling/few.rs asks for two segments
// ahead at least (three here), bounds what is asked for ahead, and before the predecessor has ended
// (rings of all that fits here, at once), and takes large blocks where two do not fit; wide.rs has
// clusters two stages deep (eight here). So bits and the order of sums are checked here as they
// are, but times of rings and grids are of launches that walla no longer makes: decide by whole
// steps (examples/step_bench.rs), or bring the copy up to date first.
//
// nvcc -gencode arch=compute_90a,code=sm_90a -O3 -std=c++17 -fmad=false -Ikernels -cudart static
// tools/products.cu -o products && ./products [--check | --time] [--apart] [ROWS …]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "few.cuh"
#include "tensor.cuh"
#include "wide.cuh"

FEW(Q4_1, q4_1)
FEW(Q6K, q6_k)
WIDES(Q4_1, q4_1)
WIDES(Q6K, q6_k)
FEW_PAIR(Q4_1, q4_1, Q6K, q6_k)
WIDE_PAIRS(Q4_1, q4_1, Q6K, q6_k)

namespace {

constexpr uint32_t WIDTH = 2048, KEYS = 512, HIDDEN = 8192, VOCABULARY = 128256, LAYERS = 16, ROWS_MAX = 128, SHARED_STATIC = 4352;
uint32_t multiprocessors = 132, columns_max = 0;
bool pairs = true;

void must(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    std::printf("%s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
}

// Random contents
// ---------------------------------------------------------------------------------------------------------------

__device__ uint32_t mixed(uint32_t h) {
    h *= 2654435761u, h ^= h >> 15, h *= 2246822519u, h ^= h >> 13, h *= 3266489917u;
    return h ^ h >> 16;
}

// Records whose scales are small halves, or bytes.
template <uint32_t TYPE>
__global__ void fill_records(uint32_t* words, size_t count, uint32_t seed) {
    using R = Record<TYPE>;
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
        const uint32_t at = uint32_t(i % (R::BYTES / 4)) * 4;
        uint32_t bits = mixed(uint32_t(i) + seed * 40503u);
        if (at >= (TYPE == Q4_1 ? R::SCALES_AT : R::SUPERS_AT)) bits = (bits & 0x00ff00ffu) | 0x68006800u;  // scales at 2^11: integers are subnormal, their products must not be zeros
        words[i] = bits;
    }
}
__global__ void fill_halves(__half* x, size_t count) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
        x[i] = __float2half((int(mixed(uint32_t(i)) & 0xffff) - 32768) / 16384.0f);
}
__global__ void fill_floats(float* x, size_t count, float value) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) x[i] = value;
}

// The same product, a warp a tile and eight rows of x, from memory: mma.sync in the order that
// product.cuh states.
template <uint32_t TYPE>
__global__ void plain(const __grid_constant__ MatmulParams p) {
    __shared__ float sums[8 * SUM_STRIDE], factor[8];
    constexpr uint32_t RECORD = Record<TYPE>::BYTES;
    const uint32_t lane = threadIdx.x, g = lane / 4, t = lane % 4, tile = blockIdx.x, row0 = blockIdx.y * 8;
    for (uint32_t n = 0; n < 8; n++) {
        const uint32_t r = min(row0 + n, p.rows_max - 1);
        float its = 1.0f;
        if (p.squares) {
            const float4* squares = reinterpret_cast<const float4*>(p.squares + size_t(r) * p.squares_count);
            float sum = 0.0f;
            for (uint32_t i = lane; i < p.squares_count / 4; i += WARP) sum += (squares[i].x + squares[i].y) + (squares[i].z + squares[i].w);
            its = __fdividef(rsqrtf(warp_sum(sum) * p.inverse_width + p.eps), p.used[r]);
        }
        if (lane == 0) factor[n] = its;
    }
    const TileOf at = tile_of(p, tile);
    float total[4] = {};
    for (uint32_t split = 0; split < p.splits; split++) {
        float of_split[4] = {};
        const uint32_t split_end = min(p.x.segments, (split + 1) * p.split_segments);
        for (uint32_t run = 0; run < p.warps; run++) {
            float sum[4] = {};
            const uint32_t begin = min(split * p.split_segments + run * p.run, split_end), end = min(begin + p.run, split_end);
            for (uint32_t s = begin; s < end; s++) {
                HalfTile<TYPE> w[2];
                for (uint32_t h = 0; h < 2; h++)
                    w[h].load(p.part[at.part[h]].weight.records + (size_t(at.half[h]) * p.x.segments + s) * RECORD, lane);
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) {
                    uint32_t a[2][4];
                    unpack(a, w, j);
#pragma unroll
                    for (uint32_t m = 0; m < 2; m++) {
                        const uint8_t* x = p.x.rows + piece_of(p.x, row0 + min(g, p.x.group_rows - 1), s * 16 + 4 * j + 2 * m) + t * 4;
                        multiply(sum, a[m], *reinterpret_cast<const uint32_t*>(x), *reinterpret_cast<const uint32_t*>(x + piece_stride(p.x)));
                    }
                }
            }
            for (uint32_t c = 0; c < 4; c++) of_split[c] += sum[c];
        }
        for (uint32_t c = 0; c < 4; c++) total[c] += of_split[c];
    }
    for (uint32_t c = 0; c < 4; c++) sums[(2 * t + c % 2) * SUM_STRIDE + c / 2 * 8 + g] = total[c];
    __syncwarp();
    const uint32_t quads = p.mode >= GATE_SILU ? 2 : 4;
    for (uint32_t item = lane; item < 8 * quads; item += WARP) {
        const uint32_t quad = item % quads, n = item / quads;
        float value[2][4] = {};
        for (uint32_t h = 0; h < (quads == 2 ? 2 : 1); h++)
            for (uint32_t c = 0; c < 4; c++) value[h][c] = sums[n * SUM_STRIDE + h * 8 + quad * 4 + c];
        write_four(p, at, row0 + n, quad, factor[n], value);
    }
}

// Launches
// ----------------------------------------------------------------------------------------------------------------------

struct Matrix {
    bool is_q6;
    uint32_t rows, cols;
    uint8_t* records;
};

uint32_t record_bytes(bool is_q6) { return is_q6 ? Record<Q6K>::BYTES : Record<Q4_1>::BYTES; }

Matrix matrix(bool is_q6, uint32_t rows, uint32_t cols, uint32_t seed) {
    Matrix m = {is_q6, rows, cols, nullptr};
    const size_t bytes = size_t((rows + 15) / 16 * 2) * (cols / SEGMENT) * record_bytes(is_q6);
    must(cudaMalloc(&m.records, bytes), "weights");
    uint32_t* words = reinterpret_cast<uint32_t*>(m.records);
    if (is_q6)
        fill_records<Q6K><<<1024, 256>>>(words, bytes / 4, seed);
    else
        fill_records<Q4_1><<<1024, 256>>>(words, bytes / 4, seed);
    return m;
}

struct Call {
    std::string name;
    MatmulParams p;
    bool is_q6, is_cluster, is_few, is_half;
    uint32_t columns, threads, shared_bytes;
    dim3 grid;
    size_t bytes;
    bool is_pair;  // with another type's product, whose parameters follow
    PairParams pair;
};

const void* kernel_of(const Call& call) {
    const auto pick = [&](const void* n16, const void* n32, const void* n64) { return call.columns == 16 ? n16 : call.columns == 32 ? n32 : n64; };
#define PICK(NAME) \
    pick(reinterpret_cast<const void*>(NAME##_16), reinterpret_cast<const void*>(NAME##_32), reinterpret_cast<const void*>(NAME##_64))
    if (call.is_pair) return call.is_few ? reinterpret_cast<const void*>(matmul_q4_1_q6_k_1) : PICK(wide_cluster_q4_1_q6_k);
    if (call.is_few) return call.is_q6 ? reinterpret_cast<const void*>(matmul_q6_k_1) : reinterpret_cast<const void*>(matmul_q4_1_1);
    if (call.is_cluster) return call.is_q6 ? PICK(wide_cluster_q6_k) : PICK(wide_cluster_q4_1);
    if (call.is_half) {
        if (call.columns == 16) return call.is_q6 ? reinterpret_cast<const void*>(wide_half_q6_k_16) : reinterpret_cast<const void*>(wide_half_q4_1_16);
        return call.is_q6 ? reinterpret_cast<const void*>(wide_half_q6_k_32) : reinterpret_cast<const void*>(wide_half_q4_1_32);
    }
    return call.is_q6 ? PICK(wide_q6_k) : PICK(wide_q4_1);
#undef PICK
}

uint32_t ceil_of(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// As `Tiling::few` cut it at c937637.
void cut_few(Call& call, uint32_t record) {
    MatmulParams& p = call.p;
    call.is_few = true;
    const bool is_large = p.tiles <= multiprocessors && p.splits * p.warps > FEW_WARPS;
    const uint32_t warps = is_large ? FEW_WARPS_LARGE : FEW_WARPS;
    call.threads = warps * WARP, p.teams = warps / p.warps, p.x_splits = p.splits;
    for (uint32_t resident = is_large ? 1 : 2; resident > 0; resident--) {
        const uint32_t places = multiprocessors * resident, room = (resident == 2 ? 114 : 228) * 1024 - 1024 - SHARED_STATIC;
        uint32_t best_cost = ~0u, rounds = 0, units = 0;
        for (uint32_t turn_tiles = 1; turn_tiles <= 8; turn_tiles++) {
            const uint32_t blocks = ceil_of(p.tiles, turn_tiles), its_rounds = ceil_of(blocks, places), its_units = ceil_of(turn_tiles * p.splits, p.teams);
            if (its_rounds * (2 * its_units + 1) >= best_cost) continue;
            best_cost = its_rounds * (2 * its_units + 1), rounds = its_rounds, units = its_units, p.turn_tiles = turn_tiles;
            call.grid = dim3(ceil_of(blocks, rounds), 1, 1);
        }
        const uint32_t all = p.run * units * rounds;
        uint32_t best = 0;
        const auto ring = [&](uint32_t chunk) {
            for (uint32_t depth = std::min(DEPTH_MAX, ceil_of(p.run, chunk) * units * rounds); depth > 0; depth--) {
                const uint32_t sums = (rounds > 1 ? 2 : 1) * p.turn_tiles * p.splits * p.warps * p.x.group_rows * SUM_STRIDE * 4;
                const uint32_t bytes = warps * depth * chunk * 2 * record + p.x.segments * p.x.group_rows * 256 + sums;
                if (bytes > room) continue;
                if (std::min(chunk * depth, all) >= best) best = std::min(chunk * depth, all), p.chunk = chunk, p.depth = depth, call.shared_bytes = bytes;
                return;
            }
        };
        for (uint32_t chunk = 2; chunk <= std::min(2560 / record, p.run); chunk++)
            if (chunk % 2 == 0 || chunk == p.run) ring(chunk);
        if (best == 0) ring(1);
        if (best >= std::min(resident == 1 ? 1u : 3u, all)) break;
    }
    p.stages = ceil_of(p.run, p.chunk), p.tasks = ceil_of(p.turn_tiles * p.splits, p.teams), p.passes = 1;
    p.all_stages = ceil_of(p.tiles, p.turn_tiles * call.grid.x) * p.tasks * p.stages;
    p.early_stages = p.depth;
    const auto by = [](uint32_t n) { return ceil_of(1u << 31, n); };
    p.by_stages = by(p.stages), p.by_tasks = by(p.tasks), p.by_passes = by(p.passes), p.by_x_splits = by(p.x_splits);
    for (uint32_t warp = 0; warp < warps; warp++) {
        const uint32_t team = warp / p.warps, at = team / p.x_splits, split = team % p.x_splits;
        const uint32_t begin = split * p.split_segments + warp % p.warps * p.run, end = std::min({begin + p.run, (split + 1) * p.split_segments, p.x.segments});
        const uint32_t count = at < p.turn_tiles && begin < end ? std::min(p.chunk, end - begin) : 0;
        p.first[warp] = at | count << 8 | begin << 16;
    }
}

Call call_of(const char* name, const std::vector<Matrix>& parts, uint32_t rows, uint8_t* x, float* out, uint32_t mode) {
    Call call = {};
    MatmulParams& p = call.p;
    call.name = name, call.is_q6 = parts[0].is_q6;
    const uint32_t record = record_bytes(call.is_q6), segments = parts[0].cols / SEGMENT;
    p.x = {x, segments, 1.0f, std::min(rows, 8u), 0};
    p.mode = mode, p.rows_max = rows, p.unscale = 1.0f, p.eps = 1e-5f;
    for (uint32_t& from : p.part_from) from = ~0u;
    uint32_t stride = 0;
    for (const Matrix& m : parts) stride += m.rows;
    for (size_t i = 0; i < parts.size(); i++) {
        const Matrix& m = parts[i];
        const bool is_gate = mode >= GATE_SILU;
        p.part[i] = {{m.records, m.rows, m.cols, m.is_q6 ? uint32_t(Q6K) : uint32_t(Q4_1), 1.0f}, nullptr, is_gate ? out : out + p.tiles * 16, is_gate ? m.rows : stride, 0};
        p.part_from[i] = is_gate && i > 0 ? ~0u : p.tiles;
        p.tiles += ceil_of(m.rows, 16);
        call.bytes += size_t(m.rows) * segments * record / 8;
    }
    if (mode >= GATE_SILU) p.tiles = ceil_of(parts[0].rows, 8);
    // The order of sums.
    const bool is_many = p.tiles >= 512;
    const uint32_t groups = ceil_of(p.tiles, WIDE_TILES);
    const uint32_t wanted = is_many ? 1 : std::clamp(2 * multiprocessors / groups, 1u, WIDE_SPLITS_MAX), runs = is_many || ceil_of(segments, wanted) >= 8 ? 2 : 1;
    p.split_segments = ceil_of(segments, wanted), p.splits = ceil_of(segments, p.split_segments);
    p.run = ceil_of(p.split_segments, runs), p.warps = ceil_of(p.split_segments, p.run);
    // The cut.
    if (rows <= 8) {
        cut_few(call, record);
        return call;
    }
    const uint32_t n = !is_many && columns_max && columns_max < rows ? columns_max : rows <= 16 ? 16 : rows <= 32 ? 32 : 64, x_chunk = n > 32 ? 1 : 2;
    call.is_half = is_many && n <= 32 && ceil_of(p.tiles, WIDE_TILES_HALF) <= 2 * multiprocessors && ceil_of(rows, n) == 1;
    const uint32_t tiles_here = call.is_half ? WIDE_TILES_HALF : WIDE_TILES, groups_here = ceil_of(p.tiles, tiles_here), chunk = weights_chunk(record);
    const uint32_t rounds = is_many && !call.is_half ? ceil_of(groups_here, multiprocessors) : 1;
    const uint32_t each = is_many ? p.run : p.split_segments, at_once = is_many ? 2 : 1;
    const uint32_t depth_most = std::min(DEPTH_MAX, ceil_of(each, chunk) * rounds), x_most = std::min(DEPTH_MAX, ceil_of(each, x_chunk) * rounds);
    const auto bytes_of = [&](uint32_t depth, uint32_t x_depth) {
        const uint32_t rings = at_once * x_depth * x_chunk * (n / 8) * GROUP_BYTES + tiles_here * at_once * depth * 2 * chunk * record;
        if (is_many) return rings + tiles_here * at_once * 4 * std::max(n / 4 * 32, std::min(n / 2, 16u) * SUM_STRIDE);
        const uint32_t received = ceil_of(WIDE_TILES, p.splits) * p.splits * n * 64, kept = p.warps > 1 ? WIDE_TILES * 4 * (n / 2 * 32) : 0;
        return n > 32 ? std::max(rings + kept, received + WIDE_TILES * 8 * SUM_STRIDE * 4) : received + rings;
    };
    const uint32_t room = (is_many && !call.is_half ? 227 : 113) * 1024 - 1024 - SHARED_STATIC;
    p.depth = 1, p.chunk = std::min(2u, x_most), p.by_x_splits = ceil_of(1u << 31, p.splits);
    for (bool grows = true; grows;) {
        grows = false;
        if (p.depth < depth_most && bytes_of(p.depth + 1, p.chunk) <= room) p.depth++, grows = true;
        if (p.chunk < x_most && bytes_of(p.depth, p.chunk + 1) <= room) p.chunk++, grows = true;
    }
    call.is_cluster = !is_many, call.columns = n, call.threads = (tiles_here * at_once + x_warps(n, at_once, record)) * WARP;
    call.shared_bytes = bytes_of(p.depth, p.chunk);
    call.grid = dim3(is_many ? ceil_of(groups_here, rounds) : groups * p.splits, ceil_of(rows, n), 1);
    return call;
}

// A launch of both, if there is one.
std::vector<Call> pair_of(const Call& first, const Call& second) {
    const bool fit = first.is_few ? second.is_few : first.is_cluster && second.is_cluster && first.p.splits == second.p.splits && first.columns == second.columns;
    if (!fit || first.is_q6 || !second.is_q6 || first.grid.y != second.grid.y) return {first, second};
    Call both = first;
    both.name = first.name + " and " + second.name, both.is_pair = true, both.pair = {first.p, second.p, first.grid.x, 0};
    both.grid.x += second.grid.x, both.shared_bytes = std::max(first.shared_bytes, second.shared_bytes), both.bytes += second.bytes;
    return {both};
}

void launch(const Call& call, cudaStream_t stream) {
    const void* kernel = kernel_of(call);
    must(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024 - SHARED_STATIC), "shared memory");
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization, attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension, attributes[1].val.clusterDim = {call.p.splits, 1, 1};
    cudaLaunchConfig_t config = {call.grid, dim3(call.threads), call.shared_bytes, stream, attributes, call.is_cluster ? 2u : 1u};
    void* params[] = {call.is_pair ? static_cast<void*>(const_cast<PairParams*>(&call.pair)) : const_cast<MatmulParams*>(&call.p)};
    must(cudaLaunchKernelExC(&config, kernel, params), call.name.c_str());
}

// Microseconds of a graph of launches: the best of four times ten.
float micros(const std::vector<Call>& calls) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    must(cudaStreamCreate(&stream), "stream");
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
    for (const Call& call : calls) launch(call, stream);
    must(cudaStreamEndCapture(stream, &graph), "capture");
    must(cudaGraphInstantiate(&exec, graph, 0), "graph");
    must(cudaEventCreate(&begin), "event"), must(cudaEventCreate(&end), "event");
    for (int i = 0; i < 3; i++) must(cudaGraphLaunch(exec, stream), "graph");
    float best = 1e9f;
    for (int round = 0; round < 4; round++) {
        cudaEventRecord(begin, stream);
        for (int i = 0; i < 10; i++) must(cudaGraphLaunch(exec, stream), "graph");
        cudaEventRecord(end, stream);
        must(cudaStreamSynchronize(stream), "graph");
        float millis;
        cudaEventElapsedTime(&millis, begin, end);
        best = std::min(best, millis * 100.0f);
    }
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
    return best;
}

// Llama 3.2 1B, Q4_K_M
// ----------------------------------------------------------------------------------------------------------

struct Layer {
    Matrix query, key, value, output, gate, up, down;
};

template <typename T>
T* zeros(size_t count) {
    T* at;
    must(cudaMalloc(&at, count * sizeof(T)), "memory");
    must(cudaMemset(at, 0, count * sizeof(T)), "memory");
    return at;
}

struct Bench {
    std::vector<Layer> layers;
    Matrix head = matrix(true, VOCABULARY, WIDTH, 999);
    std::vector<Matrix> odd = {matrix(false, 592, 640, 77), matrix(true, 1104, 256, 78), matrix(false, 8320, 640, 79), matrix(false, 8320, 640, 80)};
    uint8_t* x = zeros<uint8_t>(ROWS_MAX * HIDDEN * 2);
    uint8_t* packed = zeros<uint8_t>(ROWS_MAX * HIDDEN * 4);
    float* products = zeros<float>(ROWS_MAX * 4096);
    float* residual = zeros<float>(ROWS_MAX * WIDTH);
    float* logits = zeros<float>(size_t(ROWS_MAX) * VOCABULARY);
    float* squares = zeros<float>(ROWS_MAX * WIDTH / 16);
    float* next_squares = zeros<float>(ROWS_MAX * WIDTH / 16);
    float* ones = zeros<float>(WIDTH);
    float* factors = zeros<float>(ROWS_MAX);

    Bench() {
        for (uint32_t l = 0; l < LAYERS; l++) {
            const bool mixed = l % 2;
            const auto of = [&](bool is_q6, uint32_t rows, uint32_t cols, uint32_t i) { return matrix(is_q6, rows, cols, l * 10 + i); };
            layers.push_back({of(false, WIDTH, WIDTH, 1), of(false, KEYS, WIDTH, 2), of(mixed, KEYS, WIDTH, 3), of(false, WIDTH, WIDTH, 4), of(false, HIDDEN, WIDTH, 5),
                              of(false, HIDDEN, WIDTH, 6), of(mixed, WIDTH, HIDDEN, 7)});
        }
        fill_halves<<<256, 256>>>(reinterpret_cast<__half*>(x), ROWS_MAX * HIDDEN);
        fill_floats<<<64, 256>>>(squares, ROWS_MAX * WIDTH / 16, 16.0f);
        fill_floats<<<64, 256>>>(ones, WIDTH, 1.0f);
        must(cudaDeviceSynchronize(), "contents");
    }

    Call normed(Call call) const {
        call.p.squares = squares, call.p.squares_count = WIDTH / 16, call.p.used = ones, call.p.factors = factors, call.p.inverse_width = 1.0f / WIDTH;
        return call;
    }
    Call added(Call call) const {
        call.p.next_norm = ones, call.p.next_factors = ones, call.p.packed = {packed, WIDTH / SEGMENT, 1.0f, call.p.x.group_rows, 0};
        call.p.next_squares = next_squares, call.p.next_squares_count = WIDTH / 16;
        return call;
    }
    Call gated(Call call, uint32_t hidden) const {
        call.p.packed = {packed, hidden / SEGMENT, 1.0f / 64, call.p.x.group_rows, 0};
        return call;
    }
    void layer(const Layer& l, uint32_t rows, std::vector<Call>& calls) const {
        if (l.value.is_q6) {
            const Call first = normed(call_of("query and key", {l.query, l.key}, rows, x, products, STORE));
            const Call second = normed(call_of("value", {l.value}, rows, x, products + ROWS_MAX * (WIDTH + KEYS), STORE));
            for (const Call& call : pairs ? pair_of(first, second) : std::vector<Call>{first, second}) calls.push_back(call);
        } else {
            calls.push_back(normed(call_of("query, key, value", {l.query, l.key, l.value}, rows, x, products, STORE)));
        }
        calls.push_back(added(call_of("output", {l.output}, rows, x, residual, ADD)));
        calls.push_back(gated(normed(call_of("gate and up", {l.gate, l.up}, rows, x, products, GATE_SILU)), HIDDEN));
        calls.push_back(added(call_of("down", {l.down}, rows, x, residual, ADD)));
    }
    Call head_of(uint32_t rows) const { return normed(call_of("head", {head}, rows, x, logits, STORE)); }

    // Launches whose results are not those of the plain chain.
    uint32_t check(const std::vector<uint32_t>& numbers) const {
        const std::vector<std::pair<void*, size_t>> results = {{products, ROWS_MAX * 4096 * 4}, {residual, ROWS_MAX * WIDTH * 4}, {logits, size_t(ROWS_MAX) * VOCABULARY * 4},
                                                               {packed, ROWS_MAX * HIDDEN * 4}, {next_squares, ROWS_MAX * WIDTH / 16 * 4}};
        uint32_t wrong = 0;
        for (uint32_t rows : numbers) {
            std::vector<Call> calls;
            layer(layers[0], rows, calls), layer(layers[1], rows, calls), calls.push_back(head_of(rows));
            calls.push_back(call_of("37 tiles, 5 segments", {odd[0]}, rows, x, products, STORE));
            calls.push_back(call_of("69 tiles, 2 segments", {odd[1]}, rows, x, products, STORE));
            calls.push_back(gated(call_of("1,040 tiles, 5 segments", {odd[2], odd[3]}, rows, x, products, GATE_SILU), 8320));
            for (const Call& call : calls) {
                std::vector<std::vector<uint8_t>> found[2];
                for (int way = 0; way < 2; way++) {
                    for (const auto& [at, bytes] : results) must(cudaMemset(at, 0, bytes), "results");
                    const dim3 grid(call.p.tiles, ceil_of(rows, 8));
                    if (way == 0)
                        launch(call, nullptr);
                    else if (call.is_pair)
                        plain<Q4_1><<<grid, WARP>>>(call.p), plain<Q6K><<<dim3(call.pair.second.tiles, grid.y), WARP>>>(call.pair.second);
                    else if (call.is_q6)
                        plain<Q6K><<<grid, WARP>>>(call.p);
                    else
                        plain<Q4_1><<<grid, WARP>>>(call.p);
                    must(cudaDeviceSynchronize(), call.name.c_str());
                    for (const auto& [at, bytes] : results) {
                        found[way].emplace_back(bytes);
                        must(cudaMemcpy(found[way].back().data(), at, bytes, cudaMemcpyDeviceToHost), "results");
                    }
                }
                const bool is_right = found[0] == found[1];
                const bool is_any = std::any_of(found[0].begin(), found[0].end(), [](const auto& bytes) { return std::any_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b != 0; }); });
                wrong += !is_right || !is_any;
                std::printf("%3u rows, %s: %s (%u columns, %u splits, depth %u, chunk or depth of x %u, %u bytes)\n", rows, call.name.c_str(), !is_any ? "ZEROS" : is_right ? "same bits" : "OTHER BITS", call.columns,
                            call.p.splits, call.p.depth, call.p.chunk, call.shared_bytes);
            }
        }
        return wrong;
    }

    void time(const std::vector<uint32_t>& numbers) const {
        for (uint32_t rows : numbers) {
            std::vector<Call> all;
            for (const Layer& l : layers) layer(l, rows, all);
            all.push_back(head_of(rows));
            std::printf("%u rows: %.1f us;", rows, micros(all));
            for (const char* name : {"query, key, value", "query and key", "value", "query and key and value", "output", "gate and up", "down", "head"}) {
                std::vector<Call> some;
                size_t bytes = 0;
                for (const Call& call : all)
                    if (call.name == name) some.push_back(call), bytes += call.bytes;
                if (some.empty()) continue;
                const float each = micros(some) / float(some.size());
                std::printf(" %s %.2f (%.0f GB/s)", name, each, double(bytes) / double(some.size()) / each * 1e-3);
            }
            std::printf("\n");
        }
    }
};

}  // namespace

int main(int count, char** arguments) {
    int found = 0;
    must(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, 0), "GPU");
    multiprocessors = uint32_t(found);
    std::string only;
    std::vector<uint32_t> checked, timed;
    for (int i = 1; i < count; i++) {
        if (arguments[i][0] == '-' && arguments[i][1] == 'c')
            columns_max = uint32_t(std::atoi(arguments[i] + 2));
        else if (arguments[i] == std::string("--apart"))
            pairs = false;
        else if (arguments[i][0] == '-')
            only = arguments[i];
        else
            checked.push_back(uint32_t(std::atoi(arguments[i])));
    }
    timed = checked;
    if (checked.empty()) checked = {1, 2, 3, 8, 12, 16, 27, 32, 64, 100}, timed = {1, 2, 4, 8, 16, 32, 64};
    const Bench bench;
    const uint32_t wrong = only == "--time" ? 0 : bench.check(checked);
    if (only != "--check") bench.time(timed);
    return wrong > 0;
}
