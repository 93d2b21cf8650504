//! Tests with files of voices.
#![cfg(feature = "builtin")]

mod activity;
mod common;
mod kokoro;
mod piper;
mod round_trip;
mod tiny;
mod tiny_whisper;
mod whisper;
