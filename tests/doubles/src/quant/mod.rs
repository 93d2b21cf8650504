//! The inverse of [`dequantise`](walla_model::dequantise): numbers to the block formats of ggml.

mod pack;
mod quantise;
mod search;

pub(crate) use pack::{pack, pack_q3};
pub use quantise::quantise;
