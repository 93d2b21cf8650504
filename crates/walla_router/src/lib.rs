//! Several named engines behind walla's [interface of an engine](walla_runtime::EngineClient).
//!
//! A [`Router`] is an engine whose agents are on other engines: local, remote or scripted ones. The
//! [route](walla_runtime::Route) in the specification of an agent names its engine, and a
//! substitute for the time in which that engine does not answer. Engines can be added, replaced and
//! removed at any time ([`Engines`]).
//!
//! # Rules
//! - The router keeps the conversation of each agent, so an agent that moves to another engine
//!   takes it along.
//! - An ask is on one engine at a time and has one end. If its engine fails before the first
//!   output, or exceeds the agent's limit of time, the substitute gets the same ask from the same
//!   conversation. `Started` then follows with the first output.
//! - An engine that fails repeatedly is [unavailable](Health) for a while: asks go straight to the
//!   substitute.
//! - Engines on one device share the [budget](Engines::set_budget) of a frame by their weights. An
//!   engine without work leaves its share to the others.
//!
//! # Examples
//! ```
//! use std::time::Duration;
//!
//! use walla_router::{Router, RouterOptions};
//! use walla_runtime::{AgentId, AgentSpec, Command, EngineClient, Route};
//!
//! # fn engine() -> Box<dyn EngineClient> { Box::new(Router::new(RouterOptions::default())) }
//! let router = Router::new(RouterOptions::new("small"));
//! router.engines().add("small", engine())?;
//! router.engines().add("large", engine())?;
//! let mut spec = AgentSpec::new("You are Greta, a smith.");
//! spec.route = Route::engine("large").or("small", Duration::from_millis(800));
//! let added = Command::AddAgent { agent: AgentId::unique(), spec: Box::new(spec) };
//! assert!(router.try_send(added).is_ok());
//! # Ok::<(), walla_router::EnginesError>(())
//! ```

#![forbid(unsafe_code)]

mod agent;
mod child;
mod commands;
mod health;
mod replies;
mod router;
mod shares;
mod state;

pub use health::{Health, HealthRules};
pub use router::{EngineStatus, Engines, EnginesError, Router, RouterOptions};
