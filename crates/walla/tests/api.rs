//! The async API with a tiny model, on devices that a test advances step by step, or that fail.

#[path = "api/agents.rs"]
mod agents;
#[path = "api/cache_files.rs"]
mod cache_files;
#[path = "api/ends.rs"]
mod ends;
#[path = "api/host.rs"]
mod host;
#[path = "api/memories.rs"]
mod memories;
#[path = "api/paths.rs"]
mod paths;
#[path = "api/recordings.rs"]
mod recordings;
#[path = "api/replies.rs"]
mod replies;
#[cfg(feature = "speech")]
#[path = "api/voice.rs"]
mod voice;
#[path = "api/waits.rs"]
mod waits;
