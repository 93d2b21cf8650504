//! Runs the blocks of a cluster together, and their warps round-robin.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::access::{Bad, Ranges, Shared};
use super::kinds::Special;
use super::op::WINDOW_BITS;
use super::warp::{Pause, Stop, Warp};
use super::{Fault, Launch};

/// Rounds in which all warps only polled, before the launch fails.
const MAX_IDLE_ROUNDS: u32 = 100_000;

/// Named barriers per block.
const BARRIERS: usize = 16;

/// State that instructions access besides registers.
pub(super) struct Site<'a> {
    pub(super) ranges: &'a Ranges<'a>,
    pub(super) shared: &'a mut Shared,
    pub(super) params: &'a [u8],
    launch: &'a Launch<'a>,
    block: [u32; 3],
    pub(super) rank: u32,
    begin: Instant,
}

impl Site<'_> {
    /// First address of the block's own shared memory.
    pub(super) fn window(&self) -> u32 {
        self.rank << WINDOW_BITS
    }

    /// Value of a special register for a thread.
    pub(super) fn special(&self, which: Special, thread: u32) -> u64 {
        let [x, y, _] = self.launch.block;
        match which {
            Special::Thread(axis) => [thread % x, thread / x % y, thread / x / y][axis].into(),
            Special::Threads(axis) => self.launch.block[axis].into(),
            Special::Block(axis) => self.block[axis].into(),
            Special::Blocks(axis) => self.launch.grid[axis].into(),
            Special::Lane => (thread % 32).into(),
            Special::RankInCluster => self.rank.into(),
            Special::BlocksInCluster => self.launch.cluster.into(),
            Special::Clock => self.begin.elapsed().as_nanos() as u64,
            Special::Nanoseconds => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_nanos() as u64),
        }
    }
}

/// Scheduling state of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    AtBarrier(usize),
    AtCluster,
    Done,
}

/// A warp of a block.
struct Member {
    warp: Warp,
    state: State,
    /// Its arrivals at the cluster barrier.
    arrivals: u64,
}

/// A barrier of a block.
#[derive(Clone, Copy, Default)]
struct Barrier {
    /// Warps that have arrived.
    come: u32,
    /// Number of participating threads; `None`: all threads of the block.
    threads: Option<u32>,
}

struct Block {
    index: [u32; 3],
    members: Vec<Member>,
    barriers: [Barrier; BARRIERS],
}

/// One cluster, or one block without clusters.
pub(super) struct Team<'a> {
    launch: &'a Launch<'a>,
    ranges: Ranges<'a>,
    shared: Shared,
    blocks: Vec<Block>,
    /// How often the cluster barrier has opened.
    openings: u64,
    begin: Instant,
}

impl<'a> Team<'a> {
    pub(super) fn new(launch: &'a Launch<'a>, ranges: Ranges<'a>) -> Self {
        let ranks = launch.cluster;
        let warps = launch.threads().div_ceil(32);
        let member =
            |_| Member { warp: Warp::new(&launch.kernel.code), state: State::Ready, arrivals: 0 };
        let block = || Block {
            index: [0; 3],
            members: (0..warps).map(member).collect(),
            barriers: [Barrier::default(); BARRIERS],
        };
        Self {
            launch,
            ranges,
            shared: Shared::new(ranks, launch.kernel.shared_bytes + launch.shared_bytes),
            blocks: (0..ranks).map(|_| block()).collect(),
            openings: 0,
            begin: Instant::now(),
        }
    }

    /// Runs cluster `number` to its end.
    pub(super) fn run(&mut self, number: u64) -> Result<(), Fault> {
        self.begin_cluster(number);
        let mut idle_rounds = 0;
        loop {
            let (mut is_done, mut is_idle) = (true, true);
            for rank in 0..self.blocks.len() {
                for member in 0..self.blocks[rank].members.len() {
                    if self.blocks[rank].members[member].state == State::Ready {
                        is_idle &= self.turn(rank, member)?;
                    }
                    is_done &= self.blocks[rank].members[member].state == State::Done;
                }
            }
            if is_done {
                return Ok(());
            }
            idle_rounds = if is_idle { idle_rounds + 1 } else { 0 };
            if idle_rounds > MAX_IDLE_ROUNDS {
                let index = self.blocks[0].index;
                let name = &self.launch.kernel.name;
                return Err(Fault::Failed(format!(
                    "{name}, block {index:?}: threads wait for ever"
                )));
            }
        }
    }

    fn begin_cluster(&mut self, number: u64) {
        let [x, y, _] = self.launch.grid.map(u64::from);
        let ranks = self.blocks.len() as u64;
        let across = x / ranks;
        let (first, row, layer) =
            (number % across * ranks, number / across % y, number / across / y);
        let threads = self.launch.threads();
        self.shared.scramble();
        self.openings = 0;
        for (rank, block) in self.blocks.iter_mut().enumerate() {
            block.index = [first as u32 + rank as u32, row as u32, layer as u32];
            block.barriers = [Barrier::default(); BARRIERS];
            for (i, member) in (0..).zip(&mut block.members) {
                member.warp.begin(32 * i, threads - 32 * i);
                member.state = State::Ready;
                member.arrivals = 0;
            }
        }
    }

    /// Runs a warp until it pauses. `true`: it only polled for a value that is not there yet.
    fn turn(&mut self, rank: usize, number: usize) -> Result<bool, Fault> {
        let block = &mut self.blocks[rank];
        let mut site = Site {
            ranges: &self.ranges,
            shared: &mut self.shared,
            params: self.launch.params,
            launch: self.launch,
            block: block.index,
            rank: rank as u32,
            begin: self.begin,
        };
        let Member { warp, state, arrivals } = &mut block.members[number];
        let code = &self.launch.kernel.code;
        let pause = match warp.run(code, &mut site) {
            Ok(pause) => pause,
            Err(stop) => {
                let (line, thread) = (warp.line(code), warp.first_thread);
                return Err(fault(stop, &self.launch.kernel.name, block.index, thread, line));
            }
        };
        match pause {
            Pause::Turn { idle } => return Ok(idle),
            Pause::Done => {
                *state = State::Done;
                (0..BARRIERS).for_each(|id| block.open(id));
                self.open_cluster();
            }
            Pause::ClusterArrive => {
                *arrivals += 1;
                self.open_cluster();
            }
            Pause::ClusterWait if *arrivals > self.openings => *state = State::AtCluster,
            Pause::ClusterWait => {}
            Pause::Barrier { id, threads } => {
                let id = id as usize % BARRIERS;
                *state = State::AtBarrier(id);
                block.barriers[id] = Barrier { come: block.barriers[id].come + 1, threads };
                block.open(id);
            }
        }
        Ok(false)
    }

    /// Opens the cluster barrier if every warp has arrived or ended.
    fn open_cluster(&mut self) {
        let openings = self.openings;
        let mut all = self.blocks.iter().flat_map(|block| &block.members);
        if !all.all(|member| member.state == State::Done || member.arrivals > openings) {
            return;
        }
        self.openings += 1;
        let all = self.blocks.iter_mut().flat_map(|block| &mut block.members);
        for member in all.filter(|member| member.state == State::AtCluster) {
            member.state = State::Ready;
        }
    }
}

impl Block {
    /// Opens a barrier if all participants have arrived: the given number of threads, or all of the
    /// block that have not ended.
    fn open(&mut self, id: usize) {
        let Barrier { come, threads } = self.barriers[id];
        let alive = self.members.iter().filter(|member| member.state != State::Done).count() as u32;
        let expected = threads.map_or(alive, |threads| threads.div_ceil(32));
        if come == 0 || come < expected {
            return;
        }
        self.barriers[id].come = 0;
        for member in self.members.iter_mut().filter(|member| member.state == State::AtBarrier(id))
        {
            member.state = State::Ready;
        }
    }
}

fn fault(stop: Stop, kernel: &str, block: [u32; 3], thread: u32, line: u32) -> Fault {
    let place = format!("{kernel}, block {block:?}, threads from {thread}, line {line}");
    match stop {
        Stop::Bad(Bad::Address(address)) => {
            Fault::IllegalAddress(format!("{place}: nothing at {address:#x}"))
        }
        Stop::Bad(Bad::Alignment(address)) => {
            Fault::Misaligned(format!("{place}: {address:#x} is not aligned"))
        }
        Stop::Trap => Fault::Failed(format!("{place}: a trap")),
        Stop::Parted => {
            Fault::Failed(format!("{place}: lanes wait for each other at different places"))
        }
    }
}
