//! Errors of the service.

use thiserror::Error;

/// Changes that were not sent. They are kept, and the next update sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UpdateError {
    /// Too many changes wait for the thread: try again later.
    #[error("{queued} bytes of changes wait, at most {most} are allowed")]
    Full {
        /// Bytes that wait.
        queued: usize,
        /// [`RecallOptions::max_queued_bytes`](crate::RecallOptions::max_queued_bytes).
        most: usize,
    },
    /// The thread could not be started, or has ended by a fault: asks have no memories.
    #[error("the thread of memories has ended")]
    Ended,
}
