//! The frame side of a game whose agents search much lore: a loop at 60 Hz, in which agents ask,
//! and the host measures its own time. `walla evaluate` counts right answers.
//!
//! ```text
//! cargo run --release -p walla_benches --bin recall -- --embedding-model FILE
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use walla::memory::{AgentRecall, Entry, Memory, Recall, RecallOptions};
use walla::{AgentSpec, Embedder, EmbedderOptions, EngineOptions, Prompt, ReplyEvent, memory};
use walla_benches::{machine, output};
use walla_runtime::{AgentId, Command, Engine, EngineClient, EngineState, Pacing, ReplyId};

/// Measures the frames of a game while agents search their memories.
#[derive(Debug, Parser)]
struct Args {
    /// Entries of the lore.
    #[arg(long, default_value_t = 100_000)]
    entries: usize,
    /// GGUF file of an embedding model. Without it, words are searched.
    #[arg(long)]
    embedding_model: Option<PathBuf>,
    /// Agents, which ask in turn.
    #[arg(long, default_value_t = 16)]
    agents: usize,
    /// Length of each measurement in frames.
    #[arg(long, default_value_t = 1_200)]
    frames: usize,
    /// Frames between two asks.
    #[arg(long, default_value_t = 20)]
    interval: usize,
    /// Threads of the engine.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// The commit, if git is not available.
    #[arg(long)]
    commit: Option<String>,
    /// Output file for the numbers as JSON.
    #[arg(long)]
    output: Option<PathBuf>,
}

const FRAME: Duration = Duration::from_nanos(16_666_667);

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(path) = &args.output {
        output::check(path, args.embedding_model.as_slice())?;
    }
    let report = run(&args)?;
    if let Some(path) = &args.output {
        let report = json!({"machine": machine::facts(args.commit.as_deref()), "report": report});
        output::replace(path, format!("{report:#}\n"))?;
    }
    Ok(())
}

fn run(args: &Args) -> Result<Value, Box<dyn Error>> {
    let recall = Recall::new(RecallOptions::default());
    let embedder = match &args.embedding_model {
        Some(path) => Some(Embedder::load(path, EmbedderOptions::default())?),
        None => None,
    };
    let mut lore = lore(args, embedder.as_ref())?;
    recall.set_embedder(embedder);
    recall.update(&mut lore)?;
    while recall.stats().entries < args.entries as u64 {
        std::thread::sleep(Duration::from_millis(10));
    }
    println!(
        "| agents | host p50, p99, max, µs | frames over budget | searches, time of the latest | first token p50, p90, ms |"
    );
    println!("|---|---|---|---|---|");
    let without = measure(args, &recall, None)?;
    let with = measure(args, &recall, Some(AgentRecall::new([lore.key()])))?;
    Ok(json!({"entries": args.entries, "without": without, "with": with,
        "has_vectors": args.embedding_model.is_some()}))
}

/// Entries of random words, with random vectors if there is a model: as many as the model would
/// give, without the hours that it would take.
fn lore(args: &Args, embedder: Option<&Embedder>) -> Result<Memory, Box<dyn Error>> {
    let mut random = 1_u64;
    let mut draw = |most: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % most
    };
    let mut store = memory::Store::without_index(memory::StoreLimits {
        max_entries: u32::MAX,
        max_bytes: u64::MAX,
        ..memory::StoreLimits::lore()
    });
    if let Some(embedder) = embedder {
        store.set_vector_model(&format!("{:016x}", embedder.model_hash()))?;
    }
    for number in 0..args.entries {
        let words: Vec<String> = (0..12).map(|_| format!("w{}", draw(20_000))).collect();
        let id = store.add(Entry::new(format!("fact{number} {}", words.join(" "))))?.id;
        if let Some(embedder) = embedder {
            let dimensions = embedder.dimensions();
            let vector: Vec<f32> =
                (0..dimensions).map(|_| draw(2_001) as f32 / 1_000.0 - 1.0).collect();
            store.set_vector(id, &vector)?;
        }
    }
    Ok(Memory::load(&store.save(true), store.limits().clone())?)
}

fn measure(
    args: &Args,
    recall: &Recall,
    knows: Option<AgentRecall>,
) -> Result<Value, Box<dyn Error>> {
    let mut options = EngineOptions::demo();
    options.threads = Some(args.threads);
    options.max_agents = Some(args.agents as u32);
    let engine = Engine::start(options)?;
    let client = recall.client(engine.client(Pacing::PerFrame { steps: 1 })?);
    while let EngineState::Loading { .. } = client.state() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let agents: Vec<AgentId> = (0..args.agents).map(|_| AgentId::unique()).collect();
    for &agent in &agents {
        let spec =
            AgentSpec { max_reply_tokens: 16, ..AgentSpec::new("You are Greta, the smith.") };
        client
            .try_send(Command::AddAgent { agent, spec: Box::new(spec) })
            .map_err(|_| "no mailbox")?;
        client.set_agent(agent, knows.clone());
    }
    let before = (recall.stats(), client.stats().budget);
    let mut host = Histogram::<u64>::new(3)?;
    let mut first = Histogram::<u64>::new(3)?;
    let mut asked: std::collections::BTreeMap<ReplyId, Instant> = std::collections::BTreeMap::new();
    let mut events = Vec::new();
    let mut next = Instant::now();
    for frame in 0..args.frames {
        let begin = Instant::now();
        if frame % args.interval == 0 {
            let agent = agents[frame / args.interval % agents.len()];
            let reply_id = ReplyId::unique();
            let text = format!("What about w{} and w{}?", frame * 7 % 20_000, frame * 13 % 20_000);
            client
                .try_send(Command::ask(agent, reply_id, Prompt::Chat(text)))
                .map_err(|_| "the mailbox is full")?;
            asked.insert(reply_id, begin);
        }
        client.try_recv_many(256, &mut events);
        client.frame();
        host.record(begin.elapsed().as_nanos() as u64)?;
        for event in events.drain(..) {
            if matches!(event.what, ReplyEvent::Delta { .. })
                && let Some(begin) = asked.remove(&event.reply_id)
            {
                first.record(begin.elapsed().as_micros() as u64)?;
            }
        }
        next += FRAME;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let (stats, budget) = (recall.stats(), client.stats().budget);
    let micros = |at: f64| host.value_at_quantile(at) as f64 / 1e3;
    let ms = |at: f64| first.value_at_quantile(at) as f64 / 1e3;
    let searches = stats.searches - before.0.searches;
    let over = budget.frames_over - before.1.frames_over;
    println!(
        "| {} | {:.1}, {:.1}, {:.1} | {over} of {} | {searches}, {:.2} ms | {:.1}, {:.1} |",
        if knows.is_some() { "with lore" } else { "without" },
        micros(0.5),
        micros(0.99),
        host.max() as f64 / 1e3,
        args.frames,
        stats.search.as_secs_f64() * 1e3,
        ms(0.5),
        ms(0.9),
    );
    client.stop();
    while !client.is_ended() {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(json!({
        "host_micros": {"p50": micros(0.5), "p99": micros(0.99), "max": host.max() as f64 / 1e3},
        "frames": args.frames, "frames_over": over, "searches": searches,
        "late": stats.late - before.0.late,
        "without_vector": stats.without_vector - before.0.without_vector,
        "search_ms": stats.search.as_secs_f64() * 1e3,
        "first_token_ms": {"p50": ms(0.5), "p90": ms(0.9), "replies": first.len()},
    }))
}
