//! Finds whether a template prints tools, calls and results, and in which form.

use std::borrow::Cow;

use super::Prober;
use crate::chat::calls::CallShape;
use crate::chat::history::{self, Form, NormalMessage};
use crate::chat::render::{Actions, ToolsPlace};
use crate::chat::{FILLER, Role, Tools};

/// What a template does with tools, calls and results.
#[derive(Debug)]
pub(in crate::chat) struct ActionFindings {
    /// Where it reads tools; `None` if it prints none.
    pub tools: Option<ToolsPlace>,
    /// The lists of messages with calls and results that it accepts.
    pub form: Form,
}

impl ActionFindings {
    /// The template prints nothing of actions.
    pub fn none(form: Form) -> Self {
        Self { tools: None, form }
    }

    /// The forms in which the template reads calls and tools.
    pub fn reading<'t>(&self, tools: Option<&'t Tools>) -> Actions<'t> {
        Actions {
            shape: self.form.actions.shape.unwrap_or(CallShape::Function),
            tools: tools.and_then(|tools| Some((tools, self.tools?))),
        }
    }

    /// The messages that the template receives for a conversation with tools.
    pub fn with_tools<'a>(
        &self,
        messages: impl Iterator<Item = (Role, Cow<'a, str>)>,
        for_reply: bool,
        tools: &Tools,
    ) -> Vec<NormalMessage<'a>> {
        let Some(place) = self.tools else {
            let messages = with_description(messages, tools.description());
            return history::normalise(&self.form, messages, for_reply);
        };
        // Templates that print tools in the first user message print the first message there.
        let form = Form { agent_first: false, ..self.form };
        let mut normal = history::normalise(&form, messages, for_reply);
        if !normal.iter().any(|message| message.role == Role::User) {
            normal.push(NormalMessage::new(Role::User, FILLER));
        }
        let has_system = normal.first().is_some_and(|first| first.role == Role::System);
        if place == ToolsPlace::SystemMessage && !has_system {
            normal.insert(0, NormalMessage::new(Role::System, ""));
        }
        normal
    }
}

/// The messages, with a description at the end of the system text.
fn with_description<'a>(
    messages: impl Iterator<Item = (Role, Cow<'a, str>)>,
    description: &str,
) -> Vec<(Role, Cow<'a, str>)> {
    let mut messages: Vec<_> = messages.collect();
    if description.is_empty() {
        return messages;
    }
    match messages.first_mut() {
        Some((Role::System, persona)) if !persona.is_empty() => {
            *persona = [persona, "\n\n", description].concat().into();
        }
        Some((Role::System, persona)) => *persona = description.to_owned().into(),
        _ => messages.insert(0, (Role::System, description.to_owned().into())),
    }
    messages
}

impl Prober<'_> {
    /// What the template does with tools, calls and results.
    pub fn actions(&self, form: &Form) -> ActionFindings {
        ActionFindings::none(*form)
    }
}
