use std::ops::Range;

use super::{Cue, Cues, MAX_CUE_BYTES, UnknownCues, is_wide};
use crate::api::FinishReason;

/// Separates the cues of a reply from its speech while it is generated. The result does not depend
/// on how the text was cut into pieces.
///
/// Text that may be a stage direction is held back until it ends or is too long. All other text
/// goes through at once. All text that is not a stage direction is returned exactly once, in order,
/// except for one case: where a direction is removed behind white space, or at the start, the white
/// space after it is removed too.
///
/// No stage direction is left: the speech of the speech has the same text. For this the directions
/// are recognized in the text without the directions inside them.
///
/// A splitter that has been used allocates nothing for a reply that is no longer than earlier ones.
#[derive(Clone, Debug, Default)]
pub struct CueSplitter {
    /// Text from the first mark on that may begin a direction, without the directions in it.
    held: String,
    /// Marks in `held` that may begin a direction, outermost first.
    open: Vec<Open>,
    /// Cues that are not reported yet, in order.
    found: Vec<Found>,
    /// Names and texts of `found`.
    texts: String,
    /// Removed parts of the reply, in order.
    gaps: Vec<Gap>,
    /// Bytes of speech that were returned.
    spoken_bytes: usize,
    /// Bytes of the reply so far.
    reply_bytes: usize,
    /// The character before the next one in the speech.
    before: Option<char>,
    /// A direction was removed here behind white space, or at the start.
    skips_space: bool,
}

/// A mark that may begin a direction.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// Position in the held text.
    at: usize,
    /// Position of the text behind the mark.
    text: usize,
    closing: char,
    before: Option<char>,
}

/// A cue that is not reported yet.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// Position in the held text.
    at: usize,
    /// Bytes of its name and of its text.
    name_bytes: usize,
    text_bytes: usize,
}

/// Text that was removed.
#[derive(Clone, Copy, Debug)]
struct Gap {
    /// Bytes of speech before it.
    spoken_bytes: usize,
    /// Removed bytes up to here, this gap included.
    removed_bytes: usize,
}

/// A part of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CuePiece<'a> {
    /// More speech.
    Speech(&'a str),
    /// A cue at the end of the speech so far.
    Cue(SpokenCue<'a>),
}

/// A cue of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpokenCue<'a> {
    /// [`KnownCue::name`](super::KnownCue::name), or the text if no cue is known.
    pub name: &'a str,
    /// The text between the marks.
    pub text: &'a str,
    /// Bytes of speech before it.
    pub at_bytes: usize,
    /// Bytes of the whole reply before it.
    pub reply_bytes: usize,
}

impl From<SpokenCue<'_>> for Cue {
    fn from(cue: SpokenCue<'_>) -> Self {
        Self { name: cue.name.to_owned(), text: cue.text.to_owned(), at_bytes: cue.at_bytes }
    }
}

impl CueSplitter {
    /// Maximum number of directions within each other. Text with more marks is speech.
    pub const MAX_DEPTH: usize = 4;

    /// Takes more text of a reply and passes the speech and the cues that are certain to `say`.
    pub fn push(&mut self, cues: &Cues, delta: &str, mut say: impl FnMut(CuePiece<'_>)) {
        let mut rest = delta;
        loop {
            let (plain, other) = rest.split_at(self.plain(cues, rest));
            if let Some(last) = plain.chars().next_back() {
                say(CuePiece::Speech(plain));
                self.spoken_bytes += plain.len();
                self.reply_bytes += plain.len();
                self.before = Some(last);
            }
            let mut chars = other.chars();
            let Some(c) = chars.next() else { return };
            self.reply_bytes += c.len_utf8();
            self.take(cues, c);
            if self.open.is_empty() {
                self.release(&mut say);
            }
            rest = chars.as_str();
        }
    }

    /// Ends the reply: passes text that was held back to `say`. [`Self::clear`] begins another one.
    pub fn finish(&mut self, mut say: impl FnMut(CuePiece<'_>)) {
        self.open.clear();
        self.release(&mut say);
    }

    /// As [`finish`](Self::finish), for a reply that has ended for this reason. If it was cut off,
    /// a direction that has begun is removed, unless unknown directions are kept.
    pub fn finish_as(&mut self, cues: &Cues, reason: FinishReason, say: impl FnMut(CuePiece<'_>)) {
        let is_cut = match reason {
            FinishReason::EndOfTurn
            | FinishReason::Stop { .. }
            | FinishReason::StopToken
            | FinishReason::CallLimit
            | FinishReason::Scored => false,
            FinishReason::Length
            | FinishReason::ReasoningLength
            | FinishReason::ContextFull
            | FinishReason::Cancelled
            | FinishReason::TimedOut => true,
        };
        let begun = self.open.iter().find(|open| self.is_possible(open));
        let has_text = |open: &&Open| self.held.len() > open.text;
        if let Some(&Open { at, .. }) = begun.filter(has_text)
            && is_cut
            && cues.unknown == UnknownCues::Drop
        {
            self.found.iter_mut().filter(|its| its.at > at).for_each(|its| its.at = at);
            self.held.truncate(at);
            self.remove_to(self.spoken_bytes + at);
        }
        self.finish(say);
    }

    /// Begins another reply, and drops text that was held back.
    pub fn clear(&mut self) {
        self.open.clear();
        self.gaps.clear();
        self.clear_held();
        (self.spoken_bytes, self.reply_bytes) = (0, 0);
        (self.before, self.skips_space) = (None, false);
    }

    /// Bytes of the reply up to the end of the first `spoken_bytes` bytes of its speech.
    #[must_use]
    pub fn reply_bytes(&self, spoken_bytes: usize) -> usize {
        let earlier = self.gaps.partition_point(|gap| gap.spoken_bytes < spoken_bytes);
        let gap = earlier.checked_sub(1).and_then(|last| self.gaps.get(last));
        spoken_bytes + gap.map_or(0, |gap| gap.removed_bytes)
    }

    /// Bytes of speech in the first `reply_bytes` bytes of the reply.
    #[must_use]
    pub fn spoken_bytes(&self, reply_bytes: usize) -> usize {
        let (mut removed, mut spoken) = (0, 0);
        for gap in &self.gaps {
            if gap.spoken_bytes + removed >= reply_bytes {
                break;
            }
            (removed, spoken) = (gap.removed_bytes, gap.spoken_bytes);
        }
        reply_bytes.saturating_sub(removed).max(spoken)
    }

    /// Length of the prefix of `text` that is speech in any case. Most text is taken this way, in
    /// bulk.
    fn plain(&self, cues: &Cues, text: &str) -> usize {
        if !self.open.is_empty() || self.skips_space {
            return 0;
        }
        text.find(|c| cues.marks.closing(c).is_some()).unwrap_or(text.len())
    }

    fn take(&mut self, cues: &Cues, c: char) {
        if std::mem::take(&mut self.skips_space) && self.is_skipped(c) {
            self.skips_space = true;
            return self.remove_to(self.spoken_bytes + self.held.len());
        }
        if c == '\n' {
            self.open.clear();
        }
        if let Some(level) = self.closed_by(c) {
            return self.close(cues, level, c);
        }
        if let Some(closing) = cues.marks.closing(c).filter(|_| self.can_open(c)) {
            if self.open.len() == Self::MAX_DEPTH {
                self.open.clear();
            } else {
                let (at, before) = (self.held.len(), self.before);
                self.open.push(Open { at, text: at + c.len_utf8(), closing, before });
            }
        }
        self.speak(c);
    }

    /// White space behind a removed direction; at the start also line breaks.
    fn is_skipped(&self, c: char) -> bool {
        c.is_whitespace() && (c != '\n' || self.before.is_none())
    }

    fn can_open(&self, mark: char) -> bool {
        let Some(before) = self.before else { return true };
        let is_wide_mark = is_wide(mark);
        let within_word = before.is_alphanumeric() && !is_wide(before) && !is_wide_mark;
        let is_doubled = mark == '*' && before == '*';
        !within_word && !is_doubled
    }

    /// Index of the innermost direction that a character closes.
    fn closed_by(&self, c: char) -> Option<usize> {
        if c == '*' && self.before.is_some_and(char::is_whitespace) {
            return None;
        }
        self.open.iter().rposition(|open| {
            open.closing == c && self.held.len() > open.text && self.is_possible(open)
        })
    }

    /// Whether the text behind a mark may be the beginning of a direction.
    fn is_possible(&self, open: &Open) -> bool {
        let text = self.held.get(open.text..).unwrap_or_default();
        text.len() <= MAX_CUE_BYTES && text.chars().next().is_none_or(char::is_alphabetic)
    }

    /// The direction at this level ends with this mark. Directions inside it that have not ended
    /// are part of it.
    fn close(&mut self, cues: &Cues, level: usize, mark: char) {
        let Some(&Open { at, text, before, .. }) = self.open.get(level) else { return };
        self.open.truncate(level);
        let text = self.held.get(text..).unwrap_or_default().trim_end();
        let name = cues.name_of(text);
        if name.is_none() && cues.unknown == UnknownCues::Keep {
            return self.speak(mark);
        }
        // Cues inside the direction have the same place.
        self.found.iter_mut().rev().take_while(|its| its.at > at).for_each(|its| its.at = at);
        if let Some(name) = name {
            self.texts.extend([name, text]);
            let (name_bytes, text_bytes) = (name.len(), text.len());
            self.found.push(Found { at, name_bytes, text_bytes });
        }
        self.held.truncate(at);
        self.before = before;
        self.skips_space = before.is_none_or(char::is_whitespace);
        self.remove_to(self.spoken_bytes + at);
    }

    /// Records that the reply behind this much speech was removed up to here.
    fn remove_to(&mut self, spoken_bytes: usize) {
        while self.gaps.pop_if(|gap| gap.spoken_bytes >= spoken_bytes).is_some() {}
        let removed_bytes = self.reply_bytes - spoken_bytes;
        self.gaps.push(Gap { spoken_bytes, removed_bytes });
    }

    /// Appends a character to the speech, and gives up marks that begin no direction. The text of
    /// an inner direction that has not ended does not count, because it may be removed.
    fn speak(&mut self, c: char) {
        self.held.push(c);
        self.before = Some(c);
        while self.open.last().is_some_and(|open| !self.is_possible(open)) {
            self.open.pop();
        }
    }

    /// Passes all held text and the cues in it on.
    fn release(&mut self, say: &mut impl FnMut(CuePiece<'_>)) {
        let (mut from, mut texts) = (0, &*self.texts);
        for &Found { at, name_bytes, text_bytes } in &self.found {
            say_part(&self.held, from..at, say);
            from = at;
            let (name, rest) = texts.split_at(name_bytes);
            let (text, rest) = rest.split_at(text_bytes);
            texts = rest;
            let at_bytes = self.spoken_bytes + at;
            let reply_bytes = self.reply_bytes(at_bytes);
            say(CuePiece::Cue(SpokenCue { name, text, at_bytes, reply_bytes }));
        }
        say_part(&self.held, from..self.held.len(), say);
        self.spoken_bytes += self.held.len();
        self.clear_held();
    }

    fn clear_held(&mut self) {
        self.held.clear();
        self.found.clear();
        self.texts.clear();
    }
}

fn say_part(held: &str, part: Range<usize>, say: &mut impl FnMut(CuePiece<'_>)) {
    if let Some(text) = held.get(part).filter(|text| !text.is_empty()) {
        say(CuePiece::Speech(text));
    }
}
