//! Metadata defects that do not prevent loading, because walla does not use the value.

use super::{
    Element, Gguf, Value,
    error::shown,
    parse::{Entry, Stored},
};

/// Maximum number of warnings about one file; the rest is counted.
const MAX_WARNINGS: usize = 16;

/// A defect in a file's metadata. It is harmless as long as the key is not used; a reader that uses
/// the key reports a [`MetadataError`](super::MetadataError).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufWarning {
    /// The value violates the format or has an unsupported type.
    #[error("key {key:?} holds {found}: it is ignored")]
    Value {
        /// The key; truncated if it is long.
        key: String,
        /// Type and defect: "a STRING that is not UTF-8".
        found: String,
    },
    /// The key has several values.
    #[error("key {key:?} appears twice")]
    Duplicate {
        /// The key; truncated if it is long.
        key: String,
    },
    /// The key is not UTF-8, so its value is skipped.
    #[error("key {key:?} is not UTF-8: it is ignored")]
    KeyNotText {
        /// The key, with U+FFFD for bytes that are not UTF-8.
        key: String,
    },
    /// The key is empty.
    #[error("the metadata has an empty key")]
    EmptyKey,
    /// Further defects, which are not listed.
    #[error("{count} more defects in the metadata")]
    More {
        /// Their number.
        count: usize,
    },
}

impl Gguf {
    /// Metadata defects that did not prevent reading the file, in the file's order, at most 17.
    ///
    /// Scans all metadata but no tensor. Call it once per load.
    #[must_use]
    pub fn warnings(&self) -> Vec<GgufWarning> {
        let bytes = self.bytes.header();
        let of_entries = self.header.entries.iter().filter_map(|entry| self.warning(entry));
        let keys = self.header.keys_not_text.iter();
        let of_keys = keys.map(|key| GgufWarning::KeyNotText { key: shown(key.raw(bytes)) });
        let mut all = of_entries.chain(self.duplicates()).chain(of_keys);
        let mut warnings: Vec<_> = all.by_ref().take(MAX_WARNINGS).collect();
        let count = all.count();
        if count > 0 {
            warnings.push(GgufWarning::More { count });
        }
        warnings
    }

    fn warning(&self, entry: &Entry) -> Option<GgufWarning> {
        let key = entry.key.raw(self.bytes.header());
        if key.is_empty() {
            return Some(GgufWarning::EmptyKey);
        }
        let value = self.value(entry.value);
        let found = match (value, entry.value) {
            (Value::Unreadable(value), _) => value.to_string(),
            (Value::Array(array), _) if array.not_text().is_some() => value.describe(),
            (Value::Array(array), Stored::Array { element: Element::Bool, .. }) => {
                let odd = array.iter().find(|value| !matches!(value, Value::Bool(_)))?;
                format!("{} with {}", value.describe(), odd.describe())
            }
            _ => return None,
        };
        Some(GgufWarning::Value { key: shown(key), found })
    }

    /// One warning for each duplicate key.
    fn duplicates(&self) -> impl Iterator<Item = GgufWarning> {
        let bytes = self.bytes.header();
        let order = &self.header.entries_by_key;
        let key = move |at: Option<usize>| {
            let entry = self.header.entries.get(*order.get(at?)? as usize)?;
            Some(entry.key.raw(bytes))
        };
        let is_second = move |at: usize| {
            let same = |other: Option<usize>| key(other).is_some() && key(other) == key(Some(at));
            same(at.checked_sub(1)) && !same(at.checked_sub(2))
        };
        (0..order.len())
            .filter(move |at| is_second(*at))
            .filter_map(move |at| Some(GgufWarning::Duplicate { key: shown(key(Some(at))?) }))
    }
}
