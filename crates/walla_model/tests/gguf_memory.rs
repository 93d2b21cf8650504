//! Reading a file allocates at most twice its length and 1 MiB. Opening a file allocates only for
//! its header.
//!
//! This binary has only one test, because the allocator counts for the whole process.

mod gguf_common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use gguf_common::{ARRAY, BOOL, Raw, RawTensor, STRING, U8, array, text};
use walla_model::Gguf;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[expect(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: the caller satisfies `GlobalAlloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above; the pointer came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Peak of live memory while a file is read, beyond the file itself.
fn peak_bytes(file: Vec<u8>) -> (bool, usize) {
    let file: Arc<[u8]> = file.into();
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let gguf = Gguf::from_bytes(file);
    (gguf.is_ok(), PEAK.load(Relaxed) - before)
}

fn empty() -> Raw {
    Raw { entries: Vec::new(), tensors: Vec::new(), data: Vec::new(), ..Raw::good() }
}

/// Distinct names of minimum length: in base 120, with ASCII characters.
fn name(mut index: usize) -> Vec<u8> {
    let mut name = Vec::new();
    loop {
        name.push((index % 120) as u8 + 1);
        index /= 120;
        if index == 0 {
            return name;
        }
    }
}

#[test]
fn reading_allocates_at_most_twice_the_file_and_a_mebibyte() {
    let strings = |count: u64| array(STRING, count, &text(b"").repeat(count as usize));
    let cases = [
        (
            "as many entries as are allowed",
            true,
            empty().with(|f| {
                (0..1 << 15).for_each(|i| f.entry(&name(i), BOOL, &[1]));
            }),
        ),
        (
            "as many tensors as are allowed",
            true,
            empty().with(|f| {
                f.data = vec![0; 32 << 15];
                let tensor = |i: usize| RawTensor {
                    name: name(i),
                    ..RawTensor::new("", &[1], 0, 32 * i as u64)
                };
                f.tensors = (0..1 << 15).map(tensor).collect();
            }),
        ),
        (
            "both, of unknown types and without data",
            true,
            empty().with(|f| {
                f.data = vec![0; 32 << 15];
                (0..1 << 15).for_each(|i| f.entry(&name(i), U8, &[1]));
                let tensor = |i: usize| RawTensor {
                    name: name(i),
                    ..RawTensor::new("", &[1], 99, 32 * i as u64)
                };
                f.tensors = (0..1 << 15).map(tensor).collect();
            }),
        ),
        (
            "a thousand empty arrays of strings",
            true,
            empty().with(|f| {
                (0..1024).for_each(|i| f.entry(&name(i), ARRAY, &strings(0)));
            }),
        ),
        (
            "too many of them",
            false,
            empty().with(|f| {
                (0..1 << 15).for_each(|i| f.entry(&name(i), ARRAY, &strings(0)));
            }),
        ),
        (
            "a million empty strings",
            true,
            empty().with(|f| f.entry(b"k", ARRAY, &strings(1 << 20))),
        ),
        (
            "a megabyte of numbers",
            true,
            empty().with(|f| {
                f.entry(b"k", ARRAY, &array(U8, 1 << 20, &[7; 1 << 20]));
            }),
        ),
        (
            "counts that the file only just pays for",
            false,
            empty().with(|f| {
                (f.entry_count, f.tensor_count) = (Some(1 << 15), Some(1 << 15));
                f.data = vec![1; (14 + 33) << 15];
            }),
        ),
        (
            "a count of strings that the file only just pays for",
            false,
            empty().with(|f| {
                f.entry(b"k", ARRAY, &array(STRING, 1 << 20, &[]));
                f.data = vec![0xff; 8 << 20];
            }),
        ),
        (
            "a long string that is no text",
            true,
            empty().with(|f| {
                f.entry(b"k", STRING, &text(&[0xff; 1 << 20]));
            }),
        ),
        (
            "as many keys that are no text as are allowed",
            true,
            empty().with(|f| {
                (0..1 << 15).for_each(|i| f.entry(&[&[0xff], &name(i)[..]].concat(), BOOL, &[1]));
            }),
        ),
        (
            "a hundred thousand arrays in an array",
            true,
            empty().with(|f| {
                let inner = array(ARRAY, 0, &[]).repeat(100_000);
                f.entry(b"k", ARRAY, &array(ARRAY, 100_000, &inner));
            }),
        ),
        (
            "one empty key, as often as it can be",
            true,
            empty().with(|f| (0..1 << 15).for_each(|_| f.entry(b"", BOOL, &[1]))),
        ),
        (
            "a long key, twice",
            true,
            empty().with(|f| {
                f.entry(&[b'k'; 65_535], BOOL, &[1]);
                f.entry(&[b'k'; 65_535], BOOL, &[1]);
            }),
        ),
    ];
    for (what, is_sound, file) in cases {
        let allowed = 2 * file.len() + (1 << 20);
        let len = file.len();
        let (was_sound, peak) = peak_bytes(file);
        assert_eq!(was_sound, is_sound, "{what}");
        assert!(peak <= allowed, "{what}: {peak} bytes for a file of {len}");
        println!("{what}: {peak} bytes for a file of {len}");
    }
    opening_a_file_allocates_for_its_header_alone();
}

/// A file of 64 MiB: its first MiB is read at once, a tensor in pieces of the caller's size.
fn opening_a_file_allocates_for_its_header_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.gguf");
    let tensor = RawTensor::new("w", &[1 << 12, 1 << 12], 0, 0);
    let header = empty().with(|f| f.tensors = vec![tensor]);
    std::fs::write(&path, &header).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(header.len() as u64 + (64 << 20)).unwrap();
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let gguf = Gguf::open(&path).unwrap();
    let kept = LIVE.load(Relaxed) - before;
    let data = gguf.tensor_data(0).unwrap();
    let mut buffer = Vec::new();
    for start in (0..data.len()).step_by(1 << 18) {
        data.read(start..start + (1 << 18), &mut buffer).unwrap();
    }
    gguf.keep().unwrap().check().unwrap();
    let peak = PEAK.load(Relaxed) - before;
    assert!(kept < 4096 && peak < 3 << 19, "{kept} bytes kept, {peak} at the peak");
}
