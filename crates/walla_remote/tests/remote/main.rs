//! Tests of remote engines with servers on this machine, in one program.

mod client;
mod faults;
mod mapping;
#[path = "../../../walla_runtime/tests/common/own_thread.rs"]
mod own_thread;
mod proxy;
mod pull;
mod secrets;
mod server;
mod shapes;
mod tls;
