//! A crowd under a budget: the real planner, governor and ledger, a device that deviates from its model, and a clock that counts frames.
//!
//! Used by the test `simulation.rs` in small and by `benches/src/simulate.rs` in large. One seed, one story.

use std::collections::VecDeque;

use walla_plan::governor::{BucketError, CostSample, Rates};
use walla_plan::{
    AgentState, BUCKETS, CostModel, Deferral, Detail, Governor, GovernorOptions, GovernorStats,
    KvCommands, KvLedger, LedgerOptions, Limits, Plan, PlanRequest, STEPS_MAX, StepCost, StepWork,
    SubmittedStep, plan,
};
use walla_types::SeqId;

/// Frames of a second.
const HERTZ: f32 = 60.0;

/// Tokens of a sequence at most.
const CONTEXT_TOKENS: u32 = 1_024;

/// Tokens of a page.
const PAGE_TOKENS: u32 = 16;

/// What to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub agents: u32,
    pub frames: u32,
    pub seed: u64,
    pub options: GovernorOptions,
    /// Asks in a quiet frame, on average.
    pub asks_per_frame: f32,
}

/// Numbers in ascending order, and what most of them are below.
#[derive(Clone, Debug, Default)]
pub struct Spread(Vec<f32>);

impl Spread {
    pub fn add(&mut self, value: f32) {
        self.0.push(value);
    }

    /// At each share of 0 to 1, the value that so many are at or below; 0 without any.
    pub fn at<const N: usize>(&mut self, shares: [f64; N]) -> [f32; N] {
        self.0.sort_unstable_by(f32::total_cmp);
        let last = self.0.len().saturating_sub(1) as f64;
        shares.map(|share| self.0.get((share * last).round() as usize).copied().unwrap_or(0.0))
    }
}

/// What became of the agents of one level of detail.
#[derive(Clone, Debug, Default)]
pub struct OfDetail {
    pub replies: u64,
    pub tokens: u64,
    /// Tokens of voices that came more than a frame after they were due.
    pub tokens_late: u64,
    /// Frames in a row in which somebody's voice or prompt wanted something and got nothing, at most.
    pub longest_wait: u32,
    /// Frames from an ask to its first token.
    pub first_token_frames: Spread,
    waits: Spread,
}

impl OfDetail {
    /// Waits of those who had to wait at all.
    pub fn waits(&mut self) -> &mut Spread {
        &mut self.waits
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Report {
    pub stats: GovernorStats,
    /// Frames that ran something.
    pub frames_used: u64,
    /// Device time of such a frame over its budget.
    pub use_share: Spread,
    pub errors: Vec<BucketError>,
    pub details: [OfDetail; 3],
    /// Steps, and rows of all of them.
    pub steps: u64,
    pub rows: u64,
    pub agents_active_max: usize,
    pub preemptions: u64,
    /// Frames in a row that the planner counted, at most, and the most that it may.
    pub planner_wait: (u32, u32),
}

impl Report {
    /// The share of frames that kept to their budget.
    pub fn adherence(&self) -> f64 {
        1.0 - self.stats.frames_over as f64 / self.frames_used.max(1) as f64
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Doing {
    Silent,
    Reading { tokens: u32 },
    Speaking { tokens_left: u32, first_frame: u32, said: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Agent {
    doing: Doing,
    priority: i32,
    detail: Detail,
    voice_rate: f32,
    reply_tokens: u32,
    asked_frame: u32,
    /// Frames in a row without anything, for the planner.
    waited: u32,
    /// Those of them in which its voice or its prompt wanted something.
    waited_due: u32,
    taken: u32,
}

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below 1.
    fn share(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end.max(1))) as u32
    }

    /// About normally distributed.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.share()).sum::<f32>() - 6.0
    }
}

/// A device whose true costs are not the model's: other factors for each bucket, noise, hiccups, slow drift, and spells in which
/// somebody else has a part of it.
struct Device {
    model: StepCost,
    of_bucket: [f32; BUCKETS.len()],
    random: Random,
}

impl Device {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let rates = Rates {
            context_token: 0.006,
            prefill_token: 1.5,
            prefill_pair: 0.001,
            prefill_step: 40.0,
            prefill_context_token: 0.002,
        };
        let table = BUCKETS.map(|rows| 260.0 + 4.0 * rows as f32);
        let model = StepCost::new(table, rates).expect("costs");
        let of_bucket = BUCKETS.map(|_| 0.85 + 0.4 * random.share());
        Self { model, of_bucket, random }
    }

    fn micros(&mut self, work: StepWork, frame: u32) -> f32 {
        let bucket = BUCKETS.partition_point(|&rows| rows < work.rows()).min(BUCKETS.len() - 1);
        let seconds = frame as f32 / HERTZ;
        let warm = 1.0 + 0.1 * (seconds / 97.0).sin();
        let shared = if frame % 10_000 > 8_800 { 1.35 } else { 1.0 };
        let noise = 1.0 + 0.02 * self.random.normal();
        let hiccup =
            if self.random.below(20_000) == 0 { 2.0 + 3.0 * self.random.share() } else { 1.0 };
        self.model.predict_micros(work) * self.of_bucket[bucket] * warm * shared * noise * hiccup
    }

    /// What a calibration at load finds out.
    fn calibrated(&mut self) -> StepCost {
        let works = [
            StepWork::decode(1, 16),
            StepWork::decode(1, 768),
            StepWork::decode(8, 8 * 16),
            StepWork::decode(8, 8 * 768),
            StepWork::decode(64, 64 * 16),
            StepWork::decode(64, 64 * 768),
            StepWork::decode(128, 128 * 16),
            StepWork::prefill(64, 16),
            StepWork::prefill(64, 768),
            StepWork { decode_rows: 8, ..StepWork::prefill(48, 16) },
            StepWork { decode_rows: 8, ..StepWork::prefill(48, 768) },
        ];
        let mut samples = Vec::new();
        for work in works {
            samples.extend((0..3).map(|_| CostSample { work, micros: self.micros(work, 0) }));
        }
        StepCost::fit(&samples).expect("samples")
    }
}

struct World {
    settings: Settings,
    governor: Governor,
    device: Device,
    random: Random,
    ledger: KvLedger,
    commands: KvCommands,
    plan: Plan,
    agents: Vec<Agent>,
    /// Agents that read or speak.
    active: Vec<u32>,
    /// Agents that have fallen silent and still hold a cache, longest ago first.
    idle: VecDeque<u32>,
    requests: Vec<PlanRequest>,
    /// A step whose time is not known yet: one is launched ahead.
    in_flight: Option<(SubmittedStep, StepWork)>,
    frame: u32,
    used_micros: f32,
    steps_in_frame: u32,
    report: Report,
}

/// Runs it.
pub fn run(settings: Settings) -> Report {
    let mut world = World::new(settings);
    for _ in 0..settings.frames {
        world.run_frame();
    }
    world.report.stats = world.governor.stats();
    world.report.errors = world.governor.errors().buckets().collect();
    world.report
}

impl World {
    fn new(settings: Settings) -> Self {
        let mut device = Device::new(settings.seed ^ 1);
        let mut random = Random(settings.seed);
        let cost = device.calibrated();
        let agent = |random: &mut Random| Agent {
            doing: Doing::Silent,
            priority: random.below(3) as i32,
            detail: Detail::Full,
            voice_rate: 3.0 + 7.0 * random.share(),
            reply_tokens: 0,
            asked_frame: 0,
            waited: 0,
            waited_due: 0,
            taken: 0,
        };
        let agents: Vec<_> = (0..settings.agents).map(|_| agent(&mut random)).collect();
        let pages_per_sequence_max = CONTEXT_TOKENS / PAGE_TOKENS;
        let ledger = LedgerOptions {
            page_tokens: PAGE_TOKENS,
            // A tenth of the crowd can have full contexts.
            pages: settings.agents * pages_per_sequence_max / 10 + 1,
            pages_per_sequence_max,
            sequences_max: settings.agents,
            ..LedgerOptions::default()
        };
        let count = settings.agents as usize;
        let mut world = Self {
            settings,
            governor: Governor::new(settings.options, cost),
            device,
            random,
            ledger: KvLedger::new(ledger).expect("sizes"),
            commands: KvCommands::with_capacity(4 * count),
            plan: Plan::new(settings.agents),
            agents,
            active: Vec::with_capacity(count),
            idle: VecDeque::with_capacity(count),
            requests: Vec::with_capacity(count),
            in_flight: None,
            frame: 0,
            used_micros: 0.0,
            steps_in_frame: 0,
            report: Report {
                stats: GovernorStats::default(),
                frames_used: 0,
                use_share: Spread::default(),
                errors: Vec::new(),
                details: Default::default(),
                steps: 0,
                rows: 0,
                agents_active_max: 0,
                preemptions: 0,
                planner_wait: (0, 0),
            },
        };
        (0..settings.agents).for_each(|agent| world.move_agent(agent));
        world
    }

    /// An agent comes nearer or goes away.
    fn move_agent(&mut self, agent: u32) {
        let detail = match self.random.below(10) {
            0..4 => Detail::Full,
            4..8 => Detail::Reduced,
            _ => Detail::Background,
        };
        self.agents[agent as usize].detail = detail;
    }

    fn run_frame(&mut self) {
        self.frame += 1;
        (0..self.settings.agents / 600 + 1).for_each(|_| {
            let agent = self.random.below(self.settings.agents);
            self.move_agent(agent);
        });
        self.ask_some();
        self.governor.begin_frame();
        for &agent in &self.active {
            self.agents[agent as usize].taken = 0;
        }
        (self.used_micros, self.steps_in_frame) = (0.0, 0);
        while !self.governor.is_spent() && self.step() {}
        self.land();
        if self.steps_in_frame > 0 {
            self.report.frames_used += 1;
            let budget = self.governor.stats().budget_micros.unwrap_or(u32::MAX) as f32;
            self.report.use_share.add(self.used_micros / budget);
        }
        self.count_waits();
        let agents = &self.agents;
        self.active.retain(|&agent| agents[agent as usize].doing != Doing::Silent);
    }

    /// Quiet most of the time, with a rush of three seconds in every minute.
    fn ask_some(&mut self) {
        let rush = if self.frame % 3_600 < 180 { 4.0 } else { 1.0 };
        let mut asks = self.settings.asks_per_frame * rush;
        while asks > self.random.share() {
            asks -= 1.0;
            let agent = self.random.below(self.settings.agents);
            if self.agents[agent as usize].doing != Doing::Silent {
                continue;
            }
            // A question of some words, and at times a whole conversation.
            let tokens = match self.random.below(20) {
                0 => 400 + self.random.below(400),
                _ => 10 + self.random.below(90),
            };
            let reply_tokens = 10 + self.random.below(80);
            if self.ledger.len(SeqId(agent)) + tokens + reply_tokens >= CONTEXT_TOKENS {
                self.forget(agent);
            }
            let state = &mut self.agents[agent as usize];
            state.reply_tokens = reply_tokens;
            (state.asked_frame, state.waited, state.waited_due) = (self.frame, 0, 0);
            state.doing = Doing::Reading { tokens };
            self.active.push(agent);
        }
        self.report.agents_active_max = self.report.agents_active_max.max(self.active.len());
    }

    fn forget(&mut self, agent: u32) {
        let removed = self.ledger.remove(SeqId(agent), .., &mut self.commands);
        removed.expect("a whole sequence can be removed");
    }

    /// Tokens by which a voice is behind at the end of this frame.
    fn due(&self, agent: &Agent) -> f32 {
        match agent.doing {
            Doing::Speaking { first_frame, said, .. } => {
                let spoken = (self.frame - first_frame) as f32 / HERTZ * agent.voice_rate;
                spoken - said as f32 + 1.0
            }
            // In the order of the asks, but short ones may pass long ones.
            Doing::Reading { tokens } => {
                (self.frame - agent.asked_frame) as f32 / HERTZ - tokens as f32 / 1e3
            }
            Doing::Silent => 0.0,
        }
    }

    /// Plans and runs one step. `false`: the frame has no more to do.
    fn step(&mut self) -> bool {
        self.collect_requests();
        let lengths = self.requests.iter().map(|request| self.ledger.len(request.seq));
        let Some(shortest) = lengths.min() else { return false };
        let chunk_gain_min = if self.governor.is_used() { 1.25 } else { 1.0 };
        let base =
            Limits { steps_max: 1, prefill_tokens_max: 96, chunk_gain_min, ..Limits::default() };
        let limits = self.governor.limits(base, StepWork::decode(1, u64::from(shortest) + 1));
        plan(&self.requests, &self.ledger, &limits, &mut self.plan).expect("room for all");
        let lacks_pages = self.make_way();
        let Some(&work) = self.plan.steps().first() else { return lacks_pages };
        let submitted = self.governor.submit(work);
        self.land();
        self.in_flight = Some((submitted, work));
        self.steps_in_frame += 1;
        self.report.steps += 1;
        self.report.rows += u64::from(work.rows());
        self.carry_out();
        true
    }

    fn collect_requests(&mut self) {
        let mut requests = std::mem::take(&mut self.requests);
        requests.clear();
        for &index in &self.active {
            let agent = &self.agents[index as usize];
            let due = self.due(agent);
            let (state, wants_more) = match agent.doing {
                Doing::Silent => continue,
                Doing::Reading { tokens } => (AgentState::Prefill { tokens }, true),
                Doing::Speaking { .. } => (AgentState::Decoding, due >= 0.0),
            };
            let most = if agent.detail == Detail::Full && wants_more { STEPS_MAX } else { 1 };
            if agent.taken < most {
                requests.push(PlanRequest {
                    seq: SeqId(index),
                    state,
                    priority: agent.priority,
                    detail: agent.detail,
                    due: Some(due),
                    waited_frames: agent.waited,
                });
            }
        }
        self.requests = requests;
    }

    /// Ends caches that nobody uses, longest unused first, and if that is not enough those that the planner names. `true`: try again.
    fn make_way(&mut self) -> bool {
        let lacks = |reason| matches!(reason, Deferral::Pages { .. });
        if !self.plan.deferred().iter().any(|deferred| lacks(deferred.reason)) {
            return false;
        }
        let mut ended = false;
        for _ in 0..32 {
            let Some(agent) = self.idle.pop_front() else { break };
            if self.agents[agent as usize].doing == Doing::Silent {
                self.forget(agent);
                ended = true;
            }
        }
        if !ended && let Some(&victim) = self.plan.victims().first() {
            let tokens = self.ledger.len(victim);
            self.forget(victim.0);
            let state = &mut self.agents[victim.index()];
            if let Doing::Speaking { tokens_left, .. } = state.doing {
                state.reply_tokens = tokens_left;
            }
            state.doing = Doing::Reading { tokens: tokens.max(1) };
            self.report.preemptions += 1;
            ended = true;
        }
        self.ledger.retire(1);
        self.ledger.release_up_to(u64::MAX);
        self.commands.clear();
        ended
    }

    /// The step in flight has come back.
    fn land(&mut self) {
        if let Some((step, work)) = self.in_flight.take() {
            let micros = self.device.micros(work, self.frame);
            self.used_micros += micros;
            self.governor.observe(step, (micros * 1e3) as u64);
        }
    }

    fn carry_out(&mut self) {
        for index in 0..self.plan.decode().len() {
            let seq = self.plan.decode()[index].seq;
            self.ledger.append(seq, 1, &mut self.commands).expect("planned");
            self.speak(seq.0);
        }
        for index in 0..self.plan.prefill().len() {
            let chunk = self.plan.prefill()[index];
            let (seq, whole) = (chunk.seq, chunk.prompt_tokens);
            self.ledger.reserve(seq, whole, &mut self.commands).expect("planned");
            self.ledger.append(seq, chunk.tokens, &mut self.commands).expect("planned");
            self.agents[seq.index()].taken += 1;
            self.agents[seq.index()].doing = Doing::Reading { tokens: whole - chunk.tokens };
            if chunk.finishes() {
                self.begin_to_speak(seq.0);
            }
        }
        self.commands.clear();
        self.ledger.retire(1);
        self.ledger.release_up_to(u64::MAX);
    }

    fn begin_to_speak(&mut self, index: u32) {
        let agent = &mut self.agents[index as usize];
        agent.doing =
            Doing::Speaking { tokens_left: agent.reply_tokens, first_frame: self.frame, said: 1 };
        let of = &mut self.report.details[agent.detail as usize];
        of.tokens += 1;
        of.first_token_frames.add((self.frame - agent.asked_frame) as f32);
    }

    fn speak(&mut self, index: u32) {
        let due = self.due(&self.agents[index as usize]);
        let agent = &mut self.agents[index as usize];
        agent.taken += 1;
        let Doing::Speaking { tokens_left, said, .. } = &mut agent.doing else { return };
        let of = &mut self.report.details[agent.detail as usize];
        of.tokens += 1;
        // Due at 1 means due since the end of the frame before.
        let a_frame_ago = due - agent.voice_rate / HERTZ;
        of.tokens_late += u64::from(a_frame_ago > 1.0);
        *said += 1;
        *tokens_left = tokens_left.saturating_sub(1);
        if *tokens_left == 0 {
            of.replies += 1;
            agent.doing = Doing::Silent;
            self.idle.push_back(index);
        }
    }

    fn count_waits(&mut self) {
        let most = Limits::default().wait_frames_max + self.active.len() as u32;
        self.report.planner_wait.1 = self.report.planner_wait.1.max(most);
        for place in 0..self.active.len() {
            let index = self.active[place] as usize;
            let agent = self.agents[index];
            let reads = matches!(agent.doing, Doing::Reading { .. });
            let is_due = reads || self.due(&agent) >= 1.0;
            let of = &mut self.report.details[agent.detail as usize];
            let agent = &mut self.agents[index];
            if agent.taken > 0 {
                if agent.waited_due > 0 {
                    of.waits.add(agent.waited_due as f32);
                }
                (agent.waited, agent.waited_due) = (0, 0);
            } else {
                agent.waited += 1;
                agent.waited_due += u32::from(is_due);
                of.longest_wait = of.longest_wait.max(agent.waited_due);
                self.report.planner_wait.0 = self.report.planner_wait.0.max(agent.waited);
            }
        }
    }
}
