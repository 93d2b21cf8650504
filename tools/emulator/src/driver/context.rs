//! Contexts: the current one, and the objects of each.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{CUcontext, CUdevice, CUlimit, CUresult};

use super::device::device;
use super::event::EVENTS;
use super::facts::facts;
use super::graph::{GRAPHS, INSTANCES};
use super::memory::{ALLOCATIONS, PINNED};
use super::module::{FUNCTIONS, MODULES};
use super::stream::{PRIORITIES, STREAMS, Stream};
use super::table::{Table, handle, new_number};
use super::work::Operation;
use super::{Outcome, answer, give};

/// Owner of objects and scope of faults. A context has one; green contexts share the primary
/// context's.
pub(super) struct Space {
    pub(super) number: usize,
    pub(super) device: CUdevice,
    fault: OnceLock<CUresult>,
    is_destroyed: AtomicBool,
}

/// Origin of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Created and destroyed by a caller.
    Own,
    /// The device's primary context, which lives while it is retained.
    Primary,
    /// On a part of the device, in the primary context's space.
    Green,
}

pub(super) struct Context {
    /// Its handle.
    pub(super) number: usize,
    pub(super) space: Arc<Space>,
    pub(super) multiprocessors: u32,
    /// The default stream, which has no handle.
    pub(super) default_stream: Arc<Stream>,
    kind: Kind,
}

static CONTEXTS: Table<Context> = Table::new();

thread_local! {
    static CURRENT: RefCell<Option<Arc<Context>>> = const { RefCell::new(None) };
}

impl Space {
    pub(super) fn new(device: CUdevice) -> Arc<Self> {
        Arc::new(Self {
            number: new_number(),
            device,
            fault: OnceLock::new(),
            is_destroyed: AtomicBool::new(false),
        })
    }

    /// Returns an error after the space was destroyed, or after a fault.
    pub(super) fn check(&self) -> Outcome {
        if self.is_destroyed.load(Ordering::Relaxed) {
            return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        self.fault.get().map_or(Ok(()), |fault| Err(*fault))
    }

    /// Runs work in order, up to the first fault, which is stored.
    pub(super) fn run(&self, work: &[Operation]) {
        if self.fault.get().is_some() {
            return;
        }
        if let Err((fault, words)) =
            work.iter().try_for_each(|operation| operation.run(self.device))
        {
            eprintln!("emulator: {words}");
            let _first_wins = self.fault.set(fault);
        }
    }

    /// Frees all objects in it. No work runs there any more.
    pub(super) fn destroy(&self) {
        self.is_destroyed.store(true, Ordering::Relaxed);
        FUNCTIONS.drop_space(self.number);
        MODULES.drop_space(self.number);
        INSTANCES.drop_space(self.number);
        GRAPHS.drop_space(self.number);
        EVENTS.drop_space(self.number);
        STREAMS.drop_space(self.number);
        ALLOCATIONS.drop_space(self.number);
        PINNED.drop_space(self.number);
    }
}

impl Context {
    /// Creates and lists a context.
    pub(super) fn create(kind: Kind, space: Arc<Space>, multiprocessors: u32) -> Arc<Self> {
        let default_stream = Arc::new(Stream::default_of(Arc::clone(&space)));
        let number = new_number();
        let context = Arc::new(Self { number, space, multiprocessors, default_stream, kind });
        CONTEXTS.insert_at(number, context.space.number, Arc::clone(&context));
        context
    }

    /// Removes it from the list, so that it can no longer become current.
    pub(super) fn unlist(&self) {
        // It is in the list until this call.
        let _ = CONTEXTS.remove(self.number);
        CURRENT.with_borrow_mut(|current| {
            current.take_if(|current| current.number == self.number);
        });
    }
}

/// The current context of this thread.
///
/// # Errors
/// No context is current, it was destroyed, or it has a fault.
pub(super) fn current() -> Outcome<Arc<Context>> {
    facts()?;
    let context = CURRENT.with_borrow(Clone::clone).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    context.space.check()?;
    Ok(context)
}

/// The context with a handle.
pub(super) fn context(raw: CUcontext) -> Outcome<Arc<Context>> {
    facts()?;
    CONTEXTS.get(raw.addr()).map_err(|_| CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(
    place: *mut CUcontext,
    _flags: c_uint,
    ordinal: CUdevice,
) -> CUresult {
    let find = || {
        let multiprocessors = device(ordinal)?.multiprocessors;
        let context = Context::create(Kind::Own, Space::new(ordinal), multiprocessors);
        CURRENT.set(Some(Arc::clone(&context)));
        Ok(handle(context.number))
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxDestroy_v2(raw: CUcontext) -> CUresult {
    answer(context(raw).and_then(|context| {
        if context.kind != Kind::Own {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        context.unlist();
        context.space.destroy();
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(raw: CUcontext) -> CUresult {
    let found = if raw.is_null() { facts().map(|_| None) } else { context(raw).map(Some) };
    answer(found.map(|context| CURRENT.set(context)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(place: *mut CUcontext) -> CUresult {
    let find = || {
        facts()?;
        let number = CURRENT.with_borrow(|current| current.as_ref().map(|context| context.number));
        Ok(number.map_or(ptr::null_mut(), handle))
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(place: *mut CUdevice) -> CUresult {
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, || current().map(|context| context.space.device)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetLimit(place: *mut usize, limit: c_uint) -> CUresult {
    let find = || {
        current()?;
        // Contexts are never shared with graphics.
        let is_known = limit == CUlimit::CU_LIMIT_CIG_ENABLED as c_uint;
        if is_known { Ok(0) } else { Err(CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT) }
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> CUresult {
    for (place, priority) in [(least, *PRIORITIES.end()), (greatest, *PRIORITIES.start())] {
        if place.is_null() {
            continue;
        }
        // SAFETY: guaranteed by the caller.
        let result = unsafe { give(place, || current().map(|_| priority)) };
        if result != CUresult::CUDA_SUCCESS {
            return result;
        }
    }
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> CUresult {
    answer(current().and_then(|context| {
        for stream in STREAMS.all_of(context.space.number) {
            stream.wait();
        }
        // Earlier work may have failed.
        context.space.check()
    }))
}
