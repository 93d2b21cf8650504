use walla_types::CacheCommand;

/// A list of commands with a capacity fixed at construction.
///
/// An operation that needs more free entries is refused with
/// [`LedgerError::CommandsFull`](super::LedgerError::CommandsFull) and can be retried in the next
/// step. Maximum number of commands: one for an append, a copy or a removal of one sequence; for a
/// shift, two for each page that it writes and two more.
#[derive(Clone, Debug)]
pub struct KvCommands {
    commands: Vec<CacheCommand>,
    capacity: usize,
}

impl KvCommands {
    /// An empty list with a capacity of `capacity` commands.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { commands: Vec::with_capacity(capacity), capacity }
    }

    /// The commands in execution order.
    #[must_use]
    pub fn as_slice(&self) -> &[CacheCommand] {
        &self.commands
    }

    /// Number of free entries.
    #[must_use]
    pub fn free(&self) -> usize {
        self.capacity - self.commands.len()
    }

    /// Whether the list has no commands.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Removes all commands and keeps the allocation.
    pub fn clear(&mut self) {
        self.commands.clear();
    }

    /// Removes the first `count` commands, which a device has taken, and keeps the allocation.
    pub fn remove_first(&mut self, count: usize) {
        self.commands.drain(..count.min(self.commands.len()));
    }

    /// Adds a command. The caller has checked [`free`](Self::free).
    pub(super) fn push(&mut self, command: CacheCommand) {
        debug_assert!(self.free() > 0, "room is checked before an operation changes anything");
        self.commands.push(command);
    }
}
