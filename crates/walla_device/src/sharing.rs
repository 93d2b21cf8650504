//! How a device shares its GPU with the rest of the program.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// In which context a GPU device works. Without effect on a CPU.
///
/// What driver or platform do not have is no error: the device then works in a context of its own,
/// and [`GpuFacts::context`](crate::GpuFacts::context) says why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuContext {
    /// A context of its own on the whole GPU, with streams of low priority.
    #[default]
    Own,
    /// A context of its own on a part of the multiprocessors, so that the rest is always free for
    /// the renderer (a "green context").
    Share {
        /// Per cent of the multiprocessors, rounded up to what the GPU can set apart; 100 and more:
        /// all of them.
        percent: u32,
    },
    /// What the program has already: its own context, or the queue that it renders with. The
    /// device's crate makes such handles: `walla_cuda::SharedContext` and
    /// `walla_cuda::GraphicsQueue`.
    Of(GpuHandle),
}

/// Something of the program's, as a device's crate knows it. Opaque here, cheap to clone; equal to
/// its clones alone.
#[derive(Clone)]
pub struct GpuHandle(Arc<dyn Any + Send + Sync>);

impl GpuHandle {
    /// Wraps what the device's crate will look for.
    #[must_use]
    pub fn new(handle: impl Any + Send + Sync) -> Self {
        Self(Arc::new(handle))
    }

    /// What is inside, if it is a `T`.
    #[must_use]
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for GpuHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GpuHandle(…)")
    }
}

impl PartialEq for GpuHandle {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for GpuHandle {}

/// Whether driver and platform have something, in words a person can act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// They have, with what there is to know.
    Available(String),
    /// They have not, and why.
    Absent(String),
}

impl Default for Support {
    fn default() -> Self {
        Self::Absent("not asked for".to_owned())
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Available(what) => write!(f, "available ({what})"),
            Self::Absent(why) => write!(f, "not available ({why})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_itself_and_of_its_type() {
        let handle = GpuHandle::new(7_u32);
        assert_eq!(handle.get(), Some(&7_u32));
        assert_eq!(handle.get::<u64>(), None);
        assert_eq!(handle, handle.clone());
        assert_ne!(handle, GpuHandle::new(7_u32));
    }
}
