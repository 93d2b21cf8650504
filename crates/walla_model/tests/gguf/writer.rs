//! Files written by the writer are read back unchanged.

use std::io::Write as _;

use walla_model::{
    Gguf, GgufError, Value,
    gguf::{Floats, Integers, Strings, WriteError, Writer},
};
use walla_types::TensorType;

fn sample() -> Writer {
    let mut writer = Writer::new();
    writer
        .str("general.architecture", "llama")
        .u32("count", 7)
        .f32("third", 1.0 / 3.0)
        .bool("flag", true)
        .strings("words", ["", "one", "zwölf"].into_iter())
        .i32s("kinds", &[-1, 0, 1])
        .f32s("scores", &[0.5, -0.25]);
    writer.tensor("a", TensorType::F32, &[3]);
    writer.tensor("b", TensorType::Q8_0, &[32, 2]);
    writer.tensor("c", TensorType::F16, &[1, 2, 1, 2]);
    writer
}

fn bytes(of: u8, count: usize) -> Vec<u8> {
    vec![of; count]
}

fn written(writer: &Writer) -> Vec<u8> {
    let mut data = writer.begin(Vec::new()).unwrap();
    for (of, count) in [(1, 12), (2, 68), (3, 8)] {
        data.tensor(&bytes(of, count)).unwrap();
    }
    data.finish().unwrap()
}

#[test]
fn metadata_and_tensors_round_trip() {
    let gguf = Gguf::from_bytes(written(&sample())).unwrap();
    assert_eq!((gguf.version(), gguf.alignment(), gguf.file_bytes() % 32), (3, 32, 0));
    assert_eq!(gguf.require::<&str>("general.architecture"), Ok("llama"));
    assert_eq!(gguf.require::<u32>("count"), Ok(7));
    assert_eq!(gguf.require::<f32>("third"), Ok(1.0 / 3.0));
    assert_eq!(gguf.require::<bool>("flag"), Ok(true));
    let words: Strings<'_> = gguf.require("words").unwrap();
    assert_eq!(words.iter().collect::<Vec<_>>(), ["", "one", "zwölf"]);
    let kinds: Integers<'_> = gguf.require("kinds").unwrap();
    assert_eq!(kinds.iter().collect::<Vec<_>>(), [-1, 0, 1]);
    let scores: Floats<'_> = gguf.require("scores").unwrap();
    assert_eq!(scores.iter().collect::<Vec<_>>(), [0.5, -0.25]);
    let listed: Vec<_> = gguf.tensors().map(|t| format!("{} {t}", t.name)).collect();
    assert_eq!(listed, ["a F32 [3]", "b Q8_0 [32, 2]", "c F16 [1, 2, 1, 2]"]);
    for (index, (of, count)) in [(1, 12), (2, 68), (3, 8)].into_iter().enumerate() {
        assert_eq!(gguf.tensor_bytes(index).unwrap(), bytes(of, count));
    }
}

#[test]
fn pieces_of_any_length_give_the_same_file() {
    let whole = written(&sample());
    let data = [bytes(1, 12), bytes(2, 68), bytes(3, 8)].concat();
    for piece in [1, 5, 11, 13, 50, 88] {
        let mut out = sample().begin(Vec::new()).unwrap();
        data.chunks(piece).for_each(|chunk| out.write_all(chunk).unwrap());
        assert_eq!(out.finish().unwrap(), whole, "pieces of {piece}");
    }
}

#[test]
fn values_copy_from_file_to_file() {
    let first = Gguf::from_bytes(written(&sample())).unwrap();
    let mut writer = Writer::new();
    for (key, value) in first.metadata() {
        writer.value(key, value);
    }
    let odd = [Value::U8(1), Value::I8(-1), Value::U16(2), Value::I16(-2), Value::I32(-3)];
    let wide = [Value::U64(u64::MAX), Value::I64(i64::MIN), Value::F64(0.1)];
    for (i, value) in odd.into_iter().chain(wide).enumerate() {
        writer.value(&format!("odd {i}"), value);
    }
    let second = writer.begin(Vec::new()).unwrap().finish().unwrap();
    let second = Gguf::from_bytes(second).unwrap();
    let copied = first.metadata().len();
    assert!(first.metadata().eq(second.metadata().take(copied)));
    assert!(second.metadata().skip(copied).map(|(_, value)| value).eq(odd.into_iter().chain(wide)));
}

#[test]
fn a_custom_alignment_is_kept() {
    let mut writer = sample();
    writer.u32("general.alignment", 256);
    let gguf = Gguf::from_bytes(written(&writer)).unwrap();
    assert_eq!((gguf.alignment(), gguf.file_bytes() % 256), (256, 0));
    assert_eq!(gguf.tensor_bytes(1).unwrap(), bytes(2, 68));
}

#[test]
fn unreadable_files_are_refused_before_writing() {
    let begin = |change: fn(&mut Writer)| {
        let mut writer = sample();
        change(&mut writer);
        match writer.begin(Vec::new()) {
            Err(WriteError::Unreadable(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(
        begin(|w| {
            w.u32("count", 8);
        }),
        GgufError::Key { reason, .. } if reason == "it appears twice"
    ));
    assert!(matches!(
        begin(|w| {
            w.tensor("a", TensorType::F32, &[1]);
        }),
        GgufError::Tensor { reason, .. } if reason == "it appears twice"
    ));
    assert!(matches!(
        begin(|w| {
            w.tensor("d", TensorType::Q4K, &[32]);
        }),
        GgufError::Tensor { reason, .. } if reason.contains("256-number blocks")
    ));
    assert!(matches!(
        begin(|w| {
            w.tensor("d", TensorType::F32, &[]);
        }),
        GgufError::Tensor { reason, .. } if reason.starts_with("0 dimensions")
    ));
    assert!(matches!(
        begin(|w| {
            w.tensor("d", TensorType::F32, &[u64::MAX, 2]);
        }),
        GgufError::Tensor { reason, .. } if reason.starts_with("shape")
    ));
    assert!(matches!(
        begin(|w| {
            w.u32("general.alignment", 0);
        }),
        GgufError::Alignment { .. }
    ));
}

#[test]
fn data_that_does_not_fit_its_tensor_is_refused() {
    let mut data = sample().begin(Vec::new()).unwrap();
    let error = data.tensor(&bytes(1, 11)).unwrap_err();
    assert_eq!(error.to_string(), "tensor \"a\" takes 12 bytes, 11 given");
    data.tensor(&bytes(1, 12)).unwrap();
    let error = data.finish().unwrap_err();
    assert_eq!(error.to_string(), "tensor \"b\" takes 68 bytes, 0 given");

    let mut data = Writer::new().begin(Vec::new()).unwrap();
    assert!(matches!(data.tensor(&[]), Err(WriteError::Surplus(0))));
    assert_eq!(data.write(&[1]).unwrap(), 0);
}
