//! Conversion of weights from their stored forms, the block formats of ggml, to `f32`.

mod dequantise;
mod unpack;

pub use dequantise::dequantise;
