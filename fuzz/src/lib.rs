//! The bodies of the fuzz targets: functions of bytes that panic if an invariant is violated.
//!
//! `crates/walla_model/tests/fuzz_bodies.rs` includes the same files and runs them on a stable
//! compiler over fixed seeds and their mutations.

pub mod bodies;
/// Separate from the others: it depends on `walla_grammar`, whose tests include it.
#[path = "bodies/action.rs"]
pub mod action;
/// Separate from the others: it depends on `walla_runtime`, and tests of `walla` include it.
#[path = "bodies/cache_file.rs"]
pub mod cache_file;
/// Separate from the others: it depends on `walla_grammar`, whose tests include it.
#[path = "bodies/constraint.rs"]
pub mod constraint;
/// Separate from the others: it depends on `bevy_walla`, whose tests include it.
#[path = "bodies/conversation.rs"]
pub mod conversation;
/// Separate from the others: it depends on `walla_record`, whose tests include it.
#[path = "bodies/recording.rs"]
pub mod recording;
