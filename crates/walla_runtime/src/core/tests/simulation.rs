//! Seeded simulations: all actions of hosts and devices, in random order and in virtual time, on a
//! device that hashes instead of evaluating a model.
//!
//! A simulation is a function of its seed: time is virtual, so budgets, deadlines and step times
//! are reproducible as well. Invariants after every frame and at the end:
//!
//! - every token of every reply is the one that the device draws for these tokens alone;
//! - every reply ends exactly once, deltas join to the decoding of all tokens (`hear` checks);
//! - liveness: while a reply is open, its host reads events and grants frames, and there is a
//!   budget, there is progress within [`MAX_SILENCE_MICROS`] of virtual time;
//! - an idle core has no work: a second call of `advance` changes nothing;
//! - every page is returned.
//!
//! `WALLA_SIMULATION_SEEDS=FIRST..END` runs other seeds than the default ones.

use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use walla_doubles::faulty::{Call, Fault, FaultPlan, FaultyBackend};
use walla_doubles::hash::{HashBackend, HashOptions};
use walla_plan::Detail;

use super::simulation_copies::Copies;
use super::simulation_kit::{
    Draws, MAX_ADVANCES, MAX_SILENCE_MICROS, Named, Setting, check_tokens, describe, run_all,
    seeds, source,
};
use super::*;
use crate::api::{ConversationEdit, Speaker, Turn};
use crate::engine_core::Control;
use crate::options::EngineError;

/// Sets other seeds.
const VARIABLE: &str = "WALLA_SIMULATION_SEEDS";

/// Default seeds.
const SEEDS: Range<u64> = 0..200;

/// Seeds that found a fault: agents of a client that continued after a stall were in the batch and
/// evicted; and in the last one, an agent with reserved pages and no tokens was held back by the
/// claim of a more urgent one, which waited for these pages.
const SEEDS_OF_FAULTS: [u64; 5] = [100_671, 236_276, 350_267, 5_452, 20_986];

/// Maximum frames between the last action and the end of all replies. A device on which only one
/// row fits in `max_launch` evaluates one row of each agent per frame: about 100 replies of 168
/// tokens need this number.
const MAX_FRAMES_TO_END: u32 = 17_000;

/// A core in virtual time, and its events.
pub(super) struct Simulation {
    pub(super) setting: Setting,
    pub(super) core: Core,
    pub(super) agents: Vec<AgentId>,
    asks: Vec<(AgentId, ReplyId)>,
    names: u64,
    heard: HashMap<ReplyId, Heard>,
    /// Events that the host still takes in this frame.
    room: usize,
    has_fallen_back: bool,
    is_budget_zero: bool,
    is_paused: bool,
    pub(super) copies: Copies,
    pub(super) log: String,
    /// Latest progress, and the time of its last change.
    progress: (u64, u64, usize),
    progress_micros: u64,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut setting = Setting::new(seed);
        let pacing = setting.draws.pacing();
        let core = setting.load();
        Self::around(core, pacing, setting)
    }

    /// A simulation at its beginning.
    fn around(mut core: Core, pacing: Pacing, setting: Setting) -> Self {
        core.add_client(HOST, pacing);
        let draws_of_copies = Draws::new(setting.hash.seed ^ 0x5afe);
        Self {
            setting,
            core,
            agents: Vec::new(),
            asks: Vec::new(),
            names: 0,
            heard: HashMap::new(),
            room: usize::MAX,
            has_fallen_back: false,
            is_budget_zero: false,
            is_paused: false,
            copies: Copies::new(draws_of_copies),
            log: String::new(),
            progress: (0, 0, 0),
            progress_micros: 0,
        }
    }

    fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    pub(super) fn command(&mut self, command: Command) {
        let now_micros = self.setting.clock.now_micros();
        self.core.command(HOST, command, now_micros);
    }

    fn pick_agent(&mut self) -> Option<AgentId> {
        let count = self.agents.len() as u32;
        (count > 0).then(|| self.agents[self.setting.draws.draw(count) as usize])
    }

    /// A random action of a host, a device or the environment.
    fn act(&mut self) {
        match self.setting.draws.draw(26) {
            0..=3 if self.agents.len() < 8 => {
                let spec = self.setting.draws.spec();
                self.add(spec);
            }
            4..=9 => {
                let Some(agent) = self.pick_agent() else { return };
                let prompt = self.setting.draws.prompt();
                self.ask(agent, prompt);
            }
            10 | 11 if !self.asks.is_empty() => {
                let (agent, reply_id) = {
                    let at = self.setting.draws.draw(self.asks.len() as u32) as usize;
                    self.asks[at]
                };
                self.command(Command::Cancel { agent, reply_id });
            }
            12 if self.agents.len() > 2 => {
                let at = self.setting.draws.draw(self.agents.len() as u32) as usize;
                let agent = self.agents.swap_remove(at);
                self.command(Command::RemoveAgent { agent });
            }
            13 => {
                let Some(agent) = self.pick_agent() else { return };
                let spec = Box::new(self.setting.draws.spec());
                self.command(Command::ChangeAgent { agent, spec });
            }
            14 => {
                let Some(agent) = self.pick_agent() else { return };
                let detail =
                    self.setting.draws.pick(&[Detail::Full, Detail::Reduced, Detail::Background]);
                self.command(Command::SetDetail { agent, detail });
            }
            15 if self.setting.draws.one_in(3) => {
                let Some(agent) = self.pick_agent() else { return };
                let turn = |speaker, text: &str| Turn::new(speaker, text);
                let turns = vec![turn(Speaker::User, "Who?"), turn(Speaker::Agent, "Me.")];
                self.command(Command::SetConversation { agent, turns });
            }
            16 => {
                let pages = 9 + self.setting.draws.draw(30);
                self.core.control(Control::KvTokens(16 * pages));
            }
            17 => {
                let micros = self.setting.draws.pick(&[None, Some(0), Some(400), Some(3_000)]);
                self.is_budget_zero = micros == Some(0);
                self.core.control(Control::Budget(micros.map(Duration::from_micros).into()));
            }
            18 if self.setting.draws.one_in(6) => self.setting.handle.lose(),
            19 => self.room = self.setting.draws.pick(&[0, 1, 5, usize::MAX]),
            // A late frame, sometimes by an hour.
            20 => self.setting.clock.advance(self.setting.draws.pick(&[50_000, 400_000])),
            21 if self.setting.draws.one_in(8) => {
                self.setting.clock.advance(3_600_000_000);
                self.progress_micros = self.setting.clock.now_micros();
            }
            23 => {
                let Some(source) = self.pick_agent().filter(|_| self.agents.len() < 8) else {
                    return;
                };
                let is_copy = self.setting.draws.one_in(2);
                let spec = (!is_copy).then(|| Box::new(self.setting.draws.spec()));
                let agent = AgentId(self.name());
                self.agents.push(agent);
                self.command(Command::ForkAgent { agent, source, spec });
            }
            24 => {
                let (Some(agent), Some(source)) = (self.pick_agent(), self.pick_agent()) else {
                    return;
                };
                let edit = match self.setting.draws.draw(4) {
                    0 => ConversationEdit::CopyOf { source },
                    1 => ConversationEdit::Text { turns_after: 1, text: "Lo é.".into() },
                    turns => ConversationEdit::Rewind { turns },
                };
                self.command(Command::EditConversation { agent, edit });
            }
            25 => {
                let Some(agent) = self.pick_agent() else { return };
                self.ask(agent, Prompt::Again);
            }
            22 => {
                let is_paused = !self.is_paused && self.setting.draws.one_in(2);
                self.pause(is_paused);
            }
            _ => {}
        }
    }

    fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
        self.core.set_paused(HOST, is_paused);
    }

    /// One frame of the host, during which the device works.
    pub(super) fn frame(&mut self) {
        let begin_micros = self.setting.clock.now_micros();
        let end_micros = begin_micros + FRAME_MICROS;
        self.core.frame(HOST, begin_micros);
        for advances in 0.. {
            assert!(advances < MAX_ADVANCES, "the core spins");
            let wait_micros = match self.advance() {
                Advance::Again => continue,
                Advance::Poll => 200,
                Advance::Pause(micros) => micros,
                Advance::Idle => {
                    self.check_idle();
                    break;
                }
            };
            // The next frame may begin before the core must be advanced again.
            if self.setting.clock.now_micros() + wait_micros >= end_micros {
                break;
            }
            self.setting.clock.advance(wait_micros);
        }
        self.setting.clock.advance_to(end_micros);
        check_tokens(&self.core);
        self.check_progress();
    }

    /// The device thread parks when the core is idle: another call changes nothing.
    fn check_idle(&mut self) {
        let before = (self.core.stats().steps, self.log.len());
        let advance = self.advance();
        let after = (self.core.stats().steps, self.log.len());
        assert_eq!((advance, after), (Advance::Idle, before), "{}", describe(&self.core));
    }

    /// Advances as the device thread does.
    fn advance(&mut self) -> Advance {
        let now_micros = self.setting.clock.now_micros();
        let Self { core, heard, room, log, .. } = self;
        let mut emit = |_: ClientKey, event: Event| {
            if *room == 0 {
                return Err(event);
            }
            *room -= 1;
            writeln!(log, "{now_micros} {event:?}").expect("a string takes everything");
            hear(heard, event);
            Ok(())
        };
        match core.advance(now_micros, &mut emit) {
            Ok(advance) => advance,
            Err(error) => {
                self.fall_back(&error);
                Advance::Again
            }
        }
    }

    fn fall_back(&mut self, error: &EngineError) {
        assert!(error.is_of_device() && !self.has_fallen_back, "{error}");
        self.has_fallen_back = true;
        self.setting.fall_back(&mut self.core, error);
    }

    fn is_anything_open(&self) -> bool {
        self.heard.values().any(|heard| heard.ends.is_empty())
    }

    fn check_progress(&mut self) {
        let stats = self.core.stats();
        let events = self.log.len();
        let progress = (stats.steps, stats.steps_done, events);
        let now_micros = self.setting.clock.now_micros();
        let is_due =
            self.is_anything_open() && self.room > 0 && !self.is_budget_zero && !self.is_paused;
        if progress != self.progress || !is_due {
            (self.progress, self.progress_micros) = (progress, now_micros);
        }
        let silent_micros = now_micros - self.progress_micros;
        assert!(
            silent_micros < MAX_SILENCE_MICROS,
            "{silent_micros} µs of silence\n{}",
            describe(&self.core)
        );
    }

    fn assert_all_ended(&self) {
        for (reply_id, heard) in &self.heard {
            let ends = heard.ends.len();
            assert_eq!(ends, 1, "{reply_id:?} ends once: {heard:?}\n{}", describe(&self.core));
        }
    }

    /// Runs the simulation until the last page is returned. Returns the log of all events.
    fn run(mut self) -> String {
        for _ in 0..120 {
            self.act();
            self.act();
            self.copy_cache();
            self.frame();
        }
        self.room = usize::MAX;
        self.is_budget_zero = false;
        self.pause(false);
        self.core.control(Control::Budget(FrameBudget::Unlimited));
        self.core.control(Control::KvTokens(u32::MAX));
        for _ in 0..MAX_FRAMES_TO_END {
            if !self.is_anything_open() {
                break;
            }
            self.frame();
        }
        self.finish_copies();
        self.assert_all_ended();
        for agent in std::mem::take(&mut self.agents) {
            self.command(Command::RemoveAgent { agent });
        }
        self.frame();
        self.frame();
        if self.core.kv.is_recurrent() {
            let restored = self.core.kv.snapshots_restored();
            writeln!(self.log, "restored {restored}").expect("a string takes everything");
        }
        self.core.kv.drop_snapshots();
        let stats = self.core.stats();
        let pages_used = self.core.kv.ledger().used_pages();
        assert_eq!((pages_used, stats.agents), (0, 0), "everything is returned");
        self.log
    }
}

fn simulate(seed: u64) -> String {
    let _named = Named(VARIABLE, seed);
    Simulation::new(seed).run()
}

#[test]
fn random_schedules_complete() {
    SEEDS_OF_FAULTS.into_iter().for_each(|seed| drop(simulate(seed)));
    run_all(seeds(VARIABLE, SEEDS), simulate);
}

/// The simulations with actions have calls.
#[test]
fn simulated_agents_act() {
    let calls: usize =
        (7..240).step_by(8).map(|seed| simulate(seed).matches("Call(").count()).sum();
    assert!(calls > 20, "{calls}");
}

/// The simulations save and load caches, also with recurrent layers.
#[test]
fn simulated_agents_load_caches() {
    let loads = |seed| -> u32 {
        let log = simulate(seed);
        let count = log.rsplit("loaded ").next().and_then(|rest| rest.lines().next());
        count.and_then(|count| count.trim().parse().ok()).expect("a number")
    };
    let [plain, recurrent] = [0, 3].map(|first| (first..160).step_by(8).map(loads).sum::<u32>());
    assert!(plain > 10 && recurrent > 10, "{plain}, {recurrent}");
}

/// The simulations with recurrent layers continue from snapshots.
#[test]
fn simulated_agents_continue_from_snapshots() {
    let uses = |seed| -> u32 {
        let log = simulate(seed);
        log.rsplit("restored ").next().and_then(|uses| uses.trim().parse().ok()).expect("a number")
    };
    let all: u32 = (11..240).step_by(8).map(uses).sum();
    assert!(all > 20, "{all}");
}

#[test]
fn a_schedule_replays_byte_for_byte() {
    let mut has_budget = 0;
    for seed in seeds(VARIABLE, SEEDS).take(60) {
        let first = simulate(seed);
        assert!(!first.is_empty(), "seed {seed}: something is said");
        assert_eq!(first, simulate(seed), "seed {seed}");
        has_budget +=
            u32::from(Simulation::new(seed).setting.options.budget != FrameBudget::Unlimited);
    }
    assert!(has_budget > 0);
}

impl Simulation {
    /// A simulation without random actions, controlled by its test.
    fn plain(options: EngineOptions, pacing: Pacing, plan: FaultPlan, hash: HashOptions) -> Self {
        let clock = hash.clock.clone();
        let faulty = FaultyBackend::new(HashBackend::new(hash.clone()), plan).alias("gpu");
        let handle = faulty.handle();
        let spare = HashBackend::new(HashOptions { name: "cpu", ..hash.clone() });
        let registry = Registry::new().with(faulty).with(spare);
        let at = Clock::Virtual(clock.clone());
        let go_on = &mut |_: f32| ControlFlow::Continue(());
        let source = source();
        let file = source.reopen().expect("it is in memory");
        // A device that cannot load is skipped.
        let core = Core::load_from(&source, &file, &options, &registry, &at, go_on);
        let core = core.expect("the spare device loads");
        let draws = Draws::new(1);
        Self::around(
            core,
            pacing,
            Setting { draws, clock, hash, source, options, registry, handle },
        )
    }

    pub(super) fn add(&mut self, spec: AgentSpec) -> AgentId {
        let agent = AgentId(self.name());
        self.command(Command::AddAgent { agent, spec: Box::new(spec) });
        self.agents.push(agent);
        agent
    }

    pub(super) fn ask(&mut self, agent: AgentId, prompt: Prompt) {
        let reply_id = ReplyId(self.name());
        self.heard.insert(reply_id, Heard { client: Some(HOST), ..Heard::default() });
        self.asks.push((agent, reply_id));
        self.command(Command::ask(agent, reply_id, prompt));
    }
}

/// A short simulation whose device fails or is lost in the `nth` call of a kind. Returns whether
/// there was such a call.
fn sweep(call: Call, nth: u64, fault: Fault) -> bool {
    let options = EngineOptions {
        budget: FrameBudget::Time(Duration::from_micros(2_000)),
        kv_tokens: Some(16 * 12),
        ..options()
    };
    let plan = FaultPlan::new(1).fail_call(call, nth, fault);
    let mut simulation =
        Simulation::plain(options, Pacing::default(), plan, HashOptions::default());
    for seed in 0..4 {
        let agent = simulation.add(speaker(seed, 6));
        simulation.ask(agent, tokens(&"x".repeat(40)));
        simulation.ask(agent, Prompt::Chat("Hello".into()));
    }
    for frame in 0..400 {
        match frame {
            6 => simulation.core.control(Control::KvTokens(16 * 8)),
            12 => simulation.core.control(Control::KvTokens(u32::MAX)),
            // A save, and a load of its file into another agent.
            14 => simulation.save(0),
            20 => simulation.load_saved(),
            _ if frame < 24 => {}
            _ if !simulation.is_anything_open() => break,
            _ => {}
        }
        simulation.frame();
    }
    simulation.finish_copies();
    simulation.assert_all_ended();
    simulation.setting.handle.calls(call) > nth
}

/// The most urgent agent preempts others for pages that steps in flight still hold. A preempted
/// agent may not take them in the meantime: neither in the same frame nor, if the frame's steps are
/// used up, in the next one.
#[test]
fn preempted_pages_reach_the_agent_that_they_were_freed_for() {
    for seed in 0..300 {
        let _named = Named("seed", seed);
        let mut draws = Draws::new(seed);
        let options = EngineOptions { kv_tokens: Some(16 * (9 + draws.draw(6))), ..options() };
        let step_micros = draws.pick(&[300, 3_000, 12_000]);
        let hash = HashOptions { step_micros, ..HashOptions::default() };
        let pacing = Pacing::PerFrame { steps: 1 + draws.draw(2) };
        let mut simulation = Simulation::plain(options, pacing, FaultPlan::new(1), hash);
        for n in 0..5 {
            let detail = draws.pick(&[Detail::Full, Detail::Full, Detail::Background]);
            let agent = simulation.add(AgentSpec { detail, ..speaker(n, 4 + draws.draw(20)) });
            // No two prompts have a common prefix, so no page is shared.
            let letter = char::from(b'a' + n as u8).to_string();
            for _ in 0..3 {
                simulation.ask(agent, tokens(&letter.repeat(20 + draws.draw(100) as usize)));
            }
            for _ in 0..draws.draw(4) {
                simulation.frame();
            }
        }
        let frames = (0..5_000).take_while(|_| {
            simulation.frame();
            simulation.is_anything_open()
        });
        assert!(frames.count() < 5_000, "{}", describe(&simulation.core));
    }
}

#[test]
fn every_call_of_a_device_may_fail_or_lose_it_at_every_time() {
    let mut faults = 0;
    for call in Call::ALL {
        for fault in [Fault::Failed, Fault::Lost] {
            faults += (0..).take_while(|&nth| sweep(call, nth, fault)).count();
        }
    }
    assert!(faults > 500, "{faults} faults");
}
