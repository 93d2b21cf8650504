//! Measures the device time of work, for benchmarks (feature `cupti`).
//!
//! A measurement consists of a first timing, which determines the number of runs, then dry runs,
//! then measured runs. Before each measured run, the L2 cache is flushed by reading twice its size.
//! (Writing would leave it full of dirty lines that the run has to write back first: 15 us for an
//! H200's 60 MB.) Times come from records of the profiling interface: every kernel, copy and fill
//! that the calls of a run started, joined by correlation id. All runs must execute the same
//! kernels. Without that library, times come from events around each run. A third method replays a
//! graph of several runs over different buffers, which keeps the cache cold without a flush.

mod spans;

use walla_device::{Device, DeviceError, GraphId, StreamId};

pub use self::spans::{Piece, Run};
use crate::device::CudaDevice;
use crate::driver::cupti::Session;
use crate::driver::{Event, Stream};
pub use crate::measure::Read;

/// Bytes read to flush L2, as a multiple of its size: its replacement policy is not exactly LRU.
const FLUSH_FACTOR: u64 = 2;

/// Runs of the first timing.
const FIRST_RUNS: u32 = 5;

/// Maximum number of runs: records of more would not fit.
const MAX_RUNS: f64 = 10_000.0;

/// Measurement method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Records of every kernel.
    Cupti,
    /// Events before and after each run. Launch time of the host is included if it exceeds the
    /// device's time.
    Events,
    /// A replayed graph of several runs. The bytes of all its runs together should exceed L2.
    GraphReplay {
        /// Runs of one replay: `work` receives 0 to `copies - 1`, to select a different buffer each
        /// time.
        copies: u32,
    },
}

/// Length and method of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimingOptions {
    /// Measurement method. [`Method::Cupti`] falls back to [`Method::Events`] without the library.
    pub method: Method,
    /// Milliseconds of unmeasured runs, in which clocks rise. Default 25.
    pub dry_ms: f64,
    /// Milliseconds of measured runs. Default 100.
    pub measured_ms: f64,
    /// Whether L2 is flushed before each run. Default true.
    pub cold: bool,
}

impl Default for TimingOptions {
    fn default() -> Self {
        Self { method: Method::Cupti, dry_ms: 25.0, measured_ms: 100.0, cold: true }
    }
}

/// Result of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// The method used.
    pub method: Method,
    /// Why it is not the requested method, if so.
    pub fallback: Option<String>,
    /// Microseconds of each run from its first start to its last end, sorted.
    pub span_micros: Vec<f64>,
    /// Every run with its kernels ([`Method::Cupti`] only).
    pub runs: Vec<Run>,
}

impl Timing {
    /// The median run, in microseconds.
    #[must_use]
    pub fn median_micros(&self) -> f64 {
        self.span_micros.get(self.span_micros.len() / 2).copied().unwrap_or_default()
    }
}

/// A kernel of a program, and the data that it reads at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelOfProgram {
    /// Its name.
    pub name: String,
    /// Index of its op in the program; `None` outside of ops.
    pub op: Option<u32>,
    /// Bytes of the matrices that it multiplies.
    pub weight_bytes: u64,
    /// Whether it reads keys and values.
    pub reads_pages: bool,
}

/// The work to measure: enqueues itself on the stream; receives the run's number.
pub type Work<'a> = dyn FnMut(&mut CudaDevice, StreamId, u32) -> Result<(), DeviceError> + 'a;

impl CudaDevice {
    /// Measures the work that `work` enqueues on a stream. The memory for flushing (twice the size
    /// of L2) and the events stay allocated for the next measurement. Each graph of
    /// [`Method::GraphReplay`] stays allocated until the device is dropped.
    ///
    /// # Errors
    /// An error of the device or of `work`, or [`DeviceError::Failed`] if runs cannot be compared.
    pub fn time(
        &mut self,
        stream: StreamId,
        options: TimingOptions,
        work: &mut Work<'_>,
    ) -> Result<Timing, DeviceError> {
        let is_flushed = options.cold && !matches!(options.method, Method::GraphReplay { .. });
        if is_flushed && self.kept.flush.is_none() {
            let l2_bytes = self.context.gpu().facts.l2_bytes;
            self.kept.flush = Some(self.prepare_read((FLUSH_FACTOR * l2_bytes).max(1 << 20))?);
        }
        let raw = self.resources.stream(stream)?.raw;
        let mut bench = Bench { device: self, stream, raw, is_flushed, work };
        let first = bench.events(FIRST_RUNS)?;
        let estimate_ms = (first.iter().sum::<f64>() / first.len().max(1) as f64 / 1e3).max(1e-4);
        let runs = |ms: f64, least: f64| (ms / estimate_ms).ceil().clamp(least, MAX_RUNS) as u32;
        let (dry, measured) = (runs(options.dry_ms, 1.0), runs(options.measured_ms, 5.0));
        bench.events(dry)?;
        let (method, fallback, mut span_micros, runs) = match options.method {
            Method::Events => (Method::Events, None, bench.events(measured)?, Vec::new()),
            Method::GraphReplay { copies } => {
                (options.method, None, bench.replays(copies.max(1), measured)?, Vec::new())
            }
            Method::Cupti => match Session::begin() {
                Err(why) => (Method::Events, Some(why), bench.events(measured)?, Vec::new()),
                Ok(session) => {
                    let runs = bench.records(session, measured)?;
                    let spans = runs.iter().map(|run| run.span_nanos() as f64 / 1e3).collect();
                    (Method::Cupti, None, spans, runs)
                }
            },
        };
        span_micros.sort_by(f64::total_cmp);
        Ok(Timing { method, fallback, span_micros, runs })
    }

    /// The kernels of a prepared program in order, with the bytes of weights that each reads.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] for an unknown program.
    pub fn kernels_of(&self, graph: GraphId) -> Result<Vec<KernelOfProgram>, DeviceError> {
        let unknown = || crate::resources::unknown(&graph);
        let program = self.resources.programs.get(graph.0 as usize).ok_or_else(unknown)?;
        Ok(program.launches.iter().map(|launch| self.kernel_of(launch)).collect())
    }

    /// A launch's kernel. The data it reads is identified by the addresses among its parameters.
    fn kernel_of(&self, launch: &crate::driver::Launch) -> KernelOfProgram {
        let name = self.kernels.name_of(launch.function).unwrap_or("?").to_owned();
        let has = |address: u64| address != 0 && launch.params.contains(&address);
        // `embed` reads only rows of the table.
        let reads_weights = name != "embed";
        let read = self.resources.matrices.iter().filter(|_| reads_weights);
        let read = read.filter(|matrix| has(matrix.memory.address()));
        // Recurrent layers have a single block.
        let mut layers = self.resources.caches.iter().flat_map(|cache| &cache.layers);
        let reads_pages = layers.any(|layer| layer.len() > 1 && has(layer[0].address()));
        KernelOfProgram {
            weight_bytes: read.map(|m| m.memory.bytes() as u64).sum(),
            reads_pages,
            op: launch.op,
            name,
        }
    }

    /// Prepares a kernel of known cost: it reads `bytes` bytes of dedicated memory once.
    ///
    /// # Errors
    /// Any device error.
    pub fn prepare_read(&mut self, bytes: u64) -> Result<Read, DeviceError> {
        Read::prepare(&self.context, &mut self.kernels, self.capture, bytes)
    }

    /// Enqueues the kernel of known cost.
    ///
    /// # Errors
    /// Any device error.
    pub fn enqueue_read(&mut self, stream: StreamId, read: &Read) -> Result<(), DeviceError> {
        let (raw, _) = self.resources.ticket(stream)?;
        read.enqueue(&self.context, raw)
    }
}

/// A measurement in progress.
struct Bench<'a, 'w> {
    device: &'a mut CudaDevice,
    stream: StreamId,
    raw: Stream,
    is_flushed: bool,
    work: &'a mut Work<'w>,
}

impl Bench<'_, '_> {
    /// Evicts the content of L2, if requested.
    fn flush(&self) -> Result<(), DeviceError> {
        match &self.device.kept.flush {
            Some(read) if self.is_flushed => read.enqueue(&self.device.context, self.raw),
            _ => Ok(()),
        }
    }

    /// The numbered pair of events: before and after a run.
    fn mark(&mut self, i: usize) -> Result<(Event, Event), DeviceError> {
        let (context, marks) = (&self.device.context, &mut self.device.kept.marks);
        while marks.len() <= i {
            marks.push((context.create_timing_event()?, context.create_timing_event()?));
        }
        Ok(marks[i])
    }

    /// Waits for all work; returns microseconds between the two events of the first `pairs` pairs.
    fn micros(&mut self, pairs: usize) -> Result<Vec<f64>, DeviceError> {
        self.device.synchronize()?;
        let (context, marks) = (&self.device.context, &self.device.kept.marks);
        marks[..pairs].iter().map(|&(begin, end)| context.micros_between(begin, end)).collect()
    }

    /// Microseconds between events around each run.
    fn events(&mut self, runs: u32) -> Result<Vec<f64>, DeviceError> {
        for i in 0..runs {
            let (begin, end) = self.mark(i as usize)?;
            self.flush()?;
            self.device.context.record(self.raw, begin)?;
            (self.work)(self.device, self.stream, i)?;
            self.device.context.record(self.raw, end)?;
        }
        self.micros(runs as usize)
    }

    /// Microseconds of a run, from replays of a graph of several.
    fn replays(&mut self, copies: u32, runs: u32) -> Result<Vec<f64>, DeviceError> {
        self.device.context.begin_capture(self.raw)?;
        // A graph launch cannot be captured, but its single launches can.
        self.device.is_capturing = true;
        let enqueued = (0..copies).try_for_each(|copy| (self.work)(self.device, self.stream, copy));
        self.device.is_capturing = false;
        let graph = self.device.context.end_capture(self.raw, enqueued)?;
        let replays = runs.div_ceil(copies).max(3) as usize;
        for i in 0..replays {
            let (begin, end) = self.mark(i)?;
            self.device.context.record(self.raw, begin)?;
            self.device.context.launch_graph(self.raw, &graph)?;
            self.device.context.record(self.raw, end)?;
        }
        let micros = self.micros(replays)?;
        Ok(micros.into_iter().map(|micros| micros / f64::from(copies)).collect())
    }

    /// Runs with all their records.
    fn records(&mut self, session: Session, runs: u32) -> Result<Vec<Run>, DeviceError> {
        let failed = |reason| DeviceError::Failed { call: "timing", reason };
        let mut windows = Vec::with_capacity(runs as usize);
        for i in 0..runs {
            self.flush()?;
            let from = session.now_nanos().map_err(failed)?;
            (self.work)(self.device, self.stream, i)?;
            windows.push((from, session.now_nanos().map_err(failed)?));
        }
        self.device.synchronize()?;
        let records = session.end().map_err(failed)?;
        spans::runs(&records, &windows).map_err(failed)
    }
}
