//! Tests across the crates in one program, which builds faster than one for each file.

mod background;
mod constraints;
mod conversations;
mod demo_model;
mod experts;
mod masks;
mod oracle_cpu;
mod reasoning;
mod scores;
mod sequences;
mod serve;
mod several_engines;
mod step_failures;
mod two_apis;
