use super::sync::{AtomicBool, Ordering};

/// A mark that a thread sets after a change, and that another takes before it looks for changes.
///
/// [`set`](Self::set) and [`take`](Self::take) are exchanges: the second of two reads the value of
/// the first. If the mark is taken later, the change is visible to what follows; if it is set
/// later, `set` returns `false`, and the caller wakes the other thread. With plain stores neither
/// is certain on processors that order memory weakly: a store does not read the mark that it
/// overwrites.
#[derive(Debug)]
pub struct Mark(AtomicBool);

impl Mark {
    /// A mark that is set, or not.
    #[must_use]
    pub fn new(is_set: bool) -> Self {
        Self(AtomicBool::new(is_set))
    }

    /// Sets the mark. Returns `true` if it was set already.
    pub fn set(&self) -> bool {
        self.0.swap(true, Ordering::AcqRel)
    }

    /// Clears the mark. Returns `true` if it was set.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }
}
