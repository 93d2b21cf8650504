//! Memory as kernels access it.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::kinds::Atomic;
use super::op::{GENERIC_LOCAL, GENERIC_SHARED, WINDOW_BITS};
use crate::memory::around;

/// Why an access failed. The caller that knows the place converts it to a [`Fault`](super::Fault).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    Address(u64),
    Alignment(u64),
}

/// Accessible host memory, sorted. Caches the range of the last access.
pub(super) struct Ranges<'a> {
    all: &'a [Range<u64>],
    last: Cell<(u64, u64)>,
}

impl<'a> Ranges<'a> {
    pub(super) fn new(all: &'a [Range<u64>]) -> Self {
        Self { all, last: Cell::new((1, 0)) }
    }

    #[inline(always)]
    fn check(&self, address: u64, bytes: u64) -> Result<(), Bad> {
        if !address.is_multiple_of(bytes) {
            return Err(Bad::Alignment(address));
        }
        let (start, end) = self.last.get();
        if start <= address && address.saturating_add(bytes) <= end {
            return Ok(());
        }
        self.find(address, bytes)
    }

    #[cold]
    fn find(&self, address: u64, bytes: u64) -> Result<(), Bad> {
        let range = around(self.all, &(address..address.saturating_add(bytes)))
            .ok_or(Bad::Address(address))?;
        self.last.set((range.start, range.end));
        Ok(())
    }
}

/// Reads and writes of host memory. Threads of a launch, and of the host, access the same words, so
/// all accesses are atomic.
#[expect(
    unsafe_code,
    reason = "device memory is the host's memory, at addresses that kernels compute"
)]
impl Ranges<'_> {
    #[inline(always)]
    pub(super) fn read(&self, address: u64, bytes: u32) -> Result<u64, Bad> {
        self.check(address, bytes.into())?;
        let order = Ordering::Relaxed;
        Ok(match bytes {
            // SAFETY: inside a live allocation and aligned, by the check; every kernel access is
            // atomic.
            1 => unsafe { AtomicU8::from_ptr(address as *mut u8) }.load(order).into(),
            // SAFETY: as above.
            2 => unsafe { AtomicU16::from_ptr(address as *mut u16) }.load(order).into(),
            // SAFETY: as above.
            4 => unsafe { AtomicU32::from_ptr(address as *mut u32) }.load(order).into(),
            // SAFETY: as above.
            _ => unsafe { AtomicU64::from_ptr(address as *mut u64) }.load(order),
        })
    }

    /// A release store: the host may wait for the value.
    #[inline(always)]
    pub(super) fn write(&self, address: u64, bytes: u32, value: u64) -> Result<(), Bad> {
        self.check(address, bytes.into())?;
        let order = Ordering::Release;
        match bytes {
            // SAFETY: inside a live allocation and aligned, by the check; every kernel access is
            // atomic.
            1 => unsafe { AtomicU8::from_ptr(address as *mut u8) }.store(value as u8, order),
            // SAFETY: as above.
            2 => unsafe { AtomicU16::from_ptr(address as *mut u16) }.store(value as u16, order),
            // SAFETY: as above.
            4 => unsafe { AtomicU32::from_ptr(address as *mut u32) }.store(value as u32, order),
            // SAFETY: as above.
            _ => unsafe { AtomicU64::from_ptr(address as *mut u64) }.store(value, order),
        }
        Ok(())
    }

    /// Atomically updates a word and returns its old value.
    pub(super) fn change(
        &self,
        address: u64,
        is_long: bool,
        op: Atomic,
        with: u64,
    ) -> Result<u64, Bad> {
        self.check(address, if is_long { 8 } else { 4 })?;
        let order = Ordering::AcqRel;
        let new = |old: u64| Some(changed(op, old, with));
        if is_long {
            // SAFETY: inside a live allocation and aligned, by the check; every kernel access is
            // atomic.
            let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
            return Ok(word.fetch_update(order, Ordering::Acquire, new).unwrap_or_else(|old| old));
        }
        // SAFETY: as above.
        let word = unsafe { AtomicU32::from_ptr(address as *mut u32) };
        let new = |old: u32| new(old.into()).map(|value| value as u32);
        Ok(word.fetch_update(order, Ordering::Acquire, new).unwrap_or_else(|old| old).into())
    }
}

/// Result of an atomic operation.
pub(super) fn changed(op: Atomic, old: u64, with: u64) -> u64 {
    match op {
        Atomic::Add => old.wrapping_add(with),
        Atomic::MinU => old.min(with),
        Atomic::MaxU => old.max(with),
        Atomic::And => old & with,
        Atomic::Or => old | with,
        Atomic::Xor => old ^ with,
        Atomic::Exchange => with,
    }
}

/// Decoded generic address: state space and address within it.
pub(super) enum Place {
    Host(u64),
    Shared(u64),
    Local(u64),
}

pub(super) fn place(address: u64) -> Place {
    if address & GENERIC_SHARED != 0 {
        Place::Shared(address & !GENERIC_SHARED)
    } else if address & GENERIC_LOCAL != 0 {
        Place::Local(address & !GENERIC_LOCAL)
    } else {
        Place::Host(address)
    }
}

/// The shared memory of a cluster's blocks.
pub(super) struct Shared {
    bytes: Vec<u8>,
    ranks: u32,
    /// Bytes of each block.
    limit: u32,
}

impl Shared {
    pub(super) fn new(ranks: u32, limit: u32) -> Self {
        Self { bytes: vec![0; (ranks as usize) << WINDOW_BITS], ranks, limit }
    }

    /// Fills it with garbage: shared memory is undefined at a kernel's start.
    pub(super) fn scramble(&mut self) {
        for rank in 0..self.ranks as usize {
            let start = rank << WINDOW_BITS;
            self.bytes[start..start + self.limit as usize].fill(0xCD);
        }
    }

    #[inline(always)]
    fn check(&self, address: u64, bytes: u32) -> Result<usize, Bad> {
        let within = address & ((1 << WINDOW_BITS) - 1);
        if !address.is_multiple_of(u64::from(bytes)) {
            return Err(Bad::Alignment(address));
        }
        if address >> WINDOW_BITS >= self.ranks.into()
            || within + u64::from(bytes) > self.limit.into()
        {
            return Err(Bad::Address(address));
        }
        Ok(address as usize)
    }

    #[inline(always)]
    pub(super) fn read(&self, address: u64, bytes: u32) -> Result<u64, Bad> {
        let at = self.check(address, bytes)?;
        Ok(read_bytes(&self.bytes[at..at + bytes as usize]))
    }

    #[inline(always)]
    pub(super) fn write(&mut self, address: u64, bytes: u32, value: u64) -> Result<(), Bad> {
        let at = self.check(address, bytes)?;
        write_bytes(&mut self.bytes[at..at + bytes as usize], value);
        Ok(())
    }

    /// Reads 16 bytes: a row of a matrix.
    #[inline(always)]
    pub(super) fn row(&self, address: u64) -> Result<&[u8], Bad> {
        let at = self.check(address, 16)?;
        Ok(&self.bytes[at..at + 16])
    }

    /// The same for writing.
    #[inline(always)]
    pub(super) fn row_mut(&mut self, address: u64) -> Result<&mut [u8], Bad> {
        let at = self.check(address, 16)?;
        Ok(&mut self.bytes[at..at + 16])
    }

    pub(super) fn change(
        &mut self,
        address: u64,
        is_long: bool,
        op: Atomic,
        with: u64,
    ) -> Result<u64, Bad> {
        let bytes = if is_long { 8 } else { 4 };
        let old = self.read(address, bytes)?;
        self.write(address, bytes, changed(op, old, with))?;
        Ok(old)
    }
}

/// Reads a little-endian number of at most 8 bytes.
#[inline(always)]
pub(super) fn read_bytes(bytes: &[u8]) -> u64 {
    match bytes.len() {
        2 => u16::from_le_bytes(bytes.try_into().unwrap_or_default()).into(),
        4 => u32::from_le_bytes(bytes.try_into().unwrap_or_default()).into(),
        8 => u64::from_le_bytes(bytes.try_into().unwrap_or_default()),
        _ => bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)),
    }
}

#[inline(always)]
pub(super) fn write_bytes(bytes: &mut [u8], value: u64) {
    for (to, byte) in bytes.iter_mut().zip(value.to_le_bytes()) {
        *to = byte;
    }
}
