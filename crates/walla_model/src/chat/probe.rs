//! Finds the lists of messages that a template accepts, and whether it works at all, by rendering
//! short conversations.
//!
//! A template is a program, so neither its source nor its name or family shows which lists of
//! messages it accepts. Each probe renders a list of messages with unique texts and searches for
//! them in the output: a template may fail, drop a message without an error, or move one. Templates
//! cannot read untrusted text, so other texts give the same result.
//!
//! About 45 probes take 0.6 to 1.3 ms for the published templates (release build, one core of an
//! Intel Xeon, 2026-11-26). A template that prints actions takes about 110 probes and 2 to 16 ms,
//! Gemma 4's 50 ms (best of 20, on a loaded machine). Their limits are lower than the limits of a
//! real conversation, so a hostile template does not delay loading.

mod actions;
mod sample;

use std::cell::Cell;
use std::collections::BTreeSet;

use minijinja::machinery::{Instruction, Instructions};
use minijinja::{Environment, ErrorKind};

use super::history::{self, ActionForm, Form, NormalMessage, SystemPlace};
use super::render::{Actions, Program};
use super::{
    ChatTemplate, Message, NAME, Prompt, RenderOptions, Role, Segment, TemplateError, Tools, guard,
};
use actions::ActionFindings;
use sample::{Sample, message, role, texts_of};

/// Maximum number of instructions of one probe. Published templates take less than 2,000.
const FUEL: u64 = 100_000;

/// Bytes that a template may handle in one probe.
const MAX_BYTES: u64 = 4 << 20;

/// Rounds of user and agent in the longest probe.
const ROUNDS: usize = 20;

/// Additional characters of the texts in a probe of long texts.
const LONG_TEXT: usize = 2_000;

/// Number of characters that an error quotes of a source that is not a template.
const MAX_QUOTED: usize = 40;

/// The error of a template that loses the text of a message of this role.
type LostText = fn(Role) -> TemplateError;

/// Results of probing a template.
#[derive(Debug)]
pub(super) struct Findings {
    /// The lists of messages that it accepts.
    pub form: Form,
    /// Tools, calls and results.
    pub actions: ActionFindings,
    /// Why the template is unusable.
    pub fault: Option<TemplateError>,
    /// Defects that do not affect conversations.
    pub warnings: Vec<String>,
}

impl Findings {
    pub fn of(template: &ChatTemplate) -> Self {
        let prober = match Prober::new(template) {
            Ok(prober) => prober,
            Err(fault) => return Self::useless(fault),
        };
        let fault = prober.fault();
        // All other probes would fail in the same way.
        if let Some(fault) = &fault
            && *fault != TemplateError::Unmarked
        {
            return Self::useless(fault.clone());
        }
        let form = prober.form();
        let fault = fault.or_else(|| prober.fault_of_forms(&form));
        let actions = prober.actions(&form);
        Self { form, actions, fault, warnings: prober.warnings() }
    }

    fn useless(fault: TemplateError) -> Self {
        let form = Form::default();
        let actions = ActionFindings::none(form);
        Self { form, actions, fault: Some(fault), warnings: Vec::new() }
    }

    /// The messages that the template receives for a conversation.
    pub fn prepare<'a>(
        &self,
        messages: &[Message<'a>],
        for_reply: bool,
        tools: Option<&Tools>,
    ) -> Vec<NormalMessage<'a>> {
        let contents = messages.iter().map(|m| (m.role, m.text(), m.call));
        match tools {
            Some(tools) => self.actions.with_tools(contents, for_reply, tools),
            None if messages.iter().any(|message| message.role.is_of_action()) => {
                history::normalize(&self.actions.form, contents, for_reply)
            }
            None => history::normalize(&self.form, contents, for_reply),
        }
    }
}

/// Renders probes: lists of messages, each written as one letter. `s` is a system message, `u` a
/// user message, `a` an agent message, `o` an observation, `c` a call, `r` a result. Capital
/// letters are blank messages.
struct Prober<'t> {
    template: &'t ChatTemplate,
    environment: Environment<'t>,
    instructions: Instructions<'t>,
    /// Number of probes of actions that are left.
    action_probes: Cell<u32>,
}

impl<'t> Prober<'t> {
    fn new(template: &'t ChatTemplate) -> Result<Self, TemplateError> {
        let mut environment = (*template.environment).clone();
        environment.set_fuel(Some(FUEL));
        let instructions = guard::compile(NAME, &template.source)?;
        let action_probes = Cell::new(actions::MAX_PROBES);
        Ok(Self { template, environment, instructions, action_probes })
    }

    fn run(
        &self,
        messages: &[NormalMessage<'_>],
        actions: Actions<'_>,
        options: &RenderOptions,
    ) -> Result<Prompt, TemplateError> {
        let (environment, instructions) = (&self.environment, &self.instructions);
        let program = Program { environment, instructions, budget: MAX_BYTES };
        self.template.run(&program, messages, actions, options)
    }

    /// Renders a list of messages, unchanged or in a form.
    fn render(
        &self,
        letters: &str,
        texts: &[String],
        form: Option<&Form>,
        options: &RenderOptions,
    ) -> Result<Prompt, TemplateError> {
        let messages = letters.chars().zip(texts).map(message);
        let normal = match form {
            Some(form) => history::normalize(form, messages, options.add_generation_prompt),
            None => messages.map(|(role, text, _)| NormalMessage::new(role, text)).collect(),
        };
        self.run(&normal, Actions::NONE, options)
    }

    /// Renders a list of messages for a reply.
    fn probe(&self, letters: &str, form: Option<&Form>) -> Result<Sample, TemplateError> {
        self.probe_filled(letters, 0, form)
    }

    /// As `probe`, with texts that are longer by `fill` characters.
    fn probe_filled(
        &self,
        letters: &str,
        fill: usize,
        form: Option<&Form>,
    ) -> Result<Sample, TemplateError> {
        let texts = texts_of(letters, fill);
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let prompt = self.render(letters, &texts, form, &options)?;
        Ok(Sample::new(&prompt, &texts))
    }

    /// Whether the template accepts a list unchanged and prints all of its texts.
    fn takes(&self, letters: &str) -> bool {
        self.probe(letters, None).is_ok_and(|sample| sample.is_whole())
    }

    /// As `takes`, and the texts are in order.
    fn takes_in_order(&self, letters: &str) -> bool {
        self.probe(letters, None).is_ok_and(|sample| sample.is_in_order())
    }

    /// Whether the prompt ends identically after both lists.
    fn ends_alike(&self, letters: &str, others: &str) -> bool {
        let end = |letters| self.probe(letters, None).ok().and_then(|sample| sample.end());
        end(letters).is_some_and(|first| end(others) == Some(first))
    }

    /// Why the template is unusable for a conversation of user and agent.
    fn fault(&self) -> Option<TemplateError> {
        let source = &self.template.source;
        if source.trim().is_empty() {
            return Some(TemplateError::Empty);
        }
        if !source.contains("{{") && !source.contains("{%") {
            let text = source.trim().chars().take(MAX_QUOTED).collect();
            return Some(TemplateError::PlainText { text });
        }
        let talk = format!("{}u", "ua".repeat(ROUNDS));
        let leaves_out = |role| TemplateError::LeavesOut { role };
        let forgets = |_| TemplateError::Forgets { messages: 2 * ROUNDS + 1 };
        let shortens = |_| TemplateError::Shortens { characters: LONG_TEXT };
        let probes: [(&str, usize, LostText); 4] = [
            ("u", 0, leaves_out),
            ("uau", 0, leaves_out),
            (&talk, 0, forgets),
            ("uau", LONG_TEXT, shortens),
        ];
        for (letters, fill, lost_text) in probes {
            let sample = match self.probe_filled(letters, fill, None) {
                Ok(sample) => sample,
                // A costly template can be too slow for the longest probe within a probe's limits.
                Err(TemplateError::Runaway(_)) if letters == talk => continue,
                Err(error) => return Some(error),
            };
            if let Some(letter) = sample.first_lost().and_then(|at| letters.chars().nth(at)) {
                return Some(lost_text(role(letter)));
            }
            if !sample.is_in_order() {
                return Some(TemplateError::Disordered);
            }
            if !sample.is_marked() {
                return Some(TemplateError::Unmarked);
            }
        }
        None
    }

    /// A list that no form makes acceptable, with the reason.
    fn fault_of_forms(&self, form: &Form) -> Option<TemplateError> {
        TRIALS.iter().find_map(|letters| match self.probe(letters, Some(form)) {
            Err(error) => Some(error),
            Ok(sample) => {
                let lost = sample.first_lost().and_then(|at| letters.chars().nth(at));
                lost.map(|letter| TemplateError::LeavesOut { role: role(letter) })
            }
        })
    }

    /// Why the model does not know after a user's message that a reply follows: the template prints
    /// a text before each reply, ignores `add_generation_prompt`, and does not print that text
    /// after the last message.
    fn lacks_generation_prompt(&self) -> bool {
        let texts = texts_of("u", 0);
        let rendered = [false, true].map(|add_generation_prompt| {
            let options = RenderOptions { add_generation_prompt, ..RenderOptions::default() };
            self.render("u", &texts, None, &options).map(|prompt| prompt.text()).ok()
        });
        if rendered[0] != rendered[1] {
            return false;
        }
        let end = self.probe("u", None).ok().and_then(|sample| sample.end());
        let between = self.probe("uau", None).ok().and_then(|sample| sample.between(0, 1));
        let (Some(end), Some(between)) = (end, between) else { return false };
        between.trim().strip_prefix(end.trim()).is_some_and(|rest| !rest.trim().is_empty())
    }

    /// The most natural form for which every probe passes.
    fn form(&self) -> Form {
        let found = self.promised_form();
        let system = match found.system {
            SystemPlace::Anywhere => SystemPlace::First,
            place => place,
        };
        let with_filler =
            Form { agent_first: false, agent_last: false, system_last: false, ..found };
        let strict = Form { system, ..Form::default() };
        let passes = |form: &&Form| {
            let is_whole = |letters: &&str| {
                self.probe(letters, Some(form)).is_ok_and(|sample| sample.is_whole())
            };
            TRIALS.iter().all(is_whole)
        };
        // Single probes can mislead: a template may accept two things apart and not together.
        [found, with_filler, strict].iter().find(passes).copied().unwrap_or(Form::default())
    }

    /// The form that the single probes suggest.
    fn promised_form(&self) -> Form {
        let has_system = ["su", "suau", "suauauau"].iter().all(|letters| self.takes(letters));
        let repeats = ["uu", "uuau", "uaau", "uauu"].iter().all(|l| self.takes_in_order(l));
        let system = if !has_system {
            SystemPlace::Nowhere
        } else if repeats
            && ["ssu", "usa", "uasu", "suasu", "suaus"].iter().all(|l| self.takes_in_order(l))
        {
            SystemPlace::Anywhere
        } else {
            SystemPlace::First
        };
        Form {
            system,
            repeats,
            agent_first: self.takes_in_order("au")
                && self.takes_in_order("auau")
                && (!has_system || self.takes("sau")),
            agent_last: repeats && self.ends_alike("u", "ua") && self.ends_alike("u", "uaa"),
            system_last: system == SystemPlace::Anywhere
                && self.ends_alike("u", "us")
                && self.ends_alike("u", "s"),
            blanks: ["U", "uAu", "UaU"].iter().all(|letters| self.takes(letters)),
            actions: ActionForm::default(),
        }
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Err(error @ (TemplateError::Failed(_) | TemplateError::Runaway(_))) =
            self.probe("su", None)
        {
            warnings.push(format!(
                "with a system message {error}; the persona is part of the first user message"
            ));
        }
        if self.lacks_generation_prompt() {
            warnings.push(
                "the chat template prints no beginning of a reply after the user's message \
                 (it ignores add_generation_prompt)"
                    .to_owned(),
            );
        }
        let unknown = self.unknown_names();
        if !unknown.is_empty() {
            let names = unknown.into_iter().collect::<Vec<_>>().join(", ");
            warnings.push(format!("the chat template uses unknown filters or tests: {names}"));
        }
        warnings
    }

    /// Filters and tests in the source that do not exist. They fail where the template reaches
    /// them.
    fn unknown_names(&self) -> BTreeSet<String> {
        let mut state = self.environment.empty_state();
        let mut is_unknown = |instruction: &Instruction<'_>| {
            let (name, error) = match instruction {
                Instruction::ApplyFilter(name, ..) => (*name, state.apply_filter(name, &[]).err()),
                Instruction::PerformTest(name, ..) => (*name, state.perform_test(name, &[]).err()),
                _ => return None,
            };
            let is_absent =
                |kind| matches!(kind, ErrorKind::UnknownFilter | ErrorKind::UnknownTest);
            error.filter(|error| is_absent(error.kind())).map(|_| name.to_owned())
        };
        let all = (0..).map_while(|at| self.instructions.get(at));
        all.filter_map(&mut is_unknown).collect()
    }
}

impl ChatTemplate {
    /// Template text in conversations of every kind, which contains the template's markers.
    pub(super) fn printed(&self) -> BTreeSet<String> {
        let Ok(prober) = Prober::new(self) else { return BTreeSet::new() };
        let form = &self.findings().form;
        prober.printed(&["u", "su", "suoaau", "ouaua"], |letters, options| {
            prober.render(letters, &texts_of(letters, 0), Some(form), options)
        })
    }

    /// Template text in conversations with tools, calls and results.
    pub(super) fn printed_of_actions(&self) -> BTreeSet<String> {
        let Ok(prober) = Prober::new(self) else { return BTreeSet::new() };
        let found = &self.findings().actions;
        let mut printed = BTreeSet::new();
        for tools in [None, actions::probe_tools()] {
            printed.extend(prober.printed(&["su", "uacrau", "succrr"], |letters, options| {
                prober.render_actions(letters, found, tools.as_ref(), options)
            }));
        }
        printed
    }
}

impl Prober<'_> {
    /// Template text in conversations.
    fn printed(
        &self,
        lists: &[&str],
        render: impl Fn(&str, &RenderOptions) -> Result<Prompt, TemplateError>,
    ) -> BTreeSet<String> {
        let mut printed = BTreeSet::new();
        for letters in lists {
            for flags in 0..4 {
                let options = RenderOptions {
                    add_generation_prompt: flags & 1 != 0,
                    enable_thinking: flags & 2 != 0,
                    ..RenderOptions::default()
                };
                let Ok(prompt) = render(letters, &options) else { continue };
                printed.extend(prompt.segments.into_iter().filter_map(|segment| match segment {
                    Segment::Template(text) => Some(text),
                    Segment::Untrusted(_) => None,
                }));
            }
        }
        printed
    }
}

/// Lists that a form has to make acceptable.
const TRIALS: [&str; 22] = [
    "", "s", "a", "o", "ua", "au", "uu", "ou", "sau", "suu", "ssu", "sou", "usa", "uaau", "uaou",
    "suasu", "suaoa", "UaU", "uAu", "soaoua", "suauauau", "sauauaou",
];
