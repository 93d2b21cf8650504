//! Shared parts of all seeded simulations: random numbers, devices with faults, checks, digests.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher as _};
use std::ops::Range;
use std::time::Duration;

use walla_device::{DeviceKind, philox4x32};
use walla_doubles::faulty::{FaultHandle, FaultPlan, FaultyBackend, VirtualClock};
use walla_doubles::hash::{HashBackend, HashOptions, reference_draw, reference_draw_recurrent};
use walla_grammar::Constraint;
use walla_plan::{LinearCost, StepCost};
use walla_types::TokenMask;

use super::*;
use crate::api::{ActionPolicy, Actions};
use crate::core::budget::Budget;
use crate::options::{Deadlines, EngineError};

/// Maximum virtual time without a token, a step or an event, in microseconds.
pub(super) const MAX_SILENCE_MICROS: u64 = 2_500_000;

/// Maximum calls of `advance` in one frame. More means that the core spins.
pub(super) const MAX_ADVANCES: u32 = 20_000;

/// Random numbers from a seed.
pub(super) struct Draws {
    seed: u64,
    count: u32,
}

impl Draws {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, count: 0 }
    }

    /// A number below `below`.
    pub(super) fn draw(&mut self, below: u32) -> u32 {
        self.count += 1;
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        philox4x32([self.count, 0, 0, 77], key)[0] % below
    }

    pub(super) fn one_in(&mut self, many: u32) -> bool {
        self.draw(many) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.draw(of.len() as u32) as usize]
    }

    /// The pacing of a client.
    pub(super) fn pacing(&mut self) -> Pacing {
        match self.draw(3) {
            0 => Pacing::FreeRunning,
            steps => Pacing::PerFrame { steps },
        }
    }

    /// An agent with some settings of every kind.
    pub(super) fn spec(&mut self) -> AgentSpec {
        let mut sampling = Sampling::builder().seed(self.draw(1_000).into());
        if self.one_in(3) {
            sampling = sampling.repetition_penalty(1.3).penalty_window(self.pick(&[8, 64]));
        }
        if self.one_in(6) {
            let first = self.draw(200);
            let tokens = (first..first + 40).map(TokenId);
            let mask = TokenMask::allow(320, tokens).expect("of the vocabulary");
            sampling = sampling.allowed_tokens(Arc::new(mask));
        }
        let sampling = sampling.build().expect("valid");
        // Not drawn, so that the other draws of a seed stay as they were in earlier versions.
        let is_constrained = matches!(self.seed % 8, 3 | 6) && sampling.seed().is_multiple_of(2);
        let constraint = match sampling.seed() % 3 {
            0 => Constraint::regex("[a-m ]{2,30}!"),
            1 => Constraint::choice(["the bridge is closed", "the bridge is open"]),
            _ => Constraint::json_schema(r#"{"type": "array", "maxItems": 4}"#),
        };
        let acts = acts(self.seed) && !sampling.seed().is_multiple_of(4);
        let sampling = if acts { actions::opening(sampling) } else { sampling };
        let policy = match sampling.seed() % 3 {
            0 => ActionPolicy::Required,
            _ => ActionPolicy::Auto,
        };
        let max_calls = 1 + sampling.seed() as u32 % 2;
        let actions = Actions { policy, max_calls, ..Actions::new(actions::wave()) };
        AgentSpec {
            constraint: is_constrained.then_some(constraint),
            actions: acts.then_some(actions),
            sampling,
            max_reply_tokens: 1 + self.draw(40),
            priority: self.draw(3) as i32,
            voice_rate: self.pick(&[None, Some(8.0)]),
            stop_strings: if self.one_in(4) { vec!["a".into()] } else { Vec::new() },
            ..AgentSpec::new("You are a test.")
        }
    }

    /// A prompt of any kind and length.
    pub(super) fn prompt(&mut self) -> Prompt {
        match self.draw(3) {
            0 => Prompt::Chat("Hi".repeat(1 + self.draw(30) as usize)),
            1 => Prompt::Raw("Once upon a time. ".repeat(1 + self.draw(8) as usize)),
            _ => {
                // Some prompts have the same prefix, so that pages are shared.
                let letter = self.pick(&["x", "y"]);
                tokens(&letter.repeat(1 + self.draw(130) as usize))
            }
        }
    }
}

/// Whether agents of the simulation with this seed have actions.
fn acts(seed: u64) -> bool {
    seed % 8 == 7
}

/// Whether the model of a simulation has recurrent layers. It has 0, 2, 4 or 6 snapshots.
fn is_recurrent(seed: u64) -> bool {
    seed % 8 == 3 || seed % 16 == 6
}

/// Inputs of a core's load, and the random numbers of its simulation.
pub(super) struct Setting {
    pub(super) draws: Draws,
    pub(super) clock: VirtualClock,
    pub(super) hash: HashOptions,
    pub(super) source: Arc<Source>,
    pub(super) options: EngineOptions,
    pub(super) registry: Registry,
    pub(super) handle: FaultHandle,
}

impl Setting {
    /// A device with its faults, and options for it.
    pub(super) fn new(seed: u64) -> Self {
        let mut draws = Draws::new(seed);
        let clock = VirtualClock::new();
        let hash = HashOptions {
            clock: clock.clone(),
            kind: draws.pick(&[DeviceKind::Cuda, DeviceKind::Cpu]),
            step_micros: draws.pick(&[50, 300, 2_000]),
            row_micros: draws.pick(&[5, 20, 100]),
            spread_percent: draws.pick(&[0, 20, 300]),
            seed,
            mapped_results: draws.one_in(2),
            ..HashOptions::default()
        };
        let mut plan = FaultPlan::new(seed).clock(&clock);
        if draws.one_in(2) {
            plan = plan.fail_in_play(draws.pick(&[200, 2_000]));
        }
        if draws.one_in(4) {
            plan = plan.delay_micros(0..=draws.pick(&[500, 5_000]));
        }
        for _ in 0..draws.pick(&[0, 0, 1, 3]) {
            plan = plan.poison(u64::from(draws.draw(150)), draws.draw(3));
        }
        let faulty = FaultyBackend::new(HashBackend::new(hash.clone()), plan).alias("gpu");
        let handle = faulty.handle();
        let spare = HashBackend::new(HashOptions { name: "cpu", ..hash.clone() });
        let registry = Registry::new().with(faulty).with(spare);
        let budget_micros = draws.pick(&[None, Some(300), Some(1_000), Some(4_166)]);
        let options = EngineOptions {
            budget: budget_micros.map(Duration::from_micros).into(),
            budget_free_running: draws.one_in(2),
            kv_tokens: Some(16 * (9 + draws.draw(30))),
            max_launch: draws.pick(&[None, Some(Duration::from_micros(1_000))]),
            deadlines: Deadlines {
                reply: draws.pick(&[None, None, Some(Duration::from_millis(900))]),
                ..Deadlines::default()
            },
            // Not drawn, so that the other draws of a seed stay as they were in earlier versions.
            background_prefill: matches!(seed % 4, 1 | 2),
            context_shift: seed % 16 == 5,
            context_tokens: if acts(seed) { 256 } else { options().context_tokens },
            ..options()
        };
        let recurrent = is_recurrent(seed);
        let options = EngineOptions {
            state_snapshots: recurrent.then_some((seed / 8 % 4) as u32 * 2),
            model: if recurrent {
                ModelSource::Static(recurrent_model())
            } else {
                options.model.clone()
            },
            ..options
        };
        let source = match seed {
            seed if acts(seed) => actions::source(),
            seed if is_recurrent(seed) => recurrent_source(),
            _ => source(),
        };
        Self { draws, clock, hash, source, options, registry, handle }
    }

    /// Loads the core, with a calibration in some simulations.
    pub(super) fn load(&mut self) -> Core {
        let go_on = &mut |_: f32| ControlFlow::Continue(());
        let at = Clock::Virtual(self.clock.clone());
        let file = self.source.reopen().expect("it is in memory");
        // Calibration takes as long as a simulation: most simulations are given costs, which are
        // not always correct.
        let is_calibrated = self.draws.one_in(8);
        let budget = if is_calibrated { self.options.budget } else { FrameBudget::Unlimited };
        let of_load = EngineOptions { budget, ..self.options.clone() };
        let core = Core::load_from(&self.source, &file, &of_load, &self.registry, &at, go_on);
        let mut core = core.expect("some device loads");
        if !is_calibrated {
            let cost = StepCost::from_linear(LinearCost {
                step_micros: self.hash.step_micros as f32 * self.draws.pick(&[0.5, 1.0, 3.0]),
                row_micros: self.hash.row_micros as f32,
                context_token_micros: 0.0,
                prefill_token_micros: 0.0,
            });
            core.budget =
                Budget::new(&self.options, self.hash.kind == DeviceKind::Cuda, Some(cost));
        }
        core
    }

    /// Replaces a core whose device is lost.
    pub(super) fn fall_back(&self, core: &mut Core, error: &EngineError) {
        let go_on = &mut |_: f32| ControlFlow::Continue(());
        let clock = Clock::Virtual(self.clock.clone());
        let Self { source, options, registry, .. } = self;
        let spare = Core::load_fallback(source, options, registry, error, &clock, go_on);
        let spare = spare.expect("there is one").expect("it loads");
        let lost = std::mem::replace(core, spare);
        core.take_over(lost);
    }
}

/// The newest token of each speaking agent is the one that its tokens alone give.
pub(super) fn check_tokens(core: &Core) {
    for (_, agent) in core.agents.iter() {
        let Some(reply) = agent.reply.as_ref().filter(|_| agent.is_running()) else {
            continue;
        };
        // The reference has no mask that changes.
        if reply.constraint.is_some() || reply.usage.call_tokens > 0 {
            continue;
        }
        let prompt = reply.usage.prompt_tokens as usize;
        if let Some((token, before)) = agent.sequence.tokens().split_last()
            && before.len() >= prompt
        {
            let sampling = &agent.spec.sampling;
            let expected = if core.kv.is_recurrent() {
                reference_draw_recurrent(before, sampling, 320)
            } else {
                reference_draw(before, sampling, 320)
            };
            assert_eq!(Some(*token), expected, "{:?} at {}", agent.id, before.len());
        }
    }
}

/// State of the core, for a simulation that fails.
pub(super) fn describe(core: &Core) -> String {
    let ledger = core.kv.ledger();
    let mut text = format!("{:?}\n", core.stats());
    for (slot, agent) in core.agents.iter() {
        let seq = walla_types::SeqId(slot as u32);
        let (tokens, known) = (ledger.len(seq), agent.sequence.tokens().len());
        let pages = ledger.pages(seq).len();
        let state = (
            pages,
            agent.spec.detail,
            agent.spec.priority,
            agent.sequence.unread(),
            agent.asks.len(),
        );
        writeln!(text, "{slot} {:?}: {tokens} of {known} tokens, {state:?}", agent.id)
            .and_then(|()| writeln!(text, "  {:?}", agent.reply))
            .expect("a string takes everything");
    }
    let (free, fenced) = (ledger.free_pages(), ledger.fenced_pages());
    let claim = core.kv.claim;
    let deferred = core.scheduler.deferred();
    format!("{text}{free} pages free, {fenced} fenced, claim {claim:?}, {deferred:?}")
}

/// The model of all simulations. It is shared: reading its vocabulary and its template takes longer
/// than a simulation.
pub(super) fn source() -> Arc<Source> {
    static SOURCE: OnceLock<Arc<Source>> = OnceLock::new();
    let open = || Source::open(&options()).expect("the file is sound").0;
    Arc::clone(SOURCE.get_or_init(open))
}

/// As [`source`], with recurrent layers.
fn recurrent_source() -> Arc<Source> {
    static SOURCE: OnceLock<Arc<Source>> = OnceLock::new();
    let model = ModelSource::Static(recurrent_model());
    let options = EngineOptions { model, ..options() };
    let open = || Source::open(&options).expect("the file is sound").0;
    Arc::clone(SOURCE.get_or_init(open))
}

/// Prints the seed if its simulation fails.
pub(super) struct Named(pub(super) &'static str, pub(super) u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed: {}={}..{}", self.0, self.1, self.1 + 1);
        }
    }
}

/// Seeds from an environment variable of the form `FIRST..END`.
pub(super) fn seeds(variable: &str, default: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var(variable) else { return default };
    let range = text
        .split_once("..")
        .and_then(|(first, end)| Some(first.trim().parse().ok()?..end.trim().parse().ok()?));
    range.unwrap_or_else(|| panic!("{variable} is {text:?}, expected FIRST..END"))
}

/// Runs the simulation of every seed, with a line per 10,000 of many. At the end it prints a digest
/// of all events: a change that must not change behaviour leaves it as it is (`--nocapture`).
pub(super) fn run_all(seeds: Range<u64>, simulate: impl Fn(u64) -> String) {
    let is_long = seeds.end - seeds.start > 10_000;
    let mut digest = DefaultHasher::new();
    let of_seeds = seeds.clone();
    for seed in seeds {
        digest.write(simulate(seed).as_bytes());
        if is_long && seed % 10_000 == 9_999 {
            eprintln!("simulations up to seed {seed} have passed");
        }
    }
    eprintln!("digest of the simulations {of_seeds:?}: {:016x}", digest.finish());
}
