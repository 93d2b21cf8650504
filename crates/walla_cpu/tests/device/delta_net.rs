//! Gated DeltaNet: every variant against f64; states are kept, copied and cleared.

use crate::support::{DELTA, Harness, Random, Row, Shape, VOCAB, greedy, whole};
use walla_cpu::{CpuOptions, Variant};
use walla_device::{CacheCommand, DeltaShape, Device, DeviceError, KvType};
use walla_types::TensorType;

fn variants() -> impl Iterator<Item = Variant> {
    Variant::ALL.iter().copied().filter(|variant| variant.score().is_some())
}

fn options(variant: Variant) -> CpuOptions {
    CpuOptions { variant: Some(variant), ..CpuOptions::default() }
}

fn exact(delta: DeltaShape) -> Shape {
    Shape { kv_type: KvType::F32, delta: Some(delta), ..Shape::small(TensorType::F32) }
}

fn tokens(count: usize, seed: u32) -> Vec<i32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(VOCAB) as i32).collect()
}

#[test]
fn every_variant_agrees_with_f64() {
    let shapes = [
        DELTA,
        DeltaShape { key_heads: 1, value_heads: 1, head_dim: 16, ..DELTA },
        DeltaShape { key_heads: 3, value_heads: 3, head_dim: 128, ..DELTA },
    ];
    for variant in variants() {
        for delta in shapes {
            let mut harness = Harness::new(options(variant), exact(delta));
            let tokens = tokens(38, 5);
            let wanted = harness.reference(&tokens);
            let (got, _) = harness.run(&whole(2, &tokens), &greedy());
            let spread = wanted.iter().flatten().map(|x| x * x).sum::<f64>();
            let spread = (spread / (wanted.len() * VOCAB) as f64).sqrt();
            let pairs = got.iter().flatten().zip(wanted.iter().flatten());
            let worst = pairs.map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max);
            assert!(worst / spread < 1e-4, "{variant} {delta:?}: {}", worst / spread);
        }
    }
}

#[test]
fn copied_states_continue_like_the_original_and_cleared_ones_start_anew() {
    for variant in variants() {
        let mut harness = Harness::new(options(variant), exact(DELTA));
        let tokens = tokens(20, 7);
        let rows = whole(0, &tokens);
        let (wanted, _) = harness.run(&rows, &greedy());
        // Without attention layers in between, pages would not matter: they are copied, too.
        let mut harness = Harness::new(options(variant), exact(DELTA));
        harness.run(&rows[..11], &greedy());
        let pages = crate::support::PAGES_PER_SEQUENCE;
        let mut commands = vec![CacheCommand::CopySequence { from: 0, to: 3 }];
        commands.extend(
            (0..pages)
                .map(|page| CacheCommand::CopyPage { from: 1 + page, to: 1 + 3 * pages + page }),
        );
        let (stream, cache) = (harness.stream, harness.cache);
        harness.device.run_cache_ops(stream, cache, &commands).unwrap();
        let rest: Vec<_> = rows[11..].iter().map(|row| Row(3, row.1, row.2, true)).collect();
        let (copied, _) = harness.run(&rest, &greedy());
        assert!(copied == wanted[11..], "{variant}");
        // The original is unchanged.
        let (original, _) = harness.run(&rows[11..], &greedy());
        assert!(original == wanted[11..], "{variant}");
        // A state is zero before position 0, cleared or not.
        let again: Vec<_> = rows.iter().map(|row| Row(3, row.1, row.2, true)).collect();
        let (anew, _) = harness.run(&again, &greedy());
        assert!(anew == wanted, "{variant}");
        let clear = CacheCommand::ClearSequence { sequence: 0 };
        harness.device.run_cache_ops(stream, cache, &[clear]).unwrap();
        let (anew, _) = harness.run(&rows, &greedy());
        assert!(anew == wanted, "{variant}");
    }
}

#[test]
fn heads_that_are_no_multiple_of_a_strip_are_refused() {
    let odd = DeltaShape { head_dim: 24, ..DELTA };
    let refused = std::panic::catch_unwind(|| Harness::try_new(CpuOptions::default(), exact(odd)));
    // The harness unwraps the cache's error.
    let message = refused.err().and_then(|panic| panic.downcast::<String>().ok()).unwrap();
    let expected = DeviceError::Unsupported {
        device: "cpu".to_owned(),
        what: "DeltaNet heads of 24, which is no multiple of 16".to_owned(),
    };
    assert!(message.contains(&format!("{expected:?}")), "{message}");
}
