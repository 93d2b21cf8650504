//! Converts the bytes of tokens to the text that hosts receive.
//!
//! A character may be spread over several tokens, and so may a stop string; a delta holds
//! [`MAX_DELTA_BYTES`] bytes. Bytes that cannot be shown yet are held back: at most 3 bytes of a
//! character, and a possible beginning of a stop string.
//!
//! The concatenated deltas are the decoding of all tokens (control tokens have no text; bytes that
//! are not UTF-8 become U+FFFD, as in [`String::from_utf8_lossy`]), cut at the beginning of the
//! stop string that was complete first (of several that end at the same position, the longest). The
//! result does not depend on the tokenisation of the bytes.

use std::cmp::Reverse;
use std::collections::VecDeque;

use crate::api::MAX_DELTA_BYTES;
use crate::inline_text::InlineText;

/// Receives deltas: the text, and the number of tokens that it completes.
type Say<'a> = dyn FnMut(InlineText<MAX_DELTA_BYTES>, u32) + 'a;

/// Capacity for held bytes, in addition to the longest stop string: enough for several tokens.
const HELD_BYTES: usize = 256;

/// Assembles the text of one agent's replies, one reply at a time. The default has no buffers.
#[derive(Debug, Default)]
pub(crate) struct Detokenizer {
    /// Stop strings with their indices among the strings given.
    stops: Vec<(u32, String)>,
    /// First bytes of an unfinished character.
    partial: Partial,
    /// Decoded text that is held back.
    held: String,
    /// For each token whose text is not completely sent: the position in `held` where it ends.
    ends: VecDeque<usize>,
    /// Number of tokens that end within the unfinished character in `partial`.
    ends_in_partial: u32,
    stopped: bool,
    /// Index of the complete stop string. Valid if `stopped`.
    stop_index: u32,
}

impl Detokenizer {
    /// Text of replies that end before any of these strings. Empty strings are ignored.
    pub(crate) fn new(stop_strings: &[String]) -> Self {
        let mut text = Self::default();
        text.set_stop_strings(stop_strings);
        text
    }

    /// Begins a reply with new stop strings.
    pub(crate) fn set_stop_strings(&mut self, stop_strings: &[String]) {
        let stops = (0..).zip(stop_strings).filter(|(_, stop)| !stop.is_empty());
        self.stops = stops.map(|(index, stop)| (index, stop.clone())).collect();
        let longest = self.stops.iter().map(|(_, stop)| stop.len()).max().unwrap_or(0);
        self.reset();
        self.held.reserve(HELD_BYTES + longest);
        self.ends.reserve(HELD_BYTES + longest);
    }

    /// Begins a reply.
    pub(crate) fn reset(&mut self) {
        self.partial = Partial::default();
        self.held.clear();
        self.ends.clear();
        self.ends_in_partial = 0;
        self.stopped = false;
    }

    /// Takes bytes in which `tokens` tokens end, and passes the text that can be shown to `say`.
    /// Returns `true` if a stop string is complete: the reply has ended.
    ///
    /// A token without text counts with the text that follows it. No delta counts a token that no
    /// text follows, or a token whose text is at least partly in a stop string.
    pub(crate) fn push_part(&mut self, bytes: &[u8], tokens: u32, say: &mut Say<'_>) -> bool {
        let first_end = match str::from_utf8(bytes) {
            // The common case.
            Ok(text) if self.stops.is_empty() && !self.partial.is_begun() => {
                self.held.push_str(text);
                None
            }
            _ => self.take_bytes(bytes),
        };
        self.record_ends(first_end, tokens);
        self.say(self.held.len() - self.begun(), say);
        self.stopped
    }

    /// Index of the stop string that ended the reply, among all strings given, after
    /// [`push_part`](Self::push_part) has returned `true`. If several end at the same character,
    /// the longest; of equal strings the first.
    pub(crate) fn stop_index(&self) -> u32 {
        self.stop_index
    }

    /// Whether a stop string is complete: the reply has ended.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Shows the text that was held back, because the reply has ended.
    pub(crate) fn finish(&mut self, say: &mut Say<'_>) {
        if self.stopped {
            return;
        }
        if self.partial.is_begun() {
            self.partial = Partial::default();
            self.take(char::REPLACEMENT_CHARACTER);
            self.place_partial_ends(self.held.len());
        }
        self.say(self.held.len(), say);
    }

    /// Capacities of the buffers.
    #[cfg(test)]
    pub(crate) fn capacities(&self) -> (usize, usize) {
        (self.held.capacity(), self.ends.capacity())
    }

    /// Takes bytes up to a stop string. Returns the position in `held` where the first completed
    /// character ends.
    fn take_bytes(&mut self, token: &[u8]) -> Option<usize> {
        let mut first_end = None;
        for &byte in token {
            if self.stopped {
                break;
            }
            let mut decoded = [None; 2];
            self.partial.push(byte, &mut decoded);
            for character in decoded.into_iter().flatten() {
                self.take(character);
                first_end.get_or_insert(self.held.len());
            }
        }
        first_end
    }

    /// Appends a character and cuts the text if a stop string is complete.
    fn take(&mut self, character: char) {
        if self.stopped {
            return;
        }
        self.held.push(character);
        let complete = self.stops.iter().filter(|(_, stop)| self.held.ends_with(&**stop));
        let longest = complete.max_by_key(|(index, stop)| (stop.len(), Reverse(*index)));
        if let Some((index, stop)) = longest {
            self.stopped = true;
            self.stop_index = *index;
            self.held.truncate(self.held.len() - stop.len());
        }
    }

    /// Records where `tokens` tokens end. `first_end` is the end of the first character that their
    /// bytes completed.
    fn record_ends(&mut self, first_end: Option<usize>, tokens: u32) {
        if let Some(end) = first_end {
            self.place_partial_ends(end);
        }
        if self.stopped {
            // Neither the token that completed the stop string nor tokens that end within the cut
            // text count.
            let shown = self.held.len();
            while self.ends.pop_back_if(|end| *end > shown).is_some() {}
        } else if self.partial.is_begun() {
            self.ends_in_partial += tokens;
        } else {
            (0..tokens).for_each(|_| self.ends.push_back(self.held.len()));
        }
    }

    fn place_partial_ends(&mut self, end: usize) {
        for _ in 0..std::mem::take(&mut self.ends_in_partial) {
            self.ends.push_back(end);
        }
    }

    /// Number of bytes at the end of `held` that may be the beginning of a stop string.
    fn begun(&self) -> usize {
        if self.stopped {
            return 0;
        }
        // The beginning of a stop string is held back, so `held` ends with it: no state is needed.
        let held = self.held.as_bytes();
        let begun = |(_, stop): &(u32, String)| {
            let most = held.len().min(stop.len() - 1); // stop strings are not empty
            (1..=most).rev().find(|&bytes| held.ends_with(&stop.as_bytes()[..bytes]))
        };
        self.stops.iter().filter_map(begun).max().unwrap_or(0)
    }

    /// Sends the first `bytes` bytes of `held`, which are whole characters.
    fn say(&mut self, bytes: usize, say: &mut Say<'_>) {
        let mut sent = 0;
        let mut rest = self.held.get(..bytes).unwrap_or_default();
        while !rest.is_empty() {
            let mut delta = InlineText::new();
            let after = delta.push(rest);
            sent += rest.len() - after.len();
            rest = after;
            let mut tokens = 0;
            while self.ends.front().is_some_and(|&end| end <= sent) {
                self.ends.pop_front();
                tokens += 1;
            }
            say(delta, tokens);
        }
        self.held.drain(..sent);
        self.ends.iter_mut().for_each(|end| *end -= sent);
    }
}

/// Bytes of an unfinished character.
#[derive(Clone, Copy, Debug, Default)]
struct Partial {
    bytes: [u8; 4],
    len: usize,
}

impl Partial {
    fn is_begun(&self) -> bool {
        self.len > 0
    }

    /// Takes one byte and decodes up to two characters. The byte completes a character; or it makes
    /// the earlier bytes invalid (one U+FFFD for the longest prefix of a character, as the Unicode
    /// Standard recommends) and then begins or is a character.
    fn push(&mut self, byte: u8, decoded: &mut [Option<char>; 2]) {
        if byte.is_ascii() && !self.is_begun() {
            decoded[0] = Some(byte.into());
            return;
        }
        for out in decoded {
            self.bytes[self.len] = byte;
            self.len += 1;
            match str::from_utf8(&self.bytes[..self.len]) {
                Ok(text) => {
                    *out = text.chars().next();
                    self.len = 0;
                    return;
                }
                Err(error) if error.error_len().is_none() => return,
                Err(_) => *out = Some(char::REPLACEMENT_CHARACTER),
            }
            let alone = self.len == 1;
            self.len = 0;
            if alone {
                return;
            }
            // The byte did not continue the earlier bytes: decode it again, alone.
        }
    }
}

#[cfg(test)]
mod tests;
