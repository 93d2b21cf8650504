//! Calls and results in conversations: rules 7 to 10 of [`history`](super).

use std::borrow::Cow;

use super::{FILLER, Form, NormalMessage, SystemPlace, is_blank};
use crate::chat::Role;
use crate::chat::calls::{self, Call, CallShape};

/// The calls and results that a template accepts.
/// By default calls are text of the agent, results are messages as for observations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// A list of messages in a form, from the first message to the last.
pub(super) struct Builder<'f, 'a> {
    pub form: &'f Form,
    pub normal: Vec<NormalMessage<'a>>,
    /// No message of user or agent yet.
    pub is_start: bool,
    /// The calls of the current group.
    group: Vec<Pending<'a>>,
    /// Numbers and names of calls of earlier groups, which may get a result later.
    ended: Vec<(u128, String)>,
    /// Number of calls so far.
    calls: u32,
    /// The last two roles, of user and agent, that a template without repetitions counts.
    turns: [Option<Role>; 2],
}

/// A call of the current group.
struct Pending<'a> {
    call: Call,
    number: Option<u128>,
    result: Option<Cow<'a, str>>,
}

impl<'f, 'a> Builder<'f, 'a> {
    pub fn new(form: &'f Form) -> Self {
        Self {
            form,
            normal: Vec::new(),
            is_start: true,
            group: Vec::new(),
            ended: Vec::new(),
            calls: 0,
            turns: [None; 2],
        }
    }

    /// Adds a call.
    pub fn add_call(&mut self, content: Cow<'a, str>, number: Option<u128>) {
        let Some(call) = Call::parse(&content, self.calls) else {
            return self.add_text(Role::Assistant, content);
        };
        self.calls = self.calls.wrapping_add(1);
        let form = self.form.actions;
        let last = self.normal.last().filter(|last| last.role == Role::Assistant);
        // Calls of one group have no result between them.
        if last.is_none() || self.group.iter().any(|pending| pending.result.is_some()) {
            self.end_calls();
        }
        self.group.push(Pending { call: call.clone(), number, result: None });
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
    pub fn add_result(&mut self, content: Cow<'a, str>, number: Option<u128>) {
        let open = self.group.iter_mut().filter(|pending| pending.result.is_none());
        let its = |pending: &&mut Pending<'_>| number.is_none() || pending.number == number;
        if let Some(pending) = { open }.find(its) {
            pending.result = Some(content);
            return;
        }
        let of_call = |(ended, _): &&(u128, String)| Some(*ended) == number;
        match self.ended.iter().find(of_call).filter(|_| !is_blank(&content)) {
            Some((_, name)) => {
                let named = format!("{name}: {content}");
                self.add_text(Role::ActionResult, named.into());
            }
            None => self.add_text(Role::ActionResult, content),
        }
    }

    fn push_result(&mut self, call: Call, content: Cow<'a, str>) {
        let message = NormalMessage::new(Role::ActionResult, content);
        self.push(NormalMessage { answered: Some(call), ..message });
    }

    /// Ends a group of calls, for a message behind it.
    pub fn end_calls(&mut self) {
        self.end_group(true);
    }

    /// Ends a group of calls: adds its results in the order of the calls. Calls without a result
    /// get a filler if the template needs results; without `for_more`, only before other results.
    pub fn end_group(&mut self, for_more: bool) {
        let actions = self.form.actions;
        let group = std::mem::take(&mut self.group);
        let is_answered = |pending: &Pending<'_>| pending.result.is_some();
        let answered = group.iter().rposition(is_answered).map_or(0, |last| last + 1);
        for (at, Pending { call, number, result }) in group.into_iter().enumerate() {
            self.ended.extend(number.map(|number| (number, call.name.clone())));
            match result {
                Some(content) if actions.results => {
                    let content = if is_blank(&content) { FILLER.into() } else { content };
                    self.push_result(call, content);
                }
                Some(content) if is_blank(&content) => {}
                Some(content) => self.push_text(Role::ActionResult, content),
                None if actions.needs_result && (for_more || at < answered) => {
                    self.push_result(call, FILLER.into());
                }
                None => {}
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
