//! Many agents under a budget: the real planner, governor and ledger, a device that deviates from
//! its model, and a clock that counts frames.
//!
//! The test `simulation.rs` runs it at small scale, `benches/src/simulate.rs` at large scale. A run
//! is determined by its seed.

mod device;
mod random;
pub mod report;

use std::cmp::Reverse;
use std::collections::VecDeque;

use walla_plan::governor::BudgetStats;
use walla_plan::{
    ChargedStep, Deferral, Detail, Governor, GovernorOptions, KvCommands, KvLedger, LedgerOptions,
    Limits, NextWork, Plan, PlanRequest, StepWork, plan,
};
use walla_types::SeqId;

use self::device::Device;
use self::random::Random;
use self::report::{Report, Spread};

/// Frames per second.
const HERTZ: f32 = 60.0;

/// Maximum tokens of a sequence.
const CONTEXT_TOKENS: u32 = 1_024;

/// Tokens per page.
const PAGE_TOKENS: u32 = 16;

/// Maximum steps of an agent in a frame, as in the runtime.
const MAX_STEPS: u32 = 32;

/// Settings of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub agents: u32,
    pub frames: u32,
    pub seed: u64,
    pub options: GovernorOptions,
    /// Average number of requests in a quiet frame.
    pub asks_per_frame: f32,
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
    /// Consecutive frames without work, as reported to the planner.
    waited: u32,
    /// The part of `waited` in which the voice or the prompt was due.
    waited_due: u32,
    taken: u32,
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
    /// Agents that prefill or decode.
    active: Vec<u32>,
    /// Agents that have finished and still hold a cache, least recent first.
    idle: VecDeque<u32>,
    requests: Vec<PlanRequest>,
    /// A step whose time is not known yet: one step is launched ahead.
    in_flight: Option<(ChargedStep, StepWork)>,
    frame: u32,
    used_micros: f32,
    steps_in_frame: u32,
    report: Report,
}

/// Runs a simulation.
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
        let max_pages_per_sequence = CONTEXT_TOKENS / PAGE_TOKENS;
        let ledger = LedgerOptions {
            page_tokens: PAGE_TOKENS,
            // Capacity for full contexts of a tenth of the agents.
            pages: settings.agents * max_pages_per_sequence / 10 + 1,
            max_pages_per_sequence,
            max_sequences: settings.agents,
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
                stats: BudgetStats::default(),
                frames_used: 0,
                use_share: Spread::default(),
                errors: Vec::new(),
                details: Default::default(),
                steps: 0,
                rows: 0,
                max_agents_active: 0,
                preemptions: 0,
                planner_wait: (0, 0),
            },
        };
        (0..settings.agents).for_each(|agent| world.move_agent(agent));
        world
    }

    /// Changes the distance of an agent.
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
            let budget = self
                .governor
                .stats()
                .budget
                .map_or(u32::MAX as f32, |budget| budget.as_micros() as f32);
            self.report.use_share.add(self.used_micros / budget);
        }
        self.count_waits();
        let agents = &self.agents;
        self.active.retain(|&agent| agents[agent as usize].doing != Doing::Silent);
    }

    /// Quiet most of the time, with a rush of three seconds per minute.
    fn ask_some(&mut self) {
        let rush = if self.frame % 3_600 < 180 { 4.0 } else { 1.0 };
        let mut asks = self.settings.asks_per_frame * rush;
        while asks > self.random.share() {
            asks -= 1.0;
            let agent = self.random.below(self.settings.agents);
            if self.agents[agent as usize].doing != Doing::Silent {
                continue;
            }
            // Usually a short question, sometimes a whole conversation.
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
        self.report.max_agents_active = self.report.max_agents_active.max(self.active.len());
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
            // In the order of the requests, but short prompts may overtake long ones.
            Doing::Reading { tokens } => {
                (self.frame - agent.asked_frame) as f32 / HERTZ - tokens as f32 / 1e3
            }
            Doing::Silent => 0.0,
        }
    }

    /// Plans and runs one step. Returns `false` if the frame has no more work.
    fn step(&mut self) -> bool {
        self.collect_requests();
        let lengths = self.requests.iter().map(|request| self.ledger.len(request.seq));
        let Some(shortest) = lengths.min() else { return false };
        let chunk_gain_min = if self.governor.is_used() { 1.25 } else { 1.0 };
        let base = Limits { max_prefill_tokens: 96, chunk_gain_min, ..Limits::default() };
        let wanted = StepWork::wanted(&self.requests, &base);
        let smallest = StepWork::decode(1, u64::from(shortest) + 1);
        let limits = self.governor.limits(base, smallest, wanted);
        plan(&self.requests, &self.ledger, &limits, &mut self.plan).expect("room for all");
        let lacks_pages = self.make_way();
        let work = self.plan.step();
        if work.is_empty() {
            return lacks_pages;
        }
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
            let (work, wants_more) = match agent.doing {
                Doing::Silent => continue,
                Doing::Reading { tokens } => (NextWork::Prefill { tokens }, true),
                Doing::Speaking { .. } => (NextWork::Decoding, due >= 0.0),
            };
            let most = if agent.detail == Detail::Full && wants_more { MAX_STEPS } else { 1 };
            if agent.taken < most {
                requests.push(PlanRequest {
                    seq: SeqId(index),
                    work,
                    priority: agent.priority,
                    detail: agent.detail,
                    due: Some(due),
                    waited_frames: agent.waited,
                });
            }
        }
        self.requests = requests;
    }

    /// Order under page shortage, as in the runtime: background agents last, then by priority, then
    /// by the age of the request.
    fn urgency(&self, agent: u32) -> (bool, i32, Reverse<(u32, u32)>) {
        let Agent { detail, priority, asked_frame, .. } = self.agents[agent as usize];
        (detail != Detail::Background, priority, Reverse((asked_frame, agent)))
    }

    /// The least urgent agent that holds pages and is not in the planned step, if it is less urgent
    /// than `agent`.
    fn victim(&self, agent: u32) -> Option<u32> {
        let is_planned = |seq| {
            self.plan.decode().contains(&seq)
                || self.plan.prefill().iter().any(|chunk| chunk.seq == seq)
        };
        let may_yield = |&other: &u32| {
            let is_active = self.agents[other as usize].doing != Doing::Silent;
            is_active && !self.ledger.is_empty(SeqId(other)) && !is_planned(SeqId(other))
        };
        let victim = self.active.iter().copied().filter(may_yield);
        let victim = victim.min_by_key(|&other| self.urgency(other))?;
        (self.urgency(victim) < self.urgency(agent)).then_some(victim)
    }

    /// Frees idle caches, least recently used first; if no idle cache exists, preempts a less
    /// urgent agent. Returns `true` if the caller can retry.
    fn make_way(&mut self) -> bool {
        let lacks = |reason| matches!(reason, Deferral::Pages { .. });
        let deferred = self.plan.deferred().iter().filter(|deferred| lacks(deferred.reason));
        let waiting = deferred.map(|deferred| deferred.seq.0);
        let Some(most_urgent) = waiting.max_by_key(|&agent| self.urgency(agent)) else {
            return false;
        };
        let mut ended = false;
        for _ in 0..32 {
            let Some(agent) = self.idle.pop_front() else { break };
            if self.agents[agent as usize].doing == Doing::Silent {
                self.forget(agent);
                ended = true;
            }
        }
        if !ended && let Some(victim) = self.victim(most_urgent) {
            let tokens = self.ledger.len(SeqId(victim));
            self.forget(victim);
            let state = &mut self.agents[victim as usize];
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

    /// The step in flight has completed.
    fn land(&mut self) {
        if let Some((step, work)) = self.in_flight.take() {
            let micros = self.device.micros(work, self.frame);
            self.used_micros += micros;
            self.governor.observe(step, (micros * 1e3) as u64);
        }
    }

    fn carry_out(&mut self) {
        for index in 0..self.plan.decode().len() {
            let seq = self.plan.decode()[index];
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
        // A lateness of 1 means due since the end of the previous frame.
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
        let most = Limits::default().max_wait_frames + self.active.len() as u32;
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
