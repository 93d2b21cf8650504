// gate_rows: out[r] = n(y[r]) * activation(products[r]), n the RMS norm of each head or the
// identity; without products n(y[r]) alone. With `packed` the result is written packed instead.
// y: [rows, width], out: [rows, width], products: [rows, width] or one number per row; f32, each
// with its own stride. out may be y.
// Grid: (heads over 8, rows). A warp has a head, or 128 numbers without a norm.
// Bound: memory, 10 to 12 bytes per number.
// Oracle: walla_cpu's scalar gate and head norms (tests/gpu/recurrent.rs, layer_inputs.rs).
#include "gemm/linear.cuh"
#include "gemm/packed_activations.cuh"
#include "layer/quads.cuh"

struct GateRowsParams {
    StepRef step;
    const float* y;
    const float* products;  // or null
    const float* head_norm; // weights [head_dim], or null
    float* out;             // unless packed
    PackedRef packed;
    uint32_t width;
    uint32_t head_dim; // a multiple of 4
    uint32_t y_stride;
    uint32_t products_stride;
    uint32_t out_stride;
    uint32_t is_scalar; // one product per row
    uint32_t mode;      // LinearMode, or GATE_SIGMOID
    float eps;
};
static_assert(sizeof(GateRowsParams) == 120, "as in params.rs");

constexpr uint32_t GATE_ROWS_WARPS = 8;
constexpr uint32_t GATE_SIGMOID = 4; // after the gates of LinearMode
static_assert(GATE_SIGMOID == GATE_GELU + 1, "no mode of LinearMode");

extern "C" __global__ void __launch_bounds__(GATE_ROWS_WARPS* WARP)
    gate_rows(const __grid_constant__ GateRowsParams p) {
    launch_dependents();
    const uint32_t r = blockIdx.y, lane = threadIdx.x % WARP;
    const uint32_t head = blockIdx.x * GATE_ROWS_WARPS + threadIdx.x / WARP;
    const uint32_t first = head * p.head_dim;
    // Packed rows are padded to whole segments.
    const uint32_t end = p.packed.rows ? p.packed.segments * 128 : p.width;
    const bool is_row = r < p.step.header().rows;
    grid_dependency_wait();
    if (!is_row || first >= end)
        return;
    // Addresses of rows and heads are multiples of 16 bytes.
    const bool y_aligned = p.y_stride % 4 == 0, products_aligned = p.products_stride % 4 == 0,
               out_aligned = p.out_stride % 4 == 0;
    const float* y = p.y + size_t(r) * p.y_stride;
    const float* products = p.products + size_t(r) * p.products_stride;

    float factor = 1.0f;
    if (p.head_norm) {
        float squares = 0.0f;
        for (uint32_t d = 4 * lane; d < p.head_dim; d += 4 * WARP) {
            float its[4];
            read_quad(y, first + d, p.width, y_aligned, its);
#pragma unroll
            for (uint32_t c = 0; c < 4; c++)
                squares = fmaf(its[c], its[c], squares);
        }
        factor = rsqrtf(warp_sum(squares) / float(p.head_dim) + p.eps);
    }
    const auto gate = [&](float product) {
        return p.mode == GATE_SIGMOID ? __fdividef(1.0f, 1.0f + __expf(-product))
                                      : activate(product, p.mode);
    };
    const bool is_wide = p.products && !p.is_scalar;
    const float of_row = p.products && p.is_scalar ? gate(products[0]) : 1.0f;
    for (uint32_t d = 4 * lane; d < p.head_dim; d += 4 * WARP) {
        const uint32_t k = first + d;
        float its[4], gates[4];
        read_quad(y, k, p.width, y_aligned, its);
        if (is_wide)
            read_quad(products, k, p.width, products_aligned, gates);
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
            if (p.head_norm)
                its[c] = its[c] * factor * p.head_norm[d + c];
            its[c] *= is_wide ? gate(gates[c]) : of_row;
            // Padding stays zero, even if a factor is not a number.
            its[c] = k + c < p.width ? its[c] : 0.0f;
        }
        if (!p.packed.rows)
            write_quad(p.out + size_t(r) * p.out_stride, k, p.width, out_aligned, its);
        else if (k < end)
            store_packed(p.packed, r, k, its);
    }
}
