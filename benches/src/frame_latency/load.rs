//! The rest of the game: systems that do the same amount of work in every frame.

use std::time::{Duration, Instant};

use bevy_app::{TaskPoolOptions, TaskPoolPlugin, prelude::*};
use bevy_ecs::prelude::*;
use bevy_ecs::system::NonSendMarker;

/// Entities that move, in parallel.
const BODIES: usize = 4_096;

/// Entities that decide, on one thread in parallel to the moving ones.
const MINDS: usize = 256;

/// Frames of each calibration step: other work on the machine only ever adds time, so the fastest
/// counts.
const FRAMES_PROBED: usize = 12;

/// Work of a frame.
#[derive(Resource, Clone, Copy, Debug)]
pub struct Load {
    /// Steps of arithmetic per entity.
    rounds: u32,
}

#[derive(Component)]
struct Body([f32; 4]);

#[derive(Component)]
struct Mind(u64);

/// The sum of all minds, computed on one thread at the end of the frame.
#[derive(Resource, Default)]
struct Outcome(u64);

/// Adds the game to an app: a third of its work moves bodies on the task pool. In parallel, minds
/// think in one system, and a system at the end sums the results. As in any game there is a system
/// before the update and one after it, on the frame's thread: Bevy's executor skips a schedule
/// without systems, and a plugin alone in there would pay for the executor's start.
pub fn add_game(app: &mut App, load: Load, threads: Option<usize>) {
    // The pools belong to the process: the first app creates them.
    let task_pool_options =
        threads.map_or_else(TaskPoolOptions::default, TaskPoolOptions::with_num_threads);
    app.add_plugins(TaskPoolPlugin { task_pool_options })
        .insert_resource(load)
        .init_resource::<Outcome>()
        .add_systems(Startup, spawn)
        .add_systems(PreUpdate, listen)
        .add_systems(Update, ((move_bodies, think), settle).chain())
        .add_systems(PostUpdate, show);
}

impl Load {
    /// Work that takes this time on this machine when it is idle.
    pub fn lasting(time: Duration, threads: Option<usize>) -> Self {
        let mut load = Self { rounds: 64 };
        if time.is_zero() {
            return Self { rounds: 0 };
        }
        // The time has a part that does not depend on the rounds, so one proportion is not enough.
        for _ in 0..4 {
            let ratio = time.as_secs_f64() / load.fastest_frame(threads).as_secs_f64().max(1e-9);
            let rounds = f64::from(load.rounds) * ratio.clamp(0.05, 20.0);
            load.rounds = rounds.clamp(1.0, 1e8) as u32;
        }
        load
    }

    fn fastest_frame(self, threads: Option<usize>) -> Duration {
        let mut app = App::new();
        add_game(&mut app, self, threads);
        app.finish();
        app.cleanup();
        app.update();
        let frame = |_| {
            let start = Instant::now();
            app.update();
            start.elapsed()
        };
        (0..FRAMES_PROBED).map(frame).min().unwrap_or_default()
    }
}

fn spawn(mut commands: Commands) {
    commands.spawn_batch((0..BODIES).map(|i| Body([i as f32, 1.0, 2.0, 3.0])));
    commands.spawn_batch((0..MINDS).map(|i| Mind(i as u64 + 1)));
}

fn listen(_here: NonSendMarker) {}

fn show(_here: NonSendMarker) {}

fn move_bodies(mut bodies: Query<&mut Body>, load: Res<Load>) {
    let rounds = load.rounds;
    bodies.par_iter_mut().for_each(|mut body| {
        let mut at = body.0;
        for _ in 0..rounds {
            for lane in &mut at {
                *lane = lane.mul_add(0.999, 0.001);
            }
        }
        body.0 = at;
    });
}

fn think(mut minds: Query<&mut Mind>, load: Res<Load>) {
    for mut mind in &mut minds {
        mind.0 = scramble(mind.0, load.rounds * 4);
    }
}

fn settle(minds: Query<&Mind>, mut outcome: ResMut<Outcome>, load: Res<Load>) {
    for mind in &minds {
        outcome.0 = outcome.0.wrapping_add(scramble(mind.0, load.rounds * 4));
    }
}

/// A chain of dependent steps that no compiler shortens.
fn scramble(mut state: u64, rounds: u32) -> u64 {
    for _ in 0..rounds {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_lasts_about_as_long_as_requested() {
        // Other programs may take the processor while the load is measured, which shortens it.
        let begun = Instant::now();
        loop {
            let load = Load::lasting(Duration::from_millis(3), None);
            let fastest = load.fastest_frame(None);
            if fastest > Duration::from_millis(1) {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(120), "{fastest:?} for {load:?}");
        }
    }
}
