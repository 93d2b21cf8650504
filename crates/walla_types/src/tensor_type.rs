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

/// Code in files, name in llama.cpp's tools, elements and bytes of a block.
struct Format(u32, &'static str, usize, usize);

/// The formats, in the order of the variants: a variant is the index of its row.
const FORMATS: [(TensorType, Format); 16] = [
    (TensorType::F32, Format(0, "F32", 1, 4)),
    (TensorType::F16, Format(1, "F16", 1, 2)),
    (TensorType::BF16, Format(30, "BF16", 1, 2)),
    (TensorType::Q8_0, Format(8, "Q8_0", 32, 34)),
    (TensorType::Q4_0, Format(2, "Q4_0", 32, 18)),
    (TensorType::Q4_1, Format(3, "Q4_1", 32, 20)),
    (TensorType::Q5_0, Format(6, "Q5_0", 32, 22)),
    (TensorType::Q5_1, Format(7, "Q5_1", 32, 24)),
    (TensorType::Q4K, Format(12, "Q4_K", 256, 144)),
    (TensorType::Q5K, Format(13, "Q5_K", 256, 176)),
    (TensorType::Q6K, Format(14, "Q6_K", 256, 210)),
    (TensorType::Q2K, Format(10, "Q2_K", 256, 84)),
    (TensorType::Q3K, Format(11, "Q3_K", 256, 110)),
    (TensorType::Iq4Nl, Format(20, "IQ4_NL", 32, 18)),
    (TensorType::Iq4Xs, Format(23, "IQ4_XS", 256, 136)),
    (TensorType::Mxfp4, Format(39, "MXFP4", 32, 17)),
];

#[expect(clippy::indexing_slicing, reason = "a variant is the index of its row")]
impl TensorType {
    /// Every supported type.
    pub const ALL: [Self; FORMATS.len()] = {
        let mut all = [Self::F32; FORMATS.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = FORMATS[at].0;
            assert!(all[at] as usize == at, "the rows have the order of the variants");
            at += 1;
        }
        all
    };

    /// The type with this code in a GGUF file.
    ///
    /// # Errors
    /// [`UnknownTensorType`] if walla has no kernels for the code.
    pub const fn from_ggml(code: u32) -> Result<Self, UnknownTensorType> {
        let mut at = 0;
        while at < FORMATS.len() {
            if FORMATS[at].1.0 == code {
                return Ok(FORMATS[at].0);
            }
            at += 1;
        }
        Err(UnknownTensorType(code))
    }

    const fn format(self) -> &'static Format {
        &FORMATS[self as usize].1
    }

    /// The type's code in a GGUF file.
    #[must_use]
    pub const fn to_ggml(self) -> u32 {
        self.format().0
    }

    /// Elements per block. A row's length is a multiple of it.
    #[must_use]
    pub const fn block_elements(self) -> usize {
        self.format().2
    }

    /// Bytes per block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        self.format().3
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
        self.format().1
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor type {} (supported: {})", self.verdict(), TensorType::ALL.map(TensorType::name).join(", "))]
pub struct UnknownTensorType(pub u32);

impl UnknownTensorType {
    /// The type's name in GGUF files, for example `IQ3_S`; `None` if the format assigns no type to
    /// the code.
    ///
    /// Includes types that the format has removed, since old files still contain them.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
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

    fn verdict(self) -> String {
        let named = self.name().map(|name| format!("{name} is not supported"));
        named.unwrap_or_else(|| format!("{} is unknown", self.0))
    }
}

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
