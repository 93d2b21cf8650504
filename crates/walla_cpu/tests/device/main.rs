//! Tests of the device in one program, which builds faster than one for each file.

#[path = "../support/mod.rs"]
mod support;

mod contract;
mod delta_net;
mod determinism;
mod encoder;
mod experts;
mod layer_inputs;
mod reference;
