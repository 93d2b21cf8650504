//! Pipelines, and command buffers that are recorded once.

use ash::vk;
use walla_device::DeviceError;

use super::context::{Context, PUSH_BYTES};
use super::exit;
use super::memory::{Memory, Place};

/// A compute shader that is ready to dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pipeline(vk::Pipeline);

/// A recorded command buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commands(vk::CommandBuffer);

/// A dispatch with its push constants.
#[derive(Clone, Debug)]
pub(crate) struct Dispatch {
    pub(crate) pipeline: Pipeline,
    pub(crate) groups: [u32; 3],
    pub(crate) push: Vec<u8>,
    /// It reads results of the dispatch before.
    pub(crate) waits: bool,
}

/// Timestamps of a program's begin and end: a pool of queries, and device memory for two numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) pool: vk::QueryPool,
    pub(crate) memory: Memory,
}

/// Dispatches with timestamps around each.
#[derive(Debug)]
pub(crate) struct Timed {
    commands: Commands,
    pool: vk::QueryPool,
    count: u32,
}

impl Commands {
    /// For a submission.
    pub(super) fn info(self) -> vk::CommandBufferSubmitInfo<'static> {
        vk::CommandBufferSubmitInfo::default().command_buffer(self.0)
    }
}

impl Context {
    /// Creates the pipeline of a shader: SPIR-V whose entry is `main`, with values for its
    /// constants from number 0 on.
    pub(crate) fn pipeline(
        &mut self,
        name: &str,
        spirv: &[u32],
        constants: &[u32],
    ) -> Result<Pipeline, DeviceError> {
        self.refuse_lost()?;
        let _call = exit::call();
        let info = vk::ShaderModuleCreateInfo::default().code(spirv);
        // SAFETY: the crate's shaders are valid SPIR-V.
        let module = unsafe { self.device.create_shader_module(&info, None) };
        let module = self.check("vkCreateShaderModule", module)?;
        let entries: Vec<_> = (0..constants.len() as u32)
            .map(|id| vk::SpecializationMapEntry { constant_id: id, offset: 4 * id, size: 4 })
            .collect();
        let values = vk::SpecializationInfo::default()
            .map_entries(&entries)
            .data(bytemuck::cast_slice(constants));
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .specialization_info(&values)
            .name(c"main");
        let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(self.layout)];
        // SAFETY: the shader's interface is the layout's.
        let pipelines = unsafe { self.device.create_compute_pipelines(self.cache, &info, None) };
        // SAFETY: a pipeline does not need its module.
        unsafe { self.device.destroy_shader_module(module, None) };
        let pipelines = pipelines.map_err(|(_, error)| error);
        let pipelines = self.check("vkCreateComputePipelines", pipelines)?;
        let Some(pipeline) = pipelines.first() else {
            return Err(DeviceError::Invalid(format!("no pipeline {name}")));
        };
        self.counters.modules += 1;
        self.pipelines.push(*pipeline);
        Ok(Pipeline(*pipeline))
    }

    /// Keeps the pipelines on disk, if there are others than before. A failure has no effect.
    pub(crate) fn keep_pipelines(&mut self) {
        let Some(file) = &mut self.cache_file else { return };
        let _call = exit::call();
        // SAFETY: the cache is this device's.
        if let Ok(data) = unsafe { self.device.get_pipeline_cache_data(self.cache) } {
            file.write(&data);
        }
    }

    /// Timestamps for one program; `None` if the queue has none.
    pub(crate) fn clock(&mut self) -> Result<Option<Clock>, DeviceError> {
        if self.gpu.timestamp_nanos == 0.0 {
            return Ok(None);
        }
        let _call = exit::call();
        let pool = self.queries(2)?;
        let memory = self.allocate("timestamps", 16, Place::Device)?;
        Ok(Some(Clock { pool, memory }))
    }

    /// A pool of timestamps.
    fn queries(&mut self, count: u32) -> Result<vk::QueryPool, DeviceError> {
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count(count);
        // SAFETY: the queue has timestamps.
        let pool = unsafe { self.device.create_query_pool(&info, None) };
        let pool = self.check("vkCreateQueryPool", pool)?;
        self.queries.push(pool);
        Ok(pool)
    }

    fn begin(&mut self) -> Result<vk::CommandBuffer, DeviceError> {
        self.refuse_lost()?;
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.pool)
            .command_buffer_count(1);
        // SAFETY: the pool is this device's.
        let buffers = unsafe { self.device.allocate_command_buffers(&info) };
        let buffers = self.check("vkAllocateCommandBuffers", buffers)?;
        let Some(buffer) = buffers.first().copied() else {
            return Err(DeviceError::Invalid("no command buffer".to_owned()));
        };
        let info = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE);
        // SAFETY: it is new.
        let begun = unsafe { self.device.begin_command_buffer(buffer, &info) };
        self.check("vkBeginCommandBuffer", begun)?;
        let all = vk::PipelineStageFlags2::ALL_COMMANDS;
        // Behind all earlier submissions, and the host's writes before this one.
        self.barrier(buffer, all | vk::PipelineStageFlags2::HOST, all);
        Ok(buffer)
    }

    /// Makes all writes before visible to all accesses behind it.
    fn barrier(
        &self,
        buffer: vk::CommandBuffer,
        from: vk::PipelineStageFlags2,
        to: vk::PipelineStageFlags2,
    ) {
        let barrier = [vk::MemoryBarrier2::default()
            .src_stage_mask(from)
            .src_access_mask(vk::AccessFlags2::MEMORY_WRITE)
            .dst_stage_mask(to)
            .dst_access_mask(vk::AccessFlags2::MEMORY_READ | vk::AccessFlags2::MEMORY_WRITE)];
        let info = vk::DependencyInfo::default().memory_barriers(&barrier);
        // SAFETY: the buffer is being recorded.
        unsafe { (self.synchronization.cmd_pipeline_barrier2_khr)(buffer, &info) };
    }

    /// Makes results of shaders visible to the next ones. Other caches keep their content, so it is
    /// cheaper than [`barrier`](Self::barrier).
    fn barrier_of_shaders(&self, buffer: vk::CommandBuffer) {
        let (write, read) =
            (vk::AccessFlags2::SHADER_STORAGE_WRITE, vk::AccessFlags2::SHADER_STORAGE_READ);
        let barrier = [vk::MemoryBarrier2::default()
            .src_stage_mask(vk::PipelineStageFlags2::COMPUTE_SHADER)
            .src_access_mask(write)
            .dst_stage_mask(vk::PipelineStageFlags2::COMPUTE_SHADER)
            .dst_access_mask(read | write)];
        let info = vk::DependencyInfo::default().memory_barriers(&barrier);
        // SAFETY: the buffer is being recorded.
        unsafe { (self.synchronization.cmd_pipeline_barrier2_khr)(buffer, &info) };
    }

    fn end(&mut self, buffer: vk::CommandBuffer) -> Result<Commands, DeviceError> {
        let all = vk::PipelineStageFlags2::ALL_COMMANDS;
        self.barrier(buffer, all, vk::PipelineStageFlags2::HOST);
        // SAFETY: the buffer is being recorded.
        let ended = unsafe { self.device.end_command_buffer(buffer) };
        self.check("vkEndCommandBuffer", ended)?;
        self.counters.captures += 1;
        Ok(Commands(buffer))
    }

    /// Records dispatches, each behind the one before it. With a clock, its memory has the
    /// timestamps of the begin and of the end of all but the last dispatch when that one runs.
    pub(crate) fn record(
        &mut self,
        dispatches: &[Dispatch],
        clock: Option<Clock>,
    ) -> Result<Commands, DeviceError> {
        let _call = exit::call();
        let compute = vk::PipelineStageFlags2::COMPUTE_SHADER;
        let buffer = self.begin()?;
        if let Some(clock) = clock {
            // SAFETY: the pool has two queries.
            unsafe { self.device.cmd_reset_query_pool(buffer, clock.pool, 0, 2) };
            self.timestamp(buffer, clock.pool, 0);
        }
        for (index, dispatch) in dispatches.iter().enumerate() {
            if index > 0 && dispatch.waits {
                self.barrier_of_shaders(buffer);
            }
            if let Some(clock) = clock.filter(|_| index + 1 == dispatches.len()) {
                self.timestamp(buffer, clock.pool, 1);
                let (to, offset) = self.place_of(&clock.memory);
                let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
                // SAFETY: the memory holds two numbers; both queries were written.
                unsafe {
                    self.device.cmd_copy_query_pool_results(
                        buffer, clock.pool, 0, 2, to, offset, 8, flags,
                    );
                }
                self.barrier(buffer, vk::PipelineStageFlags2::ALL_TRANSFER, compute);
            }
            self.dispatch(buffer, dispatch);
        }
        self.end(buffer)
    }

    /// Records dispatches as [`record`](Self::record) does, with a timestamp before each and behind
    /// the last.
    pub(crate) fn record_timed(&mut self, dispatches: &[Dispatch]) -> Result<Timed, DeviceError> {
        let count = dispatches.len() as u32 + 1;
        if self.gpu.timestamp_nanos == 0.0 {
            let what = "timestamps".to_owned();
            return Err(DeviceError::Unsupported { device: self.gpu.name.clone(), what });
        }
        let _call = exit::call();
        let pool = self.queries(count)?;
        let buffer = self.begin()?;
        // SAFETY: the pool has this many queries.
        unsafe { self.device.cmd_reset_query_pool(buffer, pool, 0, count) };
        for (query, dispatch) in (0..).zip(dispatches) {
            self.barrier_of_shaders(buffer);
            self.timestamp(buffer, pool, query);
            self.dispatch(buffer, dispatch);
        }
        self.timestamp(buffer, pool, count - 1);
        Ok(Timed { commands: self.end(buffer)?, pool, count })
    }

    /// Runs recorded dispatches and waits for them. Returns the nanoseconds of each.
    pub(crate) fn run_timed(&mut self, timed: &Timed) -> Result<Vec<f64>, DeviceError> {
        let _call = exit::call();
        self.submit(&[timed.commands])?;
        self.synchronize()?;
        let mut ticks = vec![0_u64; timed.count as usize];
        let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        // SAFETY: all queries were written.
        let read = unsafe { self.device.get_query_pool_results(timed.pool, 0, &mut ticks, flags) };
        self.check("vkGetQueryPoolResults", read)?;
        let nanos = f64::from(self.gpu.timestamp_nanos);
        let spans = ticks.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) as f64 * nanos);
        Ok(spans.collect())
    }

    fn timestamp(&self, buffer: vk::CommandBuffer, pool: vk::QueryPool, query: u32) {
        let stage = vk::PipelineStageFlags2::COMPUTE_SHADER;
        // SAFETY: the pool has the query, which was reset.
        unsafe { (self.synchronization.cmd_write_timestamp2_khr)(buffer, stage, pool, query) };
    }

    fn dispatch(&self, buffer: vk::CommandBuffer, dispatch: &Dispatch) {
        let point = vk::PipelineBindPoint::COMPUTE;
        // SAFETY: the pipeline is this device's.
        unsafe { self.device.cmd_bind_pipeline(buffer, point, dispatch.pipeline.0) };
        let stage = vk::ShaderStageFlags::COMPUTE;
        debug_assert!(dispatch.push.len() <= PUSH_BYTES as usize, "push constants are too long");
        // SAFETY: the layout has this many bytes.
        unsafe {
            self.device.cmd_push_constants(buffer, self.layout, stage, 0, &dispatch.push);
        }
        let [x, y, z] = dispatch.groups;
        // SAFETY: all addresses in the push constants are of memory of this context, and the host
        // has checked the sizes.
        unsafe { self.device.cmd_dispatch(buffer, x, y, z) };
    }

    /// Copies bytes between two parts of memory and waits for the copy: for loading.
    pub(crate) fn copy_now(
        &mut self,
        (from, from_offset): (&Memory, usize),
        (to, to_offset): (&Memory, usize),
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let fits = |memory: &Memory, offset: usize| {
            offset.checked_add(bytes).is_some_and(|end| end <= memory.bytes())
        };
        if !fits(from, from_offset) || !fits(to, to_offset) {
            return Err(DeviceError::Invalid(format!("a copy of {bytes} bytes beyond an end")));
        }
        let ((from, from_start), (to, to_start)) = (self.place_of(from), self.place_of(to));
        let region = [vk::BufferCopy::default()
            .src_offset(from_start + from_offset as u64)
            .dst_offset(to_start + to_offset as u64)
            .size(bytes as u64)];
        self.now(|device, buffer| {
            // SAFETY: both ranges are inside of their buffers.
            unsafe { device.cmd_copy_buffer(buffer, from, to, &region) };
        })
    }

    /// Fills memory of the device with a word and waits for it.
    pub(crate) fn fill_now(&mut self, memory: &Memory, word: u32) -> Result<(), DeviceError> {
        let (to, offset) = self.place_of(memory);
        let bytes = (memory.bytes() as u64).next_multiple_of(4);
        self.now(|device, buffer| {
            // SAFETY: parts are padded to whole words.
            unsafe { device.cmd_fill_buffer(buffer, to, offset, bytes, word) };
        })
    }

    /// Records, submits and waits.
    fn now(
        &mut self,
        record: impl FnOnce(&ash::Device, vk::CommandBuffer),
    ) -> Result<(), DeviceError> {
        let _call = exit::call();
        let buffer = self.begin()?;
        record(&self.device, buffer);
        let commands = self.end(buffer)?;
        self.submit(&[commands])?;
        self.synchronize()?;
        // SAFETY: it has ended.
        unsafe { self.device.free_command_buffers(self.pool, &[commands.0]) };
        Ok(())
    }
}
