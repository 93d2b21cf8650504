//! Searches with an embedding model: small ones with random weights, of the tests of `walla_embed`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use walla_embed::{Embedder, EmbedderOptions};
use walla_memory::{EmbeddingState, Entry, Memory, Recall, RecallOptions, Search, StoreLimits};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

const WORDS: [&str; 4] = ["the well is dry", "a horse", "coal and iron", "rain all night"];

pub fn embedder(name: &str) -> Embedder {
    let path = format!("{}/../walla_embed/tests/data/{name}.gguf", env!("CARGO_MANIFEST_DIR"));
    Embedder::load(path, EmbedderOptions::default()).expect("a model of the tests")
}

/// A model without a budget, for whose vectors searches wait.
fn patient() -> RecallOptions {
    RecallOptions { embed_budget: None, max_time: LONG, ..RecallOptions::default() }
}

fn with_embedder() -> Recall {
    let recall = Recall::new(patient());
    recall.set_embedder(Some(embedder("bert-mean-f32")));
    recall
}

fn wait_for_vectors(recall: &Recall, vectors: u64) {
    let start = Instant::now();
    while recall.stats().vectors != vectors {
        assert!(start.elapsed() < LONG, "{:?}", recall.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Texts without a word of the entry are found by their vector, also of an entry that was written
/// right before.
#[test]
fn a_fresh_entry_is_found_by_its_vector() {
    let recall = with_embedder();
    let mut memory = Memory::default();
    for text in WORDS {
        drop(memory.add(Entry::new(text)).unwrap());
        recall.update(&mut memory).unwrap();
        // Its words are no part of the search: function words alone.
        let found = recall.search(Search::new("is it of the", [memory.key()])).wait();
        assert!(found.has_vectors);
        let cosines: Vec<_> = found.entries.iter().map(|found| found.cosine).collect();
        assert_eq!(cosines.len(), memory.len(), "{found:?}");
        assert!(cosines.iter().all(Option::is_some), "{found:?}");
        // The same text is the nearest one.
        let found = recall.search(Search::new(text, [memory.key()])).wait();
        assert_eq!(found.texts().next(), Some(text));
        assert!(found.entries[0].cosine.unwrap() > 0.999, "{found:?}");
    }
    assert_eq!(recall.stats().without_vector, 0);
}

/// Much lore is embedded in the background; until then its words are searched.
#[test]
fn lore_is_embedded_in_the_background() {
    let recall = with_embedder();
    let text: String = (0..200).map(|nth| format!("Fact {nth} of the well.\n\n")).collect();
    let mut lore = Memory::from_lore_text(&text).unwrap();
    recall.update(&mut lore).unwrap();
    let found = recall.search(Search::new("Fact 77", [lore.key()])).wait();
    assert!(found.texts().any(|text| text == "Fact 77 of the well."), "{found:?}");
    wait_for_vectors(&recall, 200);
    // The vectors are saved, and are not computed again.
    let saved = pollster::block_on(recall.saved(lore.key())).unwrap();
    drop(lore);
    let mut loaded = Memory::load(&saved, StoreLimits::lore()).unwrap();
    recall.update(&mut loaded).unwrap();
    let found = recall.search(Search::new("Fact 77", [loaded.key()])).wait();
    assert!(found.has_vectors && found.entries.iter().any(|found| found.cosine.is_some()));
    assert_eq!(recall.stats().vectors, 200);
    // Vectors of another model are not compared.
    recall.set_embedder(Some(embedder("qwen3-last")));
    wait_for_vectors(&recall, 200);
    recall.set_embedder(None);
    let found = recall.search(Search::new("Fact 77", [loaded.key()])).wait();
    assert!(!found.has_vectors && !found.entries.is_empty());
    wait_for_vectors(&recall, 0);
}

/// A saved game with vectors of other dimensions under the name of the model in use.
#[test]
fn saved_vectors_that_do_not_fit_are_computed_again() {
    let model = embedder("bert-mean-f32");
    let mut store = walla_memory::Store::new(StoreLimits::default());
    for text in WORDS {
        drop(store.add(Entry::new(text)).unwrap());
    }
    store.set_vector_model(&format!("{:016x}", model.model_hash())).unwrap();
    store.set_vector(walla_memory::EntryId::new(0), &[1.0, 0.0]).unwrap();
    let recall = Recall::new(patient());
    recall.set_embedder(Some(model));
    let mut memory = Memory::load(&store.save(true), StoreLimits::default()).unwrap();
    recall.update(&mut memory).unwrap();
    wait_for_vectors(&recall, 4);
    let found = recall.search(Search::new("is it of the", [memory.key()])).wait();
    assert!(found.has_vectors && found.entries.len() == 4, "{found:?}");
}

/// More searches at once than the model's queue takes: each compares vectors, and fresh entries
/// too.
#[test]
fn searches_beyond_the_queue_of_the_model_wait_for_room() {
    let recall = Recall::new(patient());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../walla_embed/tests/data/bert-mean-f32.gguf");
    let embedder = EmbedderOptions { max_requests: 4, ..EmbedderOptions::default() };
    recall.set_embedder(Some(Embedder::load(path, embedder).unwrap()));
    let mut memories = Vec::new();
    let mut searches = Vec::new();
    for nth in 0..300 {
        let mut memory = Memory::default();
        drop(memory.add(Entry::new(format!("fact {nth}"))).unwrap());
        recall.update(&mut memory).unwrap();
        searches.push(recall.search(Search::new("is it of the", [memory.key()])));
        memories.push(memory);
    }
    for search in searches {
        let found = search.wait();
        assert!(found.has_vectors && found.entries.len() == 1, "{found:?}");
    }
    assert_eq!(recall.stats().without_vector, 0);
}

/// A search that waits when the model is replaced compares vectors of the new one.
#[test]
fn no_vector_of_another_model_is_compared() {
    let (old, new) = (embedder("bert-mean-f32"), embedder("bert-cls-q8_0"));
    assert_eq!(old.dimensions(), new.dimensions(), "they could be compared");
    let recall = Recall::new(RecallOptions { embed_budget: Some(Duration::ZERO), ..patient() });
    recall.set_embedder(Some(old.clone()));
    let mut memory = Memory::default();
    drop(memory.add(Entry::new("the well is dry")).unwrap());
    recall.update(&mut memory).unwrap();
    let search = || recall.search(Search::new("a well", [memory.key()]));
    let waiting = search();
    while !old.has_work() {
        std::thread::sleep(Duration::from_millis(1));
    }
    recall.set_embedder(Some(new.clone()));
    // The change has arrived when the new model has work. Then the old model answers too.
    while !new.has_work() {
        std::thread::sleep(Duration::from_millis(1));
    }
    old.set_budget(None);
    new.set_budget(None);
    let found = waiting.wait();
    assert!(found.has_vectors);
    assert_eq!(found, search().wait());
}

/// With a budget the model computes only in frames; asks do not wait longer than the limit.
#[test]
fn a_budget_pauses_the_model_and_delays_no_search_for_long() {
    let max_time = Duration::from_millis(50);
    let options = RecallOptions {
        embed_budget: Some(Duration::from_millis(1)),
        max_time,
        ..RecallOptions::default()
    };
    let recall = Recall::new(options);
    recall.set_embedder(Some(embedder("bert-mean-f32")));
    let mut memory = Memory::default();
    drop(memory.add(Entry::new("the well is dry")).unwrap());
    recall.update(&mut memory).unwrap();
    let start = Instant::now();
    let found = recall.search(Search::new("well", [memory.key()])).wait();
    assert!(start.elapsed() >= max_time * 3 / 4, "it waits for the vector first");
    assert!(!found.has_vectors && found.entries.len() == 1, "words alone: {found:?}");
    assert_eq!(recall.stats().without_vector, 1);
    assert!(recall.is_embedding());
    // In frames the vector comes, on a busy machine not in time for the first search.
    let start = Instant::now();
    let mut has_vectors = false;
    while !has_vectors {
        let search = Search { max_entries: 3, ..Search::new("well", [memory.key()]) };
        let mut pending = recall.search(search);
        has_vectors = loop {
            recall.frame();
            if let Some(found) = pending.try_recv() {
                break found.has_vectors;
            }
            assert!(start.elapsed() < LONG);
            std::thread::sleep(Duration::from_millis(1));
        };
    }
}

/// The first search has the vectors of a model that is loaded when it is needed.
#[test]
fn a_model_is_loaded_with_the_first_entry() {
    for has_entry_before in [false, true] {
        let recall = Recall::new(patient());
        let mut memory = Memory::default();
        recall.update(&mut memory).unwrap();
        if has_entry_before {
            drop(memory.add(Entry::new(WORDS[0])).unwrap());
            recall.update(&mut memory).unwrap();
            let found = recall.search(Search::new("is it of the", [memory.key()])).wait();
            assert!(!found.has_vectors);
        }
        let loads = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&loads);
        recall.load_embedder(move || {
            count.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(30));
            Ok::<_, String>(embedder("bert-mean-f32"))
        });
        let found = recall.search(Search::new("is it of the", [memory.key()])).wait();
        let expected = u32::from(has_entry_before);
        assert_eq!((found.has_vectors, found.entries.len() as u32), (has_entry_before, expected));
        assert_eq!(loads.load(Ordering::Relaxed), expected);
        for text in [WORDS[1], WORDS[2]] {
            drop(memory.add(Entry::new(text)).unwrap());
            recall.update(&mut memory).unwrap();
            let found = recall.search(Search::new("is it of the", [memory.key()])).wait();
            assert!(found.has_vectors && found.entries.len() == memory.len(), "{found:?}");
        }
        assert_eq!(recall.embedding(), EmbeddingState::Ready);
        assert!(recall.embedder().is_some());
        assert_eq!((loads.load(Ordering::Relaxed), recall.stats().without_vector), (1, 0));
    }
}

/// Words find entries while a model loads longer than a search waits, and if it fails.
#[test]
fn words_are_searched_without_a_model_that_should_load() {
    let options = RecallOptions { max_time: Duration::from_millis(40), ..patient() };
    let recall = Recall::new(options);
    let (go, gone) = std::sync::mpsc::channel();
    recall.load_embedder(move || {
        gone.recv().unwrap();
        Err("no such file")
    });
    let mut memory = Memory::default();
    drop(memory.add(Entry::new("the well is dry")).unwrap());
    recall.update(&mut memory).unwrap();
    let search = || recall.search(Search::new("the well", [memory.key()])).wait();
    let found = search();
    assert!(!found.has_vectors && found.entries.len() == 1, "{found:?}");
    assert_eq!((recall.embedding(), recall.stats().without_vector), (EmbeddingState::Loading, 1));
    go.send(()).unwrap();
    let start = Instant::now();
    while recall.embedding() == EmbeddingState::Loading {
        assert!(start.elapsed() < LONG);
        std::thread::yield_now();
    }
    assert_eq!(recall.embedding(), EmbeddingState::Failed("no such file".into()));
    assert_eq!(search().entries.len(), 1);
    assert_eq!(recall.stats().without_vector, 1, "there is no model now");
}

/// The latest choice of a host counts, also if an earlier model comes later.
#[test]
fn a_model_that_is_set_replaces_one_that_loads() {
    for sets_another in [true, false] {
        let recall = Recall::new(patient());
        let (begun, begins) = std::sync::mpsc::channel();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        recall.load_embedder(move || {
            begun.send(()).unwrap();
            gone.recv().unwrap();
            Ok::<_, String>(embedder("bert-mean-f32"))
        });
        let mut memory = Memory::default();
        drop(memory.add(Entry::new(WORDS[0])).unwrap());
        recall.update(&mut memory).unwrap();
        begins.recv().unwrap();
        let other = sets_another.then(|| embedder("bert-cls-q8_0"));
        recall.set_embedder(other.clone());
        go.send(()).unwrap();
        let found = recall.search(Search::new(WORDS[0], [memory.key()])).wait();
        assert_eq!(found.has_vectors, sets_another);
        // The thread of the load has nothing left to wait for.
        std::thread::sleep(Duration::from_millis(50));
        let hash = |embedder: Option<Embedder>| embedder.map(|its| its.model_hash());
        assert_eq!(hash(recall.embedder()), hash(other));
    }
}

#[test]
fn a_load_that_panics_is_one_that_failed() {
    let recall = Recall::new(patient());
    recall.load_embedder(|| -> Result<Embedder, String> { panic!("a test") });
    let mut memory = Memory::default();
    drop(memory.add(Entry::new(WORDS[0])).unwrap());
    recall.update(&mut memory).unwrap();
    assert_eq!(recall.search(Search::new(WORDS[0], [memory.key()])).wait().entries.len(), 1);
    assert!(matches!(recall.embedding(), EmbeddingState::Failed(_)), "{:?}", recall.embedding());
}
