//! What the measurements share: the machine that they are made on, and models to make them with.

pub mod machine;
mod synthetic;

pub use synthetic::synthetic;
