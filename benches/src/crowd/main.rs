//! A crowd that is asked at once, after several histories, and a village: a shop, a guard, a quest,
//! a companion, gossip and the crowd, at 60 frames per second.
//!
//! ```text
//! cargo run --release -p walla_benches --bin crowd -- --threads 1 \
//!     --model qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
//! ```
//!
//! The crowd is as fast after each history as on a new engine, if the engine predicts the times of
//! its steps well.

mod scenes;
mod village;

use std::error::Error;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use serde_json::{Value, json};
use walla_benches::game::{Game, Values};
use walla_benches::{machine, output, synthetic};
use walla_runtime::{Engine, EngineOptions, FrameBudget, ModelSource, Pacing};

use self::scenes::{Row, Scenes};

/// Work of an engine before its crowd is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum History {
    /// Nothing.
    Cold,
    /// Twelve replies, one at a time.
    Single,
    /// One constrained reply.
    Constrained,
    /// All phases of the village.
    Village,
}

/// A crowd of agents that are asked at once, after several histories.
#[derive(Clone, Debug, Parser)]
struct Args {
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
    /// Device-time budget of a frame in ms, `default` or `none`.
    #[arg(long, default_value = "default")]
    budget: String,
    /// Agents of the crowd.
    #[arg(long, default_value_t = 40)]
    agents: usize,
    /// Tokens of a reply at most.
    #[arg(long, default_value_t = 8)]
    reply_tokens: u32,
    /// Histories.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "cold,single,constrained,village"
    )]
    histories: Vec<History>,
    /// Engines per history, in turn.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Work of the game in a frame, in ms, on each of its threads.
    #[arg(long, default_value_t = 4.0)]
    work_ms: f64,
    /// Threads of the game.
    #[arg(long, default_value_t = 1)]
    game_threads: usize,
    /// Commit of the result. Default: that of the working tree.
    #[arg(long)]
    commit: Option<String>,
    /// JSON file for the results.
    #[arg(long)]
    output: Option<PathBuf>,
}

#[cfg(feature = "demo")]
fn built_in() -> Result<ModelSource, Box<dyn Error>> {
    Ok(ModelSource::demo())
}

#[cfg(not(feature = "demo"))]
fn built_in() -> Result<ModelSource, Box<dyn Error>> {
    Err("built without the demo model: name one with --model or --synth".into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(path) = &args.output {
        output::check(path, args.model.as_slice())?;
    }
    let source = match (&args.model, &args.synth) {
        (Some(path), _) => ModelSource::Path(path.clone()),
        (None, Some(name)) => ModelSource::Path(synthetic(name)?),
        (None, None) => built_in()?,
    };
    let mut game = Game::new(args.game_threads, args.work_ms / 1e3, 1.0 / 60.0);
    let mut results = Vec::new();
    println!("{}", scenes::HEADER);
    for round in 0..args.rounds {
        for &history in &args.histories {
            let alone = game.alone(300);
            for row in play(&args, &source, &mut game, history)? {
                println!("| {history:?} | {}", row.line(&alone));
                let mut row = row.json(&alone);
                row["history"] = format!("{history:?}").to_lowercase().into();
                row["round"] = round.into();
                results.push(row);
            }
        }
    }
    if let Some(path) = &args.output {
        let model = args.model.as_deref().and_then(|path| path.file_name());
        let all = json!({
            "machine": machine::facts(args.commit.as_deref()),
            "model": model.map(|name| name.to_string_lossy().into_owned()).or(args.synth),
            "ratios_to_cold": ratios(&results),
            "rows": results,
        });
        output::replace(path, serde_json::to_string_pretty(&all)? + "\n")?;
    }
    Ok(())
}

/// Median time of the first crowd after each history, relative to the cold one's.
fn ratios(rows: &[Value]) -> Value {
    let median = |history: &str| {
        let mut values = Values::default();
        let is_first = |row: &&Value| row["history"] == history && row["scene"] == "crowd";
        rows.iter()
            .filter(is_first)
            .filter_map(|row| row["seconds"].as_f64())
            .for_each(|s| values.add(s));
        values.percentile(50.0)
    };
    let cold = median("cold");
    let ratio = |history: &str| (median(history) / cold * 1e3).round() / 1e3;
    json!({
        "single": ratio("single"), "constrained": ratio("constrained"), "village": ratio("village"),
    })
}

fn play(
    args: &Args,
    source: &ModelSource,
    game: &mut Game,
    history: History,
) -> Result<Vec<Row>, Box<dyn Error>> {
    let options = EngineOptions {
        device: args.device.clone(),
        threads: args.threads,
        budget: match args.budget.as_str() {
            "none" => FrameBudget::Unlimited,
            "default" => FrameBudget::Auto,
            millis => FrameBudget::Time(std::time::Duration::try_from_secs_f64(
                millis.parse::<f64>()? / 1e3,
            )?),
        },
        ..EngineOptions::new(source.clone())
    };
    let engine = Engine::start(options)?;
    let client = engine.client(Pacing::default())?;
    game.wait_until_ready(&engine)?;
    let mut scenes = Scenes::new(game, &client);
    let crowd = village::crowd(&mut scenes, args.agents, args.reply_tokens)?;
    let cast = village::Cast::new(&mut scenes)?;
    let mut rows = vec![scenes.scene("preparation", Scenes::prepare)?];
    match history {
        History::Cold => {}
        History::Single => rows.push(scenes.scene("single replies", |s| cast.singles(s))?),
        History::Constrained => rows.push(scenes.scene("constrained reply", |s| cast.quest(s, 1))?),
        History::Village => {
            rows.push(scenes.scene("shop", |s| cast.shop(s))?);
            rows.push(scenes.scene("guard", |s| cast.guard(s))?);
            rows.push(scenes.scene("quest", |s| cast.quest(s, 3))?);
            rows.push(scenes.scene("companion", |s| cast.companion(s))?);
            rows.push(scenes.scene("gossip", |s| cast.gossip(s))?);
        }
    }
    scenes.prepare()?;
    let question = "What does a horseshoe cost?";
    rows.push(scenes.scene("crowd", |s| village::ask_crowd(s, &crowd, question))?);
    scenes.prepare()?;
    let question = "And what is the news?";
    rows.push(scenes.scene("crowd again", |s| village::ask_crowd(s, &crowd, question))?);
    drop(client);
    engine.stop();
    Ok(rows)
}
