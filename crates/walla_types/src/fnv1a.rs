/// Continues a 64-bit FNV-1a hash (Fowler, Noll and Vo), which is the same on every machine and in
/// every build. It is for seeds, names of files and accidents, not against attacks.
///
/// # Examples
/// ```
/// use walla_types::{FNV1A, fnv1a};
/// assert_eq!(fnv1a(FNV1A, b"foobar"), 0x85944171f73967e8);
/// assert_eq!(fnv1a(fnv1a(FNV1A, b"foo"), b"bar"), fnv1a(FNV1A, b"foobar"));
/// ```
#[must_use]
pub const fn fnv1a(mut hash: u64, mut bytes: &[u8]) -> u64 {
    while let [first, rest @ ..] = bytes {
        hash = (hash ^ *first as u64).wrapping_mul(0x0100_0000_01b3);
        bytes = rest;
    }
    hash
}

/// The [`fnv1a`] hash of nothing.
pub const FNV1A: u64 = 0xcbf2_9ce4_8422_2325;
