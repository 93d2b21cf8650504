//! Runs the fuzz targets' bodies on fixed seeds and their mutations: the part of `fuzz/` that CI
//! runs.

// Shared with a package outside the workspace, which uses all of it.
#[path = "../../../fuzz/src/bodies/mod.rs"]
mod bodies;

use bodies::{gguf, seeds, template, tokenizer};

/// A small fast generator (xorshift64*): the mutations are the same on every platform.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// Bytes that often trigger parser defects.
const INTERESTING: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, b'{', b'}', b'%'];

/// Applies one to four changes: a bit, a byte, a piece duplicated, removed or moved, or a
/// truncation.
fn mutate(random: &mut Random, seed: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        let end = (at + 1 + random.below(16)).min(bytes.len());
        let piece = bytes.get(at..end).unwrap_or_default().to_vec();
        match random.below(6) {
            _ if bytes.is_empty() => bytes.push(0),
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = INTERESTING[random.below(INTERESTING.len())],
            2 => drop(bytes.splice(at..at, piece)),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let to = random.below(bytes.len());
                drop(bytes.splice(to..to, piece));
            }
            _ => bytes.truncate(at),
        }
    }
    bytes
}

/// Runs a body on seeds and `count` mutations; a failure reports the bytes.
fn run(check: fn(&[u8]), seeds: &[Vec<u8>], count: usize) {
    let check = |bytes: &[u8]| {
        let result = std::panic::catch_unwind(|| check(bytes));
        assert!(result.is_ok(), "{} bytes fail: {bytes:?}", bytes.len());
    };
    let mut random = Random(0x5eed);
    seeds.iter().for_each(|seed| check(seed));
    for index in 0..count {
        check(&mutate(&mut random, &seeds[index % seeds.len()]));
    }
}

#[test]
fn model_files() {
    run(gguf::check, &seeds::gguf(), 4_000);
}

#[test]
fn vocabularies() {
    run(tokenizer::check, &seeds::tokenizer(), 4_000);
}

#[test]
fn templates() {
    run(template::check, &seeds::template(), 4_000);
}

#[test]
fn large_templates() {
    let seeds = seeds::template_large();
    assert!(seeds.iter().all(|seed| seed.len() <= 256 << 10), "as the campaigns are run");
    run(template::check, &seeds, 2 * seeds.len());
}

/// The repository's root. cargo runs a test in its package's folder, so a relative path would not
/// lead to `fuzz/`.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// `WALLA_FUZZ_SEEDS=fuzz/corpus cargo test -p walla_model --test fuzz_bodies -- --ignored` writes
/// the seeds to the folder that `cargo fuzz` reads. A relative path starts at the repository's
/// root.
#[test]
#[ignore = "writes files for fuzzing by hand"]
fn write_seeds() {
    let corpus = std::env::var_os("WALLA_FUZZ_SEEDS").expect("WALLA_FUZZ_SEEDS names a folder");
    let corpus = std::path::Path::new(ROOT).join(corpus);
    for (target, seeds) in [
        ("gguf", seeds::gguf()),
        ("tokenizer", seeds::tokenizer()),
        ("template", [seeds::template(), seeds::template_large()].concat()),
    ] {
        std::fs::create_dir_all(corpus.join(target)).unwrap();
        for (index, seed) in seeds.iter().enumerate() {
            std::fs::write(corpus.join(target).join(format!("seed-{index}")), seed).unwrap();
        }
    }
}
