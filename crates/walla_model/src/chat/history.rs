//! Conversations in the form that a template accepts.
//!
//! Some templates refuse two messages of one role in a row, a reply before any question, or a
//! system message; others drop such a message without an error. A [`Form`] describes the lists that
//! a template accepts (`probe.rs` finds it), and [`normalize`] converts any list of messages to a
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
//! Rules for actions (`actions.rs`):
//!
//! 7. A call becomes part of the agent's message directly before it, or else of a new one. If the
//!    template prints no calls, the call is text of this message. Where the template prints a
//!    message's calls without or before its text, or only one call per message, calls are separate
//!    messages.
//! 8. A group is a row of calls, and the results behind them up to the next other message. A result
//!    belongs to the call of its group with the same number; without a number, to the first call
//!    without a result. The results of a group are in the order of its calls, in any order of
//!    arrival. Any other result, and every result if the template accepts none, becomes a message
//!    as for an observation, with [`RESULT_PREFIX`] and, if its call is known, the name of the
//!    call.
//! 9. If two messages of one role cannot be merged because of calls or results between them, and
//!    the template accepts no repetition, a [`FILLER`] of the other role is inserted.
//!
//! 10. Where the template leaves the agent's turn open until a result follows, a call without a
//!     result gets a [`FILLER`], also before the result of a later call.
//!
//! Rules 1 to 5 and 7 to 10 depend only on earlier messages. So a message that is appended to a
//! conversation does not change the earlier ones; at most it extends the last one, or takes the
//! place of its call among the results at the end.

mod actions;

use std::borrow::Cow;

use super::calls::Call;
use super::{Message, Role};
pub(super) use actions::ActionForm;
use actions::Builder;

/// Placeholder text where a template requires a user message. It is language-neutral.
pub const FILLER: &str = "...";

/// Prefix of an observation that is rendered as a user message.
pub const OBSERVATION_PREFIX: &str = "Observation: ";

/// Prefix of a result that is rendered as a user or system message.
pub const RESULT_PREFIX: &str = "Result: ";

/// Separator between merged messages.
const SEPARATOR: &str = "\n\n";

/// Where a template accepts system messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SystemPlace {
    /// Anywhere, also several in a row.
    Anywhere,
    /// One, before all other messages.
    First,
    #[default]
    Nowhere,
}

/// The lists of messages that a template accepts. By default the form that every usable template
/// accepts: user and agent alternate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Calls and results.
    pub actions: ActionForm,
}

/// A message as the template receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormalMessage<'a> {
    /// System, user, assistant or action result.
    pub role: Role,
    /// Text of one message, or of several merged ones. Untrusted, like all message text.
    pub content: Cow<'a, str>,
    /// The message ends with system text inside a user message, so it is merged with the adjacent
    /// user messages.
    joins: bool,
    /// Calls of an assistant message, printed by the template.
    pub(super) calls: Vec<Call>,
    /// The call that an action result belongs to.
    pub(super) answered: Option<Call>,
}

impl<'a> NormalMessage<'a> {
    pub(super) fn new(role: Role, content: impl Into<Cow<'a, str>>) -> Self {
        let (calls, answered) = (Vec::new(), None);
        Self { role, content: content.into(), joins: false, calls, answered }
    }

    /// Appends a text.
    fn append(&mut self, separator: &str, more: Cow<'a, str>) {
        if self.content.is_empty() {
            self.content = more;
        } else if !more.is_empty() {
            let content = self.content.to_mut();
            content.push_str(separator);
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
        .then(|| messages.iter().map(|m| NormalMessage::new(m.role, m.text())).collect())
}

/// Role, text and number of the call of a message.
pub(super) type Content<'a> = (Role, Cow<'a, str>, Option<u128>);

/// Converts the messages to a form that the template accepts.
pub(super) fn normalize<'a>(
    form: &Form,
    messages: impl IntoIterator<Item = Content<'a>>,
    for_reply: bool,
) -> Vec<NormalMessage<'a>> {
    let mut builder = Builder::new(form);
    for (role, content, call) in messages {
        builder.add(role, content, call);
    }
    builder.finish(for_reply)
}

impl<'a> Builder<'_, 'a> {
    /// Adds a message of the conversation.
    fn add(&mut self, role: Role, content: Cow<'a, str>, call: Option<u128>) {
        match role {
            Role::Action => self.add_call(content, call),
            Role::ActionResult => self.add_result(content, call),
            role => self.add_text(role, content),
        }
    }

    /// Adds a message that is no call of a group and no result of one.
    fn add_text(&mut self, role: Role, content: Cow<'a, str>) {
        let form = self.form;
        let is_left_out = !form.blanks || matches!(role, Role::Observation | Role::ActionResult);
        if is_left_out && is_blank(&content) {
            return;
        }
        self.end_calls();
        self.push_text(role, content);
    }

    /// Adds the text of a message behind the calls before it.
    fn push_text(&mut self, role: Role, content: Cow<'a, str>) {
        let form = self.form;
        let message = self.with_role(role, content);
        let is_merged = |last: &&mut NormalMessage<'_>| {
            let is_repeated = match message.role {
                Role::System => form.system == SystemPlace::Anywhere,
                _ => form.repeats && !last.joins && !message.joins,
            };
            last.role == message.role && !is_repeated && last.calls.is_empty()
        };
        if let Some(last) = self.normal.last_mut().filter(is_merged) {
            last.joins = message.joins;
            last.append(SEPARATOR, message.content);
        } else {
            self.push(message);
        }
    }

    /// A message with a role that the template accepts.
    fn with_role(&self, role: Role, content: Cow<'a, str>) -> NormalMessage<'a> {
        let takes_system = match self.form.system {
            SystemPlace::Anywhere => true,
            SystemPlace::First => self.is_start && role == Role::System,
            SystemPlace::Nowhere => false,
        };
        let prefixed = |prefix: &str, content: &str| [prefix, content].concat();
        match role {
            Role::System | Role::Observation if takes_system => {
                NormalMessage::new(Role::System, content)
            }
            Role::ActionResult => {
                let role = if takes_system { Role::System } else { Role::User };
                NormalMessage::new(role, prefixed(RESULT_PREFIX, &content))
            }
            Role::System => {
                NormalMessage { joins: true, ..NormalMessage::new(Role::User, content) }
            }
            Role::Observation => {
                NormalMessage::new(Role::User, prefixed(OBSERVATION_PREFIX, &content))
            }
            Role::User => NormalMessage::new(Role::User, content),
            Role::Assistant | Role::Action => NormalMessage::new(Role::Assistant, content),
        }
    }

    /// The list, with a filler if the model cannot reply to its last message.
    fn finish(mut self, for_reply: bool) -> Vec<NormalMessage<'a>> {
        let form = self.form;
        self.end_group(for_reply);
        let can_reply = match self.normal.last() {
            Some(last) => match last.role {
                Role::User => true,
                Role::Assistant | Role::Action => form.agent_last && last.calls.is_empty(),
                Role::System | Role::Observation => form.system_last,
                Role::ActionResult => self.can_reply_to_result(),
            },
            None => false,
        };
        if for_reply && !can_reply {
            self.push(NormalMessage::new(Role::User, FILLER));
        }
        self.normal
    }
}

#[cfg(test)]
mod tests;
