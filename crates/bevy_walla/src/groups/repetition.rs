//! Repetitions of sentences.

use walla_runtime::SentenceSplitter;

/// Words that a sentence must have in common with another one to repeat it, of the words of the
/// longer one.
const SHARE: f32 = 0.8;

/// Sentences of this many words, such as greetings, may be repeated.
const SHORT_WORDS: usize = 3;

/// Whether a sentence has nearly the same words as one of these texts.
pub(super) fn is_repeated<'a>(sentence: &str, texts: impl Iterator<Item = &'a str>) -> bool {
    let said = words(sentence);
    if said.len() <= SHORT_WORDS {
        return false;
    }
    let mut is_repeated = false;
    let mut compare = |earlier: &str| {
        let earlier = words(earlier);
        let most = said.len().max(earlier.len());
        is_repeated |= common(&said, &earlier) as f32 >= SHARE * most as f32;
    };
    for text in texts {
        let mut splitter = SentenceSplitter::new();
        splitter.push(text, &mut compare);
        splitter.finish(&mut compare);
    }
    is_repeated
}

/// The words in lower case, sorted.
fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let mut words: Vec<String> = words.map(str::to_lowercase).collect();
    words.sort_unstable();
    words
}

/// Number of words that both have.
fn common(mut a: &[String], mut b: &[String]) -> usize {
    let mut count = 0;
    while let ([first, rest_a @ ..], [second, rest_b @ ..]) = (a, b) {
        match first.cmp(second) {
            std::cmp::Ordering::Less => a = rest_a,
            std::cmp::Ordering::Greater => b = rest_b,
            std::cmp::Ordering::Equal => {
                (a, b) = (rest_a, rest_b);
                count += 1;
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_with_nearly_the_same_words_is_repeated() {
        let lines =
            ["Good day! I heard that the old mill has burned down.", "Did you see the smoke?"];
        let is_repeated = |sentence| is_repeated(sentence, lines.into_iter());
        assert!(is_repeated("I heard that the old mill has burned down!"));
        assert!(is_repeated("I heard: the old mill has burned down."));
        assert!(is_repeated("did you see the smoke"));
        assert!(!is_repeated("Good day!"), "short sentences may be repeated");
        assert!(!is_repeated("The old mill was a good place to sleep."));
        assert!(!is_repeated(""));
    }
}
