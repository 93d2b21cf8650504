//! Bounded queue from the marking threads to the writer thread. A push never waits.
//!
//! The process has one queue, created when the first file starts and never freed. Marks pushed
//! while it is full are lost and counted.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock};

use crate::track::Track;

/// Capacity between two polls of the writer: 4 MiB. At one poll per 5 ms it is 13 million marks per
/// second.
const MAX_RECORDS: usize = 65_536;

/// A completed span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub name: &'static str,
    pub track: Track,
    /// Distinguishes several threads of the same track. Set by [`push`].
    pub lane: u32,
    pub begin_nanos: u64,
    pub end_nanos: u64,
    pub step: Option<u64>,
    pub rows: u32,
    /// The reply of a span that may overlap the spans of other replies.
    pub reply: Option<ReplyTag>,
}

/// Names a reply and its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyTag {
    pub agent: u64,
    pub reply_id: u64,
    /// Write the begin of the span, its end.
    pub ends: [bool; 2],
}

impl Record {
    pub fn new(name: &'static str, track: Track, nanos: Range<u64>) -> Self {
        let Range { start: begin_nanos, end: end_nanos } = nanos;
        Self { name, track, lane: 0, begin_nanos, end_nanos, step: None, rows: 0, reply: None }
    }
}

pub(crate) struct Queue {
    sender: SyncSender<Record>,
    pub receiver: Mutex<Receiver<Record>>,
    pub lost: AtomicU64,
}

static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Returns the queue, creating it on the first call.
pub(crate) fn get() -> &'static Queue {
    QUEUE.get_or_init(|| {
        let (sender, receiver) = sync_channel(MAX_RECORDS);
        Queue { sender, receiver: Mutex::new(receiver), lost: AtomicU64::new(0) }
    })
}

/// Numbers threads in the order of their first mark.
fn lane() -> u32 {
    static LANES: AtomicU32 = AtomicU32::new(1);
    thread_local! {
        static LANE: u32 = LANES.fetch_add(1, Ordering::Relaxed);
    }
    // A mark can come from a destructor, when the thread has no such values any more.
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
