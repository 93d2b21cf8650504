//! Any sequence of operations against a naive model: a list of entries.

use std::time::Duration;

use proptest::prelude::*;
use walla_memory::{Entry, EntryId, Query, Store, StoreLimits, search};

#[derive(Clone, Debug)]
enum Step {
    Add(Entry),
    /// Removes the id with this number, modulo the number of ids.
    Remove(u64),
    Expire(u64),
    SetVector(u64, [i8; 3]),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    // Few values, so that retentions are equal.
    let entry =
        ("[ab水]{1,4}( mill| mills| 水車)?", 0_u64..4, 0_u8..4).prop_map(|(text, time, of)| {
            let time = Duration::from_hours(69 * time);
            Entry::new(text).at(time).importance(f32::from(of) / 4.0).tags(["t"])
        });
    prop_oneof![
        8 => entry.prop_map(Step::Add),
        3 => any::<u64>().prop_map(Step::Remove),
        1 => (0_u64..600).prop_map(Step::Expire),
        3 => (any::<u64>(), any::<[i8; 3]>()).prop_map(|(id, vector)| Step::SetVector(id, vector)),
        1 => Just(Step::Clear),
    ]
}

/// The specification, without any index.
struct Model {
    limits: StoreLimits,
    entries: Vec<(u64, Entry)>,
    next_id: u64,
}

impl Model {
    fn bytes(&self) -> u64 {
        self.entries.iter().map(|(_, entry)| entry.bytes()).sum()
    }

    fn add(&mut self, entry: &Entry) -> Vec<u64> {
        let mut evicted = Vec::new();
        while self.entries.len() + 1 > self.limits.max_entries as usize
            || self.bytes() + entry.bytes() > self.limits.max_bytes
        {
            // The values of a far future are all tiny, so they are compared at the last time.
            let now = Duration::from_hours(69 * 3);
            let value = |of: &Entry| self.limits.retention(of, now);
            let lowest = (0..self.entries.len()).min_by(|&a, &b| {
                let ((id_a, a), (id_b, b)) = (&self.entries[a], &self.entries[b]);
                value(a).total_cmp(&value(b)).then(id_a.cmp(id_b))
            });
            evicted.push(self.entries.remove(lowest.unwrap()).0);
        }
        self.entries.push((self.next_id, entry.clone()));
        self.next_id += 1;
        evicted
    }

    fn expire(&mut self, now: Duration) -> Vec<u64> {
        let is_old = |entry: &Entry| self.limits.is_expired(entry, now);
        let mut old: Vec<_> = self.entries.iter().filter(|(_, of)| is_old(of)).collect();
        old.sort_by_key(|(id, entry)| (entry.time, *id));
        let old: Vec<u64> = old.into_iter().map(|(id, _)| *id).collect();
        self.entries.retain(|(id, _)| !old.contains(id));
        old
    }
}

fn numbers(entries: &[(EntryId, Entry)]) -> Vec<u64> {
    entries.iter().map(|(id, _)| id.get()).collect()
}

proptest! {
    #[test]
    fn a_store_is_its_model(steps in prop::collection::vec(step(), 0..80)) {
        let limits = StoreLimits {
            max_entries: 6,
            max_bytes: 60,
            max_age: Some(Duration::from_hours(300)),
            ..Default::default()
        };
        let mut store = Store::new(limits.clone());
        let mut model = Model { limits: limits.clone(), entries: Vec::new(), next_id: 0 };
        for step in steps {
            match step {
                Step::Add(entry) => {
                    let added = store.add(entry.clone()).unwrap();
                    prop_assert_eq!(added.id.get(), model.next_id);
                    prop_assert_eq!(numbers(&added.evicted), model.add(&entry));
                }
                Step::Remove(number) => {
                    let id = number % (model.next_id + 1);
                    let at = model.entries.iter().position(|(of, _)| *of == id);
                    let expected = at.map(|at| model.entries.remove(at).1);
                    prop_assert_eq!(store.remove(EntryId::new(id)), expected);
                }
                Step::Expire(hours) => {
                    let now = Duration::from_hours(hours);
                    prop_assert_eq!(numbers(&store.expire(now)), model.expire(now));
                }
                Step::SetVector(number, vector) => {
                    let id = number % (model.next_id + 1);
                    let is_there = model.entries.iter().any(|(of, _)| *of == id);
                    let is_set = store.set_vector(EntryId::new(id), &vector.map(f32::from)).is_ok();
                    prop_assert_eq!(is_set, is_there && vector != [0; 3]);
                }
                Step::Clear => {
                    store.clear();
                    model.entries.clear();
                }
            }
            let entries: Vec<_> = store.iter().map(|(id, of)| (id.get(), of.clone())).collect();
            prop_assert_eq!(&entries, &model.entries);
            prop_assert_eq!(store.bytes(), model.bytes());
            prop_assert_eq!(store.vectors_len() + store.without_vector().count(), store.len());
        }
        // A store with the same content but another history gives the same results, bit by bit.
        let saved = store.save(true);
        let rebuilt = Store::load(&saved, limits).unwrap();
        for text in ["mill", "a 水", "b mills 水車", "ab aa"] {
            let vector = Some([1.0, -2.0, 0.5].as_slice());
            for vector in [None, vector] {
                let query = Query { vector, most: 10, ..Query::new(text) };
                prop_assert_eq!(search(&[&store], &query), search(&[&rebuilt], &query));
            }
        }
    }
}
