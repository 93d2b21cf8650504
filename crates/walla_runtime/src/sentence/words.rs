//! Classification of characters and words for the end of a sentence.

/// Ends a sentence, alone or with others.
pub(super) const fn is_terminator(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | '…' | '‼' | '⁇' | '⁈' | '⁉' | '؟' | '۔' | '।' | '॥' | '։' | '።')
        || is_wide_terminator(c)
}

/// Ends a sentence without white space after it.
pub(super) const fn is_wide_terminator(c: char) -> bool {
    matches!(c, '。' | '！' | '？' | '．' | '｡')
}

/// Belongs to the preceding sentence when it follows a terminator.
pub(super) fn is_closing(c: char) -> bool {
    matches!(c, '"' | '\'' | '”' | '’' | '»' | '›' | ')' | ']' | '}' | '*' | '_')
        || matches!(c, '」' | '』' | '）' | '】' | '》' | '〉' | '］' | '｣' | '〕')
}

/// Classification of the word before a full stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abbreviation {
    /// The full stop ends the sentence.
    No,
    /// The full stop may end the sentence: `etc.`
    Often,
    /// The full stop does not end the sentence: `Mr.`
    Always,
}

/// Titles: a name or a noun follows. Lower-case forms of some are ordinary words, so the comparison
/// is case-sensitive.
#[rustfmt::skip]
fn is_title(word: &str) -> bool {
    matches!(
        word,
        "Mr" | "Mrs" | "Ms" | "Mx" | "Dr" | "Prof" | "St" | "Mt" | "Ft" | "Sgt" | "Capt" | "Lt"
            | "Cpt" | "Cmdr" | "Col" | "Maj" | "Gen" | "Adm" | "Rev" | "Hon" | "Gov" | "Sen"
            | "Pres" | "Mme" | "Mlle" | "Sr" | "Sra" | "Srta" | "Hr" | "Fr" | "Bros"
    )
}

/// Words of explanation or comparison: their object follows.
fn is_link(word: &str) -> bool {
    matches!(
        word,
        "vs" | "cf" | "approx" | "ca" | "resp" | "incl" | "viz" | "bzw" | "z.B" | "d.h" | "u.a"
    )
}

/// Abbreviations that also occur at the end of a sentence.
fn is_last_word(word: &str) -> bool {
    matches!(
        word,
        "etc" | "usw" | "Inc" | "Ltd" | "Corp" | "Co" | "Jr" | "al" | "a.m" | "p.m" | "A.M" | "P.M"
    )
}

impl Abbreviation {
    /// Classifies the last word of a text that a full stop follows.
    pub(super) fn at_end_of(text: &str) -> Self {
        let opens = |c: char| {
            c.is_whitespace()
                || matches!(c, '(' | '[' | '{' | '"' | '“' | '‘' | '\'' | '-' | '–' | '—' | '/')
        };
        let word = text.rsplit(opens).next().unwrap_or_default();
        let starts = word.len() == text.len();
        if is_last_word(word) {
            Self::Often
        } else if is_title(word) || is_link(word) || is_initial(word) {
            Self::Always
        } else if is_dotted(word) {
            // `U.S.` and `U.K.` can end a sentence, `e.g.` and `i.e.` do not.
            if word.chars().all(|c| c == '.' || c.is_uppercase()) {
                Self::Often
            } else {
                Self::Always
            }
        } else if starts && !word.is_empty() && word.chars().all(|c| c.is_ascii_digit()) {
            // A list number.
            Self::Always
        } else {
            Self::No
        }
    }
}

/// One capital letter, as in `J. Smith`; `I` is a word.
fn is_initial(word: &str) -> bool {
    let mut letters = word.chars();
    let first = letters.next();
    first.is_some_and(|c| c.is_uppercase() && c != 'I') && letters.next().is_none()
}

/// Single letters separated by full stops: `e.g`, `U.S`.
fn is_dotted(word: &str) -> bool {
    let is_letter = |part: &str| {
        let mut letters = part.chars();
        letters.next().is_some_and(char::is_alphabetic) && letters.next().is_none()
    };
    word.contains('.') && word.split('.').all(is_letter)
}
