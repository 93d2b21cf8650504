//! Whether asks are sent to an engine, from the outcomes of earlier ones.

use std::time::Duration;

use walla_runtime::{RemoteError, ReplyError, ReplyId};

/// Whether asks of agents with a substitute are sent to an engine: a circuit breaker, whose usual
/// names for these states are closed, half-open and open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Health {
    /// Asks are sent to it.
    #[default]
    Available,
    /// It was unavailable. One ask at a time is sent to it, as a probe; others go to the
    /// substitute.
    Probing,
    /// Asks go straight to the substitute. An agent without one still asks this engine;
    /// its success counts as a probe.
    Unavailable,
}

/// When the [`Health`] of an engine changes. Between the changes are several outcomes and a wait,
/// so it does not oscillate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthRules {
    /// Consecutive failures after which an engine is unavailable. Minimum: `0` counts as `1`.
    /// Default: 3.
    ///
    /// An exceeded [`max_first_token`](walla_runtime::Route::max_first_token) is a failure. Errors
    /// of an ask itself are not: a prompt that is too long, a request that the server refuses.
    pub max_failures: u32,
    /// Time from the last failure to the first probe. It doubles with each failed probe.
    /// Default: 5 s.
    pub wait: Duration,
    /// Its maximum. Default: 60 s.
    pub max_wait: Duration,
    /// Successful probes after which it is available again. Minimum: `0` counts as `1`. Default: 2.
    pub probes: u32,
}

impl Default for HealthRules {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { max_failures: 3, wait: seconds(5), max_wait: seconds(60), probes: 2 }
    }
}

/// The health of one engine. Times are since any fixed point.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    health: Health,
    /// Consecutive failures while available, successful probes while probing.
    count: u32,
    wait: Duration,
    /// End of the wait while unavailable.
    until: Duration,
    /// The latest ask that has failed.
    failed: Option<ReplyId>,
    probe: Option<ReplyId>,
}

impl Breaker {
    pub fn health(&self) -> Health {
        self.health
    }

    /// Whether the ask of an agent with a substitute is sent to the engine.
    pub fn admits(&mut self, ask: ReplyId, now: Duration) -> bool {
        // Only an ask begins the probing: without asks there is nothing to probe with.
        if self.health == Health::Unavailable && now >= self.until {
            (self.health, self.count, self.probe) = (Health::Probing, 0, None);
        }
        match self.health {
            Health::Available => true,
            Health::Unavailable => false,
            Health::Probing if self.probe.is_some() => false,
            Health::Probing => {
                self.probe = Some(ask);
                true
            }
        }
    }

    /// The engine has produced output.
    pub fn succeeded(&mut self, ask: ReplyId, rules: &HealthRules) {
        match self.health {
            Health::Available => {
                self.count = 0;
                return;
            }
            Health::Probing => self.ended(ask),
            // Ids increase: this ask preceded the failure.
            Health::Unavailable if self.failed.is_some_and(|failed| ask < failed) => return,
            // An agent without a substitute has asked it.
            Health::Unavailable => {
                (self.health, self.count, self.probe) = (Health::Probing, 0, None);
            }
        }
        self.count += 1;
        if self.count >= rules.probes.max(1) {
            *self = Self::default();
        }
    }

    /// The engine has failed, or exceeded a limit of time.
    pub fn failed(&mut self, ask: ReplyId, rules: &HealthRules, now: Duration) {
        // Otherwise the place of the probe would stay taken.
        self.ended(ask);
        self.failed = self.failed.max(Some(ask));
        match self.health {
            Health::Available => {
                self.count += 1;
                if self.count < rules.max_failures.max(1) {
                    return;
                }
                self.wait = rules.wait;
            }
            Health::Probing => {
                self.wait = self.wait.saturating_mul(2).min(rules.max_wait.max(rules.wait));
            }
            Health::Unavailable => return,
        }
        (self.health, self.until) = (Health::Unavailable, now.saturating_add(self.wait));
    }

    /// The ask has ended, or has moved to another engine: it is no probe any more.
    pub fn ended(&mut self, ask: ReplyId) {
        if self.probe == Some(ask) {
            self.probe = None;
        }
    }
}

/// Whether an error shows that the engine does not work, not only that this ask is impossible.
pub(crate) fn is_of_engine(error: &ReplyError) -> bool {
    match error {
        ReplyError::EngineGone(_) | ReplyError::Device(_) | ReplyError::NotFinite => true,
        ReplyError::Remote { error, .. } => !matches!(
            error,
            RemoteError::Refused { .. }
                | RemoteError::ContextExceeded { .. }
                | RemoteError::Filtered
                | RemoteError::TooLarge { .. }
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: HealthRules = HealthRules {
        max_failures: 3,
        wait: Duration::from_secs(5),
        max_wait: Duration::from_secs(15),
        probes: 2,
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn broken(now: u64) -> Breaker {
        let mut breaker = Breaker::default();
        for ask in 0..3 {
            assert_eq!(breaker.health(), Health::Available);
            breaker.failed(ReplyId(ask), &RULES, at(now));
        }
        assert_eq!(breaker.health(), Health::Unavailable);
        breaker
    }

    #[test]
    fn only_consecutive_failures_make_an_engine_unavailable() {
        let mut breaker = Breaker::default();
        for ask in 0..20 {
            match ask % 3 {
                2 => breaker.succeeded(ReplyId(ask), &RULES),
                _ => breaker.failed(ReplyId(ask), &RULES, at(0)),
            }
            assert_eq!(breaker.health(), Health::Available);
        }
    }

    #[test]
    fn probes_are_one_at_a_time_and_two_make_it_available() {
        let mut breaker = broken(10);
        assert!(!breaker.admits(ReplyId(4), at(14)));
        assert!(breaker.admits(ReplyId(5), at(15)));
        assert!(!breaker.admits(ReplyId(6), at(15)));
        breaker.succeeded(ReplyId(5), &RULES);
        assert_eq!(breaker.health(), Health::Probing);
        assert!(breaker.admits(ReplyId(7), at(16)));
        // A cancelled probe has no outcome.
        breaker.ended(ReplyId(7));
        assert!(breaker.admits(ReplyId(8), at(16)));
        breaker.succeeded(ReplyId(8), &RULES);
        assert_eq!(breaker.health(), Health::Available);
        // The count begins again.
        breaker.failed(ReplyId(9), &RULES, at(17));
        assert!(breaker.admits(ReplyId(10), at(17)));
    }

    #[test]
    fn successes_of_agents_without_a_substitute_count_as_probes() {
        let mut breaker = broken(10);
        breaker.succeeded(ReplyId(1), &RULES); // an ask from before the last failure
        assert_eq!(breaker.health(), Health::Unavailable);
        breaker.succeeded(ReplyId(7), &RULES);
        assert_eq!(breaker.health(), Health::Probing);
        breaker.succeeded(ReplyId(8), &RULES);
        assert_eq!(breaker.health(), Health::Available);
    }

    #[test]
    fn the_wait_doubles_up_to_its_maximum() {
        let mut breaker = broken(0);
        let mut now = 0;
        for wait in [5, 10, 15, 15] {
            assert!(!breaker.admits(ReplyId(now), at(now + wait - 1)), "{wait}");
            now += wait;
            assert!(breaker.admits(ReplyId(1_000 + now), at(now)), "{wait}");
            breaker.failed(ReplyId(1_000 + now), &RULES, at(now));
            // Late outcomes of earlier asks change nothing.
            breaker.failed(ReplyId(900), &RULES, at(now));
            breaker.succeeded(ReplyId(901), &RULES);
            assert_eq!(breaker.health(), Health::Unavailable);
        }
    }
}
