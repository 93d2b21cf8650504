//! A remote engine with a real server: a transcript, and the cost of a crowd.
//!
//! The transcript has a conversation, a constraint, actions, log-probabilities and a cancel, as far
//! as the server has them. Then a number of agents ask at the same time, again and again.
//!
//! ```text
//! cargo run --release -p walla_benches --features remote --bin remote -- \
//!     --url http://127.0.0.1:8080/v1 --model NAME --software walla
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use walla_benches::{machine, output};
use walla_remote::{Dialect, RemoteClient, RemoteEngine, RemoteOptions};
use walla_runtime::{
    ActionPolicy, ActionSet, ActionSpec, Actions, AgentId, AgentSpec, AskOptions, Command,
    Constraint, EngineClient, Prompt, ReplyEvent, ReplyId, Usage,
};
use walla_types::Sampling;

const PERSONA: &str = "You are Greta, the smith of Emberfall. A horseshoe costs 3 silver.";

/// Asks a server of the chat completions protocol.
#[derive(Debug, Parser)]
struct Args {
    /// Address, up to and including `/v1`.
    #[arg(long)]
    url: String,
    /// Name of the model on the server.
    #[arg(long, default_value = "walla")]
    model: String,
    /// Software of the server: open-ai, vllm, sglang, llama-server, dynamo, walla.
    #[arg(long)]
    software: Dialect,
    /// Name and version of the server, for the report.
    #[arg(long, default_value = "")]
    server: String,
    /// Agents that ask at the same time.
    #[arg(long, default_value_t = 16)]
    agents: usize,
    /// Asks of each of them.
    #[arg(long, default_value_t = 4)]
    asks: usize,
    /// Maximum tokens of a reply.
    #[arg(long, default_value_t = 48)]
    tokens: u32,
    /// Frames per second of the host.
    #[arg(long, default_value_t = 60)]
    frame_rate: u32,
    /// The commit, if git is not available.
    #[arg(long)]
    commit: Option<String>,
    /// Output file for the numbers as JSON.
    #[arg(long)]
    output: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let mut options = RemoteOptions::new(&args.url, &args.model);
    options.dialect = args.software;
    options.max_requests = u32::try_from(args.agents).unwrap_or(u32::MAX).max(1);
    let client = RemoteEngine::start(options)?.client();
    let transcript = transcript(&client, args.tokens);
    for line in &transcript {
        println!("{line}");
    }
    let crowd = crowd(&client, &args)?;
    println!("{crowd:#}");
    if let Some(path) = &args.output {
        let report = json!({
            "machine": machine::facts(args.commit.as_deref()),
            "server": args.server,
            "software": args.software.name(),
            "model": args.model,
            "transcript": transcript,
            "crowd": crowd,
        });
        output::replace(path, format!("{report:#}\n"))?;
    }
    Ok(())
}

/// A reply that has ended.
#[derive(Default)]
struct Heard {
    text: String,
    calls: Vec<String>,
    tokens: usize,
    end: String,
    usage: Usage,
}

fn add(client: &RemoteClient, spec: AgentSpec) -> AgentId {
    let agent = AgentId::unique();
    send(client, Command::AddAgent { agent, spec: Box::new(spec) });
    agent
}

/// Sends a command, again while the queue is full.
fn send(client: &RemoteClient, command: Command) {
    let mut next = Some(command);
    while let Some(command) = next.take() {
        if let Err(refused) = client.try_send(command) {
            if !refused.is_full() {
                return;
            }
            next = Some(refused.into_inner());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn ask(client: &RemoteClient, agent: AgentId, prompt: Prompt, options: AskOptions) -> ReplyId {
    let reply_id = ReplyId::unique();
    send(client, Command::Ask { agent, reply_id, prompt, options });
    reply_id
}

/// Waits for the end of a reply; cancels it after this number of deltas.
fn hear(client: &RemoteClient, agent: AgentId, reply_id: ReplyId, cancel_after: usize) -> Heard {
    let mut heard = Heard::default();
    let mut deltas = 0;
    loop {
        let Some(event) = client.try_recv() else {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        };
        if event.reply_id != reply_id {
            continue;
        }
        match event.what {
            ReplyEvent::Delta { text, .. } => {
                heard.text.push_str(&text);
                deltas += 1;
                if deltas == cancel_after {
                    send(client, Command::Cancel { agent, reply_id });
                }
            }
            ReplyEvent::Token(_) => heard.tokens += 1,
            ReplyEvent::Call(call) => heard.calls.push(call.text()),
            ReplyEvent::CallRefused(refused) => heard.calls.push(refused.call.to_string()),
            ReplyEvent::Finished { reason, usage } => {
                (heard.end, heard.usage) = (format!("{reason:?}"), usage);
                return heard;
            }
            ReplyEvent::Failed(error) => {
                heard.end = error.to_string();
                return heard;
            }
            _ => {}
        }
    }
}

/// The result of each feature, one line each.
fn transcript(client: &RemoteClient, max_reply_tokens: u32) -> Vec<Value> {
    let spec = |persona: &str| AgentSpec {
        sampling: Sampling::greedy(),
        max_reply_tokens,
        ..AgentSpec::new(persona)
    };
    let mut lines = Vec::new();
    let mut add_line = |feature: &str, question: &str, heard: Heard| {
        lines.push(json!({
            "feature": feature, "question": question, "text": heard.text, "calls": heard.calls,
            "logprobs": heard.tokens, "end": heard.end,
            "prompt_tokens": heard.usage.prompt_tokens, "cached_tokens": heard.usage.cached_tokens,
            "reply_tokens": heard.usage.reply_tokens,
            "first_token_ms": heard.usage.first_token_micros as f64 / 1e3,
        }));
    };
    let none = usize::MAX;
    let greta = add(client, spec(PERSONA));
    for question in ["What does a horseshoe cost?", "Who are you?", "Goodbye."] {
        let reply_id = ask(client, greta, Prompt::Chat(question.into()), AskOptions::default());
        add_line("conversation", question, hear(client, greta, reply_id, none));
    }
    let schema = r#"{"type": "object", "properties": {"item": {"enum": ["nails", "horseshoe"]}, "count": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["item", "count"], "additionalProperties": false}"#;
    for (feature, constraint) in [
        ("JSON schema", Constraint::json_schema(schema)),
        ("choice", Constraint::choice(["yes", "no", "perhaps"])),
        ("regular expression", Constraint::regex("[1-9] (silver|copper)")),
    ] {
        let question = "I'd like two horseshoes.";
        let options = AskOptions::constraint(constraint);
        let reply_id = ask(client, greta, Prompt::Chat(question.into()), options);
        add_line(feature, question, hear(client, greta, reply_id, none));
    }
    if let Some(actions) = actions() {
        let seller = add(client, AgentSpec { actions: Some(actions), ..spec(PERSONA) });
        let question = "I'll take a horseshoe.";
        let reply_id = ask(client, seller, Prompt::Chat(question.into()), AskOptions::default());
        add_line("action", question, hear(client, seller, reply_id, none));
        let result = walla_runtime::Turn::new(
            walla_runtime::Speaker::ActionResult,
            "The horseshoe is sold.",
        );
        send(client, Command::AppendTurns { agent: seller, turns: vec![result] });
        let reply_id = ask(client, seller, Prompt::Continue, AskOptions::default());
        add_line("result", "The horseshoe is sold.", hear(client, seller, reply_id, none));
    }
    if let Ok(sampling) = Sampling::builder().temperature(0.0).candidates(3).build() {
        let agent = add(client, AgentSpec { sampling, ..spec(PERSONA) });
        let reply_id =
            ask(client, agent, Prompt::Chat("Who are you?".into()), AskOptions::default());
        add_line("log-probabilities", "Who are you?", hear(client, agent, reply_id, none));
    }
    let reply_id =
        ask(client, greta, Prompt::Chat("Tell me a story.".into()), AskOptions::default());
    add_line("cancel", "Tell me a story.", hear(client, greta, reply_id, 2));
    lines
}

fn actions() -> Option<Actions> {
    let schema = json!({
        "type": "object",
        "properties": {"item": {"type": "string", "enum": ["nails", "horseshoe"]}},
        "required": ["item"],
        "additionalProperties": false,
    });
    let give = ActionSpec::new("give", "Hands an item over the counter.", &schema).ok()?;
    let set = ActionSet::new([give]).ok()?;
    Some(Actions { policy: ActionPolicy::Required, max_calls: 1, ..Actions::new(set) })
}

/// All agents ask at the same time; a loop at the frame rate receives their events.
fn crowd(client: &RemoteClient, args: &Args) -> Result<Value, Box<dyn Error>> {
    let agents: Vec<AgentId> = (0..args.agents)
        .map(|seed| {
            let sampling = Sampling::default().to_builder().seed(seed as u64).build();
            let sampling = sampling.unwrap_or_default();
            let max_reply_tokens = args.tokens;
            add(client, AgentSpec { sampling, max_reply_tokens, ..AgentSpec::new(PERSONA) })
        })
        .collect();
    let mut left = vec![args.asks; agents.len()];
    let mut open: Vec<Option<ReplyId>> = vec![None; agents.len()];
    let mut first_token = Histogram::<u64>::new(3)?;
    let mut frame_side = Histogram::<u64>::new(3)?;
    let (mut tokens, mut failed) = (0_u64, 0_u64);
    let frame = Duration::from_secs(1) / args.frame_rate.max(1);
    let start = Instant::now();
    let mut next_frame = start;
    while left.iter().any(|left| *left > 0) || open.iter().any(Option::is_some) {
        let begin = Instant::now();
        while let Some(event) = client.try_recv() {
            let usage = match event.what {
                ReplyEvent::Finished { usage, .. } => Some(usage),
                ReplyEvent::Failed(_) => None,
                _ => continue,
            };
            match usage {
                Some(usage) => {
                    tokens += u64::from(usage.reply_tokens + usage.reasoning_tokens);
                    first_token.record(usage.first_token_micros)?;
                }
                None => failed += 1,
            }
            if let Some(place) = open.iter_mut().find(|open| **open == Some(event.reply_id)) {
                *place = None;
            }
        }
        for (at, &agent) in agents.iter().enumerate() {
            if let (Some(left), Some(open @ None)) = (left.get_mut(at), open.get_mut(at))
                && *left > 0
            {
                *left -= 1;
                let prompt = Prompt::Chat("What is new in Emberfall?".into());
                *open = Some(ask(client, agent, prompt, AskOptions::default()));
            }
        }
        client.frame();
        frame_side.record(begin.elapsed().as_nanos() as u64)?;
        next_frame += frame;
        std::thread::sleep(next_frame.saturating_duration_since(Instant::now()));
    }
    let seconds = start.elapsed().as_secs_f64();
    let millis = |micros: u64| micros as f64 / 1e3;
    Ok(json!({
        "agents": args.agents, "asks": args.asks, "failed": failed,
        "seconds": seconds, "tokens": tokens, "tokens_per_second": tokens as f64 / seconds,
        "first_token_ms": {
            "p50": millis(first_token.value_at_quantile(0.5)),
            "p99": millis(first_token.value_at_quantile(0.99)),
        },
        "frame_side_us": {
            "p50": millis(frame_side.value_at_quantile(0.5)),
            "p99": millis(frame_side.value_at_quantile(0.99)),
            "max": millis(frame_side.max()),
        },
    }))
}
