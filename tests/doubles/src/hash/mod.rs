//! A device for tests that hashes tokens instead of evaluating a model, in virtual time.
//!
//! A token that [`HashDevice`] samples depends on every cache cell of its sequence up to the row's
//! position and on the sampling parameters, and on nothing else, as on a real device. A page table
//! with one wrong entry, a cell that was overwritten or moved without rotation, a stale penalty
//! window or a mask of another agent changes the output, at a cost of nanoseconds per cell.
//!
//! Work is done when it is enqueued; it *completes* later, on a [`VirtualClock`], after the time
//! that [`HashOptions`] gives each step. Result headers carry the begin and the end of a step on
//! this clock. Nothing reads the real clock, so a run is a function of its inputs.

mod backend;
mod cache;
mod sample;
#[cfg(test)]
mod tests;

use std::fmt;

pub use backend::{HashBackend, HashOptions};

use walla_device::step::{
    BiasRow, Candidate, OutputRow, ResultHeader, ResultRow, ResultViewMut, StepLayout, StepView,
    mask_words,
};
use walla_device::{
    BufferId, CacheCommand, CacheDesc, CacheId, CacheImage, CachePart, CompletionFlag, Device,
    DeviceError, DeviceInfo, EventId, GraphId, HostId, LaunchMode, MatrixDesc, MatrixId, MemoryUse,
    Prepared, Program, RopeDesc, RopeId, StreamId, StreamPriority, VectorId, WeightSource,
};
use walla_types::{MAX_CANDIDATES, Sampling, TokenId};

use self::cache::HashCache;
use self::sample::{Sampler, cell_hash, penalty_hash};
use crate::aligned::AlignedBytes;
use crate::faulty::VirtualClock;

/// Duration of a copy of a part of a cache, in microseconds.
const COPY_MICROS: u64 = 100;

/// A host buffer.
struct Host {
    bytes: AlignedBytes,
    /// Completion time of the copies from or to it, in microseconds of the clock.
    busy_until_micros: u64,
}

/// A device buffer: device memory, or another name for mapped host memory.
enum Buffer {
    Own(AlignedBytes),
    Mapped(HostId),
}

/// See the [module](self).
pub struct HashDevice {
    info: DeviceInfo,
    options: HashOptions,
    memory: MemoryUse,
    weights: u32,
    vectors: u32,
    ropes: u32,
    hosts: Vec<Host>,
    buffers: Vec<Buffer>,
    caches: Vec<HashCache>,
    programs: Vec<Program>,
    /// Completion time of each stream's work, in microseconds.
    streams: Vec<u64>,
    /// Completion time of each event, in microseconds.
    events: Vec<u64>,
    launches: u64,
    /// Reused: results of the step being run.
    results: Vec<ResultRow>,
}

impl fmt::Debug for HashDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashDevice").field("info", &self.info).finish_non_exhaustive()
    }
}

fn invalid(what: &str) -> DeviceError {
    DeviceError::Invalid(what.to_owned())
}

/// Number of the next entry of a list.
fn next(len: usize) -> Result<u32, DeviceError> {
    u32::try_from(len).map_err(|_| invalid("too many handles"))
}

impl HashDevice {
    /// A device without any allocations.
    #[must_use]
    pub fn new(options: HashOptions) -> Self {
        Self {
            info: options.info(),
            options,
            memory: MemoryUse::default(),
            weights: 0,
            vectors: 0,
            ropes: 0,
            hosts: Vec::new(),
            buffers: Vec::new(),
            caches: Vec::new(),
            programs: Vec::new(),
            streams: Vec::new(),
            events: Vec::new(),
            launches: 0,
            results: Vec::new(),
        }
    }

    fn clock(&self) -> &VirtualClock {
        &self.options.clock
    }

    fn host(&mut self, host: HostId) -> Result<&mut Host, DeviceError> {
        let now_micros = self.clock().now_micros();
        let found = self.hosts.get_mut(host.0 as usize).ok_or_else(|| invalid("host buffer"))?;
        if found.busy_until_micros > now_micros {
            return Err(DeviceError::HostInFlight { host: host.0 });
        }
        Ok(found)
    }

    /// Start time of work that is enqueued now on a stream, in microseconds.
    fn stream_time(&self, stream: StreamId) -> Result<u64, DeviceError> {
        let done = self.streams.get(stream.0 as usize).ok_or_else(|| invalid("stream"))?;
        Ok((*done).max(self.clock().now_micros()))
    }

    fn set_stream_time(&mut self, stream: StreamId, micros: u64) {
        if let Some(done) = self.streams.get_mut(stream.0 as usize) {
            *done = micros;
        }
    }

    /// Runs a program over its step block. Returns the completion time of its results, in
    /// microseconds.
    fn run(&mut self, stream: StreamId, graph: GraphId) -> Result<u64, DeviceError> {
        let begin_micros = self.stream_time(stream)?;
        let Self { programs, buffers, caches, results, .. } = self;
        let program = programs.get(graph.0 as usize).ok_or_else(|| invalid("graph"))?;
        let block = own_bytes(buffers, program.step)?;
        let view = StepView::new(block, &program.layout).ok_or_else(|| invalid("step block"))?;
        let header = *view.header;
        let masks = program.masks.map(|masks| own_bytes(buffers, masks)).transpose()?;
        let sampler = Sampler {
            vocab: program.vocab,
            biases: view.biases,
            masks: masks.map(bytemuck::cast_slice).unwrap_or_default(),
            mask_words: mask_words(program.vocab),
        };
        let cache = caches.get_mut(program.cache.0 as usize).ok_or_else(|| invalid("cache"))?;
        results.clear();
        let evaluated = cache.evaluate(&view, program, &sampler, results);
        let (layout, results_buffer) = (program.layout, program.results);
        let end_micros = begin_micros + self.options.step_micros(self.launches, header.rows);
        self.launches += 1;
        self.set_stream_time(stream, end_micros);
        // An invalid block produces no results: the host then reads the results of an earlier step.
        if evaluated.is_some() {
            let result = ResultHeader {
                step: header.step,
                outputs: header.outputs,
                begin_nanos: 1_000 * begin_micros + 1,
                end_nanos: 1_000 * end_micros + 1,
                done: header.step + 1,
                ..ResultHeader::default()
            };
            self.write_results(results_buffer, header.ring_slot, &layout, result)?;
        }
        Ok(end_micros)
    }

    fn write_results(
        &mut self,
        buffer: BufferId,
        ring_slot: u32,
        layout: &StepLayout,
        header: ResultHeader,
    ) -> Result<(), DeviceError> {
        let Self { buffers, hosts, results, .. } = self;
        let bytes = match buffers.get_mut(buffer.0 as usize) {
            Some(Buffer::Own(bytes)) => bytes.bytes_mut(),
            Some(Buffer::Mapped(host)) => match hosts.get_mut(host.0 as usize) {
                Some(host) => host.bytes.bytes_mut(),
                None => return Err(invalid("mapped memory")),
            },
            None => return Err(invalid("buffer")),
        };
        let at = ring_slot as usize * layout.result_bytes();
        let block = bytes.get_mut(at..at + layout.result_bytes());
        let view = block.and_then(|block| ResultViewMut::new(block, layout));
        let view = view.ok_or_else(|| invalid("result slot"))?;
        *view.header = header;
        for (output, (row, result)) in view.rows.iter_mut().zip(results.iter()).enumerate() {
            *row = *result;
            let first = output * MAX_CANDIDATES as usize;
            let candidates = view.candidates.iter_mut().skip(first);
            for (token, candidate) in candidates.take(result.candidates as usize).enumerate() {
                let log_probability = -1.0 - token as f32;
                *candidate = Candidate { token: token as u32, log_probability };
            }
        }
        Ok(())
    }
}

/// The token that a [`HashDevice`] samples after `tokens`, computed without a cache, a page table
/// or a batch: the oracle for code that runs sequences on that device. `None` if no token is
/// allowed.
///
/// # Panics
/// If `tokens` is empty.
#[must_use]
pub fn reference_draw(tokens: &[TokenId], sampling: &Sampling, vocab: u32) -> Option<TokenId> {
    draw_after(tokens, 0, sampling, vocab)
}

/// As [`reference_draw`], for a model with recurrent layers.
///
/// # Panics
/// If `tokens` is empty.
#[must_use]
pub fn reference_draw_recurrent(
    tokens: &[TokenId],
    sampling: &Sampling,
    vocab: u32,
) -> Option<TokenId> {
    let state = tokens.iter().fold(0, |state, token| sample::mix(state, token.0.into()));
    draw_after(tokens, state, sampling, vocab)
}

fn draw_after(tokens: &[TokenId], state: u64, sampling: &Sampling, vocab: u32) -> Option<TokenId> {
    let position = tokens.len().checked_sub(1).expect("a draw follows a token") as u32;
    let biases: Vec<_> = sampling.biases().iter().map(|bias| (bias.token.0, bias.bias)).collect();
    let biases: Vec<_> = biases.into_iter().map(|(token, bias)| BiasRow { token, bias }).collect();
    let sampler = Sampler {
        vocab,
        biases: &biases,
        masks: sampling.allowed_tokens().map(|mask| mask.words()).unwrap_or_default(),
        mask_words: mask_words(vocab),
    };
    let output = OutputRow {
        position,
        temperature: sampling.temperature(),
        repetition_penalty: sampling.repetition_penalty(),
        presence_penalty: sampling.presence_penalty(),
        frequency_penalty: sampling.frequency_penalty(),
        penalty_window: sampling.penalty_window(),
        seed: [sampling.seed() as u32, (sampling.seed() >> 32) as u32],
        bias_count: biases.len() as u32,
        mask: sampling.allowed_tokens().is_some().into(),
        ..OutputRow::default()
    };
    let cells = (0..).zip(tokens).map(|(position, token)| (token.0, position));
    let context = cells.fold(state, |hash, (token, position)| cell_hash(hash, token, position));
    let context = penalty_hash(&output, context, |position| tokens[position as usize].0);
    let result = sampler.draw(&output, context);
    (result.flags & ResultRow::SAMPLED != 0).then_some(TokenId(result.token))
}

fn own_bytes(buffers: &[Buffer], buffer: BufferId) -> Result<&[u8], DeviceError> {
    match buffers.get(buffer.0 as usize) {
        Some(Buffer::Own(bytes)) => Ok(bytes.bytes()),
        _ => Err(invalid("buffer")),
    }
}

impl Device for HashDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> MemoryUse {
        self.memory
    }

    fn load_matrix(
        &mut self,
        _desc: &MatrixDesc<'_>,
        source: &dyn WeightSource,
    ) -> Result<MatrixId, DeviceError> {
        self.memory.weight_bytes += source.bytes() as u64;
        self.weights += 1;
        Ok(MatrixId(self.weights - 1))
    }

    fn load_vector(&mut self, _name: &str, values: &[f32]) -> Result<VectorId, DeviceError> {
        self.memory.weight_bytes += size_of_val(values) as u64;
        self.vectors += 1;
        Ok(VectorId(self.vectors - 1))
    }

    fn load_rope(&mut self, _desc: &RopeDesc<'_>) -> Result<RopeId, DeviceError> {
        self.ropes += 1;
        Ok(RopeId(self.ropes - 1))
    }

    fn create_cache(&mut self, desc: &CacheDesc) -> Result<CacheId, DeviceError> {
        let id = next(self.caches.len())?;
        self.memory.cache_bytes += desc.page_bytes() * u64::from(desc.pages);
        self.caches.push(HashCache::new(desc));
        Ok(CacheId(id))
    }

    fn resize_cache(&mut self, cache: CacheId, pages: u32) -> Result<(), DeviceError> {
        let cache = self.caches.get_mut(cache.0 as usize).ok_or_else(|| invalid("cache"))?;
        cache.resize(pages);
        self.memory.cache_bytes = self.caches.iter().map(HashCache::bytes).sum();
        Ok(())
    }

    fn create_buffer(&mut self, _what: &str, bytes: usize) -> Result<BufferId, DeviceError> {
        let id = next(self.buffers.len())?;
        self.memory.workspace_bytes += bytes as u64;
        self.buffers.push(Buffer::Own(AlignedBytes::zeroed(bytes)));
        Ok(BufferId(id))
    }

    fn create_host(&mut self, _what: &str, bytes: usize) -> Result<HostId, DeviceError> {
        let id = next(self.hosts.len())?;
        self.memory.host_bytes += bytes as u64;
        self.hosts.push(Host { bytes: AlignedBytes::zeroed(bytes), busy_until_micros: 0 });
        Ok(HostId(id))
    }

    fn create_mapped(
        &mut self,
        what: &str,
        bytes: usize,
    ) -> Result<Option<(BufferId, HostId)>, DeviceError> {
        if !self.options.mapped_results {
            return Ok(None);
        }
        let host = self.create_host(what, bytes)?;
        let buffer = next(self.buffers.len())?;
        self.buffers.push(Buffer::Mapped(host));
        Ok(Some((BufferId(buffer), host)))
    }

    fn create_stream(&mut self, _priority: StreamPriority) -> Result<StreamId, DeviceError> {
        let id = next(self.streams.len())?;
        self.streams.push(0);
        Ok(StreamId(id))
    }

    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        let id = next(self.events.len())?;
        self.events.push(0);
        Ok(EventId(id))
    }

    fn prepare(&mut self, programs: Vec<Program>) -> Result<Vec<Prepared>, DeviceError> {
        let first = next(self.programs.len() + programs.len())? - programs.len() as u32;
        let ids = (first..).take(programs.len());
        let prepared = ids.map(|id| Prepared { graph: GraphId(id), mode: LaunchMode::Graph });
        self.programs.extend(programs);
        Ok(prepared.collect())
    }

    fn write_host(
        &mut self,
        host: HostId,
        offset: usize,
        bytes: usize,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        let part = self.host(host)?.bytes.bytes_mut().get_mut(offset..offset + bytes);
        write(part.ok_or_else(|| invalid("part of a host buffer"))?);
        Ok(())
    }

    fn read_host(
        &mut self,
        host: HostId,
        offset: usize,
        bytes: usize,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        let part = self.host(host)?.bytes.bytes().get(offset..offset + bytes);
        read(part.ok_or_else(|| invalid("part of a host buffer"))?);
        Ok(())
    }

    fn upload(
        &mut self,
        stream: StreamId,
        from: HostId,
        to: BufferId,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let done_micros = self.stream_time(stream)?;
        let Self { hosts, buffers, .. } = self;
        let host = hosts.get_mut(from.0 as usize).ok_or_else(|| invalid("host buffer"))?;
        let Some(Buffer::Own(buffer)) = buffers.get_mut(to.0 as usize) else {
            return Err(invalid("buffer"));
        };
        if bytes > host.bytes.len() || bytes > buffer.len() {
            return Err(invalid("size of an upload"));
        }
        buffer.bytes_mut()[..bytes].copy_from_slice(&host.bytes.bytes()[..bytes]);
        host.busy_until_micros = host.busy_until_micros.max(done_micros);
        Ok(())
    }

    fn download(
        &mut self,
        stream: StreamId,
        (buffer, buffer_offset): (BufferId, usize),
        (host, host_offset): (HostId, usize),
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let done_micros = self.stream_time(stream)?;
        let Self { hosts, buffers, .. } = self;
        let from = own_bytes(buffers, buffer)?.get(buffer_offset..buffer_offset + bytes);
        let host = hosts.get_mut(host.0 as usize).ok_or_else(|| invalid("host buffer"))?;
        let to = host.bytes.bytes_mut().get_mut(host_offset..host_offset + bytes);
        match (from, to) {
            (Some(from), Some(to)) => to.copy_from_slice(from),
            _ => return Err(invalid("size of a download")),
        }
        host.busy_until_micros = host.busy_until_micros.max(done_micros);
        Ok(())
    }

    fn launch(&mut self, stream: StreamId, graph: GraphId) -> Result<(), DeviceError> {
        self.run(stream, graph).map(drop)
    }

    fn launch_with_flag(
        &mut self,
        stream: StreamId,
        graph: GraphId,
        watch: &CompletionFlag,
    ) -> Result<(), DeviceError> {
        let done_micros = self.run(stream, graph)?;
        let event = self.events.get_mut(watch.event.0 as usize).ok_or_else(|| invalid("event"))?;
        *event = done_micros;
        Ok(())
    }

    fn run_cache_ops(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        commands: &[CacheCommand],
    ) -> Result<(), DeviceError> {
        self.stream_time(stream)?;
        let cache = self.caches.get_mut(cache.0 as usize).ok_or_else(|| invalid("cache"))?;
        let mut all = commands.iter();
        all.try_for_each(|command| cache.run_cache_ops(*command)).ok_or_else(|| invalid("cells"))
    }

    fn cache_image(&self, cache: CacheId) -> Option<CacheImage> {
        self.caches.get(cache.0 as usize).map(HashCache::image)
    }

    fn read_cache(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        part: &CachePart<'_>,
        (host, offset): (HostId, usize),
    ) -> Result<(), DeviceError> {
        let done_micros = self.stream_time(stream)? + COPY_MICROS;
        let cache = self.caches.get(cache.0 as usize).ok_or_else(|| invalid("cache"))?;
        let bytes = cache.read(part).ok_or_else(|| invalid("part of a cache"))?;
        let host = self.hosts.get_mut(host.0 as usize).ok_or_else(|| invalid("host buffer"))?;
        let to = host.bytes.bytes_mut().get_mut(offset..offset + bytes.len());
        to.ok_or_else(|| invalid("size of a copy"))?.copy_from_slice(&bytes);
        host.busy_until_micros = host.busy_until_micros.max(done_micros);
        self.set_stream_time(stream, done_micros);
        Ok(())
    }

    fn write_cache(
        &mut self,
        stream: StreamId,
        cache: CacheId,
        part: &CachePart<'_>,
        (host, offset): (HostId, usize),
    ) -> Result<(), DeviceError> {
        let done_micros = self.stream_time(stream)? + COPY_MICROS;
        let Self { hosts, caches, .. } = self;
        let cache = caches.get_mut(cache.0 as usize).ok_or_else(|| invalid("cache"))?;
        let host = hosts.get_mut(host.0 as usize).ok_or_else(|| invalid("host buffer"))?;
        let from = host.bytes.bytes().get(offset..).unwrap_or_default();
        cache.write(part, from).ok_or_else(|| invalid("part of a cache"))?;
        host.busy_until_micros = host.busy_until_micros.max(done_micros);
        self.set_stream_time(stream, done_micros);
        Ok(())
    }

    fn record(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let due_micros = self.stream_time(stream)?;
        let event = self.events.get_mut(event.0 as usize).ok_or_else(|| invalid("event"))?;
        *event = due_micros;
        Ok(())
    }

    fn wait(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let due = *self.events.get(event.0 as usize).ok_or_else(|| invalid("event"))?;
        let done = self.streams.get_mut(stream.0 as usize).ok_or_else(|| invalid("stream"))?;
        *done = due.max(*done);
        Ok(())
    }

    fn poll(&mut self, event: EventId) -> Result<bool, DeviceError> {
        let due_micros = self.events.get(event.0 as usize).ok_or_else(|| invalid("event"))?;
        Ok(*due_micros <= self.clock().now_micros())
    }

    /// Advances the clock to the completion of all work.
    fn synchronize(&mut self) -> Result<(), DeviceError> {
        let last = self.streams.iter().copied().max().unwrap_or(0);
        self.clock().advance_to(last);
        Ok(())
    }
}
