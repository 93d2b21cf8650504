//! The queues between a client and its hub.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use atomic_waker::AtomicWaker;
use tokio::sync::Notify;
use walla_runtime::{EngineStats, Event, Mailbox};

/// Capacity of the queue of commands.
pub(crate) const MAX_COMMANDS: usize = 1_024;

/// Capacity of the queue of events.
const MAX_EVENTS: usize = 4_096;

/// Shared by a client and its hub. The client never waits.
#[derive(Debug)]
pub(crate) struct Channels {
    events: Mailbox<Event>,
    /// The client has taken an event from a full queue.
    pub space: Notify,
    pub waker: AtomicWaker,
    is_paused: AtomicBool,
    pub pause_changed: Notify,
    /// Events of a hub that has ended.
    last: Mutex<VecDeque<Event>>,
    is_ended: AtomicBool,
    pub counts: Counts,
}

/// Counters of a hub.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub tokens: AtomicU64,
    pub agents: AtomicU32,
    pub agents_active: AtomicU32,
    pub asks_waiting: AtomicU32,
    pub queue_full: AtomicU64,
}

impl Channels {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            events: Mailbox::new(MAX_EVENTS),
            space: Notify::new(),
            waker: AtomicWaker::new(),
            is_paused: AtomicBool::new(false),
            pause_changed: Notify::new(),
            last: Mutex::default(),
            is_ended: AtomicBool::new(false),
            counts: Counts::default(),
        })
    }

    /// Sends events in order, up to the queue's capacity. Called by the hub.
    pub fn send(&self, outbox: &mut VecDeque<Event>) {
        if outbox.is_empty() {
            return;
        }
        while let Some(event) = outbox.pop_front() {
            if let Err(refused) = self.events.try_send_or_want_retry(event) {
                self.counts.queue_full.fetch_add(1, Ordering::Relaxed);
                outbox.push_front(refused.into_inner());
                break;
            }
        }
        self.waker.wake();
    }

    pub fn set_paused(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Release);
        self.pause_changed.notify_one();
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Acquire)
    }

    /// The next event. Called by the client.
    pub fn try_recv(&self) -> Option<Event> {
        if let Some(event) = self.events.try_recv() {
            // Only then does the hub wait: otherwise each event would cost a wake.
            if self.events.take_retry_wanted() {
                self.space.notify_one();
            }
            return Some(event);
        }
        if !self.is_ended.load(Ordering::Acquire) {
            return None;
        }
        // The hub has ended, so the lock is free. It may have sent events just before.
        self.events.try_recv().or_else(|| self.last().pop_front())
    }

    fn last(&self) -> std::sync::MutexGuard<'_, VecDeque<Event>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hub ends with these events. No other follows.
    pub fn end(&self, events: VecDeque<Event>) {
        // Beyond the capacity of the queue: no event may be lost, and the hub cannot send it later.
        self.last().extend(events);
        self.is_ended.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }

    pub fn stats(&self) -> EngineStats {
        let Counts { tokens, agents, agents_active, asks_waiting, queue_full } = &self.counts;
        EngineStats {
            tokens: tokens.load(Ordering::Relaxed),
            agents: agents.load(Ordering::Relaxed),
            agents_active: agents_active.load(Ordering::Relaxed),
            asks_waiting: asks_waiting.load(Ordering::Relaxed),
            queue_full: queue_full.load(Ordering::Relaxed),
            ..EngineStats::default()
        }
    }
}
