//! The connections of a server, and which of them give way to new ones.
//!
//! A connection waits for its client, or a request of it is being answered. Only waiting ones give
//! way, the oldest first; connections without any answer so far precede all others. So silent
//! connections, however many, do not keep clients out, and neither do slow senders.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Minimum time between two lines of the log about closed connections.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// All connections.
pub(super) struct Table {
    state: Mutex<State>,
    places: Arc<Semaphore>,
    of_peer_max: u32,
    /// A connection waits for its client again.
    waits: Notify,
}

#[derive(Default)]
struct State {
    /// By whether they have had an answer, then by the time since which they wait.
    waiting: BTreeMap<Place, (IpAddr, Arc<Notify>)>,
    /// Number of connections of each peer.
    peers: HashMap<IpAddr, u32>,
    /// Number of changes so far: the order of the time.
    changes: u64,
    closed: u64,
    logged: Option<Instant>,
}

type Place = (bool, u64);

impl Table {
    pub fn new(max_connections: u32, of_peer_max: u32) -> Arc<Self> {
        let places = Arc::new(Semaphore::new(max_connections.max(1) as usize));
        let state = Mutex::default();
        Arc::new(Self { state, places, of_peer_max: of_peer_max.max(1), waits: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection, once there is a place for it. `None`: too many requests of the peer are
    /// being answered.
    ///
    /// # Cancel safety
    /// Dropping the future adds none.
    pub async fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<Arc<Connection>> {
        let of_peer = self.state().peers.get(&peer).copied().unwrap_or(0);
        if of_peer >= self.of_peer_max && !self.close_oldest(Some(peer)) {
            return None;
        }
        let place = self.place().await?;
        let mut state = self.state();
        *state.peers.entry(peer).or_default() += 1;
        let closed = Arc::new(Notify::new());
        let place_in_row = state.wait(false, peer, &closed);
        drop(state);
        Some(Arc::new(Connection {
            table: Arc::clone(self),
            peer,
            closed,
            waits_at: Mutex::new(Some(place_in_row)),
            is_answering: AtomicBool::new(false),
            _place: place,
        }))
    }

    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        let acquire = || Arc::clone(&self.places).acquire_owned();
        loop {
            if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
                return Some(place);
            }
            if self.close_oldest(None) {
                // Its task ends as soon as it runs.
                return acquire().await.ok();
            }
            tokio::select! {
                place = acquire() => return place.ok(),
                () = self.waits.notified() => {}
            }
        }
    }

    /// Closes the connection that gives way first, of one peer or of all. Returns whether there is
    /// one.
    pub fn close_oldest(&self, of_peer: Option<IpAddr>) -> bool {
        let mut state = self.state();
        let is_its = |peer: &IpAddr| of_peer.is_none_or(|its| its == *peer);
        let mut its = state.waiting.iter().filter(|(_, (peer, _))| is_its(peer));
        let Some(place) = its.next().map(|(place, _)| *place) else { return false };
        if let Some((_, closed)) = state.waiting.remove(&place) {
            closed.notify_one();
        }
        state.closed += 1;
        if state.logged.is_none_or(|logged| logged.elapsed() >= LOG_PAUSE) {
            state.logged = Some(Instant::now());
            let closed = state.closed;
            tracing::warn!(target: "walla::serve", closed, "too many connections: idle ones are closed");
        }
        true
    }
}

impl State {
    fn wait(&mut self, was_answered: bool, peer: IpAddr, closed: &Arc<Notify>) -> Place {
        self.changes += 1;
        let place = (was_answered, self.changes);
        self.waiting.insert(place, (peer, Arc::clone(closed)));
        place
    }
}

/// A connection: part of its requests as an extension.
pub(super) struct Connection {
    table: Arc<Table>,
    peer: IpAddr,
    closed: Arc<Notify>,
    /// `None`: a request is being answered.
    waits_at: Mutex<Option<Place>>,
    /// A whole request was received, and its answer has not begun.
    is_answering: AtomicBool,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// A request was received: the connection does not give way until the guard is dropped.
    pub fn begin(self: &Arc<Self>) -> Answering {
        let mut waits_at = self.waits_at();
        if let Some(place) = waits_at.take() {
            self.table.state().waiting.remove(&place);
        }
        drop(waits_at);
        self.is_answering.store(true, Ordering::Relaxed);
        Answering(Arc::clone(self))
    }

    fn waits_at(&self) -> MutexGuard<'_, Option<Place>> {
        self.waits_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer begins. If it is not in progress, the connection waits again.
    pub fn answers(&self) {
        self.is_answering.store(false, Ordering::Relaxed);
        let mut waits_at = self.waits_at();
        let mut state = self.table.state();
        if let Some(place) = waits_at.as_mut()
            && state.waiting.remove(place).is_some()
        {
            *place = state.wait(true, self.peer, &self.closed);
        }
    }

    /// Whether a whole request was received and its answer has not begun.
    pub fn is_answering(&self) -> bool {
        self.is_answering.load(Ordering::Relaxed)
    }

    /// Waits until the connection gives way.
    pub async fn closed(&self) {
        self.closed.notified().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let place = self.waits_at().take();
        let mut state = self.table.state();
        if let Some(place) = place {
            state.waiting.remove(&place);
        }
        if let Some(count) = state.peers.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                state.peers.remove(&self.peer);
            }
        }
    }
}

/// A request of a connection is being answered.
pub(super) struct Answering(Arc<Connection>);

impl Drop for Answering {
    fn drop(&mut self) {
        let connection = &self.0;
        let mut waits_at = connection.waits_at();
        let mut state = connection.table.state();
        *waits_at = Some(state.wait(true, connection.peer, &connection.closed));
        drop((state, waits_at));
        connection.table.waits.notify_one();
    }
}
