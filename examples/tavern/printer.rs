//! Prints on another thread: a terminal can be slow, and the frame must not wait for it.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use bevy_ecs::prelude::*;

/// Maximum number of queued lines; further ones are dropped.
const MAX_LINES: usize = 1_024;

/// A thread that prints lines.
pub struct Printer {
    lines: SyncSender<String>,
    thread: JoinHandle<()>,
}

/// A handle for printing.
#[derive(Resource)]
pub struct PrintHandle(SyncSender<String>);

impl Printer {
    /// Starts the thread.
    pub fn start() -> Self {
        let (lines, received) = sync_channel(MAX_LINES);
        Self { lines, thread: std::thread::spawn(move || print(&received)) }
    }

    /// A handle for printing.
    pub fn handle(&self) -> PrintHandle {
        PrintHandle(self.lines.clone())
    }

    /// Waits until all lines are printed. All [`PrintHandle`]s must be dropped before.
    pub fn finish(self) {
        drop(self.lines);
        if self.thread.join().is_err() {
            eprintln!("the printer broke");
        }
    }
}

impl PrintHandle {
    /// Prints a line, or drops it if the queue is full.
    pub fn print(&self, line: String) {
        let _left_out = self.0.try_send(line);
    }
}

fn print(lines: &Receiver<String>) {
    let mut out = std::io::stdout().lock();
    for line in lines {
        if writeln!(out, "{line}").is_err() {
            return; // standard output is closed
        }
    }
}
