//! Saved caches of agents: size, time of a save and of a load, and the time to the first token of
//! an agent that loaded its cache, that is warm, or that evaluates all tokens.
//!
//! Each round has all measurements, with other tokens than the rounds before; the numbers are
//! medians of the rounds. Files are in the system's page cache when they are loaded.
//!
//! ```text
//! cargo run --release -p walla_benches --bin cache_files
//! ```

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use walla_benches::models::{Models, Named};
use walla_benches::{machine, output};
use walla_runtime::{
    AgentId, AgentSpec, CacheCopied, CacheJob, CacheTicket, Client, Command, Engine, EngineOptions,
    EngineState, Event, KvType, ModelSource, Pacing, Prompt, ReplyEvent, ReplyId, TrySendError,
    Usage,
};
use walla_types::{Sampling, TokenId};

/// Tokens of a question behind the saved tokens.
const QUESTION_TOKENS: usize = 12;

/// Tokens of a reply: the texts of both agents are compared.
const REPLY_TOKENS: u32 = 8;

/// Maximum time for one measurement.
const PATIENCE: Duration = Duration::from_secs(300);

/// Compares loading the cache of an agent with evaluating its tokens.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    models: Models,
    /// Tokens of the agent before its question.
    #[arg(long, default_value_t = 1_000)]
    tokens: usize,
    /// Rounds of each model.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The device: `cpu`, `cuda:0`.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Threads of the CPU device.
    #[arg(long)]
    threads: Option<u32>,
    /// Type of keys and values: f16 or q8.
    #[arg(long, default_value = "f16")]
    kv_type: String,
    /// Folder of the saved caches. Default: the system's folder for temporary files.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// The commit, if git is not available.
    #[arg(long)]
    commit: Option<String>,
    /// Output file for the numbers as JSON.
    #[arg(long)]
    output: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let models = args.models.open()?;
    if let Some(path) = &args.output {
        output::check(path, &args.models.files)?;
    }
    println!(
        "| model | tokens | file, MiB | bytes per token | save, ms | load, ms | evaluate, ms | \
         first token warm, ms | loaded, ms |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut rows = Vec::new();
    for Named { name, source, .. } in models {
        let row = measure(&args, &name, source)?;
        print(&row);
        rows.push(row);
    }
    if let Some(path) = &args.output {
        let report = json!({
            "machine": machine::facts(args.commit.as_deref()),
            "device": args.device,
            "threads": args.threads,
            "kv_type": args.kv_type,
            "rounds": args.rounds,
            "question_tokens": QUESTION_TOKENS,
            "models": rows,
        });
        output::replace(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    Ok(())
}

/// One engine and its host.
struct Host {
    client: Client,
}

impl Host {
    fn start(args: &Args, source: ModelSource) -> Result<Self, Box<dyn Error>> {
        let kv_type = match &*args.kv_type {
            "f16" => KvType::F16,
            "q8" => KvType::Q8,
            "f32" => KvType::F32,
            other => return Err(format!("no type {other} of keys and values").into()),
        };
        let context = args.tokens + QUESTION_TOKENS + REPLY_TOKENS as usize + 1;
        let context = u32::try_from(context)?.next_multiple_of(64);
        let options = EngineOptions {
            device: args.device.clone(),
            threads: args.threads,
            context_tokens: context,
            max_agents: Some(2),
            kv_type,
            background_prefill: false,
            fallback: false,
            ..EngineOptions::new(source)
        };
        let engine = Engine::start(options)?;
        let client = engine.client(Pacing::FreeRunning)?;
        loop {
            match engine.state() {
                EngineState::Loading { .. } => std::thread::sleep(Duration::from_millis(5)),
                EngineState::Ready => return Ok(Self { client }),
                EngineState::Failed(error) => return Err(error.to_string().into()),
                EngineState::Stopped => return Err("the engine has stopped".into()),
            }
        }
    }

    fn send(&self, mut command: Command) -> Result<(), Box<dyn Error>> {
        loop {
            match self.client.try_send(command) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(refused)) => command = refused,
                Err(TrySendError::Closed(_)) => return Err("the engine has ended".into()),
            }
        }
    }

    fn agent(&self) -> Result<AgentId, Box<dyn Error>> {
        let agent = self.client.new_agent();
        let sampling = Sampling::greedy();
        let spec = AgentSpec { sampling, max_reply_tokens: REPLY_TOKENS, ..AgentSpec::new("") };
        self.send(Command::AddAgent { agent, spec: Box::new(spec) })?;
        Ok(agent)
    }

    /// The text of a reply, and its counts.
    fn ask(&self, agent: AgentId, tokens: &[TokenId]) -> Result<(String, Usage), Box<dyn Error>> {
        let reply_id: ReplyId = self.client.new_reply_id();
        self.send(Command::ask(agent, reply_id, Prompt::Tokens(tokens.to_vec())))?;
        let mut text = String::new();
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let Some(Event { what, .. }) = self.client.try_recv() else {
                std::thread::sleep(Duration::from_micros(50));
                continue;
            };
            match what {
                ReplyEvent::Delta { text: more, .. } => text.push_str(&more),
                ReplyEvent::Finished { usage, .. } => return Ok((text, usage)),
                ReplyEvent::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
        Err("no end of the reply".into())
    }

    fn copy(
        &self,
        agent: AgentId,
        (ticket, job): (CacheTicket, CacheJob),
    ) -> Result<CacheCopied, Box<dyn Error>> {
        self.send(Command::CopyCache { agent, ticket })?;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(result) = job.result() {
                return Ok(result?);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Err("no end of the copy".into())
    }
}

/// One round, in milliseconds.
struct Round {
    copied: CacheCopied,
    save_ms: f64,
    load_ms: f64,
    evaluate_ms: f64,
    warm_ms: f64,
    loaded_ms: f64,
}

fn round(
    host: &Host,
    path: &Path,
    (count, vocab): (usize, u32),
    seed: u32,
) -> Result<Round, Box<dyn Error>> {
    // Ordinary tokens in no order; the first one depends on the round, so that nothing of earlier
    // rounds is in the cache.
    let token = |at: usize| TokenId(260 + (at as u32 * 7_919 + seed * 104_729) % (vocab - 260));
    let all: Vec<TokenId> = (0..count + QUESTION_TOKENS).map(token).collect();
    let agent = host.agent()?;
    let (_, cold) = host.ask(agent, &all[..count])?;
    let saved = host.copy(agent, CacheTicket::save(path))?;
    let (warm_text, warm) = host.ask(agent, &all)?;
    host.send(Command::RemoveAgent { agent })?;
    let agent = host.agent()?;
    let loaded = host.copy(agent, CacheTicket::load(path))?;
    let (loaded_text, reply) = host.ask(agent, &all)?;
    host.send(Command::RemoveAgent { agent })?;
    if cold.cached_tokens > 0 || warm_text != loaded_text {
        let cached = cold.cached_tokens;
        return Err(format!("{cached} cached, {warm_text:?} and {loaded_text:?}").into());
    }
    if reply.cached_tokens + QUESTION_TOKENS as u32 + 32 < reply.prompt_tokens {
        return Err(format!("nothing was loaded: {reply:?}").into());
    }
    let first_ms = |usage: &Usage| usage.first_token_micros as f64 / 1e3;
    Ok(Round {
        copied: loaded,
        save_ms: saved.elapsed.as_secs_f64() * 1e3,
        load_ms: loaded.elapsed.as_secs_f64() * 1e3,
        evaluate_ms: first_ms(&cold),
        warm_ms: first_ms(&warm),
        loaded_ms: first_ms(&reply),
    })
}

fn measure(args: &Args, name: &str, source: ModelSource) -> Result<Value, Box<dyn Error>> {
    let host = Host::start(args, source)?;
    let card = host.client.engine().model().ok_or("no model")?;
    let (vocab, device) = (card.vocab, card.device_line());
    let folder = args.folder.clone().unwrap_or_else(std::env::temp_dir);
    let path = folder.join(format!("walla-cache-{}.kv", std::process::id()));
    // One round more, which is not counted: buffers and files are new in it.
    let rounds =
        (0..=args.rounds as u32).map(|seed| round(&host, &path, (args.tokens, vocab), seed));
    let rounds = rounds.collect::<Result<Vec<_>, _>>();
    let _removed = std::fs::remove_file(&path);
    let rounds = rounds?.split_off(1);
    let sorted = |of: fn(&Round) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let median = |of: fn(&Round) -> f64| sorted(of).get(rounds.len() / 2).copied();
    let copied = rounds.first().ok_or("no rounds")?.copied;
    Ok(json!({
        "model": name,
        "device": device,
        "tokens": copied.tokens,
        "file_bytes": copied.file_bytes,
        "bytes_per_token": copied.file_bytes as f64 / f64::from(copied.tokens.max(1)),
        "save_ms_median": median(|round| round.save_ms),
        "load_ms_median": median(|round| round.load_ms),
        "evaluate_ms_median": median(|round| round.evaluate_ms),
        "warm_first_token_ms_median": median(|round| round.warm_ms),
        "loaded_first_token_ms_median": median(|round| round.loaded_ms),
        "save_ms": sorted(|round| round.save_ms),
        "load_ms": sorted(|round| round.load_ms),
        "evaluate_ms": sorted(|round| round.evaluate_ms),
        "warm_first_token_ms": sorted(|round| round.warm_ms),
        "loaded_first_token_ms": sorted(|round| round.loaded_ms),
    }))
}

fn print(row: &Value) {
    let number = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
    println!(
        "| {} | {} | {:.1} | {:.0} | {:.1} | {:.1} | {:.1} | {:.2} | {:.2} |",
        row["model"].as_str().unwrap_or_default(),
        row["tokens"],
        number("file_bytes") / f64::from(1 << 20),
        number("bytes_per_token"),
        number("save_ms_median"),
        number("load_ms_median"),
        number("evaluate_ms_median"),
        number("warm_first_token_ms_median"),
        number("loaded_first_token_ms_median"),
    );
}
