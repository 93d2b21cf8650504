mod instant;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::{Zeroable, bytes_of};
use walla_device::step::{ResultRow, ResultView, StepLayout};
use walla_device::{Backend, MatrixUse, OpenOptions, Phase, Registry};
use walla_types::TensorType;

use self::instant::Instant;
use super::*;

const LAYOUT: StepLayout = StepLayout {
    max_rows: 2,
    max_outputs: 3,
    max_biases: 1,
    max_sequences: 2,
    pages_per_sequence: 1,
};

/// Ring slots.
const RING: usize = 2;

/// A device under test with everything that a step needs.
struct Rig {
    device: Faulty,
    arrived: Arc<AtomicU64>,
    compute: StreamId,
    copy: StreamId,
    computed: EventId,
    copied: EventId,
    step_host: HostId,
    result_host: HostId,
    step: BufferId,
    results: BufferId,
    graph: GraphId,
    cache: CacheId,
}

fn faulty(plan: FaultPlan) -> (Faulty, Arc<AtomicU64>) {
    let arrived = Arc::new(AtomicU64::new(0));
    (Faulty::new(Box::new(Instant::new(&arrived)), plan), arrived)
}

impl Rig {
    fn load(plan: FaultPlan) -> Result<Self, DeviceError> {
        let (mut device, arrived) = faulty(plan);
        let usage = MatrixUse { gather: true, multiply: true };
        let matrix = MatrixDesc { name: "m", rows: 1, cols: 32, ty: TensorType::F32, usage };
        device.load_matrix(&matrix, &[0_u8; 128])?;
        device.load_vector("v", &[0.0; 8])?;
        let cache = device.create_cache(&CacheDesc {
            layers: Vec::new(),
            pages: 2,
            page_tokens: 16,
            max_sequences: 2,
            kv_type: walla_device::KvType::F16,
        })?;
        let step = device.create_buffer("step", LAYOUT.bytes())?;
        let results = device.create_buffer("results", RING * LAYOUT.result_bytes())?;
        let program = Program {
            name: "p".into(),
            phase: Phase::Decode,
            pure_decode: false,
            max_rows: 2,
            max_outputs: 3,
            max_context: 16,
            vocab: 32,
            slots: Vec::new(),
            cache,
            step,
            layout: LAYOUT,
            results,
            logits: results,
            masks: None,
            ops: Vec::new(),
        };
        Ok(Self {
            compute: device.create_stream(StreamPriority::Low)?,
            copy: device.create_stream(StreamPriority::High)?,
            computed: device.create_event()?,
            copied: device.create_event()?,
            step_host: device.create_host("step", LAYOUT.bytes())?,
            result_host: device.create_host("results", LAYOUT.result_bytes())?,
            graph: device.prepare(vec![program])?[0].graph,
            device,
            arrived,
            step,
            results,
            cache,
        })
    }

    /// Submits step number `step` through ring slot `ring_slot`.
    fn submit(&mut self, step: u64, ring_slot: u32) -> Result<(), DeviceError> {
        let header = StepHeader { step, outputs: 3, ring_slot, ..Zeroable::zeroed() };
        self.device.write_host(self.step_host, 0, LAYOUT.bytes(), &mut |bytes| {
            bytes[..size_of::<StepHeader>()].copy_from_slice(bytes_of(&header));
        })?;
        self.device.run_cache_ops(self.compute, self.cache, &[])?;
        self.device.upload(self.compute, self.step_host, self.step, LAYOUT.bytes())?;
        self.device.launch(self.compute, self.graph)?;
        self.device.record(self.compute, self.computed)?;
        self.device.wait(self.copy, self.computed)?;
        let from = (self.results, ring_slot as usize * LAYOUT.result_bytes());
        self.device.download(self.copy, from, (self.result_host, 0), LAYOUT.result_bytes())?;
        self.device.record(self.copy, self.copied)
    }

    /// The result rows of the step that was submitted last.
    fn read(&mut self) -> Result<Vec<ResultRow>, DeviceError> {
        let mut rows = Vec::new();
        self.device.read_host(self.result_host, 0, LAYOUT.result_bytes(), &mut |bytes| {
            rows = ResultView::new(bytes, &LAYOUT).unwrap().rows.to_vec();
        })?;
        Ok(rows)
    }

    fn step(&mut self, step: u64) -> Result<Vec<ResultRow>, DeviceError> {
        self.submit(step, step as u32 % RING as u32)?;
        assert!(self.device.poll(self.copied)?);
        self.read()
    }
}

/// Loads and runs three steps. Returns the number of calls made.
fn load_and_step(plan: FaultPlan) -> (Result<(), DeviceError>, u64) {
    let mut arrived = None;
    let result = Rig::load(plan).and_then(|mut rig| {
        let steps = (0..3).try_for_each(|step| rig.step(step).map(drop));
        arrived = Some(rig.arrived.load(Ordering::Relaxed));
        steps
    });
    (result, arrived.unwrap_or(0))
}

#[test]
fn without_faults_every_call_passes_and_is_counted() {
    let mut rig = Rig::load(FaultPlan::new(0)).unwrap();
    let handle = rig.device.handle();
    let before = handle.calls_total();
    for step in 0..3 {
        assert_eq!(rig.step(step).unwrap()[2].token, 3);
    }
    let counts = |call| (call, handle.calls(call));
    let counted =
        [Call::Launch, Call::Upload, Call::Download, Call::Record, Call::Poll].map(counts);
    assert_eq!(counted.map(|(_, count)| count), [3, 3, 3, 6, 3], "{counted:?}");
    assert_eq!(handle.calls_total() - before, 3 * 10);
    assert_eq!(handle.calls_total(), rig.arrived.load(Ordering::Relaxed));
}

#[test]
fn each_call_can_fail_alone_and_its_work_does_not_happen() {
    let (ok, calls) = load_and_step(FaultPlan::new(0));
    ok.unwrap();
    assert!(calls > 30);
    for nth in 0..calls {
        let error = load_and_step(FaultPlan::new(0).fail(nth, Fault::Failed)).0.unwrap_err();
        assert!(matches!(error, DeviceError::Failed { .. }), "call {nth}: {error}");
    }
    let mut rig = Rig::load(FaultPlan::new(0).fail_call(Call::Launch, 1, Fault::Failed)).unwrap();
    rig.step(0).unwrap();
    let arrived = rig.arrived.load(Ordering::Relaxed);
    let error = rig.step(1).unwrap_err();
    assert_eq!(error, DeviceError::Failed { call: "launch", reason: "as planned".into() });
    assert_eq!(rig.arrived.load(Ordering::Relaxed) - arrived, 3, "write, run_cache_ops, upload");
    rig.step(1).unwrap();
}

#[test]
fn a_lost_device_stays_lost_and_is_not_called() {
    let (_, calls) = load_and_step(FaultPlan::new(0));
    for nth in 0..calls {
        let (mut device, arrived) = faulty(FaultPlan::new(0).fail(nth, Fault::Lost));
        for _ in 0..nth {
            device.create_event().unwrap();
        }
        assert!(device.create_event().unwrap_err().is_lost());
        assert!(device.poll(EventId(1)).unwrap_err().is_lost());
        assert!(device.synchronize().unwrap_err().is_lost());
        assert!(device.handle().is_lost());
        assert_eq!(arrived.load(Ordering::Relaxed), nth);
    }
}

#[test]
fn a_device_that_returned_a_loss_is_not_called_again() {
    let arrived = Arc::new(AtomicU64::new(0));
    let mut device = Faulty::new(Box::new(Instant::dead(&arrived)), FaultPlan::new(0));
    assert!(device.create_event().unwrap_err().is_lost());
    assert!(device.create_event().unwrap_err().is_lost());
    assert_eq!(arrived.load(Ordering::Relaxed), 1);
}

#[test]
fn the_planned_memory_limit_applies() {
    let (mut device, _) = faulty(FaultPlan::new(0).max_memory_bytes(100));
    device.create_buffer("a", 60).unwrap();
    let error = device.create_host("b", 41).unwrap_err();
    let expected = DeviceError::OutOfMemory { what: "b".into(), wanted_bytes: 41, free_bytes: 40 };
    assert_eq!(error, expected);
    device.create_host("b", 40).unwrap();
    assert!(device.load_vector("c", &[0.0]).is_err());
}

#[test]
fn completions_are_delayed_in_order_by_seed() {
    let done_at = |seed| {
        let clock = VirtualClock::new();
        let plan = FaultPlan::new(seed).delay_micros(100..=2_000).clock(&clock);
        let mut rig = Rig::load(plan).unwrap();
        let mut done_at = Vec::new();
        for step in 0..4 {
            rig.submit(step, 0).unwrap();
            assert_eq!(rig.read(), Err(DeviceError::HostInFlight { host: rig.result_host.0 }));
            while !rig.device.poll(rig.copied).unwrap() {
                clock.advance(1);
            }
            assert!(rig.device.poll(rig.computed).unwrap(), "what it waited for is done as well");
            assert_eq!(rig.read().unwrap().len(), 3);
            done_at.push(clock.now_micros());
        }
        done_at
    };
    let first = done_at(1);
    assert!(first[0] >= 100 && first[3] <= 8_000, "{first:?}");
    assert_eq!(first, done_at(1));
    assert_ne!(first, done_at(2));
}

#[test]
fn synchronize_advances_the_virtual_clock() {
    let clock = VirtualClock::new();
    let mut rig = Rig::load(FaultPlan::new(3).delay_micros(500..=500).clock(&clock)).unwrap();
    rig.submit(0, 0).unwrap();
    rig.device.synchronize().unwrap();
    assert_eq!(clock.now_micros(), 500);
    assert_eq!(rig.read().unwrap().len(), 3);
}

#[test]
fn a_hang_never_completes_and_holds_its_buffers() {
    let clock = VirtualClock::new();
    // Each step records twice: this is the copy of the second step.
    let mut rig = Rig::load(FaultPlan::new(0).never_complete(3).clock(&clock)).unwrap();
    rig.step(0).unwrap();
    rig.submit(1, 1).unwrap();
    clock.advance(u64::MAX / 2);
    assert!(rig.device.poll(rig.computed).unwrap());
    assert!(!rig.device.poll(rig.copied).unwrap());
    assert!(matches!(rig.read(), Err(DeviceError::HostInFlight { .. })));
    assert!(rig.device.synchronize().is_err());
}

#[test]
fn one_row_of_one_launch_is_poisoned() {
    let mut rig = Rig::load(FaultPlan::new(0).poison(1, 2)).unwrap();
    for step in 0..4 {
        let rows = rig.step(step).unwrap();
        let flags: Vec<_> = rows.iter().map(|row| row.flags).collect();
        let last = if step == 1 { ResultRow::NOT_FINITE } else { ResultRow::SAMPLED };
        assert_eq!(flags, [ResultRow::SAMPLED, ResultRow::SAMPLED, last], "step {step}");
        assert_eq!(rows[2].token, if step == 1 { 0 } else { 3 });
    }
    // A row beyond the layout poisons nothing.
    let mut rig = Rig::load(FaultPlan::new(0).poison(0, 99)).unwrap();
    assert!(rig.step(0).unwrap().iter().all(|row| row.flags == ResultRow::SAMPLED));
}

#[test]
fn random_failures_affect_only_calls_of_steps_and_repeat_by_seed() {
    let failures = |seed| {
        let (mut device, _) = faulty(FaultPlan::new(seed).fail_in_play(100_000));
        let event = device.create_event().unwrap();
        (0..1_000).map(|_| device.poll(event).is_err()).collect::<Vec<_>>()
    };
    let first = failures(1);
    let count = first.iter().filter(|failed| **failed).count();
    assert!((50..200).contains(&count), "{count} of 1000, 100 planned");
    assert_eq!(first, failures(1));
    assert_ne!(first, failures(2));
    let (mut device, _) = faulty(FaultPlan::new(1).fail_in_play(1_000_000));
    assert!((0..100).all(|_| device.create_event().is_ok()));
}

struct InstantBackend;

impl Backend for InstantBackend {
    fn name(&self) -> &'static str {
        "instant"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        Ok(vec![instant::info()])
    }

    fn score(&self, _: &DeviceInfo) -> i32 {
        0
    }

    fn open(&self, _: &str, _: &OpenOptions) -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(Instant::new(&Arc::default())))
    }
}

#[test]
fn a_handle_counts_calls_and_loses_a_device_owned_elsewhere() {
    let backend = FaultyBackend::new(InstantBackend, FaultPlan::new(0));
    let handle = backend.handle();
    let registry = Registry::new().with(backend);
    let mut device = registry.open("auto", &OpenOptions::default()).unwrap();
    device.create_event().unwrap();
    assert_eq!(handle.calls(Call::CreateEvent), 1);
    handle.lose();
    assert!(device.create_event().unwrap_err().is_lost());
}

#[test]
fn an_alias_names_and_prefers_devices_beside_their_originals() {
    let faulty = FaultyBackend::new(InstantBackend, FaultPlan::new(0)).alias("better");
    let handle = faulty.handle();
    let named = faulty.devices().unwrap();
    assert_eq!(named[0].name, "better:0");
    for unknown in ["better:1", "better", "instant"] {
        assert!(faulty.open(unknown, &OpenOptions::default()).is_err(), "{unknown}");
    }
    let registry = Registry::new().with(InstantBackend).with(faulty);
    registry.open("auto", &OpenOptions::default()).unwrap().create_event().unwrap();
    assert_eq!(handle.calls(Call::CreateEvent), 1);
}

#[test]
fn candidates_are_the_devices_that_open_tries_best_first() {
    struct Never;
    impl Backend for Never {
        fn name(&self) -> &'static str {
            "never"
        }
        fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
            Ok(vec![DeviceInfo { name: "never".into(), ..instant::info() }])
        }
        fn score(&self, _: &DeviceInfo) -> i32 {
            i32::MIN
        }
        fn open(&self, _: &str, _: &OpenOptions) -> Result<Box<dyn Device>, DeviceError> {
            Ok(Box::new(Instant::new(&Arc::default())))
        }
    }
    let better = FaultyBackend::new(InstantBackend, FaultPlan::new(0)).alias("better");
    let registry = Registry::new().with(Never).with(InstantBackend).with(better);
    let names = |of: &str| registry.candidates(of).into_iter().map(|i| i.name).collect::<Vec<_>>();
    assert_eq!(names("auto"), ["better:0", &instant::info().name]);
    assert_eq!(names("never"), ["never"], "taken if it is asked for");
    assert!(names("nothing").is_empty());
    assert_eq!(registry.devices().last().unwrap().0.name, "never");
}

#[test]
fn only_misdirected_steps_have_pages_outside_of_memory() {
    let mut rig = Rig::load(FaultPlan::new(0).misdirect_from(2)).unwrap();
    for step in 0..4 {
        rig.step(step).unwrap();
        let mut page = 0;
        let tables = LAYOUT.tables_offset();
        rig.device
            .read_host(rig.step_host, tables, size_of::<u32>(), &mut |bytes| {
                page = bytemuck::pod_read_unaligned(bytes);
            })
            .unwrap();
        assert_eq!(page, if step < 2 { 0 } else { PAGE_OUTSIDE }, "{step}");
    }
}
