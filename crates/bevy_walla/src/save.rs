//! Limits of saved conversations, and serde's traits for [`Conversation`].
//!
//! A save is untrusted: a mod or a damaged disk may have written it. [`Conversation::MAX_TURNS`]
//! and [`Conversation::MAX_TEXT_BYTES`] bound its memory, also if it claims other lengths. It holds
//! no path, no name of an entity and no setting.

use walla_runtime::Turn;

use crate::conversation::{Conversation, ConversationError};

/// The remaining part of both limits.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    turns: usize,
    bytes: usize,
}

impl Allowance {
    const FULL: Self = Self { turns: Conversation::MAX_TURNS, bytes: Conversation::MAX_TEXT_BYTES };

    /// Takes a turn with this number of bytes of text and name.
    fn take(&mut self, bytes: usize) -> Result<(), ConversationError> {
        let (max_turns, max_bytes) = (Conversation::MAX_TURNS, Conversation::MAX_TEXT_BYTES);
        let too_many = ConversationError::TooManyTurns { max_turns };
        self.turns = self.turns.checked_sub(1).ok_or(too_many)?;
        let too_long = ConversationError::TextTooLong { max_bytes };
        self.bytes = self.bytes.checked_sub(bytes).ok_or(too_long)?;
        Ok(())
    }
}

/// Bytes of a turn's text and name.
fn bytes(turn: &Turn) -> usize {
    turn.text.len() + turn.name.as_ref().map_or(0, |name| name.len())
}

impl Conversation {
    /// Maximum number of turns of a saved conversation, 32 times the default of
    /// [`WallaSettings::max_conversation_turns`](crate::WallaSettings::max_conversation_turns).
    pub const MAX_TURNS: usize = 16_384;

    /// Maximum number of bytes of text of a saved conversation, all turns together: 4 MiB, about a
    /// million tokens.
    pub const MAX_TEXT_BYTES: usize = 4 << 20;

    /// A conversation with these turns, oldest first, within the limits of a saved conversation:
    /// for games that read saves in a format without serde.
    ///
    /// # Errors
    /// [`ConversationError`] at the first turn beyond a limit; no later turn is taken from the
    /// iterator.
    pub fn try_new(turns: impl IntoIterator<Item = Turn>) -> Result<Self, ConversationError> {
        let mut allowance = Allowance::FULL;
        let checked = turns.into_iter().map(|turn| allowance.take(bytes(&turn)).map(|()| turn));
        Ok(Self::new(checked.collect::<Result<Vec<_>, _>>()?))
    }
}

#[cfg(feature = "serialize")]
mod with_serde {
    use std::borrow::Cow;
    use std::collections::HashMap;
    use std::fmt;

    use serde::de::{Error as _, SeqAccess, Visitor};
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use walla_runtime::{CallId, ReplyId, Speaker, Turn};

    use super::{Allowance, bytes};
    use crate::conversation::Conversation;

    /// The speaker, and the call of a turn that has one.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum SavedSpeaker<'a> {
        User,
        Agent,
        Observation,
        Action,
        ActionResult,
        /// Number of a reply, and index of the call.
        ActionOf(u64, u32),
        ActionResultOf(u64, u32),
        /// A user with a name.
        Named(#[serde(borrow)] Cow<'a, str>),
    }

    impl<'a> SavedSpeaker<'a> {
        fn of(turn: &'a Turn) -> Self {
            let call = turn.call.map(|CallId { reply_id, index }| (reply_id.0, index));
            match (turn.speaker, call) {
                (Speaker::User, _) if let Some(name) = &turn.name => Self::Named((&**name).into()),
                (Speaker::User, _) => Self::User,
                (Speaker::Agent, _) => Self::Agent,
                (Speaker::Observation, _) => Self::Observation,
                (Speaker::Action, None) => Self::Action,
                (Speaker::Action, Some((reply, index))) => Self::ActionOf(reply, index),
                (Speaker::ActionResult, None) => Self::ActionResult,
                (Speaker::ActionResult, Some((reply, index))) => Self::ActionResultOf(reply, index),
            }
        }

        fn turn(self, text: String) -> Turn {
            let (speaker, call) = match self {
                Self::Named(name) => return Turn::named(&*name, text),
                Self::User => (Speaker::User, None),
                Self::Agent => (Speaker::Agent, None),
                Self::Observation => (Speaker::Observation, None),
                Self::Action => (Speaker::Action, None),
                Self::ActionResult => (Speaker::ActionResult, None),
                Self::ActionOf(reply, index) => (Speaker::Action, Some((reply, index))),
                Self::ActionResultOf(reply, index) => (Speaker::ActionResult, Some((reply, index))),
            };
            let call = call.map(|(reply, index)| CallId { reply_id: ReplyId(reply), index });
            Turn { call, ..Turn::new(speaker, text) }
        }
    }

    /// Gives the calls new ids: the ids of a save may belong to other calls in this process.
    fn renumber(mut turns: Vec<Turn>) -> Vec<Turn> {
        let mut replies = HashMap::new();
        for call in turns.iter_mut().filter_map(|turn| turn.call.as_mut()) {
            call.reply_id = *replies.entry(call.reply_id).or_insert_with(ReplyId::unique);
        }
        turns
    }

    #[derive(Serialize, Deserialize)]
    #[serde(rename = "Turn")]
    struct SavedTurn<'a> {
        #[serde(borrow)]
        speaker: SavedSpeaker<'a>,
        /// Borrowed where the format allows it, so that its length is checked before it is copied.
        #[serde(borrow)]
        text: Cow<'a, str>,
    }

    impl Serialize for Conversation {
        /// A conversation beyond the limits is an error here, not when the save is loaded.
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut allowance = Allowance::FULL;
            let within = self.turns().iter().try_for_each(|turn| allowance.take(bytes(turn)));
            within.map_err(S::Error::custom)?;
            serializer.collect_seq(self.turns().iter().map(|turn| SavedTurn {
                speaker: SavedSpeaker::of(turn),
                text: turn.text.as_str().into(),
            }))
        }
    }

    impl<'de> Deserialize<'de> for Conversation {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_seq(TurnsVisitor).map(renumber).map(Self::new)
        }
    }

    struct TurnsVisitor;

    impl<'de> Visitor<'de> for TurnsVisitor {
        type Value = Vec<Turn>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of turns")
        }

        /// Ignores the length that the save claims: the list grows as turns are read.
        fn visit_seq<A: SeqAccess<'de>>(self, mut turns: A) -> Result<Vec<Turn>, A::Error> {
            let mut allowance = Allowance::FULL;
            let mut read = Vec::new();
            while let Some(SavedTurn { speaker, text }) = turns.next_element()? {
                // Turn by turn: a save that claims millions of turns ends at the limit.
                let name_bytes = match &speaker {
                    SavedSpeaker::Named(name) => name.len(),
                    _ => 0,
                };
                allowance.take(name_bytes + text.len()).map_err(A::Error::custom)?;
                read.push(speaker.turn(text.into_owned()));
            }
            Ok(read)
        }
    }
}

#[cfg(test)]
mod tests {
    use walla_runtime::Speaker;

    use super::*;

    fn turn(bytes: usize) -> Turn {
        Turn::new(Speaker::User, "x".repeat(bytes))
    }

    #[test]
    fn a_conversation_beyond_a_limit_is_refused() {
        let (max_turns, max_bytes) = (Conversation::MAX_TURNS, Conversation::MAX_TEXT_BYTES);
        let turns = |count| (0..count).map(|_| turn(0));
        assert_eq!(Conversation::try_new(turns(max_turns)).map(|c| c.turns().len()), Ok(max_turns));
        let too_many = Err(ConversationError::TooManyTurns { max_turns });
        assert_eq!(Conversation::try_new(turns(max_turns + 1)), too_many);
        assert!(Conversation::try_new([turn(max_bytes - 1), turn(1)]).is_ok());
        let too_long = Err(ConversationError::TextTooLong { max_bytes });
        assert_eq!(Conversation::try_new([turn(max_bytes), turn(1)]), too_long);
    }

    #[test]
    fn an_infinite_save_is_refused_at_the_limit() {
        let endless = std::iter::repeat_with(|| turn(1_000_000));
        assert!(Conversation::try_new(endless).is_err());
        assert!(Conversation::try_new(std::iter::repeat_with(|| turn(0))).is_err());
    }
}
