//! Conversion between `f32` and the stored forms of weights: the block formats of ggml.

mod dequantise;
mod pack;
mod quantise;
mod search;

pub use dequantise::dequantise;
pub(crate) use pack::{pack, pack_q3};
pub use quantise::quantise;
