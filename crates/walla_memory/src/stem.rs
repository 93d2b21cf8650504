//! English stems, so that "smiths", "smith" and "forged", "forging" are equal words.
//!
//! The algorithm is Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with the
//! author's two later changes (`bli`, `logi`), behind a table of irregular forms. Only words of
//! ASCII letters are changed, so other scripts are not affected. Words of other languages in ASCII
//! lose endings too, the same ones in entries and queries.

/// Longer words are names or noise, and are not changed.
const MAX_LETTERS: usize = 32;

/// Irregular forms that occur in speech about a game world, and their base forms.
#[rustfmt::skip]
const IRREGULAR: &[(&str, &str)] = &[
    ("ate", "eat"), ("became", "become"), ("began", "begin"), ("begun", "begin"), ("bought", "buy"),
    ("broke", "break"), ("broken", "break"), ("brought", "bring"), ("built", "build"),
    ("burnt", "burn"), ("calves", "calf"), ("came", "come"), ("caught", "catch"),
    ("children", "child"), ("chose", "choose"), ("chosen", "choose"), ("dealt", "deal"),
    ("drank", "drink"), ("drew", "draw"), ("driven", "drive"), ("drove", "drive"),
    ("drunk", "drink"), ("dug", "dig"), ("eaten", "eat"), ("fallen", "fall"), ("fed", "feed"),
    ("feet", "foot"), ("fell", "fall"), ("fled", "flee"), ("flew", "fly"), ("forgot", "forget"),
    ("fought", "fight"), ("found", "find"), ("froze", "freeze"), ("frozen", "freeze"),
    ("gave", "give"), ("geese", "goose"), ("given", "give"), ("gone", "go"), ("grew", "grow"),
    ("grown", "grow"), ("halves", "half"), ("heard", "hear"), ("held", "hold"), ("hid", "hide"),
    ("hidden", "hide"), ("hooves", "hoof"), ("hung", "hang"), ("kept", "keep"), ("knew", "know"),
    ("knives", "knife"), ("known", "know"), ("laid", "lay"), ("leaves", "leaf"), ("led", "lead"),
    ("lent", "lend"), ("lit", "light"), ("lives", "live"), ("loaves", "loaf"), ("lost", "lose"),
    ("made", "make"), ("men", "man"), ("met", "meet"), ("mice", "mouse"), ("oxen", "ox"),
    ("paid", "pay"), ("ran", "run"), ("rang", "ring"), ("rode", "ride"), ("rung", "ring"),
    ("said", "say"), ("sang", "sing"), ("seen", "see"), ("sent", "send"), ("sheaves", "sheaf"),
    ("shelves", "shelf"), ("slept", "sleep"), ("sold", "sell"), ("spent", "spend"),
    ("spoke", "speak"), ("spoken", "speak"), ("stole", "steal"), ("stolen", "steal"),
    ("stood", "stand"), ("struck", "strike"), ("sung", "sing"), ("swam", "swim"), ("taken", "take"),
    ("taught", "teach"), ("teeth", "tooth"), ("thieves", "thief"), ("thought", "think"),
    ("threw", "throw"), ("thrown", "throw"), ("told", "tell"), ("took", "take"), ("went", "go"),
    ("wives", "wife"), ("woke", "wake"), ("wolves", "wolf"), ("women", "woman"), ("won", "win"),
    ("wore", "wear"), ("worn", "wear"), ("written", "write"), ("wrote", "write"),
];

/// Replaces a word in lower case by its stem.
pub(crate) fn stem(word: &mut String) {
    if word.len() < 3 || word.len() > MAX_LETTERS {
        return;
    }
    if !word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return;
    }
    if let Ok(at) = IRREGULAR.binary_search_by_key(&word.as_str(), |(form, _)| form)
        && let Some((_, base)) = IRREGULAR.get(at)
    {
        (*base).clone_into(word);
    }
    plural(word);
    past(word);
    if let Some(rest) = word.strip_suffix('y')
        && has_vowel(rest)
    {
        cut(word, 1, "i");
    }
    replace(word, STEP_2, 0);
    replace(word, STEP_3, 0);
    step_4(word);
    final_e(word);
}

/// Whether each letter is a consonant. A `y` is one at the start and behind a vowel.
fn consonants(word: &str) -> impl Iterator<Item = bool> + '_ {
    word.bytes().scan(false, |previous, byte| {
        let is = match byte {
            b'a' | b'e' | b'i' | b'o' | b'u' => false,
            b'y' => !*previous,
            _ => true,
        };
        *previous = is;
        Some(is)
    })
}

/// Porter's m: the number of vowel groups that a consonant group follows.
fn measure(word: &str) -> u32 {
    let mut is_behind_vowel = false;
    let mut groups = 0;
    for is_consonant in consonants(word) {
        groups += u32::from(is_consonant && is_behind_vowel);
        is_behind_vowel = !is_consonant;
    }
    groups
}

fn has_vowel(word: &str) -> bool {
    consonants(word).any(|is_consonant| !is_consonant)
}

/// The last letter, if the word ends with it twice and it is a consonant.
fn double_consonant(word: &str) -> Option<u8> {
    let [.., a, b] = word.as_bytes() else { return None };
    (a == b && consonants(word).last()?).then_some(*b)
}

/// Porter's *o: consonant, vowel, consonant at the end, the last one not w, x or y.
fn ends_short(word: &str) -> bool {
    let mut kinds = [true, true, true];
    let mut letters = 0;
    for is_consonant in consonants(word) {
        kinds = [kinds[1], kinds[2], is_consonant];
        letters += 1;
    }
    letters >= 3 && kinds == [true, false, true] && !word.ends_with(['w', 'x', 'y'])
}

/// Replaces the last `bytes` bytes.
fn cut(word: &mut String, bytes: usize, by: &str) {
    word.truncate(word.len().saturating_sub(bytes));
    word.push_str(by);
}

/// Step 1a.
fn plural(word: &mut String) {
    if word.ends_with("sses") || word.ends_with("ies") {
        cut(word, 2, "");
    } else if word.ends_with('s') && !word.ends_with("ss") {
        cut(word, 1, "");
    }
}

/// Step 1b.
fn past(word: &mut String) {
    if let Some(rest) = word.strip_suffix("eed") {
        if measure(rest) > 0 {
            cut(word, 1, "");
        }
        return;
    }
    let Some(bytes) = ["ed", "ing"].into_iter().find_map(|suffix| {
        let rest = word.strip_suffix(suffix)?;
        has_vowel(rest).then_some(suffix.len())
    }) else {
        return;
    };
    cut(word, bytes, "");
    if word.ends_with("at") || word.ends_with("bl") || word.ends_with("iz") {
        word.push('e');
    } else if double_consonant(word).is_some_and(|letter| !b"lsz".contains(&letter)) {
        cut(word, 1, "");
    } else if measure(word) == 1 && ends_short(word) {
        word.push('e');
    }
}

#[rustfmt::skip]
const STEP_2: &[(&str, &str)] = &[
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"),
    ("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"),
    ("ization", "ize"), ("ation", "ate"), ("ator", "ate"), ("alism", "al"), ("iveness", "ive"),
    ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"), ("iviti", "ive"), ("biliti", "ble"),
    ("logi", "log"),
];

#[rustfmt::skip]
const STEP_3: &[(&str, &str)] = &[
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""),
    ("ness", ""),
];

/// Suffixes that step 4 removes. A longer one is before its own endings.
#[rustfmt::skip]
const STEP_4: &[(&str, &str)] = &[
    ("al", ""), ("ance", ""), ("ence", ""), ("er", ""), ("ic", ""), ("able", ""), ("ible", ""),
    ("ant", ""), ("ement", ""), ("ment", ""), ("ent", ""), ("ou", ""), ("ism", ""), ("ate", ""),
    ("iti", ""), ("ous", ""), ("ive", ""), ("ize", ""),
];

/// Applies the first rule whose suffix the word has, if the measure of the rest is larger than
/// `measure_min`.
fn replace(word: &mut String, rules: &[(&str, &str)], measure_min: u32) {
    for (suffix, by) in rules {
        if let Some(rest) = word.strip_suffix(suffix) {
            if measure(rest) > measure_min {
                cut(word, suffix.len(), by);
            }
            return;
        }
    }
}

fn step_4(word: &mut String) {
    match word.strip_suffix("ion") {
        Some(rest) => {
            if rest.ends_with(['s', 't']) && measure(rest) > 1 {
                cut(word, 3, "");
            }
        }
        None => replace(word, STEP_4, 1),
    }
}

/// Steps 5a and 5b.
fn final_e(word: &mut String) {
    if let Some(rest) = word.strip_suffix('e') {
        let groups = measure(rest);
        if groups > 1 || (groups == 1 && !ends_short(rest)) {
            cut(word, 1, "");
        }
    }
    if word.ends_with("ll") && measure(word) > 1 {
        cut(word, 1, "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stemmed(word: &str) -> String {
        let mut word = word.to_owned();
        stem(&mut word);
        word
    }

    #[test]
    fn the_examples_of_the_paper() {
        for (word, expected) in [
            ("caresses", "caress"),
            ("ponies", "poni"),
            ("cats", "cat"),
            ("feed", "feed"),
            ("agreed", "agre"),
            ("plastered", "plaster"),
            ("bled", "bled"),
            ("motoring", "motor"),
            ("sing", "sing"),
            ("conflated", "conflat"),
            ("troubled", "troubl"),
            ("hopping", "hop"),
            ("falling", "fall"),
            ("hissing", "hiss"),
            ("failing", "fail"),
            ("filing", "file"),
            ("happy", "happi"),
            ("sky", "sky"),
            ("relational", "relat"),
            ("conditional", "condit"),
            ("vietnamization", "vietnam"),
            ("operator", "oper"),
            ("hopefulness", "hope"),
            ("formative", "form"),
            ("electrical", "electr"),
            ("goodness", "good"),
            ("adjustment", "adjust"),
            ("replacement", "replac"),
            ("adoption", "adopt"),
            ("probate", "probat"),
            ("rate", "rate"),
            ("cease", "ceas"),
            ("controll", "control"),
            ("roll", "roll"),
            ("generalizations", "gener"),
            ("oscillators", "oscil"),
        ] {
            assert_eq!(stemmed(word), expected, "{word}");
        }
    }

    #[test]
    fn irregular_forms_have_the_stem_of_their_base() {
        assert!(IRREGULAR.is_sorted_by(|a, b| a.0 < b.0), "a binary search needs the order");
        for (form, base) in IRREGULAR {
            assert_eq!(stemmed(form), stemmed(base), "{form}");
        }
    }

    #[test]
    fn other_words_stay() {
        for word in ["münze", "мельница", "水", "3rd", "ox", &"ing".repeat(11)] {
            assert_eq!(stemmed(word), word);
        }
    }
}
