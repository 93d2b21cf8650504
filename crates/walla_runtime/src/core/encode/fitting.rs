//! Which turns of a conversation that is too long are part of the prompt.

use walla_types::{FNV1A, TokenId, fnv1a};

use crate::api::{ReplyError, Turn};

/// Tokens that a question is counted as at least. So a prompt whose question is not known yet drops
/// the same turns as the prompt with a short question.
pub(super) fn question_allowance(limit: usize) -> usize {
    (limit / 8).min(QUESTION_TOKENS)
}

/// Maximum of [`question_allowance`].
const QUESTION_TOKENS: usize = 128;

/// Reason why a conversation could not be encoded, and whether a shorter one may work.
#[derive(Debug, PartialEq)]
pub(super) enum TooLong {
    Yes(String),
    No(String),
}

impl From<TooLong> for ReplyError {
    fn from(error: TooLong) -> Self {
        let (TooLong::Yes(reason) | TooLong::No(reason)) = error;
        Self::Text(reason)
    }
}

/// The first turn that a prompt of `limit` tokens can include. No token has more than
/// `max_token_bytes` bytes, and every turn has at least one token, unless it is blank. So only the
/// end of a long conversation is encoded.
pub(super) fn first_possible(turns: &[Turn], limit: usize, max_token_bytes: usize) -> usize {
    let mut left = limit;
    let is_too_much = |turn: &Turn| {
        let fits = left.checked_sub(turn_tokens_min(turn, max_token_bytes));
        left = fits.unwrap_or(left);
        fits.is_none()
    };
    turns.iter().rposition(is_too_much).map_or(0, |last_left_out| last_left_out + 1)
}

/// Minimum number of tokens of a turn. Templates trim text, and blank turns may be left out.
fn turn_tokens_min(turn: &Turn, max_token_bytes: usize) -> usize {
    let bytes = turn.text.trim().len();
    usize::from(bytes > 0) + bytes / max_token_bytes.max(1)
}

/// Minimum number of tokens of these turns.
pub(super) fn tokens_at_least(turns: &[Turn], max_token_bytes: usize) -> usize {
    turns.iter().map(|turn| turn_tokens_min(turn, max_token_bytes)).sum()
}

/// A conversation that may be too long for its prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fitting<'a> {
    pub turns: &'a [Turn],
    /// See [`Conversation::dropped_size`](super::Conversation::dropped_size).
    pub dropped_size: u64,
    /// See [`offset`].
    pub offset: f32,
    /// See [`first_possible`].
    pub possible: usize,
    /// Maximum tokens of the prompt.
    pub limit: usize,
    /// Tokens that the question lacks to its allowance.
    pub question_spare: usize,
    /// Bytes of text per token of this vocabulary.
    pub bytes_per_token: f32,
}

impl Fitting<'_> {
    /// Returns the prompt with all turns if it fits in the limit. Otherwise it drops the oldest
    /// turns. Also returns the number of dropped turns. If not even the last exchange fits, the
    /// prompt has only the question.
    ///
    /// A conversation may begin at every [`STARTS`]-th part of the tokens that turns can have. The
    /// possible beginnings are fixed points of the whole conversation, so that prompts begin with
    /// the same turn, and their cache stays valid, until the conversation has grown by such a part.
    /// All but this part is then evaluated again: `STARTS - 1` tokens for each token of the
    /// conversation. Fewer parts would evaluate less, and drop more of the conversation.
    ///
    /// The first turns are dropped earlier by [`offset`] parts, and fewer of them. So agents that
    /// began to talk together do not all evaluate their conversations in the same frames.
    ///
    /// `encode` makes the prompt that begins with the given turn. It is called O(log(turns)) times.
    pub fn fit(
        &self,
        encode: &mut dyn FnMut(usize) -> Result<Vec<TokenId>, TooLong>,
    ) -> Result<(Vec<TokenId>, usize), TooLong> {
        let limit = self.limit.saturating_sub(self.question_spare);
        let mut tokens_from = |turn: usize| match encode(turn) {
            Ok(tokens) => Ok(Some((tokens, turn)).filter(|(tokens, _)| tokens.len() <= limit)),
            Err(TooLong::Yes(_)) => Ok(None),
            Err(other) => Err(other),
        };
        let all = if self.possible == 0 { tokens_from(0)? } else { None };
        // The room is not known yet; it is less than the limit.
        let all = match all {
            Some(all) if all.0.len() <= limit - self.early_tokens(limit) => return Ok(all),
            all => all,
        };
        let bare = tokens_from(self.turns.len())?;
        let room = limit - bare.as_ref().map_or(limit, |(tokens, _)| tokens.len());
        match all {
            Some(all) if all.0.len() <= limit - self.early_tokens(room) => return Ok(all),
            _ => {}
        }
        let mut fitting = bare;
        let starts = self.starts(room);
        let (mut low, mut high) = (0, starts.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match tokens_from(starts[middle])? {
                Some(fits) => (fitting, high) = (Some(fits), middle),
                None => low = middle + 1,
            }
        }
        // The last exchange may have no fixed point.
        let last = last_exchange(self.turns);
        if fitting.as_ref().is_none_or(|(_, from)| *from == self.turns.len())
            && (self.possible..self.turns.len()).contains(&last)
            && let Some(fits) = tokens_from(last)?
        {
            return Ok(fits);
        }
        match fitting {
            // The question alone may exceed the limit. The caller reports that.
            None => encode(self.turns.len()).map(|tokens| (tokens, self.turns.len())),
            Some(fitting) => Ok(fitting),
        }
    }

    /// Tokens by which the first turns are dropped before the context is full, if turns can have
    /// `room` tokens.
    fn early_tokens(&self, room: usize) -> usize {
        let has_dropped = self.dropped_size > 0;
        if has_dropped { 0 } else { (room as f32 * self.offset / STARTS as f32) as usize }
    }

    /// Turns with which a shortened conversation may begin, if turns can have `room` tokens: the
    /// first turns behind multiples of a part of `room`, except for a reply whose question is
    /// dropped.
    fn starts(&self, room: usize) -> Vec<usize> {
        let part = (room as f32 * self.bytes_per_token / STARTS as f32).max(1.0) as u64;
        let offset = (part as f32 * self.offset) as u64;
        let (mut starts, mut before) = (Vec::new(), self.dropped_size);
        let point_behind = |before: u64| ((before + offset) / part + 1) * part - offset;
        let mut next = point_behind(before);
        for (turn, this) in self.turns.iter().enumerate() {
            if before >= next && !is_answer(self.turns, turn) {
                if turn >= self.possible {
                    starts.push(turn);
                }
                next = point_behind(before);
            }
            before += this.size();
        }
        starts
    }
}

/// Number of parts in which a conversation that fills its context is dropped. With two, an agent
/// remembers between half of its context and all of it, and each token of the conversation is
/// evaluated once more.
const STARTS: usize = 2;

/// Parts, from 0 to 1, by which an agent's fixed points precede the multiples of a part. Agents of
/// different personas or seeds have different offsets.
pub(super) fn offset(persona: &str, seed: u64) -> f32 {
    // The upper bits are mixed best.
    let hash = fnv1a(fnv1a(FNV1A, persona.as_bytes()), &seed.to_le_bytes());
    (hash >> 40) as f32 / (1 << 24) as f32
}

/// Whether a turn belongs to the turn before it ([`Speaker::continues`]).
fn is_answer(turns: &[Turn], turn: usize) -> bool {
    let before = turn.checked_sub(1).and_then(|before| turns.get(before));
    let pair = turns.get(turn).zip(before);
    pair.is_some_and(|(turn, before)| turn.speaker.continues(before.speaker))
}

/// The last turn that belongs to no turn before it.
pub(super) fn last_exchange(turns: &[Turn]) -> usize {
    (0..turns.len()).rev().find(|&turn| !is_answer(turns, turn)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Speaker;

    /// Alternating questions and answers.
    fn talk(turns: usize) -> Vec<Turn> {
        let speakers = [Speaker::User, Speaker::Agent].into_iter().cycle();
        let turn = |speaker| Turn::new(speaker, "0123456789");
        speakers.take(turns).map(turn).collect()
    }

    /// Turns of 10 tokens and 26 bytes.
    fn fitting(turns: &[Turn], limit: usize) -> Fitting<'_> {
        let (dropped_size, possible, question_spare, bytes_per_token) = (0, 0, 0, 2.6);
        let offset = 0.0;
        Fitting { turns, dropped_size, offset, possible, limit, question_spare, bytes_per_token }
    }

    /// Fits prompts of 10 tokens per turn and question; prompts above `max_tokens` tokens are too
    /// long to encode. Also returns the number of encodings.
    fn fit_counted(turns: usize, limit: usize, max_tokens: usize) -> (usize, usize, usize) {
        let mut encoded = 0;
        let mut encode = |from: usize| {
            encoded += 1;
            let tokens = 10 * (turns - from + 1);
            if tokens > max_tokens {
                return Err(TooLong::Yes("too long".into()));
            }
            Ok(vec![TokenId(0); tokens])
        };
        let fits = fitting(&talk(turns), limit).fit(&mut encode);
        let (tokens, dropped) = fits.expect("something fits");
        (tokens.len(), dropped, encoded)
    }

    #[test]
    fn a_prompt_that_fits_is_encoded_once() {
        assert_eq!(fit_counted(8, 90, usize::MAX), (90, 0, 1));
        assert_eq!(fit_counted(0, 90, usize::MAX), (10, 0, 1));
    }

    #[test]
    fn a_half_is_dropped_and_no_prompt_starts_with_an_answer() {
        let mut starts = Vec::new();
        for turns in 17..80 {
            let (tokens, dropped, _) = fit_counted(turns, 170, usize::MAX);
            assert!(dropped.is_multiple_of(2), "{turns}: {dropped}");
            assert!((90..=170).contains(&tokens), "{turns}: {tokens}");
            starts.push(dropped);
        }
        // Of 16 turns that fit, eight are dropped at once.
        starts.dedup();
        assert_eq!(starts, (1..=8).map(|part| 8 * part).collect::<Vec<_>>());
    }

    /// Whether dropped turns are still part of the conversation makes no difference.
    #[test]
    fn first_turns_are_dropped_early_and_then_a_half_each_time() {
        for (offset, first, points) in
            [(0.0, 17, [8, 16, 24]), (0.25, 15, [6, 14, 22]), (0.75, 11, [2, 10, 18])]
        {
            for forgets in [false, true] {
                let all = talk(80);
                let (mut forgotten, mut starts) = (0, Vec::new());
                for turns in 1..26 {
                    let dropped_size = all[..forgotten].iter().map(Turn::size).sum();
                    let left = &all[forgotten..turns];
                    let whole = Fitting { dropped_size, offset, ..fitting(left, 170) };
                    let mut encode =
                        |from: usize| Ok(vec![TokenId(0); 10 * (left.len() - from + 1)]);
                    let (tokens, dropped) = whole.fit(&mut encode).expect("something fits");
                    let is_dropped = forgotten + dropped > 0;
                    assert!(tokens.len() >= if is_dropped { 90 } else { 10 }, "{turns} {offset}");
                    assert_eq!(is_dropped, turns >= first, "{turns} {offset}");
                    starts.push(forgotten + dropped);
                    forgotten += if forgets { dropped } else { 0 };
                }
                starts.dedup();
                assert!(
                    [0].iter().chain(&points).copied().collect::<Vec<_>>().starts_with(&starts)
                );
                assert!(starts.len() >= 3, "{starts:?}");
            }
        }
    }

    #[test]
    fn offsets_are_spread_evenly() {
        let of =
            |n: u64| [offset("You are a guard.", n), offset(&format!("You are guard {n}."), 0)];
        let mut offsets: Vec<_> = (0..500).flat_map(of).collect();
        assert!(offsets.iter().all(|offset| (0.0..1.0).contains(offset)));
        offsets.sort_by(f32::total_cmp);
        for (place, offset) in offsets.iter().enumerate() {
            assert!((offset - place as f32 / 1e3).abs() < 0.1, "{place}: {offset}");
        }
    }

    /// A prompt may drop turns of the conversation for ever, or only for itself: the next prompt
    /// begins with the same turn.
    #[test]
    fn dropping_turns_does_not_move_the_possible_beginnings() {
        let all = talk(200);
        for turns in 20..200 {
            let whole = fitting(&all[..turns], 170);
            for dropped in 0..turns {
                let dropped_size = all[..dropped].iter().map(Turn::size).sum();
                let rest = Fitting { dropped_size, turns: &all[dropped..turns], ..whole };
                let left: Vec<_> = rest.starts(160).iter().map(|turn| turn + dropped).collect();
                let mut expected = whole.starts(160);
                expected.retain(|&turn| turn > dropped);
                // The part in which the rest begins may have another first turn that is no answer.
                assert!(expected.ends_with(&left[left.len().min(1)..]), "{turns} {dropped}");
            }
        }
    }

    #[test]
    fn a_question_is_counted_as_its_allowance() {
        let turns = talk(16);
        let mut encode = |from: usize| Ok(vec![TokenId(0); 10 * (turns.len() - from + 1)]);
        let mut dropped = |question_spare| {
            let fitting = Fitting { question_spare, ..fitting(&turns, 170) };
            fitting.fit(&mut encode).expect("something fits").1
        };
        assert_eq!((dropped(0), dropped(1)), (0, 8));
        assert_eq!([question_allowance(100), question_allowance(4_000)], [12, 128]);
    }

    #[test]
    fn a_long_conversation_is_encoded_log2_times() {
        for max_tokens in [usize::MAX, 3_000, 170] {
            let (tokens, dropped, encoded) = fit_counted(1_000, 170, max_tokens);
            assert_eq!((tokens, dropped), (170, 984), "{max_tokens}");
            assert!(encoded <= 11, "{encoded}");
        }
    }

    #[test]
    fn if_nothing_fits_only_the_question_remains_and_errors_are_returned() {
        let (tokens, dropped, _) = fit_counted(100, 10, usize::MAX);
        assert_eq!((tokens, dropped), (10, 100));
        let refused = || TooLong::No("roles must alternate".into());
        assert_eq!(fitting(&talk(9), 50).fit(&mut |_| Err(refused())), Err(refused()));
    }

    /// Possible first turns of a shortened prompt.
    #[test]
    fn a_prompt_may_start_with_any_turn_except_an_answer() {
        use Speaker::{Agent, Observation, User};
        let turn = |speaker| Turn::new(speaker, "0123456789");
        let starts = |speakers: &[Speaker]| {
            let turns: Vec<Turn> = speakers.iter().copied().map(turn).collect();
            (0..turns.len()).filter(|&at| !is_answer(&turns, at)).collect::<Vec<_>>()
        };
        assert_eq!(starts(&[User, Agent, User, Agent]), [0, 2]);
        assert_eq!(starts(&[Agent, User, User, Agent]), [0, 1, 2]);
        assert_eq!(starts(&[Observation, Agent, Observation, User, Agent]), [0, 2, 3]);
        // An agent that talks without being asked: all turns except the first answer.
        assert_eq!(starts(&[User, Agent, Agent, Agent]), [0, 2, 3]);
        // So any conversation can be shortened, even one without a user.
        let monologue: Vec<Turn> = (0..100).map(|_| turn(Agent)).collect();
        let mut encode = |from: usize| Ok(vec![TokenId(0); 10 * (101 - from)]);
        let fits = fitting(&monologue, 90).fit(&mut encode);
        let (tokens, dropped) = fits.expect("something fits");
        assert_eq!((tokens.len(), dropped), (90, 92));
    }

    #[test]
    fn turns_that_cannot_fit_are_skipped_without_encoding() {
        let turns = talk(1_000);
        // At least two tokens each.
        assert_eq!(first_possible(&turns, 100, 10), 950);
        assert_eq!(first_possible(&turns, 100, 1_000), 900);
        assert_eq!(first_possible(&turns, 10_000, 10), 0);
        assert_eq!(first_possible(&[], 0, 10), 0);
        // A template may leave out blank turns.
        let blank = vec![Turn::new(Speaker::User, " \n"); 1_000];
        assert_eq!(first_possible(&blank, 100, 10), 0);
    }
}
