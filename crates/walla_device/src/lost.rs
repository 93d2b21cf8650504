use walla_types::CacheCommand;

use crate::cache::CacheDesc;
use crate::counters::{DeviceCounters, GraphFallbacks};
use crate::device::{
    CompletionFlag, Device, MatrixDesc, MemoryUse, Prepared, RopeDesc, StreamPriority,
};
use crate::error::DeviceError;
use crate::handles::{
    BufferId, CacheId, EventId, GraphId, HostId, MatrixId, RopeId, StreamId, VectorId,
};
use crate::image::CachePart;
use crate::info::DeviceInfo;
use crate::op::Program;
use crate::weights::WeightSource;

/// Replaces a hung device: every call returns [`DeviceError::Lost`].
#[derive(Debug)]
struct LostDevice {
    info: DeviceInfo,
    memory: MemoryUse,
    counters: DeviceCounters,
    graph_fallbacks: GraphFallbacks,
    reason: String,
}

/// Abandons a hung device. No call reaches it again. It is leaked, not dropped: its memory may
/// still be written, and a driver may block on a kernel that never ends.
///
/// It is replaced by a device whose every call returns an error with [`DeviceError::is_lost`] and
/// the given reason.
pub fn abandon(device: &mut Box<dyn Device>, reason: &str) {
    let lost = LostDevice {
        info: device.info().clone(),
        memory: device.memory(),
        counters: device.counters(),
        graph_fallbacks: device.graph_fallbacks(),
        reason: reason.to_owned(),
    };
    std::mem::forget(std::mem::replace(device, Box::new(lost)));
}

/// Calls that return [`DeviceError::Lost`] for all arguments.
macro_rules! lost {
    ($(fn $call:ident($($arg:ty),*) -> $result:ty;)*) => {$(
        fn $call(&mut self, $(_: $arg),*) -> Result<$result, DeviceError> {
            Err(DeviceError::Lost { call: stringify!($call), reason: self.reason.clone() })
        }
    )*};
}

impl Device for LostDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> MemoryUse {
        self.memory
    }

    fn counters(&self) -> DeviceCounters {
        self.counters
    }

    fn graph_fallbacks(&self) -> GraphFallbacks {
        self.graph_fallbacks
    }

    lost! {
        fn read_bytes_per_second() -> Option<f64>;
        fn load_matrix(&MatrixDesc<'_>, &dyn WeightSource) -> MatrixId;
        fn load_vector(&str, &[f32]) -> VectorId;
        fn load_rope(&RopeDesc<'_>) -> RopeId;
        fn create_cache(&CacheDesc) -> CacheId;
        fn resize_cache(CacheId, u32) -> ();
        fn create_buffer(&str, usize) -> BufferId;
        fn create_host(&str, usize) -> HostId;
        fn create_mapped(&str, usize) -> Option<(BufferId, HostId)>;
        fn create_stream(StreamPriority) -> StreamId;
        fn create_event() -> EventId;
        fn prepare(Vec<Program>) -> Vec<Prepared>;
        fn write_host(HostId, usize, usize, &mut dyn FnMut(&mut [u8])) -> ();
        fn read_host(HostId, usize, usize, &mut dyn FnMut(&[u8])) -> ();
        fn upload(StreamId, HostId, BufferId, usize) -> ();
        fn download(StreamId, (BufferId, usize), (HostId, usize), usize) -> ();
        fn launch(StreamId, GraphId) -> ();
        fn launch_with_flag(StreamId, GraphId, &CompletionFlag) -> ();
        fn run_cache_ops(StreamId, CacheId, &[CacheCommand]) -> ();
        fn read_cache(StreamId, CacheId, &CachePart<'_>, (HostId, usize)) -> ();
        fn write_cache(StreamId, CacheId, &CachePart<'_>, (HostId, usize)) -> ();
        fn record(StreamId, EventId) -> ();
        fn wait(StreamId, EventId) -> ();
        fn poll(EventId) -> bool;
        fn synchronize() -> ();
    }
}
