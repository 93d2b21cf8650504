//! Costs of conversation control: the tokens that are evaluated, and the time to the first token,
//! of the next question, a repeated reply, a rewind, an edit, a fork and a copy.
//!
//! Each round has another persona, so that nothing of earlier rounds is in the cache. Background
//! prefill is off: only the ask evaluates. The numbers are medians of the rounds.
//!
//! ```text
//! cargo run --release -p walla_benches --bin conversations
//! ```

use std::error::Error;
use std::path::PathBuf;

use clap::Parser;
use serde_json::{Value, json};
use walla::{
    Agent, AgentSpec, AskOptions, EncodeOptions, Engine, EngineOptions, Prompt, Sampling, Usage,
};
use walla_benches::models::{Models, Named};
use walla_benches::{machine, output};

/// Tokens of a reply.
const REPLY_TOKENS: u32 = 16;

/// Exchanges before the measured ones.
const EXCHANGES: usize = 4;

/// Compares the steps of a conversation.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    models: Models,
    /// Tokens of the persona.
    #[arg(long, default_value_t = 600)]
    persona_tokens: usize,
    /// Rounds of each model.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The device: `cpu`, `cuda:0`.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Threads of the CPU device.
    #[arg(long)]
    threads: Option<u32>,
    /// The commit, if git is not available.
    #[arg(long)]
    commit: Option<String>,
    /// Output file for the numbers as JSON.
    #[arg(long)]
    output: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(run(Args::parse()))
}

async fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let models = args.models.open()?;
    if let Some(path) = &args.output {
        output::check(path, &args.models.files)?;
    }
    println!("| model | ask | prompt tokens | evaluated | first token, ms |");
    println!("|---|---|---|---|---|");
    let mut rows = Vec::new();
    for Named { name, source, is_synthetic } in models {
        let template = is_synthetic.then(|| "chatml".into());
        let options = EngineOptions { template, ..EngineOptions::new(source) };
        let row = measure(&args, &name, options).await?;
        print(&row);
        rows.push(row);
    }
    if let Some(path) = &args.output {
        let report = json!({
            "machine": machine::facts(args.commit.as_deref()),
            "device": args.device,
            "threads": args.threads,
            "rounds": args.rounds,
            "reply_tokens": REPLY_TOKENS,
            "models": rows,
        });
        output::replace(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    Ok(())
}

/// A persona of at least `tokens` tokens, which differs from all others in its first words.
fn persona(engine: &Engine, tokens: usize, round: usize) -> Result<String, Box<dyn Error>> {
    let tokenizer = engine.tokenizer().ok_or("no tokenizer")?;
    let mut text = format!("{round} is your number. You are Greta, the smith of Emberfall.");
    for item in 0.. {
        if tokenizer.encode(&text, EncodeOptions::default())?.len() >= tokens {
            break;
        }
        text += &format!(" Item {item} costs {} silver.", item % 17 + 1);
    }
    Ok(text)
}

/// The counts of a reply, and its text.
async fn ask(agent: &Agent, prompt: Prompt, seed: u64) -> Result<(Usage, String), Box<dyn Error>> {
    let mut reply = agent.ask_with(prompt, AskOptions::seed(seed));
    let mut text = String::new();
    while let Some(delta) = reply.next().await {
        text += delta?.text();
    }
    let (_, usage) = reply.end().ok_or("the reply has no end")?;
    Ok((usage, text))
}

async fn usage(agent: &Agent, prompt: Prompt, seed: u64) -> Result<Usage, Box<dyn Error>> {
    Ok(ask(agent, prompt, seed).await?.0)
}

fn question(text: &str) -> Prompt {
    Prompt::Chat(text.to_owned())
}

/// One round: each kind of ask with its counts.
async fn round(
    engine: &Engine,
    persona_tokens: usize,
    round: usize,
) -> Result<Vec<(&'static str, Usage)>, Box<dyn Error>> {
    let persona = persona(engine, persona_tokens, round)?;
    let sampling = Sampling::builder().temperature(0.8).build()?;
    let spec = || AgentSpec {
        sampling: sampling.clone(),
        max_reply_tokens: REPLY_TOKENS,
        ..AgentSpec::new(persona.clone())
    };
    let agent = engine.agent_with(spec());
    let mut rows = Vec::new();
    rows.push(("first question", usage(&agent, question("Good day, Greta."), 1).await?));
    for seed in 0..EXCHANGES as u64 {
        usage(&agent, question("What does a lantern cost?"), seed).await?;
    }
    rows.push(("next question", usage(&agent, question("And a rope?"), 2).await?));
    rows.push(("the reply again", usage(&agent, Prompt::Again, 3).await?));
    agent.rewind(2)?;
    rows.push(("rewind, other question", usage(&agent, question("And a sword?"), 4).await?));
    agent.edit_turn(0, "A sword costs 40 silver, my friend.")?;
    rows.push(("edit of the reply, question", usage(&agent, question("So much?"), 5).await?));
    let branch = agent.fork().await?;
    let (of_branch, said) = ask(&branch, question("I have 9 silver."), 6).await?;
    rows.push(("fork, question", of_branch));
    let (_, expected) = ask(&agent, question("I have 9 silver."), 6).await?;
    if said != expected {
        return Err(format!("the fork says {said:?}, the agent {expected:?}").into());
    }
    drop(branch);
    let other = engine.agent_with(spec());
    other.copy_conversation(&agent).await?;
    rows.push(("copy, question", usage(&other, question("I have 7 silver."), 7).await?));
    drop(other);
    let stranger = AgentSpec { persona: format!("Not {persona}"), ..spec() };
    let stranger = engine.agent_with(stranger);
    stranger.copy_conversation(&agent).await?;
    let of_stranger = usage(&stranger, question("I have 7 silver."), 7).await?;
    rows.push(("copy to another persona, question", of_stranger));
    Ok(rows)
}

async fn measure(args: &Args, name: &str, model: EngineOptions) -> Result<Value, Box<dyn Error>> {
    let options = EngineOptions {
        device: args.device.clone(),
        context_tokens: u32::try_from(args.persona_tokens)?.next_multiple_of(64) + 1_024,
        max_agents: Some(4),
        background_prefill: false,
        fallback: false,
        threads: args.threads,
        ..model
    };
    let engine = Engine::start(options).await?;
    let device = engine.model().ok_or("no model")?.device_line();
    let mut rounds = Vec::new();
    // The first round is not counted: buffers are new in it.
    for number in 0..=args.rounds {
        rounds.push(round(&engine, args.persona_tokens, number).await?);
    }
    let rounds = rounds.split_off(1);
    let kinds = rounds.first().ok_or("no rounds")?.iter().map(|(kind, _)| *kind);
    let asks: Vec<Value> = kinds
        .enumerate()
        .map(|(at, kind)| {
            let usages = || rounds.iter().map(|round| round[at].1);
            let mut times: Vec<f64> =
                usages().map(|usage| usage.first_token_micros as f64 / 1e3).collect();
            times.sort_by(f64::total_cmp);
            let mut counts: Vec<(u32, u32)> = usages()
                .map(|usage| (usage.prompt_tokens - usage.cached_tokens, usage.prompt_tokens))
                .collect();
            counts.sort_unstable();
            let (evaluated, prompt) = counts[counts.len() / 2];
            json!({
                "ask": kind,
                "prompt_tokens": prompt,
                "evaluated_tokens": evaluated,
                "first_token_ms_median": times[times.len() / 2],
                "first_token_ms": times,
            })
        })
        .collect();
    Ok(json!({"model": name, "device": device, "asks": asks}))
}

fn print(row: &Value) {
    for ask in row["asks"].as_array().into_iter().flatten() {
        println!(
            "| {} | {} | {} | {} | {:.2} |",
            row["model"].as_str().unwrap_or_default(),
            ask["ask"].as_str().unwrap_or_default(),
            ask["prompt_tokens"],
            ask["evaluated_tokens"],
            ask["first_token_ms_median"].as_f64().unwrap_or(f64::NAN),
        );
    }
}
