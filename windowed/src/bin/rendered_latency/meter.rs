//! When a frame begins, and when the GPU has finished it.
//!
//! Without a display nothing throttles the renderer, and frames would pile up in the GPU's queue.
//! So the render thread waits for each frame's GPU work at its end, as a display with one frame in
//! flight would. The game's main thread is a frame ahead, as always in Bevy. Without a fixed rate,
//! the interval between frames is thus that of the slower of game and renderer, and a frame is
//! finished about two intervals after it began. At a fixed rate, the interval is constant, and the
//! time to the end of a frame is the relevant measurement.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bevy::prelude::*;
use bevy::render::render_resource::PollType;
use bevy::render::renderer::RenderDevice;
use bevy::render::{Extract, ExtractSchedule, Render, RenderApp, RenderSystems};
use hdrhistogram::Histogram;

pub struct MeterPlugin;

/// The frame of the main thread.
#[derive(Resource, Clone, Copy, Debug)]
pub struct Frame {
    pub began: Instant,
    /// The turn that it belongs to; `None` while a mode settles.
    pub turn: Option<usize>,
}

/// The frame of the renderer, and when it was extracted from the main world.
#[derive(Resource, Clone, Copy)]
struct Rendering {
    frame: Frame,
    since: Instant,
}

/// A finished frame.
pub struct Drawn {
    pub turn: Option<usize>,
    /// From the beginning of the frame to the end of its work on the GPU.
    pub since_begin: Duration,
    /// The renderer's part of it: its CPU work, then its GPU work.
    pub rendering: Duration,
}

#[derive(Resource)]
struct Sends(Sender<Drawn>);

/// Finished frames that were not taken yet.
#[derive(Resource)]
pub struct DrawnFrames(Mutex<Receiver<Drawn>>);

impl DrawnFrames {
    /// Takes the frames, oldest first.
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
        // The receiver is gone when the app ends.
        let _unheard = sends.0.send(Drawn { turn: frame.turn, since_begin, rendering });
    }
}

/// Durations, three digits each, up to ten seconds.
#[derive(Clone)]
pub struct Times(Histogram<u64>);

impl Times {
    /// An empty collection.
    ///
    /// # Panics
    /// Never: the bounds are valid.
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, 10_000_000_000, 3).expect("valid bounds"))
    }

    /// Adds a duration.
    pub fn add(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The quantile `share` in milliseconds; 1.0: the longest.
    pub fn millis(&self, share: f64) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.value_at_quantile(share) as f64 / 1e6 }
    }

    /// Number of durations longer than `millis` milliseconds.
    pub fn longer_than(&self, millis: f64) -> u64 {
        self.0.len() - self.0.count_between(0, (millis * 1e6) as u64)
    }
}
