//! Who speaks next.

use bevy_ecs::prelude::*;
use walla_runtime::find_word;

use super::GroupLine;

/// Bytes of a line in which names are searched: a line of a player can have any length.
const MAX_SEARCHED_BYTES: usize = 4096;

/// The state of a group, for the choice of the next speaker.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GroupTurn<'a> {
    /// The members that can speak, in the order in which they joined.
    pub members: &'a [GroupMember<'a>],
    /// The latest line.
    pub last: Option<&'a GroupLine>,
    /// Lines of members since the latest line of a player.
    pub lines: u32,
    /// [`Group::max_lines`](super::Group::max_lines).
    pub max_lines: u32,
}

/// A member of a group.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GroupMember<'a> {
    /// The agent.
    pub agent: Entity,
    /// Its name.
    pub name: &'a str,
    /// Number of lines since its latest one; `None`: it has not spoken, or too long ago.
    pub silent_for: Option<usize>,
}

impl<'a> GroupTurn<'a> {
    /// The members that did not speak the latest line.
    pub fn others(&self) -> impl DoubleEndedIterator<Item = &'a GroupMember<'a>> {
        let speaker = self.last.and_then(|line| line.speaker);
        self.members.iter().filter(move |member| speaker != Some(member.agent))
    }

    /// The first member whose name is in the latest line, as a whole word in any case, and that did
    /// not speak it.
    #[must_use]
    pub fn addressed(&self) -> Option<Entity> {
        let text = &self.last?.text;
        let text = &text[..text.floor_char_boundary(MAX_SEARCHED_BYTES)];
        let named = self.others().filter_map(|member| Some((place(text, member.name)?, member)));
        named.min_by_key(|(place, _)| *place).map(|(_, member)| member.agent)
    }
}

/// The member that is [addressed](GroupTurn::addressed), otherwise the one that has been silent for
/// the longest time, but not the one that spoke last. After
/// [`max_lines`](super::Group::max_lines) of members in a row, no member.
#[must_use]
pub fn addressed_or_longest_silent(turn: &GroupTurn<'_>) -> Option<Entity> {
    if turn.last.is_none() || turn.lines >= turn.max_lines {
        return None;
    }
    // Of several that have never spoken, the first one.
    let silent = || turn.others().rev().max_by_key(|its| its.silent_for.unwrap_or(usize::MAX));
    turn.addressed().or_else(|| silent().map(|member| member.agent))
}

/// Position of a name, or of its first word, as a whole word of a text in any case.
fn place(text: &str, name: &str) -> Option<usize> {
    let first = name.split_whitespace().next()?;
    find_word(text, name).or_else(|| find_word(text, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole_words() {
        for (text, name, expected) in [
            ("well, odo, what now?", "Odo", Some(6)),
            ("odor! odo.", "Odo", Some(6)),
            ("good day, greta!", "Greta Stone", Some(10)),
            ("nobody", "Odo", None),
            ("", "", None),
            ("ask élodie", "Élodie", Some(4)),
        ] {
            assert_eq!(place(text, name), expected, "{text}");
        }
    }
}
