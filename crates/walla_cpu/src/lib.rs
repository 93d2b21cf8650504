//! The CPU device: streams, events and replayable programs over scored SIMD kernel variants.
//!
//! [`CpuDevice`] implements the [`Device`](walla_device::Device) contract on the host's own cores. It is the device of
//! machines without a GPU, the one that takes over when a GPU is lost, and, in its [`Variant::Scalar`], the oracle that
//! every other kernel of the project is tested against.
//!
//! ```text
//! CpuDevice (owner's thread)      command ring      executor thread          pool workers
//!   load, prepare: directly   ┌─────────────────┐
//!   upload, launch, record ──▶│ one FIFO        │──▶ Machine::execute ──▶ claim tiles of each op
//!   poll: one atomic load     └─────────────────┘       completes events
//! ```
//!
//! All streams share one FIFO: that order satisfies every stream and every event, since an event can only be waited for
//! after it was recorded.
//!
//! Under `cfg(loom)` only the queue and the pool are compiled, for loom's model checker:
//! `RUSTFLAGS="--cfg loom" cargo test -p walla_cpu --lib --release`.
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
//! Keys and values are kept in the type that the cache asks for; all other activations are f32. Attention uses vector instructions
//! for f16 caches whose pages and heads are multiples of 16, else plain Rust.
//!
//! # Results do not depend on company
//! Each output number is computed by the same operations in the same order, whatever the number of rows in the step, the
//! number of threads or the tile that it falls in. So a sequence's logits are bit-identical alone and in any batch.

#[cfg(not(loom))]
mod backend;
#[cfg(not(loom))]
mod blocks;
#[cfg(not(loom))]
mod cache;
#[cfg(not(loom))]
mod check;
#[cfg(not(loom))]
mod command;
#[cfg(not(loom))]
mod device;
#[cfg(not(loom))]
mod executor;
#[cfg(not(loom))]
mod forward;
#[cfg(all(test, not(loom)))]
mod int_dot;
#[cfg(not(loom))]
mod kernels;
#[cfg(not(loom))]
mod machine;
#[cfg(not(loom))]
mod math;
#[cfg(not(loom))]
mod matrix;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod panels;
#[cfg_attr(loom, allow(dead_code, reason = "loom's tests use the core only"))]
mod pool;
#[cfg(not(loom))]
mod quantise;
#[cfg_attr(loom, allow(dead_code, reason = "loom's tests use the core only"))]
mod ring;
#[cfg(not(loom))]
mod sample;
#[cfg(not(loom))]
mod scalar;
#[cfg(not(loom))]
mod simd;
#[cfg(not(loom))]
mod step_check;
#[cfg_attr(loom, allow(dead_code, reason = "loom's tests use the core only"))]
mod sync;
#[cfg_attr(loom, allow(dead_code, reason = "loom's tests use the core only"))]
mod tile;
#[cfg(not(loom))]
mod workspace;

#[cfg(not(loom))]
pub use backend::CpuBackend;
#[cfg(not(loom))]
pub use device::CpuDevice;
#[cfg(not(loom))]
pub use options::{CpuOptions, Variant};
