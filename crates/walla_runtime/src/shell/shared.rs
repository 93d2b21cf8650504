//! State that hosts and the device thread share.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use super::channels::Admission;
use super::client_slots::ClientSlots;
use super::controls::Controls;
use super::heartbeat::Heartbeat;

use crate::status::Status;

/// Maximum number of device threads of an engine: the first, and one that loads a fallback if the
/// first one's load hangs.
const MAX_INCARNATIONS: usize = 2;

/// State shared by hosts and the device thread.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) status: Status,
    pub(super) admission: Admission,
    pub(super) stop: AtomicBool,
    pub(super) controls: Controls,
    /// Device threads by incarnation. The first is set before a handle exists that could ring.
    device_threads: [OnceLock<Thread>; MAX_INCARNATIONS],
    /// Incarnation of the device thread that owns the engine. Beyond the last one, no thread owns
    /// it.
    incarnation: AtomicU32,
    /// By incarnation, like the threads, so that a disowned thread that returns late does not write
    /// its successor's. The last belongs to the watchdog thread after it has given up.
    heartbeats: [Heartbeat; MAX_INCARNATIONS + 1],
    /// Clients. The device thread locks them briefly, never during a call of the device.
    client_slots: Mutex<ClientSlots>,
    pub(super) watchdog_thread: OnceLock<Thread>,
    /// The device and its memory are released or given up.
    ended: AtomicBool,
    /// Id of the process that started the engine. A fork of it has no threads.
    process: u32,
    pub(super) command_queue: usize,
    pub(super) event_queue: usize,
}

impl Shared {
    pub(super) fn new(command_queue: usize, event_queue: usize) -> Self {
        Self {
            status: Status::new(),
            admission: Admission::new(),
            stop: AtomicBool::new(false),
            controls: Controls::new(),
            device_threads: [const { OnceLock::new() }; MAX_INCARNATIONS],
            incarnation: AtomicU32::new(0),
            heartbeats: Default::default(),
            client_slots: Mutex::new(ClientSlots::default()),
            watchdog_thread: OnceLock::new(),
            ended: AtomicBool::new(false),
            process: std::process::id(),
            command_queue,
            event_queue,
        }
    }

    /// Makes the device thread check all its inputs again.
    pub(crate) fn ring(&self) {
        let incarnation = self.incarnation.load(Ordering::Acquire) as usize;
        if let Some(thread) = self.device_threads.get(incarnation).and_then(OnceLock::get) {
            thread.unpark();
        }
    }

    /// Whether this process is a fork of the one that started the engine.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn set_ended(&self) {
        self.current_heartbeat().rest();
        self.ended.store(true, Ordering::Release);
        if let Some(thread) = self.watchdog_thread.get() {
            thread.unpark();
        }
    }

    pub(super) fn set_device_thread(&self, number: u32, thread: Thread) {
        if let Some(place) = self.device_threads.get(number as usize) {
            let _first = place.set(thread);
        }
    }

    pub(super) fn heartbeat(&self, number: u32) -> &Heartbeat {
        &self.heartbeats[(number as usize).min(MAX_INCARNATIONS)]
    }

    /// The heartbeat of the device thread that owns the engine.
    pub(super) fn current_heartbeat(&self) -> &Heartbeat {
        self.heartbeat(self.incarnation.load(Ordering::Acquire))
    }

    fn client_slots(&self) -> MutexGuard<'_, ClientSlots> {
        // No method of `ClientSlots` leaves it inconsistent on a panic.
        self.client_slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the engine from its device thread. Returns the number of the next one.
    pub(super) fn disown(&self) -> u32 {
        // The lock ensures that the thread is not inside an operation on client slots or status.
        let _client_slots = self.client_slots();
        self.incarnation.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns client slots and status for device thread number `number`, or `None` if it has been
    /// disowned.
    pub(super) fn own(&self, number: u32) -> Option<Owned<'_>> {
        let client_slots = self.client_slots();
        let is_current = self.incarnation.load(Ordering::Acquire) == number;
        is_current.then_some(Owned { client_slots, status: &self.status })
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// State that the device thread may change while it owns the engine.
pub(super) struct Owned<'a> {
    pub client_slots: MutexGuard<'a, ClientSlots>,
    pub status: &'a Status,
}
