//! The CPU device: streams, events and replayable programs on scored SIMD kernel variants.
//!
//! [`CpuDevice`] implements the [`Device`](walla_device::Device) contract on the host's cores. It
//! serves machines without a GPU and takes over when a GPU is lost. In its [`Variant::Scalar`] it
//! is the oracle for every other kernel of the project.
//!
//! ```text
//! CpuDevice (owner's thread)      command ring      executor thread          pool workers
//!   load, prepare: directly   ┌─────────────────┐
//!   upload, launch, record ──▶│ one FIFO        │──▶ Machine::execute ──▶ claim tiles of each op
//!   poll: one atomic load     └─────────────────┘       completes events
//! ```
//!
//! All streams share one FIFO. Its order satisfies every stream and every event, because an event
//! can be waited for only after it was recorded.
//!
//! Package `walla_cpu_models` checks the queue and the pool in every interleaving of small uses.
//!
//! # Variants
//! | variant | requires | weights | activations |
//! |---|---|---|---|
//! | `scalar` | nothing | dequantised | f32: exact, the oracle |
//! | `avx2fma` | AVX2, FMA, F16C | panels of 16 rows | quantised: 8 bits, groups of 32; else f32 |
//! | `avxvnni` | also AVX-VNNI | the same | the same |
//! | `avx512vnni` | also AVX-512 F, BW, VL, VNNI | the same | the same |
//! | `neon` | AArch64 (this and the next two: tested in an emulator, not yet run on hardware) | the same | the same |
//! | `neondot` | also `dotprod` (Cortex-A76 and later) | the same | the same |
//! | `neoni8mm` | also `i8mm` (Armv8.6) | the same | the same |
//!
//! Keys and values have the type that the cache description specifies; all other activations are
//! f32. Attention uses vector instructions for f16 caches whose page and head sizes are multiples
//! of 16, else plain Rust.
//!
//! [`encoder`] runs models for embeddings on the same kernels, without a queue.
//!
//! # Results do not depend on the batch
//! Each output number is computed by the same operations in the same order, regardless of the
//! number of rows in the step, the number of threads and the tile. So a sequence's logits are
//! bit-identical alone and in any batch.

mod backend;
pub mod budget;
mod cache;
mod check;
mod command;
mod device;
pub mod encoder;
mod executor;
mod experts;
mod forward;
mod info;
mod kernels;
mod machine;
mod math;
mod matrix;
mod memory;
mod memory_budget;
mod operands;
mod options;
mod panels;
mod parker;
mod pool;
pub mod priority;
mod quantize;
mod retry;
mod ring;
mod sample;
mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod simd;
mod step_check;
mod sync;
mod system;
#[cfg(test)]
mod tests;
mod tile;
mod transfer;
mod work;
mod workspace;

pub use backend::CpuBackend;
pub use device::CpuDevice;
pub use options::{CpuOptions, Variant};
