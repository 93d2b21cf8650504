//! The rest of the game: its work, its frames, its end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::prelude::*;
use walla_examples::HostLoad;

use crate::report::Run;

/// Simulates work, measures frames, and ends the app after a number of frames.
pub struct FramesPlugin {
    pub frames: u64,
    pub host_load: HostLoad,
    pub run: Arc<Mutex<Run>>,
}

/// Measurements of the frames so far.
#[derive(Resource)]
pub struct Frames {
    left: u64,
    host_load: HostLoad,
    run: Arc<Mutex<Run>>,
    measured: Run,
    frame_start: Option<Instant>,
}

impl Plugin for FramesPlugin {
    fn build(&self, app: &mut App) {
        app.insert_resource(Frames {
            left: self.frames,
            host_load: self.host_load,
            run: Arc::clone(&self.run),
            measured: Run::default(),
            frame_start: None,
        })
        .add_systems(First, start)
        .add_systems(Update, |frames: Res<Frames>| frames.host_load.work())
        .add_systems(Last, end)
        .add_observer(fail)
        .add_observer(|finished: On<ReplyFinished>, mut frames: ResMut<Frames>| {
            frames.measured.add_reply(&finished);
        })
        .add_observer(|_: On<ReplyFailed>, mut frames: ResMut<Frames>| {
            frames.measured.replies_failed += 1;
        });
    }
}

fn start(mut frames: ResMut<Frames>) {
    let now = Instant::now();
    if let Some(before) = frames.frame_start.replace(now) {
        frames.measured.interval.add(now.duration_since(before));
    }
}

/// Ends a frame, and after the last one the app.
pub fn end(
    mut frames: ResMut<Frames>,
    walla: Option<Res<Walla>>,
    mut exit: MessageWriter<AppExit>,
) {
    let frames = &mut *frames;
    let Some(start) = frames.frame_start else { return };
    if walla.as_ref().is_some_and(|walla| !walla.is_ready()) {
        // Frames during the load are not counted.
        frames.measured = Run::default();
        frames.frame_start = None;
        return;
    }
    frames.measured.work.add(start.elapsed());
    if let Some(walla) = &walla {
        frames.measured.add_frame(walla);
    }
    frames.left = frames.left.saturating_sub(1);
    if frames.left == 0 {
        let mut run = frames.run.lock().unwrap_or_else(PoisonError::into_inner);
        *run = std::mem::take(&mut frames.measured);
        exit.write(AppExit::Success);
    }
}

fn fail(failed: On<WallaFailed>, frames: Res<Frames>, mut exit: MessageWriter<AppExit>) {
    let mut run = frames.run.lock().unwrap_or_else(PoisonError::into_inner);
    run.failure = Some(failed.error.to_string());
    exit.write(AppExit::error());
}
