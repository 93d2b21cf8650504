//! A host's frame loop in which prompts use all time that is left: steps run back to back, two in
//! flight, as `walla_runtime` submits them.

#[allow(dead_code, reason = "the simulation of the governor uses the rest")]
#[path = "../common/simulation/random.rs"]
mod random;

use random::Random;
use walla_plan::governor::{ChargedStep, CostSample, MAX_DEBT_FRAMES};
use walla_plan::{
    Governor, GovernorOptions, KvCommands, KvLedger, LedgerOptions, Limits, NextWork, Plan,
    PlanRequest, StepCost, StepWork, plan,
};
use walla_types::SeqId;

/// True step times: measured at some row counts, linear between them.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub name: &'static str,
    /// Rows and microseconds of steps of prompt tokens.
    rows: &'static [(u32, f32)],
    context_token_micros: f32,
    prefill_pair_micros: f32,
    max_launch_micros: Option<u32>,
    frames_over_per_1000: u32,
    carry_frames: u32,
    max_prefill_tokens: u32,
}

impl Device {
    /// The demo model on one thread with AVX2.
    pub const CPU: Self = Self {
        name: "cpu",
        rows: &[
            (1, 520.0),
            (2, 810.0),
            (4, 1_450.0),
            (8, 2_350.0),
            (12, 3_300.0),
            (16, 4_100.0),
            (32, 7_700.0),
            (64, 14_900.0),
        ],
        context_token_micros: 0.1,
        prefill_pair_micros: 0.002,
        max_launch_micros: None,
        frames_over_per_1000: 10,
        carry_frames: 3,
        max_prefill_tokens: 64,
    };

    /// A 1B Q4_K_M model on an H100.
    pub const GPU: Self = Self {
        name: "gpu",
        rows: &[
            (1, 451.0),
            (8, 527.0),
            (16, 547.0),
            (32, 656.0),
            (64, 859.0),
            (128, 1_560.0),
            (256, 2_560.0),
        ],
        context_token_micros: 0.005,
        prefill_pair_micros: 0.0,
        max_launch_micros: Some(2_000),
        frames_over_per_1000: 1,
        carry_frames: 0,
        max_prefill_tokens: 64,
    };

    fn micros(&self, work: StepWork) -> f32 {
        // Programs are prepared for buckets.
        let rows = walla_plan::bucket_for(work.rows()).unwrap_or(512) as f32;
        let above = self.rows.partition_point(|&(known, _)| (known as f32) < rows);
        let of_rows = match (above.checked_sub(1).map(|i| self.rows[i]), self.rows.get(above)) {
            (_, Some(&(known, micros))) if known as f32 == rows => micros,
            (Some((r0, t0)), Some(&(r1, t1))) => {
                t0 + (t1 - t0) * (rows - r0 as f32) / (r1 - r0) as f32
            }
            (Some((_, t)), None) | (None, Some(&(_, t))) => t,
            (None, None) => 0.0,
        };
        of_rows
            + self.context_token_micros * work.context_tokens as f32
            + self.prefill_pair_micros * work.prefill_pairs as f32
    }
}

/// Noise of step times.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    pub name: &'static str,
    /// Relative, uniform on both sides.
    pub even: f32,
    /// One step of this number takes `outlier` times as long.
    pub one_in: u64,
    pub outlier: f32,
    /// Frame after which steps take exactly their usual time.
    pub quiet_after: Option<u32>,
}

impl Noise {
    pub const NONE: Self =
        Self { name: "none", even: 0.0, one_in: u64::MAX, outlier: 1.0, quiet_after: None };
    pub const EVEN: Self =
        Self { name: "even", even: 0.05, one_in: u64::MAX, outlier: 1.0, quiet_after: None };
    pub const OUTLIERS: Self =
        Self { name: "outliers", even: 0.02, one_in: 100, outlier: 10.0, quiet_after: None };
    pub const TAIL: Self =
        Self { name: "tail", even: 0.05, one_in: 20, outlier: 1.3, quiet_after: None };
}

#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub device: Device,
    pub noise: Noise,
    pub budget_micros: u32,
    /// Agents that generate one token per frame while prompts are evaluated.
    pub speakers: u32,
    pub frames: u32,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Device time used, of the granted time.
    pub used: f64,
    /// Debt above the largest that frames repay, of the granted time.
    pub forgiven: f64,
    /// Share of frames over their budget and what earlier frames left.
    pub over: f64,
    /// Prompt tokens per second, of the share of time times the throughput without a budget.
    pub throughput: f64,
    /// Margin of the prediction of a step, at the end.
    pub margin: f32,
}

const PROMPT: u32 = 500;

pub fn run(run: &Run) -> Report {
    let Run { device, noise, budget_micros, speakers, frames, seed } = *run;
    let works: Vec<StepWork> = [1, 4, 16, 64]
        .into_iter()
        .flat_map(|rows| {
            [
                StepWork::decode(rows, u64::from(rows) * 200),
                StepWork::prefill(rows, 0),
                StepWork::prefill(rows, 400),
            ]
        })
        .collect();
    let samples: Vec<_> =
        works.iter().map(|&work| CostSample { work, micros: device.micros(work) }).collect();
    let options = GovernorOptions {
        budget_micros: Some(budget_micros),
        max_launch_micros: device.max_launch_micros,
        frames_over_per_1000: device.frames_over_per_1000,
        carry_frames: device.carry_frames,
        pads_rows: true,
    };
    let mut governor = Governor::new(options, StepCost::fit(&samples).unwrap());
    let max_sequences = speakers + 16;
    let ledger = LedgerOptions {
        page_tokens: 16,
        pages: 64 * max_sequences + 1,
        max_pages_per_sequence: 64,
        max_sequences,
        ..LedgerOptions::default()
    };
    let mut ledger = KvLedger::new(ledger).unwrap();
    let mut commands = KvCommands::with_capacity(4_096);
    let mut plan_of_step = Plan::new(max_sequences);
    let mut random = Random(seed);
    let mut report = Report::default();
    let (mut tokens, mut used_micros) = (0u64, 0.0f64);
    let (budget, mut left, mut forgiven) = (f64::from(budget_micros), 0.0f64, 0.0f64);
    let mut in_flight: std::collections::VecDeque<(ChargedStep, f32)> = Default::default();
    for frame in 0..frames {
        let is_quiet = noise.quiet_after.is_some_and(|after| frame >= after);
        governor.begin_frame();
        let mut spoken = vec![false; speakers as usize];
        let mut now = 0.0f32;
        loop {
            if governor.is_spent() {
                break;
            }
            let mut requests: Vec<PlanRequest> = (0..speakers)
                .filter(|&seq| !spoken[seq as usize])
                .map(|seq| PlanRequest::new(SeqId(seq), NextWork::Decoding))
                .collect();
            for seq in speakers..max_sequences {
                let tokens = PROMPT - ledger.len(SeqId(seq)).min(PROMPT - 1);
                requests.push(PlanRequest::new(SeqId(seq), NextWork::Prefill { tokens }));
            }
            let shortest = requests.iter().map(|request| ledger.len(request.seq)).min().unwrap();
            let is_rest = governor.is_used();
            let base = Limits {
                chunk_gain_min: if is_rest { 1.25 } else { 1.0 },
                max_prefill_tokens: device.max_prefill_tokens,
                max_sequences,
                ..Limits::default()
            };
            let wanted = StepWork::wanted(&requests, &base);
            let smallest = StepWork::decode(1, u64::from(shortest) + 1);
            let limits = governor.limits(base, smallest, wanted);
            plan(&requests, &ledger, &limits, &mut plan_of_step).unwrap();
            let work = plan_of_step.step();
            if work.is_empty() {
                break;
            }
            let step = governor.submit(work);
            let even = noise.even * (2.0 * random.share() - 1.0);
            let is_outlier = random.next().is_multiple_of(noise.one_in);
            let factor = (1.0 + even) * if is_outlier { noise.outlier } else { 1.0 };
            let micros = device.micros(work) * if is_quiet { 1.0 } else { factor };
            now += micros;
            tokens += u64::from(work.prefill_tokens);
            in_flight.push_back((step, micros));
            if in_flight.len() > 1 {
                let (step, micros) = in_flight.pop_front().unwrap();
                governor.observe(step, (micros * 1e3) as u64);
            }
            for &seq in plan_of_step.decode() {
                spoken[seq.index()] = true;
                if ledger.len(seq) >= 900 {
                    ledger.remove(seq, .., &mut commands).unwrap();
                }
                ledger.append(seq, 1, &mut commands).unwrap();
            }
            for chunk in plan_of_step.prefill() {
                ledger.append(chunk.seq, chunk.tokens, &mut commands).unwrap();
                if ledger.len(chunk.seq) >= PROMPT {
                    ledger.remove(chunk.seq, .., &mut commands).unwrap();
                }
            }
            commands.clear();
            ledger.retire(1);
            ledger.release_up_to(u64::MAX);
        }
        while let Some((step, micros)) = in_flight.pop_front() {
            governor.observe(step, (micros * 1e3) as u64);
        }
        used_micros += f64::from(now);
        left = (left + budget - f64::from(now)).min(budget * f64::from(device.carry_frames));
        let lowest = -budget * f64::from(MAX_DEBT_FRAMES);
        forgiven += (lowest - left).max(0.0);
        left = left.max(lowest);
    }
    let all = f64::from(budget_micros) * f64::from(frames);
    report.used = used_micros / all;
    report.forgiven = forgiven / all;
    governor.begin_frame();
    report.over = governor.stats().frames_over as f64 / f64::from(frames);
    // Without a budget: steps of the largest chunk, back to back, and no speaker.
    let chunk = device.max_prefill_tokens;
    let whole: f64 = (0..PROMPT)
        .step_by(chunk as usize)
        .map(|at| f64::from(device.micros(StepWork::prefill(chunk.min(PROMPT - at), at))))
        .sum();
    let per_micro = f64::from(PROMPT) / whole;
    report.throughput = tokens as f64 / (all * per_micro);
    let row = StepWork::prefill(16, 100);
    report.margin = governor.cost().predict_micros(row) / governor.expect_micros(row) - 1.0;
    report
}
