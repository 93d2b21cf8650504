//! Atomics and cells. The models put loom's in their place.

pub(crate) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// `core::cell::UnsafeCell` with the interface of loom's, which sees who borrows when.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, touch: impl FnOnce(*mut T) -> R) -> R {
        touch(self.0.get())
    }
}

/// Keeps its content on cache lines of its own: 128 bytes, since x86 fetches lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct OwnLine<T>(pub(crate) T);
