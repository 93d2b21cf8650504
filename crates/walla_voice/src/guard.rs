//! Calls of parts that may be the host's. Their panics end at this boundary.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::VoiceError;

/// The result of some work; `None`: it panicked.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    // The drop of a panic's value may panic too: it leaks.
    catch_unwind(AssertUnwindSafe(work)).map_err(std::mem::forget).ok()
}

/// As [`caught`]; a panic is an error.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, VoiceError>) -> Result<T, VoiceError> {
    caught(work).unwrap_or_else(|| Err(VoiceError::Failed("it panicked".to_owned())))
}

/// Drops a value whose drop may panic.
pub(crate) fn discard<T>(value: T) {
    caught(|| drop(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Panics;

    impl Drop for Panics {
        fn drop(&mut self) {
            std::panic::panic_any("drop");
        }
    }

    #[test]
    fn no_panic_leaves_a_guard() {
        assert_eq!(caught(|| 1), Some(1));
        discard(Panics);
        assert_eq!(caught(|| std::panic::panic_any(Panics)), None::<()>);
        let failed = guarded(|| -> Result<(), VoiceError> { std::panic::panic_any(1) });
        assert!(matches!(failed, Err(VoiceError::Failed(_))));
    }
}
