//! Parameter structs of the kernels for mixtures of experts (kernels/experts).

use bytemuck::{Pod, Zeroable};

use super::{Address, PackedRef, StepRef, WeightRef};

kernel_structs! {
    /// Choices of one expert (`ExpertItem`).
    struct ExpertItem, 16 bytes {
        expert: u32,
        first: u32,
        count: u32,
        reserved: u32,
    }

    /// The experts of each row, and the rows of each expert.
    struct ChoicesRef, 48 bytes {
        /// Number of items, and arrived blocks of `experts_route`.
        counts: Address,
        items: Address,
        list: Address,
        chosen: Address,
        weights: Address,
        experts: u32,
        used: u32,
    }

    struct ExpertsRouterParams, 88 bytes {
        step: StepRef,
        x: Address,
        norm: Address,
        products: Address,
        weight: WeightRef,
        width: u32,
        eps: f32,
    }

    struct ExpertsRouteParams, 144 bytes {
        step: StepRef,
        choices: ChoicesRef,
        /// Products of the router.
        products: Address,
        /// Bias of the choice; 0: none.
        bias: Address,
        /// Sums of squares of rows; 0: their factors are exact.
        squares: Address,
        pack_factors: Address,
        factors: Address,
        squares_count: u32,
        inverse_width: f32,
        eps: f32,
        is_sigmoid: u32,
        /// Words of a row of the bitmap.
        row_words: u32,
        /// Maximum rows of an item.
        item_rows: u32,
    }

    struct ExpertsGemmParams, 200 bytes {
        choices: ChoicesRef,
        x: PackedRef,
        /// Packed result of gate and up.
        h: PackedRef,
        /// Result of down.
        y: Address,
        /// Factors of rows of x; 0: they are 1.
        factors: Address,
        weight: [WeightRef; 2],
        /// Rows of an expert's matrix.
        height: u32,
        mode: u32,
        unscale: f32,
        tiles: u32,
        block_tiles: u32,
        runs: u32,
        run_segments: u32,
        stage_segments: u32,
        pass_rows: u32,
        shared_bytes: u32,
    }

    struct ExpertsAddParams, 112 bytes {
        step: StepRef,
        y: Address,
        weights: Address,
        x: Address,
        /// Weights of the next norm, whose input is written packed; 0: none.
        next_norm: Address,
        packed: PackedRef,
        factors: Address,
        width: u32,
        used: u32,
        next_eps: f32,
        reserved: u32,
    }
}
