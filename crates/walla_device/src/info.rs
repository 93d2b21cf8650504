use crate::sharing::Support;

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The host's CPU cores.
    Cpu,
    /// A GPU through the CUDA driver API.
    Cuda,
    /// A GPU through Vulkan.
    Vulkan,
}

/// Properties of a GPU, as in ggml's backend registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuFacts {
    /// Compute capability, for example `(9, 0)`.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Multiprocessors that an open device uses.
    pub multiprocessors_used: u32,
    /// Threads per warp.
    pub warp_threads: u32,
    /// Shared memory per block without opt-in, in bytes.
    pub shared_bytes_per_block: u64,
    /// Shared memory per block with opt-in, in bytes.
    pub shared_bytes_per_block_optin: u64,
    /// Recommended granularity of virtual memory management in bytes, or `None` if unsupported.
    pub vmm_granularity_bytes: Option<u64>,
    /// L2 cache in bytes.
    pub l2_bytes: u64,
    /// Version of the driver's CUDA interface, for example `13000`.
    pub driver_version: u32,
    /// Whether a kernel can start before the previous one has ended (sm_90 and later).
    pub programmatic_launch: bool,
    /// The kernel image in use (or to be used), and its source: `sm_90a machine code`.
    pub kernel_image: String,
    /// Reason why programs are never graphs on this device, if so.
    pub graphs_off: Option<String>,
    /// Images that were found but refused, one line each with the reason.
    pub kernel_images_refused: Vec<String>,
    /// The context of an open device. If it is not the requested one, with the reason. Empty before
    /// the device is opened.
    pub context: String,
    /// Whether a device can be limited to a part of the multiprocessors
    /// ([`GpuContext::Share`](crate::GpuContext::Share)).
    pub green_contexts: Support,
    /// Whether the system ends kernels that run too long, which indicates a display on this GPU. A
    /// GPU without a display keeps dialogue from delaying frames.
    pub runs_display: bool,
    /// Whether a device can run in the renderer's time slice (CUDA in Graphics).
    pub graphics_contexts: Support,
}

/// Properties of a device; `walla devices` prints them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name for selecting the device: `cpu`, `cuda:0`.
    pub name: String,
    /// Kind of the device.
    pub kind: DeviceKind,
    /// The vendor's name of the device.
    pub description: String,
    /// The kernel variant in use or best for this device, for example `avx512vnni` or `sm_90`.
    pub variant: String,
    /// Threads that run kernels (CPU).
    pub threads: u32,
    /// Total memory in bytes, or `None` if unknown.
    pub memory_total_bytes: Option<u64>,
    /// Memory that was free when the device was listed or opened, in bytes. `None` if unknown, as
    /// for a CUDA device before it is opened.
    pub memory_free_bytes: Option<u64>,
    /// Properties of a CUDA device.
    pub gpu: Option<GpuFacts>,
    /// Names and values of other properties, for troubleshooting.
    pub facts: Vec<(&'static str, String)>,
}
