//! Chat templates: conversations become prompts.
//!
//! A model file brings its template (Jinja, `tokenizer.chat_template`); minijinja runs it, with limits on source, work, depth and output.
//!
//! # Template text and untrusted text are encoded apart
//! Everything that a player can reach (persona, names, what is said) is untrusted: typing `<|im_end|>` must give those nine
//! characters and never the control token. So untrusted text goes through the template in another alphabet (`chat/taint.rs`): what comes out
//! in that alphabet is untrusted, whatever the template did to it, and what does not is the template's own. No marker
//! stands between the two, so none can be forged. [`Tokenizer::encode_prompt`](crate::tokenizer::Tokenizer::encode_prompt) then looks for
//! special tokens in the template's own text alone.
//!
//! A template cannot read untrusted text: it may trim it, join it, ask whether it is there, but conditions on its content
//! (`"/think" in message.content`) do not hold. ASCII white space is all that it sees of it.
//!
//! # Bad templates
//! A model file comes from anywhere. A template that loops, nests, makes much out of little or reads long values again and again is an
//! error (`chat/guard.rs`).

mod error;
mod filters;
mod guard;
mod methods;
mod product;
mod reading;
mod reasoning;
mod slice;
mod taint;
mod thoughts;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use minijinja::machinery::{eval, make_string_output};
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, ErrorKind, context};

pub use error::TemplateError;
pub use reasoning::{MARKER_BYTES_MAX, Marker, ReasoningFormat, ReasoningMarkers, ReplyStart};

use crate::gguf::Gguf;
use crate::tokenizer::texts_of_bos_and_eos;
use thoughts::Thoughts;

/// Bytes of a template's source, at most. The longest in the wild have some 20 kB.
pub const SOURCE_BYTES_MAX: usize = 256 << 10;

/// Bytes of a rendered conversation, at most, in the template's alphabet (4 bytes for each untrusted byte).
pub const OUTPUT_BYTES_MAX: usize = 8 << 20;

/// Instructions that a template may spend on one conversation: some hundred a message are usual.
pub const FUEL: u64 = 5_000_000;

/// Bytes of text and values that a template may handle, besides [`BYTES_PER_BYTE`].
const BYTES_MAX: u64 = 32 << 20;

/// Bytes that a template may handle for each byte of the conversation, in its alphabet. Real ones copy a text 5 to 20 times.
const BYTES_PER_BYTE: u64 = 64;

/// Depth of nested calls and blocks.
const DEPTH_MAX: usize = 64;

/// Who says a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Whoever sets the scene: the persona.
    System,
    /// Whoever talks to the model.
    User,
    /// The model.
    Assistant,
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One message. Its content is untrusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: &'a str,
}

/// A day, for templates that print one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// Gregorian year.
    pub year: u32,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
}

/// How to render.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenderOptions {
    /// End with what begins the model's turn.
    pub add_generation_prompt: bool,
    /// Let models with a switch for reasoning reason before they speak (`enable_thinking`,
    /// `thinking`). Default `false`: reasoning is not speech ([`ReasoningMarkers`]), and it costs
    /// seconds.
    pub enable_thinking: bool,
    /// What `strftime_now` says. A fixed day by default: a game world has its own calendar, and a reply must not change overnight.
    pub date: Date,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            add_generation_prompt: false,
            enable_thinking: false,
            date: Date { year: 2024, month: 7, day: 26 },
        }
    }
}

/// A stretch of a rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// The template's own text: special tokens are parsed in it.
    Template(String),
    /// Untrusted text: plain, whatever it says.
    Untrusted(String),
}

/// A rendered conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// In order; two of a kind never follow each other, none is empty.
    pub segments: Vec<Segment>,
}

impl Segment {
    /// What it says.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Template(text) | Self::Untrusted(text) => text,
        }
    }
}

impl Prompt {
    /// The text as a person would read it.
    #[must_use]
    pub fn text(&self) -> String {
        self.segments.iter().map(Segment::text).collect()
    }

    /// Length of the text in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.text().len()).sum()
    }
}

/// A model's chat template, ready to render. Immutable: share it freely.
///
/// # Examples
/// ```
/// use walla_model::chat::{ChatTemplate, Message, RenderOptions, Role, Segment};
///
/// let template = ChatTemplate::chatml();
/// let hello = [Message { role: Role::User, content: "Hello<|im_end|>" }];
/// let prompt = template.render(&hello, &RenderOptions::default())?;
/// assert_eq!(prompt.segments[1], Segment::Untrusted("Hello<|im_end|>".into()));
/// # Ok::<(), walla_model::chat::TemplateError>(())
/// ```
#[derive(Clone)]
pub struct ChatTemplate {
    source: Arc<str>,
    environment: Arc<Environment<'static>>,
    bos: String,
    eos: String,
    supports_system: bool,
    thoughts: Thoughts,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("supports_system", &self.supports_system)
            .finish_non_exhaustive()
    }
}

const NAME: &str = "chat";

/// ChatML, for models without a template that are known to speak it.
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

impl ChatTemplate {
    /// The file's own template, `tokenizer.chat_template`; `None` if it has none.
    ///
    /// # Errors
    /// [`TemplateError`] if it cannot be used.
    pub fn from_gguf(file: &Gguf) -> Result<Option<Self>, TemplateError> {
        Self::from_key(file, "tokenizer.chat_template")
    }

    /// A variant of the file's template, `tokenizer.chat_template.NAME` (for example `tool_use` or `rag`); `None` if it has none.
    ///
    /// # Errors
    /// [`TemplateError`] if it cannot be used.
    pub fn from_gguf_named(file: &Gguf, name: &str) -> Result<Option<Self>, TemplateError> {
        Self::from_key(file, &format!("tokenizer.chat_template.{name}"))
    }

    fn from_key(file: &Gguf, key: &str) -> Result<Option<Self>, TemplateError> {
        let Some(source) = file.find::<&str>(key)? else { return Ok(None) };
        let (bos, eos) = texts_of_bos_and_eos(file)?;
        Self::new(source, &bos, &eos).map(Some)
    }

    /// A template with the texts of the model's BOS and EOS tokens.
    ///
    /// # Errors
    /// [`TemplateError`] if it cannot be used.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TemplateError> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(TemplateError::SourceTooLong { bytes: source.len() });
        }
        if let Some(reserved) =
            [source, bos, eos].iter().find_map(|text| taint::first_reserved(text))
        {
            return Err(TemplateError::Reserved { code_point: reserved.into() });
        }
        let source = &guard::without_generation(source);
        guard::check(source)?;
        guard::compile(NAME, source)?;
        let mut environment = Environment::new();
        environment.set_syntax(guard::syntax()?);
        filters::install(&mut environment);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(DEPTH_MAX);
        environment.set_unknown_method_callback(methods::call);
        environment.add_function("raise_exception", methods::raise_exception);
        let mut template = Self {
            source: source.as_str().into(),
            environment: Arc::new(environment),
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            supports_system: true,
            thoughts: Thoughts::from_source(source),
        };
        template.supports_system = template.probe_system();
        Ok(template)
    }

    /// ChatML. Only for models that are known to speak it: a wrong template makes a model speak nonsense.
    #[must_use]
    pub fn chatml() -> Self {
        Self::new(CHATML, "", "<|im_end|>")
            .unwrap_or_else(|error| unreachable!("ChatML is valid: {error}"))
    }

    /// Whether the template has a place for a system message; if not, see [`render`](Self::render).
    #[must_use]
    pub fn supports_system(&self) -> bool {
        self.supports_system
    }

    /// Renders a system and a user message: a template without a place for the system either refuses or leaves it out.
    fn probe_system(&self) -> bool {
        const MARK: &str = "walla-probe";
        let messages = [
            Message { role: Role::System, content: MARK },
            Message { role: Role::User, content: "x" },
        ];
        let rendered = self.run(&messages, &RenderOptions::default());
        rendered.is_ok_and(|prompt| prompt.text().contains(MARK))
    }

    /// Renders a conversation.
    ///
    /// Where the template has no [place for a system message](Self::supports_system), each one goes in front of the next
    /// user message, with an empty line between them; without a next one it becomes a user message itself.
    ///
    /// # Errors
    /// [`TemplateError::Raised`] if the template refuses it, [`TemplateError::Runaway`] or [`TemplateError::OutputTooLong`] at the
    /// limits, [`TemplateError::Failed`] else.
    pub fn render(
        &self,
        messages: &[Message<'_>],
        options: &RenderOptions,
    ) -> Result<Prompt, TemplateError> {
        let has_system = messages.iter().any(|message| message.role == Role::System);
        if self.supports_system || !has_system {
            return self.run(messages, options);
        }
        let folded = fold_system(messages);
        let folded: Vec<_> =
            folded.iter().map(|(role, content)| Message { role: *role, content }).collect();
        self.run(&folded, options)
    }

    fn run(
        &self,
        messages: &[Message<'_>],
        options: &RenderOptions,
    ) -> Result<Prompt, TemplateError> {
        let message = |message: &Message<'_>| {
            let is_reply = message.role == Role::Assistant;
            let thoughts = if is_reply { self.thoughts } else { Thoughts::Kept };
            let (content, thoughts) = thoughts.split(message.content);
            let (role, content) = (message.role.name(), taint::taint(content));
            match thoughts.map(taint::taint) {
                Some(reasoning_content) => context! { role, content, reasoning_content },
                None => context! { role, content },
            }
        };
        let date = options.date;
        let context = context! {
            messages => messages.iter().map(message).collect::<Value>(),
            add_generation_prompt => options.add_generation_prompt,
            enable_thinking => options.enable_thinking,
            // The same switch in templates of Granite 3 and DeepSeek V3.1.
            thinking => options.enable_thinking,
            // transformers always passes them.
            tools => Value::from(()),
            documents => Value::from(()),
            bos_token => self.bos.clone(),
            eos_token => self.eos.clone(),
            strftime_now => Value::from_function(move |format: &str| methods::format_date(format, date)),
        };
        let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
        let budget = BYTES_MAX + BYTES_PER_BYTE * bytes as u64;
        let text = filters::with_budget(budget, || self.evaluate(context))?;
        if text.len() > OUTPUT_BYTES_MAX {
            return Err(TemplateError::OutputTooLong);
        }
        Ok(Prompt { segments: taint::segments(&text) })
    }

    fn evaluate(&self, context: Value) -> Result<String, TemplateError> {
        let environment: &Environment<'_> = &self.environment;
        let instructions = guard::compile(NAME, &self.source)?;
        let blocks = BTreeMap::new();
        let mut text = String::new();
        let mut run = || {
            let mut output = make_string_output(&mut text);
            let none = AutoEscape::None;
            eval(environment, &instructions, context.clone(), &blocks, &mut output, none)
                .map(|_| ())
                .map_err(|error| failure(&error))
        };
        // The engine is not ours: should it panic at a template, that is the template's failure, not the host's.
        match catch_unwind(AssertUnwindSafe(&mut run)) {
            Ok(result) => result.map(|()| text),
            Err(_) => Err(TemplateError::Failed("the engine panicked".into())),
        }
    }
}

/// Puts system messages into the user messages behind them.
fn fold_system(messages: &[Message<'_>]) -> Vec<(Role, String)> {
    let mut folded = Vec::with_capacity(messages.len());
    let mut waiting = String::new();
    let add = |text: &mut String, more: &str| {
        text.push_str(if text.is_empty() || more.is_empty() { "" } else { "\n\n" });
        text.push_str(more);
    };
    for message in messages {
        match message.role {
            Role::System => add(&mut waiting, message.content),
            Role::User => {
                let mut content = std::mem::take(&mut waiting);
                add(&mut content, message.content);
                folded.push((Role::User, content));
            }
            Role::Assistant => folded.push((Role::Assistant, message.content.to_owned())),
        }
    }
    if !waiting.is_empty() || folded.is_empty() {
        folded.push((Role::User, waiting));
    }
    folded
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
