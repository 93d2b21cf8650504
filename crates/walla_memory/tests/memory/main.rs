//! Tests of stores, searches and files through the public API.

mod limits;
mod lore;
mod model;
mod questions;
mod recall;
mod saved;
mod search;
mod search_naive;
mod select;
mod vectors;
