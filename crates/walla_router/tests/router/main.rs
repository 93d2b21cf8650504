//! Routers over engines of the tests.

mod log;
mod routes;
mod stories;
mod talker;
