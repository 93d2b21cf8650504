//! Mouths and ears with scripted voices and recognisers.

mod common;
mod ear;
mod mouth;
