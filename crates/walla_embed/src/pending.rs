//! The result of one request.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::answer::Wanted;
use crate::error::EmbedError;
use crate::text::Embedding;

pub(crate) type Outcome = Result<Vec<Embedding>, EmbedError>;

/// Vectors that are being computed, in the order of the request's texts.
///
/// It is a future; [`try_recv`](Self::try_recv) never waits, [`wait`](Self::wait) blocks. Dropping
/// it cancels the request: texts that were not computed yet are left out.
#[must_use = "dropping it cancels the request"]
#[derive(Debug)]
pub struct Pending(pub(crate) Wanted<Outcome>);

impl Pending {
    /// The result, once; `None` before the request has ended and after the result was taken. Never
    /// waits.
    pub fn try_recv(&mut self) -> Option<Result<Vec<Embedding>, EmbedError>> {
        if self.0.is_taken() {
            return None;
        }
        self.0.try_take().map(|outcome| outcome.unwrap_or(Err(EmbedError::Stopped)))
    }

    /// Blocks the calling thread until the request has ended: for tools and tests, not for a frame.
    ///
    /// # Errors
    /// See [`EmbedError`].
    pub fn wait(self) -> Result<Vec<Embedding>, EmbedError> {
        pollster::block_on(self)
    }
}

impl Future for Pending {
    type Output = Result<Vec<Embedding>, EmbedError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context).map(|outcome| outcome.unwrap_or(Err(EmbedError::Stopped)))
    }
}
