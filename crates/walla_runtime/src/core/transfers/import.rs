//! Copies of a file's contents into a sequence.

use walla_device::CachePart;
use walla_exec::TRANSFER_BUFFERS;
use walla_types::{MAX_PENALTY_WINDOW, TokenId};

use super::{Progress, Stop};
use crate::api::{AgentId, CacheError};
use crate::cache_file::{Binding, Contents};
use crate::core::Core;
use crate::engine_core::{Advance, ClientKey};

/// A copy to the device in progress: chunks of pages, then states, then recent tokens.
#[derive(Debug)]
pub(super) struct Import {
    contents: Contents,
    file_bytes: u64,
    /// Parts whose copies were enqueued.
    enqueued: usize,
}

/// The last tokens, by position modulo [`MAX_PENALTY_WINDOW`], as bytes.
fn write_recent(tokens: &[TokenId], bytes: &mut [u8]) {
    bytes.fill(0);
    let window = MAX_PENALTY_WINDOW as usize;
    let first = tokens.len().saturating_sub(window);
    for (position, token) in tokens.iter().enumerate().skip(first) {
        let at = 4 * (position % window);
        bytes[at..at + 4].copy_from_slice(&token.0.to_le_bytes());
    }
}

impl Core {
    /// The slot of an agent that can take over a cache.
    fn slot_to_load(&mut self, (client, id): (ClientKey, AgentId)) -> Result<usize, CacheError> {
        let agent = self.agents.of_client(client, id).ok_or(CacheError::UnknownAgent)?;
        if agent.reply.is_some() {
            return Err(CacheError::Asked);
        }
        self.agents.slot_of(id).ok_or(CacheError::NoSlot)
    }

    /// Reserves pages for a file. `None` if the agent's cache begins with all of its tokens.
    pub(super) fn begin_import(
        &mut self,
        owner: (ClientKey, AgentId),
        contents: Contents,
        file_bytes: u64,
    ) -> Result<Option<Import>, Stop> {
        let slot = self.slot_to_load(owner).map_err(Stop::Fail)?;
        let agent = self.agents.get(slot);
        if agent.is_some_and(|agent| agent.sequence.copyable().starts_with(&contents.tokens)) {
            return Ok(None);
        }
        let (seq, tokens) = (self.transfers.seq, contents.tokens.len() as u32);
        debug_assert!(self.kv.is_empty(seq.index()), "the copy before has ended");
        loop {
            match self.kv.reserve(seq.index(), tokens).map_err(Stop::from) {
                Ok(()) => return Ok(Some(Import { contents, file_bytes, enqueued: 0 })),
                Err(Stop::Fail(CacheError::NoPages)) if self.kv.free_snapshot() => {}
                Err(stop) => return Err(stop),
            }
        }
    }

    /// Enqueues parts. Behind the last one, the agent takes over the sequence.
    pub(super) fn continue_import(
        &mut self,
        import: &mut Import,
        owner: (ClientKey, AgentId),
        binding: &Binding,
        now_micros: u64,
    ) -> Result<Progress, Stop> {
        let Import { contents, file_bytes, enqueued } = import;
        let (chunks, states) = (contents.chunks(binding), binding.image.states.len());
        if *enqueued > chunks + states {
            self.take_over_sequence(owner, &contents.tokens)?;
            return Ok(Progress::Done((contents.tokens.len() as u32, *file_bytes, None)));
        }
        // In a pause the device is not asked either.
        if self.is_copying_paused(owner.0) {
            return Ok(Progress::Wait(None));
        }
        let (part, buffer) = (*enqueued, *enqueued % TRANSFER_BUFFERS);
        if part >= TRANSFER_BUFFERS && !self.kv.executor_mut().is_transferred(buffer)? {
            return Ok(Progress::Wait(Some(Advance::Poll)));
        }
        if let Err(wakeup) = self.may_copy(owner.0, now_micros) {
            return Ok(Progress::Wait(wakeup));
        }
        // Earlier copies of these pages precede this one.
        self.kv.sequences.flush_cache_ops()?;
        let seq = self.transfers.seq;
        if part < chunks {
            let bytes = contents.body.get(contents.chunk_bytes(binding, part)).unwrap_or_default();
            self.kv.write_pages(seq, contents.chunk(binding, part), buffer, bytes)?;
        } else if part < chunks + states {
            let index = part - chunks;
            let bytes = contents.body.get(contents.state_bytes(binding, index));
            let bytes = bytes.unwrap_or_default();
            let part = CachePart::State { sequence: seq.0, index: index as u32 };
            let mut fill = |to: &mut [u8]| to.copy_from_slice(bytes);
            self.kv.executor_mut().write_part(buffer, &part, bytes.len(), &mut fill)?;
        } else {
            let part = CachePart::Recent { sequence: seq.0 };
            let mut fill = |to: &mut [u8]| write_recent(&contents.tokens, to);
            let bytes = 4 * MAX_PENALTY_WINDOW as usize;
            self.kv.executor_mut().write_part(buffer, &part, bytes, &mut fill)?;
        }
        *enqueued += 1;
        Ok(Progress::Again)
    }

    /// Gives the loaded sequence to its agent.
    fn take_over_sequence(
        &mut self,
        owner: (ClientKey, AgentId),
        tokens: &[TokenId],
    ) -> Result<(), Stop> {
        let slot = self.slot_to_load(owner).map_err(Stop::Fail)?;
        self.kv.sequences.flush_cache_ops()?;
        let seq = self.transfers.seq;
        let count = tokens.len() as u32;
        self.kv.append_written(seq, count)?;
        // Only now, when the whole file is there: an incomplete load changes no agent.
        self.clear_sequence(slot);
        if !self.kv.has_commands() || !self.kv.copy_whole(seq, walla_types::SeqId(slot as u32)) {
            return Err(Stop::Fail(CacheError::Device("no free commands".to_owned())));
        }
        let ticks = self.budget.ticks;
        if let Some(agent) = self.agents.get_mut(slot) {
            agent.sequence.begin(tokens, ticks);
            agent.sequence.load(count, count);
            agent.background.restart();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_tokens_are_stored_by_position() {
        let window = MAX_PENALTY_WINDOW as usize;
        let mut bytes = vec![9; 4 * window];
        let tokens: Vec<_> = (0..window as u32 + 3).map(TokenId).collect();
        let at = |bytes: &[u8], place: usize| {
            u32::from_le_bytes(bytes[4 * place..4 * place + 4].try_into().unwrap())
        };
        write_recent(&tokens, &mut bytes);
        let expected = [window as u32, window as u32 + 1, window as u32 + 2, 3, 4];
        assert_eq!([0, 1, 2, 3, 4].map(|place| at(&bytes, place)), expected);
        write_recent(&tokens[..2], &mut bytes);
        assert_eq!([0, 1, 2].map(|place| at(&bytes, place)), [0, 1, 0]);
    }
}
