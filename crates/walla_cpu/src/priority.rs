//! Scheduling priority of threads relative to the host's, and the resolution of their waits.

#[cfg(any(windows, target_os = "macos"))]
use std::cell::Cell;
use std::io;
use std::thread::{Builder, JoinHandle};

/// Nanoseconds of a time slice. Other threads have at most 3 ms, and Linux lets a thread that wakes
/// preempt threads with longer slices. Otherwise it waits for the next tick of the system, up to
/// 4 ms.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const SLICE: u64 = 10_000_000;

/// The nice value of embedders: about a tenth of a normal thread's share of a core that both need.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const NICE: i32 = 10;

/// Scheduling of a thread relative to the threads of the host.
///
/// | system | engine | embedder |
/// |---|---|---|
/// | Linux | policy `SCHED_BATCH`, a long time slice | also nice 10 |
/// | Windows | no boost at a wake-up | also priority below normal |
/// | macOS | quality of service "user-initiated" | "utility" |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadClass {
    /// Threads of an engine. If no core is free, waking such a thread does not preempt the thread
    /// that wakes it (the game's). From Linux 6.12 on, they also get a long time slice, so that a
    /// thread of the game that wakes preempts them at once.
    Engine,
    /// Threads of an embedder, which also get less of a core that others need.
    Embedder,
}

// Of this thread, for threads that it starts: only Linux lets these inherit it.
#[cfg(any(windows, target_os = "macos"))]
thread_local! {
    static CLASS: Cell<Option<ThreadClass>> = const { Cell::new(None) };
}

impl ThreadClass {
    /// Gives this class to the calling thread, and to the threads that it will start with
    /// [`spawn`]. Returns whether the system has agreed; systems without such classes do not.
    pub fn enter(self) -> bool {
        #[cfg(any(windows, target_os = "macos"))]
        CLASS.set(Some(self));
        self.apply()
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the system calls have no safe wrapper in std")]
    fn apply(self) -> bool {
        // The policy alone, for systems that refuse the call with the time slice.
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: 0 denotes the calling thread, and the pointer is to a parameter block that
        // outlives the call.
        let refused =
            unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) };
        let nice = if self == Self::Embedder {
            // Apart from the call with the time slice, for the same reason.
            // SAFETY: the call has no pointers; on Linux, 0 denotes the calling thread.
            let unchanged = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
            if unchanged != 0 {
                return false;
            }
            NICE
        } else {
            // SAFETY: the call has no pointers; 0 denotes the calling thread.
            unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
        };
        let attributes = libc::sched_attr {
            size: size_of::<libc::sched_attr>() as u32, // 48.
            sched_policy: libc::SCHED_BATCH as u32,
            sched_flags: 0,
            sched_nice: nice,
            sched_priority: 0,
            sched_runtime: SLICE, // Earlier versions ignore it.
            sched_deadline: 0,
            sched_period: 0,
        };
        // SAFETY: 0 denotes the calling thread, and the pointer is to attributes of the size that
        // they name, which outlive the call.
        let unchanged =
            unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
        refused == 0 && unchanged == 0
    }

    #[cfg(windows)]
    #[expect(unsafe_code, reason = "the system calls have no safe wrapper in std")]
    fn apply(self) -> bool {
        use windows_sys::Win32::System::Threading::{
            GetCurrentThread, SetThreadPriority, SetThreadPriorityBoost,
            THREAD_PRIORITY_BELOW_NORMAL,
        };
        // SAFETY: it has no arguments; the handle denotes the calling thread and is not closed.
        let thread = unsafe { GetCurrentThread() };
        // SAFETY: the handle is valid. 1 disables the boost.
        let is_set = unsafe { SetThreadPriorityBoost(thread, 1) };
        if self == Self::Engine {
            return is_set != 0;
        }
        // SAFETY: the handle is valid.
        let is_lowered = unsafe { SetThreadPriority(thread, THREAD_PRIORITY_BELOW_NORMAL) };
        is_set != 0 && is_lowered != 0
    }

    #[cfg(target_os = "macos")]
    #[expect(unsafe_code, reason = "the system call has no safe wrapper in std")]
    fn apply(self) -> bool {
        let class = match self {
            Self::Engine => libc::qos_class_t::QOS_CLASS_USER_INITIATED,
            Self::Embedder => libc::qos_class_t::QOS_CLASS_UTILITY,
        };
        // SAFETY: the call has no pointers and concerns the calling thread.
        unsafe { libc::pthread_set_qos_class_self_np(class, 0) == 0 }
    }

    #[cfg(not(any(all(target_os = "linux", target_env = "gnu"), windows, target_os = "macos")))]
    fn apply(self) -> bool {
        false
    }
}

/// While it lives, the clock of Windows ticks each millisecond instead of each 15.6: waits with a
/// time limit end at a tick. Other systems need nothing.
#[derive(Debug)]
pub struct FineClock(());

impl FineClock {
    /// Makes the clock fine.
    #[expect(clippy::new_without_default, reason = "it is a request to the system, not a value")]
    #[must_use]
    #[cfg_attr(windows, expect(unsafe_code, reason = "the system call has no safe wrapper in std"))]
    pub fn new() -> Self {
        // SAFETY: the call has no pointers; it counts, and `drop` has the other call of the pair.
        #[cfg(windows)]
        let _refused = unsafe { windows_sys::Win32::Media::timeBeginPeriod(1) };
        Self(())
    }
}

impl Drop for FineClock {
    #[cfg_attr(windows, expect(unsafe_code, reason = "the system call has no safe wrapper in std"))]
    fn drop(&mut self) {
        // SAFETY: the call has no pointers; `new` has the other call of the pair.
        #[cfg(windows)]
        let _refused = unsafe { windows_sys::Win32::Media::timeEndPeriod(1) };
    }
}

/// Starts a thread with the class of the calling thread.
///
/// # Errors
/// If the system cannot start a thread.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    #[cfg(any(windows, target_os = "macos"))]
    let work = {
        let class = CLASS.get();
        move || {
            // A thread that the system refuses it works all the same.
            let _is_agreed = class.map(ThreadClass::enter);
            work()
        }
    };
    Builder::new().name(name.into()).spawn(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policy, nice value and slice of the calling thread.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the system call has no safe wrapper in std")]
    fn state() -> (u32, i32, u64) {
        // SAFETY: the structure is of integers alone.
        let mut of: libc::sched_attr = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::sched_attr>();
        // SAFETY: 0 denotes the calling thread, and the pointer is to as many bytes as are named.
        let failed = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut of, size, 0) };
        assert_eq!(failed, 0);
        (of.sched_policy, of.sched_nice, of.sched_runtime)
    }

    /// Class that the thread hands on, and its priority.
    #[cfg(windows)]
    #[expect(unsafe_code, reason = "the system calls have no safe wrapper in std")]
    fn state() -> (Option<ThreadClass>, i32) {
        use windows_sys::Win32::System::Threading::{GetCurrentThread, GetThreadPriority};
        // SAFETY: it has no arguments.
        let thread = unsafe { GetCurrentThread() };
        // SAFETY: the handle is valid.
        (CLASS.get(), unsafe { GetThreadPriority(thread) })
    }

    #[cfg(target_os = "macos")]
    #[expect(unsafe_code, reason = "the system call has no safe wrapper in std")]
    fn state() -> u32 {
        unsafe extern "C" {
            // With a number: the type of `libc` does not have all classes.
            fn qos_class_self() -> u32;
        }
        // SAFETY: it has no arguments.
        unsafe { qos_class_self() }
    }

    /// Waits of a thread that wakes on the only core of a busy thread.
    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[ignore = "a measurement, of a quiet machine with Linux 6.12 or later"]
    #[expect(unsafe_code, reason = "the system call has no safe wrapper in std")]
    fn a_thread_that_wakes_preempts_a_busy_one() {
        use std::sync::atomic::{AtomicBool, Ordering};
        use std::time::{Duration, Instant};
        let pin = || {
            // SAFETY: the structure is of integers alone.
            let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
            // SAFETY: 0 is a core of the set.
            unsafe { libc::CPU_SET(0, &mut cores) };
            // SAFETY: the pointer is to as many bytes as are named.
            let failed =
                unsafe { libc::sched_setaffinity(0, size_of_val(&cores), &raw const cores) };
            assert_eq!(failed, 0);
        };
        for class in [ThreadClass::Engine, ThreadClass::Embedder] {
            let stops = AtomicBool::new(false);
            let mut waits = std::thread::scope(|scope| {
                scope.spawn(|| {
                    pin();
                    assert!(class.enter());
                    while !stops.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
                let game = scope.spawn(|| {
                    pin();
                    let wait = |round: u64| {
                        let pause = Duration::from_micros(2000 + round * 7919 % 1000);
                        let begin = Instant::now();
                        std::thread::sleep(pause);
                        let late = begin.elapsed() - pause;
                        let work = Instant::now();
                        while work.elapsed() < Duration::from_micros(300) {}
                        late
                    };
                    (0..3000).map(wait).collect::<Vec<_>>()
                });
                let waits = game.join().unwrap();
                stops.store(true, Ordering::Relaxed);
                waits
            });
            waits.sort();
            let [half, most] = [1500, 2970].map(|at| waits[at]);
            println!("{class:?}: p50 {half:?}, p99 {most:?}");
            assert!(most < Duration::from_millis(1), "{most:?}");
        }
    }

    #[test]
    #[cfg(any(all(target_os = "linux", target_env = "gnu"), windows, target_os = "macos"))]
    fn threads_enter_a_class_and_hand_it_on() {
        for class in [ThreadClass::Engine, ThreadClass::Embedder] {
            let thread = std::thread::spawn(move || {
                let before = state();
                assert!(class.enter());
                let is_engine = class == ThreadClass::Engine;
                #[cfg(target_os = "linux")]
                {
                    let (_, nice, slice) = before;
                    let nice = if is_engine { nice } else { NICE };
                    // Versions without slices report none.
                    let slice = if slice == 0 { 0 } else { SLICE };
                    assert_eq!(state(), (libc::SCHED_BATCH as u32, nice, slice));
                }
                #[cfg(windows)]
                assert_eq!(
                    (before, state()),
                    ((None, 0), (Some(class), if is_engine { 0 } else { -1 }))
                );
                #[cfg(target_os = "macos")]
                assert_eq!(state(), if is_engine { 0x19 } else { 0x11 }, "not {before}");
                let started =
                    spawn("started", || (state(), spawn("next", state).map(JoinHandle::join)));
                let (child, next) = started.unwrap().join().unwrap();
                assert_eq!((child, next.unwrap().unwrap()), (state(), state()));
            });
            thread.join().unwrap();
        }
    }
}
