//! What characters and words say about the end of a sentence.

/// Ends a sentence, alone or with others.
pub(super) fn is_terminator(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | '…' | '‼' | '⁇' | '⁈' | '⁉' | '؟' | '۔' | '।' | '॥' | '։' | '።')
        || is_wide_terminator(c)
}

/// Ends a sentence without white space after it.
pub(super) fn is_wide_terminator(c: char) -> bool {
    matches!(c, '。' | '！' | '？' | '．' | '｡')
}

/// Belongs to the sentence before it when it follows a terminator.
pub(super) fn is_closing(c: char) -> bool {
    matches!(c, '"' | '\'' | '”' | '’' | '»' | '›' | ')' | ']' | '}' | '*' | '_')
        || matches!(c, '」' | '』' | '）' | '】' | '》' | '〉' | '］' | '｣' | '〕')
}

/// What the word before a full stop says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abbreviation {
    /// The full stop ends the sentence.
    No,
    /// It may end the sentence: `etc.`
    Often,
    /// It never does: `Mr.`
    Always,
}

/// A name or a noun follows. Some are words themselves when they are not capitalised, so case
/// counts.
const TITLES: &[&str] = &[
    "Mr", "Mrs", "Ms", "Mx", "Dr", "Prof", "St", "Mt", "Ft", "Sgt", "Capt", "Lt", "Cpt", "Cmdr",
    "Col", "Maj", "Gen", "Adm", "Rev", "Hon", "Gov", "Sen", "Pres", "Mme", "Mlle", "Sr", "Sra",
    "Srta", "Hr", "Fr", "Bros",
];

/// Something explains or compares, and what it is follows.
const LINKS: &[&str] =
    &["vs", "cf", "approx", "ca", "resp", "incl", "viz", "bzw", "z.B", "d.h", "u.a"];

/// Stand at the end of sentences too.
const LAST_WORDS: &[&str] =
    &["etc", "usw", "Inc", "Ltd", "Corp", "Co", "Jr", "al", "a.m", "p.m", "A.M", "P.M"];

impl Abbreviation {
    /// Looks at the last word of a text that a full stop follows.
    pub(super) fn at_end_of(text: &str) -> Self {
        let opens = |c: char| {
            c.is_whitespace()
                || matches!(c, '(' | '[' | '{' | '"' | '“' | '‘' | '\'' | '-' | '–' | '—' | '/')
        };
        let word = text.rsplit(opens).next().unwrap_or_default();
        let starts = word.len() == text.len();
        if LAST_WORDS.contains(&word) {
            Self::Often
        } else if TITLES.contains(&word) || LINKS.contains(&word) || is_initial(word) {
            Self::Always
        } else if is_dotted(word) {
            // `U.S.` and `U.K.` end sentences, `e.g.` and `i.e.` do not.
            if word.chars().all(|c| c == '.' || c.is_uppercase()) {
                Self::Often
            } else {
                Self::Always
            }
        } else if starts && !word.is_empty() && word.chars().all(|c| c.is_ascii_digit()) {
            // The number of a list.
            Self::Always
        } else {
            Self::No
        }
    }
}

/// One capital, as in `J. Smith`; `I` is a word.
fn is_initial(word: &str) -> bool {
    let mut letters = word.chars();
    let first = letters.next();
    first.is_some_and(|c| c.is_uppercase() && c != 'I') && letters.next().is_none()
}

/// Single letters with full stops between them: `e.g`, `U.S`.
fn is_dotted(word: &str) -> bool {
    let is_letter = |part: &str| {
        let mut letters = part.chars();
        letters.next().is_some_and(char::is_alphabetic) && letters.next().is_none()
    };
    word.contains('.') && word.split('.').all(is_letter)
}
