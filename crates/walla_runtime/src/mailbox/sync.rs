//! Atomics and cells. The loom models replace this module with loom's types.

pub(crate) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// `core::cell::UnsafeCell` with the interface of loom's, which tracks accesses.
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

/// Places its content on separate cache lines: 128 bytes, because x86 prefetches lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct OwnLine<T>(pub(crate) T);
