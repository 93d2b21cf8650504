//! The threads that compute the tiles of an op.
//!
//! One thread, the executor, publishes a job and works on it too; workers help. (While weights are
//! loaded, the owner's thread publishes. It then holds the machine, which contains the pool, so two
//! threads never publish at once.) The only shared state of a job is:
//!
//! | field | writer | reader |
//! |---|---|---|
//! | `work` | the executor, while no claim of an older job is unfinished | holders of a claim |
//! | `claims` = tiles << 32 \| next tile | executor swaps in a job, claimers add 1 | all threads |
//! | `remaining` | the executor before it publishes; finished tiles subtract 1 | the executor |
//!
//! Rules:
//! 1. A claim is valid if the number that `fetch_add` returned has `next < tiles`. It is a claim of
//!    the job that is current at that instant, even if the claimer loaded an older job before. So
//!    no epoch is needed.
//! 2. `work` is read only under a valid claim. The executor returns from `each` only after
//!    `remaining` reached 0, which is after every claimed tile is done. Only then may it publish
//!    the next job and end the borrow that `work` points to.
//! 3. `claims` is swapped in with release and incremented with acquire and release, so a claimer
//!    sees the job. `remaining` is decremented with release and read with acquire, so the executor
//!    sees the tiles.
//! 4. No thread waits for a worker without a claim: a worker that the system descheduled delays at
//!    most one tile.
//! 5. Waiting is a bounded spin, then [parking](crate::parker). Only the executor wakes helpers;
//!    the thread that finishes the last tile wakes the executor.
//! 6. A panic in a tile is recorded and the tile counts as done. The executor panics after all
//!    tiles are done, so it never hangs.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::parker::{park_in_until, park_until};
use crate::sync::{
    Arc, AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, Parker, Unparker, spin_until,
    thread,
};
use crate::tile::{Grid, Tile};

/// Computes one tile: `work(worker, index)`.
type Work<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Spins before a worker sleeps during a launch: about 20 µs, longer than the serial code between
/// two jobs.
const WORKER_PAUSES: u32 = 1000;
/// Spins before the executor sleeps while it waits for claimed tiles: about 10 µs, the time of a
/// tile.
const EXECUTOR_PAUSES: u32 = 500;

/// See the module's table.
struct Shared {
    work: AtomicPtr<()>,
    claims: AtomicU64,
    remaining: AtomicUsize,
    /// A launch is running, so the next job follows soon.
    busy: AtomicBool,
    stop: AtomicBool,
    panicked: AtomicBool,
    executor: Unparker,
}

impl Shared {
    fn new(executor: &Parker) -> Self {
        Self {
            work: AtomicPtr::new(ptr::null_mut()),
            claims: AtomicU64::new(0),
            remaining: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            executor: executor.unparker().clone(),
        }
    }

    fn has_tiles(&self) -> bool {
        let claims = self.claims.load(Ordering::Relaxed);
        claims & u64::from(u32::MAX) < claims >> 32
    }

    /// Claims a tile of the current job.
    fn claim(&self) -> Option<usize> {
        if !self.has_tiles() {
            return None;
        }
        let claims = self.claims.fetch_add(1, Ordering::AcqRel);
        let (next, tiles) = (claims & u64::from(u32::MAX), claims >> 32);
        (next < tiles).then_some(next as usize)
    }

    /// Works on the current job until no tile is left to claim.
    fn help(&self, worker: usize) {
        while let Some(index) = self.claim() {
            let work = self.work.load(Ordering::Relaxed).cast::<Work<'_>>();
            #[expect(
                unsafe_code,
                reason = "the borrow that `each` keeps alive crosses threads as a pointer"
            )]
            // SAFETY: rule 2: under a claim, `work` points to the `Work` on the stack of `each`,
            // which has not returned.
            let work: Work<'_> = unsafe { *work };
            if catch_unwind(AssertUnwindSafe(|| work(worker, index))).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.executor.unpark();
            }
        }
    }

    /// Main loop of a worker.
    fn serve(&self, worker: usize) {
        let ready = || self.has_tiles() || self.stop.load(Ordering::Relaxed);
        while !self.stop.load(Ordering::Relaxed) {
            self.help(worker);
            let pauses = if self.busy.load(Ordering::Relaxed) { WORKER_PAUSES } else { 0 };
            if !spin_until(pauses, ready) {
                let busy = || ready() || self.busy.load(Ordering::Relaxed);
                if self.busy.load(Ordering::Relaxed) {
                    park_until(ready);
                } else {
                    park_until(busy);
                }
            }
        }
    }
}

fn unpark(helper: &thread::JoinHandle<()>) {
    helper.thread().unpark();
}

/// Runs the tiles of an op on the calling thread and its helpers.
///
/// Not `Sync`: only one thread at a time publishes, and a tile cannot publish a job.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<thread::JoinHandle<()>>,
    /// Of the thread that publishes.
    parker: Parker,
    not_sync: PhantomData<Cell<()>>,
}

impl Pool {
    /// A pool that runs everything on the calling thread.
    pub(crate) fn inline() -> Self {
        let parker = Parker::new();
        let shared = Arc::new(Shared::new(&parker));
        Self { shared, helpers: Vec::new(), parker, not_sync: PhantomData }
    }

    /// A pool of `threads` threads, including the calling thread.
    pub(crate) fn start(threads: usize) -> io::Result<Self> {
        let parker = Parker::new();
        let shared = Arc::new(Shared::new(&parker));
        let helpers = Vec::with_capacity(threads);
        let mut pool = Self { shared, helpers, parker, not_sync: PhantomData };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let builder = thread::Builder::new().name(format!("walla-cpu-{worker}"));
            pool.helpers.push(builder.spawn(move || shared.serve(worker))?);
        }
        Ok(pool)
    }

    /// Calls `work` once for every index below `count`, on this thread and the helpers.
    fn each(&self, count: u32, work: Work<'_>) {
        let Self { shared, helpers, parker, .. } = self;
        let on_stack: *const Work<'_> = &raw const work;
        shared.work.store(on_stack.cast_mut().cast(), Ordering::Relaxed);
        shared.remaining.store(count as usize, Ordering::Relaxed);
        // A swap, not a store: loom lets a store race with a late claimer's addition in either
        // order.
        shared.claims.swap(u64::from(count) << 32, Ordering::AcqRel);
        helpers.iter().take(count as usize - 1).for_each(unpark);
        shared.help(0);
        let done = || shared.remaining.load(Ordering::Acquire) == 0;
        if !spin_until(EXECUTOR_PAUSES, done) {
            park_in_until(parker, done);
        }
        assert!(!shared.panicked.load(Ordering::Relaxed), "a kernel panicked");
    }

    /// Number of threads that may work at the same time, including the caller. Worker numbers are
    /// below it.
    pub(crate) fn workers(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Sets whether a launch is running. If so, helpers wake up and stay awake; otherwise they
    /// sleep.
    pub(crate) fn set_busy(&self, busy: bool) {
        self.shared.busy.store(busy, Ordering::Relaxed);
        if busy {
            self.helpers.iter().for_each(unpark);
        }
    }

    /// Calls `fill(worker, tile)` for every tile of `array`, a row-major `[rows, width]`.
    ///
    /// The result must not depend on the order of tiles or on the worker's number, which only
    /// selects scratch memory.
    ///
    /// # Panics
    /// If `fill` does.
    pub(crate) fn grid<T: Send>(
        &self,
        array: &mut [T],
        width: usize,
        (tile_rows, tile_cols): (usize, usize),
        fill: &(dyn Fn(usize, &mut Tile<'_, T>) + Sync),
    ) {
        let grid = Grid::new(array, width, tile_rows, tile_cols);
        let work = |worker: usize, index: usize| {
            #[expect(unsafe_code, reason = "the pool is what keeps tiles apart")]
            // SAFETY: every index is used once: the loop below counts, and `each` distributes
            // claims.
            let mut tile = unsafe { grid.tile(index) };
            fill(worker, &mut tile);
        };
        let tiles = grid.tiles();
        match u32::try_from(tiles) {
            Ok(count) if count > 1 && self.workers() > 1 => self.each(count, &work),
            _ => (0..tiles).for_each(|index| work(0, index)),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.helpers.iter().for_each(unpark);
        for helper in self.helpers.drain(..) {
            // A helper cannot panic: panics of tiles are caught.
            let _ = helper.join();
        }
    }
}

/// Rows per tile when a row costs about `width` simple operations: enough work to be worth a claim.
pub(crate) fn rows_per_tile(width: usize) -> usize {
    (8192 / width.max(1)).max(1)
}
