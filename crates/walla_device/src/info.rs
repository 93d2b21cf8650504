use crate::sharing::Support;

/// What kind of machine a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The host's own cores.
    Cpu,
    /// A GPU through CUDA's driver API.
    Cuda,
}

/// Facts about a GPU, as the backend registry of ggml lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuFacts {
    /// Compute capability, for example `(9, 0)`.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Of them, those that an open device works on.
    pub multiprocessors_used: u32,
    /// Threads in a warp.
    pub warp_threads: u32,
    /// Shared memory of a block without opting in, in bytes.
    pub shared_bytes_per_block: u64,
    /// Shared memory of a block after opting in, in bytes.
    pub shared_bytes_per_block_optin: u64,
    /// Recommended granularity of virtual memory management in bytes, or `None` where it is not
    /// supported.
    pub vmm_granularity_bytes: Option<u64>,
    /// L2 cache in bytes.
    pub l2_bytes: u64,
    /// Version of the driver's CUDA interface, for example `13000`.
    pub driver_version: u32,
    /// Whether kernels can start before the one before them has ended (sm_90 and later).
    pub programmatic_launch: bool,
    /// The kernel image in use, or the one that would be, and where it is from: `sm_90a machine
    /// code`.
    pub kernel_image: String,
    /// Why programs are never graphs on it, if so.
    pub graphs_off: Option<String>,
    /// Images that were found but refused, with the reason: a line each.
    pub kernel_images_refused: Vec<String>,
    /// The context that an open device works in, and why it is not the one that was asked for, if
    /// so. Empty before it is opened.
    pub context: String,
    /// Whether a device can be kept to a part of the multiprocessors
    /// ([`GpuContext::Share`](crate::GpuContext::Share)).
    pub green_contexts: Support,
    /// Whether the system ends kernels that run too long: a sign that a display is on this GPU.
    /// Another one keeps dialogue from its frames.
    pub runs_display: bool,
    /// Whether a device can work in the renderer's own time (CUDA in Graphics).
    pub graphics_contexts: Support,
}

/// What a device is and has: `walla devices` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name to select it by: `cpu`, `cuda:0`.
    pub name: String,
    /// What kind of machine it is.
    pub kind: DeviceKind,
    /// The vendor's name for it.
    pub description: String,
    /// The kernel variant in use or best for this machine, for example `avx512vnni` or `sm_90`.
    pub variant: String,
    /// Threads that kernels run on (CPU).
    pub threads: u32,
    /// All memory in bytes. `None`: nobody knows.
    pub memory_total_bytes: Option<u64>,
    /// Memory that was free when the device was listed or opened, in bytes. `None`: nobody knows
    /// before it is opened (a GPU).
    pub memory_free_bytes: Option<u64>,
    /// Facts of a GPU.
    pub gpu: Option<GpuFacts>,
}
