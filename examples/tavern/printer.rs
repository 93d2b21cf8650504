//! Printing beside the frame: a terminal can be slow, and a frame should not wait even for that.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use bevy_ecs::prelude::*;

/// Lines that wait for the terminal; more are left out.
const LINES_MAX: usize = 1_024;

/// A thread that prints lines.
pub struct Printer {
    lines: SyncSender<String>,
    thread: JoinHandle<()>,
}

/// The way to the printer.
#[derive(Resource)]
pub struct Line(SyncSender<String>);

impl Printer {
    /// Starts it.
    pub fn start() -> Self {
        let (lines, received) = sync_channel(LINES_MAX);
        Self { lines, thread: std::thread::spawn(move || print(&received)) }
    }

    /// A way to it.
    pub fn line(&self) -> Line {
        Line(self.lines.clone())
    }

    /// Waits until all is printed. All [`Line`]s must be gone.
    pub fn finish(self) {
        drop(self.lines);
        if self.thread.join().is_err() {
            eprintln!("the printer broke");
        }
    }
}

impl Line {
    /// Prints a line, or nothing if the terminal is far behind.
    pub fn print(&self, line: String) {
        let _left_out = self.0.try_send(line);
    }
}

fn print(lines: &Receiver<String>) {
    let mut out = std::io::stdout().lock();
    for line in lines {
        if writeln!(out, "{line}").is_err() {
            return; // nobody reads any more
        }
    }
}
