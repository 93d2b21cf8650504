use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use walla_device::{
    BufferId, CacheCommand, CacheDesc, CacheId, CacheImage, CachePart, CompletionFlag,
    CopyDirection, Device, DeviceCounters, DeviceError, DeviceInfo, EventId, GpuContext, GraphId,
    HostId, LaunchMode, MatrixDesc, MatrixId, MemoryUse, OpenOptions, Prepared, Program, RopeDesc,
    RopeId, StreamId, StreamPriority, VectorId, WeightSource,
};

use walla_types::MAX_PENALTY_WINDOW;

use crate::backend;
use crate::cache;
use crate::driver::{self, Commands, Context, Dispatch, Gpu, Library, Memory, Place};
use crate::loading::Staging;
use crate::lower::{Lowered, Lowering, Workspace};
use crate::resources::{Event, Host, Resources, Rope, Vector, unknown};
use crate::ring::{self, CacheOp, PageImage, Ring, Transfer, Work};
use crate::shaders::Shaders;

/// Result blocks of one mapped allocation: at most the slots of an executor's ring.
const MAX_BLOCKS: usize = 64;
/// Commands that wait for the next submission.
const MAX_PENDING: usize = 512;

/// A measurement of the memory: bytes of a copy, many times any cache, and of its pieces, which run
/// at once; copies of a submission, and submissions, in which clocks rise.
const COPY_BYTES: usize = 512 << 20;
const PIECE_BYTES: usize = 2 << 20;
const COPIES: usize = 4;
const SUBMISSIONS: usize = 3;

/// Time of one shader in a program.
#[derive(Clone, Debug, PartialEq)]
pub struct ShaderTime {
    /// Index of the op of the program; the last shader belongs to none.
    pub op: usize,
    /// File and variant.
    pub shader: String,
    /// Nanoseconds from the end of the shader before it to its own.
    pub nanos: f64,
}

/// A GPU behind the device contract.
///
/// All its streams are one queue, so work runs in the order of the calls. Dropping it waits at most
/// a second for work in flight.
#[derive(Debug)]
pub struct VulkanDevice {
    info: DeviceInfo,
    used: MemoryUse,
    resources: Resources,
    shaders: Shaders,
    staging: Staging,
    transfers: Ring<Transfer>,
    cache_ops: Ring<CacheOp>,
    page_images: Ring<PageImage>,
    /// Command buffers, and bytes of a result block.
    programs: Vec<(Commands, usize)>,
    streams: u32,
    /// Enqueued, and part of the next submission.
    pending: Vec<Commands>,
    /// Dropped last: it owns everything above.
    context: Context,
}

impl VulkanDevice {
    pub(crate) fn open(
        (library, gpu, ordinal): (&'static Library, &Gpu, usize),
        cache: Option<&Path>,
        options: &OpenOptions,
    ) -> Result<Self, DeviceError> {
        let mut context = Context::open(library, gpu, options.max_memory_bytes, cache)?;
        let mut shaders = Shaders::default();
        let transfers = Ring::new(&mut context, &mut shaders)?;
        let cache_ops = Ring::new(&mut context, &mut shaders)?;
        let page_images = Ring::new(&mut context, &mut shaders)?;
        let mut info = backend::info(ordinal, gpu, context.free_bytes());
        if options.gpu_context != GpuContext::Separate {
            let context = "a separate one: Vulkan shares no part of a GPU".to_owned();
            info.facts.push(("context", context));
        }
        Ok(Self {
            info,
            used: MemoryUse::default(),
            resources: Resources::default(),
            shaders,
            staging: Staging::default(),
            transfers,
            cache_ops,
            page_images,
            programs: Vec::new(),
            streams: 0,
            pending: Vec::with_capacity(MAX_PENDING),
            context,
        })
    }

    fn stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        if stream.0 < self.streams { Ok(()) } else { Err(unknown(&stream)) }
    }

    /// Ticket of the next submission.
    fn next_ticket(&self) -> u64 {
        self.context.submitted() + 1
    }

    /// Submits all enqueued commands at once.
    fn flush(&mut self) -> Result<(), DeviceError> {
        if self.pending.is_empty() {
            return self.context.refuse_lost();
        }
        let submitted = self.context.submit(&self.pending);
        self.pending.clear();
        submitted.map(|_| ())
    }

    /// Submits the enqueued commands if nothing more fits.
    fn make_room(&mut self) -> Result<(), DeviceError> {
        if self.pending.len() == MAX_PENDING { self.flush() } else { Ok(()) }
    }

    /// Submits the enqueued commands if a ring is full: they must run before a slot is free.
    fn flush_if_full(&mut self, room: Result<(), DeviceError>) -> Result<(), DeviceError> {
        if let Err(DeviceError::HostInFlight { .. }) = room {
            self.flush()?;
        }
        room
    }

    fn transfer(&mut self, transfer: &Transfer) -> Result<(), DeviceError> {
        let room = self.transfers.reserve(&mut self.context, 1);
        self.flush_if_full(room)?;
        // Before a ticket is known: a full list is submitted.
        self.make_room()?;
        let ticket = self.next_ticket();
        let commands = self.transfers.add(&mut self.context, transfer, ticket);
        self.pending.push(commands);
        Ok(())
    }

    /// Whether no work in flight uses a host buffer.
    fn is_free(&mut self, host: HostId) -> Result<bool, DeviceError> {
        let ticket = self.resources.host(host)?.ticket;
        if ticket > self.context.submitted() {
            self.flush()?;
        }
        self.context.has_reached(ticket)
    }

    /// Whether all programs that write this range of mapped memory have ended.
    fn is_written(&mut self, host: HostId, range: &Range<usize>) -> Result<bool, DeviceError> {
        let written = self.resources.host(host)?.written.iter();
        let overlaps = |other: &Range<usize>| other.start < range.end && range.start < other.end;
        let tickets = written.filter(|(other, _)| overlaps(other)).map(|(_, ticket)| *ticket);
        let latest = tickets.max().unwrap_or(0);
        self.context.has_reached(latest)
    }

    /// Memory of the device, filled with zeros.
    fn zeroed(&mut self, what: &str, bytes: usize) -> Result<Memory, DeviceError> {
        let memory = self.context.allocate(what, bytes, Place::Device)?;
        self.context.fill_now(&memory, 0)?;
        Ok(memory)
    }

    fn loaded(&mut self, what: &str, bytes: &[u8]) -> Result<Memory, DeviceError> {
        let memory = self.context.allocate(what, bytes.len(), Place::Device)?;
        self.staging.copy(&mut self.context, bytes, (&memory, 0))?;
        Ok(memory)
    }
}

/// Adds an item and returns its index.
fn add<T>(list: &mut Vec<T>, item: T) -> u32 {
    list.push(item);
    (list.len() - 1) as u32
}

/// Checks that a range is inside of memory.
fn within(memory: &Memory, offset: usize, bytes: usize) -> Result<(), DeviceError> {
    match offset.checked_add(bytes) {
        Some(end) if end <= memory.bytes() => Ok(()),
        _ => Err(DeviceError::Invalid(format!("{bytes} bytes at {offset} of {}", memory.bytes()))),
    }
}

impl Device for VulkanDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> MemoryUse {
        self.used
    }

    fn counters(&self) -> DeviceCounters {
        self.context.counters()
    }

    /// Bytes that a copy in the device's memory reads and writes, by a shader: a little less than
    /// one could read.
    fn read_bytes_per_second(&mut self) -> Result<Option<f64>, DeviceError> {
        let free = self.context.free_bytes().map_or(COPY_BYTES, |free| (free / 4) as usize);
        let pieces = (COPY_BYTES.min(free) / PIECE_BYTES).max(1);
        let what = "a measurement";
        let from = self.context.allocate(what, pieces * PIECE_BYTES, Place::Device)?;
        let to = self.context.allocate(what, pieces * PIECE_BYTES, Place::Device)?;
        // Not zeros: some GPUs read them faster, and pages that were never written are one page.
        for memory in [&from, &to] {
            self.context.fill_now(memory, 0x5a5a_5a5a)?;
        }
        let place = |memory: &Memory, piece| memory.address() + (piece * PIECE_BYTES) as u64;
        let works: Vec<_> = (0..pieces)
            .map(|piece| Transfer::of(place(&from, piece), place(&to, piece), PIECE_BYTES))
            .collect();
        let bytes: &[u8] = bytemuck::cast_slice(&works);
        let memory = self.context.allocate(what, bytes.len(), Place::Host)?;
        self.context.host_mut(&memory, 0..bytes.len()).copy_from_slice(bytes);
        let pipeline = self.shaders.get(&mut self.context, Transfer::SHADER, &[])?;
        // The pieces of a copy do not wait for each other.
        let dispatch = |index: usize| Dispatch {
            waits: index.is_multiple_of(pieces),
            ..ring::dispatch::<Transfer>(pipeline, &memory, index % pieces)
        };
        let dispatches: Vec<_> = (0..COPIES * pieces).map(dispatch).collect();
        let commands = self.context.record(&dispatches, None)?;
        let mut shortest = f64::INFINITY;
        for _ in 0..SUBMISSIONS {
            let begin = Instant::now();
            self.context.submit(&[commands])?;
            self.context.synchronize()?;
            shortest = shortest.min(begin.elapsed().as_secs_f64());
        }
        Ok(Some((2 * COPIES * pieces * PIECE_BYTES) as f64 / shortest))
    }

    fn load_matrix(
        &mut self,
        desc: &MatrixDesc<'_>,
        source: &dyn WeightSource,
    ) -> Result<MatrixId, DeviceError> {
        let matrix = self.staging.matrix(&mut self.context, desc, source)?;
        self.used.weight_bytes += matrix.weights.bytes() as u64;
        Ok(MatrixId(add(&mut self.resources.matrices, matrix)))
    }

    fn load_vector(&mut self, name: &str, values: &[f32]) -> Result<VectorId, DeviceError> {
        let memory = self.loaded(name, bytemuck::cast_slice(values))?;
        self.used.weight_bytes += memory.bytes() as u64;
        Ok(VectorId(add(&mut self.resources.vectors, Vector { memory, len: values.len() as u32 })))
    }

    fn load_rope(&mut self, desc: &RopeDesc<'_>) -> Result<RopeId, DeviceError> {
        let frequencies = self.loaded("rope", bytemuck::cast_slice(desc.frequencies))?;
        self.used.weight_bytes += frequencies.bytes() as u64;
        let pairs_count = desc.frequencies.len() as u32;
        let rope = Rope { frequencies, pairs_count, magnitude: desc.magnitude, pairs: desc.pairs };
        Ok(RopeId(add(&mut self.resources.ropes, rope)))
    }

    fn create_cache(&mut self, desc: &CacheDesc) -> Result<CacheId, DeviceError> {
        let sizes = cache::sizes(desc, &self.resources, &self.info.name)?;
        let mut layers = Vec::with_capacity(sizes.layers.len());
        for blocks in &sizes.layers {
            let blocks: Result<_, _> =
                blocks.iter().map(|bytes| self.zeroed("the cache", *bytes)).collect();
            layers.push(blocks?);
        }
        let last_sampled = self.zeroed("last sampled tokens", sizes.last_sampled)?;
        let recent = self.zeroed("recent tokens", sizes.recent)?;
        self.used.cache_bytes += sizes.total() as u64;
        let table = self.context.allocate(
            "the table of layers",
            cache::table_bytes(desc),
            Place::Device,
        )?;
        let desc = desc.clone();
        let cache = crate::resources::Cache { desc, layers, last_sampled, recent, table };
        let bytes = cache::table(&cache, &self.resources)?;
        self.staging.copy(&mut self.context, &bytes, (&cache.table, 0))?;
        Ok(CacheId(add(&mut self.resources.caches, cache)))
    }

    fn create_buffer(&mut self, what: &str, bytes: usize) -> Result<BufferId, DeviceError> {
        let memory = self.zeroed(what, bytes)?;
        self.used.workspace_bytes += memory.bytes() as u64;
        Ok(BufferId(add(&mut self.resources.buffers, memory)))
    }

    fn create_host(&mut self, what: &str, bytes: usize) -> Result<HostId, DeviceError> {
        let memory = self.context.allocate(what, bytes, Place::Host)?;
        self.context.host_mut(&memory, 0..bytes).fill(0);
        self.used.host_bytes += bytes as u64;
        let host = Host { memory, ticket: 0, is_mapped: false, written: Vec::new() };
        Ok(HostId(add(&mut self.resources.hosts, host)))
    }

    fn create_mapped(
        &mut self,
        what: &str,
        bytes: usize,
    ) -> Result<Option<(BufferId, HostId)>, DeviceError> {
        let host = self.create_host(what, bytes)?;
        let Some(state) = self.resources.hosts.get_mut(host.0 as usize) else { return Ok(None) };
        state.is_mapped = true;
        state.written.reserve(MAX_BLOCKS);
        let buffer = add(&mut self.resources.buffers, state.memory);
        Ok(Some((BufferId(buffer), host)))
    }

    fn create_stream(&mut self, _: StreamPriority) -> Result<StreamId, DeviceError> {
        self.context.refuse_lost()?;
        self.streams += 1;
        Ok(StreamId(self.streams - 1))
    }

    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        self.context.refuse_lost()?;
        Ok(EventId(add(&mut self.resources.events, Event::default())))
    }

    fn prepare(&mut self, programs: Vec<Program>) -> Result<Vec<Prepared>, DeviceError> {
        self.flush()?;
        let mut prepared = Vec::with_capacity(programs.len());
        for (program, lowered) in programs.iter().zip(self.lower_all(&programs)?) {
            let commands = self.context.record(&lowered.dispatches, lowered.clock)?;
            let result_bytes = program.layout.result_bytes();
            let graph = GraphId(add(&mut self.programs, (commands, result_bytes)));
            prepared.push(Prepared { graph, mode: LaunchMode::Graph });
        }
        self.context.keep_pipelines();
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
        let _call = driver::call();
        if !self.is_free(host)? {
            return Err(DeviceError::HostInFlight { host: host.0 });
        }
        let state = self.resources.host(host)?;
        within(&state.memory, offset, bytes)?;
        if state.is_mapped {
            return Err(DeviceError::Invalid(format!("{host:?} is for programs to write")));
        }
        write(self.context.host_mut(&state.memory, offset..offset + bytes));
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
        let _call = driver::call();
        if !self.is_free(host)? {
            return Err(DeviceError::HostInFlight { host: host.0 });
        }
        let state = self.resources.host(host)?;
        within(&state.memory, offset, bytes)?;
        if !self.is_written(host, &(offset..offset + bytes))? {
            return Err(DeviceError::HostInFlight { host: host.0 });
        }
        let state = self.resources.host(host)?;
        read(self.context.host(&state.memory, offset..offset + bytes));
        Ok(())
    }

    fn upload(
        &mut self,
        stream: StreamId,
        from: HostId,
        to: BufferId,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.stream(stream)?;
        let (source, target) = (self.resources.host(from)?.memory, *self.resources.buffer(to)?);
        within(&source, 0, bytes)?;
        within(&target, 0, bytes)?;
        self.transfer(&Transfer::of(source.address(), target.address(), bytes))?;
        let ticket = self.next_ticket();
        self.use_host(from, ticket);
        Ok(())
    }

    fn download(
        &mut self,
        stream: StreamId,
        (from, from_offset): (BufferId, usize),
        (to, to_offset): (HostId, usize),
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.stream(stream)?;
        let (source, target) = (*self.resources.buffer(from)?, self.resources.host(to)?.memory);
        within(&source, from_offset, bytes)?;
        within(&target, to_offset, bytes)?;
        if !from_offset.is_multiple_of(4) || !to_offset.is_multiple_of(4) {
            return Err(DeviceError::Invalid("a copy from or to a part of a word".to_owned()));
        }
        let [from, target] =
            [source.address() + from_offset as u64, target.address() + to_offset as u64];
        self.transfer(&Transfer::of(from, target, bytes))?;
        let ticket = self.next_ticket();
        self.use_host(to, ticket);
        Ok(())
    }

    fn launch(&mut self, stream: StreamId, graph: GraphId) -> Result<(), DeviceError> {
        self.stream(stream)?;
        let (commands, _) = *self.programs.get(graph.0 as usize).ok_or_else(|| unknown(&graph))?;
        self.make_room()?;
        self.pending.push(commands);
        self.flush()
    }

    fn launch_with_flag(
        &mut self,
        stream: StreamId,
        graph: GraphId,
        watch: &CompletionFlag,
    ) -> Result<(), DeviceError> {
        self.resources.event(watch.event)?;
        let bytes = self.programs.get(graph.0 as usize).ok_or_else(|| unknown(&graph))?.1;
        let start = (watch.ring_slot as usize).saturating_mul(bytes);
        let host = self.resources.host(watch.results)?;
        let refused = || DeviceError::Invalid(format!("{watch:?} is not to be written"));
        if !host.is_mapped {
            return Err(refused());
        }
        within(&host.memory, start, bytes)?;
        let range = start..start + bytes;
        if !self.is_written(watch.results, &range)? {
            return Err(refused());
        }
        self.launch(stream, graph)?;
        let ticket = self.context.submitted();
        if let Some(host) = self.resources.hosts.get_mut(watch.results.0 as usize) {
            host.written.retain(|(other, _)| *other != range);
            host.written.push((range, ticket));
        }
        if let Some(event) = self.resources.events.get_mut(watch.event.0 as usize) {
            event.ticket = ticket;
        }
        Ok(())
    }

    fn run_cache_ops(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        commands: &[CacheCommand],
    ) -> Result<(), DeviceError> {
        self.stream(stream)?;
        let desc = &self.resources.cache(cache)?.desc;
        if let Some(command) = commands.iter().find(|command| !desc.allows(command)) {
            return Err(DeviceError::Invalid(format!("{command:?} reaches outside the cache")));
        }
        let table = self.resources.cache(cache)?.table.address();
        let room = self.cache_ops.reserve(&mut self.context, commands.len());
        self.flush_if_full(room)?;
        for command in commands {
            self.make_room()?;
            let ticket = self.next_ticket();
            let op = CacheOp::of(table, command);
            let commands = self.cache_ops.add(&mut self.context, &op, ticket);
            self.pending.push(commands);
        }
        Ok(())
    }

    fn cache_image(&self, cache: CacheId) -> Option<CacheImage> {
        cache::image(&self.resources.cache(cache).ok()?.desc)
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
        self.stream(stream)?;
        self.flush()?;
        let ticket = self.context.submitted();
        let state = self.resources.events.get_mut(event.0 as usize);
        state.ok_or_else(|| unknown(&event))?.ticket = ticket;
        Ok(())
    }

    fn wait(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        // One queue: all earlier work precedes all later work.
        self.context.refuse_lost()?;
        self.stream(stream)?;
        self.resources.event(event).map(|_| ())
    }

    fn poll(&mut self, event: EventId) -> Result<bool, DeviceError> {
        let ticket = self.resources.event(event)?.ticket;
        self.context.has_reached(ticket)
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.flush()?;
        self.context.synchronize()
    }
}

impl VulkanDevice {
    /// Times of the shaders of a program, in their order: it runs `runs` times with the step that
    /// its buffer has, each shader alone, and the median counts.
    ///
    /// # Errors
    /// As [`prepare`](Device::prepare), or [`DeviceError::Unsupported`] without timestamps.
    pub fn shader_times(
        &mut self,
        program: &Program,
        runs: usize,
    ) -> Result<Vec<ShaderTime>, DeviceError> {
        self.flush()?;
        let lowered = self.lower_all(std::slice::from_ref(program))?;
        let Some(lowered) = lowered.into_iter().next() else { return Ok(Vec::new()) };
        let timed = self.context.record_timed(&lowered.dispatches)?;
        let mut all = Vec::new();
        for _ in 0..runs.max(1) {
            all.push(self.context.run_timed(&timed)?);
        }
        let time = |(index, (op, shader)): (usize, (usize, String))| {
            let mut nanos: Vec<f64> = all.iter().map(|run| run[index]).collect();
            nanos.sort_by(f64::total_cmp);
            ShaderTime { op, shader, nanos: nanos[nanos.len() / 2] }
        };
        Ok(lowered.shaders.into_iter().enumerate().map(time).collect())
    }

    /// Lowers programs and writes what their dispatches read.
    fn lower_all(&mut self, programs: &[Program]) -> Result<Vec<Lowered>, DeviceError> {
        // Lowered twice: first without memory, which only finds the sizes.
        let mut workspace = Workspace::new(programs);
        for program in programs {
            self.lower(program, &mut workspace)?;
        }
        let bytes = workspace.place(0);
        let memory = self.zeroed("activations", bytes)?;
        self.used.workspace_bytes += memory.bytes() as u64;
        workspace.place(memory.address());
        let mut all = Vec::with_capacity(programs.len());
        for program in programs {
            let lowered = self.lower(program, &mut workspace)?;
            self.staging.copy(&mut self.context, &lowered.constants, (&memory, lowered.offset))?;
            all.push(lowered);
        }
        Ok(all)
    }

    /// Enqueues copies between a part of a cache and a host buffer.
    fn copy_part(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        part: &CachePart<'_>,
        (host, offset): (HostId, usize),
        direction: CopyDirection,
    ) -> Result<(), DeviceError> {
        self.stream(stream)?;
        let memory = self.resources.host(host)?.memory;
        let cache = self.resources.cache(cache)?;
        let desc = &cache.desc;
        let outside = || DeviceError::Invalid(format!("{part:?} reaches outside the cache"));
        let image = cache::image(desc)
            .ok_or_else(|| DeviceError::Invalid("a cache without images".to_owned()))?;
        if !offset.is_multiple_of(4) {
            return Err(DeviceError::Invalid("a copy from or to a part of a word".to_owned()));
        }
        let address = memory.address() + offset as u64;
        let is_to = direction == CopyDirection::ToCache;
        let (state, bytes) = match *part {
            CachePart::Pages(pages) => {
                if pages.iter().any(|page| *page >= desc.pages) {
                    return Err(outside());
                }
                within(&memory, offset, pages.len() * image.page_bytes())?;
                let table = cache.table.address();
                let room = self.page_images.reserve(&mut self.context, pages.len());
                self.flush_if_full(room)?;
                for (index, page) in (0..).zip(pages) {
                    self.make_room()?;
                    let work = PageImage {
                        cache: table,
                        image: address,
                        page: *page,
                        index,
                        count: pages.len() as u32,
                        to_cache: u32::from(is_to),
                    };
                    let ticket = self.next_ticket();
                    let commands = self.page_images.add(&mut self.context, &work, ticket);
                    self.pending.push(commands);
                }
                let ticket = self.next_ticket();
                self.use_host(host, ticket);
                return Ok(());
            }
            CachePart::State { sequence, index } if sequence < desc.max_sequences => {
                let layers = desc.layers.iter().zip(&cache.layers);
                let mut states = layers
                    .filter_map(|(its, memory)| Some((cache::state_bytes(its)?, memory.first()?)));
                let (bytes, state) = states.nth(index as usize).ok_or_else(outside)?;
                (state.address() + u64::from(sequence) * bytes as u64, bytes)
            }
            CachePart::Recent { sequence } if sequence < desc.max_sequences => {
                let bytes = 4 * MAX_PENALTY_WINDOW as usize;
                (cache.recent.address() + u64::from(sequence) * bytes as u64, bytes)
            }
            CachePart::State { .. } | CachePart::Recent { .. } => return Err(outside()),
        };
        within(&memory, offset, bytes)?;
        let (from, to) = if is_to { (address, state) } else { (state, address) };
        self.transfer(&Transfer::of(from, to, bytes))?;
        let ticket = self.next_ticket();
        self.use_host(host, ticket);
        Ok(())
    }

    fn use_host(&mut self, host: HostId, ticket: u64) {
        if let Some(host) = self.resources.hosts.get_mut(host.0 as usize) {
            host.ticket = ticket;
        }
    }

    fn lower(
        &mut self,
        program: &Program,
        workspace: &mut Workspace,
    ) -> Result<Lowered, DeviceError> {
        let Self { info, context, shaders, resources, .. } = self;
        Lowering::new(&info.name, (context, shaders), resources, program, workspace).run()
    }
}
