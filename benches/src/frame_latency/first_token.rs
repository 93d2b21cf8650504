//! Times to the first token with their parts, and the prompts of the asks.

use std::time::Duration;

use bevy_walla::reply::{FirstTokenTimes, Usage};
use serde_json::{Value, json};

use crate::fields::{Found, count, list};
use crate::measure::rounded;

/// Parts of the time from a game's ask to its first token: the engine's ([`FirstTokenTimes`]), and
/// the rest, in which ask and token wait for the game's frames.
pub const PARTS: [&str; 5] = ["waiting", "encoding", "prefill", "decode", "host"];

/// An ask whose reply has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ask {
    /// From the game's ask to the frame that received its first token.
    heard_micros: u64,
    /// In the order of [`PARTS`]; their sum is `heard_micros`.
    parts_micros: [u64; PARTS.len()],
    /// Tokens of the prompt in the cache, and the other ones.
    cached_tokens: u64,
    evaluated_tokens: u64,
}

/// The asks of a cell.
#[derive(Clone, Debug, Default)]
pub struct Asks(Vec<Ask>);

/// The slowest percent of the asks: all at or above p99, at least one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowest {
    pub asks: usize,
    /// Mean of the times, in milliseconds.
    pub first_token_ms: f64,
    /// Mean of each part in the order of [`PARTS`], in milliseconds.
    pub parts_ms: [f64; PARTS.len()],
}

/// Median and maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MedianMax {
    pub median: u64,
    pub max: u64,
}

impl Asks {
    /// Adds an ask whose first token arrived `heard` after it.
    pub fn add(&mut self, heard: Duration, usage: &Usage) {
        let FirstTokenTimes { waiting_micros, encoding_micros, prefill_micros, decode_micros } =
            usage.first_token;
        // The engine's clock is read in whole microseconds.
        let heard_micros = (heard.as_micros() as u64).max(usage.first_token_micros);
        let host_micros = heard_micros - usage.first_token_micros;
        let parts_micros =
            [waiting_micros, encoding_micros, prefill_micros, decode_micros, host_micros];
        let evaluated_tokens = usage.prompt_tokens.saturating_sub(usage.cached_tokens).into();
        let cached_tokens = usage.cached_tokens.into();
        self.0.push(Ask { heard_micros, parts_micros, cached_tokens, evaluated_tokens });
    }

    /// Adds the asks of another round.
    pub fn add_all(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    /// `None` without asks.
    pub fn slowest(&self) -> Option<Slowest> {
        let mut sorted = self.0.clone();
        sorted.sort_by_key(|ask| ask.heard_micros);
        let p99 = sorted.get((sorted.len() * 99).div_ceil(100).checked_sub(1)?)?.heard_micros;
        sorted.retain(|ask| ask.heard_micros >= p99);
        let mean_ms = |micros: &dyn Fn(&Ask) -> u64| {
            sorted.iter().map(micros).sum::<u64>() as f64 / sorted.len() as f64 / 1e3
        };
        Some(Slowest {
            asks: sorted.len(),
            first_token_ms: mean_ms(&|ask| ask.heard_micros),
            parts_ms: std::array::from_fn(|part| mean_ms(&|ask| ask.parts_micros[part])),
        })
    }

    /// Tokens of a prompt that were in the cache. `None` without asks.
    pub fn cached_tokens(&self) -> Option<MedianMax> {
        self.median_max(|ask| ask.cached_tokens)
    }

    /// Tokens of a prompt that were evaluated after the ask. `None` without asks.
    pub fn evaluated_tokens(&self) -> Option<MedianMax> {
        self.median_max(|ask| ask.evaluated_tokens)
    }

    /// The median is the lower of the two in the middle.
    fn median_max(&self, tokens: impl Fn(&Ask) -> u64) -> Option<MedianMax> {
        let mut sorted: Vec<u64> = self.0.iter().map(tokens).collect();
        sorted.sort_unstable();
        let median = *sorted.get(sorted.len().checked_sub(1)? / 2)?;
        Some(MedianMax { median, max: *sorted.last()? })
    }

    /// For `summary.json`; `None` without asks.
    pub fn summary(&self) -> Option<Value> {
        let Slowest { asks, first_token_ms, parts_ms } = self.slowest()?;
        let mut slowest = json!({ "asks": asks, "first_token_ms": rounded(first_token_ms) });
        for (name, ms) in PARTS.iter().zip(parts_ms) {
            slowest[format!("{name}_ms")] = rounded(ms).into();
        }
        let tokens =
            |of: Option<MedianMax>| of.map(|of| json!({ "median": of.median, "max": of.max }));
        Some(json!({
            "asks": self.0.len(),
            "slowest_percent_mean": slowest,
            "cached_tokens": tokens(self.cached_tokens()),
            "evaluated_tokens": tokens(self.evaluated_tokens()),
        }))
    }

    /// All asks, for [`of`](Self::of).
    pub fn to_json(&self) -> Value {
        let row = |ask: &Ask| {
            let [waiting, encoding, prefill, decode, host] = ask.parts_micros;
            json!([
                waiting,
                encoding,
                prefill,
                decode,
                host,
                ask.cached_tokens,
                ask.evaluated_tokens
            ])
        };
        self.0.iter().map(row).collect()
    }

    /// Parses the output of [`to_json`](Self::to_json).
    pub fn of(value: &Value) -> Found<Self> {
        let ask = |row: &Value| {
            let mut parts_micros = [0; PARTS.len()];
            for (at, part) in parts_micros.iter_mut().enumerate() {
                *part = count(&row[at])?;
            }
            let [cached_tokens, evaluated_tokens] = [&row[PARTS.len()], &row[PARTS.len() + 1]];
            Ok(Ask {
                heard_micros: parts_micros.iter().sum(),
                parts_micros,
                cached_tokens: count(cached_tokens)?,
                evaluated_tokens: count(evaluated_tokens)?,
            })
        };
        list(value)?.iter().map(ask).collect::<Found<_>>().map(Self)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Usage with these parts of the first token in milliseconds and tokens of the prompt.
    pub fn usage(parts_ms: [u64; 4], cached_tokens: u32, evaluated_tokens: u32) -> Usage {
        let [waiting_micros, encoding_micros, prefill_micros, decode_micros] =
            parts_ms.map(|ms| ms * 1_000);
        Usage {
            prompt_tokens: cached_tokens + evaluated_tokens,
            cached_tokens,
            first_token_micros: waiting_micros + encoding_micros + prefill_micros + decode_micros,
            first_token: FirstTokenTimes {
                waiting_micros,
                encoding_micros,
                prefill_micros,
                decode_micros,
            },
            ..Usage::default()
        }
    }

    fn two_hundred() -> Asks {
        let mut asks = Asks::default();
        for ask in 1..=198 {
            asks.add(Duration::from_millis(20), &usage([1, 1, 2, 3], ask, 10));
        }
        asks.add(Duration::from_millis(420), &usage([300, 2, 90, 12], 0, 250));
        asks.add(Duration::from_millis(220), &usage([100, 2, 90, 12], 0, 150));
        asks
    }

    #[test]
    fn the_parts_of_the_slowest_percent_fill_their_time() {
        let slowest = two_hundred().slowest().unwrap();
        // Of 200 values, p99 is the 198th: here 20 ms, which 198 asks share.
        assert_eq!(slowest.asks, 200);
        let mut asks = two_hundred();
        asks.add(Duration::from_millis(320), &usage([200, 2, 90, 12], 0, 200));
        let slowest = asks.slowest().unwrap();
        assert_eq!((slowest.asks, slowest.first_token_ms), (3, 320.0));
        assert_eq!(slowest.parts_ms, [200.0, 2.0, 90.0, 12.0, 16.0]);
        assert_eq!(slowest.parts_ms.iter().sum::<f64>(), slowest.first_token_ms);
        assert_eq!(Asks::default().slowest(), None);
    }

    #[test]
    fn prompts_have_median_and_maximum() {
        let asks = two_hundred();
        assert_eq!(asks.cached_tokens(), Some(MedianMax { median: 98, max: 198 }));
        assert_eq!(asks.evaluated_tokens(), Some(MedianMax { median: 10, max: 250 }));
        assert_eq!(Asks::default().cached_tokens(), None);
    }

    #[test]
    fn asks_are_the_same_after_a_merge() {
        let asks = two_hundred();
        assert_eq!(Asks::of(&asks.to_json()).unwrap().summary(), asks.summary());
        let mut both = asks.clone();
        both.add_all(&asks);
        assert_eq!(both.summary().unwrap()["asks"], 400);
        assert!(Asks::of(&json!([[1, 2]])).is_err());
        assert!(Asks::default().summary().is_none());
    }
}
