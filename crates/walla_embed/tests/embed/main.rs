//! Tests of the embedder on small models with random weights, whose vectors were computed by other
//! code (`tools/embedding`), and of a published model (ignored without it).

#![expect(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, reason = "tests")]

mod common;
mod hostile;
mod oracle;
#[path = "../../../walla_runtime/tests/common/own_thread.rs"]
mod own_thread;
mod queue;
mod real;
mod threads;
