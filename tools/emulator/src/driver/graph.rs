//! Graphs: captured work, and executable instances.

use std::ffi::c_ulonglong;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUresult, CUstream};

use super::context::current;
use super::stream::stream;
use super::table::{Table, handle};
use super::work::Operation;
use super::{answer, give};

/// Work in the order in which it was captured.
pub(super) struct Graph {
    work: Arc<[Operation]>,
}

impl Graph {
    pub(super) fn new(work: Vec<Operation>) -> Self {
        Self { work: work.into() }
    }
}

pub(super) static GRAPHS: Table<Graph> = Table::new();

/// Executable graphs.
pub(super) static INSTANCES: Table<Graph> = Table::new();

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(
    place: *mut CUgraphExec,
    raw: CUgraph,
    _flags: c_ulonglong,
) -> CUresult {
    let find = || {
        let context = current()?;
        let work = Arc::clone(&GRAPHS.get(raw.addr())?.work);
        Ok(handle(INSTANCES.insert(context.space.number, Graph { work })))
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphDestroy(raw: CUgraph) -> CUresult {
    answer(current().and_then(|_| GRAPHS.remove(raw.addr()).map(drop)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphExecDestroy(raw: CUgraphExec) -> CUresult {
    answer(current().and_then(|_| INSTANCES.remove(raw.addr()).map(drop)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphUpload(raw: CUgraphExec, raw_stream: CUstream) -> CUresult {
    // An upload does nothing: the graph is in host memory.
    answer(stream(raw_stream).and_then(|_| INSTANCES.get(raw.addr()).map(drop)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphLaunch(raw: CUgraphExec, raw_stream: CUstream) -> CUresult {
    let launch = || stream(raw_stream)?.enqueue(&INSTANCES.get(raw.addr())?.work);
    answer(launch())
}
