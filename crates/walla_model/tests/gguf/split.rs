//! A split model reads like the whole one, and parts that do not make a model are named.

use std::fs::{self, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;
use walla_doubles::synth::{self, Mixture, Model};
use walla_model::gguf::{FileKind, PartError, Writer};
use walla_model::spec::FeedForward;
use walla_model::tokenizer::Tokenizer;
use walla_model::{Gguf, GgufError, ModelSpec, TensorError, Value};

fn whole() -> Gguf {
    Gguf::from_bytes(synth::write(&Model::TINY, Mixture::Q8_0, 1, Vec::new()).unwrap()).unwrap()
}

/// A folder with the parts of a model.
struct Parts {
    folder: TempDir,
    parts: usize,
}

impl Parts {
    fn new(whole: &Gguf, part_tensors: &[usize]) -> Self {
        let parts = Self { folder: tempfile::tempdir().unwrap(), parts: part_tensors.len() };
        for (part, bytes) in (1..).zip(synth::split(whole, part_tensors).unwrap()) {
            fs::write(parts.path(part), bytes).unwrap();
        }
        parts
    }

    /// The whole model in three parts.
    fn three() -> Self {
        Self::new(&whole(), &[3, 8, whole().tensors().len() - 11])
    }

    fn path(&self, part: usize) -> PathBuf {
        self.folder.path().join(synth::part_name("tiny", part, self.parts))
    }

    fn open(&self) -> Result<Gguf, GgufError> {
        Gguf::open(self.path(1))
    }

    fn refusal(&self) -> GgufError {
        self.open().unwrap_err()
    }

    /// The defect of a part, which the error names with its path.
    fn defect(&self, part: usize) -> PartError {
        match self.refusal() {
            GgufError::Split { path, source } => {
                assert_eq!(path, self.path(part));
                source
            }
            other => panic!("{other}"),
        }
    }

    /// Replaces a part by one with other values of keys.
    fn rewrite(&self, part: usize, changes: &[(&str, Option<Value<'_>>)]) {
        let file = Gguf::from_bytes(fs::read(self.path(part)).unwrap()).unwrap();
        let keys: Vec<&str> = changes.iter().map(|(key, _)| *key).collect();
        let changed = synth::rewrite(&file, &keys, |writer| {
            for (key, value) in changes {
                value.map(|value| writer.value(key, value));
            }
        });
        fs::write(self.path(part), changed.unwrap()).unwrap();
    }
}

fn is_of_parts(key: &str) -> bool {
    key.starts_with("split.")
}

fn assert_same(split: &Gguf, whole: &Gguf) {
    assert_eq!(whole.parts(), 1);
    assert!(split.metadata().filter(|(key, _)| !is_of_parts(key)).eq(whole.metadata()));
    assert!(split.tensors().eq(whole.tensors()));
    assert_eq!(split.tensors().len(), whole.tensors().len());
    for (index, tensor) in whole.tensors().enumerate() {
        assert_eq!(split.find_tensor(tensor.name), Some(index));
        assert_eq!(split.tensor(index), Some(tensor));
        assert_eq!(split.tensor_bytes(index), whole.tensor_bytes(index), "{}", tensor.name);
    }
    assert_eq!(split.tensor(whole.tensors().len()), None);
    assert_eq!(split.find_tensor("no such tensor"), None);
    let spec = ModelSpec::from_gguf(whole, 64).unwrap();
    assert_eq!(ModelSpec::from_gguf(split, 64).as_ref(), Ok(&spec));
    let FeedForward::Dense(feed_forward) = &spec.layers[1].feed_forward else { panic!("dense") };
    for matrix in [spec.embedding, feed_forward.down.matrix] {
        assert_eq!(split.matrix_bytes(&matrix), whole.matrix_bytes(&matrix));
    }
    let norm = spec.output_norm.weight;
    assert_eq!(split.vector(&norm), whole.vector(&norm));
    assert!(split.warnings().is_empty());
    assert!(Tokenizer::from_gguf(split).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Any cut, also with parts without tensors.
    #[test]
    fn a_split_model_reads_like_the_whole_one(cuts in prop::collection::vec(0..23_usize, 1..6)) {
        let whole = whole();
        let tensors = whole.tensors().len();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (tensors + 1)).collect();
        cuts.extend([0, tensors]);
        cuts.sort_unstable();
        let sizes: Vec<usize> = cuts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let parts = Parts::new(&whole, &sizes);
        let split = parts.open().unwrap();
        prop_assert_eq!(split.parts(), sizes.len());
        let bytes = |n| fs::metadata(parts.path(n)).unwrap().len();
        let bytes: u64 = (1..=sizes.len()).map(bytes).sum();
        prop_assert_eq!(split.file_bytes(), bytes);
        assert_same(&split, &whole);
        assert_same(&split.keep().unwrap().open().unwrap(), &whole);
        prop_assert!(synth::rewrite(&split, &[], |_| ()).unwrap()
            == synth::rewrite(&whole, &[], |_| ()).unwrap());
    }
}

#[test]
fn another_alignment_of_the_first_part_is_its_own() {
    let aligned = synth::rewrite(&whole(), &[], |w| _ = w.u32("general.alignment", 256)).unwrap();
    let whole = Gguf::from_bytes(aligned).unwrap();
    let parts = Parts::new(&whole, &[5, whole.tensors().len() - 5]);
    assert_same(&parts.open().unwrap(), &whole);
}

#[test]
fn a_later_part_names_the_first() {
    let parts = Parts::three();
    let error = Gguf::open(parts.path(2)).unwrap_err();
    let first = "tiny-00001-of-00003.gguf".to_owned();
    let source = PartError::NotFirst { part: 2, parts: 3, first };
    assert!(matches!(&error, GgufError::Split { source: its, .. } if *its == source), "{error}");
    let message = error.to_string();
    assert!(message.ends_with("load the first part, tiny-00001-of-00003.gguf"), "{message}");
    // With another name of the file.
    let other = parts.folder.path().join("other.gguf");
    fs::rename(parts.path(3), &other).unwrap();
    let message = Gguf::open(other).unwrap_err().to_string();
    let expected = "part 3 of 3 of a split model: load the first part, whose name ends in \
                    -00001-of-00003.gguf";
    assert!(message.ends_with(expected), "{message}");
}

#[test]
fn a_first_part_with_another_name_is_refused_with_advice() {
    let parts = Parts::three();
    for name in ["model.gguf", "tiny-00001-of-00002.gguf", "tiny-00002-of-00003.gguf"] {
        let path = parts.folder.path().join(name);
        fs::copy(parts.path(1), &path).unwrap();
        let error = Gguf::open(&path).unwrap_err();
        let ending = "-00001-of-00003.gguf".to_owned();
        let source = PartError::Name { parts: 3, ending };
        assert!(
            matches!(&error, GgufError::Split { source: its, .. } if *its == source),
            "{error}"
        );
        assert!(error.to_string().contains("llama-gguf-split --merge"), "{error}");
    }
}

#[test]
fn a_missing_part_names_its_file() {
    let parts = Parts::three();
    fs::remove_file(parts.path(2)).unwrap();
    assert_eq!(parts.defect(2), PartError::Missing { part: 2, parts: 3 });
    let message = parts.refusal().to_string();
    assert!(message.contains("tiny-00002-of-00003.gguf: part 2 of 3 of the model"), "{message}");
    fs::create_dir(parts.path(2)).unwrap();
    let error = parts.refusal();
    let GgufError::NotAFile { path, kind: FileKind::Directory { .. } } = &error else {
        panic!("{error}")
    };
    assert_eq!(*path, parts.path(2));
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let tensors = whole().tensors().len() as u64;
    let foreign = |key, found: &str, expected, part| PartError::Foreign {
        key,
        found: found.to_owned(),
        expected,
        part,
    };
    let spoilt = |key: &str, value: Option<Value<'_>>| {
        let parts = Parts::three();
        parts.rewrite(3, &[(key, value)]);
        parts.defect(3)
    };
    assert_eq!(spoilt("split.count", Some(Value::U16(4))), foreign("split.count", "4", 3, 3));
    assert_eq!(spoilt("split.count", None), foreign("split.count", "missing", 3, 3));
    assert_eq!(spoilt("split.no", Some(Value::U16(1))), foreign("split.no", "1", 2, 3));
    let negative = Some(Value::I32(-1));
    assert_eq!(spoilt("split.no", negative), foreign("split.no", "-1", 2, 3));
    let more = Some(Value::I32(99));
    assert_eq!(
        spoilt("split.tensors.count", more),
        foreign("split.tensors.count", "99", tensors, 3)
    );
    // Parts in the place of others.
    let parts = Parts::three();
    fs::copy(parts.path(3), parts.path(2)).unwrap();
    assert_eq!(parts.defect(2), foreign("split.no", "2", 1, 2));
    fs::copy(parts.path(1), parts.path(2)).unwrap();
    assert_eq!(parts.defect(2), foreign("split.no", "0", 1, 2));
    // A part of the same model that was cut in another way: it has a tensor twice.
    let parts = Parts::three();
    let other = Parts::new(&whole(), &[3, 7, whole().tensors().len() - 10]);
    fs::copy(other.path(3), parts.path(3)).unwrap();
    let PartError::Duplicate { tensor, other: first } = parts.defect(3) else { panic!("no error") };
    assert_eq!((&*tensor, first), (whole().tensor(10).unwrap().name, parts.path(2)));
    // The other way round, it lacks one.
    let parts = Parts::three();
    fs::copy(other.path(2), parts.path(2)).unwrap();
    let error = PartError::Tensors { parts: 3, found: tensors - 1, expected: tensors };
    assert_eq!(parts.defect(1), error);
}

#[test]
fn impossible_numbers_of_parts_are_refused() {
    let open = |key: &str, value: Value<'_>| {
        let parts = Parts::three();
        parts.rewrite(1, &[(key, Some(value))]);
        parts.open().unwrap_err().to_string()
    };
    let message = open("split.count", Value::U64(u64::MAX));
    assert!(message.contains("a model in 18446744073709551615 parts, at most 512"), "{message}");
    let message = open("split.no", Value::String("first"));
    assert!(message.contains("key \"split.no\" holds a STRING, expected an integer"), "{message}");
    let message = open("split.tensors.count", Value::F32(1.0));
    assert!(message.contains("key \"split.tensors.count\" holds FLOAT32 1"), "{message}");
    // The wrong type of a count concerns the specification only.
    let parts = Parts::three();
    parts.rewrite(1, &[("split.count", Some(Value::String("three")))]);
    let alone = parts.open().unwrap();
    assert_eq!(alone.parts(), 1);
    let message = ModelSpec::from_gguf(&alone, 1).unwrap_err().to_string();
    assert!(message.contains("key \"split.count\" holds a STRING"), "{message}");
}

#[test]
fn a_part_without_the_others_is_no_model() {
    let parts = Parts::three();
    let first = Gguf::from_bytes(fs::read(parts.path(1)).unwrap()).unwrap();
    assert_eq!((first.parts(), first.tensors().len()), (1, 3));
    let message = ModelSpec::from_gguf(&first, 1).unwrap_err().to_string();
    assert!(message.starts_with("this is part 1 of 3 of a split model, without"), "{message}");
    assert!(Tokenizer::from_gguf(&first).is_ok(), "it has the vocabulary");
}

#[test]
fn a_damaged_part_is_named() {
    let parts = Parts::three();
    let good = fs::read(parts.path(2)).unwrap();
    for len in (0..good.len()).step_by(good.len() / 40).chain([good.len() - 1]) {
        fs::write(parts.path(2), &good[..len]).unwrap();
        let error = parts.refusal();
        let GgufError::Part { path, source } = &error else { panic!("{error}") };
        assert_eq!((path, error.path()), (&parts.path(2), Some(&*parts.path(2))));
        let message = Gguf::from_bytes(&good[..len]).unwrap_err().to_string();
        assert_eq!((source.to_string(), error.to_string()), {
            (message.clone(), format!("{}: {message}", parts.path(2).display()))
        });
    }
    fs::write(parts.path(2), b"version https://git-lfs.github.com/spec/v1\n").unwrap();
    assert!(parts.refusal().to_string().contains("git lfs pull"), "{}", parts.refusal());
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    let mut file = OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(bytes).unwrap();
}

/// Each part can be shortened, replaced or overwritten while the model is open.
#[test]
fn changes_of_every_part_are_errors_that_name_it() {
    for part in 1..=3 {
        let parts = Parts::three();
        let path = parts.path(part);
        let gguf = parts.open().unwrap();
        let kept = gguf.keep().unwrap();
        kept.check().unwrap();
        assert_eq!((kept.path(), kept.touched()), (Some(&*parts.path(1)), None));
        let whole = fs::read(&path).unwrap();
        // The last byte belongs to the last tensor of the part.
        let last = [2, 10, gguf.tensors().len() - 1][part - 1];
        let bytes = gguf.tensor_bytes(last).unwrap().into_owned();
        overwrite(&path, whole.len() as u64 - 1, &[!whole[whole.len() - 1]]);
        let error = kept.open().unwrap_err();
        assert!(matches!(&error, GgufError::Modified { path: its, .. } if *its == path), "{error}");
        overwrite(&path, 60, &[!whole[60]]);
        let error = kept.check().unwrap_err();
        assert!(error.to_string().contains("metadata or tensor table"), "{error}");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for len in [whole.len() - 1, 40, 0] {
            file.set_len(len as u64).unwrap();
            let error = gguf.tensor_bytes(last).unwrap_err();
            let TensorError::Truncated { path: its, tensor, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!((its, &**tensor), (&path, gguf.tensor(last).unwrap().name));
            let error = kept.check().unwrap_err();
            assert!(matches!(&error, GgufError::Changed { path: its, .. } if *its == path));
        }
        // The same contents again.
        fs::write(&path, &whole).unwrap();
        assert_eq!(kept.open().unwrap().tensor_bytes(last).unwrap(), bytes);
        // A rename of another file over the part, and its removal, have no effect. Wine 8 knows no
        // renames over open files.
        if cfg!(not(windows)) {
            fs::write(parts.folder.path().join("new"), b"new").unwrap();
            fs::rename(parts.folder.path().join("new"), &path).unwrap();
            assert_eq!(gguf.tensor_bytes(last).unwrap(), bytes);
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(kept.open().unwrap().tensor_bytes(last).unwrap(), bytes);
        assert_eq!(kept.open().unwrap().parts(), 3);
    }
}

#[test]
fn a_file_in_memory_can_be_kept() {
    let kept = whole().keep().unwrap();
    assert_eq!((kept.path(), kept.touched()), (None, None));
    assert_same(&kept.open().unwrap(), &whole());
}

#[test]
fn a_directory_names_the_first_part() {
    let parts = Parts::three();
    let message = |parts: &Parts| Gguf::open(parts.folder.path()).unwrap_err().to_string();
    let expected = "this is a directory with the parts of one model: name the first part \
                    (tiny-00001-of-00003.gguf)";
    assert!(message(&parts).ends_with(expected), "{}", message(&parts));
    fs::write(parts.folder.path().join("other.gguf"), b"").unwrap();
    let both = "name the model file in it (other.gguf, tiny-00001-of-00003.gguf)";
    assert!(message(&parts).ends_with(both), "{}", message(&parts));
    fs::remove_file(parts.folder.path().join("other.gguf")).unwrap();
    fs::remove_file(parts.path(1)).unwrap();
    let later = "name the model file in it (tiny-00002-of-00003.gguf, tiny-00003-of-00003.gguf)";
    assert!(message(&parts).ends_with(later), "{}", message(&parts));
}

#[test]
fn a_model_of_one_part_is_a_whole_one() {
    let whole = whole();
    let parts = Parts::new(&whole, &[whole.tensors().len()]);
    let other = parts.folder.path().join("any name.gguf");
    fs::rename(parts.path(1), &other).unwrap();
    assert_same(&Gguf::open(other).unwrap(), &whole);
    assert!(synth::split(&whole, &[1, 2]).is_err() && synth::split(&whole, &[]).is_err());
}

/// Tensors of parts share one limit.
#[test]
fn the_number_of_tensors_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    for part in 0..2_u16 {
        let mut writer = Writer::new();
        writer.value("split.no", Value::U16(part)).value("split.count", Value::U16(2));
        for tensor in 0..20_000 {
            writer.tensor(&format!("{part} {tensor}"), walla_types::TensorType::F32, &[1]);
        }
        let mut data = writer.begin(Vec::new()).unwrap();
        (0..20_000).for_each(|_| data.tensor(&[0; 4]).unwrap());
        let name = synth::part_name("m", usize::from(part) + 1, 2);
        fs::write(folder.path().join(name), data.finish().unwrap()).unwrap();
    }
    let message = Gguf::open(folder.path().join("m-00001-of-00002.gguf")).unwrap_err().to_string();
    assert!(message.contains("tensors of all parts together: 40000, at most 32768"), "{message}");
}
