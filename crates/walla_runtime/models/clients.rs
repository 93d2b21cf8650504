//! Flags of a client and its commands.

use std::sync::Arc;

use loom::thread;

use crate::check;
use crate::flags::Flags;
use crate::queue::Mailbox;

fn shared() -> (Arc<Mailbox<u32>>, Arc<Flags>) {
    (Arc::new(Mailbox::new(1)), Arc::new(Flags::new()))
}

/// The round of a frame takes the commands that were sent before the frame.
#[test]
fn a_frame_brings_the_commands_before_it() {
    check(|| {
        let (commands, flags) = shared();
        let host = thread::spawn({
            let (commands, flags) = (Arc::clone(&commands), Arc::clone(&flags));
            move || {
                commands.try_send(1).unwrap();
                flags.grant_frame();
            }
        });
        let is_framed = flags.take_frame();
        let command = commands.try_recv();
        assert!(!is_framed || command.is_some());
        host.join().unwrap();
        assert_ne!(is_framed, flags.take_frame(), "taken once");
    });
}

/// A command has the settings that the host made before it.
#[test]
fn a_command_of_a_logged_client_is_logged() {
    check(|| {
        let (commands, flags) = shared();
        let host = thread::spawn({
            let (commands, flags) = (Arc::clone(&commands), Arc::clone(&flags));
            move || {
                flags.set_logged(true);
                flags.set_paused(true);
                commands.try_send(1).unwrap();
            }
        });
        if commands.try_recv().is_some() {
            assert!(flags.is_logged() && flags.is_paused());
        }
        host.join().unwrap();
    });
}
