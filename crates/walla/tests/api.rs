//! The async API on a tiny model, on devices that work only when a test says so, or that break.

#[path = "api/agents.rs"]
mod agents;
#[path = "api/ends.rs"]
mod ends;
#[path = "api/host.rs"]
mod host;
#[path = "api/replies.rs"]
mod replies;
#[path = "api/waits.rs"]
mod waits;
