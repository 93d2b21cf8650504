use super::{FaultHandle, FaultPlan, Faulty};
use crate::device::Device;
use crate::error::DeviceError;
use crate::info::DeviceInfo;
use crate::registry::{Backend, OpenOptions};

/// Opens another backend's devices inside [`Faulty`], under their own names.
///
/// All devices that it opens share one [`FaultHandle`].
#[derive(Debug)]
pub struct FaultyBackend<B> {
    inner: B,
    plan: FaultPlan,
    handle: FaultHandle,
}

impl<B: Backend> FaultyBackend<B> {
    /// Wraps every device of `inner`.
    #[must_use]
    pub fn new(inner: B, plan: FaultPlan) -> Self {
        Self { inner, plan, handle: FaultHandle::new() }
    }

    /// Counts calls and breaks devices.
    #[must_use]
    pub fn handle(&self) -> FaultHandle {
        self.handle.clone()
    }
}

impl<B: Backend> Backend for FaultyBackend<B> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        self.inner.devices()
    }

    fn score(&self, info: &DeviceInfo) -> i32 {
        self.inner.score(info)
    }

    fn open(&self, name: &str, options: &OpenOptions) -> Result<Box<dyn Device>, DeviceError> {
        let inner = self.inner.open(name, options)?;
        Ok(Box::new(Faulty::with_handle(inner, self.plan.clone(), self.handle.clone())))
    }
}
