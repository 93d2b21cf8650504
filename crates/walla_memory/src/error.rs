//! Errors of stores, vectors, searches, files.

use thiserror::Error;

use crate::EntryId;

/// An entry that a store refuses. The store is unchanged.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum EntryError {
    /// The text is empty or white space.
    #[error("an entry needs a text")]
    Empty,
    /// Shorten the text, or raise `max_entry_bytes`.
    #[error("an entry of {bytes} bytes, at most {max_bytes} are allowed")]
    TooLong {
        /// Bytes of text and names.
        bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// Not finite, or not in 0 to 1.
    #[error("importance {given} is not in 0 to 1")]
    Importance {
        /// The value.
        given: f32,
    },
    /// Remove tags, or raise `max_tags`.
    #[error("{given} tags, at most {most} are allowed")]
    TooManyTags {
        /// Number of tags, or of names in `visible_to`.
        given: usize,
        /// The limit.
        most: u32,
    },
    /// A tag or a name in `visible_to` is empty or white space.
    #[error("a tag is empty")]
    EmptyTag,
    /// The limits of the store allow no entry, or fewer bytes in total than this entry has.
    #[error("the limits of the store allow no entry of {bytes} bytes")]
    NoRoom {
        /// Bytes of text and names.
        bytes: u64,
    },
    /// All ids are used: only a store that was loaded with a forged number gets here.
    #[error("the store has used all ids")]
    NoMoreIds,
}

/// A vector that a store refuses. The store is unchanged.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum VectorError {
    /// The entry does not exist; it may have been evicted since the vector was requested.
    #[error("no entry {id}")]
    NoEntry {
        /// The id.
        id: EntryId,
    },
    /// The vector is of another model than the other vectors of the store.
    #[error("a vector of {given} dimensions, the store has vectors of {expected}")]
    Length {
        /// Length of the vector.
        given: usize,
        /// Dimensions of the store.
        expected: usize,
    },
    /// No dimension at all, or more than [`MAX_DIMENSIONS`](crate::MAX_DIMENSIONS).
    #[error("vectors of {given} dimensions are not supported: 1 to {most}")]
    Dimensions {
        /// Length of the vector.
        given: usize,
        /// [`MAX_DIMENSIONS`](crate::MAX_DIMENSIONS).
        most: usize,
    },
    /// NaN or infinite.
    #[error("component {index} of the vector is not finite")]
    NotFinite {
        /// Index of the first such component.
        index: usize,
    },
    /// All components are zero: there is no direction.
    #[error("the vector is zero")]
    Zero,
    /// A model name longer than 256 bytes.
    #[error("a model name of {bytes} bytes, at most 256 are allowed")]
    ModelName {
        /// Length of the name.
        bytes: usize,
    },
}

/// A search that is not possible.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SearchError {
    /// The query vector does not fit the vectors of a store.
    #[error("query vector for store {store}: {error}")]
    Vector {
        /// Index of the store in the search.
        store: usize,
        /// The reason.
        error: VectorError,
    },
    /// A weight is negative or not finite.
    #[error("weight {name} is {given}: it must be finite and not negative")]
    Weight {
        /// Field of [`Weights`](crate::Weights).
        name: &'static str,
        /// The value.
        given: f32,
    },
}

/// A saved store that cannot be loaded.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum LoadError {
    /// Saved by a newer version of this crate, or no saved store.
    #[error("version {given} of saved stores is not supported, this program reads up to {newest}")]
    Version {
        /// Version in the data.
        given: u32,
        /// [`SavedStore::VERSION`](crate::SavedStore::VERSION).
        newest: u32,
    },
    /// Ids must ascend, below the next id of the store, which is below 2^53.
    #[error("id {id} is out of order or out of range")]
    Id {
        /// The first such id.
        id: EntryId,
    },
    /// An entry that the limits do not allow.
    #[error("entry {id}: {error}")]
    Entry {
        /// Its id.
        id: EntryId,
        /// The reason.
        error: EntryError,
    },
    /// A vector that does not fit.
    #[error("vector of entry {id}: {error}")]
    Vector {
        /// Id of the entry.
        id: EntryId,
        /// The reason.
        error: VectorError,
    },
    /// The length of a saved vector is not 1 within 0.001.
    #[error("vector of entry {id} has length {length}, not 1")]
    NotNormalized {
        /// Id of the entry.
        id: EntryId,
        /// Euclidean length.
        length: f64,
    },
    /// The model name of the vectors.
    #[error(transparent)]
    Model(VectorError),
}

/// A lore file that cannot be read. Lines count from 1.
#[derive(Debug, Error)]
pub enum LoreError {
    /// An entry that the limits do not allow.
    #[error("line {line}: {error}")]
    Entry {
        /// First line of the paragraph, or for JSON the index of the entry from 1.
        line: usize,
        /// The reason.
        error: EntryError,
    },
    /// A header names a field that does not exist.
    #[error("line {line}: unknown field `{field}`: known are tags, visible_to, importance")]
    UnknownField {
        /// The line.
        line: usize,
        /// The name, shortened to 40 characters.
        field: String,
    },
    /// A header has a field without `:` or a field twice, or a header ends without `]`. A line of
    /// text that begins with a bracket needs a backslash before it.
    #[error(
        "line {line}: a header reads [tags: a, b; visible_to: c; importance: 0.8]; a text that \
         begins with a bracket needs a backslash before it"
    )]
    Header {
        /// The line.
        line: usize,
    },
    /// A line behind the first one of a paragraph begins with `[`.
    #[error(
        "line {line}: a header is the first line of an entry: put a blank line before it, or a \
         backslash before `[` if it is text"
    )]
    HeaderInside {
        /// The line.
        line: usize,
    },
    /// The importance is no number.
    #[error("line {line}: the importance is no number")]
    Number {
        /// The line.
        line: usize,
    },
    /// A header without a text.
    #[error("line {line}: a header without a text")]
    NoText {
        /// The line.
        line: usize,
    },
    /// More entries or bytes than the limits allow. Lore is never evicted.
    #[error("line {line}: the limits of the store are {max_entries} entries and {max_bytes} bytes")]
    Full {
        /// First line of the paragraph that does not fit, or index of the JSON entry from 1.
        line: usize,
        /// The limit of entries.
        max_entries: u32,
        /// The limit of bytes.
        max_bytes: u64,
    },
    /// The JSON cannot be parsed; the error names line and column.
    #[error("lore as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Changes that were not sent. They are kept, and the next update sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UpdateError {
    /// Too many changes wait for the thread: try again later.
    #[error("{queued} bytes of changes wait, at most {most} are allowed")]
    Full {
        /// Bytes that wait.
        queued: usize,
        /// [`RecallOptions::max_queued_bytes`](crate::RecallOptions::max_queued_bytes).
        most: usize,
    },
    /// The thread could not be started, or has ended by a fault: asks have no memories.
    #[error("the thread of memories has ended")]
    Ended,
}
