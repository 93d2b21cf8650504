//! Agents at 60 Hz on a device with measured costs: single replies and crowds. Steps take their
//! time on a clock, and are measured when they end, as in the runtime.

use std::collections::VecDeque;

use walla_plan::governor::{ChargedStep, CostSample};
use walla_plan::{
    Governor, GovernorOptions, KvCommands, KvLedger, LedgerOptions, Limits, NextWork, Plan,
    PlanRequest, StepCost, StepWork, plan,
};
use walla_types::SeqId;

const FRAME_MICROS: f64 = 1e6 / 60.0;
pub const AGENTS: u32 = 64;

/// Costs of steps that were measured.
#[derive(Clone, Debug)]
pub struct Device {
    pub name: &'static str,
    /// Rows and microseconds of steps; costs between them are linear.
    pub rows: &'static [(u32, f32)],
    /// Additional microseconds of a prompt token.
    pub prompt_micros: f32,
    pub context_token_micros: f32,
    pub options: GovernorOptions,
    pub max_prefill_tokens: u32,
}

impl Device {
    /// A 0.5B model (Q4_K_M) on one thread of a processor: the smallest step exceeds the budget.
    pub fn half_b_on_cpu() -> Self {
        Self {
            name: "0.5B on a CPU",
            rows: &[(1, 18_000.0), (8, 21_000.0), (64, 102_000.0), (512, 752_000.0)],
            prompt_micros: 20.0,
            context_token_micros: 0.4,
            options: GovernorOptions {
                budget_micros: Some(8_333),
                max_launch_micros: None,
                frames_over_per_1000: 10,
                carry_frames: 3,
                pads_rows: false,
            },
            max_prefill_tokens: 64,
        }
    }

    /// A 1B model (Q4_K_M) on a data center GPU.
    pub fn one_b_on_gpu() -> Self {
        Self {
            name: "1B on a GPU",
            rows: &[(1, 800.0), (16, 950.0), (64, 1_500.0), (128, 2_300.0), (512, 3_900.0)],
            prompt_micros: 2.0,
            context_token_micros: 0.006,
            options: GovernorOptions::default(),
            max_prefill_tokens: 448,
        }
    }

    /// A 4B model on a processor: a step takes twenty budgets.
    pub fn four_b_on_cpu() -> Self {
        Self {
            name: "4B on a CPU",
            rows: &[(1, 160_000.0), (8, 190_000.0), (64, 900_000.0), (512, 6.6e6)],
            ..Self::half_b_on_cpu()
        }
    }

    pub fn micros(&self, work: StepWork) -> f32 {
        let rows = if self.options.pads_rows {
            walla_plan::bucket_for(work.rows()).unwrap_or(work.rows())
        } else {
            work.rows()
        };
        let after = self.rows.partition_point(|&(known, _)| known < rows);
        let (row, micros) = self.rows[after.min(self.rows.len() - 1)];
        let before = self.rows[after.saturating_sub(1).min(self.rows.len() - 1)];
        let of_rows = if row == before.0 {
            micros
        } else {
            let share = (rows - before.0) as f32 / (row - before.0) as f32;
            before.1 + share * (micros - before.1)
        };
        of_rows
            + work.prefill_tokens as f32 * self.prompt_micros
            + work.context_tokens as f32 * self.context_token_micros
    }

    /// Costs as measured at load: of all steps, or of one row only.
    pub fn fitted(&self, whole: bool) -> StepCost {
        let mut works = vec![StepWork::decode(1, 16), StepWork::decode(1, 768)];
        if whole {
            works.extend([4, 8, 16, 64].map(|rows| StepWork::decode(rows, u64::from(rows) * 16)));
            works.push(StepWork::prefill(self.max_prefill_tokens / 4, 16));
            works.push(StepWork::prefill(self.max_prefill_tokens, 16));
        }
        let sample = |work| CostSample { work, micros: self.micros(work) };
        StepCost::fit(&works.into_iter().map(sample).collect::<Vec<_>>()).expect("samples")
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Agent {
    prompt: u32,
    reply: u32,
    /// Draws in flight.
    drawing: u32,
    asked_micros: f64,
    waited: u32,
    is_served: bool,
}

/// Results of a crowd.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub seconds: f64,
    pub steps: u32,
    pub tokens: u32,
    pub max_first_token_seconds: f64,
    pub longest_step_micros: f32,
    /// Steps that are longer than a launch may be.
    pub steps_over: u32,
    /// Device time of all steps.
    pub device_micros: f64,
}

pub struct Village<'a> {
    pub governor: Governor,
    device: &'a Device,
    ledger: KvLedger,
    commands: KvCommands,
    plan: Plan,
    agents: Vec<Agent>,
    requests: Vec<PlanRequest>,
    /// Steps in flight with their end.
    in_flight: VecDeque<(ChargedStep, f32, f64, Vec<u32>)>,
    now: f64,
    next_frame: f64,
    free_at: f64,
    random: u64,
    /// Mean part that other programs on the machine add to the time of a step, exponentially
    /// distributed.
    pub stolen: f32,
    /// Frames between changes of the load, on average; 0: it does not change.
    pub load_frames: f32,
    /// Largest load.
    pub max_load: f32,
    /// Factor of all costs: other programs on the machine.
    pub load: f32,
    pub outcome: Outcome,
}

impl<'a> Village<'a> {
    pub fn new(device: &'a Device, is_calibrated: bool) -> Self {
        Self::with_seed(device, is_calibrated, 7)
    }

    pub fn with_seed(device: &'a Device, is_calibrated: bool, seed: u64) -> Self {
        let ledger = LedgerOptions {
            page_tokens: 16,
            pages: 64 * AGENTS + 1,
            max_pages_per_sequence: 64,
            max_sequences: AGENTS,
            ..LedgerOptions::default()
        };
        Self {
            governor: Governor::new(device.options, device.fitted(is_calibrated)),
            device,
            ledger: KvLedger::new(ledger).expect("options"),
            commands: KvCommands::with_capacity(1_024),
            plan: Plan::new(AGENTS),
            agents: vec![Agent::default(); AGENTS as usize],
            requests: Vec::new(),
            in_flight: VecDeque::new(),
            now: 0.0,
            next_frame: 0.0,
            free_at: 0.0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            stolen: 0.0,
            load_frames: 0.0,
            max_load: 1.0,
            load: 1.0,
            outcome: Outcome::default(),
        }
    }

    /// Asks one agent and waits for the end of its reply.
    pub fn one_reply(&mut self, prompt: u32, reply: u32) -> Outcome {
        self.ask(1, prompt, reply)
    }

    /// Asks `count` agents at once, and waits for the ends of their replies.
    pub fn crowd(&mut self, count: u32, reply: u32) -> Outcome {
        self.ask(count, 14, reply)
    }

    /// One agent speaks for some frames.
    pub fn speak_for(&mut self, frames: u32) {
        let end = self.now + f64::from(frames) * FRAME_MICROS;
        while self.now < end {
            self.agents[0].reply = self.agents[0].reply.max(4);
            if self.ledger.len(SeqId(0)) >= 900 {
                self.ledger.remove(SeqId(0), .., &mut self.commands).expect("whole");
            }
            self.advance();
        }
        self.agents[0].reply = self.agents[0].drawing;
        while self.agents[0].reply > 0 {
            self.advance();
        }
    }

    fn ask(&mut self, count: u32, prompt: u32, reply: u32) -> Outcome {
        self.outcome = Outcome::default();
        let start = self.now;
        for seq in 0..count {
            if self.ledger.len(SeqId(seq)) + prompt + reply >= 1_000 {
                self.ledger.remove(SeqId(seq), .., &mut self.commands).expect("whole");
            }
            self.agents[seq as usize] =
                Agent { prompt, reply, asked_micros: self.now + 1.0, ..Agent::default() };
        }
        while self.agents.iter().any(|agent| agent.prompt > 0 || agent.reply > 0) {
            self.advance();
            assert!(self.now - start < 600e6, "a crowd has no end: {:?}", self.outcome);
        }
        self.outcome.seconds = (self.now - start) / 1e6;
        // A pause.
        (0..60).for_each(|_| self.advance());
        self.outcome
    }

    /// Continues until the next frame or the end of a step.
    fn advance(&mut self) {
        let end = self.in_flight.front().map_or(f64::INFINITY, |step| step.2);
        self.now = end.min(self.next_frame);
        if end <= self.now {
            self.land();
        }
        if self.next_frame <= self.now {
            self.next_frame += FRAME_MICROS;
            if self.load_frames > 0.0 && self.uniform() * self.load_frames < 1.0 {
                self.load = self.max_load.powf((1.5 * self.uniform() - 0.5).max(0.0));
            }
            for agent in &mut self.agents {
                let is_waiting = agent.prompt > 0 || agent.reply > agent.drawing;
                agent.waited = if agent.is_served || !is_waiting { 0 } else { agent.waited + 1 };
                agent.is_served = false;
            }
            self.governor.begin_frame();
        }
        while self.in_flight.len() < 2 && !self.governor.is_spent() && self.step() {}
    }

    fn land(&mut self) {
        let Some((step, micros, _, outputs)) = self.in_flight.pop_front() else { return };
        self.governor.observe(step, (micros * 1e3) as u64);
        for seq in outputs {
            let agent = &mut self.agents[seq as usize];
            if agent.asked_micros > 0.0 {
                let waited = (self.now - agent.asked_micros) / 1e6;
                self.outcome.max_first_token_seconds =
                    self.outcome.max_first_token_seconds.max(waited);
                agent.asked_micros = 0.0;
            }
            agent.drawing -= 1;
            agent.reply -= 1;
            self.outcome.tokens += 1;
        }
    }

    fn step(&mut self) -> bool {
        self.requests.clear();
        for (seq, agent) in self.agents.iter().enumerate() {
            let work = match agent {
                Agent { prompt: 2.., .. } => NextWork::Prefill { tokens: agent.prompt },
                Agent { prompt: 1, .. } => NextWork::Decoding,
                _ if agent.reply > agent.drawing && agent.drawing < 2 => NextWork::Decoding,
                _ => continue,
            };
            let request = PlanRequest::new(SeqId(seq as u32), work);
            self.requests.push(PlanRequest { waited_frames: agent.waited, ..request });
        }
        let lengths = self.requests.iter().map(|request| self.ledger.len(request.seq));
        let Some(shortest) = lengths.min() else { return false };
        let base = Limits {
            chunk_gain_min: if self.governor.is_used() { 1.25 } else { 1.0 },
            max_prefill_tokens: self.device.max_prefill_tokens,
            max_rows: AGENTS + self.device.max_prefill_tokens,
            ..Limits::default()
        };
        let wanted = StepWork::wanted(&self.requests, &base);
        let mut smallest = StepWork::decode(1, u64::from(shortest) + 1);
        if wanted.decode_rows == 0 {
            smallest = StepWork::prefill(1, shortest);
        }
        let limits = self.governor.limits(base, smallest, wanted);
        plan(&self.requests, &self.ledger, &limits, &mut self.plan).expect("room for all");
        let work = self.plan.step();
        if work.is_empty() {
            return false;
        }
        let step = self.governor.submit(work);
        let micros = self.device.micros(work) * self.load * self.noise();
        self.free_at = self.free_at.max(self.now) + f64::from(micros);
        self.outcome.steps += 1;
        let max_launch = self.device.options.max_launch_micros.unwrap_or(u32::MAX);
        self.outcome.steps_over += u32::from(micros > max_launch as f32);
        self.outcome.device_micros += f64::from(micros);
        self.outcome.longest_step_micros = self.outcome.longest_step_micros.max(micros);
        let mut outputs = Vec::new();
        for &seq in self.plan.decode() {
            let agent = &mut self.agents[seq.index()];
            (agent.prompt, agent.is_served, agent.drawing) = (0, true, agent.drawing + 1);
            outputs.push(seq.0);
            self.ledger.append(seq, 1, &mut self.commands).expect("planned");
        }
        for chunk in self.plan.prefill() {
            let agent = &mut self.agents[chunk.seq.index()];
            (agent.prompt, agent.is_served) = (agent.prompt - chunk.tokens, true);
            if chunk.finishes() {
                agent.drawing += 1;
                outputs.push(chunk.seq.0);
            }
            self.ledger.append(chunk.seq, chunk.tokens, &mut self.commands).expect("planned");
        }
        self.commands.clear();
        self.ledger.retire(1);
        self.ledger.release_up_to(u64::MAX);
        self.in_flight.push_back((step, micros, self.free_at, outputs));
        true
    }

    /// 3 % of noise, and what other programs add.
    fn noise(&mut self) -> f32 {
        let stolen = -self.stolen * (1.0 - self.uniform()).ln();
        0.97 + 0.06 * self.uniform() + stolen
    }

    /// From 0 to 1, without 1.
    fn uniform(&mut self) -> f32 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 40) as f32 / (1_u64 << 24) as f32
    }
}
