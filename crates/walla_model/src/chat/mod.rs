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
//! # Actions
//! A model calls actions, and the game answers with results ([`Role::Action`],
//! [`Role::ActionResult`]). Probing finds whether a template prints tools, calls and results, and
//! in which form it reads them (`chat/probe/actions.rs`); an item that it does not print becomes
//! text of other messages. All texts of calls, results and tools are untrusted, so the markers of
//! calls come only from the template.
//!
//! # Bad templates
//! Model files come from untrusted sources. A template that loops, nests, amplifies its input or
//! rereads long values is an error (`chat/guard.rs`). [`ChatTemplate::check`] detects a template
//! that loses text. [`LoadedText`] loads a model's tokenizer together with its template or one that
//! the user chose ([`TemplateChoice`]).

mod budget;
mod built_in;
mod calls;
mod choice;
mod error;
mod filters;
mod guard;
mod history;
mod load;
mod message;
mod methods;
mod options;
mod probe;
mod product;
mod prompt;
mod reading;
mod reasoning;
mod render;
mod slice;
mod taint;
mod thoughts;
mod tools;
mod values;
mod wire;

use std::sync::{Arc, OnceLock};

use minijinja::Environment;

pub use built_in::BuiltInTemplate;
pub use choice::{TemplateChoice, TemplateState};
pub use error::TemplateError;
pub use history::{FILLER, NormalMessage, OBSERVATION_PREFIX, RESULT_PREFIX};
pub use load::{LoadError, LoadedText};
pub use message::{MAX_NAME_BYTES, Message, Role, name_line};
pub use options::{Date, RenderOptions};
pub use prompt::{Prompt, Segment};
pub use reasoning::{MAX_MARKER_BYTES, Marker, ReasoningFormat, ReasoningMarkers, ReplyStart};
pub use tools::{MAX_TOOLS_BYTES, Tools, ToolsError};
pub use wire::{WireForm, wire_messages};

use crate::gguf::Gguf;
use crate::tokenizer::texts_of_bos_and_eos;
use probe::Findings;
use render::{Actions, Program};
use thoughts::Thoughts;

/// Maximum size of a template's source, in bytes. The longest published ones have some 20 kB.
pub const MAX_SOURCE_BYTES: usize = 256 << 10;

/// Maximum size of a rendered conversation, in bytes of the template's alphabet (4 bytes per
/// untrusted byte).
pub const MAX_OUTPUT_BYTES: usize = 8 << 20;

/// Maximum number of instructions per conversation. Usual are some hundred per message.
pub const FUEL: u64 = 5_000_000;

/// Bytes of text and values that a template may handle, in addition to [`BYTES_PER_BYTE`].
const MAX_BYTES: u64 = 32 << 20;

/// Bytes that a template may handle per byte of the conversation, in its alphabet. Real templates
/// copy a text 5 to 20 times.
const BYTES_PER_BYTE: u64 = 64;

/// Maximum depth of nested calls and blocks.
const MAX_DEPTH: usize = 64;

/// A model's chat template, ready to render. Immutable and cheap to clone.
///
/// # Examples
/// ```
/// use walla_model::chat::{ChatTemplate, Message, RenderOptions, Role, Segment};
///
/// let template = ChatTemplate::chatml();
/// let hello = [Message::new(Role::User, "Hello<|im_end|>")];
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
        let source = file.find::<&str>("tokenizer.chat_template")?;
        let Some(source) = source else { return Ok(None) };
        let (bos, eos) = texts_of_bos_and_eos(file)?;
        Self::new(source, &bos, &eos).map(Some)
    }

    /// A template with the texts of the model's BOS and EOS tokens.
    ///
    /// # Errors
    /// [`TemplateError`] if it cannot be used.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE_BYTES {
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
        environment.set_recursion_limit(MAX_DEPTH);
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

    /// The Jinja source. `{% generation %}` tags are replaced by conditions that are always true.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template prints a list of tools. If not, [`render`](Self::render) appends their
    /// description to the system text.
    #[must_use]
    pub fn prints_tools(&self) -> bool {
        self.findings().actions.tools.is_some()
    }

    /// Whether the template prints calls. If not, calls are text of the agent.
    #[must_use]
    pub fn prints_calls(&self) -> bool {
        self.findings().actions.form.actions.shape.is_some()
    }

    /// Whether the template accepts results of actions as messages of the role `tool`. If not,
    /// results are rendered as observations.
    #[must_use]
    pub fn takes_results(&self) -> bool {
        self.findings().actions.form.actions.results
    }

    /// The messages that the template receives for a conversation without tools: the first step of
    /// [`render`](Self::render).
    ///
    /// Their roles are system, user, assistant and action result. Appending to the conversation
    /// changes only the end of this list: the last message may become longer, and a final
    /// [`FILLER`] may disappear.
    ///
    /// `for_reply`: the model replies next, so the list ends with a message that it can reply to.
    #[must_use]
    pub fn normalized<'a>(
        &self,
        messages: &[Message<'a>],
        for_reply: bool,
    ) -> Vec<NormalMessage<'a>> {
        // Most conversations need no probing: every template accepts them unchanged.
        history::as_it_is(messages, for_reply)
            .unwrap_or_else(|| self.findings().prepare(messages, for_reply, None))
    }

    /// Renders a conversation: any list of messages, see [`normalized`](Self::normalized).
    ///
    /// # Errors
    /// [`TemplateError::Runaway`] or [`TemplateError::OutputTooLong`] at the limits;
    /// [`TemplateError::Raised`] or [`TemplateError::Failed`] if the template fails.
    pub fn render(
        &self,
        messages: &[Message<'_>],
        options: &RenderOptions,
    ) -> Result<Prompt, TemplateError> {
        let tools = options.tools.as_ref();
        let normal = match tools {
            None => self.normalized(messages, options.add_generation_prompt),
            Some(_) => self.findings().prepare(messages, options.add_generation_prompt, tools),
        };
        let has_actions = tools.is_some() || messages.iter().any(|m| m.role.is_of_action());
        let actions =
            if has_actions { self.findings().actions.reading(tools) } else { Actions::NONE };
        let instructions = guard::compile(NAME, &self.source)?;
        let of_tools = tools.map_or(0, Tools::bytes);
        let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
        let budget = MAX_BYTES + BYTES_PER_BYTE * (bytes + of_tools) as u64;
        let program =
            Program { environment: &self.environment, instructions: &instructions, budget };
        self.run(&program, &normal, actions, options)
    }
}
