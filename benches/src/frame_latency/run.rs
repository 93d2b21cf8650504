//! Runs a cell: a separate app, whose frames run in a loop.

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::EngineOptions;
use bevy_walla::diagnostics::EngineStats;
use bevy_walla::engine::{BucketError, Engine, EngineClient, EngineState, Pacing};
use bevy_walla::engines::EngineSetup;
use bevy_walla::options::{FrameBudget, ModelSource};
use bevy_walla::prelude::*;
use serde_json::{Value, json};
use walla_benches::machine::{Power, PowerMeter};
use walla_trace::{TraceFile, host_span, now_nanos};

use crate::args::{Arguments, Mode};
use crate::cell::Cell;
use crate::event::{self, Met, Newcomer};
use crate::llama::Llama;
use crate::load::{self, Load};
use crate::measure::{Times, rounded};
use crate::model;
use crate::talk;
use crate::voices::{Heard, Voices};
use crate::waiting::Waiting;

/// Frames of a trace, and of a timeline plot.
pub const FRAMES_SHOWN: usize = 300;

/// Maximum number of frames to wait for agents that do not speak.
const MAX_SILENCE: usize = 3_600;

/// State shared by cells.
pub struct Bench<'a> {
    arguments: &'a Arguments,
    loads: HashMap<Duration, Load>,
    /// Only one at a time, so that cells do not share memory.
    engine: Option<(EngineKey, Engine)>,
    pub model: String,
    trace: Option<&'a std::path::Path>,
    /// The text that a new agent asks about, if there is one.
    song: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct EngineKey {
    device: String,
    governed: bool,
}

/// One frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame {
    /// From its beginning to the beginning of the next.
    pub interval: Duration,
    /// From its beginning to its end.
    pub work: Duration,
    /// Time in walla's systems, including waits.
    pub side: Duration,
    /// Device time of the steps whose results this frame received.
    pub device: Duration,
}

/// Relative errors of the governor's predictions for one bucket since the engine was started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    pub rows: u64,
    pub steps: u64,
    pub p50: f64,
    pub p99: f64,
}

impl Bucket {
    pub fn to_json(self) -> Value {
        let Self { rows, steps, p50, p99 } = self;
        json!({ "rows": rows, "steps": steps, "p50": rounded(p50), "p99": rounded(p99) })
    }

    /// Parses the output of [`to_json`](Self::to_json).
    pub fn of(value: &Value) -> Option<Self> {
        Some(Self {
            rows: value["rows"].as_u64()?,
            steps: value["steps"].as_u64()?,
            p50: value["p50"].as_f64()?,
            p99: value["p99"].as_f64()?,
        })
    }
}

/// Results of a cell.
pub struct Outcome {
    pub cell: Cell,
    pub frames: Vec<Frame>,
    /// p99 of the frames' work in each round.
    pub work_p99: Vec<Duration>,
    pub heard: Heard,
    pub elapsed: Duration,
    /// The engine's counters at the beginning and end of each round's measurement.
    pub stats: Vec<(EngineStats, EngineStats)>,
    /// Buckets that ran in the round with the most steps.
    pub buckets: Vec<Bucket>,
    /// Power of the round with the highest reading.
    pub power: Power,
    /// Effect of a new agent, in the round with the longest wait.
    pub met: Option<Met>,
}

impl Outcome {
    /// Adds a run to the runs of earlier rounds.
    pub fn collect(outcomes: &mut Vec<Self>, outcome: Self) {
        let Some(same) = outcomes.iter_mut().find(|other| other.cell == outcome.cell) else {
            return outcomes.push(outcome);
        };
        same.frames.extend(outcome.frames);
        same.work_p99.extend(outcome.work_p99);
        same.heard.add(&outcome.heard);
        same.elapsed += outcome.elapsed;
        same.stats.extend(outcome.stats);
        let steps = |buckets: &[Bucket]| buckets.iter().map(|bucket| bucket.steps).sum::<u64>();
        if steps(&outcome.buckets) > steps(&same.buckets) {
            same.buckets = outcome.buckets;
        }
        same.power = same.power.larger(outcome.power);
        let moved = |met: &Option<Met>| met.as_ref().map(|met| met.max_moved);
        if moved(&outcome.met) > moved(&same.met) {
            same.met = outcome.met;
        }
    }

    /// Difference of an engine counter, summed over all rounds.
    pub fn counted(&self, counter: impl Fn(&EngineStats) -> u64) -> u64 {
        let of_round = |(before, after): &(EngineStats, EngineStats)| {
            counter(after).saturating_sub(counter(before))
        };
        self.stats.iter().map(of_round).sum()
    }

    /// Distribution of a duration over all frames.
    pub fn times(&self, part: impl Fn(&Frame) -> Duration) -> Times {
        times(&self.frames, part)
    }
}

fn times(frames: &[Frame], part: impl Fn(&Frame) -> Duration) -> Times {
    let mut times = Times::default();
    frames.iter().for_each(|frame| times.add(part(frame)));
    times
}

impl<'a> Bench<'a> {
    pub fn new(arguments: &'a Arguments) -> Result<Self, Box<dyn Error>> {
        let trace = arguments.trace.as_deref();
        let tokens = arguments.prefill_event.min(arguments.context * 3 / 4);
        let song = (tokens > 0).then(|| event::song(&source(arguments)?, tokens)).transpose()?;
        let (loads, model) = (HashMap::new(), String::new());
        Ok(Self { arguments, loads, engine: None, model, trace, song })
    }

    /// Runs a cell; `None` if this machine lacks a requirement.
    pub fn run(&mut self, cell: &Cell) -> Result<Option<Outcome>, Box<dyn Error>> {
        let threads = self.arguments.host_threads;
        let load = self.loads.entry(cell.load).or_insert_with(|| Load::lasting(cell.load, threads));
        let mut app = App::new();
        load::add_game(&mut app, *load, threads);
        app.insert_resource(Voices::new(cell.agents, self.arguments.voice_rate));
        let mut llama = None;
        match cell.mode {
            Mode::Off => {}
            Mode::Llama => {
                self.engine = None;
                llama = Llama::start(self.arguments, cell, &mut app)?;
                if llama.is_none() {
                    return Ok(None);
                }
            }
            Mode::Walla | Mode::WallaNoOverlap | Mode::Blocking => {
                self.add_walla(&mut app, cell)?;
            }
        }
        let meter = PowerMeter::start(&cell.device);
        let mut outcome = self.frames(app, cell)?;
        outcome.power = meter.finish();
        if let (true, Some((_, engine))) = (cell.mode.is_governed(), &self.engine) {
            let bucket = |error: BucketError| Bucket {
                rows: error.bucket.into(),
                steps: error.steps,
                p50: error.p50.into(),
                p99: error.p99.into(),
            };
            outcome.buckets = engine.prediction_errors().into_iter().map(bucket).collect();
        }
        drop(llama);
        self.wait_until_empty();
        Ok(Some(outcome))
    }

    fn add_walla(&mut self, app: &mut App, cell: &Cell) -> Result<(), Box<dyn Error>> {
        let engine = self.engine(cell)?;
        if cell.mode == Mode::Walla {
            app.add_plugins(WallaPlugin::new(engine));
        } else {
            let client = Waiting::new(engine.client(Pacing::default())?);
            let new_client = move || Box::new(client.clone()) as Box<dyn EngineClient>;
            app.add_plugins(WallaPlugin::new(EngineSetup::client(new_client)));
        }
        let Arguments { reply_tokens, voice_rate, prefill_event, digits, .. } = *self.arguments;
        talk::add_talk(app, cell.agents, reply_tokens, voice_rate);
        if digits {
            talk::speak_digits(app);
        }
        if prefill_event > 0 {
            event::add_newcomer(app);
        }
        Ok(())
    }

    /// The engine for a cell: loaded if it differs from the previous cell's.
    fn engine(&mut self, cell: &Cell) -> Result<Engine, Box<dyn Error>> {
        let key = EngineKey { device: cell.device.clone(), governed: cell.mode.is_governed() };
        if self.engine.as_ref().is_none_or(|(loaded, _)| *loaded != key) {
            self.engine = None;
            let engine = Engine::start(self.options(&key)?)?;
            wait_until_ready(&engine)?;
            self.engine = Some((key, engine));
        }
        let Some((_, engine)) = &self.engine else { return Err("no engine".into()) };
        if let Some(card) = engine.model() {
            let name = card.name.as_deref().unwrap_or(card.architecture);
            self.model = format!("{name}, {:.0} MB", card.file_bytes as f64 / 1e6);
        }
        engine.set_budget(cell.mode.is_governed().then_some(cell.budget));
        Ok(engine.clone())
    }

    fn options(&self, key: &EngineKey) -> Result<EngineOptions, Box<dyn Error>> {
        let arguments = self.arguments;
        let agents = arguments.agents.iter().copied().max().unwrap_or(1) + 1;
        let options = EngineOptions {
            device: key.device.clone(),
            threads: arguments.threads,
            context_tokens: arguments.context,
            max_agents: Some(u32::try_from(agents).unwrap_or(u32::MAX)),
            // On a CPU, one decode token per agent and part of a prompt; whole buckets of 64.
            max_rows: (agents > 64 && key.device == "cpu")
                .then(|| (agents as u32 + 63).next_multiple_of(64).clamp(128, 512)),
            ..EngineOptions::new(source(arguments)?)
        };
        let options = EngineOptions {
            max_launch: arguments.max_launch().unwrap_or(options.max_launch),
            ..options
        };
        if key.governed {
            return Ok(options);
        }
        // Like a game that calls a library from its frame, except for prompts: those are prefilled
        // by 512 tokens per step, the engine's maximum, while a library would prefill a whole
        // prompt.
        Ok(EngineOptions {
            max_rows: Some(512),
            max_prefill_tokens: Some(512),
            budget: FrameBudget::Unlimited,
            max_launch: None,
            ..options
        })
    }

    /// Waits until the engine has removed the agents of the previous cell's client.
    fn wait_until_empty(&self) {
        let start = Instant::now();
        while self.engine.as_ref().is_some_and(|(_, engine)| engine.stats().agents > 0)
            && start.elapsed() < Duration::from_secs(2)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn frames(&mut self, mut app: App, cell: &Cell) -> Result<Outcome, Box<dyn Error>> {
        let warm_up = self.arguments.warm_up;
        let frames = self.arguments.frames_of(cell.mode);
        app.finish();
        app.cleanup();
        let mut pacer = Pacer::new(cell.period());
        let mut watch = CompletionFlag::default();
        let mut warm = 0;
        // At the beginning all prompts are prefilled at once, which is not typical of a game.
        for _ in 0..warm_up + MAX_SILENCE {
            if warm == warm_up {
                break;
            }
            warm += usize::from(app.world().resource::<Voices>().silent() == 0);
            watch.frame(&mut app, &mut pacer);
            if let Some(walla) = app.world().get_resource::<Walla>()
                && let WallaState::Failed(error) = walla.state()
            {
                return Err(error.to_string().into());
            }
        }
        has_begun(app.world().resource::<Voices>(), cell.agents)?;
        let mut trace = match (cell.mode, self.trace) {
            (Mode::Walla, Some(path)) => {
                self.trace = None;
                Some(TraceFile::start(path)?)
            }
            _ => None,
        };
        app.world_mut().resource_mut::<Voices>().measure();
        let stats = stats(&app);
        let mut measured = Vec::with_capacity(frames);
        let start = Instant::now();
        for number in 0..frames {
            if number == FRAMES_SHOWN
                && let Some(trace) = trace.take()
            {
                trace.finish()?;
            }
            if number == frames / 2
                && app.world().contains_resource::<Newcomer>()
                && let Some(song) = &self.song
            {
                event::arrive(&mut app, song.clone());
            }
            measured.push(watch.frame(&mut app, &mut pacer));
        }
        let elapsed = start.elapsed();
        let stats = stats.zip(self::stats(&app)).into_iter().collect();
        event::end(&mut app);
        let met = app.world().get_resource::<Newcomer>().and_then(|newcomer| newcomer.met.clone());
        let heard = app.world().resource::<Voices>().measured.clone();
        let (cell, power, buckets) = (cell.clone(), Power::default(), Vec::new());
        let work_p99 = vec![times(&measured, |frame| frame.work).at(0.99)];
        let frames = measured;
        Ok(Outcome { cell, frames, work_p99, heard, elapsed, stats, buckets, power, met })
    }
}

fn source(arguments: &Arguments) -> Result<ModelSource, Box<dyn Error>> {
    match &arguments.model {
        Some(path) => Ok(ModelSource::Path(path.clone())),
        None => model::built_in(),
    }
}

/// Fails if an agent never spoke, with the first reported reason.
fn has_begun(voices: &Voices, agents: usize) -> Result<(), Box<dyn Error>> {
    let silent = voices.silent();
    if silent == 0 {
        return Ok(());
    }
    let reason = voices.measured.error.as_deref().unwrap_or("no reply failed");
    Err(format!("{silent} of {agents} agents never spoke: {reason}").into())
}

fn stats(app: &App) -> Option<EngineStats> {
    app.world().get_resource::<Walla>().map(|walla| *walla.stats())
}

fn wait_until_ready(engine: &Engine) -> Result<(), Box<dyn Error>> {
    loop {
        match engine.state() {
            EngineState::Ready => return Ok(()),
            EngineState::Loading { .. } => std::thread::sleep(Duration::from_millis(5)),
            EngineState::Failed(error) => return Err(error.to_string().into()),
            EngineState::Stopped => return Err("the engine was stopped".into()),
        }
    }
}

/// Starts frames at a fixed rate, like a display. A late frame does not shorten the following
/// intervals.
struct Pacer {
    period: Duration,
    due: Instant,
}

impl Pacer {
    fn new(period: Duration) -> Self {
        Self { period, due: Instant::now() }
    }

    fn wait(&mut self) {
        let now = Instant::now();
        if let Some(left) = self.due.checked_duration_since(now) {
            std::thread::sleep(left);
            self.due += self.period;
        } else {
            self.due = now + self.period;
        }
    }
}

/// Measures successive frames.
#[derive(Default)]
struct CompletionFlag {
    begin: Option<Instant>,
    device: Duration,
}

impl CompletionFlag {
    /// Runs a frame. Its interval is the one that ends at its beginning.
    fn frame(&mut self, app: &mut App, pacer: &mut Pacer) -> Frame {
        pacer.wait();
        app.world_mut().resource_mut::<Voices>().frame += 1;
        let (begin, begin_nanos) = (Instant::now(), now_nanos());
        app.update();
        let work = begin.elapsed();
        if walla_trace::is_listening() {
            host_span("frame", begin_nanos..now_nanos());
        }
        let interval = self.begin.map_or(pacer.period, |before| begin.duration_since(before));
        self.begin = Some(begin);
        let walla = app.world().get_resource::<Walla>();
        let device = walla.map_or(Duration::ZERO, |walla| walla.stats().device_time);
        let used = device.saturating_sub(std::mem::replace(&mut self.device, device));
        let side = walla.map_or(Duration::ZERO, |walla| walla.host_times().total());
        Frame { interval, work, side, device: used }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_without_tokens_are_an_error_with_the_reason() {
        let mut voices = Voices::new(2, 6.0);
        voices.heard(0, 1, Instant::now());
        let error = |voices: &Voices| has_begun(voices, 2).unwrap_err().to_string();
        assert_eq!(error(&voices), "1 of 2 agents never spoke: no reply failed");
        voices.ended(1, Some("status 400: no slot is free".into()));
        assert_eq!(error(&voices), "1 of 2 agents never spoke: status 400: no slot is free");
        voices.heard(1, 1, Instant::now());
        assert!(has_begun(&voices, 2).is_ok());
    }
}
