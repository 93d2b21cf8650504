// layer_inputs: e[r] = norm(products[r]_l) + table_scale * table[token(r)]_l for each part l of
// `part` numbers.
// products, e: [rows, width] f32; table: [vocab, width] of any type. token(r) as in embed.cu.
// Grid: (parts over 8, rows), a warp per part.
// Bound: memory: a row of the table, 8 bytes per number. If the table is in host memory, the bus.
// Oracle: walla_cpu's scalar layer inputs (tests/gpu/layer_inputs.rs).
#include "step/step.cuh"
#include "gemm/weight.cuh"

struct LayerInputsParams {
    StepRef step;
    WeightRef table;
    const float* products;
    const float* norm; // weights [part]
    const uint32_t* last_sampled;
    float* e;
    uint32_t width;
    uint32_t part; // at most PART_MAX
    float table_scale;
    float eps;
};
static_assert(sizeof(LayerInputsParams) == 104, "as in params.rs");

constexpr uint32_t LAYER_INPUTS_WARPS = 8;
constexpr uint32_t PART_MAX = 1024;

extern "C" __global__ void __launch_bounds__(LAYER_INPUTS_WARPS* WARP)
    layer_inputs(const __grid_constant__ LayerInputsParams p) {
    constexpr uint32_t EACH = PART_MAX / WARP;
    launch_dependents();
    const uint32_t r = blockIdx.y, lane = threadIdx.x % WARP;
    const uint32_t first = (blockIdx.x * LAYER_INPUTS_WARPS + threadIdx.x / WARP) * p.part;
    const bool is_row = r < p.step.header().rows;
    grid_dependency_wait();
    if (!is_row || first >= p.width)
        return;
    const StepRow row = p.step.row(r);
    const uint32_t wanted = row.token < 0 ? p.last_sampled[row.sequence] : uint32_t(row.token);
    const uint32_t token = min(wanted, p.table.rows - 1);
    const float* products = p.products + size_t(r) * p.width + first;
    float* e = p.e + size_t(r) * p.width;

    float squares = 0.0f;
#pragma unroll 4
    for (uint32_t i = 0; i < EACH; i++)
        if (i * WARP + lane < p.part)
            squares = fmaf(products[i * WARP + lane], products[i * WARP + lane], squares);
    const float factor = rsqrtf(warp_sum(squares) / float(p.part) + p.eps);
    // The units of 32 numbers (weight.cuh) that contain numbers of the part; a lane decodes one.
    with_type(p.table.type, [&](auto share) {
        const uint32_t last = first + p.part - 1;
        const uint32_t units = (last / SEGMENT - first / SEGMENT + 1) * 4;
        for (uint32_t u = lane; u < units; u += WARP) {
            const uint32_t segment = first / SEGMENT + u / 4;
            float values[32];
            share.load(p.table, token, segment, u % 4);
            share.decode(values);
#pragma unroll
            for (uint32_t i = 0; i < 32; i++) {
                const uint32_t k = segment * SEGMENT + column_of(u % 4, i);
                if (k >= first && k <= last)
                    e[k] = fmaf(values[i], p.table_scale,
                                products[k - first] * factor * p.norm[k - first]);
            }
        }
    });
}
