//! A host's frame loop: runs steps sequentially while the governor grants time.

use walla_plan::{
    CostModel, Governor, GovernorOptions, KvCommands, KvLedger, LedgerOptions, Limits, LinearCost,
    NextWork, Plan, PlanRequest, StepCost, StepWork, plan,
};

/// A device with a constant cost per step and per row.
pub fn cost(step_micros: f32, row_micros: f32) -> StepCost {
    StepCost::from_linear(LinearCost { step_micros, row_micros, ..LinearCost::default() })
}

/// Device time of one frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameUse {
    pub debt_micros: f32,
    pub smallest_micros: f32,
    /// Predicted time of the smallest step and, if prompts wait, of a prompt token.
    pub least_micros: f32,
    /// When the last step was planned: the time of the steps before it plus its predicted time,
    /// margin included.
    pub predicted_micros: f32,
    pub longest_micros: f32,
    pub measured_micros: f32,
    pub steps: u32,
    pub rows: u32,
    pub decode_rows: u32,
    pub prefill_tokens: u32,
    pub longest_wait: u32,
}

/// Agents with one permanent request each (prompts are evaluated once), at most one step per frame.
pub struct Rig {
    pub governor: Governor,
    pub requests: Vec<PlanRequest>,
    ledger: KvLedger,
    commands: KvCommands,
    plan: Plan,
    left: Vec<PlanRequest>,
}

impl Rig {
    pub fn new(options: GovernorOptions, cost: StepCost, requests: Vec<PlanRequest>) -> Self {
        let max_sequences = requests.len() as u32;
        let ledger = LedgerOptions {
            page_tokens: 16,
            pages: 200 * max_sequences + 1,
            max_pages_per_sequence: 200,
            max_sequences,
            ..LedgerOptions::default()
        };
        Self {
            governor: Governor::new(options, cost),
            ledger: KvLedger::new(ledger).unwrap(),
            commands: KvCommands::with_capacity(1_024),
            plan: Plan::new(max_sequences),
            left: Vec::with_capacity(requests.len()),
            requests,
        }
    }

    /// A frame on a device whose time is `device(expected time)`.
    pub fn frame(&mut self, device: impl Fn(f32) -> f32) -> FrameUse {
        self.run(|_, expected| device(expected))
    }

    /// A frame on a device with the given true costs.
    pub fn frame_on(&mut self, device: &StepCost) -> FrameUse {
        self.run(|work, _| device.predict_micros(work))
    }

    fn run(&mut self, device: impl Fn(StepWork, f32) -> f32) -> FrameUse {
        self.governor.begin_frame();
        self.left.clone_from(&self.requests);
        let mut used = FrameUse {
            debt_micros: self.governor.stats().debt.as_micros() as f32,
            longest_wait: self.requests.iter().map(|r| r.waited_frames).max().unwrap_or(0),
            ..FrameUse::default()
        };
        while !self.left.is_empty() && !self.governor.is_spent() && self.step(&device, &mut used) {}
        for request in &mut self.requests {
            let waits = self.left.iter().any(|left| left.seq == request.seq);
            request.waited_frames = if waits { request.waited_frames + 1 } else { 0 };
        }
        self.requests.retain(|request| request.work != NextWork::Prefill { tokens: 0 });
        used
    }

    fn step(&mut self, device: impl Fn(StepWork, f32) -> f32, used: &mut FrameUse) -> bool {
        let contexts = self.left.iter().map(|request| self.ledger.len(request.seq));
        let smallest = StepWork::decode(1, u64::from(contexts.min().unwrap_or(0)) + 1);
        let base = Limits { max_sequences: 512, ..Limits::default() };
        let wanted = StepWork::wanted(&self.left, &base);
        let limits = self.governor.limits(base, smallest, wanted);
        if let Some(cost) = limits.cost.filter(|_| used.steps == 0) {
            let context_tokens = smallest.context_tokens;
            let prompt = StepWork { context_tokens, ..StepWork::prefill(1, 0) };
            let least = if wanted.prefill_tokens > 0 { prompt } else { smallest };
            used.least_micros = cost.predict_micros(least).max(cost.predict_micros(smallest));
        }
        plan(&self.left, &self.ledger, &limits, &mut self.plan).unwrap();
        let work = self.plan.step();
        if work.is_empty() {
            return false;
        }
        let predicted_micros = limits.cost.map_or(0.0, |cost| cost.predict_micros(work));
        used.predicted_micros = used.measured_micros + predicted_micros;
        used.longest_micros = used.longest_micros.max(predicted_micros);
        let step = self.governor.submit(work);
        if used.steps == 0 {
            used.smallest_micros = self.governor.stats().smallest_step.as_micros() as f32;
        }
        let micros = device(work, self.governor.expect_micros(work));
        self.governor.observe(step, (micros * 1e3) as u64);
        used.measured_micros += micros;
        used.steps += 1;
        used.rows += work.rows();
        used.decode_rows += work.decode_rows;
        used.prefill_tokens += work.prefill_tokens;
        self.carry_out();
        true
    }

    fn carry_out(&mut self) {
        let Self { plan, ledger, commands, requests, left, .. } = self;
        for &seq in plan.decode() {
            // A finished reply frees its memory for the next one.
            if ledger.len(seq) >= 3_000 {
                ledger.remove(seq, .., commands).unwrap();
            }
            ledger.append(seq, 1, commands).unwrap();
        }
        for chunk in plan.prefill() {
            ledger.append(chunk.seq, chunk.tokens, commands).unwrap();
            let asked = requests.iter_mut().find(|request| request.seq == chunk.seq).unwrap();
            asked.work = NextWork::Prefill { tokens: chunk.prompt_tokens - chunk.tokens };
        }
        left.retain(|request| {
            !plan.decode().contains(&request.seq)
                && plan.prefill().iter().all(|chunk| chunk.seq != request.seq)
        });
        commands.clear();
        ledger.retire(1);
        ledger.release_up_to(u64::MAX);
    }
}
