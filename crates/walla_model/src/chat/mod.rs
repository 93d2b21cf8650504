//! Chat templates: convert conversations to prompts.
//!
//! A model file contains its template (Jinja, `tokenizer.chat_template`). minijinja runs it, with
//! limits on source, work, depth and output.
//!
//! # Template text and untrusted text are encoded separately
//! Everything that a player can influence (persona, names, speech) is untrusted: typing
//! `<|im_end|>` must give those ten characters and never the control token. So untrusted text
//! passes through the template in another alphabet (`chat/taint.rs`). Output in that alphabet is
//! untrusted, regardless of how the template transformed it; all other output is template text. No
//! marker separates the two, so none can be forged.
//! [`Tokenizer::encode_prompt`](crate::tokenizer::Tokenizer::encode_prompt) then parses special
//! tokens only in template text.
//!
//! A template cannot read untrusted text. It may trim it, join it and test whether it is present,
//! but conditions on its content (`"/think" in message.content`) are false. It sees only the ASCII
//! white space of the text.
//!
//! # Conversations that a template refuses
//! Templates differ in the lists of messages that they accept. [`ChatTemplate::render`] accepts any
//! list: the template is probed once, and messages are merged, moved to another role or preceded by
//! a filler as far as the template requires (`chat/history.rs`). An appended message changes no
//! earlier part of the prompt, so its prefix stays valid in the KV cache.
//!
//! # Bad templates
//! Model files come from untrusted sources. A template that loops, nests, amplifies its input or
//! rereads long values is an error (`chat/guard.rs`). [`ChatTemplate::check`] detects a template
//! that loses text. [`LoadedText`] loads a model's tokenizer together with its template or one that
//! the user chose ([`TemplateChoice`]).

mod budget;
mod built_in;
mod choice;
mod error;
mod filters;
mod guard;
mod history;
mod load;
mod methods;
mod probe;
mod product;
mod prompt;
mod reading;
mod reasoning;
mod slice;
mod taint;
mod thoughts;
mod values;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use minijinja::machinery::{Instructions, eval, make_string_output};
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, ErrorKind, context};

pub use built_in::{BuiltInTemplate, UnknownTemplate};
pub use choice::{TemplateChoice, TemplateState};
pub use error::TemplateError;
pub use history::{FILLER, NormalMessage, OBSERVATION_PREFIX};
pub use load::{LoadError, LoadedText};
pub use prompt::{Prompt, Segment};
pub use reasoning::{MARKER_BYTES_MAX, Marker, ReasoningFormat, ReasoningMarkers, ReplyStart};

use crate::gguf::Gguf;
use crate::tokenizer::texts_of_bos_and_eos;
use probe::Findings;
use thoughts::Thoughts;

/// Maximum size of a template's source, in bytes. The longest published ones have some 20 kB.
pub const SOURCE_BYTES_MAX: usize = 256 << 10;

/// Maximum size of a rendered conversation, in bytes of the template's alphabet (4 bytes per
/// untrusted byte).
pub const OUTPUT_BYTES_MAX: usize = 8 << 20;

/// Maximum number of instructions per conversation. Usual are some hundred per message.
pub const FUEL: u64 = 5_000_000;

/// Bytes of text and values that a template may handle, in addition to [`BYTES_PER_BYTE`].
const BYTES_MAX: u64 = 32 << 20;

/// Bytes that a template may handle per byte of the conversation, in its alphabet. Real templates
/// copy a text 5 to 20 times.
const BYTES_PER_BYTE: u64 = 64;

/// Maximum depth of nested calls and blocks.
const DEPTH_MAX: usize = 64;

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
    /// else as a user message that begins with [`OBSERVATION_PREFIX`].
    Observation,
}

impl Role {
    /// The name that templates use; observations get another role there.
    const fn name(self) -> &'static str {
        match self {
            Self::System | Self::Observation => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One message. Its content is untrusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Its author.
    pub role: Role,
    /// Its text.
    pub content: &'a str,
}

/// A date, for templates that print one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// Gregorian year.
    pub year: u32,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
}

/// Options of [`ChatTemplate::render`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenderOptions {
    /// Whether the prompt ends with the start of the model's turn.
    pub add_generation_prompt: bool,
    /// Whether models with a reasoning switch (`enable_thinking`, `thinking`) reason before they
    /// speak. Default: `false`, because reasoning is not speech ([`ReasoningMarkers`]) and takes
    /// seconds.
    pub enable_thinking: bool,
    /// The date of `strftime_now`. The default is fixed: a game world has its own calendar, and a
    /// reply must not change overnight.
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

/// A model's chat template, ready to render. Immutable and cheap to clone.
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
    thoughts: Thoughts,
    /// Results of probing, computed on first use and shared by clones.
    findings: Arc<OnceLock<Findings>>,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("findings", &self.findings).finish_non_exhaustive()
    }
}

const NAME: &str = "chat";

impl ChatTemplate {
    /// The file's template, `tokenizer.chat_template`; `None` if it has none.
    ///
    /// # Errors
    /// [`TemplateError`] if it cannot be used.
    pub fn from_gguf(file: &Gguf) -> Result<Option<Self>, TemplateError> {
        Self::from_key(file, "tokenizer.chat_template")
    }

    /// A variant of the file's template, `tokenizer.chat_template.NAME` (for example `tool_use` or
    /// `rag`); `None` if it has none.
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
        Ok(Self {
            source: source.as_str().into(),
            environment: Arc::new(environment),
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            thoughts: Thoughts::from_source(source),
            findings: Arc::default(),
        })
    }

    /// ChatML. Use it only for models trained with it: with a wrong template a model produces
    /// nonsense.
    #[must_use]
    pub fn chatml() -> Self {
        Self::built_in(BuiltInTemplate::Chatml, "", "<|im_end|>")
            .unwrap_or_else(|error| unreachable!("ChatML is valid: {error}"))
    }

    /// Whether the template accepts system messages. If not, [`render`](Self::render) adds system
    /// text to user messages.
    #[must_use]
    pub fn supports_system(&self) -> bool {
        self.findings().form.system != history::SystemPlace::Nowhere
    }

    /// Whether the template works. Probes it once, with short conversations.
    ///
    /// # Errors
    /// [`TemplateError`] if it fails for an ordinary conversation, drops a message of user or
    /// agent, or prints no mark between their messages.
    pub fn check(&self) -> Result<(), TemplateError> {
        self.findings().fault.clone().map_or(Ok(()), Err)
    }

    /// Faults that do not prevent conversations, one sentence each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.findings().warnings
    }

    fn findings(&self) -> &Findings {
        self.findings.get_or_init(|| Findings::of(self))
    }

    /// The messages that the template receives for a conversation: the first step of
    /// [`render`](Self::render).
    ///
    /// Their roles are system, user and assistant. Appending to the conversation changes only the
    /// end of this list: the last message may become longer, and a final [`FILLER`] may disappear.
    ///
    /// `for_reply`: the model replies next, so the list ends with a message that it can reply to.
    #[must_use]
    pub fn normalised<'a>(
        &self,
        messages: &[Message<'a>],
        for_reply: bool,
    ) -> Vec<NormalMessage<'a>> {
        // Most conversations need no probing: every template accepts them unchanged.
        let form = || &self.findings().form;
        history::as_it_is(messages, for_reply)
            .unwrap_or_else(|| history::normalise(form(), messages, for_reply))
    }

    /// Renders a conversation: any list of messages, see [`normalised`](Self::normalised).
    ///
    /// # Errors
    /// [`TemplateError::Runaway`] or [`TemplateError::OutputTooLong`] at the limits;
    /// [`TemplateError::Raised`] or [`TemplateError::Failed`] if the template fails.
    pub fn render(
        &self,
        messages: &[Message<'_>],
        options: &RenderOptions,
    ) -> Result<Prompt, TemplateError> {
        let normal = self.normalised(messages, options.add_generation_prompt);
        let messages: Vec<_> = normal.iter().map(NormalMessage::as_message).collect();
        let instructions = guard::compile(NAME, &self.source)?;
        let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
        let budget = BYTES_MAX + BYTES_PER_BYTE * bytes as u64;
        self.run((&self.environment, &instructions, budget), &messages, options)
    }

    /// Renders messages unchanged.
    fn run<'e>(
        &self,
        (environment, instructions, budget): (&'e Environment<'e>, &Instructions<'e>, u64),
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
            // transformers always passes these.
            tools => Value::from(()),
            documents => Value::from(()),
            bos_token => self.bos.clone(),
            eos_token => self.eos.clone(),
            strftime_now => Value::from_function(
                move |format: &str| methods::format_date(format, date)
            ),
        };
        let run = || evaluate(environment, instructions, &context);
        let text = budget::with_budget(budget, run)?;
        if text.len() > OUTPUT_BYTES_MAX {
            return Err(TemplateError::OutputTooLong);
        }
        Ok(Prompt { segments: taint::segments(&text) })
    }
}

fn evaluate<'e>(
    environment: &'e Environment<'e>,
    instructions: &Instructions<'e>,
    context: &Value,
) -> Result<String, TemplateError> {
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
