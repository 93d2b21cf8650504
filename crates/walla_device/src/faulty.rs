//! A device that breaks on purpose, by seed, for tests.

mod clock;

pub use clock::VirtualClock;
