use std::sync::Arc;

use loom::thread;

use crate::check;
use crate::queue::{Mailbox, TrySendError};

/// Rule 3: a refused sender gets the place at its second try, or the receiver that made the place
/// sees that it wants one.
#[test]
fn no_refused_sender_is_forgotten() {
    check(|| {
        let mailbox = Arc::new(Mailbox::new(1));
        mailbox.try_send(1).unwrap();
        let sender = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || mailbox.try_send_or_want_retry(2).is_ok())
        };
        assert_eq!(mailbox.try_recv(), Some(1));
        let is_told = mailbox.take_retry_wanted();
        assert!(sender.join().unwrap() || is_told);
    });
}

/// Rules 1 and 2: each item is received, or returned to its sender; nothing is received from a
/// drained mailbox.
#[test]
fn a_closed_mailbox_loses_nothing() {
    check(|| {
        let mailbox = Arc::new(Mailbox::new(1));
        let sender = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || mailbox.try_send(7))
        };
        mailbox.close();
        let mut received = None;
        while !mailbox.is_drained() {
            received = received.or(mailbox.try_recv());
            thread::yield_now();
        }
        let after = mailbox.try_recv();
        match sender.join().unwrap() {
            Ok(()) => assert_eq!((received, after), (Some(7), None)),
            Err(refused) => {
                assert!(matches!(refused, TrySendError::Closed(7)));
                assert_eq!((received, after), (None, None));
            }
        }
    });
}
