//! Recordings: the size of a session of 64 agents, its replay with other threads and buckets, and
//! the cost of the recorder per frame.
//!
//! The session is simulated: a frame is granted as soon as the engine has worked off the last one,
//! and counts as 1/60 s. An agent speaks at a fixed rate: it is asked again when a voice would have
//! spoken its reply. Each tenth reply is cancelled, half of these to a heard part.
//!
//! ```text
//! cargo run --release -p walla_benches --bin record
//! cargo run --release -p walla_benches --bin record -- --seconds 5 # for CI
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use walla::record::{Recorder, Recording, Replay, Session};
use walla_benches::{machine, output};
use walla_runtime::{
    AgentId, AgentSpec, Capabilities, Command, Engine, EngineClient, EngineOptions, EngineState,
    EngineStats, Event, FrameBudget, InlineText, Pacing, Prompt, ReplyEvent, ReplyId, TrySendError,
};
use walla_types::Sampling;

/// Measures recordings.
#[derive(Debug, Parser)]
struct Args {
    /// Simulated duration of the session.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Agents that speak at the same time.
    #[arg(long, default_value_t = 64)]
    agents: u32,
    /// Tokens that a voice speaks per second.
    #[arg(long, default_value_t = 6.0)]
    rate: f64,
    /// Frames of the measurement of the recorder's cost.
    #[arg(long, default_value_t = 20_000)]
    frames: usize,
    /// The commit, if git is not available.
    #[arg(long)]
    commit: Option<String>,
    /// Output file for the numbers as JSON.
    #[arg(long)]
    output: Option<PathBuf>,
}

const FRAMES_PER_SECOND: u64 = 60;

/// Maximum time of a simulated frame: without a step, an ask waits for its prompt's encoding.
const MAX_FRAME: Duration = Duration::from_millis(20);

const QUESTIONS: [&str; 6] = [
    "What does a horseshoe cost?",
    "Who are you?",
    "Have you heard any news?",
    "Where is the old mine?",
    "I'll take a horseshoe.",
    "Good night!",
];

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(path) = &args.output {
        output::check(path, &[] as &[PathBuf])?;
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("session.walla");
    let session = session(&args, &path)?;
    let replays = replays(&path)?;
    let frames = frame_costs(args.frames, args.agents, folder.path())?;
    if let Some(path) = &args.output {
        let report = json!({
            "machine": machine::facts(args.commit.as_deref()),
            "agents": args.agents,
            "tokens_per_second_of_a_voice": args.rate,
            "session": session,
            "replays": replays,
            "frame_side": frames,
        });
        output::replace(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    Ok(())
}

fn options(agents: u32) -> EngineOptions {
    EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(agents),
        budget: FrameBudget::Unlimited,
        ..EngineOptions::demo()
    }
}

/// An agent of the session.
struct Talker {
    agent: AgentId,
    /// Open reply, the frame of its ask, and the frame of its cancel.
    open: Option<(ReplyId, u64, Option<u64>)>,
    /// Frame of the next ask.
    due: u64,
    asked: usize,
}

/// Records a session.
fn session(args: &Args, path: &Path) -> Result<Value, Box<dyn Error>> {
    let engine = Engine::start(options(args.agents))?;
    let client = Recorder::new(path, engine.client(Pacing::PerFrame { steps: 1 })?)?;
    let status = client.status();
    let mut talkers = Vec::new();
    for number in 0..args.agents {
        let agent = AgentId::unique();
        let sampling = Sampling::builder().temperature(0.8).seed(number.into()).build()?;
        let persona =
            format!("You are guest number {number} of the tavern. A horseshoe costs 3 silver.");
        let spec = AgentSpec { sampling, max_reply_tokens: 60, ..AgentSpec::new(persona) };
        send(&client, Command::AddAgent { agent, spec: Box::new(spec) })?;
        let due = u64::from(number) * 7 % 120;
        talkers.push(Talker { agent, open: None, due, asked: number as usize });
    }
    let begun = Instant::now();
    let frames = args.seconds * FRAMES_PER_SECOND;
    let mut tokens: HashMap<ReplyId, u32> = HashMap::new();
    let (mut frame, mut events) = (0, Vec::new());
    while frame < frames || talkers.iter().any(|talker| talker.open.is_some()) {
        frame += 1;
        for talker in &mut talkers {
            talk(talker, &client, frame, frame < frames)?;
        }
        let steps = client.stats().steps_done;
        client.frame();
        let granted = Instant::now();
        loop {
            client.try_recv_many(1_024, &mut events);
            let is_asked = talkers.iter().any(|talker| talker.open.is_some());
            let has_stepped = client.stats().steps_done > steps;
            if has_stepped || !is_asked || granted.elapsed() > MAX_FRAME {
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        for Event { agent, reply_id, what } in events.drain(..) {
            if let ReplyEvent::Delta { tokens: more, .. } = what {
                *tokens.entry(reply_id).or_default() += more;
            } else if what.is_terminal()
                && let Some(talker) = talkers.iter_mut().find(|talker| talker.agent == agent)
                && let Some((_, asked, _)) = talker.open.take()
            {
                let spoken = f64::from(tokens.remove(&reply_id).unwrap_or(0)) / args.rate;
                talker.due = asked + (spoken * FRAMES_PER_SECOND as f64) as u64;
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    if let Some(error) = status.error() {
        return Err(error.to_string().into());
    }
    drop(client);
    let recording = Recording::open(path)?;
    if !recording.is_complete() {
        return Err("the recording is not complete".into());
    }
    let session = Session::new(&recording);
    let (bytes, tokens) = (std::fs::metadata(path)?.len(), session.tokens());
    let simulated = frame as f64 / FRAMES_PER_SECOND as f64;
    let per_tokens = bytes as f64 / tokens as f64 * 1e3;
    let per_minute = bytes as f64 / simulated * 60.0;
    let rate = tokens as f64 / simulated;
    println!(
        "session: {simulated:.0} s simulated in {seconds:.0} s, {} replies, {tokens} tokens \
         ({rate:.0} per s), {bytes} bytes: {per_minute:.0} per minute, {per_tokens:.0} per 1,000 \
         tokens",
        session.asks.len(),
    );
    Ok(json!({
        "seconds_simulated": simulated, "seconds": seconds, "replies": session.asks.len(),
        "tokens": tokens, "records": recording.entries.len(), "bytes": bytes,
        "bytes_per_minute": per_minute, "bytes_per_1000_tokens": per_tokens,
    }))
}

/// Asks or cancels, if it is time.
fn talk(
    talker: &mut Talker,
    client: &dyn EngineClient,
    frame: u64,
    asks: bool,
) -> Result<(), Box<dyn Error>> {
    let agent = talker.agent;
    match talker.open {
        None if asks && frame >= talker.due => {
            let reply_id = ReplyId::unique();
            let question = QUESTIONS[talker.asked % QUESTIONS.len()].to_owned();
            send(client, Command::ask(agent, reply_id, Prompt::Chat(question)))?;
            let cancel = (talker.asked % 10 == 9).then_some(frame + 8);
            talker.open = Some((reply_id, frame, cancel));
            talker.asked += 1;
        }
        Some((reply_id, asked, Some(cancel))) if frame >= cancel => {
            let command = if talker.asked.is_multiple_of(20) {
                Command::Cancel { agent, reply_id }
            } else {
                Command::CancelHeard { agent, reply_id, heard_bytes: 9 }
            };
            send(client, command)?;
            talker.open = Some((reply_id, asked, None));
        }
        _ => {}
    }
    Ok(())
}

fn send(client: &dyn EngineClient, mut command: Command) -> Result<(), Box<dyn Error>> {
    loop {
        match client.try_send(command) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Full(refused)) => command = refused,
            Err(TrySendError::Closed(_)) => return Err("the engine has ended".into()),
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Replays the session with other threads, slots, buckets and pacing, whole and cut in the middle.
fn replays(path: &Path) -> Result<Vec<Value>, Box<dyn Error>> {
    let recording = Recording::open(path)?;
    let bytes = std::fs::read(path)?;
    let half = Recording::read(&bytes[..bytes.len() / 2], Default::default())?;
    let small = EngineOptions {
        max_rows: Some(24),
        max_prefill_tokens: Some(16),
        background_prefill: false,
        // Fewer would evaluate the prompts of parked agents again and again.
        ..options(64)
    };
    let wide = EngineOptions { threads: Some(2), ..options(96) };
    let cases = [
        ("1 thread, 64 slots, 24 rows", &recording, small.clone(), 4),
        ("2 threads, 96 slots", &recording, wide, 1),
        ("the first half of the file, as behind a crash", &half, small, 2),
    ];
    // At the same time, each with its own engine.
    std::thread::scope(|scope| {
        let replays = cases.map(|(name, recording, options, steps)| {
            scope.spawn(move || replay(name, recording, options, steps).map_err(|e| e.to_string()))
        });
        let ended = replays.map(|replay| replay.join().map_err(|_| "a replay panicked"));
        ended.into_iter().map(|ended| Ok(ended??)).collect()
    })
}

fn replay(
    name: &str,
    recording: &Recording,
    options: EngineOptions,
    steps: u32,
) -> Result<Value, Box<dyn Error>> {
    let client = Engine::start(options)?.client(Pacing::PerFrame { steps })?;
    let begun = Instant::now();
    let report = Replay::new(recording).run(&client)?;
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "replay, {name}: {} replies, {} tokens, {} differ, {seconds:.0} s",
        report.replies, report.tokens, report.different
    );
    if let Some(first) = &report.first {
        return Err(first.to_string().into());
    }
    Ok(json!({
        "name": name, "complete": recording.is_complete(), "replies": report.replies,
        "tokens": report.tokens, "different": report.different, "seconds": seconds,
    }))
}

/// An engine whose agents all speak one token per frame.
struct Crowd {
    agents: u32,
    ready: Mutex<u32>,
}

impl EngineClient for Crowd {
    fn try_send(&self, _command: Command) -> Result<(), TrySendError<Command>> {
        Ok(())
    }

    fn try_recv(&self) -> Option<Event> {
        let mut ready = self.ready.lock().ok()?;
        *ready = ready.checked_sub(1)?;
        let mut text = InlineText::new();
        let _rest = text.push(" word");
        let (agent, reply_id) = (AgentId((*ready).into()), ReplyId(u64::from(*ready) + 1));
        Some(Event { agent, reply_id, what: ReplyEvent::Delta { text, tokens: 1 } })
    }

    fn frame(&self) {
        if let Ok(mut ready) = self.ready.lock() {
            *ready = self.agents;
        }
    }

    fn state(&self) -> EngineState {
        EngineState::Ready
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::CHAT
    }

    fn stop(&self) {}
}

/// Time in which a host receives one token of each agent, with and without a recorder, and of a
/// frame in which nothing happens.
fn frame_costs(frames: usize, agents: u32, folder: &Path) -> Result<Value, Box<dyn Error>> {
    let crowd = |agents| Crowd { agents, ready: Mutex::new(0) };
    let recorder = |name: &str, agents| Recorder::new(folder.join(name), crowd(agents));
    let busy = recorder("busy.walla", agents)?;
    let idle = recorder("idle.walla", 0)?;
    let cases: [(&str, &dyn EngineClient); 4] = [
        ("one token of each agent, without a recorder", &crowd(agents)),
        ("one token of each agent, with a recorder", &busy),
        ("nothing happens, without a recorder", &crowd(0)),
        ("nothing happens, with a recorder", &idle),
    ];
    let mut all = Vec::new();
    for (name, client) in cases {
        let mut events = Vec::with_capacity(1_024);
        let mut nanos = Vec::with_capacity(frames);
        for _ in 0..frames {
            client.frame();
            let begun = Instant::now();
            while client.try_recv_many(256, &mut events) > 0 {}
            nanos.push(begun.elapsed().as_nanos() as u64);
            events.clear();
            // As fast as possible, the disk would not keep up.
            std::thread::sleep(Duration::from_micros(100));
        }
        nanos.sort_unstable();
        let at = |share: f64| nanos[((nanos.len() - 1) as f64 * share) as usize] as f64 / 1e3;
        let [median, p99] = [at(0.5), at(0.99)];
        println!("frame, {name}: median {median:.2} µs, p99 {p99:.2} µs");
        all.push(json!({"name": name, "micros_median": median, "micros_p99": p99}));
    }
    for status in [busy.status(), idle.status()] {
        if let Some(error) = status.error() {
            return Err(error.to_string().into());
        }
    }
    Ok(Value::Array(all))
}
