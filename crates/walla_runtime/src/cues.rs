//! Cues: stage directions in a reply, apart from speech.

mod splitter;

#[cfg(test)]
mod tests;

#[cfg(feature = "reflect")]
use bevy_reflect::std_traits::ReflectDefault;
use walla_grammar::Constraint;

use crate::api::FinishReason;

pub use self::splitter::{CuePiece, CueSplitter, SpokenCue};

/// Maximum bytes of text between the marks of a stage direction.
pub const MAX_CUE_BYTES: usize = 64;

/// Which stage directions (`*smiles*`, `(sighs)`, `[laughs]`) are cues, apart from speech.
///
/// A stage direction begins with an opening mark and a letter, has at most [`MAX_CUE_BYTES`] bytes
/// in one line, and ends with the closing mark. An asterisk begins one only if no letter, digit or
/// asterisk precedes it, and ends one only behind a character that is not white space: `2 * 3` and
/// `**bold**` are text. A parenthesis or bracket that follows a letter or digit is text too:
/// `f(x)`. Directions within a direction are removed first, up to
/// [four levels](CueSplitter::MAX_DEPTH).
///
/// Only the reply itself has cues. The text of a player, of a memory or of a result of an action
/// creates none.
///
/// # Examples
/// ```
/// use walla_runtime::{Cues, UnknownCues};
/// let cues = Cues::new().with_cue("smile", ["smiles", "grins"]).unknown(UnknownCues::Keep);
/// let (speech, found) = cues.separate("*grins broadly* Three silver (not two)!");
/// assert_eq!(speech, "Three silver (not two)!");
/// assert_eq!((&*found[0].name, &*found[0].text, found[0].at_bytes), ("smile", "grins broadly", 0));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(
    feature = "reflect",
    derive(bevy_reflect::Reflect),
    reflect(opaque, Default, Clone, Debug, PartialEq)
)]
#[non_exhaustive]
pub struct Cues {
    /// The cues that the program knows. Empty: each stage direction is a cue, and its text is its
    /// name.
    pub known: Vec<KnownCue>,
    /// What happens with other stage directions, if any cue is known.
    pub unknown: UnknownCues,
    /// The marks of stage directions.
    pub marks: CueMarks,
}

/// A cue that the program knows: an emotion, a gesture, a gaze.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct KnownCue {
    /// Its name in the program.
    pub name: String,
    /// Words or phrases of stage directions that mean it, in addition to the name. Case is ignored.
    #[cfg_attr(feature = "serde", serde(default))]
    pub words: Vec<String>,
}

/// What happens with stage directions that the program does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum UnknownCues {
    /// They are removed, and no cue is reported.
    #[default]
    Drop,
    /// They are speech, with their marks.
    Keep,
}

/// Marks of stage directions. Default: all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct CueMarks {
    /// `*smiles*`.
    pub asterisks: bool,
    /// `(smiles)`, and the wide `（微笑）`.
    pub parentheses: bool,
    /// `[smiles]`, and the wide `【微笑】`.
    pub brackets: bool,
}

impl Default for CueMarks {
    fn default() -> Self {
        Self { asterisks: true, parentheses: true, brackets: true }
    }
}

/// A cue with its place, from [`Cues::separate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cue {
    /// [`KnownCue::name`], or the text if no cue is known.
    pub name: String,
    /// The text between the marks.
    pub text: String,
    /// Bytes of speech before it.
    pub at_bytes: usize,
}

impl Cues {
    /// All stage directions are cues.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a cue that the program knows, with words that mean it besides its name.
    #[must_use]
    pub fn with_cue<T: Into<String>>(
        mut self,
        name: impl Into<String>,
        words: impl IntoIterator<Item = T>,
    ) -> Self {
        let words = words.into_iter().map(Into::into).collect();
        self.known.push(KnownCue { name: name.into(), words });
        self
    }

    /// Sets what happens with other stage directions.
    #[must_use]
    pub fn unknown(self, unknown: UnknownCues) -> Self {
        Self { unknown, ..self }
    }

    /// Sets the marks of stage directions.
    #[must_use]
    pub fn marks(self, marks: CueMarks) -> Self {
        Self { marks, ..self }
    }

    /// Separates the cues of a complete text from its speech.
    #[must_use]
    pub fn separate(&self, text: &str) -> (String, Vec<Cue>) {
        self.of_reply(text, FinishReason::EndOfTurn)
    }

    /// Separates the cues of a reply that has ended for this reason from its speech. A stage
    /// direction in which a reply was cut off is no speech: it is dropped, as unknown ones are.
    #[must_use]
    pub fn of_reply(&self, text: &str, reason: FinishReason) -> (String, Vec<Cue>) {
        let (mut speech, mut found) = (String::new(), Vec::new());
        let mut take = |piece: CuePiece<'_>| match piece {
            CuePiece::Speech(text) => speech.push_str(text),
            CuePiece::Cue(cue) => found.push(cue.into()),
        };
        let mut splitter = CueSplitter::default();
        splitter.push(self, text, &mut take);
        splitter.finish_as(self, reason, &mut take);
        (speech, found)
    }

    /// The place in a reply that is `rest_bytes` of speech before the place `end_bytes`: where a
    /// voice is that has not spoken all of a sentence.
    ///
    /// # Examples
    /// ```
    /// use walla_runtime::Cues;
    /// let reply = "Well *nods* then, good night.";
    /// let end = "Well *nods* then".len();
    /// assert_eq!(Cues::new().place_before(reply, end, "hen".len()), "Well *nods* t".len());
    /// assert_eq!(Cues::new().place_before(reply, end, "ll then".len()), "We".len());
    /// ```
    #[must_use]
    pub fn place_before(&self, reply: &str, end_bytes: usize, rest_bytes: usize) -> usize {
        let mut splitter = CueSplitter::default();
        splitter.push(self, reply, |_| {});
        splitter.finish(|_| {});
        splitter.reply_bytes(splitter.spoken_bytes(end_bytes).saturating_sub(rest_bytes))
    }

    /// A sentence for the persona with the cues that the model may write; `None` if no cue is
    /// known, or no mark is in use.
    #[must_use]
    pub fn instruction(&self) -> Option<String> {
        let (open, close) = self.marks.first()?;
        let examples = self.known.iter().filter_map(|cue| {
            // A model rather writes `smiles` than `smile`.
            cue.words.iter().chain([&cue.name]).find(|word| self.is_writable(word))
        });
        let known = examples.map(|example| format!("{open}{example}{close}"));
        let known: Vec<String> = known.collect();
        if known.is_empty() {
            return None;
        }
        let known = known.join(", ");
        Some(format!("Stage directions that you may write in your lines, and no others: {known}."))
    }

    /// A constraint by which a reply has no other stage directions than the words of the known
    /// cues, exactly as they are written. A reply with a constraint calls no actions.
    #[must_use]
    pub fn constraint(&self) -> Constraint {
        let words = self.known.iter().flat_map(|cue| std::iter::once(&cue.name).chain(&cue.words));
        let words = words.filter(|word| self.is_writable(word));
        let words: Vec<String> = words.map(|word| escape(word)).collect();
        let marks: Vec<[String; 2]> = self
            .marks
            .all()
            .map(|(open, close)| [open, close].map(|c| escape(&c.to_string())))
            .collect();
        let opening: String = marks.iter().map(|[open, _]| open.as_str()).collect();
        if opening.is_empty() {
            return Constraint::regex(r"[\s\S]*");
        }
        let other = format!("[^{opening}]");
        if words.is_empty() {
            return Constraint::regex(format!("{other}*"));
        }
        // A cue is at the start or behind a character that is no part of a word, such as a space.
        let words = words.join("|");
        let cue = |[open, close]: &[String; 2]| format!("{open}(?:{words}){close}");
        let cue = marks.iter().map(cue).collect::<Vec<_>>().join("|");
        let behind = format!(r"(?:[^\w{opening}]|[\x{{2E80}}-\x{{10FFFF}}])");
        Constraint::regex(format!("(?:{cue})?(?:{behind}(?:{cue})?|{other})*"))
    }

    /// Whether a word between marks is a cue: not if it begins with a digit, is empty or too long.
    fn is_writable(&self, word: &str) -> bool {
        let Some((open, close)) = self.marks.first() else { return false };
        let (speech, found) = self.separate(&format!("{open}{word}{close}"));
        speech.is_empty() && matches!(&found[..], [cue] if cue.text == word)
    }

    /// The name of a stage direction; `None`: it is unknown.
    fn name_of<'a>(&'a self, text: &'a str) -> Option<&'a str> {
        if self.known.is_empty() {
            return Some(text);
        }
        let first = |cue: &'a KnownCue| {
            let words = std::iter::once(&cue.name).chain(&cue.words);
            words.filter_map(|word| find_word(text, word)).min().map(|at| (at, &*cue.name))
        };
        let found = self.known.iter().filter_map(first);
        found.min_by_key(|(at, _)| *at).map(|(_, name)| name)
    }
}

impl CueMarks {
    /// Opening and closing marks in use.
    fn all(self) -> impl Iterator<Item = (char, char)> {
        let Self { asterisks, parentheses, brackets } = self;
        let marks = [
            (asterisks, '*', '*'),
            (parentheses, '(', ')'),
            (parentheses, '（', '）'),
            (brackets, '[', ']'),
            (brackets, '【', '】'),
        ];
        marks.into_iter().filter(|(is_used, ..)| *is_used).map(|(_, open, close)| (open, close))
    }

    fn first(self) -> Option<(char, char)> {
        self.all().next()
    }

    /// The closing mark of an opening mark in use.
    fn closing(self, open: char) -> Option<char> {
        let is_used = match open {
            '*' => self.asterisks,
            '(' | '（' => self.parentheses,
            '[' | '【' => self.brackets,
            _ => false,
        };
        is_used.then_some(match open {
            '(' => ')',
            '（' => '）',
            '[' => ']',
            '【' => '】',
            other => other,
        })
    }
}

/// Whether words are not separated by spaces in the script of this character, as in Chinese.
fn is_wide(c: char) -> bool {
    c >= '\u{2e80}'
}

/// Byte position of a whole word or phrase in a text. Case is ignored.
#[doc(hidden)]
#[must_use]
pub fn find_word(text: &str, word: &str) -> Option<usize> {
    let part_of_word = |c: char| c.is_alphanumeric() && !is_wide(c);
    let mut before = None;
    text.char_indices().find_map(|(at, c)| {
        let begins = !before.replace(c).is_some_and(part_of_word) || !part_of_word(c);
        let rest = text.get(at..).filter(|_| begins)?;
        let mut chars = rest.chars().flat_map(char::to_lowercase);
        let is_equal = word.chars().flat_map(char::to_lowercase).all(|c| chars.next() == Some(c));
        let ends = word.chars().next_back().is_some_and(|last| !part_of_word(last))
            || !chars.next().is_some_and(part_of_word);
        (is_equal && ends && !word.is_empty()).then_some(at)
    })
}

/// A text as a regular expression.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        // Others have a meaning behind a backslash: `\<` is the start of a word.
        if r"\.+*?()|[]{}^$#&-~/".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
