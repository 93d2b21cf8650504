use std::cmp::Reverse;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::device::Device;
use crate::error::DeviceError;
use crate::info::DeviceInfo;
use crate::sharing::GpuContext;
use crate::speed::StepTimes;

/// Options for opening a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Maximum threads of a CPU device, at least 1. Default `None`: half of the cores, at least
    /// one; the rest is for the game.
    pub threads: Option<u32>,
    /// Device memory limit in bytes: allocations beyond it return
    /// [`OutOfMemory`](DeviceError::OutOfMemory). Default: the free memory of the device.
    pub max_memory_bytes: Option<u64>,
    /// Context of a GPU device. Default: a separate one.
    pub gpu_context: GpuContext,
}

/// A family of devices: lists, scores and opens them.
pub trait Backend: Send + Sync {
    /// Name for error messages: `cpu`, `cuda`.
    fn name(&self) -> &'static str;

    /// Devices of this family on this machine, or the reason why none exist.
    ///
    /// # Errors
    /// One line that a user can act on, for example that no driver was found.
    fn devices(&self) -> Result<Vec<DeviceInfo>, String>;

    /// Score of a device relative to others; the CPU's is 0. A device with a negative score is
    /// never chosen automatically.
    fn score(&self, info: &DeviceInfo) -> i32;

    /// Whether `auto` measures a device with a negative score, and chooses it if it is clearly
    /// faster than the CPU. For integrated GPUs: many are slower. Default: no.
    fn is_measured(&self, _info: &DeviceInfo) -> bool {
        false
    }

    /// Opens a device by its [name](DeviceInfo::name).
    ///
    /// # Errors
    /// The error of the device.
    fn open(&self, name: &str, options: &OpenOptions) -> Result<Box<dyn Device>, DeviceError>;
}

/// The backends of a program.
#[derive(Default)]
pub struct Registry {
    backends: Vec<Box<dyn Backend>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.backends.iter().map(|b| b.name())).finish()
    }
}

/// Reason why no device was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// No device has this name.
    #[error("no device {name:?}; there are: {known}")]
    Unknown {
        /// The requested name.
        name: String,
        /// Names of the devices on this machine.
        known: String,
    },
    /// The name's device family has no device on this machine, or is not compiled in.
    #[error("no device {name:?}: {reason}; there are: {known}")]
    Absent {
        /// The requested name.
        name: String,
        /// The reason, as the [backend](Backend::devices) states it.
        reason: String,
        /// Names of the devices on this machine.
        known: String,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl Registry {
    /// A registry without backends.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a backend.
    #[must_use]
    pub fn with(mut self, backend: impl Backend + 'static) -> Self {
        self.backends.push(Box::new(backend));
        self
    }

    /// All devices with their scores, best first (equal scores in order of registration).
    #[must_use]
    pub fn devices(&self) -> Vec<(DeviceInfo, i32)> {
        self.scored().into_iter().map(|(_, info, score)| (info, score)).collect()
    }

    /// Backends without a device on this machine, with the reason.
    #[must_use]
    pub fn absent(&self) -> Vec<(&'static str, String)> {
        let with_reason = self.backends.iter().map(|b| (b.name(), b.devices().err()));
        with_reason.filter_map(|(name, reason)| Some((name, reason?))).collect()
    }

    /// Devices that [`open`](Self::open) tries for this name, in this order. For `auto`: all
    /// devices with a score of at least 0, best first.
    ///
    /// If none has more than 0, `auto` compares the devices that are to be
    /// [measured](Backend::is_measured) with the CPU ([`StepTimes`]), once in a process. It takes
    /// less than a second for each, apart from opening it.
    #[must_use]
    pub fn candidates(&self, name: &str) -> Vec<DeviceInfo> {
        self.wanted(name).into_iter().map(|(_, info)| info).collect()
    }

    /// Opens the device of this name, or the best one for `auto`.
    ///
    /// For `auto`, a device that fails to open is skipped. If none opens, the last error is
    /// returned. To find out why a better device is skipped, open the
    /// [candidates](Self::candidates) by name.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`] if no device has that name, [`RegistryError::Absent`] if its
    /// family has no device on this machine, or the error of the device.
    pub fn open(
        &self,
        name: &str,
        options: &OpenOptions,
    ) -> Result<Box<dyn Device>, RegistryError> {
        let mut last = None;
        for (backend, info) in self.wanted(name) {
            match backend.open(&info.name, options) {
                Ok(device) => return Ok(device),
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or_else(|| self.unknown(name), RegistryError::Device))
    }

    fn wanted(&self, name: &str) -> Vec<(&dyn Backend, DeviceInfo)> {
        let is_wanted = |info: &DeviceInfo, score| match name {
            "auto" => score >= 0,
            name => info.name == name,
        };
        let mut scored = self.scored();
        if name == "auto" && scored.first().is_none_or(|(_, _, score)| *score <= 0) {
            measured(&mut scored);
        }
        let wanted = scored.into_iter().filter(|(_, info, score)| is_wanted(info, *score));
        wanted.map(|(backend, info, _)| (backend, info)).collect()
    }

    /// All devices, best first.
    fn scored(&self) -> Vec<Scored<'_>> {
        let mut all = Vec::new();
        for backend in &self.backends {
            // Families without a device are reported by `absent`.
            for info in backend.devices().unwrap_or_default() {
                let score = backend.score(&info);
                all.push((&**backend, info, score));
            }
        }
        // Stable: equal scores stay in order of registration.
        all.sort_by_key(|(_, _, score)| Reverse(*score));
        all
    }

    fn unknown(&self, name: &str) -> RegistryError {
        let known: Vec<_> = self.devices().into_iter().map(|(info, _)| info.name).collect();
        let known = match known.is_empty() {
            true => "none".to_owned(),
            false => format!("{}, or auto for the best", known.join(", ")),
        };
        let family = name.split(':').next().unwrap_or(name);
        let name = name.to_owned();
        match self.absent().into_iter().find(|(backend, _)| *backend == family) {
            Some((_, reason)) => RegistryError::Absent { name, reason, known },
            None => RegistryError::Unknown { name, known },
        }
    }
}

/// A device with its backend and score.
type Scored<'a> = (&'a dyn Backend, DeviceInfo, i32);

/// Name and description of a device, and whether it is better than the best other device.
type Verdicts = Vec<((String, String), bool)>;

/// Verdicts of this process. They do not change, so that all engines use the same device.
static VERDICTS: Mutex<Verdicts> = Mutex::new(Vec::new());

/// Gives a score of 1 to devices that are to be measured and are better than the best other device.
fn measured(scored: &mut [Scored<'_>]) {
    let best = scored.first().filter(|(_, _, score)| *score >= 0);
    let best = best.map(|(backend, info, _)| (*backend, info.name.clone()));
    // Held while a device is measured: two engines that start at once measure it once.
    let mut verdicts = VERDICTS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut times_of_best = None;
    for (backend, info, score) in scored.iter_mut() {
        if *score >= 0 || !backend.is_measured(info) {
            continue;
        }
        let key = (info.name.clone(), info.description.clone());
        let known = verdicts.iter().find(|(its, _)| *its == key).map(|(_, is_better)| *is_better);
        let is_better = known.unwrap_or_else(|| {
            let times = times(*backend, &info.name);
            let is_better = times.is_some_and(|times| match &best {
                None => true,
                Some((backend, name)) => {
                    let of_best = times_of_best.get_or_insert_with(|| self::times(*backend, name));
                    of_best.is_some_and(|of_best| times.is_better_than(&of_best))
                }
            });
            verdicts.push((key, is_better));
            is_better
        });
        if is_better {
            *score = 1;
        }
    }
    scored.sort_by_key(|(_, _, score)| Reverse(*score));
}

/// Times of a device that is opened only for them; `None` if it fails.
fn times(backend: &dyn Backend, name: &str) -> Option<StepTimes> {
    StepTimes::measure(&mut *backend.open(name, &OpenOptions::default()).ok()?).ok()
}
