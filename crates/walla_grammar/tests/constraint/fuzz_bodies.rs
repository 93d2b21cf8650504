//! Runs the body of the fuzz target on fixed seeds and their mutations: the part of `fuzz/` that CI
//! runs.

// Shared with a package outside the workspace.
#[path = "../../../../fuzz/src/bodies/constraint.rs"]
mod constraint;

use crate::common::Random;

/// Texts that often trigger defects of the three syntaxes.
const INTERESTING: [&[u8]; 20] = [
    b"{", b"}", b"[", b"]", b"(", b")", b"\"", b"\\", b"|", b"*", b"{1,9}", b"^", b"$", b"#",
    b"%json ", b"<|", b"null", b"-1", b"e9", b"\xc3",
];

fn mutate(random: &mut Random, seed: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        let end = (at + 1 + random.below(12)).min(bytes.len());
        let piece = bytes.get(at..end).unwrap_or_default().to_vec();
        match random.below(6) {
            _ if bytes.is_empty() => bytes.push(0),
            0 => bytes[at] ^= 1 << random.below(8),
            1 | 2 => {
                let text = INTERESTING[random.below(INTERESTING.len())];
                drop(bytes.splice(at..at, text.iter().copied()));
            }
            3 => drop(bytes.splice(at..at, piece)),
            4 => drop(bytes.drain(at..end)),
            _ => {
                let to = random.below(bytes.len());
                drop(bytes.splice(to..to, piece));
            }
        }
    }
    bytes
}

/// Number of mutations: `WALLA_CONSTRAINT_MUTATIONS`.
#[test]
fn seeds_and_mutations() {
    let count = std::env::var("WALLA_CONSTRAINT_MUTATIONS").ok();
    let count = count.map_or(1_500, |count| count.parse().expect("a number"));
    let seeds = constraint::seeds();
    seeds.iter().for_each(|seed| constraint::check(seed));
    let mut random = Random(0x5eed);
    for index in 0..count {
        let bytes = mutate(&mut random, &seeds[index % seeds.len()]);
        let result = std::panic::catch_unwind(|| constraint::check(&bytes));
        assert!(result.is_ok(), "{:?}", String::from_utf8_lossy(&bytes));
    }
}
