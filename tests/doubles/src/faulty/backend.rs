use walla_device::{Backend, Device, DeviceError, DeviceInfo, OpenOptions};

use super::{FaultHandle, FaultPlan, Faulty};

/// Opens another backend's devices wrapped in [`Faulty`], under their real names or an
/// [alias](Self::alias).
///
/// All devices of one backend share one [`FaultHandle`].
#[derive(Debug)]
pub struct FaultyBackend<B> {
    inner: B,
    plan: FaultPlan,
    handle: FaultHandle,
    alias: Option<&'static str>,
}

/// Score of aliased devices: above every real one.
const ALIAS_SCORE: i32 = 1_000;

impl<B: Backend> FaultyBackend<B> {
    /// Wraps every device of `inner`.
    #[must_use]
    pub fn new(inner: B, plan: FaultPlan) -> Self {
        Self { inner, plan, handle: FaultHandle::new(), alias: None }
    }

    /// Names the devices `name:0`, `name:1` and so on, and scores them above all others: a better
    /// device that can be lost, next to one that can take over.
    #[must_use]
    pub fn alias(self, name: &'static str) -> Self {
        Self { alias: Some(name), ..self }
    }

    /// A handle that counts calls and breaks devices.
    #[must_use]
    pub fn handle(&self) -> FaultHandle {
        self.handle.clone()
    }

    /// The inner backend's name of a device.
    fn real_name(&self, name: &str) -> Result<String, DeviceError> {
        let Some(alias) = self.alias else { return Ok(name.to_owned()) };
        let devices = self.inner.devices();
        let devices = devices.map_err(|reason| DeviceError::Failed { call: "open", reason })?;
        let place = name.strip_prefix(alias).and_then(|rest| rest.strip_prefix(':')?.parse().ok());
        let device = place.and_then(|place: usize| devices.get(place));
        let device = device.ok_or_else(|| DeviceError::Invalid(format!("no device {name}")))?;
        Ok(device.name.clone())
    }
}

impl<B: Backend> Backend for FaultyBackend<B> {
    fn name(&self) -> &'static str {
        self.alias.unwrap_or(self.inner.name())
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        let mut devices = self.inner.devices()?;
        if let Some(alias) = self.alias {
            for (n, info) in devices.iter_mut().enumerate() {
                info.name = format!("{alias}:{n}");
            }
        }
        Ok(devices)
    }

    fn score(&self, info: &DeviceInfo) -> i32 {
        if self.alias.is_some() { ALIAS_SCORE } else { self.inner.score(info) }
    }

    fn open(&self, name: &str, options: &OpenOptions) -> Result<Box<dyn Device>, DeviceError> {
        let inner = self.inner.open(&self.real_name(name)?, options)?;
        Ok(Box::new(Faulty::with_handle(inner, self.plan.clone(), self.handle.clone())))
    }
}
