//! Runs a template.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::machinery::{Instructions, eval, make_string_output};
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, ErrorKind, context};

use super::calls::CallShape;
use super::history::NormalMessage;
use super::thoughts::Thoughts;
use super::tools::Tools;
use super::{
    ChatTemplate, MAX_OUTPUT_BYTES, Prompt, RenderOptions, Role, TemplateError, budget, methods,
    taint,
};

/// Where a template reads the list of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolsPlace {
    /// The variable `tools`, a list.
    Variable,
    /// The member `tools` of the first message, a system message: a text in JSON, as Phi-4-mini's.
    SystemMessage,
}

/// A compiled template and its limits.
pub(super) struct Program<'e> {
    pub environment: &'e Environment<'e>,
    pub instructions: &'e Instructions<'e>,
    /// Bytes that the template may handle.
    pub budget: u64,
}

/// Forms in which the template reads calls and tools.
#[derive(Clone, Copy)]
pub(super) struct Actions<'t> {
    pub shape: CallShape,
    pub tools: Option<(&'t Tools, ToolsPlace)>,
}

impl Actions<'_> {
    /// For messages without calls.
    pub const NONE: Self = Self { shape: CallShape::Function, tools: None };
}

impl ChatTemplate {
    /// Renders messages unchanged.
    pub(super) fn run(
        &self,
        program: &Program<'_>,
        messages: &[NormalMessage<'_>],
        actions: Actions<'_>,
        options: &RenderOptions,
    ) -> Result<Prompt, TemplateError> {
        let of_place =
            |wanted| actions.tools.filter(|(_, place)| *place == wanted).map(|(tools, _)| tools);
        let mut of_message = of_place(ToolsPlace::SystemMessage);
        let message = |message: &NormalMessage<'_>| {
            let tools = of_message.take().filter(|_| message.role == Role::System);
            self.message(message, actions.shape, tools)
        };
        let date = options.date;
        let context = context! {
            messages => messages.iter().map(message).collect::<Value>(),
            add_generation_prompt => options.add_generation_prompt,
            enable_thinking => options.enable_thinking,
            // The same switch in templates of Granite 3 and DeepSeek V3.1.
            thinking => options.enable_thinking,
            // transformers always passes these.
            tools => of_place(ToolsPlace::Variable).map_or_else(|| Value::from(()), Tools::value),
            documents => Value::from(()),
            bos_token => self.bos.clone(),
            eos_token => self.eos.clone(),
            strftime_now => Value::from_function(
                move |format: &str| methods::format_date(format, date)
            ),
        };
        let run = || evaluate(program, &context);
        let text = budget::with_budget(program.budget, run)?;
        if text.len() > MAX_OUTPUT_BYTES {
            return Err(TemplateError::OutputTooLong);
        }
        Ok(Prompt { segments: taint::segments(&text) })
    }

    /// A message as the template receives it.
    fn message(
        &self,
        message: &NormalMessage<'_>,
        shape: CallShape,
        tools: Option<&Tools>,
    ) -> Value {
        let is_reply = message.role == Role::Assistant;
        let thoughts = if is_reply { self.thoughts } else { Thoughts::Kept };
        let (content, thoughts) = thoughts.split(&message.content);
        let mut members = vec![
            ("role", Value::from(message.role.name())),
            ("content", Value::from(taint::taint(content))),
        ];
        if let Some(thoughts) = thoughts {
            members.push(("reasoning_content", Value::from(taint::taint(thoughts))));
        }
        if !message.calls.is_empty() {
            let calls = message.calls.iter().map(|call| call.value(shape)).collect::<Value>();
            members.push(("tool_calls", calls));
        }
        if let Some(call) = &message.answered {
            members.push(("name", Value::from(taint::taint(&call.name))));
            members.push(("tool_call_id", Value::from(call.id())));
        }
        if let Some(tools) = tools {
            members.push(("tools", Value::from(tools.json())));
        }
        Value::from_pairs(members)
    }
}

fn evaluate(program: &Program<'_>, context: &Value) -> Result<String, TemplateError> {
    let Program { environment, instructions, .. } = program;
    let blocks = BTreeMap::new();
    let mut text = String::new();
    let mut run = || {
        let mut output = make_string_output(&mut text);
        let none = AutoEscape::None;
        eval(environment, instructions, context.clone(), &blocks, &mut output, none)
            .map(|_| ())
            .map_err(|error| failure(&error))
    };
    // The engine is a dependency. If it panics on a template, the template fails, not the host.
    match catch_unwind(AssertUnwindSafe(&mut run)) {
        Ok(result) => result.map(|()| text),
        Err(_) => Err(TemplateError::Failed("the engine panicked".into())),
    }
}

fn failure(error: &minijinja::Error) -> TemplateError {
    if let Some(reason) = methods::raised(error) {
        return TemplateError::Raised(reason);
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::Runaway(error.to_string()),
        _ if error.to_string().contains("recursion limit") => {
            TemplateError::Runaway(error.to_string())
        }
        _ => TemplateError::Failed(error.to_string()),
    }
}
