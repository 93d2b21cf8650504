//! Runs the body of the fuzz target on fixed seeds and their mutations: the part of `fuzz/` that CI
//! runs.

// Shared with a package outside the workspace.
#[path = "../../../../fuzz/src/bodies/action.rs"]
mod action;

use crate::common::Random;

/// Parts of the syntax of calls.
const PARTS: [&[u8]; 24] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"(",
    b")",
    b"\"",
    b"'",
    b"\\",
    b"\n",
    b",",
    b":",
    b"null",
    b"1e9",
    b"\\u12",
    b"<tool_call>",
    b"</tool_call>",
    b"</parameter>",
    b"<|\"|>",
    b"[ARGS]",
    b"\xf8",
    b"\xf9",
    b"\xfb",
    b"\xc3",
];

fn mutate(random: &mut Random, seed: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        let at = 2 + random.below(bytes.len() - 2);
        let end = (at + 1 + random.below(12)).min(bytes.len());
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 | 2 => drop(bytes.splice(at..at, PARTS[random.below(PARTS.len())].iter().copied())),
            3 => drop(bytes.splice(at..at, bytes[at..end].to_vec())),
            4 if bytes.len() > 20 => drop(bytes.drain(at..end)),
            _ => bytes[random.below(2)] = random.next() as u8,
        }
    }
    bytes
}

/// `WALLA_ACTION_CASES`: the number of mutations.
#[test]
fn seeds_and_mutations() {
    let cases = std::env::var("WALLA_ACTION_CASES").ok();
    let cases = cases.map_or(10_000, |cases| cases.parse().expect("a number"));
    let seeds = action::seeds();
    assert_eq!(seeds.len(), 18);
    seeds.iter().for_each(|seed| action::check(seed));
    let mut random = Random::new(0x5eed);
    for count in 0..cases {
        let bytes = mutate(&mut random, &seeds[count % seeds.len()]);
        let result = std::panic::catch_unwind(|| action::check(&bytes));
        assert!(result.is_ok(), "{:?} {bytes:?}", String::from_utf8_lossy(&bytes));
    }
}
