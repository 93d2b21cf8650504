//! Time from an ask to its first token, for agents that were prepared before they are asked and for
//! agents that were not, under several frame budgets, while a game loads the processor.
//!
//! ```text
//! cargo run --release -p walla_benches --bin first_words
//! ```

#[path = "../frame_latency/model.rs"]
mod model;
mod report;
mod scenes;

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use serde_json::json;
use walla_benches::game::Game;
use walla_benches::{machine, output, synthetic};
use walla_runtime::{Engine, EngineOptions, FrameBudget, ModelSource, Pacing};

use self::scenes::{Cast, Scenes};

/// Time to the first token of agents that are cold, warm, or have a full context.
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
    /// Device-time budgets of a frame in ms, `default` or `none`.
    #[arg(long, value_delimiter = ',', default_value = "none,16,8,4.17,2,default")]
    budgets: Vec<String>,
    /// Agents that are asked in one frame.
    #[arg(long, default_value_t = 12)]
    agents: usize,
    /// Other agents, which speak all the time.
    #[arg(long, default_value_t = 0)]
    speakers: usize,
    /// Tokens of a persona. No two agents have the same.
    #[arg(long, default_value_t = 120)]
    persona_tokens: usize,
    /// Context length in tokens.
    #[arg(long, default_value_t = 1_024)]
    context: u32,
    /// Asks of each scene with one agent.
    #[arg(long, default_value_t = 12)]
    rounds: usize,
    /// Rounds of each scene with all agents.
    #[arg(long, default_value_t = 3)]
    crowds: usize,
    /// Work of the game in a frame, in ms, on each of its threads.
    #[arg(long, default_value_t = 8.0)]
    work_ms: f64,
    /// Threads of the game. Default: one per core.
    #[arg(long)]
    game_threads: Option<usize>,
    /// Frames per second.
    #[arg(long, default_value_t = 60.0)]
    hz: f64,
    /// Maximum device time of one step on a GPU, in ms; 0: no limit. Default: the engine's.
    #[arg(long)]
    launch_ms: Option<f64>,
    /// Turns the background prefill off.
    #[arg(long)]
    no_background: bool,
    /// Commit of the result. Default: that of the working tree.
    #[arg(long)]
    commit: Option<String>,
    /// JSON file for the results.
    #[arg(long)]
    output: Option<PathBuf>,
}

fn budget(name: &str) -> Result<FrameBudget, Box<dyn Error>> {
    Ok(match name {
        "none" => FrameBudget::Unlimited,
        "default" => FrameBudget::Auto,
        millis => FrameBudget::Time(Duration::try_from_secs_f64(millis.parse::<f64>()? / 1e3)?),
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(path) = &args.output {
        output::check(path, args.model.as_slice())?;
    }
    let source = match (&args.model, &args.synth) {
        (Some(path), _) => ModelSource::Path(path.clone()),
        (None, Some(name)) => ModelSource::Path(synthetic(name)?),
        (None, None) => model::built_in()?,
    };
    let budgets = args.budgets.iter().map(|name| Ok((name, budget(name)?)));
    let budgets = budgets.collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    let threads = args
        .game_threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let mut game = Game::new(threads, args.work_ms / 1e3, 1.0 / args.hz);
    let mut results = Vec::new();
    println!("{}", report::HEADER);
    for (name, budget) in budgets {
        // Before each budget, because other programs use the machine too.
        let alone = game.alone((5.0 * args.hz) as usize);
        let options = EngineOptions {
            device: args.device.clone(),
            threads: args.threads,
            context_tokens: args.context,
            max_agents: Some((args.agents + args.speakers).max(1) as u32),
            background_prefill: !args.no_background,
            budget,
            ..EngineOptions::new(source.clone())
        };
        let engine = Engine::start(match args.launch_ms {
            Some(ms) => EngineOptions { max_launch: walla_benches::max_launch(ms), ..options },
            None => options,
        })?;
        let client = engine.client(Pacing::default())?;
        game.wait_until_ready(&engine)?;
        let tokenizer = engine.tokenizer().ok_or("the engine is ready")?;
        let cast = Cast::new(tokenizer.clone(), args.persona_tokens, args.context);
        let mut scenes = Scenes::new(&mut game, &client, cast, args.speakers);
        for row in scenes.play(args.agents, args.rounds, args.crowds)? {
            println!("{}", report::line(name, &row, &alone));
            results.push(report::json(name, &row, &alone));
        }
        drop(client);
        engine.stop();
    }
    if let Some(path) = &args.output {
        let all = json!({
            "machine": machine::facts(args.commit.as_deref()),
            "game": { "threads": threads, "work_ms": args.work_ms, "hz": args.hz },
            "rows": results,
        });
        output::replace(path, serde_json::to_string_pretty(&all)? + "\n")?;
    }
    Ok(())
}
