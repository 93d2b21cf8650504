//! Recordings of sessions: format, recorder, replay and player.

mod crash;
mod generator;
mod golden;
mod hostile;
mod kit;
#[path = "../../../walla_runtime/tests/common/own_thread.rs"]
mod own_thread;
mod player;
mod recorder;
mod round_trip;
mod sessions;
