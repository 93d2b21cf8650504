// Main loop of gemm_sm90.cuh: a consumer warp unpacks its weights to f16 in registers once for up
// to 128 rows of x, which its warpgroup's products read from shared memory.
#pragma once

#include "common/wgmma.cuh"
#include "gemm/dequantise.cuh"
#include "gemm/gemm_sm90_producer.cuh"

template <typename G>
struct Mainloop {
    static constexpr uint32_t N = G::N, TYPE = G::TYPE;
    WeightPipeline<G>& weights;
    const SharedLayout<G>& layout;
    ActivationRing x;
    const uint8_t* stages;
    PipelineState x_read;

    __device__ __forceinline__ Mainloop(WeightPipeline<G>& weights, const SharedLayout<G>& layout,
                                        uint32_t warp, uint32_t run)
        : weights(weights),
          layout(layout),
          x(activation_ring(layout, run)),
          stages(layout.weights(warp)) {}

    // The warp's ring of weights. CTAs of a cluster keep its address; the others compute it again,
    // because ptxas then spills fewer registers.
    __device__ __forceinline__ const uint8_t* weight_stages() const {
        return G::SplitK::IS_CLUSTER ? stages : layout.weights(threadIdx.x / WARP);
    }

    // Computes a run: the chain of its segments, `first_segment` to `end` of the `weights.count`
    // that the warp multiplies for a tile. `is_tile` is false for a warp without a tile, which only
    // takes part in its warpgroup's instructions.
    __device__ __forceinline__ void multiply(float (&sum)[N / 2], uint32_t first_segment,
                                             uint32_t end, bool is_tile) {
        constexpr uint32_t X_STAGE_SEGMENTS = G::X_STAGE_SEGMENTS;
        const GemmSm90Params& p = weights.p;
        const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
        for (uint32_t c = 0; c < N / 2; c++)
            sum[c] = 0.0f;
        uint32_t due = 0; // barrier of the last stage of x that products in flight may read
        const auto release_weights = [&] {
            __syncwarp();
            weights.fetch();
            weights.read.next(p.weight_depth);
        };
        const auto release_x = [&] {
            due = x.empty + 8 * x_read.slot;
            x_read.next(p.x_depth);
        };
        // Uniform over the warp; the shuffle makes that known to the compiler.
        const auto stage_of_x = [&] {
            return smem_descriptor(__shfl_sync(FULL_MASK, x.stages + x_read.slot * G::X_STAGE, 0),
                                   GROUP_BYTES * X_STAGE_SEGMENTS);
        };
        // Multiplies one segment, at offsets `w_in` and `x_in` of the stages. `ends_*`: it is the
        // last of its stage.
        const auto multiply_segment = [&](uint64_t b, uint32_t w_in, uint32_t x_in,
                                          bool ends_weights, bool ends_x) {
            if (w_in == 0 && is_tile)
                mbarrier_wait_parity(weights.barriers + 8 * weights.read.slot, weights.read.phase);
            HalfTile<TYPE> w[2];
            const uint8_t* records =
                weight_stages() + weights.read.slot * G::W_STAGE + w_in * G::RECORD;
            w[0].load(records, lane);
            w[1].load(records + G::W_HALF, lane);
            uint32_t first[2][2][4];
#pragma unroll
            for (uint32_t j = 0; j < 2; j++)
                unpack(first[j], w, j);
            if (x_in == 0)
                mbarrier_wait_parity(x.full + 8 * x_read.slot, x_read.phase);
            wgmma_fence();
#pragma unroll
            for (uint32_t k = 0; k < 4; k++)
                wgmma_mma(sum, first[k / 2][k % 2], advance(b, k * 256));
            wgmma_commit_group();
            // Earlier products are complete: their registers and their rows of x are free.
            wgmma_wait_group<1>();
            if (x_in == 0) {
                if (due && lane == 0)
                    mbarrier_arrive(due);
                due = 0;
            }
            uint32_t second[2][2][4];
#pragma unroll
            for (uint32_t j = 0; j < 2; j++)
                unpack(second[j], w, 2 + j);
            wgmma_fence();
#pragma unroll
            for (uint32_t k = 0; k < 4; k++)
                wgmma_mma(sum, second[k / 2][k % 2], advance(b, (4 + k) * 256));
            wgmma_commit_group();
            // Products in flight read the registers of their left operand. F16 weights are loaded
            // into these registers directly from shared memory, so only after all products are
            // complete.
            wgmma_wait_group<TYPE == F16 ? 0 : 1>();
            if (ends_weights)
                release_weights();
            if (ends_x)
                release_x();
        };
        if constexpr (N > 32 || TYPE == F16) {
            for (uint32_t s = first_segment; s < end; s++) {
                const uint32_t w_in = s % G::W_STAGE_SEGMENTS, x_in = s % X_STAGE_SEGMENTS;
                const bool is_last = s + 1 == weights.count;
                multiply_segment(advance(stage_of_x(), x_in * GROUP_BYTES), w_in, x_in,
                                 w_in + 1 == G::W_STAGE_SEGMENTS || is_last,
                                 x_in + 1 == X_STAGE_SEGMENTS || is_last);
            }
        } else {
            // Two segments per iteration, one stage of weights and one of x: a third fewer
            // instructions. 64 rows of x leave no registers for it. A run may begin and end within
            // a stage.
            static_assert(G::W_STAGE_SEGMENTS == 2 && X_STAGE_SEGMENTS == 2);
            for (uint32_t s = first_segment / 2 * 2; s < end; s += 2) {
                const uint64_t b = stage_of_x();
                if (s >= first_segment)
                    multiply_segment(b, 0, 0, false, false);
                if (s + 1 < end)
                    multiply_segment(advance(b, GROUP_BYTES), 1, 1, true, true);
            }
            if (end == weights.count && end % 2)
                release_weights(), release_x();
        }
        wgmma_wait_sums(sum);
        if (due && lane == 0)
            mbarrier_arrive(due);
    }

    // Releases the stages of x of a wave in which the warp has no tile.
    __device__ __forceinline__ void skip() {
#pragma unroll 1
        for (uint32_t s = 0; s < weights.count; s += G::X_STAGE_SEGMENTS) {
            mbarrier_wait_parity(x.full + 8 * x_read.slot, x_read.phase);
            __syncwarp();
            if (threadIdx.x % WARP == 0)
                mbarrier_arrive(x.empty + 8 * x_read.slot);
            x_read.next(weights.p.x_depth);
        }
    }
};
