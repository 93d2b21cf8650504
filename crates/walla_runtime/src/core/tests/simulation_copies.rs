//! Saves and loads of caches in the simulations.

use std::fmt::Write as _;

use super::simulation::Simulation;
use super::simulation_kit::Draws;
use super::*;
use crate::api::{CacheError, CacheJob, CacheTicket};

/// Maximum frames between the last action and the end of all copies.
const MAX_FRAMES_TO_END: u32 = 2_000;

/// Random saves and loads. Their draws are separate, so that all other draws of a seed stay as they
/// were in earlier versions.
pub(super) struct Copies {
    draws: Draws,
    /// Files that were saved.
    files: Vec<Vec<u8>>,
    jobs: Vec<CacheJob>,
    /// Number of copies that were complete: saves, loads.
    complete: [u32; 2],
}

impl Copies {
    pub fn new(draws: Draws) -> Self {
        Self { draws, files: Vec::new(), jobs: Vec::new(), complete: [0; 2] }
    }
}

impl Simulation {
    /// Sometimes saves the cache of an agent, or loads a file, intact or not, into any agent.
    pub(super) fn copy_cache(&mut self) {
        self.collect_copies();
        let draws = &mut self.copies.draws;
        if !draws.one_in(6) || self.agents.is_empty() {
            return;
        }
        let agent = self.agents[draws.draw(self.agents.len() as u32) as usize];
        let is_load = draws.one_in(2) && !self.copies.files.is_empty();
        let (ticket, job) = if is_load {
            let file = draws.draw(self.copies.files.len() as u32) as usize;
            let mut bytes = self.copies.files[file].clone();
            if draws.one_in(6) {
                let at = draws.draw(bytes.len() as u32) as usize;
                match draws.draw(2) {
                    0 => bytes.truncate(at),
                    _ => bytes[at] ^= 1 << draws.draw(8),
                }
            }
            CacheTicket::load_bytes(bytes)
        } else {
            CacheTicket::save_bytes()
        };
        let chunk_pages = draws.pick(&[1, 2, 100]);
        self.core.transfers.set_chunk_pages(chunk_pages.max(100));
        if !is_load {
            self.core.transfers.set_chunk_pages(chunk_pages);
        }
        self.copies.jobs.push(job);
        self.command(Command::CopyCache { agent, ticket });
    }

    /// Saves the cache of agent number `at`.
    pub(super) fn save(&mut self, at: usize) {
        let (ticket, job) = CacheTicket::save_bytes();
        self.copies.jobs.push(job);
        self.command(Command::CopyCache { agent: self.agents[at], ticket });
    }

    /// Loads the first file that was saved into a new agent.
    pub(super) fn load_saved(&mut self) {
        self.collect_copies();
        let Some(file) = self.copies.files.first().cloned() else { return };
        let agent = self.add(speaker(9, 6));
        let (ticket, job) = CacheTicket::load_bytes(file);
        self.copies.jobs.push(job);
        self.command(Command::CopyCache { agent, ticket });
        self.ask(agent, Prompt::Chat("Hello".into()));
    }

    fn collect_copies(&mut self) {
        let Self { copies, log, .. } = self;
        copies.jobs.retain(|job| {
            let Some(result) = job.result() else { return true };
            // Without the time, which is real.
            let line = result.as_ref().map(|copied| (copied.tokens, copied.file_bytes));
            writeln!(log, "copied {line:?}").expect("a string takes everything");
            if result.is_ok() {
                let file = job.take_bytes();
                copies.complete[usize::from(file.is_none())] += 1;
                copies.files.extend(file);
            }
            assert_ne!(result, Err(CacheError::EngineGone));
            false
        });
    }

    /// Runs frames until all saves and loads have ended.
    pub(super) fn finish_copies(&mut self) {
        for _ in 0..MAX_FRAMES_TO_END {
            self.collect_copies();
            if self.copies.jobs.is_empty() {
                let [saves, loads] = self.copies.complete;
                writeln!(self.log, "saved {saves}, loaded {loads}").expect("a string takes all");
                return;
            }
            self.frame();
        }
        panic!("{} copies do not end", self.copies.jobs.len());
    }
}
