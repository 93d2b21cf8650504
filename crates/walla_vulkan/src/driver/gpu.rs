//! The loader, and the GPUs that it knows.

use std::ffi::CStr;
use std::sync::OnceLock;

use ash::vk;

use super::exit;
use super::pipeline_cache::CacheKey;

/// Extensions of a device that are used where it has them.
const PORTABILITY: &CStr = ash::khr::portability_subset::NAME;
const PRIORITY: &CStr = ash::khr::global_priority::NAME;
const DOT_PRODUCT: &CStr = ash::khr::shader_integer_dot_product::NAME;
const SYNCHRONIZATION: &CStr = ash::khr::synchronization2::NAME;
pub(super) const MATRICES: &CStr = ash::khr::cooperative_matrix::NAME;
/// Needs no enabling: it is a question to the driver.
const BUDGET: &CStr = ash::ext::memory_budget::NAME;

/// Names of the features that can be left out.
pub(crate) const OPTIONAL: [&str; 2] = ["dot", "matrices"];

/// The loader and an instance. It lives until the program ends.
pub(crate) struct Library {
    _entry: ash::Entry,
    pub(super) instance: ash::Instance,
    gpus: Vec<Gpu>,
}

/// A GPU and its features.
#[derive(Clone)]
pub(crate) struct Gpu {
    pub(super) physical: vk::PhysicalDevice,
    pub(crate) name: String,
    pub(crate) driver: String,
    driver_name: String,
    pub(crate) kind: vk::PhysicalDeviceType,
    pub(crate) api: (u32, u32),
    pub(crate) memory_bytes: u64,
    /// Most bytes of one allocation.
    pub(super) max_allocation_bytes: u64,
    /// Index of the largest heap of the device, and whether the driver reports its budget.
    heap: usize,
    has_budget: bool,
    /// Names the driver's cache of pipelines.
    pub(super) cache_key: CacheKey,
    /// Lanes of a subgroup.
    pub(crate) lanes: u32,
    /// Queue family for work, and whether it has no graphics.
    pub(super) family: u32,
    pub(crate) is_compute_only: bool,
    /// Nanoseconds of a timestamp's unit; 0: none.
    pub(crate) timestamp_nanos: f32,
    /// Products of four bytes at once are instructions.
    pub(crate) has_dot_product: bool,
    /// Matrix units multiply tiles of signed bytes, in subgroups of 32 lanes.
    pub(crate) has_matrices: bool,
    pub(super) has_priority: bool,
    /// Required features that the GPU lacks.
    pub(crate) lacks: Option<String>,
    pub(super) extensions: Vec<&'static CStr>,
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Gpu {
    /// The GPU without the features of these names.
    pub(crate) fn without(&self, names: &[String]) -> Self {
        let is_without = |name: &str| names.iter().any(|its| its == name);
        Self {
            has_dot_product: self.has_dot_product && !is_without("dot"),
            has_matrices: self.has_matrices && !is_without("matrices"),
            ..self.clone()
        }
    }

    /// Properties for troubleshooting, by name.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let features = [
            ("dot", self.has_dot_product),
            ("matrices", self.has_matrices),
            ("memory budget", self.has_budget),
            ("priority", self.has_priority),
            ("timestamps", self.timestamp_nanos > 0.0),
        ];
        let names = |is_used: bool| {
            let names = features.iter().filter(|(_, used)| *used == is_used).map(|(name, _)| *name);
            let names: Vec<_> = names.collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        let queue = if self.is_compute_only { "without graphics" } else { "with graphics" };
        use vk::PhysicalDeviceType as Kind;
        let by_measurement = "if it is measured to be faster than the CPU";
        let (kind, auto) = match self.kind {
            Kind::DISCRETE_GPU => ("discrete GPU", "before the CPU"),
            Kind::INTEGRATED_GPU => ("integrated GPU", by_measurement),
            Kind::VIRTUAL_GPU => ("virtual GPU", by_measurement),
            Kind::CPU => ("CPU", "never"),
            _ => ("unknown", "never"),
        };
        let mut facts = vec![
            ("API version", format!("{}.{}", self.api.0, self.api.1)),
            ("driver", format!("{} {}", self.driver_name, self.driver)),
            ("kind", kind.to_owned()),
            ("chosen by auto", if self.lacks.is_some() { "never" } else { auto }.to_owned()),
            ("lanes of a subgroup", self.lanes.to_string()),
            ("queue family", format!("{}, {queue}", self.family)),
            ("queue priority", if self.has_priority { "low" } else { "the system's" }.to_owned()),
            ("features used", names(true)),
            ("features not used", names(false)),
        ];
        facts.extend(self.lacks.clone().map(|lacks| ("features missing", lacks)));
        facts
    }
}

static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();

impl Library {
    /// Loads the loader and lists the GPUs, once.
    ///
    /// # Errors
    /// The reason for an absent loader, for a user.
    pub(crate) fn load() -> Result<&'static Self, String> {
        LIBRARY.get_or_init(Self::open).as_ref().map_err(Clone::clone)
    }

    pub(crate) fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// Bytes of the GPU's memory that this process may still allocate, as the driver sees it now.
    /// `None` if it is not reported.
    pub(crate) fn free_bytes(&self, gpu: &Gpu) -> Option<u64> {
        if !gpu.has_budget {
            return None;
        }
        let _call = exit::call();
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut memory = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the GPU is the instance's, and has the extension of the chained struct.
        unsafe { self.instance.get_physical_device_memory_properties2(gpu.physical, &mut memory) };
        let [all, used] =
            [budget.heap_budget, budget.heap_usage].map(|its| its.get(gpu.heap).copied());
        Some(all?.saturating_sub(used?))
    }

    fn open() -> Result<Self, String> {
        let _call = exit::call();
        let entry = load()?;
        // SAFETY: the entry points are loaded.
        let version = unsafe { entry.try_enumerate_instance_version() };
        let version = version.ok().flatten().unwrap_or(vk::API_VERSION_1_0);
        if version < vk::API_VERSION_1_2 {
            return Err("the Vulkan loader is older than 1.2".to_owned());
        }
        // SAFETY: as above.
        let found = unsafe { entry.enumerate_instance_extension_properties(None) };
        let found = found.unwrap_or_default();
        let portability = ash::khr::portability_enumeration::NAME;
        let is_portable = found.iter().any(|its| its.extension_name_as_c_str() == Ok(portability));
        let names = is_portable.then_some(portability.as_ptr());
        let flags = if is_portable {
            vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR
        } else {
            vk::InstanceCreateFlags::empty()
        };
        let application = vk::ApplicationInfo::default()
            .engine_name(c"walla")
            .api_version(version.min(vk::API_VERSION_1_3));
        let info = vk::InstanceCreateInfo::default()
            .application_info(&application)
            .enabled_extension_names(names.as_slice())
            .flags(flags);
        // SAFETY: the structs live until the call ends.
        let instance = unsafe { entry.create_instance(&info, None) };
        let instance = instance.map_err(|error| format!("no Vulkan instance: {error}"))?;
        // SAFETY: the instance is valid.
        let devices = unsafe { instance.enumerate_physical_devices() };
        let devices = devices.map_err(|error| format!("no list of Vulkan devices: {error}"))?;
        let gpus = devices.into_iter().map(|device| Gpu::of(&entry, &instance, device)).collect();
        Ok(Self { _entry: entry, instance, gpus })
    }
}

/// Names of the loader; on macOS MoltenVK replaces an absent one.
const LOADERS: &[&str] = if cfg!(windows) {
    &["vulkan-1.dll"]
} else if cfg!(target_vendor = "apple") {
    &["libvulkan.dylib", "libvulkan.1.dylib", "libMoltenVK.dylib"]
} else {
    &["libvulkan.so.1", "libvulkan.so"]
};

/// Opens the loader.
fn load() -> Result<ash::Entry, String> {
    let mut reason = String::new();
    for name in LOADERS {
        // SAFETY: the library is the system's Vulkan loader, whose start does nothing else.
        let library = match unsafe { libloading::Library::new(*name) } {
            Ok(library) => library,
            Err(error) => {
                reason = error.to_string();
                continue;
            }
        };
        // SAFETY: every loader has this symbol, with this type.
        let found = unsafe { library.get(b"vkGetInstanceProcAddr\0") };
        let get_instance_proc_addr = match found {
            Ok(symbol) => *symbol,
            Err(error) => {
                reason = error.to_string();
                continue;
            }
        };
        // Never unloaded: drivers may leave threads behind.
        std::mem::forget(library);
        // SAFETY: the function is the loader's.
        return Ok(unsafe { ash::Entry::from_static_fn(ash::StaticFn { get_instance_proc_addr }) });
    }
    Err(format!("no Vulkan loader: {reason}"))
}

impl Gpu {
    fn of(entry: &ash::Entry, instance: &ash::Instance, physical: vk::PhysicalDevice) -> Self {
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut subgroup = vk::PhysicalDeviceSubgroupProperties::default();
        let mut limits = vk::PhysicalDeviceMaintenance3Properties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut driver)
            .push_next(&mut subgroup)
            .push_next(&mut limits);
        // SAFETY: the device is the instance's; the chained structs are of version 1.2.
        unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
        let properties = properties.properties;
        let text = |name: Result<&CStr, _>| {
            name.map_or_else(
                |_: std::ffi::FromBytesUntilNulError| String::new(),
                |name| name.to_string_lossy().into_owned(),
            )
        };
        let name = text(properties.device_name_as_c_str());
        let api = properties.api_version;
        // SAFETY: as above.
        let extensions = unsafe { instance.enumerate_device_extension_properties(physical) };
        let extensions = extensions.unwrap_or_default();
        let has =
            |name: &CStr| extensions.iter().any(|its| its.extension_name_as_c_str() == Ok(name));
        let is_13 = api >= vk::API_VERSION_1_3;
        let mut its_12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut its_dot = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default();
        let mut its_sync = vk::PhysicalDeviceSynchronization2Features::default();
        let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut its_12);
        let mut its_matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
        if has(MATRICES) {
            features = features.push_next(&mut its_matrices);
        }
        if is_13 || has(DOT_PRODUCT) {
            features = features.push_next(&mut its_dot);
        }
        if is_13 || has(SYNCHRONIZATION) {
            features = features.push_next(&mut its_sync);
        }
        // SAFETY: only structs of versions and extensions that the device has are chained.
        unsafe { instance.get_physical_device_features2(physical, &mut features) };
        let has_int64 = features.features.shader_int64 != 0;
        let has_matrices = its_matrices.cooperative_matrix != 0
            && its_12.shader_int8 != 0
            && its_12.storage_buffer8_bit_access != 0
            && its_12.vulkan_memory_model != 0
            && its_12.vulkan_memory_model_device_scope != 0
            && subgroup.subgroup_size == 32
            && properties.limits.max_compute_work_group_invocations >= 256
            && properties.limits.max_compute_shared_memory_size >= 48 << 10
            && has_byte_tiles(entry, instance, physical);
        let operations = vk::SubgroupFeatureFlags::BASIC | vk::SubgroupFeatureFlags::SHUFFLE;
        let needed = [
            ("Vulkan 1.2", api >= vk::API_VERSION_1_2),
            ("buffer device addresses", its_12.buffer_device_address != 0),
            ("timeline semaphores", its_12.timeline_semaphore != 0),
            ("the scalar layout of blocks", its_12.scalar_block_layout != 0),
            ("64-bit integers", has_int64),
            ("synchronization2", its_sync.synchronization2 != 0),
            ("shuffles in subgroups", subgroup.supported_operations.contains(operations)),
            ("subgroups of 8 lanes or more", subgroup.subgroup_size >= 8),
            (
                "workgroups of 128 threads",
                properties.limits.max_compute_work_group_invocations >= 128,
            ),
            (
                "32 KiB of shared memory",
                properties.limits.max_compute_shared_memory_size >= 32 << 10,
            ),
        ];
        // SAFETY: as above.
        let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
        let computes = |flags: vk::QueueFlags| flags.contains(vk::QueueFlags::COMPUTE);
        let is_only = |flags: vk::QueueFlags| !flags.contains(vk::QueueFlags::GRAPHICS);
        let find = |is_wanted: &dyn Fn(vk::QueueFlags) -> bool| {
            families.iter().position(|its| computes(its.queue_flags) && is_wanted(its.queue_flags))
        };
        let only = find(&is_only);
        let family = only.or_else(|| find(&|_| true));
        let needed = needed.into_iter().chain([("a queue for compute", family.is_some())]);
        let lacks: Vec<_> = needed.filter(|(_, has)| !has).map(|(what, _)| what).collect();
        let family = family.unwrap_or_default();
        let bits = families.get(family).map_or(0, |its| its.timestamp_valid_bits);
        // SAFETY: as above.
        let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
        let heaps = memory.memory_heaps_as_slice().iter().enumerate();
        let is_local =
            |heap: &vk::MemoryHeap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
        let local = heaps.filter(|(_, heap)| is_local(heap)).max_by_key(|(_, heap)| heap.size);
        let mut used = Vec::new();
        for name in [PORTABILITY, PRIORITY] {
            if has(name) {
                used.push(name);
            }
        }
        if !is_13 {
            used.extend([DOT_PRODUCT, SYNCHRONIZATION].into_iter().filter(|name| has(name)));
        }
        Self {
            physical,
            name,
            driver: text(driver.driver_info_as_c_str()),
            driver_name: text(driver.driver_name_as_c_str()),
            kind: properties.device_type,
            api: (vk::api_version_major(api), vk::api_version_minor(api)),
            memory_bytes: local.map(|(_, heap)| heap.size).unwrap_or_default(),
            max_allocation_bytes: limits.max_memory_allocation_size,
            heap: local.map(|(index, _)| index).unwrap_or_default(),
            has_budget: has(BUDGET),
            cache_key: CacheKey {
                vendor: properties.vendor_id,
                device: properties.device_id,
                driver_version: properties.driver_version,
                uuid: properties.pipeline_cache_uuid,
            },
            lanes: subgroup.subgroup_size,
            family: family as u32,
            is_compute_only: only.is_some(),
            timestamp_nanos: if bits >= 36 { properties.limits.timestamp_period } else { 0.0 },
            has_dot_product: its_dot.shader_integer_dot_product != 0,
            has_matrices,
            has_priority: has(PRIORITY),
            lacks: (!lacks.is_empty()).then(|| lacks.join(", ")),
            extensions: used,
        }
    }
}

/// Whether matrix units multiply tiles of 16 x 32 signed bytes by tiles of 32 x 16.
fn has_byte_tiles(
    entry: &ash::Entry,
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
) -> bool {
    let functions = ash::khr::cooperative_matrix::Instance::new(entry, instance);
    // SAFETY: the device is the instance's, and has the extension.
    let found = unsafe { functions.get_physical_device_cooperative_matrix_properties(physical) };
    let (bytes, integers) = (vk::ComponentTypeKHR::SINT8, vk::ComponentTypeKHR::SINT32);
    found.unwrap_or_default().iter().any(|its| {
        (its.m_size, its.n_size, its.k_size) == (16, 16, 32)
            && (its.a_type, its.b_type) == (bytes, bytes)
            && (its.c_type, its.result_type) == (integers, integers)
            && its.scope == vk::ScopeKHR::SUBGROUP
    })
}
