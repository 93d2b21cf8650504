mod programs;
mod step_ring;

use walla_device::{
    BufferId, CacheCommand, CacheDesc, CacheId, CacheImage, CachePart, CompletionFlag,
    CopyDirection, Device, DeviceCounters, DeviceError, DeviceInfo, DeviceKind, EventId,
    GraphFallbacks, GraphId, HostId, MatrixDesc, MatrixId, MemoryUse, OpKind, OpenOptions,
    Prepared, Program, RopeDesc, RopeId, StreamId, StreamPriority, VectorId, WeightSource,
};

use crate::cache;
use crate::cache_image;
use crate::completion_flag::MAX_BLOCKS;
use crate::driver::{Context, DeviceMemory, Gpu, Stream};
use crate::fetch::Fetch;
use crate::images::Images;
use crate::kernels::Kernels;
use crate::loading::{LoadSettings, Staging};
use crate::lower::{WARPGROUP_KERNELS, Workspace};
use crate::measure;
use crate::resources::{
    EventState, Host, Matrix, ProgramState, Resources, Rope, StreamState, Vector, unknown,
};

/// A GPU behind the device contract.
///
/// It has its own context, or works in the one that its [options](OpenOptions::gpu_context) name.
/// Dropping it waits at most 100 ms for work in flight.
#[derive(Debug)]
pub struct CudaDevice {
    info: DeviceInfo,
    pub(crate) used: MemoryUse,
    pub(crate) resources: Resources,
    pub(crate) kernels: Kernels,
    fetch: Fetch,
    staging: Staging,
    /// Stream for graph capture and for fills during setup; it carries no steps.
    pub(crate) capture: Stream,
    /// Why graphs are disabled, if they are.
    eager: Option<String>,
    /// Use WGMMA kernels for more than 8 rows of x, or 5 and more if K > 3,072 and there are more
    /// tiles than multiprocessors. True if the backend allows them and the image in use contains
    /// them.
    warpgroups: bool,
    fallbacks: GraphFallbacks,
    /// A benchmark is capturing launches: programs must be enqueued as single launches.
    pub(crate) is_capturing: bool,
    #[cfg(feature = "cupti")]
    pub(crate) kept: measure::Kept,
    /// Dropped last: it owns everything above.
    pub(crate) context: Context,
}

/// Facts about a GPU that need no open device. Free memory is not among them: reading it takes a
/// context (some 300 ms and 400 MB).
pub(crate) fn info(
    ordinal: usize,
    gpu: &Gpu,
    images: &Images,
    graphs_off: Option<&str>,
) -> DeviceInfo {
    let mut facts = gpu.facts.clone();
    let ranked = images.ranked(&gpu.facts);
    let best = ranked.first();
    let variant = best.map_or("none", |image| &image.target.name);
    facts.kernel_image = best.map_or_else(|| "none".to_owned(), ToString::to_string);
    facts.kernel_images_refused = images.refused.to_vec();
    facts.kernel_images_refused.extend(images.beyond(&gpu.facts));
    facts.graphs_off = graphs_off.map(str::to_owned);
    DeviceInfo {
        name: format!("cuda:{ordinal}"),
        kind: DeviceKind::Cuda,
        description: gpu.description.clone(),
        variant: variant.to_owned(),
        threads: 0,
        memory_total_bytes: Some(gpu.memory_total_bytes),
        memory_free_bytes: None,
        gpu: Some(facts),
        facts: Vec::new(),
    }
}

impl CudaDevice {
    pub(crate) fn open(
        ordinal: usize,
        gpu: &Gpu,
        images: &Images,
        (eager, warpgroups, load): (Option<String>, bool, LoadSettings),
        options: &OpenOptions,
    ) -> Result<Self, DeviceError> {
        let mut info = info(ordinal, gpu, images, eager.as_deref());
        let ranked = images.ranked(&gpu.facts);
        if ranked.is_empty() {
            let what = images.shortcoming(&gpu.facts);
            return Err(DeviceError::Unsupported { device: info.name, what });
        }
        if !gpu.maps_host_memory {
            let what = "kernels that read and write pinned memory of the host".to_owned();
            return Err(DeviceError::Unsupported { device: info.name, what });
        }
        let context = Context::open(gpu, options)?;
        info.memory_free_bytes = Some(context.memory_free_bytes()?);
        let (mut kernels, refused) = Kernels::open(&context, &ranked)?;
        let warpgroups = warpgroups && kernels.has_family(WARPGROUP_KERNELS);
        info.variant = kernels.target().to_owned();
        if let Some(facts) = &mut info.gpu {
            facts.kernel_image = ranked[refused.len()].to_string();
            facts.kernel_images_refused.extend(refused);
            let seen = &context.gpu().facts;
            facts.context.clone_from(&seen.context);
            facts.multiprocessors_used = seen.multiprocessors_used;
            facts.vmm_granularity_bytes = seen.vmm_granularity_bytes;
        }
        let fetch = Fetch::load(&context, &mut kernels)?;
        let staging = Staging::create(&context, load)?;
        let used = MemoryUse { host_bytes: staging.host_bytes(), ..MemoryUse::default() };
        Ok(Self {
            info,
            used,
            resources: Resources::default(),
            kernels,
            fetch,
            staging,
            capture: context.create_stream(StreamPriority::Low)?,
            eager,
            warpgroups,
            fallbacks: GraphFallbacks::default(),
            is_capturing: false,
            #[cfg(feature = "cupti")]
            kept: measure::Kept::default(),
            context,
        })
    }

    /// Fills device memory with zeros and waits for the fill.
    pub(crate) fn zeroed(&self, memory: DeviceMemory) -> Result<DeviceMemory, DeviceError> {
        self.context.fill(self.capture, &memory, 0)?;
        self.context.synchronize()?;
        Ok(memory)
    }

    /// Refuses if a copy of this host buffer may still be in flight.
    fn host_is_free(&mut self, id: HostId) -> Result<(), DeviceError> {
        // By index, because `reached` changes the streams meanwhile.
        for i in 0..self.resources.host(id)?.copies.len() {
            let (stream, ticket) = self.resources.host(id)?.copies[i];
            if self.resources.has_reached(stream, ticket) {
                continue;
            }
            let state = self.resources.stream(stream)?;
            // No polled event covers the copy: query the stream.
            let enqueued = state.enqueued;
            if !self.context.stream_is_idle(state.raw)? {
                return Err(DeviceError::HostInFlight { host: id.0 });
            }
            self.resources.reached(stream, enqueued);
        }
        Ok(())
    }
}

impl CudaDevice {
    /// Enqueues copies of a part of a cache.
    fn copy_part(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        part: &CachePart<'_>,
        (host, offset): (HostId, usize),
        direction: CopyDirection,
    ) -> Result<(), DeviceError> {
        let (raw, ticket) = self.resources.ticket(stream)?;
        let memory = (&self.resources.host(host)?.memory, offset);
        let cache = self.resources.cache(cache)?;
        let copied = cache_image::copy_part((&self.context, raw), cache, part, memory, direction);
        // Some copies may have been enqueued before an error.
        self.resources.copy_enqueued(host, stream, ticket);
        copied
    }
}

/// Adds an item and returns its index.
fn add<T>(list: &mut Vec<T>, item: T) -> u32 {
    list.push(item);
    (list.len() - 1) as u32
}

fn range(
    length: usize,
    offset: usize,
    bytes: usize,
) -> Result<std::ops::Range<usize>, DeviceError> {
    match offset.checked_add(bytes) {
        Some(end) if end <= length => Ok(offset..end),
        _ => Err(DeviceError::Invalid(format!(
            "{bytes} bytes at {offset} of a host buffer of {length}"
        ))),
    }
}

impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> MemoryUse {
        self.used
    }

    fn counters(&self) -> DeviceCounters {
        self.context.counters()
    }

    fn graph_fallbacks(&self) -> GraphFallbacks {
        self.fallbacks
    }

    fn runs(&self, kind: OpKind) -> bool {
        crate::lower::runs(kind)
    }

    fn read_bytes_per_second(&mut self) -> Result<Option<f64>, DeviceError> {
        measure::read_bytes_per_second(&self.context, &mut self.kernels, self.capture)
    }

    fn load_matrix(
        &mut self,
        desc: &MatrixDesc<'_>,
        source: &dyn WeightSource,
    ) -> Result<MatrixId, DeviceError> {
        let (weight, loaded) = self.staging.matrix(&self.context, desc, source)?;
        let bytes = loaded.memory.bytes() as u64;
        if loaded.is_on_host {
            self.used.host_bytes += bytes;
            self.used.host_table_bytes += bytes;
        } else {
            self.used.weight_bytes += bytes;
        }
        let matrix = Matrix {
            name: desc.name.to_owned(),
            ty: desc.ty,
            rows: desc.rows,
            cols: desc.cols,
            usage: desc.usage,
            weight,
            #[cfg(feature = "cupti")]
            memory: loaded.memory,
        };
        Ok(MatrixId(add(&mut self.resources.matrices, matrix)))
    }

    fn load_vector(&mut self, name: &str, values: &[f32]) -> Result<VectorId, DeviceError> {
        let memory = self.context.allocate(name, size_of_val(values))?;
        self.staging.copy(&self.context, bytemuck::cast_slice(values), &memory)?;
        self.used.weight_bytes += memory.bytes() as u64;
        Ok(VectorId(add(&mut self.resources.vectors, Vector { memory, len: values.len() as u32 })))
    }

    fn load_rope(&mut self, desc: &RopeDesc<'_>) -> Result<RopeId, DeviceError> {
        let frequencies = self.context.allocate("rope", size_of_val(desc.frequencies))?;
        let bytes = bytemuck::cast_slice(desc.frequencies);
        self.staging.copy(&self.context, bytes, &frequencies)?;
        self.used.weight_bytes += frequencies.bytes() as u64;
        let rope = Rope {
            frequencies,
            pairs_count: desc.frequencies.len() as u32,
            magnitude: desc.magnitude,
            pairs: desc.pairs,
        };
        Ok(RopeId(add(&mut self.resources.ropes, rope)))
    }

    fn create_cache(&mut self, desc: &CacheDesc) -> Result<CacheId, DeviceError> {
        cache::load_kernels(&mut self.kernels, &self.context)?;
        let zeroed = |memory| self.zeroed(memory);
        let (cache, bytes) = cache::create(desc, &self.resources, &self.context, &zeroed)?;
        let table = cache::layer_table(desc, &cache.layers, &self.resources)?;
        self.staging.copy(&self.context, bytemuck::cast_slice(&table), &cache.table)?;
        self.used.cache_bytes += bytes;
        Ok(CacheId(add(&mut self.resources.caches, cache)))
    }

    fn resize_cache(&mut self, cache: CacheId, pages: u32) -> Result<(), DeviceError> {
        self.synchronize()?;
        let resized = cache::resize(&self.context, self.resources.cache(cache)?, pages)?;
        self.used.cache_bytes += resized.mapped_bytes;
        self.used.cache_bytes -= resized.unmapped_bytes;
        // Attention multiplies unwritten cells by zero: they must be finite numbers.
        for memory in &resized.mapped {
            self.context.fill(self.capture, memory, 0)?;
        }
        self.context.synchronize()
    }

    fn create_buffer(&mut self, what: &str, bytes: usize) -> Result<BufferId, DeviceError> {
        let memory = self.zeroed(self.context.allocate(what, bytes)?)?;
        self.used.workspace_bytes += memory.bytes() as u64;
        Ok(BufferId(add(&mut self.resources.buffers, memory)))
    }

    fn create_host(&mut self, what: &str, bytes: usize) -> Result<HostId, DeviceError> {
        let memory = self.context.allocate_pinned(what, bytes)?;
        self.used.host_bytes += memory.bytes() as u64;
        let host = Host { memory, copies: Vec::with_capacity(8), written: None };
        Ok(HostId(add(&mut self.resources.hosts, host)))
    }

    fn create_mapped(
        &mut self,
        what: &str,
        bytes: usize,
    ) -> Result<Option<(BufferId, HostId)>, DeviceError> {
        let memory = self.context.allocate_pinned(what, bytes)?;
        self.used.host_bytes += memory.bytes() as u64;
        let buffer = add(&mut self.resources.buffers, memory.mapped());
        let written = Some(Vec::with_capacity(MAX_BLOCKS));
        let host = Host { memory, copies: Vec::new(), written };
        Ok(Some((BufferId(buffer), HostId(add(&mut self.resources.hosts, host)))))
    }

    fn create_stream(&mut self, priority: StreamPriority) -> Result<StreamId, DeviceError> {
        let raw = self.context.create_stream(priority)?;
        Ok(StreamId(add(&mut self.resources.streams, StreamState::new(raw))))
    }

    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        let raw = self.context.create_event()?;
        Ok(EventId(add(&mut self.resources.events, EventState { raw, recorded: None, word: None })))
    }

    fn prepare(&mut self, programs: Vec<Program>) -> Result<Vec<Prepared>, DeviceError> {
        // Copies of weights may still be in flight.
        self.context.synchronize()?;
        self.staging.release_buffers();
        // Lowered twice: the launches of this first pass have no addresses and are dropped. Step
        // rings come before it, because the first kernel takes their addresses.
        let mut workspace = Workspace::new(&programs);
        for program in &programs {
            self.prepare_step_ring(program)?;
            self.lower(program, &mut workspace)?;
        }
        let bytes = workspace.place(0);
        let memory = self.zeroed(self.context.allocate("workspace", bytes)?)?;
        self.used.workspace_bytes += memory.bytes() as u64;
        workspace.place(memory.address());
        let mut prepared = Vec::with_capacity(programs.len());
        for program in &programs {
            let step_ring = self.prepare_step_ring(program)?;
            let launches = self.lower(program, &mut workspace)?;
            let (graph, mode) = self.capture_program(&launches)?;
            let result_bytes = program.layout.result_bytes();
            let program = ProgramState { launches, result_bytes, graph, step_ring };
            let graph = GraphId(add(&mut self.resources.programs, program));
            prepared.push(Prepared { graph, mode });
        }
        debug_assert_eq!(workspace.place(0), bytes, "both passes use the same sizes");
        self.context.synchronize()?;
        Ok(prepared)
    }

    fn write_host(
        &mut self,
        host: HostId,
        offset: usize,
        bytes: usize,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        self.context.refuse_lost()?;
        self.host_is_free(host)?;
        let state = self.resources.hosts.get_mut(host.0 as usize).ok_or_else(|| unknown(&host))?;
        let range = range(state.memory.bytes(), offset, bytes)?;
        if state.written.is_some() {
            return Err(DeviceError::Invalid(format!("{host:?} is for programs to write")));
        }
        write(&mut state.memory.as_mut_slice()[range]);
        Ok(())
    }

    fn read_host(
        &mut self,
        host: HostId,
        offset: usize,
        bytes: usize,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        self.context.refuse_lost()?;
        self.host_is_free(host)?;
        let state = self.resources.host(host)?;
        let range = range(state.memory.bytes(), offset, bytes)?;
        if !self.resources.is_written(state, &range) {
            return Err(DeviceError::HostInFlight { host: host.0 });
        }
        read(state.memory.slice(range));
        Ok(())
    }

    fn upload(
        &mut self,
        stream: StreamId,
        from: HostId,
        to: BufferId,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let (raw, ticket) = self.resources.ticket(stream)?;
        if !self.defer_upload(from, to, bytes)? {
            let source = &self.resources.host(from)?.memory;
            let target = self.resources.buffer(to)?;
            self.fetch.upload(&self.context, raw, source, target, bytes)?;
        }
        // A deferred copy counts too. Its launch counts it again, with a later ticket.
        self.resources.copy_enqueued(from, stream, ticket);
        Ok(())
    }

    fn download(
        &mut self,
        stream: StreamId,
        (from, from_offset): (BufferId, usize),
        (to, to_offset): (HostId, usize),
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let (raw, ticket) = self.resources.ticket(stream)?;
        let source = (self.resources.buffer(from)?, from_offset);
        let target = (&self.resources.host(to)?.memory, to_offset);
        self.context.download(raw, source, target, bytes)?;
        self.resources.copy_enqueued(to, stream, ticket);
        Ok(())
    }

    fn launch(&mut self, stream: StreamId, graph: GraphId) -> Result<(), DeviceError> {
        self.launch_with_descriptor(stream, graph)
    }

    fn launch_with_flag(
        &mut self,
        stream: StreamId,
        graph: GraphId,
        watch: &CompletionFlag,
    ) -> Result<(), DeviceError> {
        self.launch_with_flag_of(stream, graph, watch)
    }

    fn run_cache_ops(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        commands: &[CacheCommand],
    ) -> Result<(), DeviceError> {
        self.context.refuse_lost()?;
        let (raw, _) = self.resources.ticket(stream)?;
        let state = self.resources.cache(cache)?;
        cache::run_cache_ops(&self.context, &mut self.kernels, raw, state, commands)
    }

    fn cache_image(&self, cache: CacheId) -> Option<CacheImage> {
        self.resources.cache(cache).ok().map(|cache| cache_image::layout(&cache.desc))
    }

    fn read_cache(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        part: &CachePart<'_>,
        to: (HostId, usize),
    ) -> Result<(), DeviceError> {
        self.copy_part(stream, cache, part, to, CopyDirection::FromCache)
    }

    fn write_cache(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        part: &CachePart<'_>,
        from: (HostId, usize),
    ) -> Result<(), DeviceError> {
        self.copy_part(stream, cache, part, from, CopyDirection::ToCache)
    }

    fn record(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let (raw, ticket) = self.resources.ticket(stream)?;
        let state =
            self.resources.events.get_mut(event.0 as usize).ok_or_else(|| unknown(&event))?;
        self.context.record(raw, state.raw)?;
        // From now on this record completes the event, not the completion flag of an earlier step.
        state.recorded = Some((stream, ticket));
        state.word = None;
        Ok(())
    }

    fn wait(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.context.refuse_lost()?;
        let (raw, ticket) = self.resources.ticket(stream)?;
        let state = self.resources.event(event)?;
        if state.word.is_some() {
            return Err(DeviceError::Invalid(format!("{event:?} is not recorded")));
        }
        self.context.wait(raw, state.raw)?;
        self.resources.wait_enqueued(stream, ticket, event);
        Ok(())
    }

    fn poll(&mut self, event: EventId) -> Result<bool, DeviceError> {
        let state = self.resources.event(event)?;
        if let Some(word) = state.word {
            return self.poll_word(event, word);
        }
        let complete = self.context.event_is_complete(state.raw)?;
        if let (true, Some((stream, ticket))) = (complete, state.recorded) {
            self.resources.reached(stream, ticket);
        }
        Ok(complete)
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.context.synchronize()?;
        // Host buffers are free from here on without a query.
        for stream in &mut self.resources.streams {
            stream.completed = stream.enqueued;
        }
        Ok(())
    }
}
