//! Routers over engines of the tests.

mod routes;
mod stories;
mod talker;
