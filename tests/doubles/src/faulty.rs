//! A device that injects faults, for tests.
//!
//! [`Faulty`] forwards every call to another device, unless its [`FaultPlan`] injects a fault.
//! Queries such as counters and memory bandwidth are always forwarded. The plan's seed determines
//! all random choices, and time is only measured by its [`VirtualClock`].

mod backend;
mod clock;
mod handle;
mod plan;
mod poison;
#[cfg(test)]
mod tests;
mod timeline;

use std::fmt;

pub use backend::FaultyBackend;
pub use clock::VirtualClock;
pub use handle::FaultHandle;
pub use plan::{Call, Fault, FaultPlan};

use walla_device::step::{StepHeader, StepLayout};
use walla_device::{
    BufferId, CacheCommand, CacheDesc, CacheId, CacheImage, CachePart, CompletionFlag, Device,
    DeviceCounters, DeviceError, DeviceInfo, EventId, GraphFallbacks, GraphId, HostId, MatrixDesc,
    MatrixId, MemoryUse, OpKind, Prepared, Program, RopeDesc, RopeId, StreamId, StreamPriority,
    VectorId, WeightSource,
};

use self::poison::Poisoner;
use self::timeline::Timeline;
use crate::aligned::AlignedBytes;

/// A device with planned faults. See the [module](self).
pub struct Faulty {
    inner: Box<dyn Device>,
    plan: FaultPlan,
    handle: FaultHandle,
    timeline: Timeline,
    poisoner: Poisoner,
    /// Step blocks of prepared programs, if page tables are misdirected.
    step_blocks: Vec<(BufferId, StepLayout)>,
    /// Allocated bytes, as requested by the caller.
    allocated_bytes: u64,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("inner", &self.inner.info().name)
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

impl Faulty {
    /// Wraps a device.
    #[must_use]
    pub fn new(inner: Box<dyn Device>, plan: FaultPlan) -> Self {
        Self::with_handle(inner, plan, FaultHandle::new())
    }

    pub(crate) fn with_handle(
        inner: Box<dyn Device>,
        plan: FaultPlan,
        handle: FaultHandle,
    ) -> Self {
        let (timeline, poisoner) = (Timeline::default(), Poisoner::default());
        let step_blocks = Vec::new();
        Self { inner, plan, handle, timeline, poisoner, step_blocks, allocated_bytes: 0 }
    }

    /// A handle that counts calls and can break the device, also after an engine has taken it.
    #[must_use]
    pub fn handle(&self) -> FaultHandle {
        self.handle.clone()
    }

    /// Counts a call and makes it, unless a fault is planned.
    fn call<T>(
        &mut self,
        call: Call,
        run: impl FnOnce(&mut Self) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let of_all = self.handle.calls_total();
        let of_kind = self.handle.count(call);
        let fault = self.plan.fault(call, of_kind, of_all);
        if fault == Some(Fault::Lost) {
            self.handle.lose();
        }
        let call = call.name();
        if self.handle.is_lost() {
            return Err(DeviceError::Lost { call, reason: "as planned".to_owned() });
        }
        if fault == Some(Fault::Failed) {
            return Err(DeviceError::Failed { call, reason: "as planned".to_owned() });
        }
        let result = run(self);
        if result.as_ref().is_err_and(DeviceError::is_lost) {
            self.handle.lose();
        }
        result
    }

    /// A call that allocates.
    fn allocate<T>(
        &mut self,
        call: Call,
        what: &str,
        bytes: u64,
        run: impl FnOnce(&mut dyn Device) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        self.call(call, |this| {
            if let Some(max_bytes) = this.plan.max_memory_bytes {
                let free_bytes = max_bytes.saturating_sub(this.allocated_bytes);
                if bytes > free_bytes {
                    let what = what.to_owned();
                    return Err(DeviceError::OutOfMemory { what, wanted_bytes: bytes, free_bytes });
                }
            }
            let made = run(&mut *this.inner)?;
            this.allocated_bytes += bytes;
            Ok(made)
        })
    }

    fn check_host(&self, host: HostId) -> Result<(), DeviceError> {
        let now_micros = self.plan.clock.now_micros();
        if self.timeline.is_in_flight(host, now_micros) {
            return Err(DeviceError::HostInFlight { host: host.0 });
        }
        Ok(())
    }

    /// Records the step of an upload. The poisoner ignores an unreadable host buffer.
    fn look_at_upload(&mut self, from: HostId, to: BufferId, bytes: usize) {
        if !self.plan.poisons.is_empty() && bytes >= size_of::<StepHeader>() {
            let Self { inner, poisoner, .. } = self;
            let mut look = |header: &[u8]| poisoner.upload(to, header);
            let _unreadable = inner.read_host(from, 0, size_of::<StepHeader>(), &mut look);
        }
    }
}

/// A page outside of any device's memory.
const PAGE_OUTSIDE: u32 = 0x3fff_fff0;

impl Faulty {
    /// Overwrites the page tables of a step before its upload, if planned.
    fn misdirect(&mut self, from: HostId, to: BufferId, bytes: usize) -> Result<(), DeviceError> {
        let Some(first) = self.plan.misdirected_from else { return Ok(()) };
        let block = self.step_blocks.iter().find(|(block, _)| *block == to);
        let Some(tables) = block.map(|(_, layout)| layout.tables_offset()) else { return Ok(()) };
        let mut step = 0;
        self.inner.read_host(from, 0, size_of::<StepHeader>(), &mut |header| {
            step = bytemuck::pod_read_unaligned::<StepHeader>(header).step;
        })?;
        if step < first || bytes <= tables {
            return Ok(());
        }
        self.inner.write_host(from, tables, bytes - tables, &mut |tables| {
            for page in tables.chunks_exact_mut(size_of::<u32>()) {
                page.copy_from_slice(&PAGE_OUTSIDE.to_le_bytes());
            }
        })
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.handle.drop_device();
    }
}

impl Device for Faulty {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn memory(&self) -> MemoryUse {
        self.inner.memory()
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }

    fn graph_fallbacks(&self) -> GraphFallbacks {
        self.inner.graph_fallbacks()
    }

    fn runs(&self, kind: OpKind) -> bool {
        self.inner.runs(kind)
    }

    fn read_bytes_per_second(&mut self) -> Result<Option<f64>, DeviceError> {
        self.inner.read_bytes_per_second()
    }

    fn load_matrix(
        &mut self,
        desc: &MatrixDesc<'_>,
        source: &dyn WeightSource,
    ) -> Result<MatrixId, DeviceError> {
        self.allocate(Call::LoadMatrix, desc.name, source.bytes() as u64, |inner| {
            inner.load_matrix(desc, source)
        })
    }

    fn load_vector(&mut self, name: &str, values: &[f32]) -> Result<VectorId, DeviceError> {
        let bytes = size_of_val(values) as u64;
        self.allocate(Call::LoadVector, name, bytes, |inner| inner.load_vector(name, values))
    }

    fn load_rope(&mut self, desc: &RopeDesc<'_>) -> Result<RopeId, DeviceError> {
        let bytes = size_of_val(desc.frequencies) as u64;
        self.allocate(Call::LoadRope, "rotation table", bytes, |inner| inner.load_rope(desc))
    }

    fn create_cache(&mut self, desc: &CacheDesc) -> Result<CacheId, DeviceError> {
        let bytes = desc.page_bytes().saturating_mul(desc.pages.into());
        self.allocate(Call::CreateCache, "cache", bytes, |inner| inner.create_cache(desc))
    }

    fn resize_cache(&mut self, cache: CacheId, pages: u32) -> Result<(), DeviceError> {
        self.call(Call::ResizeCache, |this| this.inner.resize_cache(cache, pages))
    }

    fn create_buffer(&mut self, what: &str, bytes: usize) -> Result<BufferId, DeviceError> {
        self.allocate(Call::CreateBuffer, what, bytes as u64, |inner| {
            inner.create_buffer(what, bytes)
        })
    }

    fn create_host(&mut self, what: &str, bytes: usize) -> Result<HostId, DeviceError> {
        self.allocate(Call::CreateHost, what, bytes as u64, |inner| inner.create_host(what, bytes))
    }

    /// `None` if completions are delayed or results changed: results are then copied, which this
    /// device observes.
    fn create_mapped(
        &mut self,
        what: &str,
        bytes: usize,
    ) -> Result<Option<(BufferId, HostId)>, DeviceError> {
        if self.plan.delays() || !self.plan.poisons.is_empty() {
            return Ok(None);
        }
        self.allocate(Call::CreateHost, what, bytes as u64, |inner| {
            inner.create_mapped(what, bytes)
        })
    }

    fn create_stream(&mut self, priority: StreamPriority) -> Result<StreamId, DeviceError> {
        self.call(Call::CreateStream, |this| this.inner.create_stream(priority))
    }

    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        self.call(Call::CreateEvent, |this| this.inner.create_event())
    }

    fn prepare(&mut self, programs: Vec<Program>) -> Result<Vec<Prepared>, DeviceError> {
        self.call(Call::Prepare, |this| {
            let of_poisoner =
                if this.plan.poisons.is_empty() { Vec::new() } else { programs.clone() };
            if this.plan.misdirected_from.is_some() {
                let blocks = programs.iter().map(|program| (program.step, program.layout));
                this.step_blocks.extend(blocks);
            }
            let prepared = this.inner.prepare(programs)?;
            for (prepared, program) in prepared.iter().zip(&of_poisoner) {
                this.poisoner.prepare(prepared.graph, program);
            }
            Ok(prepared)
        })
    }

    fn write_host(
        &mut self,
        host: HostId,
        offset: usize,
        bytes: usize,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        self.call(Call::WriteHost, |this| {
            this.check_host(host)?;
            this.inner.write_host(host, offset, bytes, write)
        })
    }

    fn read_host(
        &mut self,
        host: HostId,
        offset: usize,
        bytes: usize,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        self.call(Call::ReadHost, |this| {
            this.check_host(host)?;
            if this.plan.poisons.is_empty() {
                return this.inner.read_host(host, offset, bytes, read);
            }
            let Self { inner, poisoner, .. } = this;
            inner.read_host(host, offset, bytes, &mut |true_bytes| {
                let mut block = AlignedBytes::copied(true_bytes);
                poisoner.change(host, offset, block.bytes_mut());
                read(block.bytes_mut());
            })
        })
    }

    fn upload(
        &mut self,
        stream: StreamId,
        from: HostId,
        to: BufferId,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.call(Call::Upload, |this| {
            this.look_at_upload(from, to, bytes);
            this.misdirect(from, to, bytes)?;
            this.inner.upload(stream, from, to, bytes)?;
            if this.plan.delays() {
                this.timeline.copy(stream, from);
            }
            Ok(())
        })
    }

    fn download(
        &mut self,
        stream: StreamId,
        from: (BufferId, usize),
        to: (HostId, usize),
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.call(Call::Download, |this| {
            this.inner.download(stream, from, to, bytes)?;
            if this.plan.delays() {
                this.timeline.copy(stream, to.0);
            }
            if !this.plan.poisons.is_empty() {
                this.poisoner.download(from, to);
            }
            Ok(())
        })
    }

    fn launch(&mut self, stream: StreamId, graph: GraphId) -> Result<(), DeviceError> {
        self.call(Call::Launch, |this| {
            this.inner.launch(stream, graph)?;
            this.poisoner.launch(graph, &this.plan);
            Ok(())
        })
    }

    fn launch_with_flag(
        &mut self,
        stream: StreamId,
        graph: GraphId,
        watch: &CompletionFlag,
    ) -> Result<(), DeviceError> {
        self.call(Call::Launch, |this| this.inner.launch_with_flag(stream, graph, watch))
    }

    fn run_cache_ops(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        commands: &[CacheCommand],
    ) -> Result<(), DeviceError> {
        self.call(Call::Maintain, |this| this.inner.run_cache_ops(stream, cache, commands))
    }

    fn cache_image(&self, cache: CacheId) -> Option<CacheImage> {
        self.inner.cache_image(cache)
    }

    fn read_cache(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        part: &CachePart<'_>,
        to: (HostId, usize),
    ) -> Result<(), DeviceError> {
        self.call(Call::ReadCache, |this| {
            this.inner.read_cache(stream, cache, part, to)?;
            if this.plan.delays() {
                this.timeline.copy(stream, to.0);
            }
            Ok(())
        })
    }

    fn write_cache(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        part: &CachePart<'_>,
        from: (HostId, usize),
    ) -> Result<(), DeviceError> {
        self.call(Call::WriteCache, |this| {
            this.inner.write_cache(stream, cache, part, from)?;
            if this.plan.delays() {
                this.timeline.copy(stream, from.0);
            }
            Ok(())
        })
    }

    fn record(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.call(Call::Record, |this| {
            this.inner.record(stream, event)?;
            if this.plan.delays() {
                this.timeline.record(stream, event, &this.plan);
            }
            Ok(())
        })
    }

    fn wait(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.call(Call::Wait, |this| {
            this.inner.wait(stream, event)?;
            if this.plan.delays() {
                this.timeline.wait(stream, event);
            }
            Ok(())
        })
    }

    fn poll(&mut self, event: EventId) -> Result<bool, DeviceError> {
        self.call(Call::Poll, |this| {
            let due = this.timeline.is_complete(event, this.plan.clock.now_micros());
            Ok(this.inner.poll(event)? && due)
        })
    }

    /// Advances the clock to the completion of all work. [`DeviceError::Failed`] where a real
    /// device would hang forever.
    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.call(Call::Synchronize, |this| {
            let Some(done_micros) = this.timeline.synchronize() else {
                let reason = "planned: something never completes".to_owned();
                return Err(DeviceError::Failed { call: Call::Synchronize.name(), reason });
            };
            this.inner.synchronize()?;
            this.plan.clock.advance_to(done_micros);
            Ok(())
        })
    }
}
