use walla_device::{Backend, Device, DeviceError, DeviceInfo, DeviceKind, OpenOptions, philox4x32};

use super::HashDevice;
use crate::faulty::VirtualClock;

/// How a [`HashDevice`] presents itself and how long its steps take.
#[derive(Clone, Debug)]
pub struct HashOptions {
    /// Name of the device. Default: `hash:0`. An engine falls back to a device named `cpu`.
    pub name: &'static str,
    /// Kind of the device. Default: CPU. Budgets treat a GPU differently.
    pub kind: DeviceKind,
    /// Score of the device in a registry. Default: 0.
    pub score: i32,
    /// The clock on which work completes. Default: one at 0 that nothing advances.
    pub clock: VirtualClock,
    /// Duration of a step, in microseconds, besides its rows. Default: 300.
    pub step_micros: u64,
    /// Duration of one row, in microseconds. Default: 20.
    pub row_micros: u64,
    /// A step takes up to this percentage longer, drawn from the seed. Default: 0.
    pub spread_percent: u32,
    /// Seed of the durations. Default: 0.
    pub seed: u64,
    /// Whether results are written to mapped memory, as by CUDA devices, instead of copied.
    /// Default: `true`.
    pub mapped_results: bool,
}

impl Default for HashOptions {
    fn default() -> Self {
        Self {
            name: "hash:0",
            kind: DeviceKind::Cpu,
            score: 0,
            clock: VirtualClock::new(),
            step_micros: 300,
            row_micros: 20,
            spread_percent: 0,
            seed: 0,
            mapped_results: true,
        }
    }
}

impl HashOptions {
    pub(super) fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name.to_owned(),
            kind: self.kind,
            description: "hashes tokens instead of evaluating a model".to_owned(),
            variant: "hash".to_owned(),
            threads: 0,
            memory_total_bytes: None,
            memory_free_bytes: None,
            gpu: None,
            facts: Vec::new(),
        }
    }

    /// Duration of launch number `launch`, in microseconds.
    pub(super) fn step_micros(&self, launch: u64, rows: u32) -> u64 {
        let micros = self.step_micros + self.row_micros * u64::from(rows);
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let [draw, ..] = philox4x32([launch as u32, (launch >> 32) as u32, 2, 0], key);
        let percent = u64::from(draw % (self.spread_percent + 1));
        micros + micros * percent / 100
    }
}

/// Opens a [`HashDevice`]. Each call opens a new one, with the same options.
#[derive(Clone, Debug, Default)]
pub struct HashBackend {
    options: HashOptions,
}

impl HashBackend {
    /// A backend with one device.
    #[must_use]
    pub fn new(options: HashOptions) -> Self {
        Self { options }
    }
}

impl Backend for HashBackend {
    fn name(&self) -> &'static str {
        "hash"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        Ok(vec![self.options.info()])
    }

    fn score(&self, _info: &DeviceInfo) -> i32 {
        self.options.score
    }

    fn open(&self, name: &str, _options: &OpenOptions) -> Result<Box<dyn Device>, DeviceError> {
        if name != self.options.name {
            return Err(DeviceError::Invalid(format!("no device {name}")));
        }
        Ok(Box::new(HashDevice::new(self.options.clone())))
    }
}
