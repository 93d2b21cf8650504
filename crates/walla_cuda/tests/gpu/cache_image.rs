//! Copies of cache contents to host memory and back.

use walla_device::{CachePart, DeltaShape, DeviceError, EventId, HostId, KvType};
use walla_reference_test::gpu_test;
use walla_types::{MAX_PENALTY_WINDOW, TensorType};

use crate::gpu;
use crate::model::Shape;
use crate::parity::tokens;
use crate::rig::{PAGE_TOKENS, Piece, Rig};

/// A page of a sequence, in the layout of the rig.
fn page(sequence: u32, index: u32) -> u32 {
    1 + sequence * 40 + (39 - index)
}

/// Bytes of recent tokens.
const RECENT_BYTES: usize = 4 * MAX_PENALTY_WINDOW as usize;

struct Copier {
    host: HostId,
    event: EventId,
}

impl Copier {
    fn read(&self, rig: &mut Rig, part: &CachePart<'_>, bytes: usize) -> Vec<u8> {
        let d = &mut *rig.device;
        d.read_cache(rig.stream, rig.cache, part, (self.host, 64)).unwrap();
        d.record(rig.stream, self.event).unwrap();
        while !d.poll(self.event).unwrap() {
            std::thread::yield_now();
        }
        let mut all = Vec::new();
        d.read_host(self.host, 64, bytes, &mut |part| all.extend_from_slice(part)).unwrap();
        all
    }

    fn write(&self, rig: &mut Rig, part: &CachePart<'_>, bytes: &[u8]) {
        let d = &mut *rig.device;
        d.write_host(self.host, 0, bytes.len(), &mut |to| to.copy_from_slice(bytes)).unwrap();
        d.write_cache(rig.stream, rig.cache, part, (self.host, 0)).unwrap();
        d.record(rig.stream, self.event).unwrap();
        while !d.poll(self.event).unwrap() {
            std::thread::yield_now();
        }
    }
}

/// A sequence that was copied through host memory continues with the same bits, in other pages and
/// in another device.
#[gpu_test]
fn contents_of_a_cache_pass_through_host_memory() {
    let delta = DeltaShape { key_heads: 1, value_heads: 2, head_dim: 32, taps: 3 };
    let plain = Shape::llama(TensorType::F32);
    let shapes = [
        (KvType::F16, Shape { taps: Some(3), layers: 3, ..plain.clone() }),
        (KvType::Q8, plain.clone()),
        (KvType::F32, Shape { delta: Some(delta), gates: true, ..plain }),
    ];
    for (kv_type, shape) in shapes {
        let [first, second] = [gpu(), gpu()];
        let mut from = Rig::new(first, &shape, kv_type, 2);
        let mut to = Rig::new(second, &shape, kv_type, 2);
        let text = tokens(515, 60, 4);
        let count = 45;
        let mut piece = Piece::new(0, 0, &text[..count]);
        piece.sampling.repetition_penalty = 1.3;
        piece.sampling.penalty_window = 64;
        from.step(std::slice::from_ref(&piece), 0);
        let image = from.device.cache_image(from.cache).unwrap();
        assert_eq!(Some(&image), to.device.cache_image(to.cache).as_ref());
        let pages = count.div_ceil(PAGE_TOKENS as usize);
        let largest = image.states.iter().map(|state| state.bytes).max().unwrap_or(0);
        let bytes = 64 + (pages * image.page_bytes()).max(largest).max(RECENT_BYTES);
        let [read, write] = [&mut from, &mut to].map(|rig| Copier {
            host: rig.device.create_host("copies", bytes).unwrap(),
            event: rig.device.create_event().unwrap(),
        });
        let pages_of = |sequence| (0..pages as u32).map(move |i| page(sequence, i));
        // Descending pages are copied one by one, ascending ones together.
        let [of_from, of_to] = [pages_of(0), pages_of(1)].map(Iterator::collect::<Vec<_>>);
        let keys = read.read(&mut from, &CachePart::Pages(&of_from), pages * image.page_bytes());
        assert!(image.is_valid(&keys, pages) && keys.iter().any(|byte| *byte != 0));
        write.write(&mut to, &CachePart::Pages(&of_to), &keys);
        for (index, state) in (0..).zip(&image.states) {
            let state = read.read(&mut from, &CachePart::State { sequence: 0, index }, state.bytes);
            write.write(&mut to, &CachePart::State { sequence: 1, index }, &state);
        }
        let recent = read.read(&mut from, &CachePart::Recent { sequence: 0 }, RECENT_BYTES);
        assert_eq!(recent[4 * (count - 1)..4 * count], text[count - 1].to_le_bytes());
        write.write(&mut to, &CachePart::Recent { sequence: 1 }, &recent);
        let ascending: Vec<u32> = of_to.iter().rev().copied().collect();
        let together = write.read(&mut to, &CachePart::Pages(&ascending), keys.len());
        let part = image.part_bytes(&image.parts[0]);
        let places = pages * part;
        assert_eq!(together[..part], keys[places - part..places], "the last page is first");
        let next = |sequence| {
            let position = count as u32;
            Piece { position, tokens: text[count..count + 1].to_vec(), sequence, ..piece.clone() }
        };
        let expected = from.step(&[next(0)], 0);
        let found = to.step(&[next(1)], 0);
        assert_eq!(found.logits, expected.logits, "{kv_type:?}");
        assert_eq!(found.rows[0].token, expected.rows[0].token);
        let outside = [
            CachePart::Pages(&[1, 321]),
            CachePart::State { sequence: 8, index: 0 },
            CachePart::State { sequence: 0, index: image.states.len() as u32 },
            CachePart::Recent { sequence: 8 },
        ];
        for part in outside {
            let refused = to.device.read_cache(to.stream, to.cache, &part, (write.host, 0));
            assert!(matches!(refused, Err(DeviceError::Invalid(_))), "{part:?}");
        }
        let page_list = [1; 64];
        let too_many = CachePart::Pages(&page_list);
        let refused = to.device.write_cache(to.stream, to.cache, &too_many, (write.host, 0));
        assert!(matches!(refused, Err(DeviceError::Invalid(_))), "more than the buffer");
    }
}
