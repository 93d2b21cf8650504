//! Matches special tokens as whole texts before anything is split, the longest first.
//!
//! llama.cpp processes its special tokens from the longest to the shortest and cuts the occurrences
//! of each from the remaining text. That costs (special tokens x text), and some vocabularies have
//! thousands. Here each position of the text proposes its longest special token. Proposals are
//! accepted from the longest to the shortest; one that overlaps an accepted token is replaced by
//! the next shorter one at the same position. The result is the same.

use std::{cmp::Reverse, collections::BTreeMap, collections::BinaryHeap, ops::Range};

use walla_types::TokenId;

use super::kind::Kind;

/// A special token.
#[derive(Clone, Debug)]
struct Special {
    text: Vec<u8>,
    token: TokenId,
    /// Position in the order of acceptance: longer texts first, then lower ids.
    rank: u32,
    kind: Kind,
}

/// Where a text may contain special tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trust<'t> {
    /// Whether control and unknown tokens are requested.
    pub parse_special: bool,
    /// Ascending byte ranges of the text; a marker must be within one of them.
    pub trusted: &'t [Range<usize>],
}

impl Trust<'_> {
    /// Control and unknown tokens are matched only if they are requested. They and markers must be
    /// in trusted text; other user-defined tokens are matched in any text.
    fn allows(&self, kind: Kind, place: &Range<usize>) -> bool {
        if !kind.is_any(Kind::RESERVED) {
            return true;
        }
        let is_asked = self.parse_special || !kind.is_any(Kind::CONTROL.with(Kind::UNKNOWN));
        let at = self.trusted.partition_point(|range| range.end < place.end);
        is_asked && self.trusted.get(at).is_some_and(|range| range.start <= place.start)
    }
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fragment {
    /// Bytes without special tokens; never empty.
    Text(Range<usize>),
    /// A special token.
    Token(TokenId),
}

/// The special tokens of a vocabulary.
#[derive(Clone, Debug)]
pub(super) struct Partition {
    /// Sorted by text, so that texts with a common prefix are adjacent.
    specials: Vec<Special>,
    /// Rank → index into `specials`.
    by_rank: Vec<u32>,
    /// Whether a text starts with this byte.
    begins: Vec<bool>,
}

impl Partition {
    /// `specials` are texts and kinds of tokens. Empty texts are skipped.
    pub(super) fn new<'t>(specials: impl Iterator<Item = (&'t str, TokenId, Kind)>) -> Self {
        let mut begins = vec![false; 256];
        let mut specials: Vec<Special> = specials
            .filter(|(text, ..)| !text.is_empty())
            .map(|(text, token, kind)| Special {
                text: text.as_bytes().to_vec(),
                token,
                rank: 0,
                kind,
            })
            .collect();
        // Of several tokens with the same text, the first one is used.
        specials.sort_by(|a, b| a.text.cmp(&b.text).then(a.token.cmp(&b.token)));
        specials.dedup_by(|later, first| later.text == first.text);
        specials.sort_by(|a, b| b.text.len().cmp(&a.text.len()).then(a.token.cmp(&b.token)));
        for (rank, special) in (0..).zip(&mut specials) {
            special.rank = rank;
            if let Some(slot) = special.text.first().and_then(|&b| begins.get_mut(usize::from(b))) {
                *slot = true;
            }
        }
        // Now by text, for the search by prefix; `rank` keeps the order above.
        specials.sort_by(|a, b| a.text.cmp(&b.text));
        let mut by_rank: Vec<u32> = (0..specials.len() as u32).collect();
        by_rank.sort_by_key(|&index| specials.get(index as usize).map(|special| special.rank));
        Self { specials, by_rank, begins }
    }

    /// The special token with exactly this text.
    pub(super) fn find(&self, text: &str) -> Option<TokenId> {
        let at =
            self.specials.binary_search_by(|special| special.text.as_slice().cmp(text.as_bytes()));
        self.specials.get(at.ok()?).map(|special| special.token)
    }

    /// Splits `text` into special tokens and the text between them.
    pub(super) fn cut(&self, text: &str, trust: Trust<'_>) -> Vec<Fragment> {
        self.cut_where(text, |kind, place| trust.allows(kind, place))
    }

    /// Splits `text` in which only tokens of white space are matched.
    pub(super) fn cut_untrusted(&self, text: &str) -> Vec<Fragment> {
        self.cut_where(text, |kind, _| !kind.is_trusted_only())
    }

    fn cut_where(&self, text: &str, allows: impl Fn(Kind, &Range<usize>) -> bool) -> Vec<Fragment> {
        let taken = self.take(text.as_bytes(), &allows);
        let mut fragments = Vec::with_capacity(taken.len() * 2 + 1);
        let mut at = 0;
        for (start, claim) in taken {
            if at < start {
                fragments.push(Fragment::Text(at..start));
            }
            fragments.push(Fragment::Token(claim.token));
            at = claim.end;
        }
        if at < text.len() {
            fragments.push(Fragment::Text(at..text.len()));
        }
        fragments
    }

    /// The accepted tokens by position.
    fn take(
        &self,
        text: &[u8],
        allows: &impl Fn(Kind, &Range<usize>) -> bool,
    ) -> BTreeMap<usize, Claim> {
        let mut taken = BTreeMap::new();
        let mut offers = BinaryHeap::new();
        for (start, &byte) in text.iter().enumerate() {
            if self.begins.get(usize::from(byte)) == Some(&true)
                && let Some(special) = self.longest(text, start, usize::MAX, allows)
            {
                offers.push(Reverse((special.rank, start)));
            }
        }
        if offers.is_empty() {
            return taken;
        }
        while let Some(Reverse((rank, start))) = offers.pop() {
            let Some(special) = self.ranked(rank) else { continue };
            let free = free_bytes(&taken, start, text.len());
            if special.text.len() <= free {
                let end = start + special.text.len();
                let stripped = if special.kind.is_any(Kind::STRIPS_RIGHT) {
                    text.iter().take(start + free).skip(end).take_while(|b| is_c_space(**b)).count()
                } else {
                    0
                };
                taken.insert(start, Claim { token: special.token, end: end + stripped });
            } else if let Some(shorter) = self.longest(text, start, free, allows) {
                // Back into the heap: longer tokens at other places go first, as in llama.cpp.
                offers.push(Reverse((shorter.rank, start)));
            }
        }
        taken
    }

    fn ranked(&self, rank: u32) -> Option<&Special> {
        self.specials.get(*self.by_rank.get(rank as usize)? as usize)
    }

    /// The longest special token of at most `max_bytes` bytes at `start`.
    fn longest(
        &self,
        text: &[u8],
        start: usize,
        max_bytes: usize,
        allows: &impl Fn(Kind, &Range<usize>) -> bool,
    ) -> Option<&Special> {
        let mut candidates = self.specials.as_slice(); // tokens with the same prefix
        let mut longest = None;
        for (depth, &byte) in text.iter().skip(start).take(max_bytes).enumerate() {
            let at = |special: &Special| special.text.get(depth).copied();
            let first = candidates.partition_point(|special| at(special) < Some(byte));
            let last = candidates.partition_point(|special| at(special) <= Some(byte));
            candidates = candidates.get(first..last)?;
            // A prefix is sorted before its continuations, and texts are unique: no other candidate
            // can end here.
            let Some(shortest) = candidates.first() else { break };
            let length = depth + 1;
            if shortest.text.len() == length && allows(shortest.kind, &(start..start + length)) {
                longest = Some(shortest);
            }
        }
        longest
    }
}

/// An accepted special token.
#[derive(Clone, Copy, Debug)]
struct Claim {
    token: TokenId,
    /// End of its text and of the white space that it consumes.
    end: usize,
}

/// Bytes from `start` to the next claim; 0 within a claim.
fn free_bytes(taken: &BTreeMap<usize, Claim>, start: usize, text_bytes: usize) -> usize {
    let before = taken.range(..=start).next_back().map_or(0, |(_, claim)| claim.end);
    if before > start {
        return 0;
    }
    taken.range(start..).next().map_or(text_bytes, |(&next, _)| next) - start
}

/// C's `isspace` in the "C" locale.
fn is_c_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests;
