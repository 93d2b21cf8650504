//! Parameter structs of the kernels: the host side of `kernels/*/*.cuh`. Both sides assert the
//! sizes.

/// Structs that kernels read, laid out as in C, with their size there.
macro_rules! kernel_structs {
    ($(
        $(#[$doc:meta])*
        struct $name:ident, $bytes:literal bytes {
            $($(#[$field_doc:meta])* $field:ident: $ty:ty,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
        #[repr(C)]
        pub(crate) struct $name {
            $($(#[$field_doc])* pub $field: $ty,)*
        }
        impl Default for $name {
            fn default() -> Self {
                Self::zeroed()
            }
        }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}

mod experts;
mod gemm;
mod layer;

use bytemuck::{Pod, Zeroable};

pub(crate) use self::experts::{
    ChoicesRef, ExpertItem, ExpertsAddParams, ExpertsGemmParams, ExpertsRouteParams,
    ExpertsRouterParams,
};
pub(crate) use self::gemm::{
    GemmParams, GemmSkinnyPairParams, GemmSkinnyParams, GemmSm80Params, GemmSm90PairParams,
    GemmSm90Params, PagesRef, SplitkReduceParams, Stages,
};
pub(crate) use self::layer::{BoundLogitsParams, DeltaParams, GateRowsParams, LayerInputsParams};

/// A device address; 0 is null.
pub(crate) type Address = u64;

kernel_structs! {
    struct StepRef, 32 bytes {
        block: Address,
        rows_offset: u32,
        outputs_offset: u32,
        biases_offset: u32,
        tables_offset: u32,
        pages_per_sequence: u32,
        reserved: u32,
    }

    /// Addresses of a step ring and of the step block.
    struct StepRingRef, 32 bytes {
        ring: Address,
        taken: Address,
        ahead: Address,
        block: Address,
    }

    struct ResultRef, 24 bytes {
        ring: Address,
        block_bytes: u32,
        rows_offset: u32,
        candidates_offset: u32,
        reserved: u32,
    }

    struct WeightRef, 24 bytes {
        records: Address,
        rows: u32,
        cols: u32,
        kind: u32,
        scale: f32,
    }

    struct EmbedParams, 112 bytes {
        step: StepRef,
        results: ResultRef,
        table: WeightRef,
        x: Address,
        last_sampled: Address,
        recent: Address,
        width: u32,
        scale: f32,
    }

    struct MatrixPart, 48 bytes {
        weight: WeightRef,
        bias: Address,
        out: Address,
        out_stride: u32,
        first_pair: u32,
    }
}

/// Epilogue of a linear kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum LinearMode {
    Store = 0,
    Add = 1,
    GateSilu = 2,
    GateGelu = 3,
}

impl LinearMode {
    /// Whether two matrix products are combined into one result.
    pub(crate) fn is_gate(self) -> bool {
        matches!(self, Self::GateSilu | Self::GateGelu)
    }
}

kernel_structs! {
    struct LinearParams, 216 bytes {
        step: StepRef,
        x: Address,
        norm: Address,
        x_stride: u32,
        width: u32,
        eps: f32,
        mode: u32,
        by_output: u32,
        parts: u32,
        part: [MatrixPart; 3],
    }

    /// Gathers the rows that outputs refer to.
    struct GatherParams, 120 bytes {
        step: StepRef,
        from: PackedRef,
        to: PackedRef,
        squares: Address,
        squares_to: Address,
        pack_factors: Address,
        pack_factors_to: Address,
        squares_count: u32,
        rows_last: u32,
    }

    /// Rows in the packed f16 layout that the tensor cores read; `rows` 0 is null.
    struct PackedRef, 24 bytes {
        rows: Address,
        segments: u32,
        scale: f32,
        group_rows: u32,
        reserved: u32,
    }

    struct PackParams, 56 bytes {
        x: Address,
        norm: Address,
        packed: PackedRef,
        factors: Address,
        width: u32,
        eps: f32,
    }

    struct KvRef, 48 bytes {
        keys: Address,
        values: Address,
        /// Scales of 8-bit pages.
        key_scales: Address,
        value_scales: Address,
        kv_heads: u32,
        head_dim: u32,
        page_tokens: u32,
        page_magic: u32,
    }

    /// Processing of a head's product: norm and rotary embedding.
    struct HeadRef, 48 bytes {
        query_norm: Address,
        key_norm: Address,
        frequencies: Address,
        pairs: u32,
        interleaved: u32,
        sincos_scale: f32,
        query_eps: f32,
        key_eps: f32,
        heads: u32,
    }

    struct AppendParams, 152 bytes {
        step: StepRef,
        kv: KvRef,
        products: Address,
        q: Address,
        head: HeadRef,
        /// Growth of scores with the position; 0: none.
        position_slope: f32,
        position_period: u32,
    }

    struct AttendParams, 240 bytes {
        step: StepRef,
        kv: KvRef,
        /// Products if the kernel appends them to the cache, else queries.
        input: Address,
        out: Address,
        packed: PackedRef,
        head: HeadRef,
        partials: Address,
        arrivals: Address,
        window: u32,
        scale: f32,
        max_slots: u32,
        max_rows: u32,
        deferred: DeferredSplits,
    }

    /// Deferred split-K: query, key and value as per-split sums, and their factors.
    struct DeferredSplits, 40 bytes {
        /// The norm's factors of rows; null if they were packed with these.
        norm_factors: Address,
        /// The factors that rows were packed with, near to those; null likewise.
        pack_factors: Address,
        /// Number of splits; 0: products are already reduced.
        count: u32,
        /// Stride from a split to the next, in numbers.
        stride: u32,
        /// Scale of each matrix.
        scales: [f32; 3],
        reserved: u32,
    }

    struct AttentionParams, 152 bytes {
        step: StepRef,
        kv: KvRef,
        q: Address,
        out: Address,
        packed: PackedRef,
        partials: Address,
        arrivals: Address,
        heads: u32,
        window: u32,
        scale: f32,
        max_chunks: u32,
    }

    struct AddNormParams, 112 bytes {
        step: StepRef,
        y: Address,
        /// 0: no norm.
        weight: Address,
        x: Address,
        /// Weights of the next norm, whose input is written packed; 0: none.
        next_norm: Address,
        packed: PackedRef,
        factors: Address,
        width: u32,
        eps: f32,
        next_eps: f32,
        /// Factor of the sum.
        scale: f32,
    }

    struct ShortConvParams, 72 bytes {
        step: StepRef,
        products: Address,
        kernel: Address,
        state: Address,
        out: Address,
        width: u32,
        taps: u32,
    }

    struct SampleParams, 168 bytes {
        step: StepRef,
        results: ResultRef,
        logits: Address,
        last_sampled: Address,
        recent: Address,
        scores: Address,
        stats: Address,
        groups: Address,
        likely: Address,
        /// The mask block.
        masks: Address,
        arrivals: Address,
        step_ring: StepRingRef,
        vocab: u32,
        group_bits: u32,
    }

    /// Cache memory of one layer: KV pages (`state` is 0) or states of sequences (`keys` is 0).
    struct LayerRef, 72 bytes {
        keys: Address,
        values: Address,
        /// Scales of 8-bit pages.
        key_scales: Address,
        value_scales: Address,
        state: Address,
        frequencies: Address,
        kv_heads: u32,
        head_dim: u32,
        pairs: u32,
        interleaved: u32,
        state_numbers: u32,
        reserved: u32,
    }

    struct CacheParams, 64 bytes {
        layers: Address,
        last_sampled: Address,
        recent: Address,
        layer_count: u32,
        page_tokens: u32,
        number_bytes: u32,
        from: u32,
        from_cell: u32,
        to: u32,
        to_cell: u32,
        cells: u32,
        position_shift: i32,
        reserved: u32,
    }
}
