//! Errors.

use std::path::PathBuf;

use crate::format::Defect;

/// Why a recording has ended early, or did not begin. The engine continues.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The file cannot be created or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The path names a file that is no recording. It is not replaced.
    #[error("{}: the file is no recording, so it is not replaced", path.display())]
    NotARecording {
        /// The file.
        path: PathBuf,
    },
    /// Another recording is being written to the file, by this program or another one.
    #[error("{}: another recording is being written to this file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The disk is slower than the session: the queue to the thread that writes is full.
    #[error("the disk is too slow for the recording: {bytes} bytes wait")]
    Behind {
        /// Bytes in the queue.
        bytes: usize,
    },
    /// A command or an event is larger than a record may be.
    #[error("a record has {bytes} bytes, at most {max_bytes} are allowed")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// A command of a kind that this version cannot record.
    #[error("a command that cannot be recorded")]
    UnknownCommand,
    /// The operating system could not start the thread that writes.
    #[error("a thread cannot be started: {0}")]
    Thread(String),
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file; empty for another source of bytes.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The file does not begin as a recording does.
    #[error("no recording of walla")]
    NotARecording,
    /// The recording has a format of another version.
    #[error("a recording of format {found}; this version reads format {known}")]
    Version {
        /// Version of the format.
        found: u32,
        /// The version that this crate reads.
        known: u32,
    },
    /// A chunk that is not the last one is damaged, or the first one: later chunks refer to it, so
    /// nothing can be read.
    #[error("{}chunk {chunk} at byte {at} is damaged: {defect}", whole_loss(*chunk))]
    Damaged {
        /// Number of the chunk, from 0.
        chunk: u32,
        /// Its position in the file.
        at: u64,
        /// The defect.
        defect: Defect,
    },
    /// The recording exceeds a limit of the reader.
    #[error("the recording exceeds a limit: more than {max} {what}")]
    TooLarge {
        /// The limited quantity.
        what: &'static str,
        /// The limit.
        max: u64,
    },
}

fn whole_loss(chunk: u32) -> &'static str {
    if chunk == 0 { "no part of the recording is complete: " } else { "" }
}
