//! Detectors of speech: a tiny network with the inputs of Silero, and the real one.

use std::path::Path;

use rten_onnx::onnx::{ModelProto, OperatorSetIdProto, ValueInfoProto};
use walla_voice::{Silero, VoiceActivity, VoiceError};

use crate::common::{Damage, part};
use crate::tiny::Builder;

const FRAME: usize = 512;

/// Its probability grows with the loudness, and its state with each frame.
fn network() -> Vec<u8> {
    let mut net = Builder::default();
    let value = |name: &str| ValueInfoProto { name: Some(name.to_owned()), ..Default::default() };
    net.0.input = ["input", "state", "sr"].map(value).to_vec();
    let axis = net.ints("axis", &[1], &[1]);
    let loudness = net.node("Abs", &["input"], &[]);
    let loudness = net.node("ReduceMean", &[&loudness, axis], &[("keepdims", &[1])]);
    let [factor, offset, one] = [("factor", 20.0), ("offset", -4.0), ("one", 1.0)]
        .map(|(name, number)| net.floats(name, &[1], vec![number]));
    let loudness = net.node("Mul", &[&loudness, factor], &[]);
    let loudness = net.node("Add", &[&loudness, offset], &[]);
    let outputs = [
        ("output", net.node("Sigmoid", &[&loudness], &[])),
        ("stateN", net.node("Add", &["state", one], &[])),
    ];
    for (name, output) in outputs {
        let node = net.0.node.iter_mut().find(|node| node.output[0] == output).unwrap();
        node.output[0] = name.to_owned();
        net.0.output.push(value(name));
    }
    let model = ModelProto {
        ir_version: Some(9),
        graph: Some(net.0),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(18) }],
        ..ModelProto::default()
    };
    model.write_buf().unwrap()
}

#[test]
fn a_detector_returns_probabilities() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vad.onnx");
    std::fs::write(&path, network()).unwrap();
    let mut detector = Silero::load(&path).unwrap();
    assert_eq!(detector.frame_samples(), FRAME);
    for (sample, is_speech) in [(0.0, false), (0.5, true), (f32::NAN, false), (-0.5, true)] {
        let probability = detector.push(&[sample; FRAME]).unwrap();
        assert_eq!(probability > 0.5, is_speech, "{sample}: {probability}");
    }
    detector.reset();
    assert!(detector.push(&[0.0; FRAME]).unwrap() < 0.1);
    for length in [0, 1, FRAME - 1, FRAME + 1, 16_000] {
        assert!(matches!(detector.push(&vec![0.0; length]), Err(VoiceError::Failed(_))));
    }
}

/// Damages the first `limit` bytes (0: all) of a detector. Each is an error, or has probabilities.
fn damage(file: &[u8], limit: usize, rounds: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vad.onnx");
    let mut damage = Damage::new();
    let mut loaded = 0;
    for _ in 0..rounds {
        std::fs::write(&path, damage.of(file, limit)).unwrap();
        let Ok(mut detector) = Silero::load(&path) else { continue };
        loaded += 1;
        for sample in [0.0, 0.5, -1.0] {
            let Ok(probability) = detector.push(&[sample; FRAME]) else { continue };
            assert!((0.0..=1.0).contains(&probability));
        }
    }
    assert!(loaded > rounds / 50, "{loaded} damages were harmless");
    assert!(matches!(Silero::load(Path::new("no.onnx")), Err(VoiceError::File { .. })));
}

#[test]
fn damaged_detectors_are_errors() {
    damage(&network(), 0, 2000);
}

#[test]
#[ignore = "needs the detector of `cargo xtask voice`"]
fn damages_of_the_real_detector_are_errors() {
    let file = std::fs::read(part("silero_vad.onnx")).unwrap();
    damage(&file, 0, 200);
}
