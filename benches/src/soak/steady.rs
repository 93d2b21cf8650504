//! Agents answer without a pause, and their replies end naturally. In the second half of the time
//! memory does not grow.

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant};

use bevy_app::App;
use bevy_ecs::prelude::*;
use bevy_walla::engine::Pacing;
use bevy_walla::options::FrameBudget;
use bevy_walla::prelude::*;
use bevy_walla::reply::FinishReason;
use serde_json::{Value, json};
use walla::Engine;

use crate::Report;
use crate::process::{MAX_END, await_no_threads, resident_kib};

/// Largest growth of resident memory in the second half of a part, in KiB. In the first half
/// conversations grow to their bound.
const MAX_GROWTH_KIB: u64 = 2 << 10;

const QUESTIONS: [&str; 5] = [
    "What does a horseshoe cost?",
    "Who are you?",
    "Have you heard any news?",
    "Where is the old mine?",
    "Good night!",
];

/// Counts of one part.
#[derive(Clone, Debug, Default, PartialEq)]
struct Counts {
    asked: u64,
    finished: u64,
    failed: u64,
    /// Replies that ended with the model's end-of-turn token.
    natural: u64,
    tokens: u64,
    /// Largest resident memory in KiB in each tenth of the time.
    resident_kib: [u64; 10],
}

impl Counts {
    fn end(&mut self, reason: FinishReason, tokens: u32) {
        self.finished += 1;
        self.natural += u64::from(reason == FinishReason::EndOfTurn);
        self.tokens += u64::from(tokens);
    }

    fn look_at_memory(&mut self, elapsed: Duration, whole: Duration) {
        let tenth = (10.0 * elapsed.as_secs_f64() / whole.as_secs_f64()) as usize;
        let most = &mut self.resident_kib[tenth.min(9)];
        *most = resident_kib().max(*most);
    }

    fn growth_kib(&self) -> u64 {
        let [before, later] = self.halves_kib();
        later.saturating_sub(before)
    }

    /// Largest resident memory of each half of the time.
    fn halves_kib(&self) -> [u64; 2] {
        let (first, second) = self.resident_kib.split_at(5);
        [first, second].map(|half| half.iter().max().copied().unwrap_or(0))
    }

    fn check(&self, part: &str) -> Result<(), String> {
        let ended = self.finished + self.failed;
        if ended != self.asked || self.failed > 0 || self.natural == 0 {
            return Err(format!("{part}: replies are not balanced: {self:?}"));
        }
        let growth_kib = self.growth_kib();
        if growth_kib > MAX_GROWTH_KIB {
            return Err(format!("{part}: memory grew by {growth_kib} KiB: {self:?}"));
        }
        Ok(())
    }

    fn json(&self) -> Value {
        json!({
            "asked": self.asked, "finished": self.finished, "failed": self.failed,
            "natural_ends": self.natural, "tokens": self.tokens,
            "resident_kib_max_of_each_tenth": self.resident_kib,
        })
    }
}

fn options(agents: usize) -> EngineOptions {
    let max_agents = Some(agents as u32);
    EngineOptions { device: "cpu".into(), max_agents, ..EngineOptions::demo() }
}

/// All agents answer through the async API, each as soon as its last reply has ended.
async fn async_part(agents: usize, whole: Duration) -> Result<Counts, Box<dyn Error>> {
    let engine = Engine::start(options(agents)).await?;
    let start = Instant::now();
    let mut counts = Counts::default();
    let talkers: Vec<_> = (0..agents).map(|n| engine.agent(persona(n))).collect();
    let mut turn = 0;
    while start.elapsed() < whole {
        turn += 1;
        let ask = |(n, agent): (usize, &walla::Agent)| agent.ask(QUESTIONS[(turn + n) % 5]);
        let replies: Vec<_> = talkers.iter().enumerate().map(ask).collect();
        counts.asked += replies.len() as u64;
        for reply in replies {
            match reply.finish().await {
                Ok(finished) => counts.end(finished.reason, finished.usage.reply_tokens),
                Err(_) => counts.failed += 1,
            }
        }
        counts.look_at_memory(start.elapsed(), whole);
    }
    drop(talkers);
    engine.stop().await;
    drop(engine);
    await_no_threads("async")?;
    Ok(counts)
}

fn persona(n: usize) -> String {
    format!("You are Greta {n}, the smith of Emberfall. A horseshoe costs 3 silver.")
}

/// Events of each reply that has ended, by its id.
#[derive(Resource, Default)]
struct Ends(HashMap<u64, u32>);

/// Asks of the Bevy part.
#[derive(Resource, Default)]
struct Soak {
    counts: Counts,
    is_over: bool,
}

fn ask_idle(mut soak: ResMut<Soak>, idle: Query<(Entity, &Speech)>, mut asks: MessageWriter<Ask>) {
    for (agent, speech) in &idle {
        if soak.is_over || !speech.is_silent() {
            continue;
        }
        let question = QUESTIONS[soak.counts.asked as usize % QUESTIONS.len()];
        soak.counts.asked += 1;
        asks.write(Ask::new(agent, question));
    }
}

fn count_ends(
    mut soak: ResMut<Soak>,
    mut ends: ResMut<Ends>,
    mut finished: MessageReader<ReplyFinished>,
    mut failed: MessageReader<ReplyFailed>,
) {
    for reply in finished.read() {
        soak.counts.end(reply.reason, reply.usage.reply_tokens);
        *ends.0.entry(reply.reply_id.0).or_default() += 1;
    }
    for reply in failed.read() {
        soak.counts.failed += 1;
        *ends.0.entry(reply.reply_id.0).or_default() += 1;
    }
    // A late second end would be a new entry: the newest thousands are enough to detect it.
    if ends.0.len() > 4_096 {
        let newest = ends.0.keys().copied().max().unwrap_or(0);
        ends.0.retain(|reply_id, _| newest - *reply_id < 1_024);
    }
    assert!(ends.0.values().all(|count| *count == 1), "a reply ended twice");
}

fn bevy_part(agents: usize, whole: Duration) -> Result<Counts, Box<dyn Error>> {
    let mut app = App::new();
    let options = EngineOptions { budget: FrameBudget::Unlimited, ..options(agents) };
    app.add_plugins(WallaPlugin::new(options).pacing(Pacing::FreeRunning))
        .init_resource::<Soak>()
        .init_resource::<Ends>()
        .add_systems(bevy_app::Update, (count_ends, ask_idle).chain());
    for n in 0..agents {
        app.world_mut().spawn(Agent::persona(persona(n)));
    }
    let start = Instant::now();
    loop {
        app.update();
        std::thread::sleep(Duration::from_millis(1));
        let mut soak = app.world_mut().resource_mut::<Soak>();
        let elapsed = start.elapsed();
        soak.is_over = elapsed >= whole;
        if soak.is_over {
            let Counts { asked, finished, failed, .. } = soak.counts;
            if finished + failed >= asked || elapsed > whole + MAX_END {
                break;
            }
        } else if soak.counts.asked.is_multiple_of(16) {
            soak.counts.look_at_memory(elapsed, whole);
        }
    }
    // Frames in which no further reply may end.
    for _ in 0..20 {
        app.update();
    }
    let counts = app.world().resource::<Soak>().counts.clone();
    drop(app);
    await_no_threads("bevy")?;
    Ok(counts)
}

/// Counts of both parts.
fn soak(agents: usize, whole: Duration) -> Result<[(&'static str, Counts); 2], Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let of_async = runtime.block_on(async_part(agents, whole))?;
    let of_bevy = bevy_part(agents, whole)?;
    Ok([("async", of_async), ("bevy", of_bevy)])
}

/// Runs both parts.
pub fn report(agents: usize, whole: Duration) -> Result<Report, Box<dyn Error>> {
    let mut report = Report::default();
    for (part, counts) in soak(agents, whole)? {
        report.lines.push(format!(
            "{part}: {} replies of {} tokens, {} by the model's own end of turn, {} failed; at most {:.1} MiB resident \
             in the first half, {:.1} more in the second",
            counts.finished,
            counts.tokens,
            counts.natural,
            counts.failed,
            counts.halves_kib()[0] as f64 / 1_024.0,
            counts.growth_kib() as f64 / 1_024.0,
        ));
        report.broken.extend(counts.check(part).err());
        report.parts.insert(part.to_owned(), counts.json());
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ALONE;

    #[test]
    fn a_short_soak_ends_every_ask() {
        let _alone = ALONE.lock();
        let parts = soak(4, Duration::from_secs(3)).expect("it runs");
        for (part, counts) in parts {
            assert!(counts.asked > 4, "{part}: {counts:?}");
            counts.check(part).expect("balanced");
        }
    }

    #[test]
    fn unbalanced_counts_and_memory_growth_are_errors() {
        let good = Counts { asked: 3, finished: 3, natural: 1, ..Counts::default() };
        assert_eq!(good.check("test"), Ok(()));
        let mut growing = [1; 10];
        growing[8] = 2 + MAX_GROWTH_KIB;
        let bad = [
            Counts { asked: 4, ..good.clone() },
            Counts { finished: 4, ..good.clone() },
            Counts { failed: 1, finished: 2, ..good.clone() },
            Counts { resident_kib: growing, ..good.clone() },
        ];
        assert!(bad.iter().all(|counts| counts.check("test").is_err()));
    }
}
