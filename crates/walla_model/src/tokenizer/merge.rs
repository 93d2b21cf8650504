//! Merging pairs of neighbours, best pair first: what both tokenizer models do, with different
//! ideas of "best".

use std::{cmp::Ordering, collections::BinaryHeap};

/// No neighbour.
const NONE: u32 = u32::MAX;

/// A symbol of the text: at first a byte or a character, later what was merged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Where its text starts, in bytes.
    pub start: u32,
    /// Bytes; 0 once it is part of its left neighbour.
    pub len: u32,
    /// What it is: an id of the model's own.
    pub id: u32,
    prev: u32,
    next: u32,
}

/// What the model says of a pair: whether it merges, how urgently, and into what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    /// Lower merges first; equal keys merge from left to right.
    pub key: u32,
    /// The id of the merged symbol.
    pub id: u32,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Key in the upper half, left node in the lower: the order in which pairs merge.
    order: u64,
    right: u32,
    /// Bytes of both when the pair was found; another sum means that one of them has grown since.
    len: u32,
    id: u32,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        other.order.cmp(&self.order) // the heap's greatest is the least order
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Candidate {}

/// Linked symbols and a heap of candidate pairs, reused from word to word.
///
/// A word of n symbols asks for at most 3 n pairs (n - 1 at first, two more for each of at most n -
/// 1 merges), so its cost is O(n log n) whatever it contains.
#[derive(Debug, Default)]
pub(super) struct Merger {
    nodes: Vec<Node>,
    candidates: BinaryHeap<Candidate>,
    /// Pairs asked for since the merger was made: the measure of its work.
    pub pairs_asked: u64,
}

impl Merger {
    /// Begins a word without symbols.
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.candidates.clear();
    }

    /// Appends a symbol of `len` bytes.
    pub(super) fn push(&mut self, id: u32, len: u32) {
        let index = self.nodes.len() as u32;
        let (start, prev) = match self.nodes.last_mut() {
            Some(last) => {
                last.next = index;
                (last.start + last.len, index - 1)
            }
            None => (0, NONE),
        };
        self.nodes.push(Node { start, len, id, prev, next: NONE });
    }

    /// Merges until no pair is left.
    pub(super) fn merge(&mut self, pair: impl Fn(&Node, &Node) -> Option<Pair>) {
        for right in 1..self.nodes.len() as u32 {
            self.ask(right - 1, right, &pair);
        }
        while let Some(candidate) = self.candidates.pop() {
            let left = candidate.order as u32;
            let Some((left_prev, right_next)) = self.join(left, &candidate) else {
                continue;
            };
            self.ask(left_prev, left, &pair);
            self.ask(left, right_next, &pair);
        }
    }

    /// The symbols that are left, in order.
    pub(super) fn symbols(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.len > 0)
    }

    fn node(&self, index: u32) -> Option<&Node> {
        self.nodes.get(index as usize)
    }

    fn ask(&mut self, left: u32, right: u32, pair: &impl Fn(&Node, &Node) -> Option<Pair>) {
        let (Some(a), Some(b)) = (self.node(left), self.node(right)) else {
            return;
        };
        let (answer, len) = (pair(a, b), a.len + b.len);
        self.pairs_asked += 1;
        if let Some(Pair { key, id }) = answer {
            let order = u64::from(key) << 32 | u64::from(left);
            self.candidates.push(Candidate { order, right, len, id });
        }
    }

    /// Makes the right symbol part of the left one, unless one of them has changed; returns their
    /// outer neighbours.
    fn join(&mut self, left: u32, candidate: &Candidate) -> Option<(u32, u32)> {
        let (a, b) = (*self.node(left)?, *self.node(candidate.right)?);
        if a.len == 0 || b.len == 0 || a.len + b.len != candidate.len {
            return None;
        }
        let merged = Node { len: candidate.len, id: candidate.id, next: b.next, ..a };
        *self.nodes.get_mut(left as usize)? = merged;
        self.nodes.get_mut(candidate.right as usize)?.len = 0;
        if let Some(next) = self.nodes.get_mut(b.next as usize) {
            next.prev = left;
        }
        Some((a.prev, b.next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges `n` equal symbols by `pair`; what is left, and the pairs asked for.
    fn work(n: u32, pair: impl Fn(&Node, &Node) -> Option<Pair>) -> (usize, u64) {
        let mut merger = Merger::default();
        (0..n).for_each(|_| merger.push(1, 1));
        merger.merge(pair);
        (merger.symbols().count(), merger.pairs_asked)
    }

    #[test]
    fn work_is_linear_in_the_word() {
        let n = 1 << 16;
        let limit = 3 * u64::from(n);
        // Pairs of equal symbols merge, level by level, down to one symbol.
        let doubling =
            |a: &Node, b: &Node| (a.id == b.id).then_some(Pair { key: a.id, id: a.id + 1 });
        let (left, asked) = work(n, doubling);
        assert_eq!(left, 1);
        assert!(asked < limit, "{asked}");
        // The first symbol swallows the others one by one.
        let swallowing =
            |a: &Node, b: &Node| (a.start == 0 && b.len == 1).then_some(Pair { key: 0, id: 1 });
        let (left, asked) = work(n, swallowing);
        assert_eq!(left, 1);
        assert!(asked < limit, "{asked}");
        // Nothing merges.
        assert_eq!(work(n, |_, _| None), (n as usize, u64::from(n) - 1));
    }

    #[test]
    fn the_most_urgent_pair_merges_first_and_equal_ones_from_the_left() {
        let mut merger = Merger::default();
        [1, 2, 2, 1, 2].into_iter().for_each(|id| merger.push(id, 1));
        // 2 2 is more urgent than 1 2, so the first 1 is left alone.
        merger.merge(|a, b| match (a.id, b.id) {
            (2, 2) => Some(Pair { key: 0, id: 22 }),
            (1, 2) => Some(Pair { key: 1, id: 12 }),
            _ => None,
        });
        assert_eq!(merger.symbols().map(|node| node.id).collect::<Vec<_>>(), [1, 22, 12]);
        assert_eq!(merger.symbols().map(|node| node.start).collect::<Vec<_>>(), [0, 1, 3]);
    }
}
