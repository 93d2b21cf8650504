//! Metadata defects that do not prevent loading, because walla does not use the value.

use super::{
    Element, Gguf, Value,
    error::shown,
    parse::{Entry, Stored},
};

/// Maximum number of warnings about one file; the rest is counted.
const MAX_WARNINGS: usize = 16;

impl Gguf {
    /// Metadata defects that did not prevent reading the file, in the file's order, at most 17. A
    /// defect is harmless as long as its key is not used; a reader that uses the key reports a
    /// [`MetadataError`](super::MetadataError).
    ///
    /// Scans all metadata but no tensor. Call it once per load.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let bytes = self.bytes.header();
        let of_entries = self.header.entries.iter().filter_map(|entry| self.warning(entry));
        let keys = self.header.keys_not_text.iter();
        let of_keys =
            keys.map(|key| format!("key {:?} is not UTF-8: it is ignored", shown(key.raw(bytes))));
        let mut all = of_entries.chain(self.duplicates()).chain(of_keys);
        let mut warnings: Vec<_> = all.by_ref().take(MAX_WARNINGS).collect();
        let count = all.count();
        if count > 0 {
            warnings.push(format!("{count} more defects in the metadata"));
        }
        warnings
    }

    fn warning(&self, entry: &Entry) -> Option<String> {
        let key = entry.key.raw(self.bytes.header());
        if key.is_empty() {
            return Some("the metadata has an empty key".to_owned());
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
        Some(format!("key {:?} holds {found}: it is ignored", shown(key)))
    }

    /// One warning for each duplicate key.
    fn duplicates(&self) -> impl Iterator<Item = String> {
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
            .filter_map(move |at| Some(format!("key {:?} appears twice", shown(key(Some(at))?))))
    }
}
