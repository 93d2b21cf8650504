//! Vectors of a store.

use walla_memory::{Entry, EntryId, MAX_DIMENSIONS, Store, VectorError};

fn store(entries: usize) -> Store {
    let mut store = Store::default();
    for number in 0..entries {
        let _ = store.add(Entry::new(number.to_string())).unwrap();
    }
    store
}

const fn id(number: u64) -> EntryId {
    EntryId::new(number)
}

#[test]
fn invalid_vectors_are_refused() {
    let mut store = store(2);
    assert_eq!(store.set_vector(id(9), &[1.0]), Err(VectorError::NoEntry { id: id(9) }));
    let dimensions = |given| Err(VectorError::Dimensions { given, most: MAX_DIMENSIONS });
    assert_eq!(store.set_vector(id(0), &[]), dimensions(0));
    assert_eq!(store.set_vector(id(0), &vec![1.0; MAX_DIMENSIONS + 1]), dimensions(8_193));
    let not_finite = |index| Err(VectorError::NotFinite { index });
    assert_eq!(store.set_vector(id(0), &[1.0, f32::INFINITY]), not_finite(1));
    assert_eq!(store.set_vector(id(0), &[f32::NAN, 1.0]), not_finite(0));
    assert_eq!(store.set_vector(id(0), &[0.0, -0.0]), Err(VectorError::Zero));
    assert_eq!(store.dimensions(), None, "a refused vector fixes nothing");
    store.set_vector(id(0), &[3.0, 4.0]).unwrap();
    let length = VectorError::Length { given: 3, expected: 2 };
    assert_eq!(store.set_vector(id(1), &[1.0; 3]), Err(length));
}

#[test]
fn vectors_have_length_one() {
    let mut store = store(1);
    let length = |store: &Store| store.vector(id(0)).unwrap().iter().map(|v| v * v).sum::<f32>();
    for vector in [[3.0, 4.0], [f32::MAX, f32::MIN], [1e-45, 0.0], [1e-30, 1e30]] {
        store.set_vector(id(0), &vector).unwrap();
        assert!((length(&store) - 1.0).abs() < 1e-6, "{vector:?}");
    }
    store.set_vector(id(0), &[3.0, 4.0]).unwrap();
    assert_eq!(store.vector(id(0)), Some([0.6, 0.8].as_slice()));
}

#[test]
fn another_model_removes_the_vectors() {
    let mut store = store(3);
    let without =
        |store: &Store| store.without_vector().map(|(id, _)| id.get()).collect::<Vec<_>>();
    store.set_vector(id(1), &[1.0, 0.0]).unwrap();
    assert_eq!((store.vectors_len(), store.vector_bytes()), (1, 2 * 5 + 8));
    assert_eq!(store.set_vector_model("minilm"), Ok(true), "the model of the vector is not known");
    assert_eq!((store.vectors_len(), store.dimensions()), (0, None));
    store.set_vector(id(1), &[1.0, 0.0, 0.0]).unwrap();
    assert_eq!(without(&store), [0, 2]);
    assert_eq!(store.set_vector_model("minilm"), Ok(false));
    assert_eq!(store.vectors_len(), 1);
    assert_eq!(store.set_vector_model("e5"), Ok(true));
    assert_eq!((without(&store), store.vector_model()), (vec![0, 1, 2], Some("e5")));
    store.set_vector(id(0), &[1.0]).unwrap();
    store.clear();
    assert_eq!((store.vector_model(), store.dimensions()), (Some("e5"), None));
    store.clear_vectors();
    assert_eq!(store.vector_model(), None);
    assert_eq!(
        store.set_vector_model(&"x".repeat(257)),
        Err(VectorError::ModelName { bytes: 257 })
    );
}

#[test]
fn a_removed_entry_takes_its_vector_along() {
    let mut store = store(3);
    for number in 0..3 {
        store.set_vector(id(number), &[1.0, number as f32]).unwrap();
    }
    let last = store.vector(id(2)).unwrap().to_vec();
    assert!(store.remove(id(0)).is_some());
    assert_eq!((store.vectors_len(), store.vector(id(0))), (2, None));
    assert_eq!(store.vector(id(2)), Some(last.as_slice()), "the last row has moved");
    // The new entry uses the slot of the removed one.
    let new = store.add(Entry::new("new")).unwrap().id;
    assert_eq!(store.vector(new), None);
}
