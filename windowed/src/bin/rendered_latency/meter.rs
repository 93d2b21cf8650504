//! When a frame begins, and when the GPU has drawn it.
//!
//! Without a display nobody holds a renderer back, and frames would pile up in the GPU's queue. So
//! the render thread waits for each frame's work at its end, as a display with one picture in
//! flight would; the game's own thread is a frame ahead meanwhile, as always in Bevy. Frames as
//! fast as can be thus follow each other at the pace of the slower of game and renderer, and a
//! frame is drawn about two such intervals after it began; at a fixed rate, the interval is the
//! rate's, and the second time tells.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bevy::prelude::*;
use bevy::render::render_resource::PollType;
use bevy::render::renderer::RenderDevice;
use bevy::render::{Extract, ExtractSchedule, Render, RenderApp, RenderSystems};
use hdrhistogram::Histogram;

pub struct MeterPlugin;

/// The frame that the game is at.
#[derive(Resource, Clone, Copy, Debug)]
pub struct Frame {
    pub began: Instant,
    /// Which turn it belongs to; none while things settle.
    pub turn: Option<usize>,
}

/// The frame that the renderer is at, and when the game handed it over.
#[derive(Resource, Clone, Copy)]
struct Rendering {
    frame: Frame,
    since: Instant,
}

/// A frame that has been drawn.
pub struct Drawn {
    pub turn: Option<usize>,
    /// From the beginning of the frame to the end of its work on the GPU.
    pub since_begin: Duration,
    /// The renderer's part of it: its work on the CPU, then that on the GPU.
    pub rendering: Duration,
}

#[derive(Resource)]
struct Sends(Sender<Drawn>);

/// Frames that have been drawn since they were last asked for.
#[derive(Resource)]
pub struct DrawnFrames(Mutex<Receiver<Drawn>>);

impl DrawnFrames {
    /// Takes them, oldest first.
    pub fn take(&self) -> Vec<Drawn> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).try_iter().collect()
    }
}

impl Plugin for MeterPlugin {
    fn build(&self, app: &mut App) {
        let (sender, receiver) = channel();
        app.insert_resource(Frame { began: Instant::now(), turn: None })
            .insert_resource(DrawnFrames(Mutex::new(receiver)));
        let Some(render) = app.get_sub_app_mut(RenderApp) else { return };
        render
            .insert_resource(Sends(sender))
            .add_systems(ExtractSchedule, |frame: Extract<Res<Frame>>, mut commands: Commands| {
                commands.insert_resource(Rendering { frame: **frame, since: Instant::now() });
            })
            .add_systems(Render, drawn.in_set(RenderSystems::PostCleanup));
    }
}

fn drawn(device: Res<RenderDevice>, frame: Option<Res<Rendering>>, sends: Res<Sends>) {
    if let Err(error) = device.poll(PollType::wait_indefinitely()) {
        warn!("the GPU does not answer: {error}");
    }
    if let Some(Rendering { frame, since }) = frame.as_deref() {
        let (since_begin, rendering) = (frame.began.elapsed(), since.elapsed());
        // Nobody listens any more when the app ends.
        let _unheard = sends.0.send(Drawn { turn: frame.turn, since_begin, rendering });
    }
}

/// Durations, three digits each, up to ten seconds.
#[derive(Clone)]
pub struct Times(Histogram<u64>);

impl Times {
    /// None yet.
    ///
    /// # Panics
    /// Never: the bounds are valid.
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, 10_000_000_000, 3).expect("valid bounds"))
    }

    /// Adds one.
    pub fn add(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Milliseconds that this share of them does not exceed; 1.0: the longest.
    pub fn millis(&self, share: f64) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.value_at_quantile(share) as f64 / 1e6 }
    }

    /// How many took longer than so many milliseconds.
    pub fn longer_than(&self, millis: f64) -> u64 {
        self.0.len() - self.0.count_between(0, (millis * 1e6) as u64)
    }
}
