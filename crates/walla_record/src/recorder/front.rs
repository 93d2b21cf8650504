//! The buffer that the frame side fills.

use super::BUFFER_CAPACITY;
use crate::error::RecordError;
use crate::format::{Clock, Item, Last, put_record};

/// The buffer that is being filled.
pub(super) struct Front {
    pub buffer: Vec<u8>,
    last: Last,
    /// Time of the first record in the buffer.
    pub begun_micros: u64,
}

impl Front {
    pub fn new() -> Self {
        Self { buffer: Vec::with_capacity(BUFFER_CAPACITY), last: Last::default(), begun_micros: 0 }
    }

    /// Appends a record. Without success nothing changes.
    pub fn put(&mut self, now: Clock, record: Item<'_>) -> Result<(), RecordError> {
        let mark = self.mark();
        if self.buffer.is_empty() {
            self.begun_micros = now.micros;
        }
        let put = put_record(&mut self.buffer, &mut self.last, now, record);
        put.inspect_err(|_| self.restore(mark))
    }

    /// The end of the records so far.
    pub fn mark(&self) -> (usize, Last) {
        (self.buffer.len(), self.last)
    }

    /// Removes the records behind a mark.
    pub fn restore(&mut self, (bytes, last): (usize, Last)) {
        self.buffer.truncate(bytes);
        self.last = last;
    }
}
