//! The CPU device: streams, events and replayable programs over scored SIMD kernel variants.
//!
//! [`CpuDevice`] implements the [`Device`](walla_device::Device) contract on the host's own cores.
//! It is the device of machines without a GPU, the one that takes over when a GPU is lost, and, in
//! its [`Variant::Scalar`], the oracle that every other kernel of the project is tested against.
//!
//! ```text
//! CpuDevice (owner's thread)      command ring      executor thread          pool workers
//!   load, prepare: directly   ┌─────────────────┐
//!   upload, launch, record ──▶│ one FIFO        │──▶ Machine::execute ──▶ claim tiles of each op
//!   poll: one atomic load     └─────────────────┘       completes events
//! ```
//!
//! All streams share one FIFO: that order satisfies every stream and every event, since an event
//! can only be waited for after it was recorded.
//!
//! The queue and the pool are checked in every interleaving of small uses: package
//! `walla_cpu_models`.
//!
//! # Variants
//! | variant | needs | weights | activations |
//! |---|---|---|---|
//! | `scalar` | nothing | dequantised | f32: exact, the oracle |
//! | `avx2fma` | AVX2, FMA, F16C | panels of 16 rows | quantised types: 8 bits in groups of 32; others: f32 |
//! | `avxvnni` | AVX-VNNI besides | the same | the same |
//! | `avx512vnni` | AVX-512 F, BW, VL, VNNI besides | the same | the same |
//! | `neon` | AArch64 (never run on hardware so far) | the same for quantised types | the same |
//!
//! Keys and values are kept in the type that the cache asks for; all other activations are f32.
//! Attention uses vector instructions for f16 caches whose pages and heads are multiples of 16,
//! else plain Rust.
//!
//! # Results do not depend on company
//! Each output number is computed by the same operations in the same order, whatever the number of
//! rows in the step, the number of threads or the tile that it falls in. So a sequence's logits are
//! bit-identical alone and in any batch.

mod backend;
mod bed;
mod blocks;
mod cache;
mod check;
mod command;
mod device;
mod executor;
mod forward;
#[cfg(test)]
mod int_dot;
mod kernels;
mod machine;
mod math;
mod matrix;
mod memory;
mod options;
mod panels;
mod pool;
mod quantise;
mod ring;
mod room;
mod sample;
mod scalar;
mod simd;
mod step_check;
mod sync;
mod system;
#[cfg(test)]
mod tests;
mod tile;
mod workspace;

pub use backend::CpuBackend;
pub use device::CpuDevice;
pub use options::{CpuOptions, Variant};
