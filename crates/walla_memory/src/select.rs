//! Choice of hits for a prompt.

use std::collections::BTreeSet;

use crate::Hit;

/// The hits that fit `max_tokens` tokens, in the order of `hits`. A hit that does not fit is
/// skipped, later ones may still fit. A text that is equal to an earlier one is dropped.
///
/// `count` returns the tokens of a text, with what separates it from the next one. It is called at
/// most once for each hit.
pub fn select<'s>(hits: &[Hit<'s>], max_tokens: u32, count: impl Fn(&str) -> u32) -> Vec<Hit<'s>> {
    let mut rest = max_tokens;
    let mut texts = BTreeSet::new();
    let mut selected = Vec::new();
    for hit in hits {
        if !texts.insert(&*hit.entry.text) {
            continue;
        }
        if let Some(left) = rest.checked_sub(count(&hit.entry.text)) {
            rest = left;
            selected.push(*hit);
        }
    }
    selected
}
