//! Calls and results in conversations: rules 7 to 10 of [`history`](super).

use std::borrow::Cow;
use std::collections::VecDeque;

use super::{FILLER, Form, NormalMessage, SystemPlace, is_blank};
use crate::chat::Role;
use crate::chat::calls::{self, Call, CallShape};

/// The calls and results that a template accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::chat) struct ActionForm {
    /// The form of calls; `None` if the template prints none.
    pub shape: Option<CallShape>,
    /// The template accepts results after calls.
    pub results: bool,
    /// A message has text and calls, printed in this order.
    pub with_text: bool,
    /// A message may have several calls.
    pub several: bool,
    /// A template that accepts no repetition does not count messages with calls.
    pub uncounted: bool,
    /// The model may reply to a list that ends with a result.
    pub result_last: bool,
    /// The template leaves the agent's turn open until each call has a result.
    pub needs_result: bool,
}

impl ActionForm {
    /// Calls are text of the agent, results are messages as for observations.
    pub const TEXT: Self = Self {
        shape: None,
        results: false,
        with_text: false,
        several: false,
        uncounted: false,
        result_last: false,
        needs_result: false,
    };
}

/// A list of messages in a form, from the first message to the last.
pub(super) struct Builder<'f, 'a> {
    pub form: &'f Form,
    pub normal: Vec<NormalMessage<'a>>,
    /// No message of user or agent yet.
    pub is_start: bool,
    /// Calls directly before the next message that have no result.
    pub pending: VecDeque<Call>,
    /// Number of calls so far.
    calls: u32,
    /// The last two roles, of user and agent, that a template without repetitions counts.
    turns: [Option<Role>; 2],
}

impl<'f, 'a> Builder<'f, 'a> {
    pub fn new(form: &'f Form) -> Self {
        Self {
            form,
            normal: Vec::new(),
            is_start: true,
            pending: VecDeque::new(),
            calls: 0,
            turns: [None; 2],
        }
    }

    /// Adds a call.
    pub fn add_call(&mut self, content: Cow<'a, str>) {
        let Some(call) = Call::parse(&content, self.calls) else {
            return self.add_text(Role::Assistant, content);
        };
        self.calls = self.calls.wrapping_add(1);
        let form = self.form.actions;
        let last = self.normal.last().filter(|last| last.role == Role::Assistant);
        // Calls of one group have no result between them.
        if last.is_none() {
            self.end_calls();
        }
        self.pending.push_back(call.clone());
        let last = self.normal.last_mut().filter(|last| last.role == Role::Assistant);
        match (form.shape, last) {
            (None, Some(last)) => last.append("\n", calls::as_text(&content).into()),
            (None, None) => {
                self.push(NormalMessage::new(Role::Assistant, calls::as_text(&content)));
            }
            (Some(_), Some(last)) if form.several && !last.calls.is_empty() => {
                last.calls.push(call);
            }
            (Some(_), Some(last)) if form.with_text && last.calls.is_empty() => {
                last.calls.push(call);
                if form.uncounted {
                    self.turns = [self.turns[1], None];
                }
            }
            (Some(_), _) => {
                let message = NormalMessage::new(Role::Assistant, "");
                self.push(NormalMessage { calls: vec![call], ..message });
            }
        }
    }

    /// Adds a result.
    pub fn add_result(&mut self, content: Cow<'a, str>) {
        let call = self.pending.pop_front().filter(|_| self.form.actions.results);
        let Some(call) = call else { return self.add_text(Role::ActionResult, content) };
        let content = if is_blank(&content) { FILLER.into() } else { content };
        self.push_result(call, content);
    }

    fn push_result(&mut self, call: Call, content: Cow<'a, str>) {
        let message = NormalMessage::new(Role::ActionResult, content);
        self.push(NormalMessage { answered: Some(call), ..message });
    }

    /// Ends a group of calls: later results do not belong to it. Calls without a result get a
    /// filler if the template needs results.
    pub fn end_calls(&mut self) {
        for call in std::mem::take(&mut self.pending) {
            if self.form.actions.needs_result {
                self.push_result(call, FILLER.into());
            }
        }
    }

    /// Whether the model can reply to the last message, a result.
    pub fn can_reply_to_result(&self) -> bool {
        let is_repeated = !self.form.repeats && self.turns[0] == Some(Role::Assistant);
        self.form.actions.result_last && !is_repeated
    }

    /// Appends a message, after the fillers that it needs.
    pub fn push(&mut self, message: NormalMessage<'a>) {
        let form = self.form;
        if message.role == Role::Assistant && self.is_start && !form.agent_first {
            self.push_counted(NormalMessage::new(Role::User, FILLER));
        }
        let counted = self.counted(&message);
        let is_repeated = !form.repeats && counted.is_some() && counted == self.turns[0];
        match message.role {
            Role::User if is_repeated => {
                self.push_counted(NormalMessage::new(Role::Assistant, FILLER));
            }
            Role::Assistant if is_repeated => {
                self.push_counted(NormalMessage::new(Role::User, FILLER));
            }
            _ => {}
        }
        self.push_counted(message);
    }

    fn push_counted(&mut self, message: NormalMessage<'a>) {
        if let Some(role) = self.counted(&message) {
            self.turns = [Some(role), self.turns[0]];
        }
        self.is_start &= message.role == Role::System;
        self.normal.push(message);
    }

    /// The role of a message for a template that accepts no repetition; `None` if it is not
    /// counted.
    fn counted(&self, message: &NormalMessage<'_>) -> Option<Role> {
        let is_counted = message.calls.is_empty() || !self.form.actions.uncounted;
        match message.role {
            Role::User => Some(Role::User),
            Role::Assistant | Role::Action => is_counted.then_some(Role::Assistant),
            Role::ActionResult => (!self.form.actions.uncounted).then_some(Role::User),
            Role::System | Role::Observation => None,
        }
    }
}

impl Form {
    /// The same form with system messages as text of user messages.
    pub(in crate::chat) fn without_system(self) -> Self {
        Self { system: SystemPlace::Nowhere, system_last: false, ..self }
    }
}
