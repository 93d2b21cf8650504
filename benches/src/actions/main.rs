//! Agents that act: constrained replies, their validity and their cost.
//!
//! ```text
//! cargo run --release -p walla_benches --bin actions -- replies --output benches/results/actions-replies.json
//! cargo run --release -p walla_benches --bin actions -- batch --output benches/results/actions-batch.json
//! cargo run --release -p walla_benches --bin actions -- shop --output benches/results/actions-shop.json
//! cargo run --release -p walla_benches --bin actions -- first --model FILE --output benches/results/actions-first.json
//! ```
//!
//! *replies* validates many constrained replies and calls with the library `jsonschema`. *batch*
//! compares steps of agents with different schemas and steps of agents without any, in alternating
//! rounds. *shop* counts the tokens of calls that are not sampled. *first* measures the first
//! constrained reply of a new engine, later ones, and replies behind other choices of an action.
//! `walla evaluate` counts right actions.

mod batch;
mod first;
mod host;
#[path = "../frame_latency/model.rs"]
mod model;
mod models;
mod replies;
mod schemas;
mod shop;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};
use walla_benches::{machine, output, synthetic};
use walla_runtime::{Client, Engine, EngineOptions, FrameBudget, ModelSource, Pacing};

use self::batch::{Round, Scene, Settings};
use self::host::Host;
use self::replies::format_of;

/// Agents that act: constrained replies, their validity and their cost.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Validates constrained replies and calls.
    Replies {
        #[command(flatten)]
        common: Common,
        /// Replies of each model, in this order: the named model or the demo model, then models of
        /// random weights with the call formats Plain and HermesJson.
        #[arg(long, value_delimiter = ',', default_value = "4000,3000,3000")]
        replies: Vec<u64>,
        /// Maximum speech tokens of a reply.
        #[arg(long, default_value_t = 200)]
        tokens: u32,
    },
    /// Compares steps of agents with schemas and steps of agents without any.
    Batch {
        #[command(flatten)]
        common: Common,
        /// Agents of each kind.
        #[arg(long, default_value_t = 64)]
        agents: usize,
        /// Tokens of a reply.
        #[arg(long, default_value_t = 128)]
        tokens: u32,
        /// Alternating rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Frames per second; 0: steps follow each other at once.
        #[arg(long, default_value_t = 60.0)]
        hz: f64,
    },
    /// Counts the tokens of calls that are not sampled.
    Shop {
        #[command(flatten)]
        common: Common,
        /// Calls of each model and vocabulary.
        #[arg(long, default_value_t = 640)]
        calls: u64,
        /// GGUF files whose vocabularies are used without a model.
        #[arg(long, value_delimiter = ',')]
        vocabularies: Vec<PathBuf>,
    },
    /// Measures first replies with a constraint, and replies behind other choices.
    First {
        #[command(flatten)]
        common: Common,
        /// Loads of the model.
        #[arg(long, default_value_t = 7)]
        rounds: usize,
        /// Milliseconds between the end of a load and the first ask.
        #[arg(long, value_delimiter = ',', default_value = "0,3000")]
        after: Vec<u64>,
    },
}

#[derive(Clone, Debug, Args)]
struct Common {
    /// GGUF file. Default: the demo model.
    #[arg(long, conflicts_with = "synth")]
    model: Option<PathBuf>,
    /// Random weights of a shape, as SHAPE:TYPES.
    #[arg(long)]
    synth: Option<String>,
    /// Device: auto, cpu, cuda:0.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Threads of a CPU device. Default: half of the cores.
    #[arg(long)]
    threads: Option<u32>,
    /// Commit of the result. Default: that of the working tree.
    #[arg(long)]
    commit: Option<String>,
    /// JSON file for the results.
    #[arg(long)]
    output: Option<PathBuf>,
}

impl Common {
    /// The model and its name.
    fn model(&self) -> Result<(ModelSource, String), Box<dyn Error>> {
        Ok(match (&self.model, &self.synth) {
            (Some(path), _) => (ModelSource::Path(path.clone()), name_of(path)),
            (None, Some(name)) => (ModelSource::Path(synthetic(name)?), name.clone()),
            (None, None) => (model::built_in()?, "demo".to_owned()),
        })
    }

    fn start(
        &self,
        source: ModelSource,
        agents: usize,
        context_tokens: u32,
    ) -> Result<Engine, Box<dyn Error>> {
        Ok(Engine::start(self.options(source, agents, context_tokens))?)
    }

    fn options(&self, source: ModelSource, agents: usize, context_tokens: u32) -> EngineOptions {
        EngineOptions {
            device: self.device.clone(),
            threads: self.threads,
            max_agents: Some(agents as u32),
            context_tokens,
            background_prefill: false,
            budget: FrameBudget::Unlimited,
            ..EngineOptions::new(source)
        }
    }

    fn write(&self, rows: &[Value]) -> Result<(), Box<dyn Error>> {
        let Some(path) = &self.output else { return Ok(()) };
        let all = json!({
            "machine": machine::facts(self.commit.as_deref()), "device": self.device, "rows": rows,
        });
        Ok(output::replace(path, serde_json::to_string_pretty(&all)? + "\n")?)
    }
}

fn name_of(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn client(engine: &Engine, pacing: Pacing) -> Result<Client, Box<dyn Error>> {
    Ok(engine.client(pacing)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let part = Arguments::parse().part;
    let (Part::Replies { common, .. }
    | Part::Batch { common, .. }
    | Part::Shop { common, .. }
    | Part::First { common, .. }) = &part;
    if let Some(path) = &common.output {
        output::check(path, common.model.as_slice())?;
    }
    let (rows, defect) = match &part {
        Part::Replies { common, replies, tokens } => measure_replies(common, replies, *tokens)?,
        Part::Batch { common, agents, tokens, rounds, hz } => {
            let frame = (*hz > 0.0).then(|| Duration::from_secs_f64(1.0 / hz));
            measure_batch(common, Settings { agents: *agents, tokens: *tokens, frame }, *rounds)?
        }
        Part::Shop { common, calls, vocabularies } => {
            (measure_shop(common, *calls, vocabularies)?, None)
        }
        Part::First { common, rounds, after } => (measure_first(common, *rounds, after)?, None),
    };
    common.write(&rows)?;
    defect.map_or(Ok(()), |defect| Err(defect.into()))
}

/// Rows of the result, and a defect that was found.
type Found = (Vec<Value>, Option<String>);

fn measure_replies(common: &Common, replies: &[u64], tokens: u32) -> Result<Found, Box<dyn Error>> {
    let (first, name) = common.model()?;
    let random = |is_plain| models::tiny(is_plain);
    let models = [
        (first, name, None),
        (random(true)?, "random".to_owned(), Some("Plain")),
        (random(false)?, "random".to_owned(), Some("HermesJson")),
    ];
    println!(
        "| model | calls | replies | finished | valid | cut | calls | valid calls | tokens | not \
         sampled | s |\n|---|---|---|---|---|---|---|---|---|---|---|"
    );
    let (mut rows, mut faults) = (Vec::new(), 0);
    for ((source, name, format), &replies) in models.into_iter().zip(replies) {
        let engine = common.start(source, replies::AGENTS, 2_048)?;
        let client = client(&engine, Pacing::FreeRunning)?;
        let counts = replies::measure(&engine, client, replies, tokens)?;
        let found = format_of(&engine);
        if format.is_some_and(|format| format != found) {
            return Err(format!("calls of the format {found}").into());
        }
        println!("{}", counts.line(&name, &found));
        for fault in &counts.first_faults {
            println!("not valid: {fault}");
        }
        faults += counts.faults;
        rows.push(counts.json(&name, &found));
        engine.stop();
    }
    let defect = (faults > 0).then(|| format!("{faults} replies or calls are not valid"));
    Ok((rows, defect))
}

fn measure_batch(
    common: &Common,
    settings: Settings,
    rounds: usize,
) -> Result<Found, Box<dyn Error>> {
    const SCENES: [Scene; 3] = [Scene::Plain, Scene::Text, Scene::Records];
    let (source, name) = common.model()?;
    // Twice as many agents in the rounds of both kinds. Forced tokens are more than the limit.
    let engine = common.start(source, 2 * settings.agents, 4 * settings.tokens + 64)?;
    let pacing = || match settings.frame {
        Some(_) => Pacing::PerFrame { steps: 1 },
        None => Pacing::FreeRunning,
    };
    let round = |scenes: &[Scene], reports| -> Result<Round, Box<dyn Error>> {
        batch::round(&engine, client(&engine, pacing())?, settings, scenes, reports)
    };
    // Loads the model and prepares the tables of the vocabulary and the grammars.
    for scene in SCENES {
        round(&[scene], false)?;
    }
    let mut sums = SCENES.map(|_| Round::default());
    for _ in 0..rounds {
        for (scene, sum) in SCENES.into_iter().zip(&mut sums) {
            sum.add(round(&[scene], false)?);
        }
    }
    let alone = round(&[Scene::Plain], true)?.sampled;
    let beside = round(&[Scene::Plain, Scene::Text], true)?;
    let other = round(&[Scene::Plain, Scene::Records], true)?;
    let differ =
        |round: &Round| (0..settings.agents).filter(|&n| round.sampled[n] != alone[n]).count();
    let different = differ(&beside) + differ(&other);
    let tokens: usize = alone.iter().map(Vec::len).sum();
    println!("{name}, {} agents on {}", settings.agents, common.device);
    println!(
        "| agents | steps | rows, mean | full steps | p10 / p50 / p99 | p10 to no constraint | µs a row | \
         tokens/s | not sampled | masks | late | late, behind first words | µs a mask |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|"
    );
    let full = settings.agents as u32;
    let named = SCENES.map(Scene::name).into_iter().zip(&sums).map(|of| (of, full));
    let both = [("no constraint + text", &beside), ("no constraint + records", &other)];
    // Other programs only add time to a step.
    let base = sums[0].percentile(full, 10.0);
    let mut rows = Vec::new();
    for ((scene, round), full) in named.chain(both.map(|of| (of, 2 * full))) {
        println!("{}", line(scene, round, full, base));
        rows.push(round.json(scene, full));
    }
    println!(
        "{tokens} tokens of agents without a constraint; {different} of {} agents differ",
        2 * settings.agents
    );
    rows.push(json!({
        "model": name, "agents": settings.agents, "frame_micros": settings.frame.map(|f| f.as_micros() as u64),
        "tokens_compared": 2 * tokens, "agents_that_differ": different,
    }));
    engine.stop();
    let defect =
        (different > 0).then(|| "agents without a constraint sampled other tokens".to_owned());
    Ok((rows, defect))
}

/// A line of the table. A full step has one row of each agent.
fn line(scene: &str, round: &Round, full: u32, base: f64) -> String {
    let [p10, p50, p99] = [10.0, 50.0, 99.0].map(|percent| round.percentile(full, percent));
    let [late, late_of_speakers] = round.late_percent();
    let times = match round.steps_of(full) {
        0 => "– | –".to_owned(),
        _ => {
            let [p10, p50, p99] = [p10, p50, p99].map(|micros| micros / 1e3);
            let percent = 100.0 * (1e3 * p10 / base - 1.0);
            format!("{p10:.2} / {p50:.2} / {p99:.2} ms | {percent:+.1} %")
        }
    };
    format!(
        "| {scene} | {} | {:.1} | {} | {times} | {:.1} | {:.0} | {:.1} % | {} | \
         {late:.2} % | {late_of_speakers:.2} % | {:.0} |",
        round.steps.len(),
        round.mean_rows(),
        round.steps_of(full),
        round.micros_per_row(),
        round.tokens as f64 / round.seconds,
        100.0 * round.forced as f64 / round.tokens.max(1) as f64,
        round.masks,
        round.micros_per_mask(),
    )
}

fn measure_shop(
    common: &Common,
    calls: u64,
    vocabularies: &[PathBuf],
) -> Result<Vec<Value>, Box<dyn Error>> {
    println!(
        "| model or vocabulary | calls | number | tokens a call | sampled | fewer |\n\
         |---|---|---|---|---|---|"
    );
    let (first, name) = common.model()?;
    let models = [(first, name), (models::tiny(false)?, "random".to_owned())];
    let mut rows = Vec::new();
    for (source, name) in models {
        let engine = common.start(source, 16, 1_536)?;
        let client = client(&engine, Pacing::FreeRunning)?;
        let counts = shop::measure(&engine, client, calls)?;
        let format = format_of(&engine);
        println!("{}", counts.line(&name, &format));
        rows.push(counts.json(&name, &format));
        engine.stop();
    }
    for path in vocabularies {
        let (counts, format) = shop::of_vocabulary(path, calls)?;
        println!("{}", counts.line(&name_of(path), &format));
        rows.push(counts.json(&name_of(path), &format));
    }
    Ok(rows)
}

fn measure_first(
    common: &Common,
    rounds: usize,
    after: &[u64],
) -> Result<Vec<Value>, Box<dyn Error>> {
    let start = |prepare_constraints| -> Result<_, Box<dyn Error>> {
        let (source, name) = common.model()?;
        let options = common.options(source, 16, 4_096);
        let options = EngineOptions { prepare_constraints, budget: FrameBudget::Auto, ..options };
        let start = Instant::now();
        let engine = Engine::start(options)?;
        Host::new(&engine, client(&engine, Pacing::FreeRunning)?)?;
        Ok((engine, name, start.elapsed().as_secs_f64() * 1e3))
    };
    let mut rows = Vec::new();
    let scenes = after.iter().flat_map(|after_ms| [(*after_ms, false), (*after_ms, true)]);
    for (after_ms, is_prepared) in scenes {
        let (mut shots, mut loads) = (Vec::new(), Vec::new());
        let mut model = String::new();
        for _ in 0..rounds {
            let (engine, name, load) = start(is_prepared)?;
            let client = client(&engine, Pacing::FreeRunning)?;
            shots.push(first::replies(&engine, client, Duration::from_millis(after_ms))?);
            loads.push(load);
            model = name;
            engine.stop();
        }
        let [load, ..] = first::spread(loads);
        let tables = if is_prepared { "prepared while loading" } else { "not prepared" };
        println!("\n{model}, tables {tables}, asked {after_ms} ms after a load of {load:.0} ms");
        let settings = json!({"model": model, "prepare_constraints": is_prepared,
            "after_ms": after_ms, "load_ms": load.round()});
        rows.extend(first::report(first::REPLIES, &shots, &settings));
    }
    let mut shots = Vec::new();
    let (engine, model, _) = start(true)?;
    for _ in 0..rounds {
        let client = client(&engine, Pacing::FreeRunning)?;
        shots.push(first::choices(&engine, client)?);
    }
    println!("\n{model}, choices of an action");
    let settings = json!({"model": model});
    rows.extend(first::report(first::CHOICES, &shots, &settings));
    engine.stop();
    Ok(rows)
}
