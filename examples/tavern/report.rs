//! Measurements of an evening.

use std::time::{Duration, Instant};

use bevy_walla::prelude::*;
use bevy_walla::reply::FirstTokenTimes;
use walla_examples::{Times, print_table};

/// Measurements of one evening.
#[derive(Default)]
pub struct Run {
    /// From the beginning of a frame to its end.
    pub work: Times,
    /// From the beginning of a frame to the beginning of the next.
    pub interval: Times,
    /// Host time of the plugin's systems per frame: total, and each.
    plugin: Times,
    publish: Times,
    collect: Times,
    submit: Times,
    /// From the arrival of an ask at the engine to its first token.
    pub first_token: Times,
    /// The same with its parts, of each reply.
    first_tokens: Vec<(u64, FirstTokenTimes)>,
    pub replies: u64,
    pub replies_failed: u64,
    /// When the first frame was measured, with the counters of tokens and steps at that time.
    since: Option<(Instant, u64, u64)>,
    elapsed: Duration,
    tokens: u64,
    steps: u64,
    step: Times,
    model: String,
    /// The reason for a failure.
    pub failure: Option<String>,
}

impl Run {
    /// Adds a frame with walla.
    pub fn add_frame(&mut self, walla: &Walla) {
        let stats = walla.stats();
        let now = Instant::now();
        let (since, tokens, steps) = *self.since.get_or_insert((now, stats.tokens, stats.steps));
        if stats.steps - steps > self.steps {
            self.step.add(stats.step);
        }
        self.elapsed = now.duration_since(since);
        (self.tokens, self.steps) = (stats.tokens - tokens, stats.steps - steps);
        let times = walla.host_times();
        self.plugin.add(times.total());
        self.publish.add(times.publish);
        self.collect.add(times.collect);
        self.submit.add(times.submit);
        if self.model.is_empty()
            && let Some(card) = walla.model()
        {
            let name = card.name.as_deref().unwrap_or(card.architecture);
            self.model = format!("{name} on {}", card.device.name);
        }
    }

    /// Adds a reply that has ended.
    pub fn add_reply(&mut self, finished: &ReplyFinished) {
        self.replies += 1;
        let usage = &finished.usage;
        if usage.reply_tokens > 0 {
            self.first_token.add(Duration::from_micros(usage.first_token_micros));
            self.first_tokens.push((usage.first_token_micros, usage.first_token));
        }
    }

    /// Parts of the time to the first token of the ask at p99.
    fn first_token_p99(&self) -> String {
        let mut sorted = self.first_tokens.clone();
        sorted.sort_unstable_by_key(|(micros, _)| *micros);
        let at = (sorted.len() * 99).div_ceil(100).checked_sub(1);
        let Some((_, parts)) = at.and_then(|at| sorted.get(at)) else { return String::new() };
        let FirstTokenTimes { waiting_micros, encoding_micros, prefill_micros, decode_micros } =
            *parts;
        let parts = [waiting_micros, encoding_micros, prefill_micros, decode_micros];
        let [waiting, encoding, prefill, decode] = parts.map(|micros| micros as f64 / 1e3);
        format!(
            "{waiting:.0} waiting + {encoding:.0} encoding + {prefill:.0} prefill + {decode:.0} decode ms"
        )
    }
}

/// Prints the table at the end of the evening.
pub fn print(without: &Run, with: &Run) {
    let seconds = with.elapsed.as_secs_f64().max(1e-9);
    let model = if with.model.is_empty() { "a remote engine" } else { &with.model };
    println!("\n{} frames of each; {model}", with.work.count());
    println!("p50 / p99 / longest:");
    let of_device = |text| if with.steps == 0 { "not known".to_owned() } else { text };
    print_table(
        &["", "without walla", "with walla"],
        &[
            ("work of a frame", vec![without.work.millis(), with.work.millis()]),
            ("frame to frame", vec![without.interval.millis(), with.interval.millis()]),
            ("of it in walla's systems", vec![String::new(), with.plugin.micros()]),
            ("  Publish", vec![String::new(), with.publish.micros()]),
            ("  Collect", vec![String::new(), with.collect.micros()]),
            ("  Submit", vec![String::new(), with.submit.micros()]),
            ("step on the device", vec![String::new(), of_device(with.step.millis())]),
            ("time to first token", vec![String::new(), with.first_token.millis()]),
            ("  at p99", vec![String::new(), of_device(with.first_token_p99())]),
        ],
    );
    let steps = format!(", {:.1} steps/s", with.steps as f64 / seconds);
    println!(
        "{} tokens in {seconds:.1} s: {:.1} tokens/s{}; {} replies, {} failed",
        with.tokens,
        with.tokens as f64 / seconds,
        if with.steps == 0 { "" } else { &steps },
        with.replies,
        with.replies_failed,
    );
}
