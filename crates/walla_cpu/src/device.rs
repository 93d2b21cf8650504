use std::sync::{Arc, MutexGuard};

use walla_device::{
    BufferId, CacheCommand, CacheDesc, CacheId, CacheImage, CachePart, CopyDirection, Device,
    DeviceError, DeviceInfo, EventId, GraphId, HostId, LaunchMode, MatrixDesc, MatrixId, MemoryUse,
    Prepared, Program, RopeDesc, RopeId, StreamId, StreamPriority, VectorId, WeightSource,
};

use crate::cache::Cache;
use crate::cache::image;
use crate::check;
use crate::command::Command;
use crate::executor::Executor;
use crate::info::describe;
use crate::machine::Machine;
use crate::matrix::Matrix;
use crate::memory::{Bytes, copied};
use crate::memory_budget::MemoryBudget;
use crate::options::{CpuOptions, Variant};
use crate::pool::Pool;
use crate::transfer::{Completed, Host};
use crate::work::ThreadCosts;
use crate::workspace::{Rope, Workspace};

/// Maximum number of queued commands: several steps, with maintenance of a hundred pages each.
const MAX_COMMANDS: usize = 4096;

/// The owner's record of an event.
struct Event {
    /// Serial number of its latest record; 0 if it was never recorded.
    recorded: u64,
    completed: Arc<Completed>,
}

/// The host's CPU cores as a [`Device`].
pub struct CpuDevice {
    info: DeviceInfo,
    executor: Executor,
    memory: MemoryUse,
    streams: u32,
    events: Vec<Event>,
    hosts: Vec<(Arc<Host<Bytes>>, usize)>,
    /// Length of each buffer in bytes.
    buffers: Vec<usize>,
    caches: Vec<CacheDesc>,
    graphs: u32,
    serial: u64,
    variant: Variant,
    room: MemoryBudget,
}

impl std::fmt::Debug for CpuDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuDevice").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Description and kernels of these options, if this machine has them.
pub(crate) fn checked(options: &CpuOptions) -> Result<(DeviceInfo, Variant), DeviceError> {
    if options.threads == Some(0) {
        return Err(DeviceError::Invalid("0 threads: at least 1 is needed".to_owned()));
    }
    let info = describe(options);
    let variant = options.variant.unwrap_or_else(Variant::best);
    if variant.score().is_none() {
        let what = format!("kernels of variant {variant}");
        return Err(DeviceError::Unsupported { device: info.description, what });
    }
    Ok((info, variant))
}

fn no_threads(error: std::io::Error) -> DeviceError {
    DeviceError::Failed { call: "starting threads", reason: error.to_string() }
}

/// The threads of these options.
pub(crate) fn pool_of(options: &CpuOptions) -> Result<Pool, DeviceError> {
    let costs = ThreadCosts::new(options.thread_cost_nanos.unwrap_or(ThreadCosts::JOIN_NANOS));
    Pool::start(options.threads_resolved() as usize, costs).map_err(no_threads)
}

impl CpuDevice {
    /// Opens the device.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if this machine cannot run the requested variant,
    /// [`DeviceError::Invalid`] if [`threads`](CpuOptions::threads) is 0.
    pub fn new(options: CpuOptions) -> Result<Self, DeviceError> {
        let (info, variant) = checked(&options)?;
        let machine = Machine::new(variant, pool_of(&options)?);
        let max_commands = (!options.inline).then_some(MAX_COMMANDS);
        let executor = Executor::start(machine, max_commands).map_err(no_threads)?;
        Ok(Self {
            info,
            executor,
            memory: MemoryUse::default(),
            streams: 0,
            events: Vec::new(),
            hosts: Vec::new(),
            buffers: Vec::new(),
            caches: Vec::new(),
            graphs: 0,
            serial: 0,
            variant,
            room: MemoryBudget::new(options.max_memory_bytes),
        })
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.executor.machine()
    }

    /// Reserves memory for an allocation.
    fn take_room(&mut self, what: &str, wanted_bytes: u64) -> Result<(), DeviceError> {
        self.room.take(self.memory, what, wanted_bytes)
    }

    fn stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        if stream.0 < self.streams { Ok(()) } else { Err(unknown("stream", stream.0)) }
    }

    fn event(&self, event: EventId) -> Result<&Event, DeviceError> {
        self.events.get(event.0 as usize).ok_or_else(|| unknown("event", event.0))
    }

    /// The host buffer, if it contains `bytes` bytes from `offset` on.
    fn host(
        &self,
        host: HostId,
        offset: usize,
        bytes: usize,
    ) -> Result<&Arc<Host<Bytes>>, DeviceError> {
        let (found, len) =
            self.hosts.get(host.0 as usize).ok_or_else(|| unknown("host buffer", host.0))?;
        within("host buffer", host.0, offset, bytes, *len)?;
        Ok(found)
    }

    fn buffer(&self, buffer: BufferId, offset: usize, bytes: usize) -> Result<(), DeviceError> {
        let len = self.buffers.get(buffer.0 as usize).ok_or_else(|| unknown("buffer", buffer.0))?;
        within("buffer", buffer.0, offset, bytes, *len)
    }

    /// Enqueues a copy of a part of a cache.
    fn copy_part(
        &mut self,
        call: &'static str,
        (stream, cache): (StreamId, CacheId),
        part: &CachePart<'_>,
        (host, host_offset): (HostId, usize),
        direction: CopyDirection,
    ) -> Result<(), DeviceError> {
        self.stream(stream)?;
        let desc = self.caches.get(cache.0 as usize).ok_or_else(|| unknown("cache", cache.0))?;
        let bytes = image::bytes_of(desc, part);
        let outside = || DeviceError::Invalid(format!("{part:?} reaches outside the cache"));
        let bytes = bytes.ok_or_else(outside)?;
        let parts = image::parts(part);
        // A full queue refuses all of it, before the buffer counts as in flight.
        self.executor.reserve(call, parts.len())?;
        let commands = parts.len() as u32;
        let found = Arc::clone(self.host(host, host_offset, bytes)?);
        found.begin(commands);
        for part in parts {
            let (cache, host) = (cache.0, host.0);
            let command = Command::CopyPart { cache, part, host, host_offset, direction };
            self.executor.push(call, command)?;
        }
        Ok(())
    }

    /// Runs `visit` on a part of a host buffer that has no copy in flight.
    fn with_host(
        &self,
        id: HostId,
        offset: usize,
        bytes: usize,
        visit: impl FnOnce(&mut [u8]),
    ) -> Result<(), DeviceError> {
        let host = self.host(id, offset, bytes)?;
        let is_free = host.visit(|all| visit(&mut all.bytes_mut()[offset..][..bytes]));
        if is_free { Ok(()) } else { Err(DeviceError::HostInFlight { host: id.0 }) }
    }
}

fn unknown(what: &str, id: u32) -> DeviceError {
    DeviceError::Invalid(format!("{what} {id} is unknown"))
}

fn within(what: &str, id: u32, offset: usize, bytes: usize, len: usize) -> Result<(), DeviceError> {
    if offset.checked_add(bytes).is_some_and(|end| end <= len) {
        return Ok(());
    }
    Err(DeviceError::Invalid(format!("bytes {offset} + {bytes} of {what} {id}, which has {len}")))
}

/// The id of a new entry in a list of length `len`.
fn next_id(len: usize) -> Result<u32, DeviceError> {
    u32::try_from(len).map_err(|_| DeviceError::Invalid("too many handles".to_owned()))
}

/// Adds an item to the end of a list and returns its number.
pub(crate) fn push<T>(list: &mut Vec<T>, item: T) -> Result<u32, DeviceError> {
    let id = next_id(list.len())?;
    list.push(item);
    Ok(id)
}

impl Device for CpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> MemoryUse {
        self.memory
    }

    fn load_matrix(
        &mut self,
        desc: &MatrixDesc<'_>,
        source: &dyn WeightSource,
    ) -> Result<MatrixId, DeviceError> {
        self.executor.check_lost("load_matrix")?;
        let bytes = Matrix::bytes_of(desc, source, self.variant) as u64;
        self.take_room(desc.name, bytes)?;
        // No step runs during loading, so the pool's threads are free to pack.
        let mut machine = self.executor.machine();
        let matrix = Matrix::load(desc, source, self.variant, &machine.pool)?;
        self.memory.weight_bytes += bytes;
        Ok(MatrixId(push(&mut machine.matrices, matrix)?))
    }

    fn load_vector(&mut self, name: &str, values: &[f32]) -> Result<VectorId, DeviceError> {
        self.executor.check_lost("load_vector")?;
        self.take_room(name, size_of_val(values) as u64)?;
        let vector = copied(name, values)?;
        self.memory.weight_bytes += size_of_val(values) as u64;
        Ok(VectorId(push(&mut self.machine().vectors, vector)?))
    }

    fn load_rope(&mut self, desc: &RopeDesc<'_>) -> Result<RopeId, DeviceError> {
        self.executor.check_lost("load_rope")?;
        let rope = Rope::new(desc)?;
        self.memory.weight_bytes += size_of_val(desc.frequencies) as u64;
        Ok(RopeId(push(&mut self.machine().ropes, rope)?))
    }

    fn create_cache(&mut self, desc: &CacheDesc) -> Result<CacheId, DeviceError> {
        self.executor.check_lost("create_cache")?;
        let bytes = Cache::bytes_of(desc);
        self.take_room("keys and values", bytes)?;
        let cache = Cache::new(desc, &self.machine().ropes)?;
        self.memory.cache_bytes += bytes;
        self.caches.push(desc.clone());
        Ok(CacheId(push(&mut self.machine().caches, cache)?))
    }

    fn create_buffer(&mut self, what: &str, bytes: usize) -> Result<BufferId, DeviceError> {
        self.executor.check_lost("create_buffer")?;
        self.take_room(what, bytes as u64)?;
        let buffer = Bytes::zeroed(what, bytes)?;
        self.memory.workspace_bytes += bytes as u64;
        self.buffers.push(bytes);
        Ok(BufferId(push(&mut self.machine().buffers, buffer)?))
    }

    fn create_host(&mut self, what: &str, bytes: usize) -> Result<HostId, DeviceError> {
        self.executor.check_lost("create_host")?;
        self.take_room(what, bytes as u64)?;
        let id = next_id(self.hosts.len())?;
        let host = Arc::new(Host::new(Bytes::zeroed(what, bytes)?));
        self.memory.host_bytes += bytes as u64;
        self.hosts.push((Arc::clone(&host), bytes));
        self.machine().hosts.push(host);
        Ok(HostId(id))
    }

    fn create_stream(&mut self, _priority: StreamPriority) -> Result<StreamId, DeviceError> {
        self.executor.check_lost("create_stream")?;
        self.streams += 1;
        Ok(StreamId(self.streams - 1))
    }

    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        self.executor.check_lost("create_event")?;
        let id = next_id(self.events.len())?;
        let completed = Arc::new(Completed::default());
        self.events.push(Event { recorded: 0, completed: Arc::clone(&completed) });
        self.machine().events.push(completed);
        Ok(EventId(id))
    }

    fn prepare(&mut self, programs: Vec<Program>) -> Result<Vec<Prepared>, DeviceError> {
        self.executor.check_lost("prepare")?;
        let mut machine = self.executor.machine();
        let mut sizes = machine.workspace.sizes.clone();
        // All programs are checked before anything changes.
        for program in &programs {
            sizes.union(&check::check(program, machine.resources())?);
        }
        let first = next_id(machine.programs.len() + programs.len())? - programs.len() as u32;
        let held_before = machine.workspace.held_bytes;
        if sizes != machine.workspace.sizes {
            let grown = sizes.bytes(machine.pool.workers()).saturating_sub(held_before);
            self.room.take(self.memory, "activations", grown)?;
            machine.workspace = Workspace::new(sizes, machine.pool.workers())?;
        }
        let held = machine.workspace.held_bytes;
        let mut prepared = Vec::with_capacity(programs.len());
        for (graph, program) in (first..).zip(programs) {
            machine.programs.push(program);
            // A CPU has no cheaper way to launch, so this counts as a graph.
            prepared.push(Prepared { graph: GraphId(graph), mode: LaunchMode::Graph });
        }
        drop(machine);
        self.graphs = first + prepared.len() as u32;
        self.memory.workspace_bytes += held;
        self.memory.workspace_bytes -= held_before;
        Ok(prepared)
    }

    fn write_host(
        &mut self,
        host: HostId,
        offset: usize,
        bytes: usize,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        self.executor.check_lost("write_host")?;
        self.with_host(host, offset, bytes, write)
    }

    fn read_host(
        &mut self,
        host: HostId,
        offset: usize,
        bytes: usize,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        self.executor.check_lost("read_host")?;
        self.with_host(host, offset, bytes, |bytes| read(bytes))
    }

    fn upload(
        &mut self,
        stream: StreamId,
        from: HostId,
        to: BufferId,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.stream(stream)?;
        self.buffer(to, 0, bytes)?;
        // Before the buffer counts as in flight, as for all copies.
        self.executor.reserve("upload", 1)?;
        self.host(from, 0, bytes)?.begin(1);
        self.executor.push("upload", Command::Upload { host: from.0, buffer: to.0, bytes })
    }

    fn download(
        &mut self,
        stream: StreamId,
        (buffer, buffer_offset): (BufferId, usize),
        (host, host_offset): (HostId, usize),
        bytes: usize,
    ) -> Result<(), DeviceError> {
        self.stream(stream)?;
        self.buffer(buffer, buffer_offset, bytes)?;
        self.executor.reserve("download", 1)?;
        self.host(host, host_offset, bytes)?.begin(1);
        let (buffer, host) = (buffer.0, host.0);
        let command = Command::Download { buffer, buffer_offset, host, host_offset, bytes };
        self.executor.push("download", command)
    }

    fn launch(&mut self, stream: StreamId, graph: GraphId) -> Result<(), DeviceError> {
        self.stream(stream)?;
        if graph.0 >= self.graphs {
            return Err(unknown("graph", graph.0));
        }
        self.executor.push("launch", Command::Launch { graph: graph.0 })
    }

    fn run_cache_ops(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        commands: &[CacheCommand],
    ) -> Result<(), DeviceError> {
        self.stream(stream)?;
        let desc = self.caches.get(cache.0 as usize).ok_or_else(|| unknown("cache", cache.0))?;
        if let Some(command) = commands.iter().find(|command| !desc.allows(command)) {
            return Err(DeviceError::Invalid(format!("{command:?} reaches outside the cache")));
        }
        self.executor.reserve("run_cache_ops", commands.len())?;
        for command in commands {
            let command = Command::Maintain { cache: cache.0, command: *command };
            self.executor.push("run_cache_ops", command)?;
        }
        Ok(())
    }

    fn cache_image(&self, cache: CacheId) -> Option<CacheImage> {
        self.caches.get(cache.0 as usize).map(image::layout)
    }

    fn read_cache(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        part: &CachePart<'_>,
        to: (HostId, usize),
    ) -> Result<(), DeviceError> {
        self.copy_part("read_cache", (stream, cache), part, to, CopyDirection::FromCache)
    }

    fn write_cache(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        part: &CachePart<'_>,
        from: (HostId, usize),
    ) -> Result<(), DeviceError> {
        self.copy_part("write_cache", (stream, cache), part, from, CopyDirection::ToCache)
    }

    fn record(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.stream(stream)?;
        self.event(event)?;
        self.serial += 1;
        let serial = self.serial;
        self.executor.push("record", Command::Record { event: event.0, serial })?;
        // After the push: a refused record leaves the event as it was.
        self.events[event.0 as usize].recorded = serial;
        Ok(())
    }

    fn wait(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.executor.check_lost("wait")?;
        // One FIFO serves all streams: commands recorded earlier complete earlier.
        self.stream(stream)?;
        self.event(event).map(drop)
    }

    fn poll(&mut self, event: EventId) -> Result<bool, DeviceError> {
        self.executor.check_lost("poll")?;
        self.executor.check_fault()?;
        let event = self.event(event)?;
        Ok(event.completed.has(event.recorded))
    }

    fn synchronize_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        let Event { completed, recorded } = self.event(event)?;
        self.executor.wait_until(|| completed.has(*recorded));
        self.poll(event).map(drop)
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.executor.drain();
        self.executor.check_lost("synchronise")?;
        self.executor.check_fault()
    }
}
