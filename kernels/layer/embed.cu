// embed: x[r] = table[token(r)] * scale; also writes the token to its sequence's recent tokens.
// table: [vocab, width] of any type;
// x: [rows, width] f32. token(r) is the row's own token, or the sequence's last sampled one.
// Grid: one block per row.
// Bound: memory, one row of the table read, 4 * width bytes written.
// Oracle: walla_cpu's scalar embed (tests/gpu/parity.rs).
#include "step/step.cuh"
#include "gemm/weight.cuh"

struct EmbedParams {
    StepRef step;
    ResultRef results;
    WeightRef table;
    float* x;
    const uint32_t* last_sampled; // [sequences]
    uint32_t* recent;             // [sequences, PENALTY_WINDOW_MAX]
    uint32_t width;
    float scale;
};
static_assert(sizeof(EmbedParams) == 112, "as in params.rs");

extern "C" __global__ void __launch_bounds__(128) embed(const __grid_constant__ EmbedParams p) {
    launch_dependents();
    grid_dependency_wait();
    const uint32_t r = blockIdx.x;
    // The first kernel that works on the step records its begin.
    if (r == 0 && threadIdx.x == 0)
        p.results.header(p.step.header().ring_slot).begin_nanos = nanos();
    if (r >= p.step.header().rows)
        return;
    const StepRow row = p.step.row(r);
    const uint32_t wanted = row.token < 0 ? p.last_sampled[row.sequence] : uint32_t(row.token);
    // The planner rejects tokens outside the vocabulary; here the access must only stay in bounds.
    const uint32_t token = min(wanted, p.table.rows - 1);
    // Rows of a sequence are neighbours. Rows that share an entry are a window apart: the latest
    // one writes it.
    const uint32_t later = r + PENALTY_WINDOW_MAX;
    const bool is_latest =
        later >= p.step.header().rows || p.step.row(later).sequence != row.sequence;
    if (threadIdx.x == 0 && is_latest)
        p.recent[row.sequence * PENALTY_WINDOW_MAX + row.position % PENALTY_WINDOW_MAX] = token;
    float* x = p.x + size_t(r) * p.width;
    with_type(p.table.type, [&](auto share) {
        for (uint32_t index = threadIdx.x; index < p.table.cols / SEGMENT * 4;
             index += blockDim.x) {
            float values[32];
            share.load(p.table, token, index / 4, index % 4);
            share.decode(values);
#pragma unroll
            for (uint32_t i = 0; i < 32; i++) {
                const uint32_t k = index / 4 * SEGMENT + column_of(index % 4, i);
                if (k < p.width)
                    x[k] = values[i] * p.scale;
            }
        }
    });
}
