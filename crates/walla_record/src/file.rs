//! Writes chunks.

use std::io::{self, Write};

use crate::format::{MAGIC, VERSION, checksum};

/// Level of the compression. Higher ones take three times as long for a tenth less.
const LEVEL: u8 = 3;

/// Writes the chunks of a recording.
#[derive(Debug)]
pub(crate) struct ChunkWriter<W> {
    target: W,
    /// Number of the next chunk.
    number: u32,
    has_begun: bool,
    /// Bytes written.
    pub bytes: u64,
}

impl<W: Write> ChunkWriter<W> {
    pub fn new(target: W) -> Self {
        Self { target, number: 0, has_begun: false, bytes: 0 }
    }

    pub fn target(&mut self) -> &mut W {
        &mut self.target
    }

    /// Writes the begin of the file, if it is not written.
    pub fn begin(&mut self) -> io::Result<()> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.target.write_all(MAGIC)?;
            self.target.write_all(&VERSION.to_le_bytes())?;
            self.bytes += MAGIC.len() as u64 + 2;
        }
        Ok(())
    }

    /// Writes records as one chunk, in one call, so that a crash leaves it whole or cut.
    pub fn write(&mut self, records: &[u8]) -> io::Result<()> {
        self.begin()?;
        if records.is_empty() {
            return Ok(());
        }
        let data = miniz_oxide::deflate::compress_to_vec(records, LEVEL);
        // Both are far below 4 GiB: the caller limits the records of a chunk.
        let lengths = [data.len() as u32, records.len() as u32];
        let mut chunk = lengths.map(u32::to_le_bytes).concat();
        chunk.extend(checksum(self.number, lengths, &data).to_le_bytes());
        chunk.extend(data);
        self.target.write_all(&chunk)?;
        self.number += 1;
        self.bytes += chunk.len() as u64;
        Ok(())
    }

    /// Writes the last records.
    pub fn finish(&mut self, records: &[u8]) -> io::Result<()> {
        self.write(records)?;
        self.target.flush()
    }
}
