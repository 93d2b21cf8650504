//! Requests between the host and the thread: see the rules in the crate's docs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread::Thread;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use crossbeam_queue::{ArrayQueue, SegQueue};
use walla_cpu::budget::Grants;
use walla_types::Mark;

use crate::answer::{Answer, answer};
use crate::error::{Refused, TrySubmitError};
use crate::options::{EmbedderOptions, Purpose};
use crate::pending::{Outcome, Pending};

/// State that the host and the thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// At most as many as [`Room`] admits.
    requests: ArrayQueue<Request>,
    room: Room,
    /// Futures that wait for room, each at most once.
    waiting: SegQueue<Arc<Waiter>>,
    pub grants: Grants,
    /// The thread sleeps until a frame.
    waits_for_frame: Mark,
    /// The thread shall end.
    stop: AtomicBool,
    /// The thread has ended and takes no requests.
    ended: AtomicBool,
    thread: OnceLock<Thread>,
}

/// A future that waits for room.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    waker: AtomicWaker,
    is_queued: AtomicBool,
}

/// A request in the queue or in work.
#[derive(Debug)]
pub(crate) struct Request {
    pub texts: Vec<String>,
    pub purpose: Purpose,
    pub answer: Answer<Outcome>,
    /// Returned when the request is dropped.
    _ticket: Ticket,
}

impl Shared {
    pub(crate) fn new(options: &EmbedderOptions) -> Self {
        Self {
            requests: ArrayQueue::new(options.max_requests),
            room: Room::new(options),
            waiting: SegQueue::new(),
            grants: Grants::new(options.budget),
            waits_for_frame: Mark::new(false),
            stop: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// Queues a request. Never waits.
    pub(crate) fn submit(
        self: &Arc<Self>,
        texts: Vec<String>,
        purpose: Purpose,
    ) -> Result<Pending, TrySubmitError> {
        let size = Size::of(&texts);
        if let Some(refused) = self.room.never_fits(size) {
            return Err(TrySubmitError::TooLarge(texts, refused));
        }
        if self.has_ended() {
            return Err(TrySubmitError::Stopped(texts));
        }
        if !self.room.take(size) {
            return Err(TrySubmitError::Full(texts));
        }
        let ticket = Ticket { shared: Arc::clone(self), size };
        let (answer, wanted) = answer(None);
        let request = Request { texts, purpose, answer, _ticket: ticket };
        // Room was taken, and is held longer than a place in the queue: the queue is not full.
        if let Err(request) = self.requests.push(request) {
            return Err(TrySubmitError::Full(request.texts));
        }
        // The thread may have ended since the check above.
        if self.has_ended() {
            self.drop_requests();
        }
        self.wake();
        Ok(Pending(wanted))
    }

    /// Whether a request of this size can be queued when others have ended.
    pub(crate) fn never_fits(&self, texts: &[String]) -> Option<Refused> {
        self.room.never_fits(Size::of(texts))
    }

    /// Largest part into which a list of texts is divided: half of the room.
    pub(crate) fn max_part(&self) -> (usize, usize) {
        (self.room.max_texts.div_ceil(2), self.room.max_bytes.div_ceil(2))
    }

    /// Wakes the future when a request has ended.
    pub(crate) fn wait_for_room(&self, waiter: &Arc<Waiter>, waker: &Waker) {
        // Before the queue has it, because it can be woken from then on.
        waiter.waker.register(waker);
        if !waiter.is_queued.swap(true, Ordering::SeqCst) {
            self.waiting.push(Arc::clone(waiter));
        }
    }

    /// Whether a request waits or is in work.
    pub(crate) fn has_work(&self) -> bool {
        self.room.is_used()
    }

    pub(crate) fn next(&self) -> Option<Request> {
        self.requests.pop()
    }

    pub(crate) fn frame(&self) {
        self.grants.frame();
        if self.waits_for_frame.take() {
            self.wake();
        }
    }

    /// Sleeps until a frame, a change of the budget, the end, or for `max_time`, unless `ready`
    /// after the host can see that the thread sleeps.
    pub(crate) fn sleep_until_frame(
        &self,
        max_time: Option<Duration>,
        ready: impl FnOnce() -> bool,
    ) {
        // Before `ready`: a frame after that check unparks the thread, and `park` returns at once.
        self.waits_for_frame.set();
        if !ready() && !self.stops() {
            match max_time {
                Some(time) => std::thread::park_timeout(time),
                None => std::thread::park(),
            }
        }
        self.waits_for_frame.take();
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn stops(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    pub(crate) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Names the thread to wake.
    pub(crate) fn set_thread(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// No request is taken any more; waiting ones fail.
    pub(crate) fn end(&self) {
        // Before the queue is emptied: `submit` looks again after its push, so nothing stays in it.
        self.ended.store(true, Ordering::SeqCst);
        self.drop_requests();
        self.wake_waiting();
    }

    fn drop_requests(&self) {
        while self.requests.pop().is_some() {}
    }

    fn wake_waiting(&self) {
        while let Some(waiter) = self.waiting.pop() {
            // Before the wake: the task may queue itself again at once.
            waiter.is_queued.store(false, Ordering::SeqCst);
            waiter.waker.wake();
        }
    }
}

/// Texts and bytes of a request.
#[derive(Clone, Copy, Debug)]
struct Size {
    texts: usize,
    bytes: usize,
}

impl Size {
    fn of(texts: &[String]) -> Self {
        let bytes = texts.iter().fold(0, |sum: usize, text| sum.saturating_add(text.len()));
        Self { texts: texts.len(), bytes }
    }
}

/// Limits of all requests that have not ended.
#[derive(Debug)]
struct Room {
    texts: AtomicUsize,
    bytes: AtomicUsize,
    requests: AtomicUsize,
    max_texts: usize,
    max_bytes: usize,
    max_requests: usize,
}

impl Room {
    fn new(options: &EmbedderOptions) -> Self {
        Self {
            texts: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            max_texts: options.max_texts,
            max_bytes: options.max_text_bytes,
            max_requests: options.max_requests,
        }
    }

    fn is_used(&self) -> bool {
        self.requests.load(Ordering::SeqCst) > 0
    }

    fn never_fits(&self, size: Size) -> Option<Refused> {
        let Size { texts, bytes } = size;
        let (max_texts, max_bytes) = (self.max_texts, self.max_bytes);
        let refused = Refused { texts, bytes, max_texts, max_bytes };
        (texts > max_texts || bytes > max_bytes).then_some(refused)
    }

    /// Takes room of all three kinds, or of none.
    fn take(&self, size: Size) -> bool {
        let parts = [
            (&self.texts, size.texts, self.max_texts),
            (&self.bytes, size.bytes, self.max_bytes),
            (&self.requests, 1, self.max_requests),
        ];
        for (nth, (used, wanted, max)) in parts.iter().enumerate() {
            let more = |used: usize| used.checked_add(*wanted).filter(|sum| sum <= max);
            if used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_err() {
                // A refused request must not keep the parts that it took before.
                for (used, wanted, _) in parts.iter().take(nth) {
                    used.fetch_sub(*wanted, Ordering::SeqCst);
                }
                return false;
            }
        }
        true
    }

    fn give_back(&self, size: Size) {
        self.texts.fetch_sub(size.texts, Ordering::SeqCst);
        self.bytes.fetch_sub(size.bytes, Ordering::SeqCst);
        self.requests.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The room of one request.
#[derive(Debug)]
struct Ticket {
    shared: Arc<Shared>,
    size: Size,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.shared.room.give_back(self.size);
        self.shared.wake_waiting();
    }
}
