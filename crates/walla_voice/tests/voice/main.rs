//! Tests with files of voices.
#![cfg(feature = "builtin")]

mod common;
mod piper;
mod round_trip;
mod tiny;
