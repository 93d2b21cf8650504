//! Code shared by the measurements: facts about the machine, output files and synthetic models.

pub mod machine;
pub mod output;
mod synthetic;

pub use synthetic::synthetic;
