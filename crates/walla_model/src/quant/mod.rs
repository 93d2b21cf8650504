//! Conversion of weights from their stored forms, the block formats of ggml, to `f32`.

mod dequantize;
mod unpack;

pub use dequantize::dequantize;
