use core::fmt;

/// Storage format of a weight tensor.
///
/// Blocks and codes are as in ggml (`ggml_type` in GGUF files).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum TensorType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// 32 signed bytes with one f16 scale.
    Q8_0,
    /// 32 nibbles with one f16 scale, offset 8.
    Q4_0,
    /// 32 nibbles with an f16 scale and an f16 minimum.
    Q4_1,
    /// 32 five-bit numbers with one f16 scale, offset 16.
    Q5_0,
    /// 32 five-bit numbers with an f16 scale and an f16 minimum.
    Q5_1,
    /// 256 nibbles: 8 sub-blocks of 32, each with a 6-bit scale and minimum.
    Q4K,
    /// 256 five-bit numbers: 8 sub-blocks of 32, each with a 6-bit scale and minimum.
    Q5K,
    /// 256 six-bit numbers: 16 sub-blocks of 16, each with an 8-bit scale.
    Q6K,
    /// 256 two-bit numbers: 16 sub-blocks of 16, each with a 4-bit scale and minimum.
    Q2K,
    /// 256 three-bit numbers: 16 sub-blocks of 16, each with a 6-bit scale, offset 4.
    Q3K,
    /// 32 nibbles with one f16 scale; a nibble is an index into [`TensorType::table`].
    Iq4Nl,
    /// 256 nibbles as in `Iq4Nl`: 8 sub-blocks of 32, each with a 6-bit scale.
    Iq4Xs,
    /// 32 numbers of 4 bits (e2m1) with one power of two as their scale: OCP Microscaling Formats
    /// 1.0.
    Mxfp4,
}

impl TensorType {
    /// Every supported type.
    pub const ALL: [Self; 16] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Q2K,
        Self::Q3K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
    ];

    /// The type with this code in a GGUF file.
    ///
    /// # Errors
    /// [`UnknownTensorType`] if walla has no kernels for the code.
    pub const fn from_ggml(code: u32) -> Result<Self, UnknownTensorType> {
        Ok(match code {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            20 => Self::Iq4Nl,
            23 => Self::Iq4Xs,
            30 => Self::BF16,
            39 => Self::Mxfp4,
            _ => return Err(UnknownTensorType(code)),
        })
    }

    /// The type's code in a GGUF file.
    #[must_use]
    pub const fn to_ggml(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2K => 10,
            Self::Q3K => 11,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Iq4Nl => 20,
            Self::Iq4Xs => 23,
            Self::BF16 => 30,
            Self::Mxfp4 => 39,
        }
    }

    /// Elements per block. A row's length is a multiple of it.
    #[must_use]
    pub const fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => 32,
            Self::Iq4Nl | Self::Mxfp4 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K | Self::Q2K | Self::Q3K | Self::Iq4Xs => 256,
        }
    }

    /// Bytes per block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 34,
            Self::Mxfp4 => 17,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Iq4Xs => 136,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Bytes of a row of `elements` elements, or `None` if it is not a whole number of blocks or
    /// overflows.
    #[must_use]
    pub const fn row_bytes(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_elements()) {
            return None;
        }
        (elements / self.block_elements()).checked_mul(self.block_bytes())
    }

    /// Whether numbers are packed in blocks with shared scales.
    #[must_use]
    pub const fn is_quantized(self) -> bool {
        self.block_elements() > 1
    }

    /// The name that llama.cpp's tools print.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Iq4Nl => "IQ4_NL",
            Self::Iq4Xs => "IQ4_XS",
            Self::Mxfp4 => "MXFP4",
        }
    }

    /// For types whose nibbles are indices: the 16 numbers of the indices, in units of the block's
    /// scale. Ascending for IQ4_NL and IQ4_XS.
    ///
    /// The numbers of MXFP4 are doubled, so that they are integers; their scale is
    /// [`e8m0_half`].
    #[must_use]
    pub const fn table(self) -> Option<&'static [i8; 16]> {
        match self {
            Self::Iq4Nl | Self::Iq4Xs => Some(&NORMAL),
            Self::Mxfp4 => Some(&E2M1_DOUBLED),
            _ => None,
        }
    }
}

/// Numbers of IQ4_NL and IQ4_XS, close together around zero where weights are frequent.
static NORMAL: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Numbers of e2m1 (sign, two bits of exponent, one of mantissa), times 2.
static E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the number of an E8M0 scale: `2^(exponent - 128)`, exact for every exponent.
///
/// The exponents 0 and 1 give subnormal numbers. The exponent 255, which the OCP format reserves
/// for NaN, gives 2^127, as in ggml.
#[must_use]
pub const fn e8m0_half(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 => 1 << 21,
        1 => 1 << 22,
        _ => (exponent as u32 - 1) << 23,
    })
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A `ggml_type` code that walla has no kernels for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownTensorType(pub u32);

impl UnknownTensorType {
    /// The type's name in GGUF files, for example `IQ3_S`; `None` if the format assigns no type to
    /// the code.
    ///
    /// Includes types that the format has removed, since old files still contain them.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        if let Ok(supported) = TensorType::from_ggml(self.0) {
            return Some(supported.name());
        }
        Some(match self.0 {
            4 => "Q4_2",
            5 => "Q4_3",
            9 => "Q8_1",
            15 => "Q8_K",
            16 => "IQ2_XXS",
            17 => "IQ2_XS",
            18 => "IQ3_XXS",
            19 => "IQ1_S",
            21 => "IQ3_S",
            22 => "IQ2_S",
            24 => "I8",
            25 => "I16",
            26 => "I32",
            27 => "I64",
            28 => "F64",
            29 => "IQ1_M",
            31 => "Q4_0_4_4",
            32 => "Q4_0_4_8",
            33 => "Q4_0_8_8",
            34 => "TQ1_0",
            35 => "TQ2_0",
            36 => "IQ4_NL_4_4",
            37 => "IQ4_NL_4_8",
            38 => "IQ4_NL_8_8",
            40 => "NVFP4",
            41 => "Q1_0",
            42 => "Q2_0",
            _ => return None,
        })
    }

    /// The name, or `type 99` for a code without one.
    #[must_use]
    pub fn label(self) -> String {
        self.name().map_or_else(|| format!("type {}", self.0), str::to_owned)
    }
}

impl fmt::Display for UnknownTensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "tensor type {name} is not supported")?,
            None => write!(f, "tensor type {} is unknown", self.0)?,
        }
        f.write_str(" (supported: ")?;
        for (index, ty) in TensorType::ALL.into_iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{ty}")?;
        }
        f.write_str(")")
    }
}

impl core::error::Error for UnknownTensorType {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        for ty in TensorType::ALL {
            assert_eq!(TensorType::from_ggml(ty.to_ggml()), Ok(ty));
        }
        assert_eq!(TensorType::from_ggml(4), Err(UnknownTensorType(4)));
    }

    #[test]
    fn every_code_of_the_format_has_a_name() {
        let names: Vec<_> = (0..=42).map(|code| UnknownTensorType(code).name()).collect();
        assert!(names.iter().all(Option::is_some), "{names:?}");
        let mut distinct = names.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), names.len());
        assert_eq!(UnknownTensorType(43).name(), None);
        for ty in TensorType::ALL {
            assert_eq!(UnknownTensorType(ty.to_ggml()).name(), Some(ty.name()));
        }
    }

    #[test]
    fn a_refusal_names_the_type_and_the_supported_types() {
        assert_eq!(
            UnknownTensorType(21).to_string(),
            "tensor type IQ3_S is not supported (supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, \
             Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4)"
        );
        assert!(UnknownTensorType(99).to_string().starts_with("tensor type 99 is unknown"));
        assert_eq!(UnknownTensorType(99).label(), "type 99");
    }

    #[test]
    fn scales_of_eight_bits_are_powers_of_two() {
        for exponent in 0..=255 {
            let exact = 2.0_f64.powi(i32::from(exponent) - 128);
            assert_eq!(f64::from(e8m0_half(exponent)), exact, "{exponent}");
        }
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(TensorType::Q4K.row_bytes(512), Some(288));
        assert_eq!(TensorType::Q4K.row_bytes(320), None);
        assert_eq!(TensorType::F32.row_bytes(usize::MAX), None);
    }
}
