//! Entries: texts with game time, importance and tags.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{EntryError, StoreLimits};

/// Id of an entry in its store: ascending in the order of [`add`](crate::Store::add), never used
/// twice, equal after save and load.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct EntryId(u64);

impl EntryId {
    /// The id with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A small set of names: sorted, without duplicates. Names are compared byte by byte.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Vec<Arc<str>>", into = "Vec<Arc<str>>")]
pub struct Tags(Arc<[Arc<str>]>);

impl Tags {
    /// Whether both sets have a name in common.
    #[must_use]
    pub fn intersects(&self, others: &[Arc<str>]) -> bool {
        self.0.iter().any(|name| others.contains(name))
    }

    /// Total length of the names in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|name| name.len() as u64).sum()
    }
}

impl Deref for Tags {
    type Target = [Arc<str>];

    fn deref(&self) -> &[Arc<str>] {
        &self.0
    }
}

impl<T: Into<Arc<str>>> FromIterator<T> for Tags {
    fn from_iter<I: IntoIterator<Item = T>>(names: I) -> Self {
        let mut names: Vec<Arc<str>> = names.into_iter().map(Into::into).collect();
        names.sort_unstable();
        names.dedup();
        Self(names.into())
    }
}

impl From<Vec<Arc<str>>> for Tags {
    fn from(names: Vec<Arc<str>>) -> Self {
        names.into_iter().collect()
    }
}

impl From<Tags> for Vec<Arc<str>> {
    fn from(tags: Tags) -> Self {
        tags.to_vec()
    }
}

/// A text with the data that decides who finds it and how long it stays.
///
/// Each field is written, also an empty one: formats of serde without names read them by position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The text: not empty, at most [`StoreLimits::max_entry_bytes`] with all names.
    pub text: Arc<str>,
    /// Game time at which the agent learned it. Lore has time zero.
    pub time: Duration,
    /// 0 to 1. Default: 0.5.
    pub importance: f32,
    /// Topics, for filters. At most [`StoreLimits::max_tags`].
    #[serde(default)]
    pub tags: Tags,
    /// A reader must have one of these tags. Empty: everyone may read the entry.
    #[serde(default)]
    pub visible_to: Tags,
}

impl Entry {
    /// Importance of an entry that states none.
    pub const IMPORTANCE: f32 = 0.5;

    /// An entry with time zero and the default importance, without tags, visible to everyone.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self {
            text: text.into(),
            time: Duration::ZERO,
            importance: Self::IMPORTANCE,
            tags: Tags::default(),
            visible_to: Tags::default(),
        }
    }

    /// Sets the game time.
    #[must_use]
    pub fn at(self, time: Duration) -> Self {
        Self { time, ..self }
    }

    /// Sets the importance, 0 to 1.
    #[must_use]
    pub fn importance(self, importance: f32) -> Self {
        Self { importance, ..self }
    }

    /// Sets the topics.
    #[must_use]
    pub fn tags<T: Into<Arc<str>>>(self, names: impl IntoIterator<Item = T>) -> Self {
        Self { tags: names.into_iter().collect(), ..self }
    }

    /// Sets the tags that permit a reader: one of them is enough.
    #[must_use]
    pub fn visible_to<T: Into<Arc<str>>>(self, names: impl IntoIterator<Item = T>) -> Self {
        Self { visible_to: names.into_iter().collect(), ..self }
    }

    /// Length of text and names in bytes, the unit of [`StoreLimits::max_bytes`].
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.text.len() as u64 + self.tags.bytes() + self.visible_to.bytes()
    }

    /// Whether a reader with these tags may read the entry.
    #[must_use]
    pub fn is_visible_to(&self, reader: &[Arc<str>]) -> bool {
        self.visible_to.is_empty() || self.visible_to.intersects(reader)
    }

    /// Checks the entry against the limits of a store.
    pub(crate) fn check(&self, limits: &StoreLimits) -> Result<(), EntryError> {
        if self.text.trim().is_empty() {
            return Err(EntryError::Empty);
        }
        let (bytes, max_bytes) = (self.bytes(), u64::from(limits.max_entry_bytes));
        if bytes > max_bytes {
            return Err(EntryError::TooLong { bytes, max_bytes });
        }
        if !(0.0..=1.0).contains(&self.importance) {
            return Err(EntryError::Importance { given: self.importance });
        }
        for names in [&self.tags, &self.visible_to] {
            if names.len() > limits.max_tags as usize {
                return Err(EntryError::TooManyTags { given: names.len(), most: limits.max_tags });
            }
            if names.iter().any(|name| name.trim().is_empty()) {
                return Err(EntryError::EmptyTag);
            }
        }
        Ok(())
    }
}
