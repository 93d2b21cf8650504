//! Proves the device contract on a real driver: one captured program replayed with changing rows, tokens and positions, results
//! copied on another stream into pinned memory behind an event, checked against a host reference; then timings, as JSON.
//!
//! `cargo run --release -p walla_cuda --example contract_spike`

use std::error::Error;
use std::time::Instant;

use half::f16;
use walla_cuda::CudaBackend;
use walla_device::step::{OutputRow, ResultView, StepLayout, StepRow, StepViewMut};
use walla_device::{
    Backend, BufferId, CacheDesc, Device, EventId, GraphId, HostId, KvType, LaunchMode, Linear,
    MatrixDesc, MatrixUse, Norm, Op, OpenOptions, Phase, Program, Slot, SlotDesc, StreamId,
    StreamPriority,
};
use walla_types::TensorType;

const VOCAB: usize = 1003;
const WIDTH: usize = 96;
const RING: u32 = 3;
const LAYOUT: StepLayout = StepLayout {
    rows_max: 8,
    outputs_max: 8,
    biases_max: 8,
    sequences_max: 8,
    pages_per_sequence: 4,
};

/// The handles of one rig.
struct Rig {
    device: Box<dyn Device>,
    step: BufferId,
    results: BufferId,
    step_hosts: Vec<HostId>,
    result_hosts: Vec<HostId>,
    compute: StreamId,
    copy: StreamId,
    computed: Vec<EventId>,
    copied: Vec<EventId>,
}

/// Tokens with their log-probabilities.
type Tokens = Vec<(u32, f32)>;

struct Weights {
    embed: Vec<f32>,
    head: Vec<f16>,
    norm: Vec<f32>,
}

fn random(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 40) as f32 / (1 << 24) as f32) * 2.0 - 1.0
}

fn weights() -> Weights {
    let mut state = 7;
    let embed = (0..VOCAB * WIDTH).map(|_| random(&mut state)).collect();
    let head = (0..VOCAB * WIDTH).map(|_| f16::from_f32(random(&mut state))).collect();
    let norm = (0..WIDTH).map(|_| 1.0 + 0.2 * random(&mut state)).collect();
    Weights { embed, head, norm }
}

/// The token after `token`, in f64, with its log-probability and its lead over the runner-up.
fn reference(w: &Weights, token: u32) -> (u32, f64, f64) {
    let row = &w.embed[token as usize * WIDTH..][..WIDTH];
    let x: Vec<f64> = row.iter().map(|v| f64::from(v * 0.5)).collect();
    let mean = x.iter().map(|v| v * v).sum::<f64>() / WIDTH as f64;
    let factor = 1.0 / (mean + 1e-5).sqrt();
    let n: Vec<f64> = x.iter().zip(&w.norm).map(|(v, g)| v * factor * f64::from(*g)).collect();
    let dot = |row: &[f16]| row.iter().zip(&n).map(|(a, b)| a.to_f64() * b).sum::<f64>();
    let logits: Vec<f64> = w.head.chunks_exact(WIDTH).map(dot).collect();
    let mut order: Vec<usize> = (0..VOCAB).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let best = logits[order[0]];
    let mass: f64 = logits.iter().map(|l| (l - best).exp()).sum();
    (order[0] as u32, -mass.ln(), best - logits[order[1]])
}

impl Rig {
    fn open() -> Result<Self, Box<dyn Error>> {
        let mut device = CudaBackend::from_env().open("cuda:0", &OpenOptions::default())?;
        let d = &mut device;
        let step = d.create_buffer("step", LAYOUT.bytes())?;
        let results = d.create_buffer("results", LAYOUT.result_bytes() * RING as usize)?;
        let (mut step_hosts, mut result_hosts) = (vec![], vec![]);
        let (mut computed, mut copied) = (vec![], vec![]);
        for _ in 0..RING {
            step_hosts.push(d.create_host("step", LAYOUT.bytes())?);
            result_hosts.push(d.create_host("results", LAYOUT.result_bytes())?);
            computed.push(d.create_event()?);
            copied.push(d.create_event()?);
        }
        let compute = d.create_stream(StreamPriority::Low)?;
        let copy = d.create_stream(StreamPriority::High)?;
        Ok(Self {
            step,
            results,
            step_hosts,
            result_hosts,
            compute,
            copy,
            computed,
            copied,
            device,
        })
    }

    /// Fills and uploads a step block: `rows[r] = (token, sequence)`.
    fn upload(&mut self, step: u64, rows: &[(i32, u32)]) -> Result<(), Box<dyn Error>> {
        let slot = (step % u64::from(RING)) as usize;
        let host = self.step_hosts[slot];
        self.device.write_host(host, 0, LAYOUT.bytes(), &mut |bytes| {
            let Some(view) = StepViewMut::new(bytes, &LAYOUT) else { return };
            view.header.step = step;
            view.header.rows = rows.len() as u32;
            view.header.outputs = rows.len() as u32;
            view.header.ring_slot = slot as u32;
            for (r, (token, sequence)) in rows.iter().enumerate() {
                let position = step as u32;
                view.rows[r] =
                    StepRow { token: *token, position, sequence: *sequence, ..StepRow::default() };
                view.outputs[r] = OutputRow {
                    row: r as u32,
                    sequence: *sequence,
                    position,
                    flags: OutputRow::SAMPLE,
                    ..OutputRow::default()
                };
            }
        })?;
        self.device.upload(self.compute, host, self.step, LAYOUT.bytes_with(0))?;
        Ok(())
    }

    fn launch(&mut self, step: u64, graph: GraphId) -> Result<(), Box<dyn Error>> {
        let slot = (step % u64::from(RING)) as usize;
        let d = &mut self.device;
        d.launch(self.compute, graph)?;
        d.record(self.compute, self.computed[slot])?;
        d.wait(self.copy, self.computed[slot])?;
        let bytes = LAYOUT.result_bytes_without_candidates();
        let from = (self.results, slot * LAYOUT.result_bytes());
        d.download(self.copy, from, (self.result_hosts[slot], 0), bytes)?;
        d.record(self.copy, self.copied[slot])?;
        Ok(())
    }

    /// Polls until the step's results are there; answers them and the number of polls.
    fn results(&mut self, step: u64) -> Result<(Tokens, u32), Box<dyn Error>> {
        let slot = (step % u64::from(RING)) as usize;
        let mut polls = 1;
        while !self.device.poll(self.copied[slot])? {
            polls += 1;
        }
        let mut tokens = vec![];
        let bytes = LAYOUT.result_bytes_without_candidates();
        self.device.read_host(self.result_hosts[slot], 0, bytes, &mut |bytes| {
            let Some(view) = ResultView::new(bytes, &LAYOUT) else { return };
            if view.header.step == step {
                let rows = view.rows.iter().take(view.header.outputs as usize);
                tokens.extend(rows.map(|row| (row.token, row.log_probability)));
            }
        })?;
        Ok((tokens, polls))
    }
}

fn program(rig: &mut Rig, heads: usize, w: &Weights) -> Result<Program, Box<dyn Error>> {
    let cache = CacheDesc {
        layers: vec![],
        pages: 1,
        page_tokens: 16,
        sequences_max: 8,
        kv_type: KvType::F16,
    };
    let d = &mut rig.device;
    let cache = d.create_cache(&cache)?;
    let usage = MatrixUse { gather: true, multiply: true };
    let desc = |name, ty| MatrixDesc { name, rows: VOCAB as u32, cols: WIDTH as u32, ty, usage };
    let embed: Vec<u8> = w.embed.iter().flat_map(|v| v.to_le_bytes()).collect();
    let head: Vec<u8> = w.head.iter().flat_map(|v| v.to_le_bytes()).collect();
    let table = d.load_matrix(&desc("embed", TensorType::F32), &embed)?;
    let matrix = d.load_matrix(&desc("head", TensorType::F16), &head)?;
    let norm = Norm { weight: d.load_vector("norm", &w.norm)?, eps: 1e-5 };
    let logits = d.create_buffer("logits", LAYOUT.outputs_max as usize * VOCAB * 4)?;
    let x = Slot(0);
    let mut ops = vec![Op::Embed { table, scale: 0.5, x }];
    let head = Op::Head { x, norm, linear: Linear { matrix, bias: None } };
    ops.extend(std::iter::repeat_n(head, heads));
    ops.push(Op::Sample);
    Ok(Program {
        name: "spike".to_owned(),
        phase: Phase::Decode,
        one_row_a_sequence: false,
        rows_max: LAYOUT.rows_max,
        outputs_max: LAYOUT.outputs_max,
        context_max: 4096,
        vocab: VOCAB as u32,
        slots: vec![SlotDesc { width: WIDTH as u32 }],
        cache,
        step: rig.step,
        layout: LAYOUT,
        results: rig.results,
        logits,
        masks: None,
        ops,
    })
}

/// Chains tokens on the device for `steps` steps with a changing set of sequences, launching each step before the one ahead of it
/// is read; compares with the reference.
fn check(rig: &mut Rig, graph: GraphId, w: &Weights, steps: u64) -> Result<f64, Box<dyn Error>> {
    let mut host: Vec<u32> = (0..8).map(|s| 11 * s + 5).collect();
    let mut launched: Vec<Vec<u32>> = vec![];
    let mut worst = 0.0_f64;
    for step in 0..=steps {
        if step < steps {
            // Step 0 runs everybody with known tokens; later ones skip sequences in turn and continue on the device.
            let active: Vec<u32> =
                (0..8).filter(|s| step == 0 || u64::from(*s) % 5 != step % 5).collect();
            let row = |s: &u32| match step {
                0 => (host[*s as usize].cast_signed(), *s),
                _ => (StepRow::LAST_SAMPLED, *s),
            };
            let rows: Vec<_> = active.iter().map(row).collect();
            rig.upload(step, &rows)?;
            rig.launch(step, graph)?;
            launched.push(active);
        }
        if step > 0 {
            let (results, _) = rig.results(step - 1)?;
            let active = &launched[step as usize - 1];
            assert_eq!(results.len(), active.len(), "step {step}");
            for (s, (token, log_probability)) in active.iter().zip(&results) {
                let (wanted, wanted_log, lead) = reference(w, host[*s as usize]);
                assert!(
                    *token == wanted || lead < 1e-3,
                    "step {step} sequence {s}: {token}, not {wanted} (lead {lead})"
                );
                worst = worst.max((f64::from(*log_probability) - wanted_log).abs());
                host[*s as usize] = *token;
            }
        }
    }
    Ok(worst)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Median microseconds of `work` over `times` calls.
fn time(
    times: usize,
    mut work: impl FnMut(u64) -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let mut all = vec![];
    for i in 0..times {
        let start = Instant::now();
        work(i as u64)?;
        all.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(all))
}

fn timings(rig: &mut Rig, graph: GraphId, name: &str) -> Result<String, Box<dyn Error>> {
    let rows: Vec<(i32, u32)> = (0..8).map(|s| (s + 3, s as u32)).collect();
    let drain = |rig: &mut Rig| rig.device.synchronise();
    let (mut upload, mut launch, mut whole, mut polls, mut poll) =
        (vec![], vec![], vec![], vec![], vec![]);
    for step in 0..300 {
        let start = Instant::now();
        rig.upload(step, &rows)?;
        let uploaded = Instant::now();
        rig.launch(step, graph)?;
        let launched = Instant::now();
        let (_, count) = rig.results(step)?;
        upload.push((uploaded - start).as_secs_f64() * 1e6);
        launch.push((launched - uploaded).as_secs_f64() * 1e6);
        whole.push(start.elapsed().as_secs_f64() * 1e6);
        poll.push(launched.elapsed().as_secs_f64() * 1e6 / f64::from(count));
        polls.push(f64::from(count));
    }
    drain(rig)?;
    let compute = rig.compute;
    let graph_only = time(300, |_| {
        rig.device.launch(compute, graph)?;
        Ok(())
    })?;
    drain(rig)?;
    // Steps back to back: launched ahead by the depth of the ring less one.
    let start = Instant::now();
    let steps = 400;
    for step in 0..steps {
        rig.upload(step, &rows)?;
        rig.launch(step, graph)?;
        if step >= 1 {
            rig.results(step - 1)?;
        }
    }
    drain(rig)?;
    let ahead = start.elapsed().as_secs_f64() * 1e6 / steps as f64;
    Ok(format!(
        "\"{name}\": {{\"fill_and_upload_us\": {:.2}, \"launch_record_wait_download_us\": {:.2}, \
         \"graph_launch_us\": {graph_only:.2}, \"step_latency_us\": {:.1}, \"polls\": {:.0}, \
         \"poll_us\": {:.2}, \"step_launched_ahead_us\": {ahead:.1}}}",
        median(upload),
        median(launch),
        median(whole),
        median(polls),
        median(poll),
    ))
}

/// Microseconds of one head of a real size, and the share of its bytes over time.
fn bandwidth(rig: &mut Rig, ty: TensorType, rows: u32) -> Result<String, Box<dyn Error>> {
    let (vocab, width) = (128_256_usize, 2048_usize);
    let block = ty.block_bytes();
    let bytes_total = ty.row_bytes(width).unwrap_or_default() * vocab;
    // Random codes; halves at the scale positions stay small because their upper bits are cleared.
    let mut state = 3_u64;
    let mut bytes: Vec<u8> = (0..bytes_total)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    if ty.is_quantised() {
        for b in bytes.chunks_exact_mut(block) {
            b[1] = 0x10;
            if matches!(ty, TensorType::Q4K | TensorType::Q5K) {
                b[3] = 0x10;
            }
            if ty == TensorType::Q6K {
                b[209] = 0x10;
            }
        }
    } else {
        bytes.iter_mut().skip(1).step_by(2).for_each(|b| *b &= 0xbf);
    }
    let d = &mut rig.device;
    let usage = MatrixUse { gather: true, multiply: true };
    let desc = MatrixDesc { name: "head", rows: vocab as u32, cols: width as u32, ty, usage };
    let loading = Instant::now();
    let matrix = d.load_matrix(&desc, &bytes)?;
    d.synchronise()?;
    let load_gb_s = bytes_total as f64 / loading.elapsed().as_secs_f64() / 1e9;
    let norm = Norm { weight: d.load_vector("norm", &vec![1.0; width])?, eps: 1e-5 };
    let logits = d.create_buffer("logits", rows as usize * vocab * 4)?;
    let cache = CacheDesc {
        layers: vec![],
        pages: 1,
        page_tokens: 16,
        sequences_max: 8,
        kv_type: KvType::F16,
    };
    let cache = d.create_cache(&cache)?;
    let x = Slot(0);
    let head = Op::Head { x, norm, linear: Linear { matrix, bias: None } };
    let mut ops = vec![Op::Embed { table: matrix, scale: 1.0, x }];
    ops.extend(std::iter::repeat_n(head, 8));
    let program = Program {
        name: "bandwidth".to_owned(),
        phase: Phase::Decode,
        one_row_a_sequence: false,
        rows_max: rows,
        outputs_max: rows,
        context_max: 64,
        vocab: vocab as u32,
        slots: vec![SlotDesc { width: width as u32 }],
        cache,
        step: rig.step,
        layout: LAYOUT,
        results: rig.results,
        logits,
        masks: None,
        ops,
    };
    let graph = d.prepare(vec![program])?[0].graph;
    let inputs: Vec<(i32, u32)> = (0..rows).map(|r| (r.cast_signed() + 3, r)).collect();
    rig.upload(0, &inputs)?;
    let compute = rig.compute;
    let micros = time(20, |_| {
        rig.device.launch(compute, graph)?;
        rig.device.synchronise()?;
        Ok(())
    })? / 8.0;
    let rate = bytes_total as f64 / micros / 1e6;
    Ok(format!(
        "{{\"type\": \"{ty}\", \"rows\": {rows}, \"head_us\": {micros:.1}, \"tb_per_s\": {rate:.2}, \
         \"load_gb_per_s\": {load_gb_s:.2}}}"
    ))
}

fn main() -> Result<(), Box<dyn Error>> {
    let opening = Instant::now();
    let mut rig = Rig::open()?;
    let open_ms = opening.elapsed().as_secs_f64() * 1e3;
    let info = rig.device.info().clone();
    let w = weights();
    let programs = vec![program(&mut rig, 1, &w)?, program(&mut rig, 100, &w)?];
    let preparing = Instant::now();
    let prepared = rig.device.prepare(programs)?;
    let prepare_ms = preparing.elapsed().as_secs_f64() * 1e3;
    let graphs = prepared.iter().all(|p| p.mode == LaunchMode::Graph);
    let worst = check(&mut rig, prepared[0].graph, &w, 200)?;
    let small = timings(&mut rig, prepared[0].graph, "nodes_3")?;
    let large = timings(&mut rig, prepared[1].graph, "nodes_102")?;
    let mut rates = vec![];
    for (ty, rows) in [
        (TensorType::F16, 1),
        (TensorType::Q8_0, 1),
        (TensorType::Q4_0, 1),
        (TensorType::Q4K, 1),
        (TensorType::Q6K, 1),
        (TensorType::Q4K, 4),
        (TensorType::Q4K, 8),
    ] {
        rates.push(bandwidth(&mut rig, ty, rows)?);
    }
    println!(
        "{{\"device\": \"{}\", \"variant\": \"{}\", \"driver\": {}, \"open_ms\": {open_ms:.0}, \
         \"prepare_ms\": {prepare_ms:.0}, \"graphs\": {graphs}, \"checked_steps\": 200, \
         \"worst_log_probability_error\": {worst:.2e}, {small}, {large},\n \"heads\": [\n  {}\n ]}}",
        info.description,
        info.variant,
        info.gpu.map_or(0, |g| g.driver_version),
        rates.join(",\n  ")
    );
    Ok(())
}
