//! Tests of actions in one program, which builds faster than one for each file.

mod common;

mod demo_model;
mod formats;
mod fuzz_bodies;
mod grammars;
mod parsers;
mod specs;
