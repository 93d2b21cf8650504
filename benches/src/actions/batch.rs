//! A batch of agents with different schemas next to the same number of agents without any.

use std::error::Error;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use walla_runtime::{
    AgentSpec, AskOptions, Client, Command, Constraint, Engine, EngineStats, Prompt,
};
use walla_types::{Sampling, TokenId};

use super::host::Host;
use super::schemas::{endless_records, endless_text};

/// Tokens of a prompt. It is raw, so that prompts do not depend on the model.
const PROMPT_TOKENS: u32 = 8;

/// Steps at the beginning of a round that are not measured: they evaluate prompts.
const STEPS_BEFORE: u64 = 4;

/// Timeout of a round.
const MAX_ROUND: Duration = Duration::from_secs(300);

/// Who is in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// Agents without a constraint.
    Plain,
    /// Agents that write words from two groups of letters: draws have different masks, and nearly
    /// no token is forced.
    Text,
    /// Agents that write lists of records: many tokens are forced.
    Records,
}

impl Scene {
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "no constraint",
            Self::Text => "text",
            Self::Records => "records",
        }
    }

    fn constraint(self, n: u64) -> Option<Constraint> {
        let schema = match self {
            Self::Plain => return None,
            Self::Text => endless_text(n),
            Self::Records => endless_records(n),
        };
        Some(Constraint::json_schema_value(&schema))
    }
}

/// Measured values of a round.
#[derive(Debug, Default)]
pub struct Round {
    /// Device time in microseconds and rows of the steps in which all agents were active.
    pub steps: Vec<(f64, u32)>,
    pub tokens: u64,
    pub forced: u64,
    pub seconds: f64,
    pub masks: u64,
    pub masks_late: u64,
    /// The same, from the time on at which all agents have spoken.
    pub masks_of_speakers: u64,
    pub masks_late_of_speakers: u64,
    pub mask_micros: f64,
    /// Sampled tokens of each agent, with the bits of their log-probabilities.
    pub sampled: Vec<Vec<(u32, u32)>>,
}

/// Size and pace of the rounds.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub agents: usize,
    pub tokens: u32,
    /// Duration of a frame; `None`: steps follow each other at once.
    pub frame: Option<Duration>,
}

/// An agent that speaks until its limit.
fn spec(engine: &Engine, n: u64, tokens: u32, reports: bool) -> Result<AgentSpec, Box<dyn Error>> {
    let tokenizer = engine.tokenizer().ok_or("the engine is ready")?;
    let sampling = Sampling::builder().temperature(1.0).seed(n).candidates(u32::from(reports));
    let ends = tokenizer.end_of_generation_tokens();
    let sampling = ends.fold(sampling, |builder, end| builder.bias(end, f32::NEG_INFINITY));
    Ok(AgentSpec { sampling: sampling.build()?, max_reply_tokens: tokens, ..AgentSpec::new("") })
}

fn prompt(n: u64) -> Prompt {
    Prompt::Tokens((0..PROMPT_TOKENS).map(|at| TokenId(40 + (n as u32 * 3 + at) % 60)).collect())
}

/// One reply of each agent of all scenes, which begin at once. With `reports`, agents without a
/// constraint report their tokens.
pub fn round(
    engine: &Engine,
    client: Client,
    settings: Settings,
    scenes: &[Scene],
    reports: bool,
) -> Result<Round, Box<dyn Error>> {
    let mut host = Host::new(engine, client)?;
    let before = engine.stats();
    let all = settings.agents * scenes.len();
    let mut agents = Vec::new();
    for place in 0..all {
        let (scene, n) = (scenes[place / settings.agents], (place % settings.agents) as u64);
        let reports = reports && scene == Scene::Plain;
        let agent = host.add(spec(engine, n, settings.tokens, reports)?)?;
        let options = AskOptions { constraint: scene.constraint(n), ..AskOptions::default() };
        host.ask((place, agent), 0, prompt(n), options)?;
        agents.push(agent);
    }
    let mut round = Round { sampled: vec![Vec::new(); all], ..Round::default() };
    let start = Instant::now();
    let mut last = engine.stats();
    let mut frame_end = start;
    let mut spoken = None;
    while !host.is_idle() {
        if let Some(frame) = settings.frame
            && frame_end <= Instant::now()
        {
            host.client().frame();
            frame_end = Instant::now() + frame;
        }
        host.poll(&mut |place, heard| {
            let (tokens, forced) = (heard.usage.reply_tokens, heard.usage.forced_tokens);
            round.tokens += u64::from(tokens);
            round.forced += u64::from(forced);
            round.sampled[place] = heard.tokens;
        })?;
        let now = engine.stats();
        if spoken.is_none() && host.all_speak() {
            spoken = Some(now);
        }
        if now.steps_done > before.steps_done + STEPS_BEFORE {
            round.note(&last, &now, all as u32);
        }
        last = now;
        if start.elapsed() > MAX_ROUND {
            return Err(format!("a round takes too long: {now:?}").into());
        }
        std::thread::sleep(Duration::from_micros(150));
    }
    round.seconds = start.elapsed().as_secs_f64();
    let after = engine.stats();
    round.masks = after.masks - before.masks;
    round.masks_late = after.masks_late - before.masks_late;
    let spoken = spoken.unwrap_or(after);
    round.masks_of_speakers = after.masks - spoken.masks;
    round.masks_late_of_speakers = after.masks_late - spoken.masks_late;
    round.mask_micros = (after.mask_time - before.mask_time).as_secs_f64() * 1e6;
    for agent in agents {
        host.send(Command::RemoveAgent { agent })?;
    }
    Ok(round)
}

impl Round {
    /// Notes a step that has completed between two readings.
    fn note(&mut self, last: &EngineStats, now: &EngineStats, agents: u32) {
        let is_one = now.steps_done == last.steps_done + 1 && now.steps == now.steps_done;
        if is_one && now.agents_active == agents {
            let micros = (now.device_time - last.device_time).as_secs_f64() * 1e6;
            self.steps.push((micros, now.step_rows));
        }
    }

    /// Adds another round of the same scene.
    pub fn add(&mut self, other: Self) {
        self.steps.extend(other.steps);
        self.tokens += other.tokens;
        self.forced += other.forced;
        self.seconds += other.seconds;
        self.masks += other.masks;
        self.masks_late += other.masks_late;
        self.masks_of_speakers += other.masks_of_speakers;
        self.masks_late_of_speakers += other.masks_late_of_speakers;
        self.mask_micros += other.mask_micros;
    }

    /// The smallest time of a step with `rows` rows that is not below `percent` of all, in
    /// microseconds. 0 without such a step.
    pub fn percentile(&self, rows: u32, percent: f64) -> f64 {
        let of_rows = self.steps.iter().filter(|step| step.1 == rows);
        let mut sorted: Vec<f64> = of_rows.map(|(micros, _)| *micros).collect();
        sorted.sort_by(f64::total_cmp);
        let place = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
        sorted.get(place.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// Number of steps with `rows` rows.
    pub fn steps_of(&self, rows: u32) -> usize {
        self.steps.iter().filter(|step| step.1 == rows).count()
    }

    pub fn micros_per_row(&self) -> f64 {
        let micros: f64 = self.steps.iter().map(|(micros, _)| micros).sum();
        micros / (self.mean_rows() * self.steps.len().max(1) as f64).max(1.0)
    }

    pub fn mean_rows(&self) -> f64 {
        let rows: u32 = self.steps.iter().map(|(_, rows)| rows).sum();
        f64::from(rows) / self.steps.len().max(1) as f64
    }

    /// Late masks of all, and of those behind the first words.
    pub fn late_percent(&self) -> [f64; 2] {
        let percent = |late: u64, all: u64| 100.0 * late as f64 / all.max(1) as f64;
        let of_speakers = percent(self.masks_late_of_speakers, self.masks_of_speakers);
        [percent(self.masks_late, self.masks), of_speakers]
    }

    pub fn micros_per_mask(&self) -> f64 {
        self.mask_micros / self.masks.max(1) as f64
    }

    pub fn json(&self, scene: &str, rows: u32) -> Value {
        let tenth = |value: f64| (value * 10.0).round() / 10.0;
        json!({
            "scene": scene, "steps": self.steps.len(), "rows_mean": tenth(self.mean_rows()),
            "steps_full": self.steps_of(rows),
            "step_full_micros": {
                "p10": tenth(self.percentile(rows, 10.0)), "p50": tenth(self.percentile(rows, 50.0)),
                "p99": tenth(self.percentile(rows, 99.0)),
            },
            "micros_per_row": tenth(self.micros_per_row()),
            "tokens": self.tokens, "forced": self.forced,
            "tokens_per_second": tenth(self.tokens as f64 / self.seconds),
            "masks": self.masks, "masks_late": self.masks_late,
            "masks_of_speakers": self.masks_of_speakers,
            "masks_late_of_speakers": self.masks_late_of_speakers,
            "mask_micros_mean": tenth(self.micros_per_mask()),
        })
    }
}
