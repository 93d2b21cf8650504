//! Budget of a running template, and the limits of its values.

use std::cell::Cell;

use minijinja::{Error, ErrorKind};

/// Charge for one item of a list, in bytes.
pub(super) const ITEM_BYTES: usize = 32;

/// Maximum nesting depth of lists and maps: a list of tools, in messages of a conversation.
pub(super) const MAX_NESTING: usize = 44;

thread_local! {
    /// Remaining budget of the running template, in bytes.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Runs a template with a budget of `bytes` bytes.
pub(super) fn with_budget<T>(bytes: u64, run: impl FnOnce() -> T) -> T {
    let before = LEFT.replace(bytes);
    let result = run();
    LEFT.set(before);
    result
}

/// Charges `bytes` bytes to the budget.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    match LEFT.get().checked_sub(bytes as u64) {
        Some(left) => {
            LEFT.set(left);
            Ok(())
        }
        None => Err(Error::new(ErrorKind::OutOfFuel, "the template handles too much text")),
    }
}

/// The error of values that are nested deeper than [`MAX_NESTING`].
pub(super) fn too_deep() -> Error {
    Error::new(ErrorKind::OutOfFuel, "lists within lists are nested too deeply")
}
