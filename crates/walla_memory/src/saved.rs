//! Stores in saved games.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::store::ID_END;
use crate::vectors::length;
use crate::{Entry, EntryId, LoadError, Store, StoreLimits, VectorError};

/// Content of a [`Store`] for a saved game. Any format of serde can write it.
///
/// The index is not part of it: [`Store::load`] rebuilds it. Limits are not part of it either,
/// because they belong to the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedStore {
    version: u32,
    next_id: u64,
    entries: Vec<SavedEntry>,
    #[serde(default)]
    vectors: Option<SavedVectors>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedEntry {
    id: EntryId,
    entry: Entry,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedVectors {
    model: Option<Arc<str>>,
    rows: Vec<SavedVector>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedVector {
    id: EntryId,
    /// Length 1.
    values: Vec<f32>,
}

impl SavedStore {
    /// Version of the data that this crate writes. It reads this one and older ones.
    pub const VERSION: u32 = 1;
}

impl Store {
    /// The content for a saved game. Vectors take `dimensions` numbers for each entry; without
    /// them, a program computes them again from the texts ([`Store::without_vector`]).
    #[must_use]
    pub fn save(&self, with_vectors: bool) -> SavedStore {
        let entries = self.iter().map(|(id, entry)| SavedEntry { id, entry: entry.clone() });
        let rows = self
            .iter()
            .filter_map(|(id, _)| Some(SavedVector { id, values: self.vector(id)?.to_vec() }));
        SavedStore {
            version: SavedStore::VERSION,
            next_id: self.next_id(),
            entries: entries.collect(),
            vectors: with_vectors.then(|| SavedVectors {
                model: self.vector_model().map(Into::into),
                rows: rows.collect(),
            }),
        }
    }

    /// A store with the saved content. If `limits` are lower than those at the time of saving, the
    /// surplus is evicted as in [`Store::add`]. Memory is proportional to the saved data.
    ///
    /// # Errors
    /// [`LoadError`]: the data is invalid, or an entry alone exceeds the limits.
    pub fn load(saved: &SavedStore, limits: StoreLimits) -> Result<Self, LoadError> {
        let mut store = Self::load_without_index(saved, limits)?;
        store.build_index();
        Ok(store)
    }

    /// As [`load`](Self::load), [without an index of words](Self::without_index).
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load_without_index(saved: &SavedStore, limits: StoreLimits) -> Result<Self, LoadError> {
        let (given, newest) = (saved.version, SavedStore::VERSION);
        if given == 0 || given > newest {
            return Err(LoadError::Version { given, newest });
        }
        if saved.next_id > ID_END {
            return Err(LoadError::Id { id: EntryId::new(saved.next_id) });
        }
        let mut store = Self::without_index(limits);
        store.set_next_id(saved.next_id);
        let mut least = 0;
        for SavedEntry { id, entry } in &saved.entries {
            check_id(*id, &mut least, saved.next_id)?;
            let check = entry.check(store.limits());
            check.map_err(|error| LoadError::Entry { id: *id, error })?;
            store.insert(*id, entry.clone());
        }
        if let Some(vectors) = &saved.vectors {
            load_vectors(&mut store, vectors)?;
        }
        store.make_room(0, 0);
        Ok(store)
    }
}

fn load_vectors(store: &mut Store, saved: &SavedVectors) -> Result<(), LoadError> {
    match &saved.model {
        Some(name) => store.set_vector_model(name).map(drop).map_err(LoadError::Model)?,
        None => store.clear_vectors(),
    }
    let mut least = 0;
    for SavedVector { id, values } in &saved.rows {
        check_id(*id, &mut least, store.next_id())?;
        let wrong = |error| LoadError::Vector { id: *id, error };
        if let Some(index) = values.iter().position(|component| !component.is_finite()) {
            return Err(wrong(VectorError::NotFinite { index }));
        }
        let length = length(values);
        if !values.is_empty() && (length - 1.0).abs() > 1e-3 {
            return Err(LoadError::NotNormalized { id: *id, length });
        }
        store.set_unit(*id, values).map_err(wrong)?;
    }
    Ok(())
}

/// Ids ascend and are below `end`.
fn check_id(id: EntryId, least: &mut u64, end: u64) -> Result<(), LoadError> {
    if id.get() < *least || id.get() >= end {
        return Err(LoadError::Id { id });
    }
    *least = id.get() + 1;
    Ok(())
}
