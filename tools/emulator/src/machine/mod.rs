//! Runs decoded kernels. A few threads each run blocks sequentially; the blocks of a cluster run
//! together, and the lanes of a warp in lockstep.
//!
//! Emulated: the effect of instructions on registers and memory; barriers of blocks, clusters and
//! warps; shuffles among divergent lanes; memory limits. Not emulated: time, caches, the order in
//! which blocks start, the order in which a tensor core adds (here sequentially, from the lowest
//! depth). Asynchronous copies complete when they are issued, so a missing wait is not detected.

mod access;
mod alu;
mod convert;
mod execute;
mod kinds;
mod op;
mod team;
mod tensor;
mod warp;

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::memory::Memory;
use crate::ptx::Kernel;
use access::Ranges;
use team::Team;

pub(crate) use kinds::{
    Atomic, Compare, Logic, One, OneLong, Rounding, Shift, Shuffle, Space, Special, Three, Two,
    TwoLong, Type, Vote,
};
pub(crate) use op::{
    Address, Code, Few, Guard, Instruction, Long, Op, Register, Source, Value, Word,
};

/// One launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Blocks per cluster, along x; 1 without clusters.
    pub cluster: u32,
    /// Dynamic shared memory per block.
    pub shared_bytes: u32,
    /// The parameters, in the kernel's layout.
    pub params: &'a [u8],
}

impl Launch<'_> {
    /// Threads per block, over all dimensions.
    fn threads(&self) -> u32 {
        self.block.iter().product()
    }
}

/// Why a kernel was aborted. The text contains the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Access to an address without memory.
    #[error("{0}")]
    IllegalAddress(String),
    /// Misaligned address.
    #[error("{0}")]
    Misaligned(String),
    /// Any other failure: a trap, threads that wait for each other for ever, a launch that does not
    /// fit.
    #[error("{0}")]
    Failed(String),
}

/// Runs a kernel to its end.
///
/// # Errors
/// The first fault that was detected. Earlier writes of blocks remain.
pub fn run(launch: &Launch<'_>, memory: &Memory) -> Result<(), Fault> {
    let Launch { kernel, grid: [x, y, z], .. } = *launch;
    let cluster = kernel.cluster.unwrap_or(launch.cluster).max(1);
    let launch = &Launch { cluster, ..*launch };
    if launch.params.len() < kernel.param_bytes
        || !x.is_multiple_of(cluster)
        || kernel.max_threads.is_some_and(|most| launch.threads() > most)
    {
        return Err(Fault::Failed(format!(
            "{}: parameters, threads or cluster do not fit",
            kernel.name
        )));
    }
    let teams = u64::from(x / cluster) * u64::from(y) * u64::from(z);
    let mut ranges = memory.snapshot().to_vec();
    ranges.push(kernel.globals.range());
    ranges.sort_by_key(|range| range.start);
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let fault = Mutex::new(None);
    let work = || {
        let mut team = Team::new(launch, Ranges::new(&ranges));
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= teams || stop.load(Ordering::Relaxed) {
                return;
            }
            if let Err(found) = team.run(index) {
                stop.store(true, Ordering::Relaxed);
                fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(found);
                return;
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get) as u64;
    std::thread::scope(|scope| {
        for _ in 1..cores.min(teams) {
            scope.spawn(work);
        }
        work();
    });
    fault.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
