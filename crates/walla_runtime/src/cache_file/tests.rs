//! The format: round trips, every damage, and files that are made to harm.

use walla_device::{CacheImage, ImageNumber, ImagePart, ImageState, KvType};
use walla_types::TokenId;

use super::*;

fn binding() -> Binding {
    let part = |cells_last, number| ImagePart { heads: 1, numbers: 2, number, cells_last };
    let state = ImageState { bytes: 8, number: ImageNumber::F32 };
    let parts = vec![part(true, ImageNumber::F16), part(false, ImageNumber::F16)];
    let image = CacheImage { layout: "cpu 1", page_tokens: 4, parts, states: vec![state; 2] };
    Binding {
        model: 0x1234,
        rotation: 0x5678,
        architecture: "llama".into(),
        kv_type: KvType::F16,
        image,
        vocab: 300,
        context_tokens: 20,
        chunk_pages: 2,
    }
}

/// Ten tokens in three pages, two chunks.
fn contents(binding: &Binding) -> Contents {
    let tokens: Vec<_> = (290..300).map(TokenId).collect();
    let mut contents = Contents::new(&tokens, binding).unwrap();
    let bytes = binding.body_bytes(tokens.len()).unwrap();
    let rest = (contents.body.len()..bytes).map(|at| (at % 59) as u8);
    contents.body.extend(rest);
    contents
}

fn file(binding: &Binding) -> Vec<u8> {
    to_bytes(contents(binding), binding).unwrap()
}

/// The file with correct checksums.
fn checked(mut bytes: Vec<u8>) -> Vec<u8> {
    let header = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let put = |bytes: &mut [u8], range: Range<usize>| {
        let sum = crc32fast::hash(&bytes[range.clone()]).to_le_bytes();
        bytes[range.end..range.end + 4].copy_from_slice(&sum);
    };
    put(&mut bytes, 0..header - 4);
    let end = bytes.len() - 4;
    put(&mut bytes, header..end);
    bytes
}

/// The header's length.
const HEADER: usize = FIXED_BYTES + 4 + 5 + 4 + 5;

#[test]
fn contents_come_back_without_cells_behind_the_last_token() {
    let binding = binding();
    let mut expected = contents(&binding);
    expected.clear_unused(&binding);
    let bytes = file(&binding);
    assert_eq!(bytes.len(), HEADER + expected.body.len() + 4);
    assert_eq!(&bytes[..8], MAGIC);
    assert_eq!(read_bytes(&bytes, &binding), Ok(expected.clone()));
    // The last page has two tokens. Its keys are `[2, 4]`, its values `[4, 2]`.
    let last = expected.chunk_bytes(&binding, 1);
    let page = &expected.body[last];
    let numbers = |part: usize, at: usize| &page[part * 16 + 2 * at..][..2];
    let zeros: [Vec<usize>; 2] =
        [0, 1].map(|part| (0..8).filter(|at| numbers(part, *at) == [0, 0]).collect());
    assert_eq!(zeros, [vec![2, 3, 6, 7], vec![4, 5, 6, 7]]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("greta.kv");
    assert_eq!(write_file(&path, contents(&binding), &binding), Ok(bytes.len() as u64));
    assert_eq!(write_file(&path, contents(&binding), &binding), Ok(bytes.len() as u64));
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(read_file(&path, &binding), Ok((expected, bytes.len() as u64)));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside");
}

#[test]
fn every_flipped_bit_and_every_truncation_is_an_error() {
    let binding = binding();
    let bytes = file(&binding);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            let error = read_bytes(&flipped, &binding).unwrap_err();
            let is_expected = match at {
                0..8 => error == KvFileError::NotACacheFile,
                8..12 => matches!(error, KvFileError::OtherVersion { .. }),
                12..16 => true,
                16..HEADER => error == KvFileError::Checksum { part: "header" },
                _ => error == KvFileError::Checksum { part: "contents" },
            };
            assert!(is_expected, "bit {bit} of byte {at}: {error}");
        }
        let error = read_bytes(&bytes[..at], &binding).unwrap_err();
        assert!(
            matches!(error, KvFileError::Length { found, .. } if found == at as u64),
            "{error}"
        );
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(read_bytes(&longer, &binding), Err(KvFileError::Length { .. })));
}

#[test]
fn a_file_of_another_engine_is_refused_with_the_difference() {
    let own = binding();
    let bytes = file(&own);
    let refused = |change: &dyn Fn(&mut Binding)| {
        let mut other = binding();
        change(&mut other);
        read_bytes(&bytes, &other).unwrap_err()
    };
    let model = refused(&|b| b.model = 1);
    assert_eq!(model, KvFileError::OtherModel { found: 0x1234, expected: 1 });
    assert_eq!(refused(&|b| b.rotation = 1), KvFileError::OtherRotation);
    let architecture = refused(&|b| b.architecture = "qwen3".into()).to_string();
    assert_eq!(architecture, "the cache of architecture llama, expected qwen3");
    let kv_type = refused(&|b| b.kv_type = KvType::Q8).to_string();
    assert_eq!(kv_type, "keys and values of type F16, expected Q8");
    let layout = refused(&|b| b.image.layout = "cuda 1").to_string();
    assert!(
        layout.contains("layout cpu 1, 4 tokens in 32 bytes and 16 bytes of states"),
        "{layout}"
    );
    let pages = refused(&|b| b.image.page_tokens = 8);
    assert!(matches!(pages, KvFileError::OtherLayout { .. }));
    let states = refused(&|b| b.image.states.truncate(1));
    assert!(matches!(states, KvFileError::OtherLayout { .. }));
    let tokens = refused(&|b| b.context_tokens = 9);
    assert_eq!(tokens, KvFileError::TooManyTokens { tokens: 10, context_tokens: 9 });
    assert_eq!(refused(&|b| b.vocab = 299), KvFileError::Invalid("token"));
    assert_eq!(refused(&|b| b.chunk_pages = 1), KvFileError::Invalid("number of pages per chunk"));
}

#[test]
fn files_that_are_made_to_harm_are_errors() {
    let binding = binding();
    let bytes = file(&binding);
    let read = |at: usize, value: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        read_bytes(&checked(bytes), &binding).unwrap_err()
    };
    let number = |number: u32| number.to_le_bytes();
    let invalid = |what| KvFileError::Invalid(what);
    assert_eq!(read(40, &number(0)), invalid("number of tokens"));
    assert_eq!(read(40, &number(11)), invalid("length of the contents"));
    assert_eq!(read(64, &number(0)), invalid("number of pages per chunk"));
    assert_eq!(read(64, &number(u32::MAX)), invalid("number of pages per chunk"));
    assert!(matches!(read(40, &number(u32::MAX)), KvFileError::TooManyTokens { .. }));
    assert!(matches!(read(68, &number(77)), KvFileError::OtherKvType { .. }));
    assert_eq!(read(72, &number(u32::MAX)), invalid("length of the header"));
    assert!(matches!(read(16, &number(7)), KvFileError::Length { expected: 7, .. }));
    assert_eq!(read(HEADER, &number(300)), invalid("token"));
    // Infinite keys of the first and of the last page, and a state that is no number.
    let pages = HEADER + 40;
    assert_eq!(read(pages, &0x7c00_u16.to_le_bytes()), KvFileError::NotFinite);
    assert_eq!(read(pages + 94, &0xfe00_u16.to_le_bytes()), KvFileError::NotFinite);
    assert_eq!(read(pages + 96 + 12, &f32::NAN.to_le_bytes()), KvFileError::NotFinite);
    // A header of another length.
    for length in [0, 16, FIXED_BYTES as u32, HEADER as u32 - 1, MAX_HEADER_BYTES as u32, u32::MAX]
    {
        let mut bytes = bytes.clone();
        bytes[12..16].copy_from_slice(&number(length));
        assert!(read_bytes(&bytes, &binding).is_err(), "{length}");
    }
    // Contents that are not finite are not written either.
    let mut overflowing = contents(&binding);
    overflowing.body[40..42].copy_from_slice(&0x7c00_u16.to_le_bytes());
    assert_eq!(to_bytes(overflowing, &binding), Err(KvFileError::NotFinite));
}

#[test]
fn paths_that_are_no_files_are_errors() {
    let binding = binding();
    let folder = tempfile::tempdir().unwrap();
    let read = |path: &std::path::Path| read_file(path, &binding).unwrap_err();
    assert!(matches!(read(folder.path()), KvFileError::NotAFile { .. }));
    let missing = folder.path().join("missing");
    let kind = std::io::ErrorKind::NotFound;
    assert!(matches!(read(&missing), KvFileError::Io { kind: found, .. } if found == kind));
    let nowhere = write_file(&missing.join("greta.kv"), contents(&binding), &binding);
    assert!(matches!(nowhere, Err(KvFileError::Io { .. })), "{nowhere:?}");
    // A folder has the file's name.
    let taken = write_file(folder.path(), contents(&binding), &binding);
    assert!(matches!(taken, Err(KvFileError::NotAFile { .. })), "{taken:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left beside");
    std::fs::write(&missing, b"").unwrap();
    assert_eq!(read(&missing), KvFileError::Length { found: 0, expected: 16 });
    #[cfg(unix)]
    {
        let fifo = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        if made.is_ok_and(|status| status.success()) {
            assert_eq!(read(&fifo), KvFileError::NotAFile { path: fifo.clone() });
            let taken = write_file(&fifo, contents(&binding), &binding);
            assert_eq!(taken, Err(KvFileError::NotAFile { path: fifo }));
        }
    }
}

/// A wrong path must not cost the player a saved game, or the model.
#[test]
fn only_cache_files_are_replaced() {
    let binding = binding();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("greta.kv");
    let bytes = to_bytes(contents(&binding), &binding).unwrap();
    let write = || write_file(&path, contents(&binding), &binding);
    for other in [&b"my saved game"[..], b"GGUF", b"W", b"WALLAKV", b"WALLAKX\0", b"\0\0\0x"] {
        std::fs::write(&path, other).unwrap();
        let is_part = MAGIC.starts_with(other);
        let expected =
            if is_part { Ok(bytes.len() as u64) } else { Err(KvFileError::NotACacheFile) };
        assert_eq!(write(), expected);
        assert_eq!(std::fs::read(&path).unwrap() == other, !is_part, "{other:?}");
    }
    // A cache file of any version, damaged or not, and the rest after a power cut.
    for old in [bytes.clone(), bytes[..20].to_vec(), vec![0; 100], Vec::new()] {
        std::fs::write(&path, old).unwrap();
        assert_eq!(write(), Ok(bytes.len() as u64));
        assert!(std::fs::read(&path).unwrap() == bytes);
    }
    // Names of the maximum length.
    let long = folder.path().join("n".repeat(255));
    assert_eq!(write_file(&long, contents(&binding), &binding), Ok(bytes.len() as u64));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left beside");
}

/// Two engines save to the same path: the file is always the whole one of either.
#[test]
fn writers_of_the_same_path_do_not_mix() {
    let binding = binding();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("same.kv");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    write_file(&path, contents(&binding), &binding).expect("it is written");
                    read_file(&path, &binding).expect("it is whole");
                }
            });
        }
    });
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside");
}
