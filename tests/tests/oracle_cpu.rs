//! Every reference model on the CPU device: alone, batched, in chunks and token by token.

use walla_cpu::{CpuDevice, CpuOptions, Variant};
use walla_device::{Device, KvType};
use walla_tests::{Class, OracleModel, OracleSequence, oracle_models, shared_data};
use walla_types::SeqId;

fn scalar() -> Box<dyn Device> {
    let options =
        CpuOptions { variant: Some(Variant::Scalar), inline: true, ..CpuOptions::default() };
    Box::new(CpuDevice::new(options).expect("the scalar variant runs everywhere"))
}

fn by_context(model: &OracleModel) -> Vec<(u32, Vec<OracleSequence>)> {
    let mut groups: Vec<(u32, Vec<OracleSequence>)> = Vec::new();
    for sequence in model.sequences() {
        match groups.iter_mut().find(|(context, _)| *context == sequence.context_tokens) {
            Some((_, group)) => group.push(sequence),
            None => groups.push((sequence.context_tokens, vec![sequence])),
        }
    }
    groups
}

/// The scalar variant multiplies dequantised weights with f32 activations: with an f32 cache it is in the exact class.
#[test]
fn the_scalar_variant_is_exact() {
    let Some(data) = shared_data() else { return };
    let models = oracle_models(&data);
    assert!(models.len() >= 36, "every architecture and type is there: {}", models.len());
    for model in models {
        for (context, sequences) in by_context(&model) {
            let mut evaluator = model.evaluator(scalar(), 8, context, 64, KvType::F32);
            for sequence in &sequences {
                let differences = model.compare(&mut evaluator, std::slice::from_ref(sequence));
                model.assert_within(Class::Exact, &differences, &format!("{} alone", sequence.id));
            }
            let differences = model.compare(&mut evaluator, &sequences);
            model.assert_within(Class::Exact, &differences, "all together");
        }
    }
}

/// Keys and values in f16 are the only rounding.
#[test]
fn an_f16_cache_is_in_the_half_class() {
    let Some(data) = shared_data() else { return };
    for model in oracle_models(&data) {
        for (context, sequences) in by_context(&model) {
            let mut evaluator = model.evaluator(scalar(), 8, context, 64, KvType::F16);
            let differences = model.compare(&mut evaluator, &sequences);
            model.assert_within(Class::Half, &differences, "with an f16 cache");
        }
    }
}

/// How a prompt is cut into steps changes no bit: one row, odd chunks or everything at once.
#[test]
fn steps_of_any_size_give_the_same_bits() {
    let Some(data) = shared_data() else { return };
    for model in oracle_models(&data) {
        let all = model.sequences();
        let Some(sequence) = all.iter().find(|s| s.id == "len33") else { continue };
        let logits = |rows: u32| {
            let mut evaluator =
                model.evaluator(scalar(), 1, sequence.context_tokens, rows, KvType::F16);
            let mut bits: Vec<u32> = Vec::new();
            let input = [(SeqId(0), sequence.tokens.as_slice())];
            let sink =
                &mut |_: usize, _: usize, row: &[f32]| bits.extend(row.iter().map(|x| x.to_bits()));
            evaluator.append(&input, sink).expect("the batch is valid");
            bits
        };
        let whole = logits(64);
        assert_eq!(whole, logits(1), "{} token by token", model.name);
        assert_eq!(whole, logits(7), "{} in chunks of seven", model.name);
    }
}
