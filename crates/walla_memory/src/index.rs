//! Inverted index with incremental `add` and `remove`.
//!
//! Documents are slots of the store. Posting lists are sorted by slot; the order has no influence
//! on scores, because each document adds up its terms in the order of the query. The hash map is
//! only used for look-ups and never iterated.

use std::collections::HashMap;
use std::sync::Arc;

use crate::words::for_each_word;

/// A document that contains a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posting {
    pub(crate) slot: u32,
    /// Occurrences in the document.
    pub(crate) count: u32,
}

#[derive(Clone, Debug, Default)]
struct Term {
    text: Arc<str>,
    postings: Vec<Posting>,
}

#[derive(Clone, Debug, Default)]
struct Document {
    /// Words of the text, repetitions included.
    words: u32,
    /// Indices of its distinct terms.
    terms: Box<[u32]>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    by_text: HashMap<Arc<str>, u32>,
    terms: Vec<Term>,
    terms_free: Vec<u32>,
    /// By slot.
    documents: Vec<Document>,
    /// Sum of all documents' words.
    words: u64,
}

impl Index {
    /// Adds the text of a slot that has none.
    pub(crate) fn add(&mut self, slot: u32, text: &str) {
        let mut words: u32 = 0;
        let mut terms = Vec::new();
        for_each_word(text, |word| {
            words = words.saturating_add(1);
            terms.push(self.term(word));
        });
        terms.sort_unstable();
        for same in terms.chunk_by(|a, b| a == b) {
            let Some(term) = same.first().and_then(|&term| self.terms.get_mut(term as usize))
            else {
                continue;
            };
            let posting = Posting { slot, count: same.len() as u32 };
            let at = term.postings.partition_point(|other| other.slot < slot);
            term.postings.insert(at, posting);
        }
        terms.dedup();
        let at = slot as usize;
        if self.documents.len() <= at {
            self.documents.resize_with(at + 1, Document::default);
        }
        if let Some(document) = self.documents.get_mut(at) {
            *document = Document { words, terms: terms.into() };
        }
        self.words += u64::from(words);
    }

    /// Removes the text of a slot, and the terms that no other text has.
    pub(crate) fn remove(&mut self, slot: u32) {
        let Some(document) = self.documents.get_mut(slot as usize).map(std::mem::take) else {
            return;
        };
        self.words -= u64::from(document.words);
        for &index in &document.terms {
            let Some(term) = self.terms.get_mut(index as usize) else { continue };
            if let Ok(at) = term.postings.binary_search_by_key(&slot, |posting| posting.slot) {
                term.postings.remove(at);
            }
            if term.postings.is_empty() {
                self.by_text.remove(&term.text);
                *term = Term::default();
                self.terms_free.push(index);
            } else if term.postings.len() < term.postings.capacity() / 4 {
                term.postings.shrink_to(2 * term.postings.len());
            }
        }
    }

    /// Documents with the term, by slot.
    pub(crate) fn postings(&self, word: &str) -> &[Posting] {
        let index = self.by_text.get(word);
        index.and_then(|&index| self.terms.get(index as usize)).map_or(&[], |term| &term.postings)
    }

    /// Words of a document.
    pub(crate) fn words_of(&self, slot: u32) -> u32 {
        self.documents.get(slot as usize).map_or(0, |document| document.words)
    }

    /// Words of all documents.
    pub(crate) fn words(&self) -> u64 {
        self.words
    }

    /// The term of a word; a new one has no postings yet.
    fn term(&mut self, word: &str) -> u32 {
        if let Some(&index) = self.by_text.get(word) {
            return index;
        }
        let text: Arc<str> = word.into();
        let term = Term { text: text.clone(), postings: Vec::new() };
        let index = match self.terms_free.pop() {
            Some(index) => index,
            None => self.terms.len() as u32,
        };
        match self.terms.get_mut(index as usize) {
            Some(free) => *free = term,
            None => self.terms.push(term),
        }
        self.by_text.insert(text, index);
        index
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Terms with their postings, documents with their words, and their sum. Numbers of terms are
    /// left out: they depend on the history.
    type Content = (BTreeMap<String, Vec<(u32, u32)>>, BTreeMap<u32, u32>, u64);

    fn content(index: &Index) -> Content {
        let mut terms = BTreeMap::new();
        for (text, &at) in &index.by_text {
            let term = &index.terms[at as usize];
            assert_eq!(*text, term.text);
            assert!(!term.postings.is_empty(), "unused terms are removed");
            for posting in &term.postings {
                assert!(index.documents[posting.slot as usize].terms.contains(&at));
            }
            let postings = term.postings.iter().map(|posting| (posting.slot, posting.count));
            terms.insert(text.to_string(), postings.collect());
        }
        let of_terms: usize = index.documents.iter().map(|document| document.terms.len()).sum();
        assert_eq!(of_terms, terms.values().map(Vec::len).sum::<usize>());
        assert_eq!(index.terms.len(), terms.len() + index.terms_free.len());
        let documents = index.documents.iter().enumerate().filter(|(_, of)| of.words > 0);
        let documents = documents.map(|(slot, of)| (slot as u32, of.words)).collect();
        (terms, documents, index.words)
    }

    proptest! {
        #[test]
        fn any_sequence_gives_the_index_of_a_rebuild(
            steps in prop::collection::vec((0_u32..12, "[abc ]{0,12}|水車小屋|Ember’s mill"), 0..60),
        ) {
            let mut index = Index::default();
            let mut texts = BTreeMap::new();
            for (slot, text) in steps {
                // A slot that is used becomes free.
                if texts.remove(&slot).is_some() {
                    index.remove(slot);
                } else {
                    index.add(slot, &text);
                    texts.insert(slot, text);
                }
            }
            let mut rebuilt = Index::default();
            for (slot, text) in &texts {
                rebuilt.add(*slot, text);
            }
            prop_assert_eq!(content(&index), content(&rebuilt));
        }
    }

    #[test]
    fn counts_and_words() {
        let mut index = Index::default();
        index.add(3, "the mill, the miller");
        assert_eq!(index.postings("the"), [Posting { slot: 3, count: 2 }]);
        assert_eq!((index.words_of(3), index.words()), (4, 4));
        index.remove(3);
        assert!(index.postings("the").is_empty());
        assert_eq!((index.words_of(3), index.words()), (0, 0));
    }
}
