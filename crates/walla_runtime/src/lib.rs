//! The device thread, its mailboxes and the life of every agent's sequence.
