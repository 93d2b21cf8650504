//! Ids, units, limits and sampling parameters shared by all walla crates.
//!
//! This is layer 0 of the workspace: it depends on no other walla crate. Its only runtime behaviour
//! is to read the [`environment`], to decode [`blocks`] of numbers, and a [`Mark`] between threads.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

#[expect(
    clippy::indexing_slicing,
    reason = "blocks are arrays of fixed lengths, which callers check"
)]
pub mod blocks;
mod cache_command;
pub mod environment;
mod fnv1a;
mod ids;
mod mark;
mod operators;
mod sampling;
mod tensor_type;
mod token_mask;

pub use cache_command::CacheCommand;
pub use fnv1a::{FNV1A, fnv1a};
pub use ids::{Position, SeqId, TokenId};
pub use mark::Mark;
pub use operators::{Activation, ExpertScore, PositionScale, RopePairs};
pub use sampling::{
    InvalidSampling, LogitBias, MAX_CANDIDATES, MAX_LOGIT_BIASES, MAX_PENALTY_WINDOW, Sampling,
    SamplingBuilder,
};
pub use tensor_type::{TensorType, UnknownTensorType, e8m0_half};
pub use token_mask::{InvalidTokenMask, TokenMask};

/// The models replace this module by loom's types.
mod sync {
    pub(crate) use core::sync::atomic::{AtomicBool, Ordering};
}
