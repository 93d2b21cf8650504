//! Test doubles. Only tests and benchmarks depend on this crate.
//!
//! [`faulty`] wraps any device and injects faults from a seed. [`hash`] is a device that computes
//! hashes instead of a model, in virtual time: tests run millions of steps on it. [`synth`] writes
//! models of real shapes with random weights, and [`quantize`] stores numbers in their formats.
//! [`warnings`] collects messages.
//!
//! Unit tests of `walla_device`, `walla_model` and `walla_types` see other types than this crate,
//! because cargo compiles these crates again for them. There, only integration tests and
//! documentation tests can pass types of the crate to a double.

#![forbid(unsafe_code)]

mod aligned;
pub mod faulty;
pub mod hash;
mod log;
mod quant;
pub mod synth;

pub use faulty::{FaultPlan, Faulty, FaultyBackend, VirtualClock};
pub use log::warnings;
pub use quant::quantize;
