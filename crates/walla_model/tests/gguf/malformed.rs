//! For any bytes, the result is a value or an error that names the defect.

use crate::gguf_common::{ARRAY, BOOL, Raw, RawTensor, STRING, U8, U32, array, text};
use proptest::prelude::*;
use walla_doubles::synth::{self, Mixture, Model};
use walla_model::{
    Gguf, GgufError, MetadataError, ModelSpec, Value,
    gguf::{Foreign, Strings},
};
use walla_types::{TensorType, UnknownTensorType};

fn error(bytes: Vec<u8>) -> GgufError {
    Gguf::from_bytes(bytes).expect_err("this file is bad")
}

/// Reads everything in a file.
fn exercise(bytes: &[u8]) {
    let Ok(gguf) = Gguf::from_bytes(bytes) else { return };
    for (key, value) in gguf.metadata() {
        assert!(gguf.get(key).is_some());
        value.to_string();
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len());
        }
    }
    for (index, tensor) in gguf.tensors().enumerate() {
        assert!(gguf.find_tensor(tensor.name).is_some());
        gguf.tensor_bytes(index).map(|bytes| bytes.len()).ok();
    }
    if let Ok(spec) = ModelSpec::from_gguf(&gguf, 1024) {
        gguf.matrix_bytes(&spec.embedding).unwrap();
        gguf.vector(&spec.output_norm.weight).unwrap();
    }
}

#[test]
fn the_valid_file_is_accepted() {
    let gguf = Gguf::from_bytes(Raw::good().bytes()).unwrap();
    assert_eq!(gguf.require::<&str>("general.name"), Ok("good"));
    let words: Strings<'_> = gguf.require("words").unwrap();
    assert_eq!(words.iter().collect::<Vec<_>>(), ["one", "zwölf"]);
    assert_eq!(gguf.tensor_bytes(1).unwrap()[..], [0x11; 32]);
    assert!(Gguf::from_bytes(Raw::good().with(|f| f.version = 2)).is_ok());
    assert!(Gguf::from_bytes(Raw::good().with(|f| f.data.push(0))).is_ok());
}

#[test]
fn a_file_without_tensors_needs_no_padding() {
    let bytes = Raw { tensors: Vec::new(), data: Vec::new(), ..Raw::good() }.header();
    assert_ne!(bytes.len() % 32, 0);
    assert_eq!(Gguf::from_bytes(bytes).unwrap().tensors().len(), 0);
}

#[test]
fn every_prefix_is_an_error() {
    let good = Raw::good().bytes();
    for len in 0..good.len() {
        assert!(Gguf::from_bytes(&good[..len]).is_err(), "the first {len} bytes");
    }
}

#[test]
fn no_flipped_bit_in_the_header_panics() {
    let tiny = Model {
        width: 32,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        hidden: 32,
        ..Model::LLAMA_3_2_1B
    };
    let tiny = Model { vocab: 260, ..tiny };
    let model = synth::write(&tiny, Mixture::Q8_0, 1, Vec::new()).unwrap();
    assert!(ModelSpec::from_gguf(&Gguf::from_bytes(&model[..]).unwrap(), 1).is_ok());
    let raw = Raw::good();
    // The model's data is the last 16 kB of the file; flips in it change numbers, not structure.
    let weights = usize::try_from(synth::weight_bytes(&tiny, Mixture::Q8_0)).unwrap();
    for (file, header) in
        [(raw.bytes(), raw.header().len()), (model.clone(), model.len() - weights)]
    {
        let mut file = file;
        for at in 0..header {
            for bit in 0..8 {
                file[at] ^= 1 << bit;
                exercise(&file);
                file[at] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn bad_preambles() {
    assert!(matches!(error(Vec::new()), GgufError::Foreign(Foreign::Empty)));
    assert!(matches!(error(b"GG\xff".to_vec()), GgufError::Truncated { what: "magic", .. }));
    assert!(matches!(error(b"gg\0l....".to_vec()), GgufError::Magic(m) if &m == b"gg\0l"));
    for version in [0, 1, 4, u32::MAX] {
        let bytes = Raw::good().with(|f| f.version = version);
        assert!(matches!(error(bytes), GgufError::Version(v) if v == version));
    }
    let swapped = Raw::good().with(|f| f.version = 3_u32.swap_bytes());
    assert!(matches!(error(swapped), GgufError::BigEndian));
}

#[test]
fn counts_are_compared_with_the_file() {
    for count in [1 << 15, 1000] {
        let bytes = Raw::good().with(|f| f.entry_count = Some(count));
        assert!(matches!(error(bytes), GgufError::Truncated { what: "metadata count", .. }));
        let bytes = Raw::good().with(|f| f.tensor_count = Some(count));
        assert!(matches!(error(bytes), GgufError::Truncated { what: "tensor count", .. }));
    }
    for count in [(1 << 15) + 1, 1 << 60, u64::MAX] {
        let bytes = Raw::good().with(|f| f.entry_count = Some(count));
        assert!(matches!(error(bytes), GgufError::TooLarge { what: "metadata count", .. }));
        let bytes = Raw::good().with(|f| f.tensor_count = Some(count));
        assert!(matches!(error(bytes), GgufError::TooLarge { what: "tensor count", .. }));
    }
    // Each fits alone, but not both together.
    let bytes = Raw::good().with(|f| (f.entry_count, f.tensor_count) = (Some(15), Some(8)));
    assert!(matches!(error(bytes), GgufError::Truncated { what: "header", .. }));
}

#[test]
fn lengths_are_compared_with_the_file() {
    for len in [1000, u64::from(u32::MAX), 1 << 60, u64::MAX] {
        let of_key = |found: GgufError| match found {
            GgufError::Key { key, reason } => {
                let is_bound = ["remain in the file", ", at most "].map(|end| reason.contains(end));
                assert!(key == "k" && is_bound.contains(&true), "{key}: {reason}");
            }
            other => panic!("{other}"),
        };
        of_key(error(Raw::good().with(|f| f.entry(b"k", STRING, &len.to_le_bytes()))));
        for code in [U8, U32, STRING, ARRAY, 12] {
            let value = |f: &mut Raw| f.entry(b"k", ARRAY, &array(code, len, &[]));
            of_key(error(Raw::good().with(value)));
            let inner = array(code, len, &[]);
            let nested = |f: &mut Raw| f.entry(b"k", ARRAY, &array(ARRAY, 1, &inner));
            of_key(error(Raw::good().with(nested)));
        }
    }
    let key = vec![b'k'; 65_536];
    let found = error(Raw::good().with(|f| f.entry(&key, BOOL, &[1])));
    assert!(matches!(found, GgufError::TooLarge { what: "key", found: 65_536, .. }));
    let name = "n".repeat(65);
    let found = error(Raw::good().with(|f| f.tensors[0].name = name.clone().into()));
    assert!(matches!(found, GgufError::TooLarge { what: "tensor name", found: 65, .. }));
}

/// One change to the valid file per case, and the expected message.
#[test]
fn every_rule_has_its_message() {
    type Change = fn(&mut Raw);
    let cases: &[(&str, Change)] = &[
        (r#"key "general.alignment": it appears twice"#, |f| {
            f.entry(b"general.alignment", U32, &32_u32.to_le_bytes());
            f.entry(b"general.alignment", U32, &32_u32.to_le_bytes());
        }),
        (r#"key "k": 13 is no metadata type"#, |f| f.entry(b"k", 13, &[0; 8])),
        (r#"key "k": 4294967295 is no metadata type"#, |f| f.entry(b"k", u32::MAX, &[0; 8])),
        (r#"key "k�": 13 is no metadata type"#, |f| f.entry(b"k\xff", 13, &[0; 8])),
        (r#"key "k": 99 is no metadata type"#, |f| f.entry(b"k", ARRAY, &array(99, 1, &[0]))),
        (r#"key "k": 99 is no metadata type"#, |f| {
            f.entry(b"k", ARRAY, &array(ARRAY, 1, &array(99, 1, &[0])));
        }),
        (r#"key "k": arrays are nested more than 8 levels deep"#, |f| {
            let nested = (0..9).fold(array(U8, 0, &[]), |inner, _| array(ARRAY, 1, &inner));
            f.entry(b"k", ARRAY, &nested);
        }),
        (r#"tensor "a": it appears twice"#, |f| f.tensors[1].name = b"a".to_vec()),
        ("tensor name at byte", |f| f.tensors[1].name.clear()),
        ("tensor name at byte", |f| f.tensors[1].name = vec![0xff]),
        (r#"tensor "b": 0 dimensions"#, |f| f.tensors[1].dims.clear()),
        (r#"tensor "b": 5 dimensions"#, |f| f.tensors[1].dims = vec![1; 5]),
        (r#"tensor "b": shape [4, 0]: a dimension is 0"#, |f| f.tensors[1].dims[1] = 0),
        ("its size overflows", |f| f.tensors[1].dims = vec![1 << 32, 1 << 32]),
        ("its size overflows", |f| f.tensors[1].dims = vec![1 << 62, 1]),
        ("its size overflows", |f| f.tensors[1].dims = vec![2, 1 << 21, 1 << 21, 1 << 21]),
        ("rows of 4 numbers are no whole number of 32-number blocks", |f| f.tensors[1].code = 8),
        ("rows of 32 numbers are no whole number of 256-number blocks", |f| {
            f.tensors[1] = RawTensor::new("b", &[32, 8], 12, 32);
        }),
        ("offset 33 is no multiple of the alignment 32", |f| f.tensors[1].offset = 33),
        (r#"tensor "b": 32 bytes at offset 64 of the data, which has 64"#, |f| {
            f.tensors[1].offset = 64;
        }),
        ("at offset 18446744073709551584", |f| f.tensors[1].offset = u64::MAX - 31),
        ("which has 63", |f| f.data.truncate(63)),
        (r#"tensors "a" and "b" overlap"#, |f| f.tensors[0].dims = vec![9]),
        (r#"tensors "b" and "a" overlap"#, |f| {
            f.tensors[1].offset = 0;
            f.tensors[1].dims = vec![4];
            f.tensors.swap(0, 1);
        }),
    ];
    for (expected, change) in cases {
        let found = error(Raw::good().with(change)).to_string();
        assert!(found.contains(expected), "{expected:?} is not in {found:?}");
    }
}

#[test]
fn alignment_is_a_power_of_two_up_to_a_mebibyte() {
    let with = |value: u32| {
        move |f: &mut Raw| {
            f.entry(b"general.alignment", U32, &value.to_le_bytes());
            f.alignment = 1 << 20;
            f.tensors.truncate(1);
        }
    };
    for bad in [0, 1, 4, 7, 13, 24, 1 << 21, 1 << 31, u32::MAX] {
        assert!(matches!(error(Raw::good().with(with(bad))), GgufError::Alignment { .. }), "{bad}");
    }
    for good in [8, 16, 32, 4096, 1 << 20] {
        let gguf = Gguf::from_bytes(Raw::good().with(with(good))).unwrap();
        assert_eq!(gguf.alignment(), u64::from(good));
    }
    let wrong_type = |f: &mut Raw| f.entry(b"general.alignment", STRING, &text(b"32"));
    assert!(
        matches!(error(Raw::good().with(wrong_type)), GgufError::Alignment { found } if found == "a STRING")
    );
    let wrong_type = |f: &mut Raw| f.entry(b"general.alignment", 10, &32_u64.to_le_bytes());
    assert!(
        matches!(error(Raw::good().with(wrong_type)), GgufError::Alignment { found } if found == "UINT64")
    );
}

#[test]
fn an_unknown_tensor_type_can_be_listed_but_not_used() {
    let bytes = Raw::good().with(|f| f.tensors[1].code = 21);
    let gguf = Gguf::from_bytes(bytes).unwrap();
    let tensor = gguf.tensor(1).unwrap();
    assert_eq!((tensor.name, tensor.ty), ("b", Err(UnknownTensorType(21))));
    assert_eq!(tensor.to_string(), "IQ3_S [4, 2]");
    let message = gguf.tensor_bytes(1).unwrap_err().to_string();
    assert!(message.starts_with(r#"tensor "b": tensor type IQ3_S is not supported"#), "{message}");
    let bytes = Raw::good().with(|f| f.tensors[1].code = 99);
    let gguf = Gguf::from_bytes(bytes).unwrap();
    assert_eq!(gguf.tensor(1).unwrap().to_string(), "type 99 [4, 2]");
}

#[test]
fn getter_errors_name_key_expected_and_found_type() {
    let gguf = Gguf::from_bytes(Raw::good().bytes()).unwrap();
    let message = |result: Result<u32, MetadataError>| result.unwrap_err().to_string();
    let integer = "an integer in 0..=4294967295";
    assert_eq!(
        message(gguf.require("none")),
        format!(r#"key "none" is missing, expected {integer}"#)
    );
    assert_eq!(
        message(gguf.require("flag")),
        format!(r#"key "flag" holds BOOL true, expected {integer}"#)
    );
    assert_eq!(
        gguf.require::<Strings<'_>>("bytes").unwrap_err().to_string(),
        r#"key "bytes" holds an ARRAY of 3 UINT8, expected an ARRAY of STRING"#
    );
    assert_eq!(gguf.find::<u32>("none"), Ok(None));
    assert!(gguf.find::<bool>("count").is_err());
}

#[test]
fn paths_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("empty.gguf");
    for bad in [dir.path(), &dir.path().join("none.gguf")] {
        let message = Gguf::open(bad).unwrap_err().to_string();
        assert!(message.starts_with(&bad.display().to_string()), "{message}");
    }
    std::fs::write(&path, []).unwrap();
    assert!(matches!(Gguf::open(&path), Err(GgufError::Foreign(Foreign::Empty))));
}

#[test]
fn a_deleted_file_stays_readable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, Raw::good().bytes()).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    if std::fs::remove_file(&path).is_ok() {
        assert_eq!(gguf.tensor_bytes(1).unwrap()[..], [0x11; 32]);
    }
}

/// Size of a tensor, in arithmetic that cannot overflow.
fn oracle(dims: &[u64], ty: TensorType) -> Option<u128> {
    let row = u128::from(dims[0]);
    let block = ty.block_elements() as u128;
    if dims.contains(&0) || !row.is_multiple_of(block) {
        return None;
    }
    let rows: u128 = dims[1..].iter().map(|&d| u128::from(d)).try_fold(1, u128::checked_mul)?;
    (row / block * ty.block_bytes() as u128).checked_mul(rows)
}

proptest! {
    #[test]
    fn sizes_agree_with_wide_arithmetic(
        dims in prop::collection::vec(
            prop_oneof![
                0..4_u64, Just(32), Just(256), (0..64_u32).prop_map(|s| 1 << s), any::<u64>()
            ],
            1..=4,
        ),
        ty in prop::sample::select(TensorType::ALL.to_vec()),
        available in 0..5000_usize,
    ) {
        let bytes = Raw::good().with(|f| {
            f.tensors = vec![RawTensor::new("t", &dims, ty.to_ggml(), 0)];
            f.data = vec![0; available];
        });
        let fits = oracle(&dims, ty).is_some_and(|needed| needed <= available as u128);
        match Gguf::from_bytes(bytes) {
            Ok(gguf) => {
                prop_assert!(fits);
                let found = gguf.tensor_bytes(0).unwrap().len() as u128;
                prop_assert_eq!(Some(found), oracle(&dims, ty));
            }
            Err(found) => prop_assert!(!fits, "{found}"),
        }
    }

    #[test]
    fn placement_agrees_with_wide_arithmetic(
        offsets in prop::collection::vec(prop_oneof![0..12_u64, Just(u64::MAX / 32)], 1..6),
        numbers in prop::collection::vec(1..40_u64, 6),
    ) {
        let tensors: Vec<_> = offsets.iter().zip(&numbers).enumerate()
            .map(|(i, (offset, n))| RawTensor::new(&i.to_string(), &[*n], 0, offset * 32))
            .collect();
        let spans: Vec<_> = tensors.iter()
            .map(|t| u128::from(t.offset)..u128::from(t.offset) + 4 * u128::from(t.dims[0]))
            .collect();
        let inside = spans.iter().all(|s| s.end <= 320);
        let apart = spans.iter().enumerate().all(|(i, a)| {
            spans[i + 1..].iter().all(|b| a.end <= b.start || b.end <= a.start)
        });
        let bytes = Raw::good().with(|f| {
            f.tensors = tensors;
            f.data = vec![0; 320];
        });
        prop_assert_eq!(Gguf::from_bytes(bytes).is_ok(), inside && apart);
    }

    #[test]
    fn random_bytes_after_a_sound_start_never_panic(
        start in 0..300_usize,
        noise in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut file = Raw::good().bytes();
        let start = start.min(file.len());
        let end = (start + noise.len()).min(file.len());
        file[start..end].copy_from_slice(&noise[..end - start]);
        exercise(&file);
    }
}
