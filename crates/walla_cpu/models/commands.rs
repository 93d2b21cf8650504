//! The executor: commands run in order, every wait ends, and the device may be dropped or lost at
//! any time.

use walla_device::DeviceError;

use crate::check;
use crate::command::Command;
use crate::executor::Executor;
use crate::machine::Machine;
use crate::sync::{Arc, AtomicUsize, Ordering};

/// An executor whose ring holds `max_commands` commands, and the number of commands that it ran.
fn start(max_commands: usize) -> (Executor, Arc<AtomicUsize>) {
    let ran = Arc::new(AtomicUsize::new(0));
    let machine = Machine(Arc::clone(&ran));
    (Executor::start(machine, Some(max_commands)).unwrap(), ran)
}

#[test]
fn draining_waits_for_all_pushed_commands() {
    check(|| {
        let (mut executor, ran) = start(2);
        executor.push("launch", Command::Count).unwrap();
        executor.push("launch", Command::Refuse).unwrap();
        executor.drain();
        assert_eq!(ran.load(Ordering::Relaxed), 2);
        let fault = executor.check_fault();
        assert_eq!(fault, Err(DeviceError::Invalid("refused".to_owned())));
        assert_eq!(executor.check_fault(), Ok(()), "told once");
    });
}

#[test]
fn a_full_queue_has_room_again_once_it_is_drained() {
    check(|| {
        let (mut executor, ran) = start(1);
        executor.push("launch", Command::Count).unwrap();
        let is_full = executor.push("launch", Command::Count).is_err();
        executor.drain();
        executor.push("launch", Command::Count).unwrap();
        executor.drain();
        assert_eq!(ran.load(Ordering::Relaxed), if is_full { 2 } else { 3 });
    });
}

#[test]
fn dropping_does_not_wait_for_unstarted_commands() {
    check(|| {
        let (mut executor, ran) = start(2);
        executor.push("launch", Command::Count).unwrap();
        executor.push("launch", Command::Count).unwrap();
        drop(executor);
        assert!(ran.load(Ordering::Relaxed) <= 2);
    });
}

/// Rule 3: the owner never waits for an executor that has exited.
#[test]
fn no_thread_waits_for_a_lost_device() {
    check(|| {
        let (mut executor, ran) = start(2);
        executor.push("launch", Command::Panic).unwrap();
        // Either the loss is known by now, or the command stays in the ring.
        let pushed = executor.push("launch", Command::Count);
        executor.drain();
        let lost = DeviceError::Lost { call: "launch", reason: "a defect".to_owned() };
        assert_eq!(executor.check_lost("launch"), Err(lost.clone()));
        assert!(pushed.is_ok() || pushed == Err(lost));
        assert_eq!(ran.load(Ordering::Relaxed), 1);
    });
}
