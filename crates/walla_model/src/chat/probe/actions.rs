//! Finds whether a template prints tools, calls and results, and in which form.

use serde_json::json;

use super::Prober;
use super::sample::{KEY, Sample, message, texts_of};
use crate::chat::calls::CallShape;
use crate::chat::history::{self, ActionForm, Content, Form, NormalMessage};
use crate::chat::render::{Actions, ToolsPlace};
use crate::chat::{FILLER, Prompt, RenderOptions, Role, TemplateError, Tools};

/// Maximum number of probes. Published templates take about 60; each candidate that fails takes up
/// to 50.
pub(super) const MAX_PROBES: u32 = 400;

/// Name of the tool in probes.
const TOOL_NAME: &str = "walla_tool";

/// Lists that a form of calls and results has to make acceptable.
const TRIALS: [&str; 24] = [
    "c", "r", "uc", "ucr", "sucr", "suac", "suacr", "suacru", "succrr", "succr", "suaccrra",
    "sucu", "sucrcra", "sucrau", "sucruacr", "sur", "suar", "sucor", "socr", "sucrr", "suacrac",
    "ucua", "suacacru", "suUcru",
];

/// A list of one tool.
pub(super) fn probe_tools() -> Option<Tools> {
    let item = json!({"type": "string", "description": "walla item", "enum": ["walla nails"]});
    let parameters = json!({"type": "object", "properties": {"item": item}, "required": ["item"]});
    let description = "walla tool description";
    let function = json!({"name": TOOL_NAME, "description": description, "parameters": parameters});
    Tools::new(&json!([{"type": "function", "function": function}]), description).ok()
}

/// Support of a template for tools, calls and results.
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
        messages: impl Iterator<Item = Content<'a>>,
        for_reply: bool,
        tools: &Tools,
    ) -> Vec<NormalMessage<'a>> {
        let Some(place) = self.tools else {
            let messages = with_description(messages, tools.description());
            return history::normalize(&self.form, messages, for_reply);
        };
        // Templates that print tools in the first user message print the first message there.
        let form = Form { agent_first: false, ..self.form };
        let mut normal = history::normalize(&form, messages, for_reply);
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
    messages: impl Iterator<Item = Content<'a>>,
    description: &str,
) -> Vec<Content<'a>> {
    let mut messages: Vec<_> = messages.collect();
    if description.is_empty() {
        return messages;
    }
    match messages.first_mut() {
        Some((Role::System, persona, _)) if !persona.is_empty() => {
            *persona = [persona, "\n\n", description].concat().into();
        }
        Some((Role::System, persona, _)) => *persona = description.to_owned().into(),
        _ => messages.insert(0, (Role::System, description.to_owned().into(), None)),
    }
    messages
}

impl Prober<'_> {
    /// Renders a list of messages in the form of `found`.
    pub fn render_actions(
        &self,
        letters: &str,
        found: &ActionFindings,
        tools: Option<&Tools>,
        options: &RenderOptions,
    ) -> Result<Prompt, TemplateError> {
        let texts = texts_of(letters, 0);
        let messages = letters.chars().zip(&texts).map(message);
        let for_reply = options.add_generation_prompt;
        let normal = match tools {
            Some(tools) => found.with_tools(messages, for_reply, tools),
            None => history::normalize(&found.form, messages, for_reply),
        };
        self.run(&normal, found.reading(tools), options)
    }

    /// As `render_actions`; `None` if it fails or too many probes ran.
    fn sample(
        &self,
        letters: &str,
        found: &ActionFindings,
        tools: Option<&Tools>,
        add_generation_prompt: bool,
    ) -> Option<Sample> {
        self.action_probes.set(self.action_probes.get().checked_sub(1)?);
        let options = RenderOptions { add_generation_prompt, ..RenderOptions::default() };
        let prompt = self.render_actions(letters, found, tools, &options).ok()?;
        Some(Sample::new(&prompt, &texts_of(letters, 0)))
    }

    /// Whether a list in this form, not for a reply, is printed completely and in order.
    fn prints(&self, letters: &str, form: Form) -> bool {
        let sample = self.sample(letters, &ActionFindings::none(form), None, false);
        sample.is_some_and(|sample| sample.is_in_order_without_system(letters))
    }

    /// The template's support for tools, calls and results.
    pub fn actions(&self, form: &Form) -> ActionFindings {
        let tools = probe_tools();
        let places = match &tools {
            Some(tools) => [self.tools_place(form, tools), None],
            None => [None, None],
        };
        let candidates = self.candidates(form);
        for (nth, place) in places.into_iter().enumerate() {
            if nth > 0 && place == places[0] {
                break;
            }
            for &form in &candidates {
                let found = ActionFindings { tools: place, form };
                let with_tools = place.and(tools.as_ref());
                if self.passes(&found, None) && (place.is_none() || self.passes(&found, with_tools))
                {
                    return found;
                }
            }
        }
        ActionFindings::none(*form)
    }

    /// Whether every trial is printed completely and in order.
    fn passes(&self, found: &ActionFindings, tools: Option<&Tools>) -> bool {
        TRIALS.iter().all(|letters| {
            let sample = self.sample(letters, found, tools, true);
            sample.is_some_and(|sample| sample.is_in_order_without_system(letters))
        })
    }

    /// Where the template reads tools.
    fn tools_place(&self, form: &Form, tools: &Tools) -> Option<ToolsPlace> {
        let prints = |place: &ToolsPlace| {
            let found = ActionFindings { tools: Some(*place), form: *form };
            let sample = self.sample("su", &found, Some(tools), true);
            sample.is_some_and(|sample| sample.is_whole() && sample.text.contains(TOOL_NAME))
        };
        [ToolsPlace::Variable, ToolsPlace::SystemMessage].into_iter().find(prints)
    }

    /// Forms to try, the most natural first. The last one has no calls and results, which every
    /// template accepts.
    fn candidates(&self, form: &Form) -> Vec<Form> {
        let with = |actions: ActionForm| Form { actions, ..*form };
        let mut all = Vec::new();
        if let Some(shape) = self.call_shape(form) {
            let shape = Some(shape);
            let of_call =
                ActionForm { shape, with_text: true, several: true, ..ActionForm::default() };
            let calls = ActionForm {
                with_text: self.prints("uac", with(of_call)),
                several: self.prints("ucc", with(of_call)),
                uncounted: !form.repeats && !self.prints("ucu", with(of_call)),
                ..of_call
            };
            let natural = ActionForm { result_last: true, ..calls };
            let natural = ActionForm { results: self.takes_results(with(natural)), ..natural };
            let needs_result = natural.results && self.leaves_turn_open(with(calls));
            let natural = ActionForm { needs_result, ..natural };
            let cautious = Form { agent_first: false, agent_last: false, ..*form };
            let apart = |actions| ActionForm { with_text: false, several: false, ..actions };
            all.push(with(natural));
            all.push(Form { actions: natural, ..form.without_system() });
            all.push(Form { actions: natural, ..cautious });
            all.push(Form { actions: ActionForm { result_last: false, ..natural }, ..cautious });
            all.push(Form { actions: apart(natural), ..cautious });
            all.push(with(ActionForm { results: false, ..calls }));
            all.push(Form { actions: ActionForm { results: false, ..apart(calls) }, ..cautious });
        }
        let results = ActionForm { results: true, result_last: true, ..ActionForm::default() };
        if self.takes_results(with(results)) {
            all.push(with(results));
            all.push(with(ActionForm { result_last: false, ..results }));
        }
        all.push(*form);
        all
    }

    /// The form in which the template reads calls; `None` if it prints none.
    fn call_shape(&self, form: &Form) -> Option<CallShape> {
        let python_map = format!("'{KEY}':");
        let mut last = None;
        for shape in CallShape::ALL {
            let actions = ActionForm { shape: Some(shape), ..ActionForm::default() };
            let found = ActionFindings::none(Form { actions, ..*form });
            let Some(sample) = self.sample("uc", &found, None, false) else { continue };
            if sample.is_in_order() {
                // A map that is printed without `tojson`: the template expects a text.
                if !sample.text.contains(&python_map) {
                    return Some(shape);
                }
                last = last.or(Some(shape));
            }
        }
        last
    }

    /// Whether the template prints no end of the agent's turn after a call.
    fn leaves_turn_open(&self, form: Form) -> bool {
        let found = ActionFindings::none(form);
        let end = |letters| self.sample(letters, &found, None, false)?.end();
        let ends = [end("uc"), end("ua")];
        matches!(&ends, [Some(call), Some(text)] if !call.ends_with(text.as_str()))
    }

    /// Whether the template prints results, as something other than the agent's text.
    fn takes_results(&self, form: Form) -> bool {
        let with_result = ActionForm { results: true, ..form.actions };
        let found = ActionFindings::none(Form { actions: with_result, ..form });
        let text = |letters| self.sample(letters, &found, None, false).map(|sample| sample.text);
        let Some(printed) = text("ucr") else { return false };
        // A template that knows the role may print results as the user's text.
        let is_user =
            !self.template.source.contains("tool") && text("ucu").as_ref() == Some(&printed);
        let is_agent = text("uca").as_ref() == Some(&printed);
        self.prints("ucr", found.form) && !is_user && !is_agent
    }
}
