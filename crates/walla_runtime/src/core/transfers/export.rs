//! Copies of a sequence to host memory.

use walla_device::CachePart;
use walla_exec::TRANSFER_BUFFERS;
use walla_types::{SeqId, TokenId};

use super::{Progress, Stop};
use crate::api::{AgentId, CacheError};
use crate::cache_file::{Binding, Contents, KvFileError};
use crate::core::Core;
use crate::engine_core::{Advance, ClientKey};

/// A copy to host memory in progress: chunks of pages, then states.
#[derive(Debug)]
pub(super) struct Export {
    pub contents: Contents,
    /// Parts whose copies were enqueued, and parts that were read from their buffers.
    enqueued: usize,
    read: usize,
}

impl Export {
    fn parts(&self, binding: &Binding) -> usize {
        self.contents.chunks(binding) + binding.image.states.len()
    }

    pub fn is_done(&self, binding: &Binding) -> bool {
        self.read >= self.parts(binding)
    }

    /// Bytes of a part.
    fn part_bytes(&self, binding: &Binding, part: usize) -> usize {
        match part.checked_sub(self.contents.chunks(binding)) {
            None => self.contents.chunk_bytes(binding, part).len(),
            Some(state) => self.contents.state_bytes(binding, state).len(),
        }
    }
}

impl Core {
    /// Whether a save waits: the agent is idle, and its next prompt is evaluated in the background.
    pub(super) fn awaits_background(&self, (client, id): (ClientKey, AgentId)) -> bool {
        let slot = self.agents.slot_of(id);
        let agent = slot.and_then(|slot| self.agents.get(slot));
        let silent = agent.filter(|agent| agent.client == client && !agent.has_work());
        let (Some(slot), Some(agent)) = (slot, silent) else { return false };
        // The last step of the background prefill, or one that was launched ahead of the end of the
        // reply, is still running.
        let is_in_flight = self.kv.executor().in_flight() > 0
            && (agent.sequence.copyable().len() as u32) < self.kv.len(slot);
        let is_pending =
            agent.is_chat && agent.background.is_pending() && self.prepares_in_background();
        is_pending || is_in_flight
    }

    /// Whether the active save has waited for a background prefill that has ended since.
    pub(in crate::core) fn can_export(&self) -> bool {
        let Some((job, super::Stage::Saving)) = &self.transfers.active else { return false };
        self.transfers.awaits_background && !self.awaits_background((job.client, job.agent))
    }

    /// Copies the agent's evaluated tokens into the sequence of the transfers.
    ///
    /// A recurrent state covers all submitted tokens. If the next prompt is not prepared, it may
    /// write the reply differently, and the whole state would be of no use. Then the longest
    /// snapshot with which the sequence begins is copied: usually the end of the last prompt.
    pub(super) fn begin_export(
        &mut self,
        (client, id): (ClientKey, AgentId),
        binding: &Binding,
    ) -> Result<Export, Stop> {
        let fail = |error| Err(Stop::Fail(error));
        if self.agents.of_client(client, id).is_none() {
            return fail(CacheError::UnknownAgent);
        }
        let Some(slot) = self.agents.slot_of(id) else { return fail(CacheError::NotCached) };
        let Some(agent) = self.agents.get(slot) else { return fail(CacheError::UnknownAgent) };
        let to = self.transfers.seq;
        debug_assert!(self.kv.is_empty(to.index()), "the copy before has ended");
        let evaluated = agent.sequence.copyable().len() as u32;
        let is_whole = evaluated > 0 && evaluated == self.kv.len(slot);
        let is_prepared = self.prepares_in_background()
            && !agent.has_work()
            && agent.is_chat
            && !agent.background.is_pending();
        let mut tokens: Vec<TokenId> = agent.sequence.tokens().to_vec();
        let copied = if !self.kv.is_recurrent() {
            let is_shared = evaluated > 0 && self.kv.share(slot, to.index(), ..evaluated);
            is_shared.then_some(evaluated)
        } else {
            let whole = |core: &mut Self| core.kv.copy_whole(SeqId(slot as u32), to);
            let is_copied = is_whole && is_prepared && whole(self);
            let snapshot = |core: &mut Self| {
                core.kv.copy_snapshot(|of_snapshot| tokens.starts_with(of_snapshot), to)
            };
            match if is_copied { evaluated } else { snapshot(self) } {
                0 => (is_whole && whole(self)).then_some(evaluated),
                count => Some(count),
            }
        };
        let Some(count) = copied else { return fail(CacheError::NotCached) };
        tokens.truncate(count as usize);
        let contents = Contents::new(&tokens, binding);
        let contents = contents
            .map_err(|bytes| Stop::Fail(CacheError::File(KvFileError::NoMemory { bytes })))?;
        Ok(Export { contents, enqueued: 0, read: 0 })
    }

    /// Enqueues and reads parts.
    pub(super) fn continue_export(
        &mut self,
        export: &mut Export,
        (client, _): (ClientKey, AgentId),
        binding: &Binding,
        now_micros: u64,
    ) -> Result<Progress, Stop> {
        if export.read < export.enqueued {
            let buffer = export.read % TRANSFER_BUFFERS;
            if self.kv.executor_mut().is_transferred(buffer)? {
                let bytes = export.part_bytes(binding, export.read);
                let body = &mut export.contents.body;
                let mut read = |part: &[u8]| body.extend_from_slice(part);
                self.kv.executor_mut().transferred(buffer, bytes, &mut read)?;
                export.read += 1;
                return Ok(Progress::Again);
            }
        }
        let part = export.enqueued;
        let wait = Advance::Poll;
        if part >= export.parts(binding) || part - export.read >= TRANSFER_BUFFERS {
            return Ok(Progress::Wait(Some(wait)));
        }
        if let Err(wakeup) = self.may_copy(client, now_micros) {
            return Ok(Progress::Wait(if export.read < part { Some(wait) } else { wakeup }));
        }
        // The copy of the sequence comes first.
        self.kv.sequences.flush_cache_ops()?;
        let buffer = part % TRANSFER_BUFFERS;
        match part.checked_sub(export.contents.chunks(binding)) {
            None => {
                let chunk = export.contents.chunk(binding, part);
                self.kv.read_pages(self.transfers.seq, chunk, buffer)?;
            }
            Some(index) => {
                let (sequence, index) = (self.transfers.seq.0, index as u32);
                let part = CachePart::State { sequence, index };
                self.kv.executor_mut().read_part(buffer, &part)?;
            }
        }
        export.enqueued += 1;
        Ok(Progress::Again)
    }
}
