//! Runs decoded kernels: blocks one after the other on each of a few threads, the blocks of a
//! cluster together, the lanes of a warp side by side.
//!
//! What it keeps to: what an instruction does to registers and memory, barriers of blocks, clusters
//! and warps, shuffles among divergent lanes, limits of memory. What it does not: time, caches, the
//! order in which blocks start, copies that are still under way (they are done when they are asked
//! for, so a wait that is missing is not found), and the order in which a tensor core adds (one by
//! one, from the lowest depth).

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
    /// What runs.
    pub kernel: &'a Kernel,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Blocks of a cluster, along x; 1 if there are none.
    pub cluster: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// The parameters, as the kernel lays them out.
    pub params: &'a [u8],
}

impl Launch<'_> {
    /// Threads of a block, all sides together.
    fn threads(&self) -> u32 {
        self.block.iter().product()
    }
}

/// Why a kernel did not come to its end. The words say where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Memory that is not there.
    #[error("{0}")]
    IllegalAddress(String),
    /// An address that is no multiple of what is accessed.
    #[error("{0}")]
    Misaligned(String),
    /// Anything else: a trap, threads that wait for each other for ever, a launch that does not
    /// fit.
    #[error("{0}")]
    Failed(String),
}

/// Runs a kernel to its end.
///
/// # Errors
/// The first fault that was seen; what blocks had written before is written.
pub fn run(launch: &Launch<'_>, memory: &Memory) -> Result<(), Fault> {
    let Launch { kernel, grid: [x, y, z], .. } = *launch;
    let cluster = kernel.cluster.unwrap_or(launch.cluster).max(1);
    let launch = &Launch { cluster, ..*launch };
    if launch.params.len() < kernel.param_bytes
        || !x.is_multiple_of(cluster)
        || kernel.threads_max.is_some_and(|most| launch.threads() > most)
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
