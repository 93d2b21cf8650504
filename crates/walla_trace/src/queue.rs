//! From whoever marks to the writer: bounded, and nobody waits.
//!
//! One queue for the process, made when the first file starts and never freed. Marks are lost and
//! counted while it is full.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock};

use crate::stage::Track;

/// Marks between two rounds of the writer: 4 MiB. At 5 ms a round that is 13 million marks a
/// second.
const RECORDS_MAX: usize = 65_536;

/// A span that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub name: &'static str,
    pub track: Track,
    /// Which of several threads of the same kind: filled by [`push`].
    pub lane: u32,
    pub begin_nanos: u64,
    pub end_nanos: u64,
    pub step: Option<u64>,
    pub rows: u32,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            name: "",
            track: Track::Host,
            lane: 0,
            begin_nanos: 0,
            end_nanos: 0,
            step: None,
            rows: 0,
        }
    }
}

pub(crate) struct Queue {
    sender: SyncSender<Record>,
    pub receiver: Mutex<Receiver<Record>>,
    pub lost: AtomicU64,
}

static QUEUE: OnceLock<Queue> = OnceLock::new();

/// The queue, made if there was none.
pub(crate) fn get() -> &'static Queue {
    QUEUE.get_or_init(|| {
        let (sender, receiver) = sync_channel(RECORDS_MAX);
        Queue { sender, receiver: Mutex::new(receiver), lost: AtomicU64::new(0) }
    })
}

/// Numbers threads in the order in which they first mark something.
fn lane() -> u32 {
    static LANES: AtomicU32 = AtomicU32::new(1);
    thread_local! {
        static LANE: u32 = LANES.fetch_add(1, Ordering::Relaxed);
    }
    LANE.try_with(|lane| *lane).unwrap_or(0)
}

/// Adds a record, or counts it as lost. Allocates nothing and never waits.
pub(crate) fn push(mut record: Record) {
    let Some(queue) = QUEUE.get() else { return };
    record.lane = if record.track == Track::Host { 0 } else { lane() };
    if queue.sender.try_send(record).is_err() {
        queue.lost.fetch_add(1, Ordering::Relaxed);
    }
}
