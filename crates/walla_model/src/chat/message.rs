//! Messages of a conversation.

use std::borrow::Cow;

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The system text: the persona.
    System,
    /// The user who talks to the model.
    User,
    /// The model.
    Assistant,
    /// The world: an event that the model perceives, written by the game. No template has this
    /// role. An observation is rendered as a system message if the template accepts one anywhere,
    /// else as a user message that begins with [`OBSERVATION_PREFIX`](super::OBSERVATION_PREFIX).
    Observation,
    /// An action of the model. The content is the call in JSON, written by the model:
    /// `{"name": "give", "arguments": {"item": "nails"}}`. Other content is rendered as the
    /// model's text.
    ///
    /// A call belongs to the model's message directly before it. A template that prints no calls
    /// receives the call as text of the model, between `<tool_call>` and `</tool_call>`.
    Action,
    /// The result of an action, written by the game. It belongs to the call with the same
    /// [number](Message::call) in the group of calls before it; without a number, to the first call
    /// of the group that has no result.
    ///
    /// A template that accepts no results, and a result whose call is not in the group, give a
    /// message as for an observation. It begins with [`RESULT_PREFIX`](super::RESULT_PREFIX).
    ActionResult,
}

impl Role {
    /// The name that templates use. Observations and calls get another role there.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::System | Self::Observation => "system",
            Self::User => "user",
            Self::Assistant | Self::Action => "assistant",
            Self::ActionResult => "tool",
        }
    }

    /// Whether the message is a call or a result.
    pub(super) const fn is_of_action(self) -> bool {
        matches!(self, Self::Action | Self::ActionResult)
    }
}

/// Maximum bytes of a name in a prompt.
pub const MAX_NAME_BYTES: usize = 64;

/// One message. Its content is untrusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Its author.
    pub role: Role,
    /// Its text.
    pub content: &'a str,
    /// Number of a call, unique in the conversation: of a call itself, or of the call that a result
    /// belongs to. It is not part of the prompt. `None` for other messages, and for calls and
    /// results that are matched by their order.
    pub call: Option<u128>,
    /// Name of the user who wrote it, one of several. No known template has a field for it, so
    /// [`text`](Self::text) begins with it. Of other roles it is ignored.
    pub name: Option<&'a str>,
}

impl<'a> Message<'a> {
    /// A message without the number of a call.
    #[must_use]
    pub const fn new(role: Role, content: &'a str) -> Self {
        Self { role, content, call: None, name: None }
    }

    /// The content as templates receive it: `Alice: Good day!` if the user has a name. Of the name
    /// it has one line of at most [`MAX_NAME_BYTES`] bytes.
    #[must_use]
    pub fn text(&self) -> Cow<'a, str> {
        let name = self.name.filter(|_| self.role == Role::User).map(name_line);
        match name.filter(|name| !name.is_empty()) {
            Some(name) => Cow::Owned(format!("{name}: {}", self.content)),
            None => Cow::Borrowed(self.content),
        }
    }
}

/// A name on one line of at most [`MAX_NAME_BYTES`] bytes.
#[must_use]
pub fn name_line(name: &str) -> String {
    let name = &name[..name.floor_char_boundary(MAX_NAME_BYTES)];
    let words = name.split(|c: char| c.is_whitespace() || c.is_control());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ")
}
