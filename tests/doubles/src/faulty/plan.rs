use std::ops::RangeInclusive;

use walla_device::philox4x32;

use super::VirtualClock;

/// A call of [`Device`](walla_device::Device) that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "named like the calls")]
pub enum Call {
    LoadMatrix,
    LoadVector,
    LoadRope,
    CreateCache,
    CreateBuffer,
    CreateHost,
    CreateStream,
    CreateEvent,
    Prepare,
    WriteHost,
    ReadHost,
    Upload,
    Download,
    Launch,
    Maintain,
    ReadCache,
    WriteCache,
    Record,
    Wait,
    Poll,
    Synchronize,
    ResizeCache,
}

impl Call {
    /// All calls.
    pub const ALL: [Self; 22] = [
        Self::LoadMatrix,
        Self::LoadVector,
        Self::LoadRope,
        Self::CreateCache,
        Self::CreateBuffer,
        Self::CreateHost,
        Self::CreateStream,
        Self::CreateEvent,
        Self::Prepare,
        Self::WriteHost,
        Self::ReadHost,
        Self::Upload,
        Self::Download,
        Self::Launch,
        Self::Maintain,
        Self::ReadCache,
        Self::WriteCache,
        Self::Record,
        Self::Wait,
        Self::Poll,
        Self::Synchronize,
        Self::ResizeCache,
    ];

    /// Whether the call is made during play, not while loading.
    #[must_use]
    pub fn is_play(self) -> bool {
        (Self::WriteHost as usize..Self::Synchronize as usize).contains(&(self as usize))
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::LoadMatrix => "load_matrix",
            Self::LoadVector => "load_vector",
            Self::LoadRope => "load_rope",
            Self::ResizeCache => "resize_cache",
            Self::CreateCache => "create_cache",
            Self::CreateBuffer => "create_buffer",
            Self::CreateHost => "create_host",
            Self::CreateStream => "create_stream",
            Self::CreateEvent => "create_event",
            Self::Prepare => "prepare",
            Self::WriteHost => "write_host",
            Self::ReadHost => "read_host",
            Self::Upload => "upload",
            Self::Download => "download",
            Self::Launch => "launch",
            Self::Maintain => "run_cache_ops",
            Self::ReadCache => "read_cache",
            Self::WriteCache => "write_cache",
            Self::Record => "record",
            Self::Wait => "wait",
            Self::Poll => "poll",
            Self::Synchronize => "synchronise",
        }
    }
}

/// Kind of an injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// [`DeviceError::Failed`](walla_device::DeviceError::Failed): the call has no effect.
    Failed,
    /// [`DeviceError::Lost`](walla_device::DeviceError::Lost): the device is permanently lost.
    Lost,
}

/// Faults to inject. A new plan has none.
///
/// Calls are numbered from 0. The same plan and the same calls always give the same faults.
///
/// # Examples
/// ```
/// use walla_doubles::faulty::{Call, Fault, FaultPlan};
/// let third_launch_loses_the_device = FaultPlan::new(7).fail_call(Call::Launch, 2, Fault::Lost);
/// let slow = FaultPlan::new(7).delay_micros(100..=2_000);
/// ```
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    pub(super) seed: u64,
    pub(super) failures: Vec<Failure>,
    pub(super) play_failures_per_million: u32,
    pub(super) max_memory_bytes: Option<u64>,
    pub(super) delay_micros: Option<RangeInclusive<u64>>,
    pub(super) never: Vec<u64>,
    pub(super) poisons: Vec<Poison>,
    pub(super) misdirected_from: Option<u64>,
    pub(super) clock: VirtualClock,
}

/// Fault of call number `nth`, of one kind or of all calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    call: Option<Call>,
    nth: u64,
    fault: Fault,
}

/// Output row `output` of launch number `launch` is reported as not finite.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poison {
    pub(super) launch: u64,
    pub(super) output: u32,
}

impl FaultPlan {
    /// A plan without faults. `seed` determines all random choices.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Injects a fault into the `nth` call of any kind.
    #[must_use]
    pub fn fail(mut self, nth: u64, fault: Fault) -> Self {
        self.failures.push(Failure { call: None, nth, fault });
        self
    }

    /// Injects a fault into the `nth` call of one kind.
    #[must_use]
    pub fn fail_call(mut self, call: Call, nth: u64, fault: Fault) -> Self {
        self.failures.push(Failure { call: Some(call), nth, fault });
        self
    }

    /// Random calls during play return `Failed`, `per_million` of a million on average.
    #[must_use]
    pub fn fail_in_play(mut self, per_million: u32) -> Self {
        self.play_failures_per_million = per_million;
        self
    }

    /// Limits the total allocation (weights, caches, buffers and pinned memory) to `bytes`.
    /// Allocations beyond it are out of memory.
    #[must_use]
    pub fn max_memory_bytes(mut self, bytes: u64) -> Self {
        self.max_memory_bytes = Some(bytes);
        self
    }

    /// Each event completes, at the earliest, after a delay in microseconds of the plan's
    /// [clock](Self::clock), drawn from the range. Streams keep their order, and host buffers stay
    /// in flight as long as their copies.
    #[must_use]
    pub fn delay_micros(mut self, range: RangeInclusive<u64>) -> Self {
        self.delay_micros = Some(range);
        self
    }

    /// The `nth` record never completes, nor does later work on its stream: a hung kernel.
    #[must_use]
    pub fn never_complete(mut self, nth: u64) -> Self {
        self.never.push(nth);
        self
    }

    /// Reports output row `output` of the `nth` launch as
    /// [`NOT_FINITE`](walla_device::step::ResultRow::NOT_FINITE).
    #[must_use]
    pub fn poison(mut self, nth: u64, output: u32) -> Self {
        self.poisons.push(Poison { launch: nth, output });
        self
    }

    /// From step number `step` on, page tables point outside of all memory. This fault is not
    /// simulated: a GPU reads an illegal address and its context is lost; devices that validate
    /// their inputs refuse the step.
    #[must_use]
    pub fn misdirect_from(mut self, step: u64) -> Self {
        self.misdirected_from = Some(step);
        self
    }

    /// The clock of the delays. Default: a separate one that does not advance.
    #[must_use]
    pub fn clock(mut self, clock: &VirtualClock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// The fault of a call: number `of_all` of all calls, number `of_kind` of its kind.
    pub(super) fn fault(&self, call: Call, of_kind: u64, of_all: u64) -> Option<Fault> {
        let planned = self.failures.iter().find(|failure| match failure.call {
            None => failure.nth == of_all,
            Some(of) => of == call && failure.nth == of_kind,
        });
        if let Some(failure) = planned {
            return Some(failure.fault);
        }
        let is_random = self.play_failures_per_million > 0 && call.is_play();
        let fails = is_random && self.draw(0, of_all) % 1_000_000 < self.play_failures_per_million;
        fails.then_some(Fault::Failed)
    }

    /// Delay of record number `record` in microseconds; `None`: never completes.
    pub(super) fn delay(&self, record: u64) -> Option<u64> {
        if self.never.contains(&record) {
            return None;
        }
        let Some(range) = &self.delay_micros else { return Some(0) };
        let span = range.end().saturating_sub(*range.start()).saturating_add(1);
        Some(range.start() + u64::from(self.draw(1, record)) % span)
    }

    /// Whether any completion is delayed.
    pub(super) fn delays(&self) -> bool {
        self.delay_micros.is_some() || !self.never.is_empty()
    }

    fn draw(&self, what: u32, number: u64) -> u32 {
        let [low, high] = [number as u32, (number >> 32) as u32];
        philox4x32([low, high, what, 0], [self.seed as u32, (self.seed >> 32) as u32])[0]
    }
}
