//! Embedding models: one vector for each text, so that texts of similar meaning have similar
//! vectors.
//!
//! [`Embedder`] loads a GGUF file of the architecture `bert` (all-MiniLM, bge and others), or
//! of an architecture that generates text whose file names a pooling of the last token
//! (Qwen3-Embedding). It runs on the CPU, on a thread of low priority.
//!
//! ```no_run
//! # fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use walla_embed::{Embedder, EmbedderOptions, Purpose, cosine};
//!
//! let embedder = Embedder::load("all-MiniLM-L6-v2-f16.gguf", EmbedderOptions::default())?;
//! let facts = ["The smith sells horseshoes.", "It rained all night."].map(String::from);
//! let facts = embedder.embed_blocking(facts.to_vec(), Purpose::Document)?;
//! let question = vec!["Where can I buy iron?".to_owned()];
//! let question = embedder.embed_blocking(question, Purpose::Query)?;
//! let nearest = facts.iter().map(|fact| cosine(&fact.vector, &question[0].vector));
//! # Ok(())
//! # }
//! ```
//!
//! # Threads
//! ```text
//! host: try_submit ──▶ bounded queue ──▶ thread `walla-embed`: tokens ▶ batch ▶ vectors
//! host: try_recv, a future or wait ◀── one result cell per request ◀──┘
//! ```
//!
//! Rules:
//! 1. The host never waits in [`try_submit`](Embedder::try_submit),
//!    [`try_recv`](Pending::try_recv), [`frame`](Embedder::frame) or a drop.
//! 2. Room in the queue is taken by the host before a request is queued, and returned by the thread
//!    when the request has ended, so the texts and results of all requests are bounded.
//! 3. A request has exactly one result: the thread stores it, or the drop of the request stores
//!    [`EmbedError::Stopped`].
//! 4. The thread reads the flag that ends it before each batch, so it ends within the time of one.

#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

#[doc(hidden)]
pub mod answer;
mod embedder;
mod error;
mod load;
mod model;
mod options;
mod pending;
mod queue;
mod text;
mod worker;

pub use embedder::Embedder;
pub use error::{EmbedError, LoadError, Refused, TrySubmitError};
pub use options::{EmbedderOptions, LongTexts, Purpose};
pub use pending::Pending;
pub use text::{Embedding, cosine};
pub use walla_model::embedding::{Pooling, is_embedding_model};
