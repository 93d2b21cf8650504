use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use crate::check;
use crate::controls::Controls;
use crate::engine_core::Control;
use crate::options::FrameBudget;

/// Two threads that change a setting, with the numbers 1 and 2.
fn two(controls: &Arc<Controls>, change: fn(&Controls, u64)) -> [thread::JoinHandle<()>; 2] {
    [1, 2].map(|number| {
        let controls = Arc::clone(controls);
        thread::spawn(move || change(&controls, number))
    })
}

/// The sum of the reservations reaches the device thread, which takes settings at any time.
#[test]
fn no_reservation_is_lost() {
    check(|| {
        let controls = Arc::new(Controls::new());
        let clients = two(&controls, |controls, nanos| controls.reserve(0, nanos));
        let mut latest = None;
        for _ in 0..2 {
            latest = controls.take().last().or(latest);
        }
        clients.into_iter().for_each(|client| client.join().unwrap());
        latest = controls.take().last().or(latest);
        assert_eq!(latest, Some(Control::Reserved(Duration::from_nanos(3))));
    });
}

/// Of two hosts that set the budget at once, one is the last for the device thread and for readers.
#[test]
fn the_device_thread_has_the_latest_budget() {
    check(|| {
        let controls = Arc::new(Controls::new());
        let hosts = two(&controls, |controls, millis| {
            controls.set_budget(FrameBudget::Time(Duration::from_millis(millis)));
        });
        let mut taken = controls.take().last();
        hosts.into_iter().for_each(|host| host.join().unwrap());
        taken = controls.take().last().or(taken);
        assert_eq!(taken, Some(Control::Budget(controls.latest_budget())));
    });
}
