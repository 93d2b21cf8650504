//! The embedded file has the hash, size and properties that the documentation states.

use walla_demo_model::{ALIGNMENT, FILE_NAME, GGUF, SHA256};

/// The registry accepts crates of up to 10 MB; the rest of the crate needs a part of it.
const MAX_BYTES: usize = 9_000_000;

#[test]
fn the_file_is_the_documented_one() {
    assert_eq!(
        hexadecimal(&sha256(GGUF)),
        SHA256,
        "after a new training: write the new hash into src/lib.rs and the README"
    );
}

#[test]
fn the_file_fits_into_a_crate() {
    assert!(
        GGUF.len() <= MAX_BYTES,
        "{FILE_NAME} has {} bytes, {MAX_BYTES} are allowed",
        GGUF.len()
    );
}

#[test]
fn the_file_is_an_aligned_gguf_of_version_3() {
    assert!(GGUF.starts_with(b"GGUF\x03\0\0\0"));
    assert_eq!(GGUF.as_ptr().align_offset(ALIGNMENT), 0);
}

#[test]
fn the_hash_function_is_sha_256() {
    // Examples from FIPS 180-4: one block, and two.
    let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(hexadecimal(&sha256(b"abc")), expected);
    let expected = "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1";
    assert_eq!(
        hexadecimal(&sha256(b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
        expected
    );
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 as in FIPS 180-4, for this test only: one hash does not justify a dependency.
fn sha256(message: &[u8]) -> Vec<u8> {
    let mut padded = message.to_vec();
    padded.push(0x80);
    padded.resize(padded.len().next_multiple_of(64), 0);
    if padded.len() - message.len() < 9 {
        padded.resize(padded.len() + 64, 0);
    }
    let at = padded.len() - 8;
    padded[at..].copy_from_slice(&(8 * message.len() as u64).to_be_bytes());

    let primes: Vec<u32> = (2..).filter(|&n: &u32| (2..n).all(|d| n % d != 0)).take(64).collect();
    let round_constants: Vec<u32> =
        primes.iter().map(|&p| fraction_32(f64::from(p).cbrt())).collect();
    let mut state: Vec<u32> =
        primes[..8].iter().map(|&p| fraction_32(f64::from(p).sqrt())).collect();
    for block in padded.chunks_exact(64) {
        compress(&mut state, block, &round_constants);
    }
    state.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// The first 32 bits of the fraction; for roots of primes below 312 an f64 has enough bits.
fn fraction_32(x: f64) -> u32 {
    (x.fract() * 2f64.powi(32)) as u32
}

fn compress(state: &mut [u32], block: &[u8], round_constants: &[u32]) {
    let mut schedule: Vec<u32> = block
        .chunks_exact(4)
        .map(|word| word.iter().fold(0, |value, &byte| value << 8 | u32::from(byte)))
        .collect();
    for t in 16..64 {
        let (x, y) = (schedule[t - 15], schedule[t - 2]);
        let small_0 = x.rotate_right(7) ^ x.rotate_right(18) ^ x >> 3;
        let small_1 = y.rotate_right(17) ^ y.rotate_right(19) ^ y >> 10;
        schedule.push(
            schedule[t - 16]
                .wrapping_add(small_0)
                .wrapping_add(schedule[t - 7])
                .wrapping_add(small_1),
        );
    }
    let mut v: [u32; 8] = std::array::from_fn(|i| state[i]);
    for t in 0..64 {
        let [a, b, c, d, e, f, g, h] = v;
        let big_1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let first = [big_1, choice, round_constants[t], schedule[t]]
            .iter()
            .fold(h, |sum, &word| sum.wrapping_add(word));
        let big_0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        v = [
            first.wrapping_add(big_0).wrapping_add(majority),
            a,
            b,
            c,
            d.wrapping_add(first),
            e,
            f,
            g,
        ];
    }
    for (word, round) in state.iter_mut().zip(v) {
        *word = word.wrapping_add(round);
    }
}
