//! Features of an engine.

use walla_grammar::{Constraint, ConstraintKind};

use super::agent::{AgentSpec, AskOptions, Prompt};

/// Features of an engine. An ask that needs more fails with
/// [`ReplyError::Unsupported`](crate::ReplyError::Unsupported).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Kinds of constraints on replies.
    pub constraints: ConstraintKinds,
    /// Actions of agents.
    pub actions: bool,
    /// [`Prompt::Raw`] and [`Prompt::RawTrusted`]: text without a chat template.
    pub raw_prompts: bool,
    /// Token ids in prompts, biases, stop tokens and allowed tokens.
    pub token_ids: bool,
    /// Openings of replies ([`AskOptions::opening`]).
    pub openings: bool,
    /// A seed determines the random numbers of a reply.
    pub seeds: bool,
    /// Candidates with log-probabilities ([`ReplyEvent::Token`](crate::ReplyEvent::Token)).
    pub log_probabilities: bool,
    /// Scores of texts ([`AskOptions::score`]).
    pub scores: bool,
    /// Whether the same ask gives the same reply.
    pub determinism: Determinism,
    /// How a common beginning of prompts is reused.
    pub prefix_cache: PrefixCache,
    /// Whether caches of agents can be saved and loaded
    /// ([`Command::CopyCache`](crate::Command::CopyCache)).
    pub cache_files: bool,
    /// When a cancel ends the work for a reply.
    pub cancellation: Cancellation,
}

/// Kinds of constraints that an engine enforces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConstraintKinds {
    /// [`Constraint::json_schema`](crate::Constraint::json_schema).
    pub json_schema: bool,
    /// [`Constraint::regex`](crate::Constraint::regex).
    pub regex: bool,
    /// [`Constraint::choice`](crate::Constraint::choice).
    pub choice: bool,
    /// [`Constraint::lark`](crate::Constraint::lark).
    pub lark: bool,
}

impl ConstraintKinds {
    /// All kinds.
    pub const ALL: Self = Self { json_schema: true, regex: true, choice: true, lark: true };

    /// Whether the engine enforces constraints of this kind.
    #[must_use]
    pub const fn has(self, kind: ConstraintKind) -> bool {
        match kind {
            ConstraintKind::JsonSchema => self.json_schema,
            ConstraintKind::Regex => self.regex,
            ConstraintKind::Choice => self.choice,
            ConstraintKind::Lark => self.lark,
        }
    }
}

/// Whether the same ask (agent, conversation, seed) gives the same reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Determinism {
    /// Bit by bit, in any batch.
    Exact,
    /// Not ensured: other requests, or a new version of the server, can change a reply.
    None,
}

/// How a common beginning of prompts is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrefixCache {
    /// The engine has one and reports its use ([`Usage::cached_tokens`](crate::Usage)).
    Counted,
    /// Another machine decides; its use is counted only if it reports it.
    Remote,
    /// The engine has none.
    None,
}

/// When a cancel ends the work for a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancellation {
    /// Behind the step in flight.
    NextStep,
    /// The request is dropped at once; the server notices a closed connection.
    DropsRequest,
}

impl Capabilities {
    /// A local engine: everything.
    pub const LOCAL: Self = Self {
        constraints: ConstraintKinds::ALL,
        actions: true,
        raw_prompts: true,
        token_ids: true,
        openings: true,
        seeds: true,
        log_probabilities: true,
        scores: true,
        determinism: Determinism::Exact,
        prefix_cache: PrefixCache::Counted,
        cache_files: true,
        cancellation: Cancellation::NextStep,
    };

    /// An engine that does nothing but chat.
    pub const CHAT: Self = Self {
        constraints: ConstraintKinds {
            json_schema: false,
            regex: false,
            choice: false,
            lark: false,
        },
        actions: false,
        raw_prompts: false,
        token_ids: false,
        openings: false,
        seeds: false,
        log_probabilities: false,
        scores: false,
        determinism: Determinism::None,
        prefix_cache: PrefixCache::None,
        cache_files: false,
        cancellation: Cancellation::NextStep,
    };

    /// Checks the features that an ask needs.
    ///
    /// # Errors
    /// The first thing that the engine cannot do.
    pub fn check(
        &self,
        spec: &AgentSpec,
        prompt: &Prompt,
        options: &AskOptions,
    ) -> Result<(), Unsupported> {
        let sampling = &spec.sampling;
        match prompt {
            Prompt::Raw(_) | Prompt::RawTrusted(_) if !self.raw_prompts => {
                return Err(Unsupported::RawPrompts);
            }
            Prompt::Tokens(_) if !self.token_ids => return Err(Unsupported::TokenPrompts),
            _ => {}
        }
        if !self.token_ids {
            if !sampling.biases().is_empty() {
                return Err(Unsupported::Biases);
            }
            if sampling.allowed_tokens().is_some() {
                return Err(Unsupported::AllowedTokens);
            }
            if !spec.stop_tokens.is_empty() {
                return Err(Unsupported::StopTokens);
            }
        }
        let is_chat = prompt.is_question()
            || matches!(prompt, Prompt::Continue | Prompt::Results(_) | Prompt::Again);
        if is_chat && options.opening.is_some() && !self.openings {
            return Err(Unsupported::Openings);
        }
        let scores = options.score.is_some();
        if scores && (!self.scores || matches!(prompt, Prompt::Results(_) | Prompt::Again)) {
            return Err(Unsupported::Scores);
        }
        if sampling.candidates() > 0 && !self.log_probabilities {
            return Err(Unsupported::LogProbabilities);
        }
        let constraint = options.constraint.as_ref().or(spec.constraint.as_ref());
        if let Some(kind) = constraint.map(Constraint::kind)
            && !self.constraints.has(kind)
        {
            return Err(Unsupported::Constraint(kind));
        }
        let acts = is_chat && spec.actions.as_ref().is_some_and(|actions| !actions.set.is_empty());
        if acts && !self.actions {
            return Err(Unsupported::Actions);
        }
        Ok(())
    }
}

/// Something that an ask needs and its engine cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Unsupported {
    /// A constraint of this kind.
    #[error("constraints of the kind {0}")]
    Constraint(ConstraintKind),
    /// Actions of the agent.
    #[error("actions")]
    Actions,
    /// [`Prompt::Raw`] or [`Prompt::RawTrusted`].
    #[error("raw prompts")]
    RawPrompts,
    /// [`Prompt::Tokens`].
    #[error("prompts of tokens")]
    TokenPrompts,
    /// [`AskOptions::opening`].
    #[error("openings of replies")]
    Openings,
    /// [`Sampling::biases`](walla_types::Sampling::biases).
    #[error("biases of tokens")]
    Biases,
    /// [`Sampling::allowed_tokens`](walla_types::Sampling::allowed_tokens).
    #[error("allowed tokens")]
    AllowedTokens,
    /// [`AgentSpec::stop_tokens`].
    #[error("stop tokens")]
    StopTokens,
    /// [`Sampling::candidates`](walla_types::Sampling::candidates).
    #[error("log-probabilities")]
    LogProbabilities,
    /// [`AskOptions::score`], at all or for this kind of prompt.
    #[error("scores of texts")]
    Scores,
}
