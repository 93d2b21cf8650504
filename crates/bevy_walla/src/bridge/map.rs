use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use walla_runtime::AgentId;

/// A map keyed by agent. The engine assigns ids sequentially and no player can choose them, so a
/// multiplicative hash distributes them well enough: 2⁶⁴ divided by the golden ratio (Knuth, volume
/// 3, section 6.4).
pub(super) type AgentMap<T> = HashMap<AgentId, T, BuildHasherDefault<IdHasher>>;

#[derive(Clone, Copy, Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0.rotate_left(5) ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The map takes its bucket from the low bits, which a multiplication mixes least.
        self.0.rotate_left(32)
    }
}
