use walla_types::CacheCommand;

use crate::cache::CacheDesc;
use crate::counters::{DeviceCounters, GraphFallbacks};
use crate::device::{Device, MatrixDesc, MemoryUse, Prepared, RopeDesc, StreamPriority};
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

impl LostDevice {
    fn lost<T>(&self, call: &'static str) -> Result<T, DeviceError> {
        Err(DeviceError::Lost { call, reason: self.reason.clone() })
    }
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

    fn load_matrix(
        &mut self,
        _: &MatrixDesc<'_>,
        _: &dyn WeightSource,
    ) -> Result<MatrixId, DeviceError> {
        self.lost("load_matrix")
    }

    fn load_vector(&mut self, _: &str, _: &[f32]) -> Result<VectorId, DeviceError> {
        self.lost("load_vector")
    }

    fn load_rope(&mut self, _: &RopeDesc<'_>) -> Result<RopeId, DeviceError> {
        self.lost("load_rope")
    }

    fn create_cache(&mut self, _: &CacheDesc) -> Result<CacheId, DeviceError> {
        self.lost("create_cache")
    }

    fn resize_cache(&mut self, _: CacheId, _: u32) -> Result<(), DeviceError> {
        self.lost("resize_cache")
    }

    fn create_buffer(&mut self, _: &str, _: usize) -> Result<BufferId, DeviceError> {
        self.lost("create_buffer")
    }

    fn create_host(&mut self, _: &str, _: usize) -> Result<HostId, DeviceError> {
        self.lost("create_host")
    }

    fn create_stream(&mut self, _: StreamPriority) -> Result<StreamId, DeviceError> {
        self.lost("create_stream")
    }

    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        self.lost("create_event")
    }

    fn prepare(&mut self, _: Vec<Program>) -> Result<Vec<Prepared>, DeviceError> {
        self.lost("prepare")
    }

    fn write_host(
        &mut self,
        _: HostId,
        _: usize,
        _: usize,
        _: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        self.lost("write_host")
    }

    fn read_host(
        &mut self,
        _: HostId,
        _: usize,
        _: usize,
        _: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DeviceError> {
        self.lost("read_host")
    }

    fn upload(&mut self, _: StreamId, _: HostId, _: BufferId, _: usize) -> Result<(), DeviceError> {
        self.lost("upload")
    }

    fn download(
        &mut self,
        _: StreamId,
        _: (BufferId, usize),
        _: (HostId, usize),
        _: usize,
    ) -> Result<(), DeviceError> {
        self.lost("download")
    }

    fn launch(&mut self, _: StreamId, _: GraphId) -> Result<(), DeviceError> {
        self.lost("launch")
    }

    fn run_cache_ops(
        &mut self,
        _: StreamId,
        _: CacheId,
        _: &[CacheCommand],
    ) -> Result<(), DeviceError> {
        self.lost("run_cache_ops")
    }

    fn read_cache(
        &mut self,
        _: StreamId,
        _: CacheId,
        _: &CachePart<'_>,
        _: (HostId, usize),
    ) -> Result<(), DeviceError> {
        self.lost("read_cache")
    }

    fn write_cache(
        &mut self,
        _: StreamId,
        _: CacheId,
        _: &CachePart<'_>,
        _: (HostId, usize),
    ) -> Result<(), DeviceError> {
        self.lost("write_cache")
    }

    fn record(&mut self, _: StreamId, _: EventId) -> Result<(), DeviceError> {
        self.lost("record")
    }

    fn wait(&mut self, _: StreamId, _: EventId) -> Result<(), DeviceError> {
        self.lost("wait")
    }

    fn poll(&mut self, _: EventId) -> Result<bool, DeviceError> {
        self.lost("poll")
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.lost("synchronise")
    }
}
