use walla_types::TensorType;

/// Tensor types by tensor: the presets of llama.cpp's `llama-quantize`. Norms are always F32.
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
}

impl Mixture {
    /// Every mixture.
    pub const ALL: [Self; 5] = [Self::F16, Self::BF16, Self::Q8_0, Self::Q4_0, Self::Q4KM];

    /// The name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4KM => "q4_k_m",
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
            Self::Q4KM => 15,
            Self::BF16 => 32,
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
        }
    }

    /// The type of the token embedding; a tied one counts as the head.
    pub(super) fn embedding(self, cols: u64, tied: bool) -> TensorType {
        if tied { self.output(cols) } else { fitting(self.base(), cols) }
    }

    /// The type of the head.
    pub(super) fn output(self, cols: u64) -> TensorType {
        match self {
            Self::Q4_0 | Self::Q4KM => fitting(TensorType::Q6K, cols),
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
    }
}
