//! Bevy plugin: runs the dialogue of all NPCs or robots as one batch per frame and never blocks the
//! frame.
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
//!             .observe(|sentence: On<ReplySentence>| println!("Greta: {}", sentence.text))
//!             .ask("What does a horseshoe cost?");
//!     })
//!     .run();
//! ```
//! An agent is an entity, and its persona is a component. An ask is an event. The reply arrives as
//! events on the entity, as messages and in components. [`WallaPlugin::default`] uses the small
//! demo model, [`WallaPlugin::model`] a GGUF file. The model loads and runs on a dedicated thread;
//! the frame only exchanges messages with it.
//!
//! # Overview
//! | component of an agent | default |
//! |---|---|
//! | [`Agent`] | the persona; requires all the others |
//! | [`AgentSampling`], [`AgentSeed`] | temperature 0.7, top-k 40, top-p 0.95, min-p 0.05; seed 0 |
//! | [`VoiceRate`], [`AgentPriority`] | no deadline; 0 |
//! | [`LevelOfDetail`] | 0: every step that its voice rate needs (feature `lod`: set by distance) |
//! | [`ReplyLimits`], [`AgentContext`](agent::AgentContext) | 256 tokens, no stop strings; oldest turns dropped |
//! | [`AgentReasoning`](agent::AgentReasoning) | no thinking; at most 512 tokens of reasoning |
//! | [`AgentConstraint`] | optional: replies conform to a JSON schema, a regular expression, a choice or a grammar |
//! | [`AgentActions`] | optional: actions of the game that the agent can call |
//! | [`AgentCues`](cues::AgentCues) | optional: stage directions of its replies are events, apart from speech |
//! | [`ForkOf`](agent::ForkOf) | optional: the agent that this one begins as a copy of |
//! | [`Simulation`](agent::Simulation) | optional: the calls of this agent are not real |
//! | [`AgentEngine`](agent::AgentEngine) | optional: the engine of the agent, in an app with several, and its substitute |
//! | `CharacterHandle` | optional, with `WallaCharacterPlugin` (feature `assets`): persona and settings from a file |
//! | [`MemberOf`](groups::MemberOf) | optional, with [`WallaGroupPlugin`](groups::WallaGroupPlugin): conversations of several agents and players |
//! | [`AgentMemory`](memories::AgentMemory), [`AgentKnowledge`](memories::AgentKnowledge), [`Memorizes`](memories::Memorizes) | optional, with [`WallaMemoryPlugin`]: entries that are found at each ask, the settings of the search, turns of the conversation as entries |
//!
//! | state | |
//! |---|---|
//! | [`Speech`] | the reply in progress: state, question, text so far |
//! | [`Conversation`] | the history: readable, editable, saveable (feature `serialize`), restorable |
//! | [`Walla`] | the engine: state, model, counters, host time of its systems |
//! | [`WallaEngines`](engines::WallaEngines) | the engines of an app with several: load, replace, unload, list |
//! | [`Lore`](memories::Lore), [`MemoryTime`](memories::MemoryTime), [`MemoryService`](memories::MemoryService) | entries that agents share, the game time of entries, state of the search |
//! | [`WallaRecorder`] | state of the recording |
//!
//! | request | |
//! |---|---|
//! | [`Ask`], [`Cancel`](ask::Cancel) | trigger them, write them as messages, or call [`commands.ask(…)`](AskCommands) and `cancel` |
//! | [`Cancel::heard`](ask::Cancel::heard) | for speech output: the conversation keeps the part that was heard |
//! | [`ActionResult`] | the outcome of an action: the agent hears it and continues to speak; also `action_result` of the entity's commands |
//! | [`ForkCommands`](agent::ForkCommands), [`CacheCommands`](cache::CacheCommands), [`RememberCommands`](memories::RememberCommands) | copies of agents, caches in files, entries of memories |
//!
//! | event and message | |
//! |---|---|
//! | [`ReplyStarted`] | prefill of the prompt begins; text arrives with [`ReplyDelta`] |
//! | [`ReplyDelta`] | more text |
//! | [`ReplyReasoning`](reply::ReplyReasoning) | more reasoning text, which is never spoken |
//! | [`ReplyCue`](cues::ReplyCue) | a stage direction of an agent with [`AgentCues`](cues::AgentCues), apart from its speech |
//! | [`ReplySentence`] | a sentence for speech synthesis and subtitles |
//! | [`ActionCall`], [`AgentCalled`](actions::AgentCalled) | the agent calls an action, as a type of the game and as data |
//! | [`CallRefused`](actions::CallRefused) | a call that cannot be executed |
//! | [`SimulatedCall`](actions::SimulatedCall) | a call of an agent with [`Simulation`](agent::Simulation), which is not real |
//! | [`ResultRefused`](actions::ResultRefused) | a result that belongs to no open call of the agent |
//! | [`ReplyToken`](reply::ReplyToken) | a token and its alternatives, if the agent's sampling requests candidates |
//! | [`ReplyScores`](reply::ReplyScores) | how probable the texts of [`Ask::scoring`] are |
//! | [`TurnsDropped`](reply::TurnsDropped) | the agent has forgotten the oldest turns of its conversation |
//! | [`ReplyFinished`], [`ReplyFailed`] | the end: exactly one of them for each ask, and for each reply that continues after results |
//! | [`WallaReady`], [`WallaFailed`] | the model is loaded, or failed to load |
//! | [`WallaEngineReady`](engines::WallaEngineReady), [`WallaEngineFailed`](engines::WallaEngineFailed) | the same for one engine of several |
//!
//! An event is a message and an event on the agent's entity, in the order of occurrence.
//! [`WallaSystems::Publish`] writes messages and components at once, and triggers the events when
//! its schedule's commands are applied. Observers run after all events of the frame are applied:
//! components may already show the next reply. [`Conversation::reply`] has the text of a reply that
//! has ended.
//!
//! Systems run in the sets of [`WallaSystems`]: `Publish` in `PreUpdate`, `Collect` and `Submit` in
//! `PostUpdate`, or in [other schedules](WallaPlugin::schedules). [`WallaDiagnosticsPlugin`] adds
//! the counters to Bevy's diagnostics. `overlay::WallaOverlayPlugin` (feature `overlay`) draws them
//! over the game. [`WallaSettings`] bounds the work of a frame. The module [`engine`] has the
//! low-level interface: commands, events and clients of an engine.
//!
//! # Lifecycle
//! | action | effect |
//! |---|---|
//! | despawn the entity | its replies end as cancelled. Observers on the entity are gone too: use a global observer or messages |
//! | remove [`Agent`] | as above, but the other components and the entity's observers stay: events of the old replies still arrive on the entity. The text of the reply in progress is not added to [`Conversation`] |
//! | insert [`Agent`] over an existing one | changes the persona and cancels nothing |
//! | remove a component with settings | its default value applies |
//! | remove [`Speech`] | the dialogue continues without it |
//! | remove [`Conversation`] | the engine keeps its copy of the conversation |
//! | clone the entity | a new, silent agent with a copy of the conversation, without open asks and without the observers of the entity. It has the same seed: insert another [`AgentSeed`] |
//!
//! # Cost on the host
//! The frame never waits for the device, for another thread's work, or when an agent is despawned.
//! Its path to an engine takes no lock. Memory, several engines, recordings and replays hold a
//! mutex for the duration of a call: it is taken by calls of the host only, so a system waits at
//! most for another system's call of the same engine, never for a computation or a file. The
//! only exception is the drop of an engine's last handle, usually at the end of its app: it gives
//! the device thread up to 300 ms to free the memory. With 64 agents speaking at once, the systems
//! take about 40 µs of a real frame (6 µs with warm caches) and allocate nothing
//! (`benches/README.md`, `cargo bench -p bevy_walla`, `tests/no_allocation.rs`). If the engine's
//! mailbox is full, the remaining commands are sent in the next frame; no command is lost.
//!
//! # Cost on the device
//! Each frame has a device-time budget. Default: a quarter of a frame at 60 Hz on a GPU, half of
//! it on a CPU ([`EngineOptions::budget`], at run time [`Walla::set_budget`]). Work that is
//! predicted not to fit waits for the next frame. Agents with a higher priority or a better level
//! of detail are scheduled first ([`AgentPriority`], [`LevelOfDetail`]), and due decode tokens
//! before prompts. No request starves. [`Walla::stats`] and [`WallaDiagnosticsPlugin`] report how
//! the budget is kept.
//!
//! # Questions
//! **Several characters, one model?** All agents share the model and run as one batch. A second
//! agent costs KV cache memory for its context and a little time, not a second model.
//!
//! **Which reply does an event belong to?** Events are on the agent's entity, and an agent answers
//! one ask at a time. [`ReplyStarted`], [`ReplyFinished`] and [`ReplyFailed`] carry the
//! [`tag`](Ask::tag) that the game gave the ask. `reply_id` identifies the reply of a delta or
//! sentence. Replies begin in the order of the asks, but an ask without a reply (refused,
//! cancelled) may end before asks that were made earlier.
//!
//! **More agents than slots in the engine?** Slots are shared: an agent with an open ask waits for
//! a slot, and the agent that has been idle longest loses its slot. Conversations are kept
//! ([`EngineOptions::max_agents`], [`EngineOptions::wait_for_slot`]).
//!
//! **Pausing the game?** [`WallaSettings::pause_with_time`] pauses agents with `Time<Virtual>`,
//! [`WallaSettings::paused`] at any time. The pause does not change the replies.
//!
//! **What if an agent dies in mid-sentence?** Despawn it. Its replies end as cancelled and its
//! memory is freed ([lifecycle](#lifecycle)).
//!
//! **Can players break out of the persona by typing control tokens?** No: persona, question and
//! history are encoded as plain text. So is the text of [`Prompt::Raw`](ask::Prompt::Raw);
//! only [`Prompt::RawTrusted`](ask::Prompt::RawTrusted) parses markers.
//!
//! **How does an agent perceive the world?** Push an observation to its [`Conversation`]: a turn of
//! [`Speaker::Observation`](conversation::Speaker::Observation), such as "Odo leaves the room". A
//! conversation may have any order of turns: an agent may speak first, and observations may be
//! anywhere.
//!
//! **Can an agent act?** Give it [`AgentActions`]. Calls are events ([`ActionCall`]), valid by the
//! schema of the action and the choices of the agent. [`ActionPolicy`](actions::ActionPolicy)
//! requires or forbids them. A small model also writes calls without the markers of its format:
//! [`UnmarkedCalls`](actions::UnmarkedCalls). Examples of calls in the [`Conversation`] help it
//! more than instructions in the persona.
//!
//! **Saving a game?** Save [`Conversation`] with the rest of the entity. Spawn the agent with the
//! saved component to continue the conversation. The history is prefilled again at the next ask,
//! unless its cache was saved too ([`CacheCommands`](cache::CacheCommands)). A
//! hostile or damaged save is an error of the format's deserializer, within the limits
//! [`Conversation::MAX_TURNS`] and [`Conversation::MAX_TEXT_BYTES`].
//!
//! **Inspectors, scenes, the remote protocol?** With the feature `reflect`, components, settings,
//! asks and messages are registered by name. [`AgentSampling`], [`AgentConstraint`],
//! [`AgentActions`], [`AgentCalled`](actions::AgentCalled), [`CallRefused`](actions::CallRefused),
//! [`AgentContext`](agent::AgentContext), [`Conversation`], [`ReplyToken`](reply::ReplyToken),
//! [`ReplyScores`](reply::ReplyScores), [`WallaReady`] and [`WallaFailed`] are opaque values, which
//! can be cloned and replaced. The others expose their fields, except [`ReplyLimits::stop_tokens`].
//!
//! **Testing without a model?** [`scripted::ScriptedEngine`] replies from a script, one word per
//! frame.
//!
//! **How is the time of a frame spent?** Set `WALLA_TRACE=trace.json` in the environment, or call
//! [`WallaPlugin::trace`], and open the file in <https://ui.perfetto.dev>. It shows host frame,
//! device thread, device and copies on separate tracks, and the parts of each reply's time to its
//! first token.
//!
//! **Why does an agent answer late?** [`ReplyFinished::usage`] has the parts of the time to the
//! first token: waiting, encoding, prefill and decode
//! ([`FirstTokenTimes`](reply::FirstTokenTimes)). [`WallaDiagnosticsPlugin`], the overlay and
//! traces show them.
//!
//! **A model without a chat template?** [`WallaReady`] contains the reason why asks will fail.
//! [`EngineOptions::template`] selects another template, for instance `"chatml"`.
//!
//! **No model, broken file, no memory?** [`WallaFailed`] reports the reason and the remedy, asks
//! fail with the same error, and the game continues. Defects of the file that do not prevent
//! loading are in [`ModelCard::warnings`](diagnostics::ModelCard::warnings) and in the log.

#![forbid(unsafe_code)]

#[cfg(feature = "actions")]
mod action_types;
pub mod actions;
pub mod agent;
pub mod ask;
mod bridge;
pub mod cache;
#[cfg(feature = "assets")]
pub mod characters;
pub mod conversation;
pub mod cues;
pub mod diagnostics;
pub mod engine;
pub mod engines;
mod error;
mod fork;
pub mod groups;
#[cfg(feature = "lod")]
pub mod lod;
pub mod memories;
#[cfg(feature = "overlay")]
pub mod overlay;
mod plugin;
mod recording;
#[cfg(feature = "reflect")]
mod reflect;
pub mod reply;
mod save;
pub mod scripted;
mod sentence;
mod settings;
mod speech;
mod state;
mod systems;
mod trace;
#[cfg(feature = "speech")]
pub mod voice;
mod walla;

pub use error::WallaError;
pub use prelude::*;
pub use recording::WallaRecorder;
/// Entries, limits and saved content of [`memories`], and their search.
#[doc(inline)]
pub use walla_memory as memory;
/// Recordings of sessions, their replay with a model, and their player without one:
/// [`WallaPlugin::record_to`], [`EngineSetup::replay_from`](engines::EngineSetup::replay_from).
#[doc(inline)]
pub use walla_record as record;
/// Servers of the chat completions protocol as engines: options for
/// [`EngineSetup`](engines::EngineSetup).
#[cfg(feature = "remote")]
#[doc(inline)]
pub use walla_remote as remote;
pub use walla_runtime::EngineError;

/// Values of [`EngineOptions`].
pub mod options {
    #[cfg(feature = "cuda")]
    pub use walla_runtime::cuda;
    pub use walla_runtime::{
        BuiltInTemplate, Deadlines, FrameBudget, GpuContext, KvType, ModelSource, TemplateChoice,
    };
}

/// Tokens of a model: its tokenizer, masks and biases.
pub mod tokens {
    pub use walla_runtime::{
        DecodeOptions, EncodeOptions, Tokenizer, TokenizerError, VocabularyError,
    };
    pub use walla_types::{InvalidTokenMask, LogitBias, TokenId, TokenMask};
}

/// What most programs need. The other items are in modules by topic, so that a glob import adds no
/// name that another crate's prelude may have.
pub mod prelude {
    #[cfg(feature = "actions")]
    pub use crate::action_types::{ActionCall, AddAction};
    pub use crate::actions::{ActionCommands, ActionResult, AgentActions};
    pub use crate::agent::{
        Agent, AgentConstraint, AgentPriority, AgentSampling, AgentSeed, LevelOfDetail,
        ReplyLimits, VoiceRate,
    };
    pub use crate::ask::{Ask, AskCommands, AskEntityCommands};
    pub use crate::conversation::Conversation;
    pub use crate::diagnostics::WallaDiagnosticsPlugin;
    pub use crate::memories::WallaMemoryPlugin;
    pub use crate::plugin::WallaPlugin;
    pub use crate::reply::{
        ReplyDelta, ReplyFailed, ReplyFinished, ReplySentence, ReplyStarted, Speech,
    };
    pub use crate::settings::WallaSettings;
    pub use crate::state::WallaState;
    pub use crate::systems::WallaSystems;
    pub use crate::walla::{Walla, WallaFailed, WallaReady, walla_ready};
    pub use walla_runtime::EngineOptions;
}

/// Compiles the examples of the project's README and of the pages in `docs`.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../README.md")]
    struct Package;
    #[doc = include_str!("../../../docs/actions.md")]
    struct Actions;
    #[doc = include_str!("../../../docs/agents.md")]
    struct Agents;
    #[cfg(feature = "assets")]
    #[doc = include_str!("../../../docs/characters.md")]
    struct Characters;
    #[cfg(feature = "remote")]
    #[doc = include_str!("../../../docs/engines.md")]
    struct Engines;
    #[doc = include_str!("../../../docs/frame.md")]
    struct Frame;
    #[doc = include_str!("../../../docs/groups.md")]
    struct Groups;
    #[doc = include_str!("../../../docs/memory.md")]
    struct Memory;
    #[doc = include_str!("../../../docs/saving.md")]
    struct Saving;
    #[doc = include_str!("../../../docs/shipping.md")]
    struct Shipping;
    #[cfg(feature = "speech")]
    #[doc = include_str!("../../../docs/voice.md")]
    struct Voice;
}
