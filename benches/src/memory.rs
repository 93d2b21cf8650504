//! Memories of agents: time of a search by vectors and by words, and of adding and removing
//! entries, on one thread. Synthetic entries: words with a Zipf distribution, and vectors in
//! clusters, as models of embeddings give them, or without any structure.
//!
//! ```text
//! cargo run --release -p walla_benches --bin memory
//! ```

use std::error::Error;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use walla_benches::{machine, output};
use walla_memory::{Entry, EntryId, Query, Store, StoreLimits, search};

/// Measures searches in memories.
#[derive(Debug, Parser)]
struct Args {
    /// Entries of the searches by vectors.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000")]
    vectors: Vec<usize>,
    /// Entries of the searches by words, and of adding and removing.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000")]
    words: Vec<usize>,
    /// Dimensions of the vectors.
    #[arg(long, default_value_t = 384)]
    dimensions: usize,
    /// Searches, and additions and removals, of each measurement.
    #[arg(long, default_value_t = 200)]
    rounds: usize,
    /// The commit, if git is not available.
    #[arg(long)]
    commit: Option<String>,
    /// Output file for the numbers as JSON.
    #[arg(long)]
    output: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(path) = &args.output {
        output::check(path, &[] as &[PathBuf])?;
    }
    println!("| measurement | entries | best | median | p95 | processor, mean, µs | bytes |");
    println!("|---|---|---|---|---|---|---|");
    let mut rows = Vec::new();
    for &entries in &args.vectors {
        for clusters in [0, 100] {
            rows.extend(vectors(entries, clusters, &args)?);
        }
    }
    for &entries in &args.words {
        rows.extend(words(entries, args.rounds)?);
    }
    if let Some(path) = &args.output {
        let report = json!({
            "machine": machine::facts(args.commit.as_deref()),
            "dimensions": args.dimensions,
            "rounds": args.rounds,
            "measurements": rows,
        });
        output::replace(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    Ok(())
}

/// Limits that nothing here reaches.
fn limits() -> StoreLimits {
    StoreLimits { max_entries: 1 << 20, max_bytes: 1 << 30, ..StoreLimits::default() }
}

/// Top 10 by vectors, and a scan of all f32 vectors for comparison.
fn vectors(entries: usize, clusters: usize, args: &Args) -> Result<Vec<Value>, Box<dyn Error>> {
    let mut random = Random(1);
    let centers: Vec<Vec<f32>> =
        (0..clusters).map(|_| random.vector(None, args.dimensions)).collect();
    let mut store = Store::new(limits());
    for number in 0..entries {
        let vector = random.near(&centers, args.dimensions);
        let id = store.add(Entry::new(number.to_string()))?.id;
        store.set_vector(id, &vector)?;
    }
    let queries: Vec<Vec<f32>> =
        (0..args.rounds).map(|_| random.near(&centers, args.dimensions)).collect();
    let mut found = Vec::new();
    let mut failed = None;
    let times = measure(&queries, |vector| {
        let query = Query { vector: Some(vector), most: 10, ..Query::new("") };
        match search(&[&store], &query) {
            Ok(hits) => found.push(hits.iter().map(|hit| hit.id).collect::<Vec<_>>()),
            Err(error) => failed = Some(error),
        }
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    let all: Vec<(EntryId, &[f32])> =
        store.iter().filter_map(|(id, _)| Some((id, store.vector(id)?))).collect();
    let few = &queries[..queries.len().min(20)];
    let mut expected = Vec::new();
    let scans = measure(few, |vector| expected.push(scan(&all, vector)));
    // Another order of additions, so only the best one must agree, and no tie is expected.
    let agree = found.iter().zip(&expected).filter(|(a, b)| a.first() == Some(*b)).count();
    if agree != few.len() {
        return Err(format!("{agree} of {} searches agree with a scan", few.len()).into());
    }
    let shape = if clusters == 0 { "random" } else { "clusters" };
    let code_bytes = (args.dimensions + 8) * entries;
    let scan_bytes = 4 * args.dimensions * entries;
    Ok(vec![
        row(&format!("vectors, top 10, {shape}"), entries, &times, code_bytes),
        row(&format!("plain f32 scan, {shape}"), entries, &scans, scan_bytes),
    ])
}

/// The most similar entry, by a plain scan.
fn scan(all: &[(EntryId, &[f32])], query: &[f32]) -> EntryId {
    let similarity = |vector: &[f32]| {
        let mut sums = [0.0_f32; 16];
        for (a, b) in vector.chunks(16).zip(query.chunks(16)) {
            for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
                *sum += a * b;
            }
        }
        sums.iter().sum::<f32>()
    };
    let best = all.iter().map(|(id, vector)| (similarity(vector), *id));
    best.max_by(|a, b| a.0.total_cmp(&b.0)).map_or(EntryId::default(), |(_, id)| id)
}

/// Searches by words, additions to a full store, and removals.
fn words(entries: usize, rounds: usize) -> Result<Vec<Value>, Box<dyn Error>> {
    let mut random = Random(2);
    let mut store = Store::new(limits());
    for second in 0..entries {
        let entry = Entry::new(random.sentence(30)).at(Duration::from_secs(second as u64));
        let _nothing_evicted = store.add(entry)?;
    }
    let bytes = store.bytes() as usize;
    let queries: Vec<String> = (0..rounds).map(|_| random.sentence(6)).collect();
    let searches = measure(&queries, |text| {
        let _hits = black_box(search(&[&store], &Query { most: 10, ..Query::new(text) }));
    });
    let texts: Vec<Entry> = (0..rounds).map(|_| Entry::new(random.sentence(30))).collect();
    let mut ids = Vec::new();
    let adds = measure(&texts, |entry| ids.extend(store.add(entry.clone()).map(|added| added.id)));
    let removals = measure(&ids, |id| drop(black_box(store.remove(*id))));
    let full = StoreLimits { max_entries: entries as u32, ..limits() };
    let mut store = Store::load(&store.save(false), full)?;
    let evictions = measure(&texts, |entry| drop(black_box(store.add(entry.clone()))));
    Ok(vec![
        row("words, top 10 of a query of 6", entries, &searches, bytes),
        row("add an entry of 30 words", entries, &adds, bytes),
        row("remove it", entries, &removals, bytes),
        row("add to a full store", entries, &evictions, bytes),
    ])
}

/// Times of calls.
struct Times {
    /// Microseconds of each call, sorted.
    micros: Vec<f64>,
    /// Mean processor time of a call: less than the clock where other programs had the core. Only
    /// for calls of 100 ms in total, because the system counts in ticks of up to 10 ms.
    processor_micros: Option<f64>,
}

fn measure<T>(inputs: &[T], mut call: impl FnMut(&T)) -> Times {
    let time = |input: &T| {
        let start = Instant::now();
        call(input);
        start.elapsed().as_secs_f64() * 1e6
    };
    let before = processor_micros();
    let mut micros: Vec<f64> = inputs.iter().map(time).collect();
    let processor_micros = before
        .zip(processor_micros())
        .map(|(before, after)| after - before)
        .filter(|micros| *micros >= 1e5)
        .map(|micros| micros / inputs.len().max(1) as f64);
    micros.sort_by(f64::total_cmp);
    Times { micros, processor_micros }
}

/// Processor time of this thread, if the system reports it: only Linux does.
fn processor_micros() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos: f64 = text.split(' ').next()?.parse().ok()?;
    Some(nanos / 1e3)
}

fn row(name: &str, entries: usize, times: &Times, bytes: usize) -> Value {
    let micros = &times.micros;
    let at = |share: f64| {
        let last = micros.len().saturating_sub(1);
        micros.get((last as f64 * share) as usize).copied().unwrap_or(f64::NAN)
    };
    let (best, median, p95) = (at(0.0), at(0.5), at(0.95));
    let processor = times.processor_micros.map_or("-".into(), |micros| format!("{micros:.1}"));
    println!("| {name} | {entries} | {best:.1} | {median:.1} | {p95:.1} | {processor} | {bytes} |");
    json!({
        "name": name,
        "entries": entries,
        "bytes": bytes,
        "micros_min": best,
        "micros_median": median,
        "micros_p95": p95,
        "processor_micros_mean": times.processor_micros,
    })
}

/// A linear congruential generator (Knuth's MMIX).
struct Random(u64);

impl Random {
    /// 0 to 1.
    fn number(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A vector around one of the centres, if there are any.
    fn near(&mut self, centers: &[Vec<f32>], dimensions: usize) -> Vec<f32> {
        let at = (self.number() * centers.len() as f64) as usize;
        self.vector(centers.get(at).map(Vec::as_slice), dimensions)
    }

    /// Components around zero, or around a centre with an equal spread.
    fn vector(&mut self, center: Option<&[f32]>, dimensions: usize) -> Vec<f32> {
        let at = |i: usize| center.and_then(|center| center.get(i)).copied().unwrap_or(0.0);
        (0..dimensions).map(|i| at(i) + (2.0 * self.number() - 1.0) as f32).collect()
    }

    /// Words of 5,000, the one of rank r with a frequency of about 1 / r.
    fn sentence(&mut self, words: usize) -> String {
        let mut word = || format!("wort{}", 5_000_f64.powf(self.number()) as u32);
        (0..words).map(|_| word()).collect::<Vec<_>>().join(" ")
    }
}
