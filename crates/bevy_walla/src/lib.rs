//! Bevy plugin: every NPC's or robot's dialogue as one batch a frame, without blocking the frame.
//!
//! # Getting started
//! ```no_run
//! use bevy_app::prelude::*;
//! use bevy_ecs::prelude::*;
//! use bevy_walla::prelude::*;
//!
//! App::new()
//!     .add_plugins(WallaPlugin::default()) // beside DefaultPlugins or MinimalPlugins
//!     .add_systems(Startup, |mut commands: Commands| {
//!         commands
//!             .spawn((Name::new("Greta"), Agent::persona("You are Greta, the smith of Emberfall. A horseshoe costs 3 silver.")))
//!             .observe(|sentence: On<SentenceSpoken>| println!("Greta: {}", sentence.text))
//!             .ask("What does a horseshoe cost?");
//!     })
//!     .run();
//! ```
//! An agent is an entity, its persona a component. Asking is an event; what it says comes back as
//! events on the entity, as messages, and in components. [`WallaPlugin::default`] speaks with the
//! small demo model, [`WallaPlugin::model`] with a GGUF file of yours. The model loads and runs on
//! a thread of its own: the frame only passes notes.
//!
//! # What there is
//! | to describe an agent | default |
//! |---|---|
//! | [`Agent`] | the persona; brings all the others |
//! | [`AgentSampling`], [`AgentSeed`] | temperature 0.7, top-k 40, top-p 0.95, min-p 0.05; seed 0 |
//! | [`VoiceRate`], [`AgentPriority`] | no deadline; 0 |
//! | [`LevelOfDetail`] | 0: all that its voice needs (feature `lod`: set by distance) |
//! | [`ReplyLimits`], [`AgentContext`] | 256 tokens, no stop strings; the oldest turns are forgotten |
//! | [`AgentReasoning`] | no thinking; 512 tokens of reasoning at most |
//!
//! | to read | |
//! |---|---|
//! | [`Speech`] | what the agent is saying: state, question, text so far |
//! | [`Conversation`] | what was said: readable, editable, saveable (feature `serialize`), restorable |
//! | [`Walla`] | the engine: state, model, counters, what the frame paid |
//!
//! | to tell | |
//! |---|---|
//! | [`Ask`], [`Cancel`] | trigger them, write them as messages, or call [`commands.ask(…)`](AskCommands) and `hush` |
//! | [`Interrupt`] | like [`Cancel`], for a voice: the conversation keeps the heard part |
//!
//! | to hear, as event and as message | |
//! |---|---|
//! | [`ReplyStarted`] | the agent begins to read the prompt; words come with [`ReplyDelta`] |
//! | [`ReplyDelta`] | more text |
//! | [`ReplyReasoning`] | more text that the model writes for itself: never spoken |
//! | [`SentenceSpoken`] | a sentence for speech synthesis and subtitles |
//! | [`TokenDrawn`] | a token and its alternatives, for those who asked for candidates |
//! | [`ReplyFinished`], [`ReplyFailed`] | the end: exactly one of them for each ask |
//! | [`WallaReady`], [`WallaFailed`] | the model is loaded, or never will be |
//!
//! Systems run in the sets of [`WallaSystems`]: `Publish` in `PreUpdate`, `Collect` and `Submit` in
//! `PostUpdate`. [`WallaDiagnosticsPlugin`] adds the numbers to Bevy's diagnostics,
//! `overlay::WallaOverlayPlugin` (feature `overlay`) draws them over the game; [`WallaSettings`]
//! bounds the work of a frame.
//!
//! # What a frame pays
//! Nothing in a frame waits: not for a lock, not for the device, not when an agent goes. Only the
//! last handle of an engine, usually the end of its app, gives the device's thread up to 300 ms to
//! free the memory. With 64 agents speaking at once a real frame pays some 40 µs, 6 µs where caches
//! are warm, and allocates nothing (`benches/README.md`, `cargo bench -p bevy_walla`,
//! `tests/no_allocation.rs`). When the engine's mailbox is full, what there is to say waits for the
//! next frame; nothing is lost.
//!
//! # What the device pays
//! A frame may use a quarter of a 60 Hz frame of the device's time, unless you say otherwise
//! ([`WallaPlugin::budget`], in play [`Walla::set_budget`]): work that is predicted not to fit
//! waits for the next one. Agents that matter go first ([`AgentPriority`], [`LevelOfDetail`]),
//! voices that are due before prompts, and nobody waits for ever. [`Walla::stats`] and
//! [`WallaDiagnosticsPlugin`] say how the budget is kept.
//!
//! # Questions
//! **Several characters, one model?** That is the point: all agents share the model and run as one
//! batch. A second agent costs its context's memory and a little time, not a second model.
//!
//! **How do I know which reply an event belongs to?** Events are on the agent's entity, and an
//! agent answers one thing at a time. [`ReplyStarted`], [`ReplyFinished`] and [`ReplyFailed`] carry
//! the [`tag`](Ask::tag) of the ask, which is yours to choose; `generation` tells the deltas and
//! sentences of one reply from those of another. Replies begin in the order of the asks, but an ask
//! that never comes to a reply (refused, cancelled) may end before those that were asked earlier.
//!
//! **More agents than the engine has slots?** They take turns: an agent that is asked waits for a
//! slot, and the agent that has been idle longest loses its own. Conversations stay
//! ([`WallaPlugin::agents_max`], [`WallaPlugin::wait_for_slot`]).
//!
//! **Pausing the game?** [`WallaSettings::pause_with_time`] pauses agents with `Time<Virtual>`,
//! [`WallaSettings::paused`] whenever the game likes. Later they continue with the same words.
//!
//! **What if the agent dies in mid-sentence?** Despawn it. Its replies end as cancelled and its
//! memory is freed.
//!
//! **Can players break out of the persona by typing control tokens?** No: persona, question and
//! history are encoded as plain text. So is the text of [`Ask::raw`]; only [`Ask::raw_trusted`]
//! parses markers.
//!
//! **What does an agent see?** Push an observation into its [`Conversation`]: a turn of
//! [`Speaker::Observation`], such as "Odo leaves the room". A conversation may have any order of
//! turns: an agent may speak first, and observations may come at any place.
//!
//! **Saving a game?** Save [`Conversation`] with the rest of the entity. Spawn the agent with it,
//! and it goes on from there; what the model must read again, it reads when it is asked. A hostile
//! or damaged save is an error of the format that reads it, within the limits
//! [`Conversation::TURNS_MAX`] and [`Conversation::TEXT_BYTES_MAX`].
//!
//! **Inspectors, scenes, the remote protocol?** With the feature `reflect` components, settings and
//! asks are registered by their names. [`AgentSampling`], [`AgentContext`] and [`Conversation`] are
//! whole values there, to be copied and replaced; the others have their fields, but for
//! [`ReplyLimits::stop_tokens`].
//!
//! **Testing without a model?** [`scripted::ScriptedEngine`] speaks from a script, one word a
//! frame.
//!
//! **Where does the time of a frame go?** Run with `WALLA_TRACE=trace.json` in the environment, or
//! ask [`WallaPlugin::trace`], and open the file in
//! <https://ui.perfetto.dev>: host frame, device thread, device and copies, one above the other.
//!
//! **A model without a chat template?** [`WallaReady`] has the reason why asks will fail.
//! [`WallaPlugin::template`] chooses another one, for instance `"chatml"`.
//!
//! **No model, broken file, no memory?** [`WallaFailed`] reports what to do, asks fail with it, and
//! the game continues. Defects of the file that do not prevent loading are in
//! [`ModelCard::warnings`] and in the log.

#![forbid(unsafe_code)]

mod agent;
mod ask;
mod conversation;
mod diagnostics;
mod error;
mod hub;
mod link;
#[cfg(feature = "lod")]
mod lod;
#[cfg(feature = "overlay")]
pub mod overlay;
mod plugin;
#[cfg(feature = "reflect")]
mod reflect;
mod reply;
mod save;
pub mod scripted;
mod sentence;
mod settings;
mod speech;
mod systems;
mod trace;
mod walla;

pub use agent::{
    Agent, AgentContext, AgentPriority, AgentReasoning, AgentSampling, AgentSeed, LevelOfDetail,
    ReplyLimits, VoiceRate,
};
pub use ask::{Ask, AskCommands, AskEntityCommands, AskKind, Cancel, Interrupt};
pub use conversation::Conversation;
pub use diagnostics::WallaDiagnosticsPlugin;
pub use error::WallaError;
pub use hub::FrameCost;
pub use link::{Link, WallaState};
#[cfg(feature = "lod")]
pub use lod::{InView, Listener, LodByDistancePlugin, LodDistances};
pub use plugin::WallaPlugin;
pub use reply::{ReplyDelta, ReplyFailed, ReplyFinished, ReplyReasoning, ReplyStarted, TokenDrawn};
pub use save::ConversationError;
pub use sentence::{SENTENCE_BYTES_MAX, SentenceSpoken};
pub use settings::WallaSettings;
pub use speech::{Speech, SpeechState};
pub use systems::WallaSystems;
pub use walla::{Walla, WallaFailed, WallaReady, walla_ready};
#[cfg(feature = "cuda")]
pub use walla_runtime::cuda;
pub use walla_runtime::{
    ASKS_WAITING_MAX, AgentId, AgentSpec, BucketError, BudgetStats, BuiltInTemplate, Client,
    Command, ContextPolicy, DELTA_BYTES_MAX, Deadlines, DecodeOptions, Detail, DeviceInfo,
    EXCHANGES_KNOWN_MAX, EncodeOptions, Engine, EngineError, EngineOptions, EngineState,
    EngineStats, Event, FinishReason, GenerationId, GpuContext, InlineText, KvType, ModelCard,
    ModelSource, Pacing, Prompt, ReplyError, ReplyEvent, Speaker, TemplateChoice, TemplateError,
    TemplateState, TokenDetail, Tokenizer, TokenizerError, TrySendError, Turn, Usage,
};
pub use walla_types::{
    InvalidSampling, InvalidTokenMask, LogitBias, Sampling, SamplingBuilder, TokenId, TokenMask,
};

/// What most programs need.
pub mod prelude {
    pub use crate::{
        Agent, AgentContext, AgentPriority, AgentReasoning, AgentSampling, AgentSeed, Ask,
        AskCommands, AskEntityCommands, AskKind, Cancel, ContextPolicy, Conversation, FinishReason,
        Interrupt, LevelOfDetail, ReplyDelta, ReplyFailed, ReplyFinished, ReplyLimits,
        ReplyReasoning, ReplyStarted, Sampling, SentenceSpoken, Speaker, Speech, SpeechState, Turn,
        VoiceRate, Walla, WallaDiagnosticsPlugin, WallaFailed, WallaPlugin, WallaReady,
        WallaSettings, WallaState, WallaSystems, walla_ready,
    };
}

/// Compiles the examples of the project's README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
