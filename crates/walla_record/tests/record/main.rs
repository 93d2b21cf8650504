//! Recordings of sessions: format, recorder, replay and player.

mod crash;
mod generator;
mod hostile;
mod kit;
mod player;
mod recorder;
mod round_trip;
mod sessions;
