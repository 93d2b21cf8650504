//! Results that programs write to mapped host memory, and the completion flag of a step.
//!
//! A step then needs no copy, no event record and no driver query: the sampler's last block writes
//! the flag after everything else (`kernels/sample/sample.cu`), and the host loads it. A broken
//! device writes no flag, so the driver is queried from time to time.

use std::ops::Range;
use std::sync::atomic::Ordering;

use walla_device::step::ResultHeader;
use walla_device::{CompletionFlag, Device, DeviceError, EventId, GraphId, StreamId};

use crate::device::CudaDevice;
use crate::resources::{Host, Resources, Word, Written, unknown};

/// Polls of a completion flag before the driver is queried for errors. A query takes as long as
/// some hundred polls.
const MAX_MISSES: u32 = 32;

/// Result blocks of one mapped allocation: at most the slots of an executor's ring.
pub(crate) const MAX_BLOCKS: usize = 64;

impl Resources {
    /// Whether all programs that wrote this range of mapped memory have completed.
    pub(crate) fn is_written(&self, host: &Host, range: &Range<usize>) -> bool {
        host.written.iter().flatten().all(|written| {
            let apart = written.range.end <= range.start || range.end <= written.range.start;
            apart || self.has_reached(written.stream, written.ticket)
        })
    }
}

impl CudaDevice {
    /// Launches a program and registers its completion flag.
    pub(crate) fn launch_with_flag_of(
        &mut self,
        stream: StreamId,
        graph: GraphId,
        watch: &CompletionFlag,
    ) -> Result<(), DeviceError> {
        self.context.refuse_lost()?;
        let programs = &self.resources.programs;
        let bytes = programs.get(graph.0 as usize).ok_or_else(|| unknown(&graph))?.result_bytes;
        self.resources.event(watch.event)?;
        let start = watch.ring_slot as usize * bytes;
        let range = start..start + bytes;
        let host = self.resources.host(watch.results)?;
        let is_mapped = host.written.is_some() && range.end <= host.memory.bytes();
        if !is_mapped || !self.resources.is_written(host, &range) {
            return Err(DeviceError::Invalid(format!("{watch:?} is not to be written")));
        }
        // An abandoned step may have had the same number.
        let offset = start + ResultHeader::DONE_OFFSET;
        host.memory.word(offset).store(0, Ordering::Release);
        self.launch(stream, graph)?;
        let ticket = self.resources.stream(stream)?.enqueued;
        if let Some(event) = self.resources.events.get_mut(watch.event.0 as usize) {
            event.recorded = Some((stream, ticket));
            let value = watch.step.wrapping_add(1);
            event.word = Some(Word { host: watch.results, offset, value, misses: 0 });
        }
        let host = self.resources.hosts.get_mut(watch.results.0 as usize);
        if let Some(written) = host.and_then(|host| host.written.as_mut()) {
            written.retain(|other| other.range != range);
            written.push(Written { range, stream, ticket });
        }
        Ok(())
    }

    /// Whether the completion flag is set.
    pub(crate) fn poll_word(&mut self, event: EventId, word: Word) -> Result<bool, DeviceError> {
        let Some((stream, ticket)) = self.resources.event(event)?.recorded else { return Ok(true) };
        let stands = |device: &Self| -> Result<bool, DeviceError> {
            let memory = &device.resources.host(word.host)?.memory;
            Ok(memory.word(word.offset).load(Ordering::Acquire) == word.value)
        };
        let mut is_there = stands(self)?;
        let misses = word.misses + 1;
        if self.context.is_lost() || (!is_there && misses.is_multiple_of(MAX_MISSES)) {
            // The query reports a broken device.
            let raw = self.resources.stream(stream)?.raw;
            let is_idle = self.context.stream_is_idle(raw)?;
            // Read again: the program may have ended between the first look and the query.
            is_there = stands(self)?;
            if is_idle && !is_there {
                let reason =
                    "the stream is idle, but the completion flag of the step is not set".to_owned();
                return Err(DeviceError::Failed { call: "cuGraphLaunch", reason });
            }
        }
        if is_there {
            self.resources.reached(stream, ticket);
        } else if let Some(event) = self.resources.events.get_mut(event.0 as usize) {
            event.word = Some(Word { misses, ..word });
        }
        Ok(is_there)
    }
}
