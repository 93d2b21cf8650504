//! Conversion of weights from their stored forms, the block formats of ggml, to `f32`.

use walla_types::{TensorType, blocks};

/// Converts whole blocks of stored numbers to `f32`.
///
/// `bytes` holds `out.len()` numbers of type `ty`, as [`TensorType::row_bytes`] counts them. The
/// results equal ggml's bit for bit: each is a product of `f32`, followed by a sum for types with
/// minimums.
///
/// # Panics
/// If `out` is not a whole number of blocks, or `bytes` has another length.
///
/// # Examples
/// ```
/// use walla_model::dequantize;
/// use walla_types::TensorType;
/// let mut out = [0.0];
/// dequantize(TensorType::BF16, &[0x80, 0x3f], &mut out);
/// assert_eq!(out, [1.0]);
/// ```
pub fn dequantize(ty: TensorType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(ty.row_bytes(out.len()), Some(bytes.len()), "{} numbers of {ty}", out.len());
    blocks::dequantize(ty, bytes, out);
}
