//! Admission of allocations.

use walla_device::{DeviceError, MemoryUse};

use crate::system::SystemMemory;

/// Sum of allocations after which the system's available memory is queried again.
const ASK_BYTES: u64 = 16 << 20;
/// Divisor: this part of the available memory is left to other users, because the game also
/// allocates.
const RESERVED_PART: u64 = 16;

/// Refuses allocations beyond a ceiling, or beyond the memory that the machine has available. Such
/// an allocation would succeed, and the system would kill some process later.
#[derive(Debug, Default)]
pub(crate) struct MemoryBudget {
    /// Ceiling of the device's memory, in bytes.
    pub max_memory_bytes: Option<u64>,
    /// Bytes allocated since the last query.
    unasked_bytes: u64,
}

impl MemoryBudget {
    pub(crate) fn new(max_memory_bytes: Option<u64>) -> Self {
        Self { max_memory_bytes, unasked_bytes: 0 }
    }

    /// Admits an allocation in addition to the memory that the device holds.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] if it does not fit.
    pub(crate) fn take(
        &mut self,
        held: MemoryUse,
        what: &str,
        wanted_bytes: u64,
    ) -> Result<(), DeviceError> {
        self.take_of(held, what, wanted_bytes, &SystemMemory::now)
    }

    fn take_of(
        &mut self,
        held: MemoryUse,
        what: &str,
        wanted_bytes: u64,
        ask: &dyn Fn() -> Option<SystemMemory>,
    ) -> Result<(), DeviceError> {
        let held = held.weight_bytes + held.cache_bytes + held.workspace_bytes + held.host_bytes;
        let mut free_bytes = self.max_memory_bytes.map_or(u64::MAX, |max| max.saturating_sub(held));
        let unasked_bytes = self.unasked_bytes.saturating_add(wanted_bytes);
        let asks = unasked_bytes >= ASK_BYTES;
        if let Some(memory) = asks.then(ask).flatten() {
            free_bytes = free_bytes.min(memory.available - memory.available / RESERVED_PART);
        }
        if wanted_bytes > free_bytes {
            return Err(DeviceError::OutOfMemory {
                what: what.to_owned(),
                wanted_bytes,
                free_bytes,
            });
        }
        self.unasked_bytes = if asks { 0 } else { unasked_bytes };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Allocates `pieces` on a machine with `available` bytes. Returns the results and the number
    /// of queries.
    fn take_all(pieces: &[u64], available: u64) -> (Vec<bool>, u32) {
        let (mut room, taken, asked) = (MemoryBudget::default(), Cell::new(0), Cell::new(0));
        let ask = || {
            asked.set(asked.get() + 1);
            Some(SystemMemory { total: 1 << 40, available: available - taken.get() })
        };
        let took = pieces.iter().map(|piece| {
            let took = room.take_of(MemoryUse::default(), "w", *piece, &ask).is_ok();
            taken.set(taken.get() + if took { *piece } else { 0 });
            took
        });
        (took.collect(), asked.get())
    }

    #[test]
    fn small_allocations_share_a_query_of_free_memory() {
        let (took, asked) = take_all(&[8 * MIB; 12], 64 * MIB);
        // Seven take 56 MiB; a sixteenth of the rest is reserved.
        assert_eq!(took.iter().filter(|took| **took).count(), 7, "{took:?}");
        assert!(took[..7].iter().all(|took| *took) && asked >= 5);
        assert_eq!(take_all(&[MIB; 15], 64 * MIB).1, 0);
    }

    #[test]
    fn a_sixteenth_of_memory_is_reserved() {
        assert_eq!(take_all(&[61 * MIB], 64 * MIB).0, [false]);
        assert_eq!(take_all(&[60 * MIB], 64 * MIB).0, [true]);
    }

    #[test]
    fn unknown_free_memory_refuses_nothing() {
        let mut room = MemoryBudget::default();
        room.take_of(MemoryUse::default(), "w", 1 << 50, &|| None).unwrap();
        let mut room = MemoryBudget::new(Some(MIB));
        let error = room.take_of(MemoryUse::default(), "w", MIB + 1, &|| None).unwrap_err();
        assert!(matches!(error, DeviceError::OutOfMemory { free_bytes: MIB, .. }), "{error}");
    }
}
