//! Tokenizer, chat template and reasoning markers of a model.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use walla_grammar::{ActionSet, CallFormat, CallMarkers, Delimiter};
use walla_model::Gguf;
use walla_model::chat::{ChatTemplate, LoadedText, ReasoningMarkers, TemplateState, Tools};
use walla_model::tokenizer::Tokenizer;
use walla_types::{TokenId, TokenMask};

use crate::api::{AgentSpec, ReplyError};
use crate::constraint_compiler::ConstraintCompiler;
use crate::options::{EngineError, EngineOptions};

/// Maximum average bytes of text per token of the context: four times as many as in English.
const TEXT_BYTES_PER_TOKEN: usize = 16;

/// Tokenizer, template and reasoning markers of the model.
#[derive(Debug)]
pub(crate) struct ModelText {
    pub tokenizer: Arc<Tokenizer>,
    /// `None` if no template works: only raw prompts.
    pub template: Option<ChatTemplate>,
    /// The template in use, or the reason why none works.
    pub state: Arc<TemplateState>,
    /// Markers of the template that the file stores as ordinary tokens.
    pub reserved_markers: Vec<TokenId>,
    /// Defects of the file that do not prevent replies.
    pub warnings: Vec<String>,
    /// Compiles constraints.
    pub compiler: ConstraintCompiler,
    /// Delimiters of calls.
    pub call_markers: CallMarkers,
    /// All tokens but the one that opens a call; `None` if no token does.
    speech_mask: Option<Arc<TokenMask>>,
    /// Lists of tools of the sets that were used last.
    tools: Mutex<VecDeque<(ActionSet, Tools)>>,
    /// `None` if the model has no reasoning markers: replies are only speech.
    pub reasoning: Option<Arc<ReasoningMarkers>>,
    /// Bytes of [`SAMPLE`] per token of this vocabulary.
    pub bytes_per_token: f32,
}

/// Number of sets of actions whose lists of tools are kept.
const MAX_TOOLS_KNOWN: usize = 64;

/// A text whose tokens are counted, to estimate the tokens of other texts.
const SAMPLE: &str = "The smith looks up from her anvil. \"You are late again,\" she says, and wipes \
    her hands. \"The bridge is closed since the storm, so the 12 wagons have to wait. What do you \
    need? I have nails, two axes and a sword that nobody has paid for.\"";

/// Tokens of the context that are kept for calls, which the limit of a reply does not count.
const CALL_TOKENS: u32 = 64;

impl ModelText {
    /// Reads tokenizer and template. Defects of the file that do not prevent loading are logged.
    ///
    /// # Errors
    /// A defect of the tokenizer, or an unusable template or pre-tokenizer of the options.
    pub fn load(
        file: &Gguf,
        options: &EngineOptions,
        context_tokens: u32,
    ) -> Result<Self, EngineError> {
        let of_context = (context_tokens as usize).saturating_mul(TEXT_BYTES_PER_TOKEN);
        let max_text_bytes = of_context.max(Tokenizer::MAX_TEXT_BYTES);
        let EngineOptions { model, template, pre_tokenizer, .. } = options;
        let mut loaded = LoadedText::from_gguf(file, template.as_ref(), pre_tokenizer.as_deref())?;
        if !loaded.state.is_usable() {
            let state = &loaded.state;
            tracing::warn!(target: "walla::load", ?model, "{state}: only raw prompts work");
        }
        for warning in &loaded.warnings {
            tracing::warn!(target: "walla::load", ?model, "{warning}");
        }
        loaded.tokenizer = loaded.tokenizer.with_max_text_bytes(max_text_bytes);
        Ok(Self::new(loaded))
    }

    fn new(loaded: LoadedText) -> Self {
        let LoadedText { tokenizer, template, state, reserved_markers, warnings } = loaded;
        let reasoning = ReasoningMarkers::new(&tokenizer, template.as_ref()).map(Arc::new);
        let format = CallFormat::of(template.as_ref().map(ChatTemplate::source), &tokenizer);
        let sample_tokens = tokenizer.encode_untrusted(SAMPLE).map_or(0, |tokens| tokens.len());
        let call_markers = CallMarkers::new(format, &tokenizer);
        let speech_mask = call_markers.token(Delimiter::Open).and_then(|open| {
            let vocab = tokenizer.vocab_size() as u32;
            let tokens = (0..vocab).map(TokenId).filter(|token| *token != open);
            TokenMask::allow(vocab, tokens).ok().map(Arc::new)
        });
        let tokenizer = Arc::new(tokenizer);
        Self {
            speech_mask,
            bytes_per_token: SAMPLE.len() as f32 / sample_tokens.max(1) as f32,
            compiler: ConstraintCompiler::new(Arc::clone(&tokenizer)),
            tokenizer,
            template,
            state: Arc::new(state),
            reserved_markers,
            warnings,
            reasoning,
            call_markers,
            tools: Mutex::default(),
        }
    }

    /// The allowed tokens of a reply that must not call actions: of `allowed`, or of all, those
    /// that open no call. `None` if no token opens calls, or if nothing else is allowed.
    pub fn speech_mask(&self, allowed: Option<&Arc<TokenMask>>) -> Option<Arc<TokenMask>> {
        let speech = self.speech_mask.as_ref()?;
        let Some(allowed) = allowed else { return Some(Arc::clone(speech)) };
        let words = allowed.words().iter().zip(speech.words()).map(|(a, b)| a & b);
        TokenMask::from_words(words.collect::<Box<[u32]>>()).ok().map(Arc::new)
    }

    /// The list of tools for prompts with these actions, without unlisted choices. `None`: it is
    /// empty.
    ///
    /// # Errors
    /// [`ReplyError::Text`] if the list is too long.
    pub fn tools(&self, actions: &ActionSet) -> Result<Option<Tools>, ReplyError> {
        let actions = actions.listed();
        if actions.is_empty() {
            return Ok(None);
        }
        let mut known = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, tools)) = known.iter().find(|(set, _)| *set == actions) {
            return Ok(Some(tools.clone()));
        }
        let description = actions.description(self.call_markers.format());
        let tools = Tools::new(&actions.tools().into(), &description)
            .map_err(|error| ReplyError::Text(error.to_string()))?;
        if known.len() >= MAX_TOOLS_KNOWN {
            known.pop_front();
        }
        known.push_back((actions, tools.clone()));
        Ok(Some(tools))
    }

    /// Tokens of the context that an agent's reply needs, including reasoning if the agent reasons,
    /// and a call if it has actions.
    pub fn reply_tokens(&self, spec: &AgentSpec) -> u32 {
        let reasons = |markers: &Arc<ReasoningMarkers>| spec.thinking || markers.opens_unasked();
        let has_reasoning = self.reasoning.as_ref().is_some_and(reasons);
        let reasoning_tokens = if has_reasoning { spec.max_reasoning_tokens } else { 0 };
        // The same for all unlisted choices, so that they change no prompt.
        let can_call = spec.actions.as_ref().is_some_and(|its| !its.set.listed().is_empty());
        let call_tokens = if can_call { CALL_TOKENS } else { 0 };
        spec.max_reply_tokens.saturating_add(reasoning_tokens).saturating_add(call_tokens)
    }
}
