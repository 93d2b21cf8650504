//! The `walla` command: its output, its files, its failures.

#[path = "cli/command.rs"]
mod command;
#[path = "cli/embed.rs"]
mod embed;
#[cfg(feature = "evaluate")]
#[path = "cli/evaluate.rs"]
mod evaluate;
#[path = "cli/files.rs"]
mod files;
#[path = "cli/hints.rs"]
mod hints;
#[path = "cli/models.rs"]
mod models;
#[path = "cli/outputs.rs"]
mod outputs;
#[cfg(feature = "pull")]
#[path = "cli/pull.rs"]
mod pull;
#[path = "cli/refusals.rs"]
mod refusals;
#[path = "cli/replay.rs"]
mod replay;
#[path = "cli/generation.rs"]
mod reply_id;
#[path = "cli/signals.rs"]
mod signals;
#[path = "cli/streams.rs"]
mod streams;
#[path = "cli/templates.rs"]
mod templates;
#[cfg(feature = "voice")]
#[path = "cli/voice.rs"]
mod voice;
#[path = "cli/warnings.rs"]
mod warnings;
