//! Dequantisation of every type equals ggml's exactly.

use std::fs;

use crate::reference_data::data;
use proptest::prelude::*;
use walla_model::dequantize;
use walla_types::TensorType;

#[test]
fn numbers_agree_with_ggml_bit_for_bit() {
    let index = fs::read_to_string(data("models/dequant.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    let data = fs::read(data("models/dequant.bin")).unwrap();
    let mut seen = Vec::new();
    for entry in index["entries"].as_array().unwrap() {
        let number = |key: &str| usize::try_from(entry[key].as_u64().unwrap()).unwrap();
        let Ok(ty) = TensorType::from_ggml(number("ggml_type_id").try_into().unwrap()) else {
            continue;
        };
        assert_eq!(entry["type"], ty.name());
        let raw = &data[number("raw_offset")..][..number("raw_bytes")];
        let exact = &data[number("f32_offset")..][..number("f32_bytes")];
        let mut found = vec![0.0_f32; exact.len() / 4];
        dequantize(ty, raw, &mut found);
        for (i, (found, exact)) in found.iter().zip(exact.as_chunks().0).enumerate() {
            let exact = f32::from_le_bytes(*exact);
            assert_eq!(found.to_bits(), exact.to_bits(), "{ty}[{i}]: {found} is not {exact}");
        }
        seen.push(ty);
    }
    seen.sort();
    let mut all = TensorType::ALL;
    all.sort();
    assert_eq!(seen, all, "the reference holds every type");
}

proptest! {
    /// Any block can be read, because bytes from a file are not trusted.
    #[test]
    fn any_bytes_can_be_dequantized(
        ty in prop::sample::select(TensorType::ALL.to_vec()),
        bytes in prop::collection::vec(any::<u8>(), 1024),
    ) {
        let mut out = vec![0.0; 256];
        dequantize(ty, &bytes[..ty.row_bytes(256).unwrap()], &mut out);
    }
}
