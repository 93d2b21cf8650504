use super::sync::{AtomicBool, Mark, Ordering};

/// Requests of a client besides its commands. Written by the client, read by the device thread.
///
/// Each flag is released and acquired: earlier writes of the host are visible to a thread that sees
/// the flag.
#[derive(Debug)]
pub(super) struct Flags {
    framed: Mark,
    paused: AtomicBool,
    logged: AtomicBool,
    gone: AtomicBool,
}

impl Flags {
    pub fn new() -> Self {
        Self {
            framed: Mark::new(false),
            paused: AtomicBool::new(false),
            logged: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        }
    }

    /// Grants a frame. The commands before it are taken in its round.
    pub fn grant_frame(&self) {
        self.framed.set();
    }

    /// Whether a frame was granted since the last call.
    pub fn take_frame(&self) -> bool {
        self.framed.take()
    }

    pub fn set_paused(&self, is_paused: bool) {
        self.paused.store(is_paused, Ordering::Release);
    }

    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Requests details for a recording, from the next command on.
    pub fn set_logged(&self, is_logged: bool) {
        self.logged.store(is_logged, Ordering::Release);
    }

    /// Read after a command, so that the command has the setting that was made before it.
    pub fn is_logged(&self) -> bool {
        self.logged.load(Ordering::Acquire)
    }

    /// The client is dropped.
    pub fn leave(&self) {
        self.gone.store(true, Ordering::Release);
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}
