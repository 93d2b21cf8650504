//! Sharing of a GPU with the rest of the program.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Context of a GPU device. No effect on a CPU.
///
/// A context that driver or platform do not support is not an error: the device then uses a
/// separate context, and [`GpuFacts::context`](crate::GpuFacts::context) contains the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuContext {
    /// A separate context on the whole GPU, with low-priority streams.
    #[default]
    Separate,
    /// A separate context on a part of the multiprocessors, so that the rest is always free for the
    /// renderer (a "green context").
    Share {
        /// Percentage of the multiprocessors, rounded up to the GPU's granularity; 100 and more:
        /// all of them.
        percent: u32,
    },
    /// An existing context of the program, or its rendering queue. The device's crate creates such
    /// handles: `walla_cuda::SharedContext` and `walla_cuda::GraphicsQueue`.
    Existing(GpuHandle),
}

/// An object of the program whose type only the device's crate knows. Opaque here, cheap to clone,
/// and equal only to its clones.
#[derive(Clone, Debug)]
pub struct GpuHandle(Arc<dyn Any + Send + Sync>);

impl GpuHandle {
    /// Wraps an object for the device's crate.
    #[must_use]
    pub fn new(handle: impl Any + Send + Sync) -> Self {
        Self(Arc::new(handle))
    }

    /// The wrapped object, if it is a `T`.
    #[must_use]
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl PartialEq for GpuHandle {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for GpuHandle {}

/// Whether driver and platform support a feature, with text for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// Supported, with details.
    Available(String),
    /// Not supported, with the reason.
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
    fn handles_compare_by_identity_and_check_their_type() {
        let handle = GpuHandle::new(7_u32);
        assert_eq!(handle.get(), Some(&7_u32));
        assert_eq!(handle.get::<u64>(), None);
        assert_eq!(handle, handle.clone());
        assert_ne!(handle, GpuHandle::new(7_u32));
    }
}
