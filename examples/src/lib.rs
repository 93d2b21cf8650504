//! Code shared by the examples: the model to run, the people of Emberfall, and timing of a loop.

mod measure;
mod model;
mod personas;
#[cfg(feature = "remote")]
mod remote;

use std::io::Write;

pub use bevy_walla::options::ModelSource;
pub use measure::{HostLoad, Times, print_table};
pub use model::ModelArgs;
pub use personas::{Persona, REGULARS, Ware, name, persona};
#[cfg(feature = "remote")]
pub use remote::RemoteArgs;

/// Ends the program with one line and exit code 1.
pub fn fail(reason: impl std::fmt::Display) -> ! {
    // Not `eprintln!`, which panics if standard error is closed.
    let _ignored = writeln!(std::io::stderr(), "error: {reason}");
    std::process::exit(1)
}
