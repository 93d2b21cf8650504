//! A game: in every frame each of its threads does the same amount of arithmetic.

use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use walla_runtime::{Engine, EngineState};

/// Measured values.
#[derive(Clone, Debug, Default)]
pub struct Values(Vec<f64>);

impl Values {
    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The smallest value that is not below `percent` of all; 0 without values.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let place = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
        sorted.get(place.saturating_sub(1)).copied().unwrap_or(0.0)
    }

    /// The largest value; 0 without values.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.percentile(100.0)
    }

    /// The mean; 0 without values.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    /// Number of values above `limit`.
    #[must_use]
    pub fn above(&self, limit: f64) -> usize {
        self.0.iter().filter(|&&value| value > limit).count()
    }
}

/// The game. Its threads exist during its whole life.
pub struct Game {
    helpers: Vec<JoinHandle<()>>,
    barrier: Arc<Barrier>,
    ends: Arc<AtomicBool>,
    rounds: u64,
    frame: Duration,
    next: Instant,
}

fn work(rounds: u64) {
    let mut value = 1u64;
    for _ in 0..rounds {
        value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// Rounds of work per second on an idle core: other programs only ever add time.
fn rounds_per_second() -> f64 {
    const ROUNDS: u64 = 2_000_000;
    let timed = |_| {
        let start = Instant::now();
        work(ROUNDS);
        start.elapsed().as_secs_f64()
    };
    ROUNDS as f64 / (0..20).map(timed).fold(f64::INFINITY, f64::min)
}

impl Game {
    /// A game with `threads` threads. Each one works for a time in each frame.
    #[must_use]
    pub fn new(threads: usize, work_seconds: f64, frame_seconds: f64) -> Self {
        let rounds = (work_seconds * rounds_per_second()) as u64;
        let barrier = Arc::new(Barrier::new(threads.max(1)));
        let ends = Arc::new(AtomicBool::new(false));
        let helper = |_| {
            let (barrier, ends) = (Arc::clone(&barrier), Arc::clone(&ends));
            std::thread::spawn(move || {
                loop {
                    barrier.wait();
                    if ends.load(Ordering::Acquire) {
                        return;
                    }
                    work(rounds);
                    barrier.wait();
                }
            })
        };
        let helpers = (1..threads).map(helper).collect();
        let frame = Duration::from_secs_f64(frame_seconds);
        Self { helpers, barrier, ends, rounds, frame, next: Instant::now() }
    }

    /// Does the work of a frame. Returns its time in milliseconds.
    pub fn work(&mut self) -> f64 {
        let start = Instant::now();
        self.barrier.wait();
        work(self.rounds);
        self.barrier.wait();
        start.elapsed().as_secs_f64() * 1e3
    }

    /// Sleeps until the next frame.
    pub fn rest(&mut self) {
        self.next += self.frame;
        let now = Instant::now();
        if self.next < now {
            self.next = now;
        }
        std::thread::sleep(self.next - now);
    }

    /// Frames without an engine.
    pub fn alone(&mut self, frames: usize) -> Values {
        self.next = Instant::now();
        let mut values = Values::default();
        for _ in 0..frames {
            values.add(self.work());
            self.rest();
        }
        values
    }

    /// Waits for the end of the load.
    ///
    /// # Errors
    /// The reason why the engine failed.
    pub fn wait_until_ready(&mut self, engine: &Engine) -> Result<(), Box<dyn Error>> {
        loop {
            match engine.state() {
                EngineState::Loading { .. } => std::thread::sleep(Duration::from_millis(5)),
                EngineState::Ready => break,
                EngineState::Failed(error) => return Err(error.to_string().into()),
                EngineState::Stopped => return Err("the engine has stopped".into()),
            }
        }
        self.next = Instant::now();
        Ok(())
    }
}

impl Drop for Game {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        self.barrier.wait();
        for helper in self.helpers.drain(..) {
            let _ended = helper.join();
        }
    }
}
