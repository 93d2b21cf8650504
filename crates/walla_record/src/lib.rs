//! Recordings of sessions: the commands of a host, and every token of the replies.
//!
//! | type | purpose |
//! |---|---|
//! | [`Recorder`] | a client that records the commands and events of its host |
//! | [`Recording`] | a recording in memory; [`Session`] lists its agents and replies |
//! | [`Replay`] | repeats a session with the model, and reports the first token that differs |
//! | [`Player`] | plays a session without a model, to a host that asks the same |
//!
//! # Contents of a recording
//! Personas, conversations, notes, the texts of players, constraints, actions, seeds and settings
//! of agents, and all replies. It contains no API keys: these are options of a remote engine and no
//! part of its commands. Handle it as a log of conversations.
//!
//! # Size and safety
//! The frame side encodes into a buffer; a thread compresses and writes. At least once per second
//! it writes a chunk and asks the system to store it, so a crash or a power cut loses the last
//! second. A reader accepts any bytes: it returns a recording, a shorter recording or an error.
//!
//! # Examples
//! ```no_run
//! # fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use walla_record::{Recorder, Recording, Replay};
//! use walla_runtime::{Engine, EngineClient, EngineOptions, ModelSource, Pacing};
//!
//! let options = EngineOptions::model("smith.gguf");
//! let engine = Engine::start(options)?;
//! let client = Recorder::new("session.walla", engine.client(Pacing::default())?)?;
//! // … the session, through `client` …
//! drop(client);
//! let recording = Recording::open("session.walla")?;
//! let report = Replay::new(&recording).run(&engine.client(Pacing::default())?)?;
//! match report.first {
//!     None => println!("{} tokens are equal", report.tokens),
//!     Some(difference) => println!("{difference}"),
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod error;
mod file;
mod format;
mod player;
mod recorder;
mod recording;
mod replay;
mod session;
mod timeline;
mod writer;

pub use error::{ReadError, RecordError};
pub use format::Defect;
pub use player::{Pace, Player, PlayerClient};
pub use recorder::{Recorder, RecordingFile, RecordingStatus};
pub use recording::{End, EngineInfo, Entry, Limits, Record, Recording};
pub use replay::{Difference, Differing, Replay, ReplayError, ReplayReport};
pub use session::{RecordedAgent, RecordedAsk, ReplyText, Session};
