//! The buffer that the frame side fills.

use super::BUFFER_CAPACITY;
use crate::error::RecordError;
use crate::format::{Clock, Ids, Raw, Writer, put_record};
use crate::recording::check_size;

/// The buffer that is being filled.
pub(super) struct Front {
    pub buffer: Vec<u8>,
    ids: Ids,
    /// Time of the latest record.
    last: Clock,
    /// Time of the first record in the buffer.
    pub begun_micros: u64,
}

impl Front {
    pub fn new() -> Self {
        Self {
            buffer: Vec::with_capacity(BUFFER_CAPACITY),
            ids: Ids::default(),
            last: Clock::default(),
            begun_micros: 0,
        }
    }

    /// Appends a record. Without success nothing changes.
    pub fn put(&mut self, now: Clock, record: Raw<'_>) -> Result<(), RecordError> {
        let mark = self.mark();
        if self.buffer.is_empty() {
            self.begun_micros = now.micros;
        }
        let Self { buffer, ids, last, .. } = self;
        let is_known = put_record(&mut Writer(buffer), (ids, last), now, record);
        let sized = check_size(buffer.len() - mark.bytes);
        let put = if is_known { sized } else { Err(RecordError::UnknownCommand) };
        put.inspect_err(|_| self.restore(mark))
    }

    pub fn mark(&self) -> Mark {
        Mark { bytes: self.buffer.len(), ids: self.ids.clone(), last: self.last }
    }

    /// Removes the records behind a mark.
    pub fn restore(&mut self, mark: Mark) {
        self.buffer.truncate(mark.bytes);
        (self.ids, self.last) = (mark.ids, mark.last);
    }
}

/// A position in the buffer.
pub(super) struct Mark {
    pub bytes: usize,
    ids: Ids,
    last: Clock,
}
