use walla_device::KvType;
use walla_types::RopePairs;

use super::*;

const DIM: usize = 8;

fn rope() -> Rope {
    Rope { frequencies: vec![0.5, 0.1, 0.02], magnitude: 1.5, pairs: RopePairs::Halves }
}

fn cache(kv_type: KvType) -> Cache {
    let rope_id = Some(walla_device::RopeId(0));
    let kv = CacheLayer::Kv { kv_heads: 2, head_dim: DIM as u32, rope: rope_id };
    let plain = CacheLayer::Kv { kv_heads: 1, head_dim: DIM as u32, rope: None };
    let conv = CacheLayer::ShortConv { width: 4, taps: 3 };
    let layers = vec![kv, conv, plain];
    let desc = CacheDesc { layers, pages: 5, page_tokens: 6, max_sequences: 3, kv_type };
    Cache::new(&desc, &[rope()]).unwrap()
}

/// The key of a token, rotated to a position.
fn key(token: usize, head: usize, position: u32) -> Vec<f32> {
    let mut key: Vec<f32> = (0..DIM).map(|d| ((token * 7 + head * 3 + d) as f32).sin()).collect();
    let rope = rope();
    let turn = |frequency: &f32| {
        let (sin, cos) = (position as f32 * frequency).sin_cos();
        [cos * rope.magnitude, sin * rope.magnitude]
    };
    let turns: Vec<_> = rope.frequencies.iter().map(turn).collect();
    scalar::rotate(&mut key[..6], &turns, rope.pairs);
    key
}

fn value(token: usize, head: usize) -> Vec<f32> {
    (0..DIM).map(|d| (token * 100 + head * 10 + d) as f32).collect()
}

fn layer(cache: &mut Cache, layer: usize) -> &mut KvLayer {
    match &mut cache.layers[layer] {
        Layer::Kv(kv) => kv,
        _ => panic!("layer {layer} has no keys"),
    }
}

/// Token `t` at position `t` in cell `t` of page 1.
fn fill(cache: &mut Cache) {
    for (index, heads) in [(0, 2), (2, 1)] {
        let kv = layer(cache, index);
        for (token, head) in (0..6).flat_map(|token| (0..heads).map(move |head| (token, head))) {
            kv.append(head, 1, token, &key(token, head, token as u32), &value(token, head));
        }
    }
}

fn cell(kv: &KvLayer, head: usize, page: usize, cell: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut key, mut value) = (vec![0.0; DIM], vec![0.0; DIM]);
    kv.read_cell(head, page, cell, &mut key, &mut value);
    (key, value)
}

#[test]
fn appended_cells_are_read_back_in_both_types() {
    for (kv_type, error) in [(KvType::F32, 0.0), (KvType::F16, 1e-3)] {
        let mut cache = cache(kv_type);
        fill(&mut cache);
        let kv = layer(&mut cache, 0);
        for (token, head) in [(0, 0), (3, 1), (5, 0)] {
            let (got, values) = cell(kv, head, 1, token);
            let wanted = key(token, head, token as u32);
            assert!(got.iter().zip(&wanted).all(|(a, b)| (a - b).abs() <= error));
            assert_eq!(values, value(token, head));
        }
    }
}

#[test]
fn eight_bits_are_off_by_half_a_scale() {
    let mut cache = cache(KvType::Q8);
    fill(&mut cache);
    let largest = |numbers: &[f32]| numbers.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
    // The scale itself is rounded to 11 bits, which moves the largest number by up to 127 / 2048 of
    // a scale.
    let close = |got: &[f32], wanted: &[f32]| {
        let bound = largest(wanted) / 127.0 * 0.57;
        got.iter().zip(wanted).all(|(a, b)| (a - b).abs() <= bound)
    };
    for (index, heads) in [(0, 2), (2, 1)] {
        let kv = layer(&mut cache, index);
        for (head, token) in (0..heads).flat_map(|head| (0..6).map(move |at| (head, at))) {
            let (keys, values) = cell(kv, head, 1, token);
            assert!(close(&keys, &key(token, head, token as u32)), "{keys:?}");
            assert!(close(&values, &value(token, head)), "{values:?}");
        }
    }
    // Several cells of a row of keys are the same as each cell read alone.
    let kv = layer(&mut cache, 0);
    let (mut row, keys) = ([0.0; 4], kv.keys(1, 1));
    keys.units(3 * kv.stride + 2, &mut row);
    row.iter_mut().zip(2..).for_each(|(number, cell)| *number *= keys.scale(cell));
    assert_eq!(row, [2, 3, 4, 5].map(|token| cell(kv, 1, 1, token).0[3]));
    // Zeros get a zero scale, and numbers beyond the largest scale are clamped, not lost.
    let kv = layer(&mut cache, 0);
    kv.append(0, 2, 0, &[0.0; DIM], &[1e9; DIM]);
    let (keys, values) = cell(kv, 0, 2, 0);
    assert_eq!(keys, [0.0; DIM]);
    assert!(values.iter().all(|value| *value > 8e6), "{values:?}");
    // A row that is not finite stays invalid.
    kv.append(0, 2, 1, &[f32::NAN; DIM], &[1.0, f32::INFINITY, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let (keys, values) = cell(kv, 0, 2, 1);
    assert!(keys.iter().chain(&values).all(|number| number.is_nan()), "{keys:?} {values:?}");
}

#[test]
fn a_copied_page_is_the_same_in_every_layer() {
    for kv_type in [KvType::F16, KvType::Q8] {
        let mut cache = cache(kv_type);
        fill(&mut cache);
        cache.run_cache_ops(&CacheCommand::CopyPage { from: 1, to: 4 }, &[rope()]);
        for (index, heads) in [(0, 2), (2, 1)] {
            let kv = layer(&mut cache, index);
            for (head, at) in (0..heads).flat_map(|head| (0..6).map(move |at| (head, at))) {
                assert_eq!(cell(kv, head, 4, at), cell(kv, head, 1, at));
                assert_eq!(cell(kv, head, 3, at).1, [0.0; DIM]);
            }
        }
    }
}

/// Moved keys equal the keys of tokens that were at the new position from the start. Values and
/// layers without rotation do not change.
#[test]
fn moved_cells_are_rotated() {
    for (to_page, to_cell) in [(1, 0), (3, 2)] {
        let mut cache = cache(KvType::F32);
        fill(&mut cache);
        let command = CacheCommand::MoveCells {
            from_page: 1,
            from_cell: 2,
            to_page,
            to_cell,
            cells: 4,
            turn: -2,
        };
        assert!(cache.desc.allows(&command));
        cache.run_cache_ops(&command, &[rope()]);
        for moved in 0..4 {
            let (token, at) = (moved + 2, to_cell as usize + moved);
            let kv = layer(&mut cache, 0);
            for head in 0..2 {
                let (got, values) = cell(kv, head, to_page as usize, at);
                let wanted = key(token, head, token as u32 - 2);
                assert!(got.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-5), "{got:?}");
                assert_eq!(values, value(token, head));
            }
            let (got, _) = cell(layer(&mut cache, 2), 0, to_page as usize, at);
            assert_eq!(got, key(token, 0, token as u32));
        }
    }
}

#[test]
fn recent_tokens_shift_with_their_positions() {
    let mut cache = cache(KvType::F32);
    for position in 0..300 {
        cache.remember(1, position, 1000 + position);
    }
    let turn = CacheCommand::ShiftRecent { sequence: 1, from: 100, end: 300, turn: -40 };
    cache.run_cache_ops(&turn, &[]);
    for position in 60..260_u32 {
        assert_eq!(cache.recent(1)[position as usize % RECENT], 1000 + position + 40);
    }
}

#[test]
fn sequences_are_copied_and_cleared() {
    let mut cache = cache(KvType::F32);
    cache.last[0] = 9;
    cache.remember(0, 3, 77);
    let Layer::Conv(conv) = &mut cache.layers[1] else { panic!("a convolution") };
    conv.state_mut(0).fill(2.5);
    cache.run_cache_ops(&CacheCommand::CopySequence { from: 0, to: 2 }, &[]);
    cache.run_cache_ops(&CacheCommand::ClearSequence { sequence: 0 }, &[]);
    let Layer::Conv(conv) = &cache.layers[1] else { panic!("a convolution") };
    assert_eq!((conv.state(0), conv.state(2)), ([0.0; 8].as_slice(), [2.5; 8].as_slice()));
    assert_eq!((cache.last[0], cache.last[2]), (0, 9));
    assert_eq!((cache.recent(0)[3], cache.recent(2)[3]), (0, 77));
}

#[test]
fn commands_outside_the_cache_are_refused() {
    let desc = cache(KvType::F32).desc;
    let cells = |from_cell, to_page, to_cell, cells| CacheCommand::MoveCells {
        from_page: 1,
        from_cell,
        to_page,
        to_cell,
        cells,
        turn: 0,
    };
    let bad = [
        CacheCommand::CopyPage { from: 5, to: 0 },
        cells(3, 2, 0, 4),
        cells(0, 2, u32::MAX, 1),
        cells(0, 5, 0, 1),
        cells(0, 1, 2, 2),
        CacheCommand::ShiftRecent { sequence: 0, from: 3, end: 9, turn: -4 },
        CacheCommand::ShiftRecent { sequence: 3, from: 3, end: 9, turn: 1 },
        CacheCommand::CopySequence { from: 0, to: 3 },
        CacheCommand::ClearSequence { sequence: 3 },
    ];
    for command in bad {
        assert!(!desc.allows(&command), "{command:?}");
    }
}

#[test]
fn cache_bytes_are_known_before_allocation() {
    for kv_type in [KvType::Q8, KvType::F16, KvType::F32] {
        let cache = cache(kv_type);
        let layers = cache.layers.iter().map(|layer| match layer {
            Layer::Kv(kv) => {
                kv.keys.len() + kv.values.len() + kv.scales.iter().map(Bytes::len).sum::<usize>()
            }
            Layer::Conv(conv) => conv.state.len(),
            Layer::Delta(delta) => {
                let strips = delta.strips.iter().map(|strip| strip.lock().unwrap().len());
                delta.conv.state.len() + strips.sum::<usize>()
            }
        });
        let held = layers.sum::<usize>() + 4 * (cache.last.len() + cache.recent.len());
        assert_eq!(Cache::bytes_of(&cache.desc), held as u64);
    }
}
