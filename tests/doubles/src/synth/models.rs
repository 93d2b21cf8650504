use core::f32::consts::TAU;

use walla_model::spec::Architecture;

/// The shape of a model: published hyperparameters.
///
/// Change the fields of one of these for any other shape. Supported are [`Architecture::Llama`],
/// [`Architecture::Qwen3`], [`Architecture::Gemma3`], [`Architecture::Qwen3Moe`],
/// [`Architecture::Lfm2Moe`], [`Architecture::Qwen35`], [`Architecture::Gemma4`],
/// [`Architecture::Granite`] and [`Architecture::Mistral3`].
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The name on a command line.
    pub name: &'static str,
    /// The architecture of its builder.
    pub architecture: Architecture,
    /// Width of the hidden state.
    pub width: u32,
    /// Number of layers.
    pub layers: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements in a head.
    pub head_dim: u32,
    /// Width of the feed-forward network.
    pub hidden: u32,
    /// Number of tokens: at least 259, for the bytes and three control tokens.
    pub vocab: u32,
    /// Context in tokens.
    pub context_train: u32,
    /// RoPE base.
    pub rope_base: f32,
    /// Factor of Llama 3.1's scaling of low frequencies.
    pub rope_stretch: Option<f32>,
    /// Added to mean squares.
    pub eps: f32,
    /// Window of local layers, in tokens (Gemma).
    pub window: Option<u32>,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Mixtures of experts; only for architectures that have them, and required there.
    pub experts: Option<Experts>,
    /// Short convolutions (LFM 2).
    pub convolutions: Option<Convolutions>,
    /// Gated DeltaNet (Qwen 3.5).
    pub delta_nets: Option<DeltaNets>,
    /// What Gemma 4 has in addition to Gemma 3.
    pub gemma4: Option<Gemma4>,
}

/// Mixtures of experts in place of feed-forward networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Number of experts.
    pub count: u32,
    /// Experts used for each row.
    pub used: u32,
    /// Width of one expert.
    pub hidden: u32,
    /// Number of first layers with a plain feed-forward network (LFM 2 only).
    pub dense_layers: u32,
}

/// Short convolutions in place of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolutions {
    /// Taps of the kernels.
    pub taps: u32,
    /// The layers that have attention instead.
    pub attention_layers: &'static [u32],
}

/// Gated DeltaNet in place of attention. Attention is gated, and a quarter of its dimensions
/// rotates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNets {
    /// Heads of queries and keys.
    pub key_heads: u32,
    /// Heads of values; a multiple of `key_heads`.
    pub value_heads: u32,
    /// Elements in a head.
    pub head_dim: u32,
    /// Taps of the convolution.
    pub taps: u32,
    /// Every layer whose number, counted from 1, is a multiple of this has attention instead.
    pub attention_interval: u32,
}

/// What Gemma 4 has in addition to Gemma 3. Sizes of [`Model`] apply to layers with a window and
/// with their own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemma4 {
    /// Every layer whose number, counted from 1, is a multiple of this has full attention.
    pub full_interval: u32,
    /// Elements in a head of layers with full attention.
    pub full_head_dim: u32,
    /// Number of last layers that read the keys and values of earlier ones.
    pub shared_layers: u32,
    /// Width of the feed-forward networks of these layers.
    pub shared_hidden: u32,
    /// Elements of each layer's input; 0: none.
    pub input_width: u32,
}

impl DeltaNets {
    /// Channels of the convolution.
    pub(super) fn channels(&self) -> u64 {
        u64::from(2 * self.key_heads + self.value_heads) * u64::from(self.head_dim)
    }

    /// Elements of all heads' values.
    pub(super) fn values(&self) -> u64 {
        u64::from(self.value_heads) * u64::from(self.head_dim)
    }
}

impl Model {
    /// A shape for tests: loaded and run in milliseconds.
    pub const TINY: Self = Self {
        name: "tiny",
        width: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        hidden: 128,
        vocab: 320,
        context_train: 512,
        ..Self::LLAMA_3_2_1B
    };

    /// Llama 3.2, 1.24 billion parameters.
    pub const LLAMA_3_2_1B: Self = Self {
        name: "llama-3.2-1b",
        architecture: Architecture::Llama,
        width: 2048,
        layers: 16,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        hidden: 8192,
        vocab: 128_256,
        context_train: 131_072,
        rope_base: 500_000.0,
        rope_stretch: Some(32.0),
        eps: 1e-5,
        window: None,
        tied: true,
        experts: None,
        convolutions: None,
        delta_nets: None,
        gemma4: None,
    };

    /// Llama 3.1, 8.03 billion parameters.
    pub const LLAMA_3_1_8B: Self = Self {
        name: "llama-3.1-8b",
        width: 4096,
        layers: 32,
        head_dim: 128,
        hidden: 14_336,
        rope_stretch: Some(8.0),
        tied: false,
        ..Self::LLAMA_3_2_1B
    };

    /// Qwen 3, 0.6 billion parameters.
    pub const QWEN3_0_6B: Self = Self {
        name: "qwen3-0.6b",
        architecture: Architecture::Qwen3,
        width: 1024,
        layers: 28,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        hidden: 3072,
        vocab: 151_936,
        context_train: 40_960,
        rope_base: 1_000_000.0,
        rope_stretch: None,
        eps: 1e-6,
        window: None,
        tied: true,
        experts: None,
        convolutions: None,
        delta_nets: None,
        gemma4: None,
    };

    /// Qwen 3, 1.7 billion parameters.
    pub const QWEN3_1_7B: Self =
        Self { name: "qwen3-1.7b", width: 2048, hidden: 6144, ..Self::QWEN3_0_6B };

    /// Qwen 3, 4.0 billion parameters.
    pub const QWEN3_4B: Self = Self {
        name: "qwen3-4b",
        width: 2560,
        layers: 36,
        heads: 32,
        hidden: 9728,
        ..Self::QWEN3_0_6B
    };

    /// SmolLM 2, 135 million parameters. Its rows of 576 are not a multiple of 256.
    pub const SMOLLM2_135M: Self = Self {
        name: "smollm2-135m",
        architecture: Architecture::Llama,
        width: 576,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        hidden: 1536,
        vocab: 49_152,
        context_train: 8192,
        rope_base: 100_000.0,
        rope_stretch: None,
        eps: 1e-5,
        window: None,
        tied: true,
        experts: None,
        convolutions: None,
        delta_nets: None,
        gemma4: None,
    };

    /// Gemma 3, 1.0 billion parameters. Its rows of 1152 are not a multiple of 256.
    pub const GEMMA_3_1B: Self = Self {
        name: "gemma-3-1b",
        architecture: Architecture::Gemma3,
        width: 1152,
        layers: 26,
        heads: 4,
        kv_heads: 1,
        head_dim: 256,
        hidden: 6912,
        vocab: 262_144,
        context_train: 32_768,
        rope_base: 1_000_000.0,
        rope_stretch: None,
        eps: 1e-6,
        window: Some(512),
        tied: true,
        experts: None,
        convolutions: None,
        delta_nets: None,
        gemma4: None,
    };

    /// Qwen 3, 30.5 billion parameters; a token uses 3.3 billion.
    pub const QWEN3_30B_A3B: Self = Self {
        name: "qwen3-30b-a3b",
        architecture: Architecture::Qwen3Moe,
        width: 2048,
        layers: 48,
        heads: 32,
        kv_heads: 4,
        hidden: 6144,
        tied: false,
        experts: Some(Experts { count: 128, used: 8, hidden: 768, dense_layers: 0 }),
        ..Self::QWEN3_0_6B
    };

    /// LFM 2, 8.3 billion parameters; a token uses 1.5 billion.
    pub const LFM2_8B_A1B: Self = Self {
        name: "lfm2-8b-a1b",
        architecture: Architecture::Lfm2Moe,
        width: 2048,
        layers: 24,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        hidden: 7168,
        vocab: 65_536,
        context_train: 128_000,
        rope_base: 1_000_000.0,
        rope_stretch: None,
        eps: 1e-5,
        window: None,
        tied: true,
        experts: Some(Experts { count: 32, used: 4, hidden: 1792, dense_layers: 2 }),
        convolutions: Some(Convolutions { taps: 3, attention_layers: &[2, 6, 10, 14, 18, 21] }),
        delta_nets: None,
        gemma4: None,
    };

    /// Qwen 3.5, 0.75 billion parameters.
    pub const QWEN3_5_0_8B: Self = Self {
        name: "qwen3.5-0.8b",
        architecture: Architecture::Qwen35,
        layers: 24,
        heads: 8,
        kv_heads: 2,
        head_dim: 256,
        hidden: 3584,
        vocab: 248_320,
        context_train: 262_144,
        rope_base: 10_000_000.0,
        delta_nets: Some(DeltaNets {
            key_heads: 16,
            value_heads: 16,
            head_dim: 128,
            taps: 4,
            attention_interval: 4,
        }),
        ..Self::QWEN3_0_6B
    };

    /// Qwen 3.5, 1.9 billion parameters.
    pub const QWEN3_5_2B: Self =
        Self { name: "qwen3.5-2b", width: 2048, hidden: 6144, ..Self::QWEN3_5_0_8B };

    /// Qwen 3.5, 4.2 billion parameters.
    pub const QWEN3_5_4B: Self = Self {
        name: "qwen3.5-4b",
        width: 2560,
        layers: 32,
        heads: 16,
        kv_heads: 4,
        hidden: 9216,
        delta_nets: Some(DeltaNets {
            key_heads: 16,
            value_heads: 32,
            head_dim: 128,
            taps: 4,
            attention_interval: 4,
        }),
        ..Self::QWEN3_5_0_8B
    };

    /// Gemma 4 E2B, 4.6 billion parameters: 2.3 billion are the table of the layers' inputs.
    pub const GEMMA_4_E2B: Self = Self {
        name: "gemma-4-e2b",
        architecture: Architecture::Gemma4,
        width: 1536,
        layers: 35,
        heads: 8,
        hidden: 6144,
        context_train: 131_072,
        gemma4: Some(Gemma4 {
            full_interval: 5,
            full_head_dim: 512,
            shared_layers: 20,
            shared_hidden: 12_288,
            input_width: 256,
        }),
        ..Self::GEMMA_3_1B
    };

    /// Granite 4.0, 352 million parameters (the dense one).
    pub const GRANITE_4_350M: Self = Self {
        name: "granite-4-350m",
        architecture: Architecture::Granite,
        width: 1024,
        layers: 28,
        heads: 16,
        kv_heads: 4,
        hidden: 2048,
        vocab: 100_352,
        context_train: 32_768,
        rope_base: 10_000_000.0,
        rope_stretch: None,
        ..Self::LLAMA_3_2_1B
    };

    /// Ministral 3, 3.4 billion parameters, without its image encoder.
    pub const MINISTRAL_3_3B: Self = Self {
        name: "ministral-3-3b",
        architecture: Architecture::Mistral3,
        width: 3072,
        layers: 26,
        head_dim: 128,
        hidden: 9216,
        vocab: 131_072,
        context_train: 262_144,
        rope_base: 1_000_000.0,
        rope_stretch: None,
        ..Self::LLAMA_3_2_1B
    };

    /// Every shape above.
    pub const ALL: [Self; 15] = [
        Self::LLAMA_3_2_1B,
        Self::LLAMA_3_1_8B,
        Self::QWEN3_0_6B,
        Self::QWEN3_1_7B,
        Self::QWEN3_4B,
        Self::SMOLLM2_135M,
        Self::GEMMA_3_1B,
        Self::QWEN3_30B_A3B,
        Self::LFM2_8B_A1B,
        Self::QWEN3_5_0_8B,
        Self::QWEN3_5_2B,
        Self::QWEN3_5_4B,
        Self::GEMMA_4_E2B,
        Self::GRANITE_4_350M,
        Self::MINISTRAL_3_3B,
    ];

    /// The shape named `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.name == name)
    }

    /// Whether heads of queries and keys have norms.
    pub(super) fn has_head_norms(&self) -> bool {
        use Architecture::{Granite, Llama, Mistral3};
        !matches!(self.architecture, Llama | Granite | Mistral3)
    }

    /// Whether layer `layer` has attention.
    pub(super) fn attends(&self, layer: u32) -> bool {
        let delta = self.delta_nets;
        self.convolutions.is_none_or(|conv| conv.attention_layers.contains(&layer))
            && delta.is_none_or(|delta| (layer + 1).is_multiple_of(delta.attention_interval))
    }

    /// Whether layer `layer` has full attention, in a model with windows.
    pub(super) fn is_full(&self, layer: u32) -> bool {
        self.gemma4.is_some_and(|gemma| (layer + 1).is_multiple_of(gemma.full_interval))
    }

    /// Elements in a head of layer `layer`.
    pub(super) fn head_dim_of(&self, layer: u32) -> u32 {
        let full = self.gemma4.filter(|_| self.is_full(layer));
        full.map_or(self.head_dim, |gemma| gemma.full_head_dim)
    }

    /// Whether layer `layer` reads the keys and values of an earlier one.
    pub(super) fn is_shared(&self, layer: u32) -> bool {
        self.gemma4.is_some_and(|gemma| layer >= self.layers - gemma.shared_layers)
    }

    /// Width of the feed-forward network of layer `layer`.
    pub(super) fn hidden_of(&self, layer: u32) -> u32 {
        let shared = self.gemma4.filter(|_| self.is_shared(layer));
        shared.map_or(self.hidden, |gemma| gemma.shared_hidden)
    }

    /// The mixture of experts of layer `layer`.
    pub(super) fn experts_of(&self, layer: u32) -> Option<Experts> {
        self.experts.filter(|experts| layer >= experts.dense_layers)
    }

    /// Divisors of the rotation frequencies of Llama 3.1 and later: 1 for dimensions that rotate at
    /// least 4 times within the 8192 tokens of Llama 3's training, the stretch for dimensions that
    /// rotate at most once, and a smooth transition in between. Of Gemma 4: 1 for a quarter of the
    /// dimensions of full layers, 1e30 for the others.
    pub(super) fn rope_factors(&self) -> Option<Vec<f32>> {
        const CONTEXT_ORIGINAL: f32 = 8192.0;
        const TURNS_FAST: f32 = 4.0;
        const TURNS_SLOW: f32 = 1.0;
        if let Some(gemma) = self.gemma4 {
            let factor = |pair| if pair < gemma.full_head_dim / 8 { 1.0 } else { 1e30 };
            return Some((0..gemma.full_head_dim / 2).map(factor).collect());
        }
        let stretch = self.rope_stretch?;
        let factor = |pair: u32| {
            let frequency = libm::powf(self.rope_base, -((2 * pair) as f32) / self.head_dim as f32);
            let turns = CONTEXT_ORIGINAL * frequency / TAU;
            let fast = ((turns - TURNS_SLOW) / (TURNS_FAST - TURNS_SLOW)).clamp(0.0, 1.0);
            1.0 / ((1.0 - fast) / stretch + fast)
        };
        Some((0..self.head_dim / 2).map(factor).collect())
    }
}
