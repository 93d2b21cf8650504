//! Small uploads by a kernel that reads pinned memory: using a copy engine between two kernels
//! costs more than the copy itself.

use bytemuck::{Pod, Zeroable};
use walla_device::DeviceError;

use crate::driver::{Context, DeviceMemory, Function, Launch, PinnedMemory, Stream};
use crate::enqueue::enqueue;
use crate::kernels::Kernels;

/// Largest upload by kernel. The bus transfers as much in some 5 us, about the overhead of a copy
/// engine; the step block of 64 agents with 1,024 tokens each takes 30 to 90 KiB.
const MAX_BYTES: usize = 256 << 10;

const WORD_BYTES: usize = 16;

/// As in `kernels/step/fetch.cu`.
const THREADS: u32 = 256;

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct FetchParams {
    from: u64,
    to: u64,
    bytes: u64,
}

const _: () = assert!(size_of::<FetchParams>() == 24);

/// The kernel, loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch(Function);

impl Fetch {
    /// Loads the kernel.
    pub(crate) fn load(context: &Context, kernels: &mut Kernels) -> Result<Self, DeviceError> {
        kernels.get(context, "fetch", "fetch", 0).map(Self)
    }

    /// Enqueues a copy from the start of pinned memory to the start of device memory. The caller
    /// does not modify the host bytes until the stream has passed the copy.
    pub(crate) fn upload(
        self,
        context: &Context,
        stream: Stream,
        from: &PinnedMemory,
        to: &DeviceMemory,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let words = bytes.div_ceil(WORD_BYTES);
        // The last, partial word is read whole.
        let fits = words * WORD_BYTES <= from.bytes() && bytes <= to.bytes();
        if bytes == 0 || bytes > MAX_BYTES || !fits {
            return context.upload(stream, (from, 0), (to, 0), bytes);
        }
        let (from, to) = (from.address(), to.address());
        let params = FetchParams { from, to, bytes: bytes as u64 };
        let blocks = (words as u32).div_ceil(THREADS);
        let launch = Launch::new(self.0, [blocks, 1, 1], THREADS, &params);
        let overlap = context.gpu().facts.programmatic_launch;
        enqueue(context, stream, &[Launch { overlap, ..launch }])
    }
}

#[test]
fn constants_match_the_kernel() {
    let kernel = crate::kernel_source::KernelSource::read(&["step/fetch.cu"]);
    assert_eq!(kernel.constant("THREADS"), THREADS);
}
