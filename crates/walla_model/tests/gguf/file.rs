//! A file on disk reads like its bytes in memory, also after another process changed it.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use crate::gguf_common::{ARRAY, Raw, STRING, U8, U32, array, text};
use walla_doubles::synth::{self, Mixture, Model};
use walla_model::{Gguf, GgufError, ModelSpec, TensorError};

fn in_folder(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn shorten(path: &Path, len: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

/// The contents of a file as text.
fn content(result: Result<Gguf, GgufError>) -> String {
    let gguf = match result {
        Ok(gguf) => gguf,
        Err(error) => return error.to_string(),
    };
    let entries: Vec<String> =
        gguf.metadata().map(|(key, value)| format!("{key} = {value:?}")).collect();
    let tensors: Vec<_> = gguf
        .tensors()
        .enumerate()
        .map(|(i, tensor)| format!("{} {tensor} {:?}", tensor.name, gguf.tensor_bytes(i)))
        .collect();
    let warnings: Vec<_> = gguf.warnings();
    let lists = [entries.join("\n"), tensors.join("\n"), warnings.join("\n")];
    format!("{} bytes\n{}", gguf.file_bytes(), lists.join("\n"))
}

fn assert_reads_alike(bytes: &[u8], what: &str) {
    let (_folder, path) = in_folder(bytes);
    let expected = content(Gguf::from_bytes(bytes));
    assert!(content(Gguf::open(&path)) == expected, "{what}: {expected:.200}");
}

#[test]
fn small_files_read_the_same_as_their_bytes() {
    let good = Raw::good().bytes();
    for len in (0..=good.len()).step_by(7).chain([good.len()]) {
        assert_reads_alike(&good[..len], &format!("the first {len} bytes"));
    }
    assert_reads_alike(&Raw::good().with(|f| f.data.push(0)), "a byte more");
    let no_tensors = Raw { tensors: Vec::new(), data: Vec::new(), ..Raw::good() };
    assert_reads_alike(&no_tensors.header(), "no padding");
    assert_reads_alike(&Raw::good().with(|f| f.alignment = 64), "other places");
}

/// Headers are read in steps, the first of 1 MiB. Each part of a header crosses the end of a step
/// once.
#[test]
fn large_headers_read_the_same_as_their_bytes() {
    const STEP: usize = 1 << 20;
    let header = |padding: usize| {
        Raw::good().with(|f| {
            f.entries.insert(0, (b"padding".to_vec(), STRING, text(&vec![b'x'; padding])));
            // An array of an unsupported type, and a key that is not UTF-8.
            f.entry(b"nested", ARRAY, &array(ARRAY, 2, &array(U8, 2, b"ab").repeat(2)));
            f.entry(b"key \xff", STRING, &text(b"x"));
        })
    };
    let before = header(0).len() - Raw::good().data.len();
    // The end of the first step moves across everything after the padding.
    for back in (0..before).step_by(3) {
        let bytes = header(STEP - back);
        assert_reads_alike(&bytes, &format!("{back} bytes before the end of a step"));
    }
    let words = array(STRING, 500_000, &text("zwölf".as_bytes()).repeat(500_000));
    let large = Raw::good().with(|f| f.entry(b"vocabulary", ARRAY, &words));
    assert!(large.len() > 6 * STEP);
    let cuts = [STEP - 1, STEP, STEP + 1, 2 * STEP, 4 * STEP + 1, large.len() - 1, large.len()];
    for len in cuts {
        assert_reads_alike(&large[..len], &format!("the first {len} bytes"));
    }
    // A defect beyond the first step.
    let mut wrong = large.clone();
    wrong[5 * STEP] = 0xff;
    assert_reads_alike(&wrong, "no text");
}

/// A header is held in memory, so its size is bounded. The test files are sparse.
#[test]
fn a_header_of_gigabytes_is_refused_without_reading_it() {
    let claims: [(&str, Vec<u8>); 3] = [
        (
            "string",
            Raw::good().with(|f| {
                f.entries
                    .insert(0, (b"k".to_vec(), STRING, (300_u64 << 20).to_le_bytes().to_vec()));
            }),
        ),
        (
            "array length",
            Raw::good().with(|f| {
                f.entries.insert(0, (b"k".to_vec(), ARRAY, array(U8, 300 << 20, &[])));
            }),
        ),
        (
            "array",
            Raw::good().with(|f| {
                f.entries.insert(0, (b"k".to_vec(), ARRAY, array(U32, 70 << 20, &[])));
            }),
        ),
    ];
    for (what, bytes) in claims {
        let (_folder, path) = in_folder(&bytes);
        OpenOptions::new().write(true).open(&path).unwrap().set_len(3 << 30).unwrap();
        let error = Gguf::open(&path).unwrap_err();
        let GgufError::Key { key, reason } = &error else { panic!("{error}") };
        assert_eq!(key, "k");
        let is_bound = reason.ends_with(&format!("at most {}", 256 << 20));
        assert!(reason.starts_with(what) && is_bound, "{error}");
    }
}

#[test]
fn truncation_after_opening_is_an_error_that_names_file_and_tensor() {
    let bytes = synth::write(&Model::TINY, Mixture::Q8_0, 1, Vec::new()).unwrap();
    let (_folder, path) = in_folder(&bytes);
    let gguf = Gguf::open(&path).unwrap();
    let spec = ModelSpec::from_gguf(&gguf, 1).unwrap();
    let (weights, whole) = (gguf.matrix_bytes(&spec.embedding).unwrap(), bytes.len() as u64);
    for len in [whole / 2, 100, 0] {
        shorten(&path, len);
        let last = gguf.tensors().len() - 1;
        let error = gguf.tensor_bytes(last).unwrap_err();
        let (name, text) = (gguf.tensor(last).unwrap().name, error.to_string());
        assert!(
            matches!(&error, TensorError::Truncated { file_bytes, end, .. }
                if *file_bytes == len && *end <= whole),
            "{text}"
        );
        assert!(text.starts_with(&path.display().to_string()) && text.contains(name), "{text}");
    }
    // The file contains no tensor data any longer.
    for error in [
        gguf.matrix_bytes(&spec.embedding).unwrap_err(),
        gguf.vector(&spec.output_norm.weight).unwrap_err(),
        gguf.matrix_data(&spec.embedding).unwrap().read_into(0, &mut [0; 9]).unwrap_err(),
    ] {
        assert!(matches!(error, TensorError::Truncated { .. }), "{error}");
    }
    // The header and earlier reads are in memory.
    assert!(weights.iter().any(|byte| *byte != 0));
    assert_eq!(gguf.require::<&str>("general.architecture"), Ok("llama"));
    assert_eq!(gguf.file_bytes(), whole);
    // The same length as before, with other contents.
    shorten(&path, whole);
    assert_ne!(gguf.matrix_bytes(&spec.embedding).unwrap(), weights);
}

#[test]
fn pieces_of_a_matrix_match_its_bytes() {
    let bytes = synth::write(&Model::TINY, Mixture::Q8_0, 1, Vec::new()).unwrap();
    let (_folder, path) = in_folder(&bytes);
    for gguf in [Gguf::open(&path).unwrap(), Gguf::from_bytes(bytes).unwrap()] {
        let spec = ModelSpec::from_gguf(&gguf, 1).unwrap();
        let whole = gguf.matrix_bytes(&spec.embedding).unwrap();
        let data = gguf.matrix_data(&spec.embedding).unwrap();
        assert_eq!((data.len(), data.is_empty()), (whole.len(), false));
        let mut buffer = Vec::new();
        // Longer and shorter ranges alternate, so that the buffer is reused.
        for (start, end) in [(0, 10), (5, 4_000), (17, 18), (33, 33), (0, whole.len())] {
            assert_eq!(data.read(start..end, &mut buffer).unwrap(), &whole[start..end]);
            let mut out = vec![0; end - start];
            data.read_into(start, &mut out).unwrap();
            assert_eq!(out, &whole[start..end]);
        }
        #[expect(clippy::reversed_empty_ranges, reason = "a wrong range")]
        for range in [0..whole.len() + 1, whole.len() + 1..whole.len() + 1, 5..4, 0..usize::MAX] {
            let error = data.read(range, &mut buffer).unwrap_err();
            assert!(matches!(error, TensorError::Range { .. }), "{error}");
        }
        let error = data.read_into(usize::MAX, &mut [0]).unwrap_err();
        assert!(matches!(error, TensorError::Range { .. }), "{error}");
    }
}
