//! Low-level interface of an engine: clients, commands, events and specifications of agents.
//!
//! Most games do not need this module. It is for programs that
//! - share a running engine between apps, or with code outside of Bevy ([`Engine`]),
//! - replace the engine of an app, for instance to record and replay its dialogue
//!   ([`EngineClient`], [`EngineSetup::client`](crate::engines::EngineSetup::client)),
//! - check the commands that an app sends
//!   ([`ScriptedEngine::commands`](crate::scripted::ScriptedEngine::commands)).
//!
//! [`Command`] and [`Event`] here are messages between a host and an engine. They are not Bevy's
//! traits of the same names, so no glob import of the crate or its prelude includes them. Types
//! that the plugin's own components and messages contain, such as
//! [`FinishReason`](crate::reply::FinishReason) and [`ReplyId`](crate::reply::ReplyId), are in the
//! root of the crate.
//!
//! # Examples
//! A client that counts the asks of an app:
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicUsize, Ordering};
//!
//! use bevy_app::prelude::*;
//! use bevy_walla::diagnostics::EngineStats;
//! use bevy_walla::engine::{Capabilities, Command, EngineClient, EngineState, Event, TrySendError};
//! use bevy_walla::engines::EngineSetup;
//! use bevy_walla::prelude::*;
//! use bevy_walla::scripted::ScriptedEngine;
//!
//! struct Counting(Box<dyn EngineClient>, Arc<AtomicUsize>);
//!
//! impl EngineClient for Counting {
//!     fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
//!         let is_ask = matches!(command, Command::Ask { .. });
//!         self.0.try_send(command)?; // a refused command is sent again in the next frame
//!         self.1.fetch_add(usize::from(is_ask), Ordering::Relaxed);
//!         Ok(())
//!     }
//!     fn try_recv(&self) -> Option<Event> {
//!         self.0.try_recv()
//!     }
//!     fn frame(&self) {
//!         self.0.frame();
//!     }
//!     fn state(&self) -> EngineState {
//!         self.0.state()
//!     }
//!     fn stats(&self) -> EngineStats {
//!         self.0.stats()
//!     }
//!     fn stop(&self) {
//!         self.0.stop();
//!     }
//!     fn capabilities(&self) -> Capabilities {
//!         self.0.capabilities()
//!     }
//! }
//!
//! let scripted = ScriptedEngine::new(|_, _| "Three silver.".into()).new_client();
//! let asks = Arc::new(AtomicUsize::new(0));
//! let counter = Arc::clone(&asks);
//! let new_client = move || -> Box<dyn EngineClient> {
//!     Box::new(Counting(scripted(), Arc::clone(&counter)))
//! };
//! let mut app = App::new();
//! app.add_plugins(WallaPlugin::new(EngineSetup::client(new_client)));
//! let greta = app.world_mut().spawn(Agent::persona("You are Greta.")).id();
//! app.world_mut().trigger(Ask::new(greta, "What does a horseshoe cost?"));
//! app.update();
//! assert_eq!(asks.load(Ordering::Relaxed), 1);
//! ```

pub use walla_runtime::{
    AgentId, AgentSpec, BucketError, Cancellation, Capabilities, Client, Command, ConstraintKinds,
    Detail, Determinism, Engine, EngineClient, EngineState, Event, Exchange, History,
    MAX_ASKS_WAITING, MAX_EXCHANGES_KNOWN, Pacing, PrefixCache, Prompt, ReplyEvent, TrySendError,
};
