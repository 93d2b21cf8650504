use walla_device::StreamPriority;
use walla_device::step::{OutputRow, StepHeader, StepRow, StepViewMut};
use walla_types::SeqId;

use super::*;

const LAYOUT: StepLayout = StepLayout {
    max_rows: 8,
    max_outputs: 4,
    max_biases: 4,
    max_sequences: 4,
    pages_per_sequence: 4,
};

/// A device with one program, and its handles.
struct Rig {
    device: HashDevice,
    clock: VirtualClock,
    stream: StreamId,
    event: EventId,
    step_host: HostId,
    step: BufferId,
    results: HostId,
    cache: CacheId,
    number: u64,
}

impl Rig {
    fn new() -> Self {
        let clock = VirtualClock::new();
        let mut device =
            HashDevice::new(HashOptions { clock: clock.clone(), ..Default::default() });
        let cache = device
            .create_cache(&CacheDesc {
                layers: Vec::new(),
                pages: 16,
                page_tokens: 4,
                max_sequences: 4,
                kv_type: walla_device::KvType::F16,
            })
            .unwrap();
        let step_host = device.create_host("step", LAYOUT.bytes()).unwrap();
        let step = device.create_buffer("step", LAYOUT.bytes()).unwrap();
        let (results, results_host) =
            device.create_mapped("results", LAYOUT.result_bytes()).unwrap().unwrap();
        let program = Program {
            name: "test".into(),
            phase: walla_device::Phase::Decode,
            pure_decode: false,
            max_rows: 8,
            max_outputs: 4,
            max_context: 16,
            vocab: 1_000,
            slots: Vec::new(),
            cache,
            step,
            layout: LAYOUT,
            results,
            logits: BufferId(0),
            masks: None,
            ops: Vec::new(),
        };
        device.prepare(vec![program]).unwrap();
        let stream = device.create_stream(StreamPriority::Low).unwrap();
        let event = device.create_event().unwrap();
        let results = results_host;
        Self { device, clock, stream, event, step_host, step, results, cache, number: 0 }
    }

    /// Appends tokens of one sequence from `position` on and samples from the last one.
    fn draw(&mut self, seq: SeqId, table: [u32; 4], position: u32, tokens: &[i32]) -> u32 {
        self.number += 1;
        let number = self.number;
        let fill = &mut |bytes: &mut [u8]| {
            let view = StepViewMut::new(bytes, &LAYOUT).unwrap();
            let rows = tokens.len() as u32;
            let (outputs, sequences) = (1, 1);
            *view.header =
                StepHeader { step: number, rows, outputs, sequences, ..Default::default() };
            for (n, (row, token)) in view.rows.iter_mut().zip(tokens).enumerate() {
                let previous = n as i32 - 1;
                let (token, position) = (*token, position + n as u32);
                *row = StepRow { token, position, sequence: seq.0, previous, ..Default::default() };
            }
            view.outputs[0] = OutputRow {
                row: rows - 1,
                sequence: seq.0,
                position: position + rows - 1,
                flags: OutputRow::SAMPLE,
                repetition_penalty: 1.0,
                ..Default::default()
            };
            view.tables[..4].copy_from_slice(&table);
        };
        let device = &mut self.device;
        device.write_host(self.step_host, 0, LAYOUT.bytes(), fill).unwrap();
        device.upload(self.stream, self.step_host, self.step, LAYOUT.bytes()).unwrap();
        let (event, results) = (self.event, self.results);
        let watch = CompletionFlag { event, results, ring_slot: 0, step: number };
        device.launch_with_flag(self.stream, GraphId(0), &watch).unwrap();
        assert!(!device.poll(event).unwrap(), "it takes its time");
        self.clock.advance(300 + 20 * tokens.len() as u64);
        assert!(device.poll(event).unwrap());
        let mut token = None;
        let read = &mut |bytes: &[u8]| {
            let view = walla_device::step::ResultView::new(bytes, &LAYOUT).unwrap();
            assert!(view.header.end_nanos - view.header.begin_nanos >= 320_000);
            token = (view.header.step == number).then_some(view.rows[0].token);
        };
        device.read_host(results, 0, LAYOUT.result_bytes(), read).unwrap();
        token.expect("the results are of this step")
    }
}

#[test]
fn a_draw_depends_only_on_the_cells() {
    let tokens = [5, 6, 7, 8, 9, 10];
    let whole = Rig::new().draw(SeqId(0), [1, 2, 0, 0], 0, &tokens);
    let mut rig = Rig::new();
    rig.draw(SeqId(3), [4, 5, 0, 0], 0, &[1, 2, 3]);
    rig.draw(SeqId(2), [7, 3, 0, 0], 0, &tokens[..4]);
    let apart = rig.draw(SeqId(2), [7, 3, 0, 0], 4, &tokens[4..]);
    assert_eq!(whole, apart, "other pages, in parts, next to another sequence");
    for changed in 0..tokens.len() {
        let mut other = tokens;
        other[changed] += 1;
        assert_ne!(Rig::new().draw(SeqId(0), [1, 2, 0, 0], 0, &other), whole, "{changed}");
    }
    let wrong_table = rig.draw(SeqId(2), [4, 3, 0, 0], 5, &tokens[5..]);
    assert_ne!(wrong_table, whole);
}

#[test]
fn a_token_on_the_device_is_the_last_draw() {
    let mut rig = Rig::new();
    let first = rig.draw(SeqId(0), [1, 2, 0, 0], 0, &[5, 6]);
    let ahead = rig.draw(SeqId(0), [1, 2, 0, 0], 2, &[StepRow::LAST_SAMPLED]);
    let known = Rig::new().draw(SeqId(0), [1, 2, 0, 0], 0, &[5, 6, first as i32]);
    assert_eq!(ahead, known);
}

#[test]
fn moved_cells_count_only_with_their_rotation() {
    let expected = Rig::new().draw(SeqId(0), [1, 2, 0, 0], 0, &[6, 7, 8]);
    let moved = |turn| {
        let mut rig = Rig::new();
        rig.draw(SeqId(0), [1, 2, 0, 0], 0, &[5, 6, 7]);
        let command = CacheCommand::MoveCells {
            from_page: 1,
            from_cell: 1,
            to_page: 1,
            to_cell: 0,
            cells: 2,
            turn,
        };
        rig.device.run_cache_ops(rig.stream, rig.cache, &[command]).unwrap();
        rig.draw(SeqId(0), [1, 2, 0, 0], 2, &[8])
    };
    assert_eq!(moved(-1), expected);
    assert_ne!(moved(0), expected);
}

#[test]
fn a_page_without_memory_leaves_no_results() {
    let mut rig = Rig::new();
    rig.draw(SeqId(0), [1, 0, 0, 0], 0, &[5]);
    rig.device.resize_cache(rig.cache, 8).unwrap();
    let drawn = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        rig.draw(SeqId(0), [9, 0, 0, 0], 0, &[5])
    }));
    assert!(drawn.is_err(), "the results of the step before are there");
}

#[test]
fn each_cache_counts() {
    let mut device = HashDevice::new(HashOptions::default());
    let layer = walla_device::CacheLayer::Kv { kv_heads: 2, head_dim: 8, rope: None };
    let desc = CacheDesc {
        layers: vec![layer],
        pages: 16,
        page_tokens: 4,
        max_sequences: 4,
        kv_type: walla_device::KvType::F16,
    };
    let [first, second] = [(); 2].map(|()| device.create_cache(&desc).unwrap());
    let page = desc.page_bytes();
    assert_eq!(device.memory().cache_bytes, 32 * page);
    device.resize_cache(first, 4).unwrap();
    assert_eq!(device.memory().cache_bytes, 20 * page);
    device.resize_cache(second, 32).unwrap();
    assert_eq!(device.memory().cache_bytes, 36 * page);
}
