//! Byte strings with ids in one allocation, and an index from bytes to ids.

use std::hash::{BuildHasher as _, RandomState};

/// Byte strings without gaps; ids count from 0.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// End of each piece.
    ends: Vec<u32>,
}

impl Pieces {
    pub(super) fn with_capacity(pieces: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(pieces) }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The piece with this id; empty beyond the end.
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = id
            .checked_sub(1)
            .and_then(|before| self.ends.get(before))
            .map_or(0, |&end| end as usize);
        let end = self.ends.get(id).map_or(start, |&end| end as usize);
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// Appends a piece. The caller keeps the total below 4 GiB.
    pub(super) fn push(&mut self, piece: &[u8]) -> u32 {
        self.bytes.extend_from_slice(piece);
        self.ends.push(self.bytes.len() as u32);
        self.ends.len() as u32 - 1
    }

    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

/// Mixes 64 bits with a secret: the two halves of a product, combined by XOR.
pub(super) fn mix(value: u64, secret: u64) -> u64 {
    let product = u128::from(value ^ secret) * 0x9e37_79b9_7f4a_7c15;
    (product >> 64) as u64 ^ product as u64
}

/// A number that the author of a file cannot know: crafted equal hashes would make loading
/// quadratic.
pub(super) fn secret() -> u64 {
    RandomState::new().hash_one(0_u8)
}

const EMPTY: u32 = u32::MAX;

/// Index from bytes to pieces: open addressing, 4 bytes per slot, load factor at most 2/3.
#[derive(Clone, Debug)]
pub(super) struct Index {
    slots: Vec<u32>,
    used: usize,
    secret: u64,
}

impl Index {
    pub(super) fn with_capacity(pieces: usize) -> Self {
        Self { slots: vec![EMPTY; slots_for(pieces)], used: 0, secret: secret() }
    }

    /// The piece with these bytes.
    pub(super) fn find(&self, pieces: &Pieces, bytes: &[u8]) -> Option<u32> {
        let mut at = self.hash(bytes) as usize;
        loop {
            let id = *self.slots.get(at & (self.slots.len() - 1))?;
            if id == EMPTY {
                return None;
            }
            if pieces.get(id) == bytes {
                return Some(id);
            }
            at += 1;
        }
    }

    /// Adds a piece; if a piece with the same bytes exists, returns it as the error.
    pub(super) fn insert(&mut self, pieces: &Pieces, id: u32) -> Result<(), u32> {
        if let Some(first) = self.find(pieces, pieces.get(id)) {
            return Err(first);
        }
        // Never full: a search ends only at an empty slot.
        if (self.used + 1) * 3 > self.slots.len() * 2 {
            let grown = vec![EMPTY; self.slots.len() * 2];
            for old in core::mem::replace(&mut self.slots, grown) {
                if old != EMPTY {
                    self.place(pieces, old);
                }
            }
        }
        self.place(pieces, id);
        self.used += 1;
        Ok(())
    }

    /// Stores `id` in the first free slot of its chain. One exists, because a third of the slots is
    /// free.
    fn place(&mut self, pieces: &Pieces, id: u32) {
        let mask = self.slots.len() - 1;
        let mut at = self.hash(pieces.get(id)) as usize & mask;
        while let Some(slot) = self.slots.get_mut(at) {
            if *slot == EMPTY {
                *slot = id;
                return;
            }
            at = (at + 1) & mask;
        }
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        // The last word is padded with zeros, so the length must count too.
        let mut hash = self.secret ^ bytes.len() as u64;
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(chunk) {
                *to = *from;
            }
            hash = mix(u64::from_le_bytes(word) ^ hash.rotate_left(23), self.secret);
        }
        hash
    }
}

/// Number of slots for `entries` entries at a load factor of at most 2/3: a power of two.
pub(super) fn slots_for(entries: usize) -> usize {
    (entries + entries / 2 + 2).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_exactly_the_inserted_pieces() {
        let mut pieces = Pieces::default();
        let mut index = Index::with_capacity(0);
        for n in 0..5000_u32 {
            let id = pieces.push(format!("piece {n}").as_bytes());
            assert_eq!(index.insert(&pieces, id), Ok(()));
        }
        for n in 0..5000_u32 {
            assert_eq!(index.find(&pieces, format!("piece {n}").as_bytes()), Some(n));
        }
        assert_eq!(index.find(&pieces, b"piece 5000"), None);
        assert_eq!(index.find(&pieces, b""), None);
        let again = pieces.push(b"piece 17");
        assert_eq!(index.insert(&pieces, again), Err(17));
    }
}
