//! Save and load, with valid and hostile data.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use walla_memory::{
    Entry, EntryError, EntryId, LoadError, Query, SavedStore, Store, StoreLimits, VectorError,
    search,
};

fn example() -> Store {
    let mut store = Store::default();
    for number in 0..5_u64 {
        let entry = Entry::new(format!("mill {number}"))
            .at(Duration::new(number, 5))
            .importance(0.1)
            .tags(["t"])
            .visible_to(["v"]);
        let id = store.add(entry).unwrap().id;
        store.set_vector(id, &[1.0, number as f32, 0.3]).unwrap();
    }
    store.set_vector_model("m").unwrap();
    store.set_vector(EntryId::new(2), &[1.0, 2.0]).unwrap();
    assert!(store.remove(EntryId::new(4)).is_some());
    assert!(store.remove(EntryId::new(1)).is_some());
    store
}

fn load(value: Value) -> Result<Store, LoadError> {
    let saved: SavedStore = serde_json::from_value(value).unwrap();
    Store::load(&saved, StoreLimits::default())
}

#[test]
fn a_loaded_store_is_the_saved_one() {
    let store = example();
    for with_vectors in [true, false] {
        let text = serde_json::to_string(&store.save(with_vectors)).unwrap();
        let saved: SavedStore = serde_json::from_str(&text).unwrap();
        let mut loaded = Store::load(&saved, StoreLimits::default()).unwrap();
        assert!(loaded.iter().eq(store.iter()));
        assert_eq!(loaded.bytes(), store.bytes());
        assert_eq!(loaded.vectors_len(), usize::from(with_vectors));
        assert_eq!(loaded.vector_model(), with_vectors.then_some("m"));
        assert_eq!(loaded.save(with_vectors), store.save(with_vectors));
        assert_eq!(loaded.add(Entry::new("x")).unwrap().id, EntryId::new(5), "ids go on");
    }
}

#[test]
fn the_format_is_stable() {
    let mut store = Store::default();
    let _ = store.add(Entry::new("mill").at(Duration::new(3, 4)).tags(["t"])).unwrap();
    store.set_vector_model("m").unwrap();
    store.set_vector(EntryId::new(0), &[0.0, 2.0]).unwrap();
    let expected = json!({
        "version": 1,
        "next_id": 1,
        "entries": [{"id": 0, "entry": {
            "text": "mill",
            "time": {"secs": 3, "nanos": 4},
            "importance": 0.5,
            "tags": ["t"],
            "visible_to": [],
        }}],
        "vectors": {"model": "m", "rows": [{"id": 0, "values": [0.0, 1.0]}]},
    });
    assert_eq!(serde_json::to_value(store.save(true)).unwrap(), expected);
    assert!(load(expected).unwrap().iter().eq(store.iter()));
}

/// Formats without names read fields by position: a field that is not written would give its place
/// to the next one, and readers of a secret would become topics.
#[test]
fn every_field_is_written() {
    for entry in [Entry::new("a"), Entry::new("a").tags(["t"]), Entry::new("a").visible_to(["v"])] {
        let mut store = Store::default();
        let _ = store.add(entry).unwrap();
        let saved = serde_json::to_value(store.save(false)).unwrap();
        let fields = |value: &Value| {
            let mut names: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
            names.sort();
            names
        };
        assert_eq!(fields(&saved), ["entries", "next_id", "vectors", "version"]);
        let entry = fields(&saved["entries"][0]["entry"]);
        assert_eq!(entry, ["importance", "tags", "text", "time", "visible_to"]);
    }
    // Text that people write may leave them out.
    let short = json!({"version": 1, "next_id": 1, "entries": [{"id": 0, "entry": {
        "text": "mill", "time": {"secs": 0, "nanos": 0}, "importance": 0.5,
    }}]});
    assert_eq!(load(short).unwrap().get(EntryId::new(0)), Some(&Entry::new("mill")));
}

#[test]
fn lower_limits_evict() {
    let limits = StoreLimits { max_entries: 2, ..StoreLimits::default() };
    let loaded = Store::load(&example().save(true), limits).unwrap();
    let ids: Vec<u64> = loaded.iter().map(|(id, _)| id.get()).collect();
    assert_eq!((ids, loaded.vectors_len()), (vec![2, 3], 1), "entry 0 is the oldest");
}

#[test]
fn hostile_data_is_an_error() {
    let entry = |id: u64| json!({"id": id, "entry": {"text": "mill", "time": {"secs": 0, "nanos": 0}, "importance": 0.5}});
    let saved =
        |next: u64, entries: Value| json!({"version": 1, "next_id": next, "entries": entries});
    let vectors = |rows: Value| {
        let mut saved = saved(2, json!([entry(0), entry(1)]));
        saved["vectors"] = json!({"model": null, "rows": rows});
        load(saved).unwrap_err()
    };
    let id = EntryId::new;
    let version = |given| LoadError::Version { given, newest: 1 };
    for given in [0, 2, u32::MAX] {
        let other = json!({"version": given, "next_id": 0, "entries": []});
        assert_eq!(load(other).unwrap_err(), version(given));
    }
    let wrong = |value| load(value).unwrap_err();
    assert_eq!(wrong(saved(9, json!([entry(1), entry(1)]))), LoadError::Id { id: id(1) });
    assert_eq!(wrong(saved(9, json!([entry(3), entry(2)]))), LoadError::Id { id: id(2) });
    assert_eq!(wrong(saved(2, json!([entry(2)]))), LoadError::Id { id: id(2) });
    assert_eq!(wrong(saved(u64::MAX, json!([]))), LoadError::Id { id: id(u64::MAX) });
    let mut long = entry(0);
    long["entry"]["text"] = "x".repeat(2_049).into();
    let error = EntryError::TooLong { bytes: 2_049, max_bytes: 2_048 };
    assert_eq!(wrong(saved(1, json!([long]))), LoadError::Entry { id: id(0), error });
    let mut loud = entry(0);
    loud["entry"]["importance"] = json!(2.0);
    let error = EntryError::Importance { given: 2.0 };
    assert_eq!(wrong(saved(1, json!([loud]))), LoadError::Entry { id: id(0), error });

    let row = |id: u64, values: &[f32]| json!({"id": id, "values": values});
    assert!(matches!(vectors(json!([row(0, &[2.0])])), LoadError::NotNormalized { .. }));
    let of = |id, error| LoadError::Vector { id, error };
    let (no_entry, length) =
        (VectorError::NoEntry { id: id(5) }, VectorError::Length { given: 2, expected: 1 });
    assert_eq!(vectors(json!([row(5, &[1.0])])), LoadError::Id { id: id(5) });
    assert_eq!(vectors(json!([row(0, &[1.0]), row(1, &[1.0, 0.0])])), of(id(1), length));
    assert_eq!(vectors(json!([row(1, &[1.0]), row(0, &[1.0])])), LoadError::Id { id: id(0) });
    let dimensions = VectorError::Dimensions { given: 0, most: 8_192 };
    assert_eq!(vectors(json!([row(0, &[])])), of(id(0), dimensions));
    let mut removed = saved(9, json!([entry(0)]));
    removed["vectors"] = json!({"model": null, "rows": [row(5, &[1.0])]});
    assert_eq!(wrong(removed), of(id(5), no_entry));
    let mut named = saved(0, json!([]));
    named["vectors"] = json!({"model": "x".repeat(300), "rows": []});
    assert_eq!(wrong(named), LoadError::Model(VectorError::ModelName { bytes: 300 }));
}

#[test]
fn data_of_another_shape_is_no_saved_store() {
    for text in [
        "null",
        "[]",
        "{}",
        r#"{"version": -1, "next_id": 0, "entries": []}"#,
        r#"{"version": 1, "next_id": 0, "entries": [{"id": 0}]}"#,
        r#"{"version": 1, "next_id": 1, "entries": [{"id": 0, "entry": {"text": "a",
            "time": {"secs": 18446744073709551615, "nanos": 4000000000}, "importance": 1}}]}"#,
    ] {
        assert!(serde_json::from_str::<SavedStore>(text).is_err(), "{text}");
    }
}

#[test]
fn the_longest_time_is_no_problem() {
    let mut store = Store::default();
    let _ = store.add(Entry::new("mill").at(Duration::MAX)).unwrap();
    let _ = store.add(Entry::new("mill").importance(0.0)).unwrap();
    let loaded = Store::load(&store.save(true), StoreLimits::default()).unwrap();
    for now in [Duration::ZERO, Duration::MAX] {
        let hits = search(&[&loaded], &Query { now, ..Query::new("mill") }).unwrap();
        assert!(hits.len() == 2 && hits.iter().all(|hit| hit.score.is_finite()));
    }
}

proptest! {
    #[test]
    fn vectors_are_loaded_bit_by_bit(vector in prop::collection::vec(any::<f32>(), 1..20)) {
        let mut store = Store::default();
        let id = store.add(Entry::new("x")).unwrap().id;
        if store.set_vector(id, &vector).is_ok() {
            let text = serde_json::to_string(&store.save(true)).unwrap();
            let saved: SavedStore = serde_json::from_str(&text).unwrap();
            let loaded = Store::load(&saved, StoreLimits::default()).unwrap();
            let bits = |store: &Store| -> Vec<u32> {
                store.vector(id).unwrap().iter().map(|of| of.to_bits()).collect()
            };
            prop_assert_eq!(bits(&loaded), bits(&store));
        }
    }
}
