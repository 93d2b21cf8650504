//! Alternates the modes.

use std::time::{Duration, Instant};

use bevy::app::AppExit;
use bevy::prelude::*;
use bevy::render::renderer::RenderAdapterInfo;
use bevy::render::view::screenshot::{Screenshot, ScreenshotCaptured};
use bevy_walla::diagnostics::EngineStats;
use walla_examples::fail;

use crate::free::FreeDecoder;
use crate::games::Games;
use crate::meter::{DrawnFrames, Frame, Times};
use crate::report;
use crate::scene::Canvas;
use crate::{Arguments, Load, Mode};

/// Frames before the first turn: shaders are compiled and buffers reach their sizes.
const WARM_UP_FRAMES: u32 = 90;

pub struct SessionPlugin {
    pub arguments: Arguments,
}

/// The run of the program.
#[derive(Resource)]
pub struct Session {
    pub arguments: Arguments,
    /// One entry per mode and launch limit.
    pub results: Vec<Results>,
    /// Turns so far; each mode has one turn per round.
    turns: usize,
    /// Frames of this turn so far.
    frames: u32,
    warmed_up: bool,
    /// When the counted frames of this turn began, with the counters at that time.
    since: Option<(Instant, EngineStats)>,
    /// When the last frame began, and its turn.
    last: Option<(Instant, Option<usize>)>,
    finished: bool,
}

/// Measurements of a mode, all rounds together.
pub struct Results {
    pub load: Load,
    /// From the beginning of a frame to the beginning of the next.
    pub interval: Times,
    /// From the beginning of a frame to the end of its work on the GPU.
    pub drawn: Times,
    /// The renderer's part of that.
    pub rendering: Times,
    /// Host time of walla's systems per frame of mode `on`.
    pub plugin: Times,
    pub seconds: f64,
    pub frames: u64,
    pub tokens: u64,
    pub prompt_tokens: u64,
    pub background_tokens: u64,
    pub steps: u64,
    pub device: Duration,
    pub frames_over: u64,
}

/// Time from frame to frame at a rate; `None` without a fixed rate.
pub fn period(rate: u32) -> Option<Duration> {
    (rate > 0).then(|| Duration::from_secs(1) / rate)
}

impl Plugin for SessionPlugin {
    fn build(&self, app: &mut App) {
        let arguments = self.arguments.clone();
        let results = arguments.loads().into_iter().map(Results::new).collect();
        app.insert_resource(Session {
            arguments,
            results,
            turns: 0,
            frames: 0,
            warmed_up: false,
            since: None,
            last: None,
            finished: false,
        })
        .add_systems(First, begin)
        .add_systems(PostUpdate, talk)
        .add_systems(Last, end);
    }
}

impl Results {
    fn new(load: Load) -> Self {
        Self {
            load,
            interval: Times::new(),
            drawn: Times::new(),
            rendering: Times::new(),
            plugin: Times::new(),
            seconds: 0.0,
            frames: 0,
            tokens: 0,
            prompt_tokens: 0,
            background_tokens: 0,
            steps: 0,
            device: Duration::ZERO,
            frames_over: 0,
        }
    }

    fn add(&mut self, seconds: f64, frames: u32, before: &EngineStats, now: &EngineStats) {
        self.seconds += seconds;
        self.frames += u64::from(frames);
        self.tokens += now.tokens - before.tokens;
        self.prompt_tokens += now.prefill_tokens - before.prefill_tokens;
        self.background_tokens += now.background_tokens - before.background_tokens;
        self.steps += now.steps - before.steps;
        self.device += now.device_time.saturating_sub(before.device_time);
        self.frames_over += now.budget.frames_over - before.budget.frames_over;
    }
}

impl Session {
    /// Index of the current mode.
    fn place(&self) -> usize {
        self.turns % self.results.len().max(1)
    }

    /// The current mode; `None` before the first turn.
    fn load(&self) -> Option<Load> {
        self.results.get(self.place()).map(|results| results.load).filter(|_| self.warmed_up)
    }

    fn is_settled(&self) -> bool {
        self.warmed_up && self.frames >= self.arguments.settle
    }
}

/// Switches the modes and records when the frame begins.
fn begin(
    mut session: ResMut<Session>,
    mut frame: ResMut<Frame>,
    free: Option<Res<FreeDecoder>>,
    games: NonSend<Games>,
    drawn: Res<DrawnFrames>,
) {
    let session = &mut *session;
    for drawn in drawn.take() {
        if let Some(results) = drawn.turn.and_then(|turn| session.results.get_mut(turn)) {
            results.drawn.add(drawn.since_begin);
            results.rendering.add(drawn.rendering);
        }
    }
    let place = session.place();
    let load = session.load();
    if let Some(free) = &free {
        free.set(load.is_some_and(|load| load.mode == Mode::Free));
    }
    let now = Instant::now();
    let turn = session.is_settled().then_some(place);
    if let Some((then, Some(turn_then))) = session.last.replace((now, turn))
        && turn == Some(turn_then)
        && let Some(results) = session.results.get_mut(turn_then)
    {
        results.interval.add(now.duration_since(then));
    }
    if turn.is_some() && session.since.is_none() {
        session.since = Some((now, counters(load, &games, free.as_deref())));
    }
    *frame = Frame { began: now, turn };
}

/// Runs the agents' frame.
fn talk(session: Res<Session>, mut games: NonSendMut<Games>) {
    let load = session.load().filter(|load| load.mode == Mode::On);
    games.update(load.map(|load| load.limit));
}

fn counters(load: Option<Load>, games: &Games, free: Option<&FreeDecoder>) -> EngineStats {
    let limit = load.map_or(0, |load| load.limit);
    match (load.map(|load| load.mode), free) {
        (Some(Mode::Free), Some(free)) => free.stats(),
        _ => games.counters(limit).0,
    }
}

/// Counts the frame; ends the turn, and the program after the last one.
fn end(
    mut session: ResMut<Session>,
    games: NonSend<Games>,
    free: Option<Res<FreeDecoder>>,
    adapter: Res<RenderAdapterInfo>,
    canvas: Res<Canvas>,
    mut exit: MessageWriter<AppExit>,
    mut commands: Commands,
) {
    let session = &mut *session;
    if session.finished {
        return;
    }
    session.frames += 1;
    let place = session.place();
    if session.is_settled()
        && let Some(results) = session.results.get_mut(place)
        && results.load.mode == Mode::On
    {
        results.plugin.add(games.counters(results.load.limit).1.total());
    }
    if !session.warmed_up {
        session.warmed_up = session.frames >= WARM_UP_FRAMES;
        session.frames *= u32::from(!session.warmed_up);
        return;
    }
    if session.frames < session.arguments.settle + session.arguments.frames {
        return;
    }
    if let Some((since, before)) = session.since.take()
        && let Some(results) = session.results.get_mut(place)
    {
        let now = counters(Some(results.load), &games, free.as_deref());
        let frames = session.arguments.frames;
        results.add(since.elapsed().as_secs_f64(), frames, &before, &now);
    }
    session.frames = 0;
    session.turns += 1;
    if session.turns < session.results.len() * session.arguments.rounds as usize {
        return;
    }
    session.finished = true;
    report::print(session, &adapter, games.model());
    match session.arguments.picture.clone() {
        None => {
            exit.write(AppExit::Success);
        }
        Some(path) => {
            commands.spawn(Screenshot::image(canvas.0.clone())).observe(
                move |captured: On<ScreenshotCaptured>, mut exit: MessageWriter<AppExit>| {
                    let picture = captured.image.clone().try_into_dynamic();
                    let picture = picture.unwrap_or_else(|error| fail(error)).into_rgb8();
                    picture.save(&path).unwrap_or_else(|error| fail(error));
                    exit.write(AppExit::Success);
                },
            );
        }
    }
}
