use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use crate::check;
use crate::controls::Controls;
use crate::engine_core::Control;

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
