//! Merges pairs of adjacent symbols, best pair first. Both tokenizer models use it, with different
//! orders of pairs.

use std::{cmp::Reverse, collections::BinaryHeap};

/// No neighbour.
const NONE: u32 = u32::MAX;

/// A symbol of the text: initially a byte or a character, later a merged text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Byte offset of its text.
    pub start: u32,
    /// Length in bytes; 0 after it was merged into its left neighbour.
    pub len: u32,
    /// Its id, in the numbering of the tokenizer model.
    pub id: u32,
    prev: u32,
    next: u32,
}

/// A mergeable pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    /// Pairs with lower keys merge first; equal keys merge from left to right.
    pub key: u32,
    /// The id of the merged symbol.
    pub id: u32,
}

/// Compared by `order` first. Of several with equal order at most one is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Key in the upper half, left node in the lower half: the order of merging.
    order: u64,
    right: u32,
    /// Bytes of both when the pair was found; if the sum differs now, one of them has changed.
    len: u32,
    id: u32,
}

/// Linked symbols and a heap of candidate pairs, reused for each word.
///
/// A word of n symbols looks up at most 3 n pairs (n - 1 initially, and two for each of at most n -
/// 1 merges), so its cost is O(n log n) for any contents.
#[derive(Debug, Default)]
pub(super) struct Merger {
    nodes: Vec<Node>,
    candidates: BinaryHeap<Reverse<Candidate>>,
    /// Number of pair look-ups since the merger was created; measures its work.
    pub pairs_asked: u64,
}

impl Merger {
    /// Starts an empty word.
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
        while let Some(Reverse(candidate)) = self.candidates.pop() {
            let left = candidate.order as u32;
            let Some((left_prev, right_next)) = self.join(left, &candidate) else {
                continue;
            };
            self.ask(left_prev, left, &pair);
            self.ask(left, right_next, &pair);
        }
    }

    /// The remaining symbols, in order.
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
            self.candidates.push(Reverse(Candidate { order, right, len, id }));
        }
    }

    /// Merges the right symbol into the left one, unless one of them has changed. Returns their
    /// outer neighbours.
    fn join(&mut self, left: u32, candidate: &Candidate) -> Option<(u32, u32)> {
        let (a, b) = (*self.node(left)?, *self.node(candidate.right)?);
        if a.len == 0 || b.len == 0 || a.len + b.len != candidate.len {
            return None;
        }
        let merged = Node { len: candidate.len, id: candidate.id, next: b.next, ..a };
        *self.nodes.get_mut(left as usize)? = merged;
        // It keeps its place, because candidates refer to nodes by index.
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

    /// Merges `n` equal symbols by `pair`; returns the number of remaining symbols and of pair
    /// look-ups.
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
        // The first symbol absorbs the others one by one.
        let swallowing =
            |a: &Node, b: &Node| (a.start == 0 && b.len == 1).then_some(Pair { key: 0, id: 1 });
        let (left, asked) = work(n, swallowing);
        assert_eq!(left, 1);
        assert!(asked < limit, "{asked}");
        // Nothing merges.
        assert_eq!(work(n, |_, _| None), (n as usize, u64::from(n) - 1));
    }

    #[test]
    fn the_lowest_rank_pair_merges_first_and_ties_from_the_left() {
        let mut merger = Merger::default();
        [1, 2, 2, 1, 2].into_iter().for_each(|id| merger.push(id, 1));
        // The pair 2 2 has priority over 1 2, so the first 1 is not merged.
        merger.merge(|a, b| match (a.id, b.id) {
            (2, 2) => Some(Pair { key: 0, id: 22 }),
            (1, 2) => Some(Pair { key: 1, id: 12 }),
            _ => None,
        });
        assert_eq!(merger.symbols().map(|node| node.id).collect::<Vec<_>>(), [1, 22, 12]);
        assert_eq!(merger.symbols().map(|node| node.start).collect::<Vec<_>>(), [0, 1, 3]);
    }
}
