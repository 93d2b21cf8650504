//! The inverse of [`dequantize`](walla_model::dequantize): numbers to the block formats of ggml.

mod pack;
mod quantize;
mod search;

pub(crate) use pack::{pack, pack_q3};
pub use quantize::quantize;
