//! Push constants of the shaders: the host side of `kernels/vulkan/*.slang`, laid out as in C.

use bytemuck::{Pod, Zeroable};

/// A device address; 0 is null.
pub(crate) type Address = u64;

/// Structs that shaders read, with their size there.
macro_rules! structs {
    ($(
        $(#[$doc:meta])*
        struct $name:ident, $bytes:literal bytes { $($field:ident: $ty:ty,)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
        #[repr(C)]
        pub(crate) struct $name {
            $(pub $field: $ty,)*
        }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}

structs! {
    /// What all dispatches of a program share.
    struct ProgramParams, 64 bytes {
        step: Address,
        rows: Address,
        outputs: Address,
        biases: Address,
        tables: Address,
        last_sampled: Address,
        recent: Address,
        pages_per_sequence: u32,
        reserved: u32,
    }

    struct Embed, 56 bytes {
        program: Address,
        weights: Address,
        factors: Address,
        scales: Address,
        x: Address,
        kind: u32,
        vocab: u32,
        width: u32,
        scale: f32,
    }

    struct Pack, 80 bytes {
        program: Address,
        x: Address,
        norm: Address,
        gate: Address,
        words: Address,
        factors: Address,
        plain: Address,
        width: u32,
        stride: u32,
        activation: u32,
        eps: f32,
        by_output: u32,
        multiple: u32,
    }

    struct Product, 128 bytes {
        count: Address,
        x: Address,
        x_factors: Address,
        weights: [Address; 3],
        out: [Address; 3],
        bias: [Address; 3],
        rows: [u32; 3],
        stride: u32,
        flags: u32,
        sum_scale: f32,
        eps: f32,
        reserved: u32,
    }

    struct ProductFloat, 72 bytes {
        program: Address,
        weights: Address,
        bias: Address,
        x: Address,
        out: Address,
        kind: u32,
        rows: u32,
        cols: u32,
        stride: u32,
        adds: u32,
        sum_scale: f32,
        by_output: u32,
        reserved: u32,
    }
}

structs! {
    struct KvParams, 48 bytes {
        keys: Address,
        values: Address,
        key_scales: Address,
        value_scales: Address,
        ty: u32,
        kv_heads: u32,
        head_dim: u32,
        cell_words: u32,
    }

    struct HeadParams, 112 bytes {
        kv: KvParams,
        query_norm: Address,
        key_norm: Address,
        value_norm: Address,
        frequencies: Address,
        pairs: u32,
        interleaved: u32,
        magnitude: f32,
        query_eps: f32,
        key_eps: f32,
        value_eps: f32,
        reserved: [u32; 2],
    }

    struct Append, 40 bytes {
        program: Address,
        head: Address,
        products: Address,
        q: Address,
        stride: u32,
        reserved: u32,
    }

    struct Attention, 80 bytes {
        program: Address,
        kv: Address,
        q: Address,
        out: Address,
        partials: Address,
        words: Address,
        factors: Address,
        window: u32,
        scale: f32,
        spans: u32,
        slope: f32,
        period: u32,
        reserved: u32,
    }

    struct AttentionSum, 56 bytes {
        program: Address,
        partials: Address,
        out: Address,
        words: Address,
        factors: Address,
        heads: u32,
        dim: u32,
        window: u32,
        spans: u32,
    }

    struct AddNorm, 48 bytes {
        program: Address,
        y: Address,
        norm: Address,
        x: Address,
        width: u32,
        eps: f32,
        scale: f32,
        reserved: u32,
    }

    struct Finish, 32 bytes {
        program: Address,
        results: Address,
        timestamps: Address,
        block_words: u32,
        nanos: u32,
    }

    struct SampleParams, 80 bytes {
        logits: Address,
        scores: Address,
        stats: Address,
        likely: Address,
        bins: Address,
        masks: Address,
        results: Address,
        block_words: u32,
        rows_words: u32,
        candidates_words: u32,
        vocab: u32,
        chunks: u32,
        mask_words: u32,
    }

    struct SamplePush, 24 bytes {
        program: Address,
        sample: Address,
        cut: u32,
        reserved: u32,
    }

    struct ShortConv, 48 bytes {
        program: Address,
        products: Address,
        kernel: Address,
        state: Address,
        out: Address,
        width: u32,
        taps: u32,
    }

    /// A cache, before its layers.
    struct CacheParams, 32 bytes {
        layers: Address,
        last_sampled: Address,
        recent: Address,
        layer_count: u32,
        page_tokens: u32,
    }

    struct LayerParams, 80 bytes {
        kv: KvParams,
        state: Address,
        frequencies: Address,
        pairs: u32,
        interleaved: u32,
        state_numbers: u32,
        reserved: u32,
    }

    struct LayerInputs, 80 bytes {
        program: Address,
        products: Address,
        norm: Address,
        weights: Address,
        factors: Address,
        scales: Address,
        e: Address,
        kind: u32,
        vocab: u32,
        width: u32,
        layers: u32,
        eps: f32,
        table_scale: f32,
    }

    struct GateRows, 56 bytes {
        program: Address,
        gate: Address,
        input: Address,
        out: Address,
        width: u32,
        gate_stride: u32,
        gate_step: u32,
        input_stride: u32,
        activation: u32,
        reserved: u32,
    }

    struct BoundLogits, 40 bytes {
        program: Address,
        logits: Address,
        suppressed: Address,
        vocab: u32,
        count: u32,
        cap: f32,
        reserved: u32,
    }

    struct ExpertsChoose, 48 bytes {
        program: Address,
        products: Address,
        bias: Address,
        choices: Address,
        experts: u32,
        used: u32,
        is_sigmoid: u32,
        reserved: u32,
    }

    struct ExpertsProduct, 88 bytes {
        program: Address,
        choices: Address,
        weights: Address,
        factors: Address,
        scales: Address,
        x: Address,
        x_factors: Address,
        out: Address,
        kind: u32,
        rows: u32,
        cols: u32,
        used: u32,
        each: u32,
        reserved: u32,
    }

    struct ExpertsAdd, 40 bytes {
        program: Address,
        choices: Address,
        y: Address,
        x: Address,
        width: u32,
        used: u32,
    }

    struct DeltaConv, 64 bytes {
        program: Address,
        products: Address,
        kernel: Address,
        state: Address,
        out: Address,
        channels: u32,
        stride: u32,
        taps: u32,
        state_numbers: u32,
        inputs: u32,
        reserved: u32,
    }

    struct DeltaRule, 88 bytes {
        program: Address,
        convolved: Address,
        products: Address,
        decay: Address,
        step_bias: Address,
        state: Address,
        out: Address,
        key_heads: u32,
        value_heads: u32,
        head_dim: u32,
        stride: u32,
        alpha: u32,
        state_numbers: u32,
        eps: f32,
        reserved: u32,
    }

    struct HeadNorm, 40 bytes {
        program: Address,
        x: Address,
        weight: Address,
        heads: u32,
        dim: u32,
        eps: f32,
        reserved: u32,
    }
}
