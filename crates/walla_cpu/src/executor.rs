//! Runs commands in order, on a separate thread or inside the call.
//!
//! | field | writer | reader |
//! |---|---|---|
//! | `ring` | owner pushes | executor pops |
//! | `done` | executor: commands finished | owner, in `synchronize` |
//! | `cancel` | owner, when dropped | executor, between commands and between ops |
//! | `fault` | executor: the defect of a step block | owner takes it |
//! | `lost` | executor, once, when a command panicked | owner, before every call |
//! | `machine` | its lock holder: the executor for each command, the owner while loading | |
//!
//! Rules:
//! 1. After loading, the owner touches only `ring`, flags and event counters: atomics, and locks
//!    that are free by construction.
//! 2. Both sides [park](crate::parker): the executor when the ring is empty, the owner only in
//!    `synchronize`.
//! 3. After a panic the executor exits. The owner never waits for it, because every wait also
//!    checks `lost`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::Duration;

use walla_device::DeviceError;

use crate::command::Command;
use crate::machine::Machine;
use crate::parker::{park_in_until, park_until};
use crate::ring::Ring;
use crate::sync::{
    Arc, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, Parker, Unparker, spawn, spin_until,
    thread,
};

/// Time for which the executor spins before it sleeps: the commands of one step follow in quick
/// succession.
const IDLE_SPIN: Duration = Duration::from_micros(10);

struct Shared {
    ring: Ring<Command>,
    machine: Mutex<Machine>,
    done: AtomicU64,
    cancel: AtomicBool,
    has_fault: AtomicBool,
    fault: Mutex<Option<String>>,
    is_lost: AtomicBool,
    lost: Mutex<String>,
    owner: Unparker,
}

impl Shared {
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one command; returns `false` if the device is lost.
    fn run(&self, command: &Command) -> bool {
        let mut machine = self.machine();
        let outcome = catch_unwind(AssertUnwindSafe(|| machine.execute(command, &self.cancel)));
        // Helpers that spin between steps would take the game's cores.
        if self.ring.is_empty() {
            machine.rest();
        }
        drop(machine);
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => {
                *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
                self.has_fault.store(true, Ordering::Release);
            }
            Err(panic) => {
                let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
                let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
                *self.lost.lock().unwrap_or_else(PoisonError::into_inner) =
                    words.unwrap_or_else(|| "a kernel panicked".to_owned());
                self.is_lost.store(true, Ordering::Release);
            }
        }
        !self.is_lost.load(Ordering::Relaxed)
    }

    /// Main loop of the executor thread.
    fn serve(&self) {
        let ready = || !self.ring.is_empty() || self.cancel.load(Ordering::Relaxed);
        loop {
            if !spin_until(IDLE_SPIN, ready) {
                park_until(ready);
            }
            if self.cancel.load(Ordering::Relaxed) {
                return;
            }
            let Some(command) = self.ring.pop() else { continue };
            let lives = self.run(&command);
            // After the command's effects, so that a thread that waits for the number sees them.
            self.done.fetch_add(1, Ordering::Release);
            self.owner.unpark();
            if !lives {
                return;
            }
        }
    }
}

/// The owner's end.
pub(crate) struct Executor {
    shared: Arc<Shared>,
    /// `None`: commands run inside the call.
    thread: Option<thread::JoinHandle<()>>,
    /// Of the owner's thread.
    parker: Parker,
    pushed: u64,
}

impl Executor {
    /// Starts an executor of this machine: on a separate thread with a queue of `max_commands`
    /// commands, or (`None`) inside the call.
    pub(crate) fn start(machine: Machine, max_commands: Option<usize>) -> std::io::Result<Self> {
        let parker = Parker::new();
        let shared = Arc::new(Shared {
            ring: Ring::new(max_commands.unwrap_or(0)),
            machine: Mutex::new(machine),
            done: AtomicU64::new(0),
            cancel: AtomicBool::new(false),
            has_fault: AtomicBool::new(false),
            fault: Mutex::new(None),
            is_lost: AtomicBool::new(false),
            lost: Mutex::new(String::new()),
            owner: parker.unparker().clone(),
        });
        let thread = if max_commands.is_none() {
            None
        } else {
            let shared = Arc::clone(&shared);
            Some(spawn("walla-cpu-0", move || shared.serve())?)
        };
        Ok(Self { shared, thread, parker, pushed: 0 })
    }

    /// The machine, for loading. Waits for the running command.
    pub(crate) fn machine(&self) -> MutexGuard<'_, Machine> {
        self.shared.machine()
    }

    /// Checks that `count` more commands fit.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if they do not fit, [`DeviceError::Lost`] if the executor has
    /// exited.
    pub(crate) fn reserve(&self, call: &'static str, count: usize) -> Result<(), DeviceError> {
        self.check_lost(call)?;
        if self.thread.is_some() && self.shared.ring.free() < count {
            let max = self.shared.ring.capacity();
            let reason = format!("the queue of {max} commands is full: retry after a poll");
            return Err(DeviceError::Failed { call, reason });
        }
        Ok(())
    }

    /// Appends a command that was [reserved](Self::reserve).
    pub(crate) fn push(&mut self, call: &'static str, command: Command) -> Result<(), DeviceError> {
        if self.thread.is_none() {
            self.check_lost(call)?;
            self.shared.run(&command);
            return self.check_lost(call);
        }
        self.reserve(call, 1)?;
        // Cannot fail after the reservation: this side is the only producer.
        if self.shared.ring.push(command).is_ok() {
            self.pushed += 1;
            self.thread.iter().for_each(|thread| thread.thread().unpark());
        }
        Ok(())
    }

    /// Checks that the device is not lost.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] if it is lost.
    pub(crate) fn check_lost(&self, call: &'static str) -> Result<(), DeviceError> {
        if !self.shared.is_lost.load(Ordering::Acquire) {
            return Ok(());
        }
        let reason = self.shared.lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Err(DeviceError::Lost { call, reason })
    }

    /// Reports the defect of a step block, once.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] with the message.
    pub(crate) fn check_fault(&self) -> Result<(), DeviceError> {
        let has_fault = &self.shared.has_fault;
        // Called by every poll, and faults are rare: one load, and a swap only if a fault is set.
        if !has_fault.load(Ordering::Relaxed) || !has_fault.swap(false, Ordering::Acquire) {
            return Ok(());
        }
        let fault = self.shared.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        fault.map_or(Ok(()), |fault| Err(DeviceError::Invalid(fault)))
    }

    /// Waits until every command is done or the device is lost.
    pub(crate) fn drain(&self) {
        self.wait_until(|| self.shared.done.load(Ordering::Acquire) == self.pushed);
    }

    /// Waits until `done`, an effect of a pushed command, or until the device is lost. The waiting
    /// thread leaves its processor to the threads that it waits for.
    pub(crate) fn wait_until(&self, done: impl Fn() -> bool) {
        if self.thread.is_some() {
            let ends = || done() || self.shared.is_lost.load(Ordering::Acquire);
            park_in_until(&self.parker, ends);
        }
    }
}

impl Drop for Executor {
    /// Exits within one op.
    fn drop(&mut self) {
        self.shared.cancel.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // `run` catches panics, so the thread does not panic.
            let _ = thread.join();
        }
    }
}
