//! A device that completes everything immediately: memory is bytes, and a launch samples one token
//! for each output.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::{Zeroable, bytes_of, pod_read_unaligned};
use walla_device::step::{ResultHeader, ResultRow};
use walla_device::{DeviceKind, LaunchMode};

use super::*;
use crate::aligned::AlignedBytes;

pub(super) struct Instant {
    info: DeviceInfo,
    hosts: Vec<AlignedBytes>,
    buffers: Vec<Vec<u8>>,
    programs: Vec<Program>,
    handles: u32,
    /// Calls received.
    arrived: Arc<AtomicU64>,
    /// Every call returns `Lost`.
    dead: bool,
}

impl Instant {
    pub(super) fn new(arrived: &Arc<AtomicU64>) -> Self {
        Self {
            info: info(),
            hosts: Vec::new(),
            buffers: Vec::new(),
            programs: Vec::new(),
            handles: 0,
            arrived: Arc::clone(arrived),
            dead: false,
        }
    }

    pub(super) fn dead(arrived: &Arc<AtomicU64>) -> Self {
        Self { dead: true, ..Self::new(arrived) }
    }

    fn arrive(&self) -> Result<(), DeviceError> {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        let lost = DeviceError::Lost { call: "any", reason: "dead".into() };
        if self.dead { Err(lost) } else { Ok(()) }
    }

    fn handle(&mut self) -> Result<u32, DeviceError> {
        self.arrive()?;
        self.handles += 1;
        Ok(self.handles)
    }
}

pub(super) fn info() -> DeviceInfo {
    DeviceInfo {
        name: "instant".into(),
        kind: DeviceKind::Cpu,
        description: String::new(),
        variant: String::new(),
        threads: 1,
        memory_total_bytes: None,
        memory_free_bytes: Some(0),
        gpu: None,
        facts: Vec::new(),
    }
}

impl Device for Instant {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse::default()
    }

    fn load_matrix(
        &mut self,
        _: &MatrixDesc<'_>,
        _: &dyn WeightSource,
    ) -> Result<MatrixId, DeviceError> {
        self.handle().map(MatrixId)
    }

    fn load_vector(&mut self, _: &str, _: &[f32]) -> Result<VectorId, DeviceError> {
        self.handle().map(VectorId)
    }

    fn load_rope(&mut self, _: &RopeDesc<'_>) -> Result<RopeId, DeviceError> {
        self.handle().map(RopeId)
    }

    fn create_cache(&mut self, _: &CacheDesc) -> Result<CacheId, DeviceError> {
        self.handle().map(CacheId)
    }

    fn create_buffer(&mut self, _: &str, bytes: usize) -> Result<BufferId, DeviceError> {
        self.arrive()?;
        self.buffers.push(vec![0; bytes]);
        Ok(BufferId(self.buffers.len() as u32 - 1))
    }

    fn create_host(&mut self, _: &str, bytes: usize) -> Result<HostId, DeviceError> {
        self.arrive()?;
        self.hosts.push(AlignedBytes::copied(&vec![0; bytes]));
        Ok(HostId(self.hosts.len() as u32 - 1))
    }

    fn create_stream(&mut self, _: StreamPriority) -> Result<StreamId, DeviceError> {
        self.handle().map(StreamId)
    }

    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        self.handle().map(EventId)
    }

    fn prepare(&mut self, programs: Vec<Program>) -> Result<Vec<Prepared>, DeviceError> {
        self.arrive()?;
        self.programs = programs;
        let prepared = |index| Prepared { graph: GraphId(index), mode: LaunchMode::Graph };
        Ok((0..self.programs.len() as u32).map(prepared).collect())
    }

    fn write_host(
        &mut self,
        host: HostId,
        offset: usize,
        bytes: usize,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        self.arrive()?;
        write(&mut self.hosts[host.0 as usize].bytes_mut()[offset..offset + bytes]);
        Ok(())
    }

    fn read_host(
        &mut self,
        host: HostId,
        offset: usize,
        bytes: usize,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        self.arrive()?;
        read(&self.hosts[host.0 as usize].bytes_mut()[offset..offset + bytes]);
        Ok(())
    }

    fn upload(
        &mut self,
        _: StreamId,
        from: HostId,
        to: BufferId,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.arrive()?;
        let from = &self.hosts[from.0 as usize].bytes_mut()[..bytes];
        self.buffers[to.0 as usize][..bytes].copy_from_slice(from);
        Ok(())
    }

    fn download(
        &mut self,
        _: StreamId,
        from: (BufferId, usize),
        to: (HostId, usize),
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.arrive()?;
        let from = &self.buffers[from.0.0 as usize][from.1..from.1 + bytes];
        self.hosts[to.0.0 as usize].bytes_mut()[to.1..to.1 + bytes].copy_from_slice(from);
        Ok(())
    }

    fn launch(&mut self, _: StreamId, graph: GraphId) -> Result<(), DeviceError> {
        self.arrive()?;
        let Program { step, results, layout, .. } = self.programs[graph.0 as usize];
        let step = &self.buffers[step.0 as usize][..size_of::<StepHeader>()];
        let header: StepHeader = pod_read_unaligned(step);
        let start = header.ring_slot as usize * layout.result_bytes();
        let block = &mut self.buffers[results.0 as usize][start..start + layout.result_bytes()];
        let echo =
            ResultHeader { step: header.step, outputs: header.outputs, ..Zeroable::zeroed() };
        block[..size_of::<ResultHeader>()].copy_from_slice(bytes_of(&echo));
        for output in 0..layout.max_outputs {
            let at = layout.result_rows_offset() + output as usize * size_of::<ResultRow>();
            let row =
                ResultRow { token: output + 1, flags: ResultRow::SAMPLED, ..Zeroable::zeroed() };
            block[at..at + size_of::<ResultRow>()].copy_from_slice(bytes_of(&row));
        }
        Ok(())
    }

    fn run_cache_ops(
        &mut self,
        _: StreamId,
        _: CacheId,
        _: &[CacheCommand],
    ) -> Result<(), DeviceError> {
        self.arrive()
    }

    fn record(&mut self, _: StreamId, _: EventId) -> Result<(), DeviceError> {
        self.arrive()
    }

    fn wait(&mut self, _: StreamId, _: EventId) -> Result<(), DeviceError> {
        self.arrive()
    }

    fn poll(&mut self, _: EventId) -> Result<bool, DeviceError> {
        self.arrive().map(|()| true)
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.arrive()
    }
}
