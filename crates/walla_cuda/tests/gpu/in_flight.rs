//! Steps in flight, played as the executor does, and the driver calls that they make.

use std::time::Instant;

use walla_device::step::{OutputRow, ResultView, StepRow, StepViewMut};
use walla_device::{CompletionFlag, Device, EventId, HostId, KvType, StreamId, StreamPriority};

use crate::gpu;
use crate::model::Shape;
use crate::rig::{LAYOUT, PAGE_TOKENS, Rig};

/// Steps in flight: the results of one are read while the next one runs.
pub const RING: usize = 2;

/// Number of decoding sequences.
const ROWS: u32 = 3;

/// Index in `rig`'s `BUCKETS` of the bucket with [`ROWS`] rows.
pub const BUCKET: usize = 2;

/// Resources of one step in flight.
pub struct Slot {
    step: HostId,
    pub results: HostId,
    computed: EventId,
    pub copied: EventId,
}

impl Slot {
    pub fn create(device: &mut dyn Device) -> Self {
        Self {
            step: device.create_host("step", LAYOUT.bytes()).unwrap(),
            results: device.create_host("results", LAYOUT.result_bytes()).unwrap(),
            computed: device.create_event().unwrap(),
            copied: device.create_event().unwrap(),
        }
    }
}

/// Every sequence reads one token.
fn fill(bytes: &mut [u8], step: u64) {
    let view = StepViewMut::new(bytes, &LAYOUT).unwrap();
    let pages = LAYOUT.pages_per_sequence;
    let position = (step % u64::from(pages * PAGE_TOKENS)) as u32;
    view.header.step = step;
    view.header.rows = ROWS;
    view.header.outputs = ROWS;
    view.header.sequences = ROWS;
    view.header.ring_slot = (step % RING as u64) as u32;
    for r in 0..ROWS {
        view.rows[r as usize] = StepRow {
            token: 1 + r.cast_signed(),
            position,
            sequence: r,
            table: r,
            previous: StepRow::NONE,
            output: r.cast_signed(),
            flags: StepRow::LAST_OF_SEQUENCE,
            reserved: 0,
        };
        view.outputs[r as usize] = OutputRow {
            row: r,
            sequence: r,
            position,
            flags: OutputRow::SAMPLE,
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            repetition_penalty: 1.0,
            seed: [r, 7],
            ..OutputRow::default()
        };
        let table = &mut view.tables[(r * pages) as usize..][..pages as usize];
        table.iter_mut().zip(1 + r * pages..).for_each(|(page, number)| *page = number);
    }
}

/// Enqueues a step as the executor does: one upload and one launch on the compute stream. If the
/// program does not write results to mapped memory, also one copy back on another stream.
pub fn submit(rig: &mut Rig, slot: &Slot, copy: StreamId, step: u64) {
    let (compute, block, results) = (rig.stream, rig.step, rig.results);
    let graph = rig.graphs[BUCKET][1];
    let d = &mut *rig.device;
    d.write_host(slot.step, 0, LAYOUT.bytes(), &mut |bytes| fill(bytes, step)).unwrap();
    d.upload(compute, slot.step, block, LAYOUT.bytes_with(ROWS)).unwrap();
    let ring_slot = (step % RING as u64) as u32;
    if let Some(results) = rig.mapped {
        let watch = CompletionFlag { event: slot.copied, results, ring_slot, step };
        return d.launch_with_flag(compute, graph, &watch).unwrap();
    }
    d.launch(compute, graph).unwrap();
    d.record(compute, slot.computed).unwrap();
    d.wait(copy, slot.computed).unwrap();
    let from = (results, ring_slot as usize * LAYOUT.result_bytes());
    let bytes = LAYOUT.result_bytes_without_candidates();
    d.download(copy, from, (slot.results, 0), bytes).unwrap();
    d.record(copy, slot.copied).unwrap();
}

/// Waits for a step by polling, checks it, and returns its device timestamps.
pub fn collect(rig: &mut Rig, slot: &Slot, step: u64) -> (u64, u64) {
    let d = &mut *rig.device;
    while !d.poll(slot.copied).unwrap() {
        // A driver in software computes on the same cores.
        std::thread::yield_now();
    }
    let mut stamps = (0, 0);
    let block = (step % RING as u64) as usize * LAYOUT.result_bytes();
    let (host, offset) = rig.mapped.map_or((slot.results, 0), |ring| (ring, block));
    d.read_host(host, offset, LAYOUT.result_bytes(), &mut |bytes| {
        let header = ResultView::new(bytes, &LAYOUT).unwrap().header;
        assert_eq!((header.step, header.outputs), (step, ROWS));
        stamps = (header.begin_nanos, header.end_nanos);
    })
    .unwrap();
    stamps
}

/// Number of pipelined steps, and of further steps that are awaited one by one.
#[derive(Clone, Copy)]
pub struct Length {
    pub steps: u64,
    pub awaited: u64,
}

/// Runs steps with results in mapped memory or copied back. `per_step` lists the calls of a step,
/// without queries.
pub fn play(
    (name, shape): &(&str, Shape),
    is_mapped: bool,
    Length { steps, awaited }: Length,
    per_step: &[(&str, u64)],
) {
    let device = gpu();
    let mut rig = Rig::with_results(device, shape, KvType::F16, 1, is_mapped);
    assert_eq!(rig.mapped.is_some(), is_mapped);
    let copy = rig.device.create_stream(StreamPriority::High).unwrap();
    let slots: [Slot; RING] = std::array::from_fn(|_| Slot::create(&mut *rig.device));
    let before = rig.device.counters();
    let mut gaps_nanos = Vec::with_capacity(steps as usize);
    let mut periods_nanos = Vec::with_capacity(steps as usize);
    let mut submits_nanos = Vec::with_capacity(steps as usize);
    let mut last_end = None;
    for step in 0..steps + RING as u64 {
        let slot = &slots[(step % RING as u64) as usize];
        if let Some(done) = step.checked_sub(RING as u64) {
            let (begin, end) = collect(&mut rig, slot, done);
            gaps_nanos.extend(last_end.map(|last_end| begin.saturating_sub(last_end)));
            periods_nanos.extend(last_end.map(|last_end| end.saturating_sub(last_end)));
            last_end = Some(end);
        }
        if step < steps {
            let start = Instant::now();
            submit(&mut rig, slot, copy, step);
            submits_nanos.push(start.elapsed().as_nanos() as u64);
        }
    }
    let calls = rig.device.counters() - before;
    let is_eager = rig.device.graph_fallbacks().total() > 0;
    assert!(!is_eager, "{:?}", rig.device.graph_fallbacks());
    for (what, count) in calls.named() {
        let expected =
            per_step.iter().find(|(call, _)| *call == what).map_or(0, |(_, n)| n * steps);
        // With a completion flag, the driver is queried from time to time.
        let is_question = what.ends_with("queries");
        assert!(is_question || count == expected, "{name}, {what}: {count} of {expected}");
    }
    // One step at a time: the time beyond the device's own is the round trip.
    let mut beyond_nanos: Vec<u64> = (steps..steps + awaited)
        .map(|step| {
            let slot = &slots[(step % RING as u64) as usize];
            let start = Instant::now();
            submit(&mut rig, slot, copy, step);
            let (begin, end) = collect(&mut rig, slot, step);
            (start.elapsed().as_nanos() as u64).saturating_sub(end - begin)
        })
        .collect();
    let median = |list: &mut Vec<u64>| {
        list.sort_unstable();
        list[list.len() / 2]
    };
    println!(
        "{name}, results {}: {steps} steps, {:.2} driver calls a step ({calls}); medians: submit {} ns, step to step {} ns, device idle between {} ns, awaited step beyond \
         the device's time {} ns",
        if is_mapped { "written to the host" } else { "copied" },
        calls.total() as f64 / steps as f64,
        median(&mut submits_nanos),
        median(&mut periods_nanos),
        median(&mut gaps_nanos),
        median(&mut beyond_nanos),
    );
}
