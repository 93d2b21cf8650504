//! Recall of searches on the lore of Emberfall.

use crate::questions::{lore, print, questions, recall};

#[test]
fn of_words_alone() {
    let found = recall(&lore(), &questions(), |_, query| query);
    print("words", &found);
}
