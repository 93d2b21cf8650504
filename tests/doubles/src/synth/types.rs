use walla_types::TensorType;

/// Tensor types by tensor: the presets of llama.cpp's `llama-quantize`, from Q2_K on without its
/// exceptions for single layers. Norms are always F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mixture {
    /// All F16.
    F16,
    /// All BF16.
    BF16,
    /// All Q8_0.
    Q8_0,
    /// Q4_0, with a head of Q6_K.
    Q4_0,
    /// Q4_K, with a head of Q6_K and half of the value and down projections in Q6_K.
    Q4KM,
    /// Q2_K, with a head of Q6_K.
    Q2K,
    /// Q3_K, with a head of Q6_K.
    Q3KS,
    /// IQ4_NL, with a head of Q6_K.
    Iq4Nl,
    /// IQ4_XS, with a head of Q6_K.
    Iq4Xs,
    /// MXFP4, with a head of Q8_0.
    Mxfp4,
}

impl Mixture {
    /// Every mixture.
    pub const ALL: [Self; 10] = [
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4KM,
        Self::Q2K,
        Self::Q3KS,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
    ];

    /// The name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4KM => "q4_k_m",
            Self::Q2K => "q2_k",
            Self::Q3KS => "q3_k_s",
            Self::Iq4Nl => "iq4_nl",
            Self::Iq4Xs => "iq4_xs",
            Self::Mxfp4 => "mxfp4",
        }
    }

    /// The mixture named `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mixture| mixture.name() == name)
    }

    /// `general.file_type`.
    pub(super) const fn file_type(self) -> u32 {
        match self {
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q8_0 => 7,
            Self::Q2K => 10,
            Self::Q3KS => 11,
            Self::Q4KM => 15,
            Self::Iq4Nl => 25,
            Self::Iq4Xs => 30,
            Self::BF16 => 32,
            Self::Mxfp4 => 38,
        }
    }

    /// The type of most matrices.
    const fn base(self) -> TensorType {
        match self {
            Self::F16 => TensorType::F16,
            Self::BF16 => TensorType::BF16,
            Self::Q8_0 => TensorType::Q8_0,
            Self::Q4_0 => TensorType::Q4_0,
            Self::Q4KM => TensorType::Q4K,
            Self::Q2K => TensorType::Q2K,
            Self::Q3KS => TensorType::Q3K,
            Self::Iq4Nl => TensorType::Iq4Nl,
            Self::Iq4Xs => TensorType::Iq4Xs,
            Self::Mxfp4 => TensorType::Mxfp4,
        }
    }

    /// The type of the token embedding; a tied one counts as the head.
    pub(super) fn embedding(self, cols: u64, tied: bool) -> TensorType {
        if tied { self.output(cols) } else { fitting(self.base(), cols) }
    }

    /// The type of the head.
    pub(super) fn output(self, cols: u64) -> TensorType {
        match self {
            Self::Q4_0 | Self::Q4KM | Self::Q2K | Self::Q3KS | Self::Iq4Nl | Self::Iq4Xs => {
                fitting(TensorType::Q6K, cols)
            }
            Self::Mxfp4 => fitting(TensorType::Q8_0, cols),
            _ => fitting(self.base(), cols),
        }
    }

    /// The type of a matrix of layer `layer` of `layers`.
    pub(super) fn layer(self, suffix: &str, layer: u32, layers: u32, cols: u64) -> TensorType {
        let sensitive = matches!(suffix, "attn_v" | "ffn_down" | "ffn_down_exps");
        if self == Self::Q4KM && sensitive && deserves_more_bits(layer, layers) {
            return fitting(TensorType::Q6K, cols);
        }
        fitting(self.base(), cols)
    }
}

/// llama.cpp's choice of layers: the first and the last eighth, and every third layer between them.
const fn deserves_more_bits(layer: u32, layers: u32) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// llama.cpp's choice if a row is not a whole number of 256-blocks.
fn fitting(ty: TensorType, cols: u64) -> TensorType {
    match ty {
        _ if cols.is_multiple_of(ty.block_elements() as u64) => ty,
        TensorType::Q4K => fitting(TensorType::Q5_0, cols),
        TensorType::Q6K => fitting(TensorType::Q8_0, cols),
        TensorType::Q2K | TensorType::Q3K | TensorType::Iq4Xs => fitting(TensorType::Iq4Nl, cols),
        _ => TensorType::F16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_layers_have_eight_with_more_bits() {
        let chosen: Vec<u32> = (0..16).filter(|&layer| deserves_more_bits(layer, 16)).collect();
        assert_eq!(chosen, [0, 1, 4, 7, 10, 13, 14, 15]);
    }

    #[test]
    fn short_rows_fall_back_as_in_llama_cpp() {
        let q4_k_m = Mixture::Q4KM;
        assert_eq!(q4_k_m.layer("attn_q", 0, 30, 576), TensorType::Q5_0);
        assert_eq!(q4_k_m.layer("attn_v", 0, 30, 576), TensorType::Q8_0);
        assert_eq!(q4_k_m.layer("ffn_down", 0, 30, 1536), TensorType::Q6K);
        assert_eq!(q4_k_m.layer("ffn_down", 4, 30, 1536), TensorType::Q4K);
        assert_eq!(q4_k_m.embedding(576, true), TensorType::Q8_0);
        assert_eq!(q4_k_m.embedding(2048, true), TensorType::Q6K);
        assert_eq!(q4_k_m.embedding(4096, false), TensorType::Q4K);
        assert_eq!(Mixture::Q4_0.embedding(4096, false), TensorType::Q4_0);
        assert_eq!(Mixture::Q8_0.layer("attn_q", 0, 1, 40), TensorType::F16);
        assert_eq!(Mixture::Q2K.layer("attn_q", 0, 30, 576), TensorType::Iq4Nl);
        assert_eq!(Mixture::Iq4Xs.layer("ffn_down", 0, 30, 1536), TensorType::Iq4Xs);
    }
}
