//! A logical device with one queue.

use std::path::Path;

use ash::khr::synchronization2::DeviceFn;
use ash::vk;
use walla_device::{DeviceCounters, DeviceError};

use super::devices;
use super::exit;
use super::gpu::{Gpu, Library};
use super::memory::Arena;
use super::pipeline_cache::CacheFile;
use super::record::Commands;

/// Command buffers of one submission, without an allocation.
const MAX_COMMANDS: usize = 512;
/// Time that dropping a context waits for its work.
const END_NANOS: u64 = 1_000_000_000;

/// A logical device. It owns all that is made in it.
pub(crate) struct Context {
    pub(super) device: ash::Device,
    pub(super) synchronization: DeviceFn,
    pub(super) library: &'static Library,
    pub(super) gpu: Gpu,
    queue: vk::Queue,
    timeline: vk::Semaphore,
    pub(super) pool: vk::CommandPool,
    pub(super) layout: vk::PipelineLayout,
    pub(super) cache: vk::PipelineCache,
    /// Where the cache is kept.
    pub(super) cache_file: Option<CacheFile>,
    pub(super) memory_types: vk::PhysicalDeviceMemoryProperties,
    pub(super) arenas: Vec<Arena>,
    pub(super) pipelines: Vec<vk::Pipeline>,
    pub(super) queries: Vec<vk::QueryPool>,
    pub(super) counters: DeviceCounters,
    /// Bytes that may be allocated on the device, as declared, and are.
    pub(super) max_bytes: Option<u64>,
    pub(super) used_bytes: u64,
    /// Scratch of the next submission.
    infos: Vec<vk::CommandBufferSubmitInfo<'static>>,
    submitted: u64,
    reached: u64,
    lost: Option<DeviceError>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("gpu", &self.gpu).finish_non_exhaustive()
    }
}

/// Bytes of push constants: the guaranteed number.
pub(crate) const PUSH_BYTES: u32 = 128;

impl Context {
    /// Opens a GPU. `cache` is the folder in which its pipelines are kept.
    ///
    /// # Errors
    /// A feature that it lacks, or the driver's error.
    pub(crate) fn open(
        library: &'static Library,
        gpu: &Gpu,
        max_bytes: Option<u64>,
        cache: Option<&Path>,
    ) -> Result<Self, DeviceError> {
        if let Some(what) = &gpu.lacks {
            return Err(DeviceError::Unsupported { device: gpu.name.clone(), what: what.clone() });
        }
        let _call = exit::call();
        let device = devices::take(library, gpu)?;
        let synchronization = devices::synchronization(library, gpu, &device)?;
        // SAFETY: the queue was created with the device.
        let queue = unsafe { device.get_device_queue(gpu.family, 0) };
        let mut kind = vk::SemaphoreTypeCreateInfo::default()
            .semaphore_type(vk::SemaphoreType::TIMELINE)
            .initial_value(0);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: timeline semaphores are enabled.
        let timeline = unsafe { device.create_semaphore(&info, None) };
        let timeline = timeline.map_err(|error| failed("vkCreateSemaphore", error))?;
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(gpu.family);
        // SAFETY: the family is the queue's.
        let pool = unsafe { device.create_command_pool(&info, None) };
        let pool = pool.map_err(|error| failed("vkCreateCommandPool", error))?;
        let range = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(PUSH_BYTES)];
        let info = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&range);
        // SAFETY: every device has this many bytes of push constants.
        let layout = unsafe { device.create_pipeline_layout(&info, None) };
        let layout = layout.map_err(|error| failed("vkCreatePipelineLayout", error))?;
        let mut cache_file = cache.map(|folder| CacheFile::new(folder, &gpu.cache_key));
        let kept = cache_file.as_mut().and_then(CacheFile::read).unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(&kept);
        // SAFETY: the data is none, or this driver's for this GPU, as its header and its checksum
        // show.
        let cache = unsafe { device.create_pipeline_cache(&info, None) };
        let cache = cache.map_err(|error| failed("vkCreatePipelineCache", error))?;
        // SAFETY: the GPU is the instance's.
        let memory_types =
            unsafe { library.instance.get_physical_device_memory_properties(gpu.physical) };
        Ok(Self {
            device,
            synchronization,
            library,
            gpu: gpu.clone(),
            queue,
            timeline,
            pool,
            layout,
            cache,
            cache_file,
            memory_types,
            arenas: Vec::new(),
            pipelines: Vec::new(),
            queries: Vec::new(),
            counters: DeviceCounters::default(),
            max_bytes,
            used_bytes: 0,
            infos: Vec::with_capacity(MAX_COMMANDS),
            submitted: 0,
            reached: 0,
            lost: None,
        })
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) fn counters(&self) -> DeviceCounters {
        self.counters
    }

    /// Refuses every call of a lost device.
    pub(crate) fn refuse_lost(&self) -> Result<(), DeviceError> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// The result of a call; remembers that the device is lost.
    pub(super) fn check<T>(
        &mut self,
        call: &'static str,
        result: Result<T, vk::Result>,
    ) -> Result<T, DeviceError> {
        result.map_err(|error| {
            let error = failed(call, error);
            if error.is_lost() {
                self.lost = Some(error.clone());
            }
            error
        })
    }

    /// The latest ticket.
    pub(crate) fn submitted(&self) -> u64 {
        self.submitted
    }

    /// Enqueues recorded command buffers, in this order. Returns their ticket.
    pub(crate) fn submit(&mut self, commands: &[Commands]) -> Result<u64, DeviceError> {
        self.refuse_lost()?;
        let _call = exit::call();
        self.infos.clear();
        self.infos.extend(commands.iter().map(|commands| commands.info()));
        let ticket = self.submitted + 1;
        let signal = [vk::SemaphoreSubmitInfo::default()
            .semaphore(self.timeline)
            .value(ticket)
            .stage_mask(vk::PipelineStageFlags2::ALL_COMMANDS)];
        let submit = [vk::SubmitInfo2::default()
            .command_buffer_infos(&self.infos)
            .signal_semaphore_infos(&signal)];
        // SAFETY: the buffers are recorded, of this device, and may be submitted again while they
        // are in flight.
        let result = unsafe {
            let none = vk::Fence::null();
            (self.synchronization.queue_submit2_khr)(self.queue, 1, submit.as_ptr(), none).result()
        };
        self.check("vkQueueSubmit2", result)?;
        self.counters.graph_launches += 1;
        self.submitted = ticket;
        Ok(ticket)
    }

    /// Whether the work of a ticket, and all before it, is complete.
    pub(crate) fn has_reached(&mut self, ticket: u64) -> Result<bool, DeviceError> {
        if ticket <= self.reached {
            return Ok(true);
        }
        self.refuse_lost()?;
        let _call = exit::call();
        self.counters.event_queries += 1;
        // SAFETY: the semaphore is a timeline of this device.
        let value = unsafe { self.device.get_semaphore_counter_value(self.timeline) };
        // Some drivers give the largest number for a lost device.
        let value = value.and_then(|value| match value > self.submitted {
            true => Err(vk::Result::ERROR_DEVICE_LOST),
            false => Ok(value),
        });
        self.reached = self.check("vkGetSemaphoreCounterValue", value)?;
        Ok(ticket <= self.reached)
    }

    /// Waits for all work.
    pub(crate) fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.refuse_lost()?;
        self.counters.synchronizations += 1;
        let result = self.wait(u64::MAX);
        self.check("vkWaitSemaphores", result)?;
        self.reached = self.submitted;
        Ok(())
    }

    fn wait(&self, nanos: u64) -> Result<(), vk::Result> {
        let (semaphores, values) = ([self.timeline], [self.submitted]);
        let _call = exit::call();
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is a timeline of this device.
        unsafe { self.device.wait_semaphores(&info, nanos) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A device that does not end its work, or that was lost while it may still do some, is left
        // as it is, with its memory: nothing may be destroyed under it.
        if self.lost.is_some() || self.wait(END_NANOS).is_err() {
            return;
        }
        for pipeline in &self.pipelines {
            let _call = exit::call();
            // SAFETY: no work uses it.
            unsafe { self.device.destroy_pipeline(*pipeline, None) };
        }
        for pool in &self.queries {
            let _call = exit::call();
            // SAFETY: as above.
            unsafe { self.device.destroy_query_pool(*pool, None) };
        }
        for arena in &self.arenas {
            let _call = exit::call();
            arena.destroy(&self.device);
        }
        let _call = exit::call();
        // SAFETY: as above.
        unsafe { self.device.destroy_pipeline_cache(self.cache, None) };
        // SAFETY: as above.
        unsafe { self.device.destroy_pipeline_layout(self.layout, None) };
        // SAFETY: as above; its command buffers go with it.
        unsafe { self.device.destroy_command_pool(self.pool, None) };
        // SAFETY: as above.
        unsafe { self.device.destroy_semaphore(self.timeline, None) };
        devices::keep(&self.gpu, self.device.clone());
    }
}

/// The error of a call.
pub(super) fn failed(call: &'static str, error: vk::Result) -> DeviceError {
    let reason = error.to_string();
    match error {
        vk::Result::ERROR_DEVICE_LOST => DeviceError::Lost { call, reason },
        _ => DeviceError::Failed { call, reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The handle of a device that is opened, reported as lost if `is_lost`, and closed.
    fn close(library: &'static Library, is_lost: bool) -> vk::Device {
        let mut context = Context::open(library, &library.gpus()[0], None, None).unwrap();
        if is_lost {
            let lost = context.check("vkQueueSubmit2", Err::<(), _>(vk::Result::ERROR_DEVICE_LOST));
            assert!(lost.is_err() && context.refuse_lost().is_err());
        }
        context.device.handle()
    }

    #[walla_reference_test::vulkan_test]
    fn a_closed_device_is_opened_again_and_a_lost_one_is_not() {
        let library = Library::load().unwrap();
        let first = close(library, false);
        assert_eq!(close(library, true), first);
        assert_ne!(close(library, false), first);
    }

    #[test]
    fn only_a_lost_device_is_lost() {
        assert!(failed("vkQueueSubmit2", vk::Result::ERROR_DEVICE_LOST).is_lost());
        assert!(!failed("vkQueueSubmit2", vk::Result::ERROR_UNKNOWN).is_lost());
    }
}
