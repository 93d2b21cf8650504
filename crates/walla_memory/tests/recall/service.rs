//! Memories and searches without an engine.

use std::time::{Duration, Instant};

use walla_memory::{
    EXCHANGE_TAG, Entry, Memory, Recall, RecallOptions, Search, StoreLimits, UpdateError,
};

use crate::own_thread::processor_time;

fn recall() -> Recall {
    Recall::new(RecallOptions::default())
}

fn texts(recall: &Recall, search: Search) -> Vec<String> {
    recall.search(search).wait().texts().map(str::to_owned).collect()
}

#[test]
fn a_search_sees_the_changes_before_it() {
    let recall = recall();
    let mut memory = Memory::default();
    let about = |text: &str, memory: &Memory| Search::new(text, [memory.key()]);
    assert_eq!(texts(&recall, about("coal", &memory)), [""; 0], "an unknown memory is empty");
    drop(memory.add(Entry::new("The player owes coal.")).unwrap());
    assert!(!memory.is_sent());
    recall.update(&mut memory).unwrap();
    assert!(memory.is_sent());
    // Each search is sent before the change behind it.
    let mut found = Vec::new();
    let mut expected = Vec::new();
    let mut ids = Vec::new();
    for nth in 0..200 {
        expected.push(memory.iter().map(|(_, entry)| entry.text.to_string()).collect::<Vec<_>>());
        let search = Search { max_entries: 1_000, ..about("coal", &memory) };
        found.push(recall.search(search));
        match nth % 7 {
            5 => drop(memory.remove(ids[nth / 2])),
            6 if nth > 100 => memory.clear(),
            _ => {}
        }
        ids.push(memory.add(Entry::new(format!("Coal number {nth}."))).unwrap().id);
        recall.update(&mut memory).unwrap();
    }
    for (nth, (found, mut expected)) in found.into_iter().zip(expected).enumerate() {
        let mut found: Vec<String> = found.wait().texts().map(str::to_owned).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "search {nth}");
    }
}

/// Each entry that happens now is later than those before it: it is not the first to be forgotten.
#[test]
fn an_entry_without_a_time_happens_now() {
    let recall = recall();
    let limits = StoreLimits { max_entries: 3, ..StoreLimits::default() };
    let times = |memory: &Memory| {
        let entries = memory.iter().map(|(_, entry)| entry);
        entries.map(|entry| (entry.text.to_string(), entry.time.as_secs())).collect::<Vec<_>>()
    };
    let entry = |text: &str, time: u64| (text.to_owned(), time);
    let mut memory = Memory::new(limits.clone());
    for old in 1..=3 {
        memory.add(Entry::new("old").at(Duration::from_secs(old * 1_000_000))).unwrap();
    }
    // Before a service knows the memory.
    memory.add(Entry::new("new")).unwrap();
    let expected = [entry("old", 2_000_000), entry("old", 3_000_000), entry("new", 3_000_000)];
    assert_eq!(times(&memory), expected, "as late as the latest, until it is sent");
    let mut copy = memory.clone();
    recall.set_now(Duration::from_secs(4_000_000));
    recall.update(&mut memory).unwrap();
    recall.update(&mut copy).unwrap();
    for memory in [&memory, &copy] {
        assert_eq!(times(memory)[2], entry("new", 4_000_000));
    }
    // Afterwards, with a later time at the next update.
    memory.add(Entry::new("newer")).unwrap();
    recall.set_now(Duration::from_secs(5_000_000));
    recall.update(&mut memory).unwrap();
    memory.add(Entry::new("newest")).unwrap();
    let expected = [entry("new", 4_000_000), entry("newer", 5_000_000), entry("newest", 5_000_000)];
    assert_eq!(times(&memory), expected);
    // Saved times stay, and time zero can be stated.
    let mut loaded = Memory::load(&memory.save(), limits).unwrap();
    recall.set_now(Duration::from_secs(9_000_000));
    recall.update(&mut loaded).unwrap();
    assert_eq!(times(&loaded), expected);
    memory.add_at(Entry::new("first of all"), Duration::ZERO).unwrap();
    recall.update(&mut memory).unwrap();
    assert_eq!(times(&memory)[2], entry("first of all", 0));
    // The thread has the same times.
    let saved = pollster::block_on(recall.saved(memory.key())).unwrap();
    let of_thread = Memory::load(&saved, StoreLimits::default()).unwrap();
    assert_eq!(times(&of_thread), times(&memory));
}

/// The host's entries and the thread's are the same, whatever is evicted.
#[test]
fn the_thread_evicts_what_the_host_evicts() {
    let recall = recall();
    let limits = StoreLimits { max_entries: 20, ..StoreLimits::default() };
    let mut memory = Memory::new(limits);
    let mut random = 7_u64;
    for nth in 0..400_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let importance = (random >> 60) as f32 / 16.0;
        let at = Duration::from_secs(random >> 44);
        let entry = Entry::new(format!("word {nth}")).importance(importance).at(at);
        // Every fifth happens now.
        let entry = if nth % 5 == 0 { entry.at(Duration::ZERO) } else { entry };
        drop(memory.add(entry).unwrap());
        if nth % 3 == 0 {
            recall.set_now(Duration::from_secs(random >> 44));
            recall.update(&mut memory).unwrap();
        }
    }
    recall.update(&mut memory).unwrap();
    let search = Search { max_entries: 100, ..Search::new("word", [memory.key()]) };
    let mut of_thread: Vec<u64> =
        recall.search(search).wait().entries.iter().map(|found| found.id.get()).collect();
    of_thread.sort_unstable();
    let of_host: Vec<u64> = memory.iter().map(|(id, _)| id.get()).collect();
    assert_eq!((of_thread.len(), of_thread), (20, of_host));
}

#[test]
fn copies_saves_and_other_services_have_the_same_entries() {
    let (recall, other) = (recall(), recall());
    let mut memory = Memory::default();
    for text in ["The well is dry.", "The mill burned down."] {
        drop(memory.add(Entry::new(text)).unwrap());
    }
    recall.update(&mut memory).unwrap();
    let mut copy = memory.clone();
    assert_ne!(copy.key(), memory.key());
    drop(copy.add(Entry::new("A copy of the well.")).unwrap());
    recall.update(&mut copy).unwrap();
    let both = Search::new("well", [memory.key(), copy.key()]);
    assert_eq!(texts(&recall, both).len(), 2, "equal texts are given once");
    assert_eq!(texts(&recall, Search::new("well", [memory.key()])), ["The well is dry."]);
    let mut loaded = Memory::load(&memory.save(), StoreLimits::default()).unwrap();
    assert_eq!(loaded, memory);
    other.update(&mut loaded).unwrap();
    assert_eq!(texts(&other, Search::new("mill", [loaded.key()])), ["The mill burned down."]);
    // A memory that moves to another service leaves the first one.
    other.update(&mut memory).unwrap();
    assert_eq!(texts(&other, Search::new("mill", [memory.key()])).len(), 1);
    assert_eq!(texts(&recall, Search::new("mill", [memory.key()])).len(), 0);
    drop(copy);
    assert_eq!(texts(&recall, Search::new("copy", [loaded.key()])), [""; 0]);
    let start = Instant::now();
    while recall.stats().memories > 0 {
        assert!(start.elapsed() < Duration::from_secs(120), "{:?}", recall.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn recent_exchanges_are_left_out_until_others_follow() {
    let recall = recall();
    let mut memory = Memory::default();
    let exchange =
        |nth: u32| Entry::new(format!("They spoke about horse {nth}.")).tags([EXCHANGE_TAG]);
    drop(memory.add(Entry::new("A horse is lame.")).unwrap());
    (0..3).for_each(|nth| drop(memory.add(exchange(nth)).unwrap()));
    recall.update(&mut memory).unwrap();
    let found = |memory: &Memory, recent_skipped| {
        texts(&recall, Search { recent_skipped, ..Search::new("horse", [memory.key()]) }).len()
    };
    assert_eq!([0, 1, 3, 9].map(|latest| found(&memory, latest)), [4, 3, 1, 1]);
    // Also after loading.
    let mut loaded = Memory::load(&memory.save(), StoreLimits::default()).unwrap();
    recall.update(&mut loaded).unwrap();
    assert_eq!(found(&loaded, 2), 2);
}

#[test]
fn changes_beyond_the_limit_wait_and_are_not_lost() {
    let options = RecallOptions { max_queued_bytes: 1_000, ..RecallOptions::default() };
    let recall = Recall::new(options);
    let mut memory = Memory::default();
    let mut refused = 0;
    for nth in 0..500 {
        drop(memory.add(Entry::new(format!("{nth} {}", "long ".repeat(100)))).unwrap());
        match recall.update(&mut memory) {
            Ok(()) => {}
            Err(UpdateError::Full { most: 1_000, .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    while recall.update(&mut memory).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let search = Search { max_entries: 1_000, ..Search::new("long", [memory.key()]) };
    assert_eq!(texts(&recall, search).len(), 500, "{refused} updates were refused");
}

#[test]
fn the_last_handle_ends_the_thread_and_open_searches() {
    let recall = recall();
    let mut memory = Memory::default();
    drop(memory.add(Entry::new("The well is dry.")).unwrap());
    recall.update(&mut memory).unwrap();
    let search = Search::new("well", [memory.key()]);
    let open: Vec<_> = (0..100).map(|_| recall.search(search.clone())).collect();
    drop(recall);
    for search in open {
        // Found, or empty.
        assert!(search.wait().entries.len() <= 1);
    }
    // The memory outlives the service.
    drop(memory.add(Entry::new("It rains.")).unwrap());
    let other = Recall::new(RecallOptions::default());
    other.update(&mut memory).unwrap();
    assert_eq!(texts(&other, Search::new("rains", [memory.key()])).len(), 1);
}

#[test]
fn secrets_stay_with_their_readers_and_tags_select() {
    let recall = recall();
    let lore =
        "[visible_to: guards]\nThe sword is under the anvil.\n\n[tags: trade]\nA sword costs 30.";
    let mut lore = Memory::from_lore_text(lore).unwrap();
    recall.update(&mut lore).unwrap();
    let search = Search::new("Where is the sword?", [lore.key()]);
    assert_eq!(texts(&recall, search.clone()), ["A sword costs 30."]);
    let guard = Search { reader: ["guards"].into_iter().collect(), ..search.clone() };
    assert_eq!(texts(&recall, guard).len(), 2);
    let trader = Search {
        reader: ["guards"].into_iter().collect(),
        tags: ["trade"].into_iter().collect(),
        ..search
    };
    assert_eq!(texts(&recall, trader), ["A sword costs 30."]);
}

/// The host copies and frees no entries when it sends, copies, changes or drops a memory.
#[test]
fn much_lore_costs_the_host_no_time() {
    let text: String = (0..50_000).map(|nth| format!("Fact {nth} of the well.\n\n")).collect();
    let recall = recall();
    let (mut whole, mut least) = (Duration::MAX, Duration::MAX);
    for _ in 0..5 {
        let start = processor_time();
        let mut lore = Memory::from_lore_text(&text).unwrap();
        whole = whole.min(processor_time() - start);
        let start = processor_time();
        recall.update(&mut lore).unwrap();
        drop(lore.clone());
        let sent = processor_time() - start;
        let found = recall.search(Search::new("Fact 77", [lore.key()])).wait();
        assert!(!found.entries.is_empty());
        let start = processor_time();
        drop(lore.add(Entry::new("Fact of the mill.")).unwrap());
        recall.update(&mut lore).unwrap();
        drop(lore);
        least = least.min(sent + processor_time() - start);
    }
    assert!(least < whole / 20, "{least:?}, all entries take {whole:?}");
}
