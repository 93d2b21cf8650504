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
//! 5. Waiting is a bounded spin, then [parking](crate::parker). The thread that finishes the last
//!    tile wakes the executor.
//! 6. A panic in a tile is recorded and the tile counts as done. The executor panics after all
//!    tiles are done, so it never hangs.
//!
//! # Number of threads
//! [`ThreadCosts`] chooses from estimates of the work: for each launch the crew, the threads that
//! are awake for it, and for each job the number of tiles. One job of a small product takes less
//! time than waking a thread, so helpers stay awake during a launch while its serial parts are
//! short, and only larger jobs wake sleeping helpers. The crew sleeps when no command is left. It
//! is woken as a tree: a wake-up of a thread on a sleeping processor takes up to 10 µs, and so the
//! executor waits for two of them at most.
//!
//! If every processor is busy, the system puts a helper on the executor's processor. The helper
//! would then delay the thread that waits for it, so it claims no tile. If the system has a free
//! processor after all, the helper [moves](Places::leave) there. Else it sleeps, and the executor
//! wakes it [again](crate::retry) after a bounded amount of work: a processor that is busy now may
//! be free a moment later. Other helpers are not affected. A helper that shares its processor with
//! another program makes the executor wait; if helpers cost more time than they save, they sleep
//! for some [launches](crate::retry::Balance).

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Duration;

use crate::parker::{park_in_until, park_until};
use crate::retry::{Balance, Retry, Verdict};
use crate::sync::{
    Arc, AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, CachePadded, Instant, Ordering, Parker,
    Unparker, leave_processor, processor, spawn, spin_until, thread,
};
use crate::tile::{Grid, Tile};
use crate::work::ThreadCosts;

/// Computes one tile: `work(worker, index)`.
type Work<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Time for which a helper of a running launch spins before it sleeps: longer than most of the
/// serial code between two jobs.
const HELPER_SPIN: Duration = Duration::from_micros(20);
/// Time for which the executor spins for claimed tiles before it sleeps: the time of most tiles. A
/// wake-up takes up to 50 µs on a virtual machine.
const EXECUTOR_SPIN: Duration = Duration::from_micros(50);

/// The processors of the pool's threads, as the system reports and changes them.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    /// Number of the processor that runs the calling thread; `None` if unknown.
    pub current: fn() -> Option<usize>,
    /// Moves the calling thread from this processor to a free one, if it may use one.
    pub leave: fn(usize),
}

impl Places {
    pub(crate) const SYSTEM: Self = Self { current: processor, leave: leave_processor };
}

/// Whether a helper has another processor than the executor. Changes rarely.
mod place {
    /// It has, or is to try.
    pub(super) const OWN: usize = 0;
    /// It found itself on the executor's processor, and sleeps: written by the helper.
    pub(super) const DISPLACED: usize = 1;
    /// The executor knows, and does not wake it for some work.
    pub(super) const RESTS: usize = 2;
    /// It has one again: written by the helper.
    pub(super) const REGAINED: usize = 3;
}

/// See the module's table. Each part has its own cache lines, because threads wait for different
/// ones.
struct Shared {
    job: CachePadded<Job>,
    remaining: CachePadded<AtomicUsize>,
    launch: CachePadded<Launch>,
    /// A [`place`] of each helper. Read by all large jobs.
    placed: CachePadded<Box<[AtomicUsize]>>,
    executor: Unparker,
    places: Places,
}

/// The current job.
struct Job {
    work: AtomicPtr<()>,
    claims: AtomicU64,
}

/// State that changes with a launch, or less often.
struct Launch {
    /// Number of threads that are awake for the running launches, including the executor; helpers
    /// with numbers below it are. 0 if none runs.
    crew: AtomicUsize,
    /// Number of the launch for which the crew was woken last.
    number: AtomicUsize,
    /// The processor that runs the executor.
    processor: AtomicUsize,
    stop: AtomicBool,
    panicked: AtomicBool,
}

impl Shared {
    fn new(executor: &Parker, threads: usize, places: Places) -> Self {
        Self {
            job: CachePadded::new(Job {
                work: AtomicPtr::new(ptr::null_mut()),
                claims: AtomicU64::new(0),
            }),
            remaining: CachePadded::new(AtomicUsize::new(0)),
            launch: CachePadded::new(Launch {
                crew: AtomicUsize::new(0),
                number: AtomicUsize::new(0),
                processor: AtomicUsize::new(usize::MAX),
                stop: AtomicBool::new(false),
                panicked: AtomicBool::new(false),
            }),
            placed: CachePadded::new((1..threads).map(|_| AtomicUsize::new(place::OWN)).collect()),
            executor: executor.unparker().clone(),
            places,
        }
    }

    fn has_tiles(&self) -> bool {
        let claims = self.job.claims.load(Ordering::Relaxed);
        claims & u64::from(u32::MAX) < claims >> 32
    }

    /// Claims a tile of the current job.
    fn claim(&self) -> Option<usize> {
        if !self.has_tiles() {
            return None;
        }
        let claims = self.job.claims.fetch_add(1, Ordering::AcqRel);
        let (next, tiles) = (claims & u64::from(u32::MAX), claims >> 32);
        (next < tiles).then_some(next as usize)
    }

    /// Works on the current job until no tile is left to claim. Returns the number of its tiles.
    fn help(&self, worker: usize) -> u32 {
        let mut tiles = 0;
        while let Some(index) = self.claim() {
            let work = self.job.work.load(Ordering::Relaxed).cast::<Work<'_>>();
            #[expect(
                unsafe_code,
                reason = "the borrow that `each` keeps alive crosses threads as a pointer"
            )]
            // SAFETY: rule 2: under a claim, `work` points to the `Work` on the stack of `each`,
            // which has not returned.
            let work: Work<'_> = unsafe { *work };
            if catch_unwind(AssertUnwindSafe(|| work(worker, index))).is_err() {
                self.launch.panicked.store(true, Ordering::Relaxed);
            }
            if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.executor.unpark();
            }
            tiles += 1;
        }
        tiles
    }

    fn stops(&self) -> bool {
        self.launch.stop.load(Ordering::Relaxed)
    }

    /// Whether this helper is one of the running launch.
    fn is_in_crew(&self, worker: usize) -> bool {
        worker < self.launch.crew.load(Ordering::Relaxed)
    }

    /// The executor's processor, if the calling thread runs on it: the executor then waits for it.
    fn shared_processor(&self) -> Option<usize> {
        let executor = self.launch.processor.load(Ordering::Relaxed);
        (self.places.current)().filter(|own| *own == executor)
    }

    /// Whether the calling helper has another processor than the executor, if necessary after a
    /// move.
    fn has_own_processor(&self) -> bool {
        let Some(shared) = self.shared_processor() else { return true };
        (self.places.leave)(shared);
        self.shared_processor().is_none()
    }

    /// Whether a helper is to be woken with its launch.
    fn wakes_with_launch(&self, worker: usize) -> bool {
        let place = self.placed[worker - 1].load(Ordering::Relaxed);
        self.is_in_crew(worker) && !matches!(place, place::DISPLACED | place::RESTS)
    }

    /// Main loop of a helper, which wakes `others` for each launch.
    fn serve(&self, worker: usize, others: &[(usize, thread::Thread)]) {
        let called = || self.is_in_crew(worker) || self.stops();
        let ready = || self.has_tiles() || !self.is_in_crew(worker) || self.stops();
        let place = &self.placed[worker - 1];
        let (mut launch, mut was_placed) = (0, true);
        loop {
            park_until(called);
            if self.stops() {
                return;
            }
            let current = self.launch.number.load(Ordering::Relaxed);
            if current != launch {
                launch = current;
                let crew = others.iter().filter(|(other, _)| self.wakes_with_launch(*other));
                crew.for_each(|(_, thread)| thread.unpark());
            }
            let is_placed = self.has_own_processor();
            if !is_placed {
                place.store(place::DISPLACED, Ordering::Relaxed);
            } else if !was_placed {
                place.store(place::REGAINED, Ordering::Relaxed);
            }
            was_placed = is_placed;
            if is_placed {
                self.help(worker);
            }
            if !is_placed || !spin_until(HELPER_SPIN, ready) {
                // Until a large job, the next launch or the end.
                thread::park();
            }
        }
    }
}

/// A helper as the executor sees it.
struct Helper {
    thread: thread::JoinHandle<()>,
    /// `Cell`: the pool is not `Sync`.
    retry: Cell<Retry>,
}

impl Helper {
    fn unpark(&self) {
        self.thread.thread().unpark();
    }
}

/// Runs the tiles of an op on the calling thread and its helpers.
///
/// Not `Sync`: only one thread at a time publishes, and a tile cannot publish a job.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    /// Helper `i` is worker `i + 1`.
    helpers: Vec<Helper>,
    costs: ThreadCosts,
    /// Of the thread that publishes.
    parker: Parker,
    /// Time that all helpers save, and attempts after they cost time.
    balance: Cell<(Balance, Retry)>,
}

impl Pool {
    /// A pool of `threads` threads, including the calling thread.
    pub(crate) fn start(threads: usize, costs: ThreadCosts) -> io::Result<Self> {
        Self::start_on(threads, costs, Places::SYSTEM)
    }

    /// As [`start`](Self::start), on these processors.
    pub(crate) fn start_on(threads: usize, costs: ThreadCosts, places: Places) -> io::Result<Self> {
        let parker = Parker::new();
        let shared = Arc::new(Shared::new(&parker, threads, places));
        let balance = Cell::new((Balance::default(), Retry::of_late()));
        let helpers = Vec::with_capacity(threads);
        let mut pool = Self { shared, helpers, costs, parker, balance };
        // The highest number first, because a helper holds the handles of the ones that it wakes.
        for worker in (1..threads).rev() {
            let others = woken_by(worker).filter(|other| *other < threads);
            // The helpers so far are in reverse order.
            let others: Vec<_> = others
                .map(|other| (other, pool.helpers[threads - 1 - other].thread.thread().clone()))
                .collect();
            let shared = Arc::clone(&pool.shared);
            let name = format!("walla-cpu-{worker}");
            let thread = spawn(name, move || shared.serve(worker, &others))?;
            pool.helpers.push(Helper { thread, retry: Cell::new(Retry::of_displaced()) });
        }
        pool.helpers.reverse();
        Ok(pool)
    }

    /// Calls `work` once for every index below `count`, on this thread and the crew. Wakes sleeping
    /// helpers if a job of `nanos` nanoseconds is worth it.
    fn each(&self, count: u32, nanos: u64, work: Work<'_>) {
        let Self { shared, helpers, parker, .. } = self;
        let on_stack: *const Work<'_> = &raw const work;
        self.note_processor();
        shared.job.work.store(on_stack.cast_mut().cast(), Ordering::Relaxed);
        shared.remaining.store(count as usize, Ordering::Relaxed);
        // A swap, not a store: loom lets a store race with a late claimer's addition in either
        // order.
        shared.job.claims.swap(u64::from(count) << 32, Ordering::AcqRel);
        if nanos >= self.costs.rouse() {
            let mut wanted = count - 1;
            for (worker, helper) in (1..self.crew()).zip(helpers) {
                let mut retry = self.retry(worker);
                if wanted > 0 && retry.is_due_within(nanos) {
                    helper.unpark();
                    wanted -= 1;
                }
                retry.advance(nanos);
                helper.retry.set(retry);
            }
        }
        let tiles = shared.help(0);
        let done = || shared.remaining.load(Ordering::Acquire) == 0;
        let began = Instant::now();
        if !spin_until(EXECUTOR_SPIN, done) {
            park_in_until(parker, done);
        }
        self.weigh(nanos / u64::from(count) * u64::from(count - tiles), began.elapsed());
        assert!(!shared.launch.panicked.load(Ordering::Relaxed), "a kernel panicked");
    }

    /// Notes that helpers did `saved` nanoseconds of estimated work in a job, and that the executor
    /// waited for them. If they cost time, the rest of the launch and more work run without them.
    fn weigh(&self, saved: u64, waited: Duration) {
        let (mut balance, mut late) = self.balance.get();
        match balance.add(saved, u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX)) {
            Verdict::Open => {}
            Verdict::Save => late.succeeded(),
            Verdict::Cost => {
                late.failed();
                self.shared.launch.crew.store(1, Ordering::Relaxed);
            }
        }
        self.balance.set((balance, late));
    }

    /// The state of a helper's attempts, after its latest report.
    fn retry(&self, worker: usize) -> Retry {
        let place = &self.shared.placed[worker - 1];
        let mut retry = self.helpers[worker - 1].retry.get();
        match place.load(Ordering::Relaxed) {
            place::OWN | place::RESTS => return retry,
            place::DISPLACED => {
                place.store(place::RESTS, Ordering::Relaxed);
                retry.failed();
            }
            _ => {
                place.store(place::OWN, Ordering::Relaxed);
                retry.succeeded();
            }
        }
        self.helpers[worker - 1].retry.set(retry);
        retry
    }

    fn note_processor(&self) {
        let current = (self.shared.places.current)().unwrap_or(usize::MAX);
        let noted = &self.shared.launch.processor;
        // Helpers read this cache line while they spin.
        if noted.load(Ordering::Relaxed) != current {
            noted.store(current, Ordering::Relaxed);
        }
    }

    /// Number of threads that may work at the same time, including the caller. Worker numbers are
    /// below it.
    pub(crate) fn workers(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Number of threads that work at the same time now, including the caller.
    fn crew(&self) -> usize {
        self.shared.launch.crew.load(Ordering::Relaxed).max(1)
    }

    /// Costs of this pool's threads.
    pub(crate) fn costs(&self) -> ThreadCosts {
        self.costs
    }

    /// Wakes helpers, so that `threads` threads, including the caller, work on the jobs that follow
    /// until [`rest`](Self::rest): `nanos` nanoseconds of work. Helpers without a processor are
    /// woken later or not at all.
    pub(crate) fn wake(&self, threads: usize, nanos: u64) {
        let (balance, mut late) = self.balance.get();
        let threads = if late.is_due_within(nanos) { threads.min(self.workers()) } else { 1 };
        late.advance(nanos);
        self.balance.set((balance, late));
        let is_due = |worker: &usize| self.retry(*worker).is_due_within(nanos);
        let crew = (1..threads).rev().find(is_due).map_or(1, |worker| worker + 1);
        for worker in 1..threads {
            let mut retry = self.retry(worker);
            if retry.is_due() {
                // A helper wakes it.
                self.shared.placed[worker - 1].store(place::OWN, Ordering::Relaxed);
            } else if worker >= crew {
                // No job of the launch counts its work for this helper.
                retry.advance(nanos);
                self.helpers[worker - 1].retry.set(retry);
            }
        }
        self.note_processor();
        let launch = &self.shared.launch;
        launch.crew.store(crew, Ordering::Relaxed);
        launch.number.fetch_add(1, Ordering::Relaxed);
        for other in woken_by(0).filter(|other| *other < crew) {
            if self.shared.wakes_with_launch(other) {
                self.helpers[other - 1].unpark();
            }
        }
    }

    /// Lets all helpers sleep.
    pub(crate) fn rest(&self) {
        self.shared.launch.crew.store(0, Ordering::Relaxed);
    }

    /// Calls `fill(worker, tile)` for tiles that cover `array`, a row-major `[rows, width]`, in a
    /// job of about `nanos` nanoseconds. A tile is a multiple of `(rows, columns)` elements, of
    /// which one must span the array.
    ///
    /// The result must not depend on tiles or on the worker's number, which only selects scratch
    /// memory.
    ///
    /// # Panics
    /// If `fill` does.
    pub(crate) fn grid<T: Send>(
        &self,
        array: &mut [T],
        width: usize,
        (tile_rows, tile_cols): (usize, usize),
        nanos: u64,
        fill: &(dyn Fn(usize, &mut Tile<'_, T>) + Sync),
    ) {
        let threads = self.costs.of_job(nanos, self.crew());
        let tiles = self.costs.tiles(nanos, threads);
        let tile = if tile_cols < width {
            (tile_rows, tile_cols * width.div_ceil(tile_cols).div_ceil(tiles))
        } else {
            let rows = array.len() / width;
            (tile_rows * rows.div_ceil(tile_rows).div_ceil(tiles).max(1), tile_cols)
        };
        self.tiles(array, width, tile, nanos, fill);
    }

    /// Calls `fill(row, numbers)` for every row of `array`, of `width` numbers each, in a job of
    /// about `nanos` nanoseconds.
    ///
    /// # Panics
    /// If `fill` does.
    pub(crate) fn rows<T: Send>(
        &self,
        array: &mut [T],
        width: usize,
        nanos: u64,
        fill: impl Fn(usize, &mut [T]) + Sync,
    ) {
        self.grid(array, width, (1, width), nanos, &|_, tile| {
            for r in 0..tile.rows {
                fill(tile.row + r, tile.row_mut(r));
            }
        });
    }

    /// As [`grid`](Self::grid), with tiles of exactly this size, smaller only at the ends.
    ///
    /// # Panics
    /// If `fill` does.
    pub(crate) fn tiles<T: Send>(
        &self,
        array: &mut [T],
        width: usize,
        (tile_rows, tile_cols): (usize, usize),
        nanos: u64,
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
        let threads = self.costs.of_job(nanos, self.crew().min(tiles));
        match u32::try_from(tiles) {
            Ok(count) if threads > 1 => {
                self.each(count, nanos, &work);
            }
            _ => (0..tiles).for_each(|index| work(0, index)),
        }
    }
}

/// The helpers that a thread wakes: a binary tree, in which the executor is number 0.
fn woken_by(worker: usize) -> impl Iterator<Item = usize> {
    [2 * worker + 1, 2 * worker + 2].into_iter()
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.launch.stop.store(true, Ordering::Relaxed);
        self.helpers.iter().for_each(Helper::unpark);
        for helper in self.helpers.drain(..) {
            // A helper cannot panic: panics of tiles are caught.
            let _ = helper.thread.join();
        }
    }
}
