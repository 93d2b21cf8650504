//! Conversations in the form that a template accepts.
//!
//! Some templates refuse two messages of one role in a row, a reply before any question, or a
//! system message; others drop such a message without an error. A [`Form`] describes the lists that
//! a template accepts (`probe.rs` finds it), and [`normalise`] converts any list of messages to a
//! list of this form. All mapping of roles happens here.
//!
//! Rules, applied from the first message to the last:
//!
//! 1. A system message keeps its role where the template accepts it: anywhere, or only at the
//!    start. Otherwise it becomes part of the adjacent user messages.
//! 2. An observation becomes a system message if the template accepts one anywhere, else a user
//!    message that begins with [`OBSERVATION_PREFIX`]. A blank observation is dropped.
//! 3. Adjacent messages of one role are merged, separated by an empty line, if the template accepts
//!    no repetition.
//! 4. If no reply may precede the first user message, a user [`FILLER`] is inserted before it.
//! 5. If the template skips or refuses blank messages, they are dropped.
//! 6. A list for a reply must end with a message that the template lets the model reply to;
//!    otherwise a user [`FILLER`] is appended.
//!
//! Rules 1 to 5 depend only on earlier messages. So a message that is appended to a conversation
//! does not change the earlier ones; at most it extends the last one.

use std::borrow::Cow;

use super::{Message, Role};

/// Placeholder text where a template requires a user message. It is language-neutral.
pub const FILLER: &str = "...";

/// Prefix of an observation that is rendered as a user message.
pub const OBSERVATION_PREFIX: &str = "Observation: ";

/// Separator between merged messages.
const SEPARATOR: &str = "\n\n";

/// Where a template accepts system messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SystemPlace {
    /// Anywhere, also several in a row.
    Anywhere,
    /// One, before all other messages.
    First,
    Nowhere,
}

/// The lists of messages that a template accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub system: SystemPlace,
    /// Two messages of one role may follow each other.
    pub repeats: bool,
    /// A reply may precede all messages of the user.
    pub agent_first: bool,
    /// The model may reply to a list that ends with a reply.
    pub agent_last: bool,
    /// The model may reply to a list that ends with a system message.
    pub system_last: bool,
    /// Messages may be blank.
    pub blanks: bool,
}

impl Form {
    /// The form that every usable template accepts: user and agent alternate.
    pub const STRICT: Self = Self {
        system: SystemPlace::Nowhere,
        repeats: false,
        agent_first: false,
        agent_last: false,
        system_last: false,
        blanks: false,
    };
}

/// A message as the template receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormalMessage<'a> {
    /// System, user or assistant.
    pub role: Role,
    /// Text of one message, or of several merged ones. Untrusted, like all message text.
    pub content: Cow<'a, str>,
    /// The message ends with system text inside a user message, so it is merged with the adjacent
    /// user messages.
    joins: bool,
}

impl<'a> NormalMessage<'a> {
    fn new(role: Role, content: impl Into<Cow<'a, str>>) -> Self {
        Self { role, content: content.into(), joins: false }
    }

    pub(super) fn as_message(&self) -> Message<'_> {
        Message { role: self.role, content: &self.content }
    }

    /// Appends the text of another message.
    fn append(&mut self, more: Cow<'a, str>) {
        if self.content.is_empty() {
            self.content = more;
        } else if !more.is_empty() {
            let content = self.content.to_mut();
            content.push_str(SEPARATOR);
            content.push_str(&more);
        }
    }
}

/// Whether a template may see an empty text: it sees only ASCII white space, and trims it.
fn is_blank(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' ' | b'\t'..=b'\r'))
}

/// The messages unchanged if every template accepts them: user and agent alternate, and no message
/// is blank.
pub(super) fn as_it_is<'a>(
    messages: &[Message<'a>],
    for_reply: bool,
) -> Option<Vec<NormalMessage<'a>>> {
    let roles = [Role::User, Role::Assistant].into_iter().cycle();
    let is_regular =
        |(message, role): (&Message<'_>, Role)| message.role == role && !is_blank(message.content);
    let ends_well = match messages.last() {
        Some(last) => !for_reply || last.role == Role::User,
        None => false,
    };
    (ends_well && messages.iter().zip(roles).all(is_regular))
        .then(|| messages.iter().map(|m| NormalMessage::new(m.role, m.content)).collect())
}

/// Converts the messages to a form that the template accepts.
pub(super) fn normalise<'a>(
    form: &Form,
    messages: &[Message<'a>],
    for_reply: bool,
) -> Vec<NormalMessage<'a>> {
    let mut normal: Vec<NormalMessage<'a>> = Vec::with_capacity(messages.len() + 1);
    // No message of user or agent yet.
    let mut is_start = true;
    for message in messages {
        let is_left_out = !form.blanks || message.role == Role::Observation;
        if is_left_out && is_blank(message.content) {
            continue;
        }
        let message = with_role(form, message, is_start);
        let is_merged = |last: &&mut NormalMessage<'_>| {
            let is_repeated = match message.role {
                Role::System => form.system == SystemPlace::Anywhere,
                _ => form.repeats && !last.joins && !message.joins,
            };
            last.role == message.role && !is_repeated
        };
        if let Some(last) = normal.last_mut().filter(is_merged) {
            last.joins = message.joins;
            last.append(message.content);
            continue;
        }
        if message.role == Role::Assistant && is_start && !form.agent_first {
            normal.push(NormalMessage::new(Role::User, FILLER));
        }
        is_start &= message.role == Role::System;
        normal.push(message);
    }
    let can_reply = match normal.last().map(|last| last.role) {
        Some(Role::User) => true,
        Some(Role::Assistant) => form.agent_last,
        Some(Role::System | Role::Observation) => form.system_last,
        None => false,
    };
    if for_reply && !can_reply {
        normal.push(NormalMessage::new(Role::User, FILLER));
    }
    normal
}

/// A message with a role that the template accepts. `is_start`: no message of user or agent
/// precedes it.
fn with_role<'a>(form: &Form, message: &Message<'a>, is_start: bool) -> NormalMessage<'a> {
    let Message { role, content } = *message;
    let takes_system = match form.system {
        SystemPlace::Anywhere => true,
        SystemPlace::First => is_start && role == Role::System,
        SystemPlace::Nowhere => false,
    };
    match role {
        Role::System | Role::Observation if takes_system => {
            NormalMessage::new(Role::System, content)
        }
        Role::System => NormalMessage { joins: true, ..NormalMessage::new(Role::User, content) },
        Role::Observation => NormalMessage::new(Role::User, [OBSERVATION_PREFIX, content].concat()),
        Role::User | Role::Assistant => NormalMessage::new(role, content),
    }
}

#[cfg(test)]
mod tests;
