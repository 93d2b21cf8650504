//! Floats with their total order.

use std::cmp::Ordering;

/// A number in the order of [`f64::total_cmp`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Total(pub f64);

impl Eq for Total {}

impl PartialOrd for Total {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Total {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}
