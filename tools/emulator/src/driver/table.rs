//! Handles and their objects.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUresult;

use super::Outcome;
use super::facts::alive;

/// Number of the space of objects that belong to no context.
pub(super) const NOBODY: usize = 0;

/// A unique number. It is not small, since some small handles have a special meaning.
pub(super) fn new_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x1000);
    NEXT.fetch_add(0x10, Ordering::Relaxed)
}

/// Objects of one kind by their numbers; a number is a handle or an address.
pub(super) struct Table<T> {
    entries: Mutex<BTreeMap<usize, Entry<T>>>,
}

struct Entry<T> {
    /// The space that owns the object.
    space: usize,
    object: Arc<T>,
}

impl<T> Table<T> {
    pub(super) const fn new() -> Self {
        Self { entries: Mutex::new(BTreeMap::new()) }
    }

    /// Lists an object of a space under a new number.
    pub(super) fn insert(&self, space: usize, object: T) -> usize {
        let number = new_number();
        self.insert_at(number, space, Arc::new(object));
        number
    }

    /// Lists an object under a given number.
    pub(super) fn insert_at(&self, number: usize, space: usize, object: Arc<T>) {
        self.lock().insert(number, Entry { space, object });
    }

    /// The object with a number.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`: no such object, or it was removed.
    pub(super) fn get(&self, number: usize) -> Outcome<Arc<T>> {
        alive()?;
        let entries = self.lock();
        let entry = entries.get(&number).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        Ok(Arc::clone(&entry.object))
    }

    /// Removes an object.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub(super) fn remove(&self, number: usize) -> Outcome<Arc<T>> {
        alive()?;
        let removed = self.lock().remove(&number);
        removed.map(|entry| entry.object).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// The number of the first object for which `is_wanted` returns true.
    pub(super) fn find(&self, mut is_wanted: impl FnMut(&T) -> bool) -> Option<usize> {
        let entries = self.lock();
        let found = entries.iter().find(|(_, entry)| is_wanted(&entry.object));
        found.map(|(number, _)| *number)
    }

    /// All objects of a space.
    pub(super) fn all_of(&self, space: usize) -> Vec<Arc<T>> {
        let entries = self.lock();
        let of_space = entries.values().filter(|entry| entry.space == space);
        of_space.map(|entry| Arc::clone(&entry.object)).collect()
    }

    /// Removes and drops every object for which `is_gone` returns true.
    pub(super) fn drop_where(&self, mut is_gone: impl FnMut(&T) -> bool) {
        self.take_where(|entry| is_gone(&entry.object));
    }

    /// Removes and drops every object of a space.
    pub(super) fn drop_space(&self, space: usize) {
        self.take_where(|entry| entry.space == space);
    }

    fn take_where(&self, mut is_gone: impl FnMut(&Entry<T>) -> bool) {
        let gone: Vec<_> = self.lock().extract_if(.., |_, entry| is_gone(entry)).collect();
        // After the lock is released: an object's drop may remove others.
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Entry<T>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts a number to a handle.
pub(super) fn handle<T>(number: usize) -> *mut T {
    ptr::without_provenance_mut(number)
}
