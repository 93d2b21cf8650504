//! Tests of the service and its client.

mod client;
#[path = "../../../walla_runtime/tests/common/own_thread.rs"]
mod own_thread;
mod service;
mod vectors;
