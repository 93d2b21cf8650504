//! Tests of the service and its client.

mod client;
mod service;
mod vectors;
