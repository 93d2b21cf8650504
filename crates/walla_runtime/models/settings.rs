use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use crate::check;
use crate::controls::Controls;
use crate::engine_core::Control;
use crate::options::FrameBudget;

/// The sum of the reservations reaches the device thread, which takes settings at any time.
#[test]
fn no_reservation_is_lost() {
    check(|| {
        let controls = Arc::new(Controls::new());
        let clients = [1, 2].map(|nanos| {
            let controls = Arc::clone(&controls);
            thread::spawn(move || controls.reserve(0, nanos))
        });
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
        let hosts = [1, 2].map(|millis| {
            let controls = Arc::clone(&controls);
            let budget = FrameBudget::Time(Duration::from_millis(millis));
            thread::spawn(move || controls.set_budget(budget))
        });
        let mut taken = controls.take().last();
        hosts.into_iter().for_each(|host| host.join().unwrap());
        taken = controls.take().last().or(taken);
        assert_eq!(taken, Some(Control::Budget(controls.latest_budget())));
    });
}
