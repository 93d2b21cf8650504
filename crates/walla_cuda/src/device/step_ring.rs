//! Uploads of step blocks: deferred to a descriptor of a [step ring](crate::step_ring), or copied.

use walla_device::{BufferId, DeviceError, GraphId, HostId, Program, StreamId};

use super::CudaDevice;
use crate::resources::unknown;
use crate::step_ring::StepRing;

impl CudaDevice {
    /// Index of the ring of a program's step block; creates the ring if necessary.
    pub(crate) fn prepare_step_ring(&mut self, program: &Program) -> Result<usize, DeviceError> {
        let index = self.resources.step_ring.len();
        if let Some(known) = self.resources.step_ring_of(program.step) {
            return Ok(known);
        }
        let block = *self.resources.buffer(program.step)?;
        let zeroed = |memory| self.zeroed(memory);
        let step_ring = StepRing::create(&self.context, (program.step, block), &zeroed)?;
        let (device_bytes, host_bytes) = step_ring.bytes();
        self.used.workspace_bytes += device_bytes;
        self.used.host_bytes += host_bytes;
        self.resources.step_ring.push(step_ring);
        Ok(index)
    }

    /// Defers an upload to the next launch of a program that reads `to`. Returns false if the
    /// upload must be enqueued as a copy.
    pub(crate) fn defer_upload(
        &mut self,
        from: HostId,
        to: BufferId,
        bytes: usize,
    ) -> Result<bool, DeviceError> {
        let resources = &self.resources;
        let host_bytes = resources.host(from)?.memory.bytes();
        let Some(index) = resources.step_ring_of(to).filter(|_| !self.context.is_lost()) else {
            return Ok(false);
        };
        let step_ring = &resources.step_ring[index];
        let has_ended = |(stream, ticket)| resources.has_reached(stream, ticket);
        let is_deferred =
            step_ring.fits(bytes, host_bytes) && step_ring.before_next().all(has_ended);
        let next = is_deferred.then_some((from, StepRing::words(bytes)));
        self.resources.step_ring[index].next = next;
        Ok(is_deferred)
    }

    /// Publishes the deferred upload, if any, and enqueues the program.
    pub(crate) fn launch_with_descriptor(
        &mut self,
        stream: StreamId,
        graph: GraphId,
    ) -> Result<(), DeviceError> {
        let (raw, ticket) = self.resources.ticket(stream)?;
        let program = self.resources.programs.get(graph.0 as usize);
        let index = program.ok_or_else(|| unknown(&graph))?.step_ring;
        let step_ring = &mut self.resources.step_ring[index];
        // On the same stream, so that the count is right before the launch reads it.
        if step_ring.is_torn {
            step_ring.resync(&self.context, raw)?;
        }
        match step_ring.next.take() {
            None => step_ring.without = Some((stream, ticket)),
            Some((host, words)) => {
                let from = self.resources.hosts[host.0 as usize].memory.address();
                step_ring.publish(from, words, (stream, ticket));
                self.resources.copy_enqueued(host, stream, ticket);
            }
        }
        let launched = self.enqueue_program(raw, graph);
        if launched.is_err() {
            self.resources.step_ring[index].rollback((stream, ticket));
        }
        launched
    }
}
