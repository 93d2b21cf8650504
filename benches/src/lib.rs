//! Code shared by the measurements: facts about the machine, and synthetic models.

pub mod machine;
mod synthetic;

pub use synthetic::synthetic;
