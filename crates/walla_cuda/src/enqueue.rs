//! Enqueues kernel launches: the only place that runs kernels.

use walla_device::DeviceError;

use crate::driver::{Context, Launch, Stream};

/// Enqueues launches on a stream, in order.
#[expect(unsafe_code, reason = "the only place that launches kernels")]
pub(crate) fn enqueue(
    context: &Context,
    stream: Stream,
    launches: &[Launch],
) -> Result<(), DeviceError> {
    for launch in launches {
        // SAFETY: only `Lowering`, the cache operations, `fetch` and `measure` create a `Launch`.
        // They pair each kernel with its own parameter struct and take addresses from live memory
        // of this device, which is not freed before the device is dropped.
        unsafe { context.launch(stream, launch) }?;
    }
    Ok(())
}
