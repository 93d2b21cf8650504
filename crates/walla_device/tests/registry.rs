//! Errors of a registry name the devices and the reasons.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use walla_device::{Backend, Device, DeviceError, DeviceInfo, OpenOptions, Registry};
use walla_doubles::hash::{HashBackend, HashOptions};

struct WithoutDriver;

impl Backend for WithoutDriver {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        Err("the driver was not found".into())
    }

    fn score(&self, _: &DeviceInfo) -> i32 {
        -1
    }

    fn open(&self, name: &str, _: &OpenOptions) -> Result<Box<dyn Device>, DeviceError> {
        Err(DeviceError::Invalid(name.to_owned()))
    }
}

#[test]
fn a_missing_device_error_has_the_reason_of_its_backend() {
    let registry = Registry::new().with(WithoutDriver);
    let message = |name: &str| {
        let opened = registry.open(name, &OpenOptions::default());
        opened.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(
        message("cuda:0"),
        "no device \"cuda:0\": the driver was not found; there are: none"
    );
    assert_eq!(message("cuda"), "no device \"cuda\": the driver was not found; there are: none");
    assert_eq!(message("tpu"), "no device \"tpu\"; there are: none");
    let registry = registry.with(HashBackend::default());
    let opened = registry.open("tpu", &OpenOptions::default());
    let message = opened.err().map(|error| error.to_string());
    let expected = "no device \"tpu\"; there are: hash:0, or auto for the best";
    assert_eq!(message.as_deref(), Some(expected));
}

/// A device that `auto` measures; it counts how often it is opened.
#[derive(Clone)]
struct Measured {
    inner: HashBackend,
    opens: Arc<AtomicU32>,
    fails: bool,
}

impl Measured {
    fn new(name: &'static str) -> Self {
        // Nothing advances its clock: all work is complete at once.
        let options = HashOptions { step_micros: 0, row_micros: 0, ..HashOptions::default() };
        let inner = HashBackend::new(HashOptions { name, ..options });
        Self { inner, opens: Arc::default(), fails: false }
    }
}

impl Backend for Measured {
    fn name(&self) -> &'static str {
        "integrated"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        self.inner.devices()
    }

    fn score(&self, _: &DeviceInfo) -> i32 {
        -1
    }

    fn is_measured(&self, _: &DeviceInfo) -> bool {
        true
    }

    fn open(&self, name: &str, options: &OpenOptions) -> Result<Box<dyn Device>, DeviceError> {
        self.opens.fetch_add(1, Ordering::Relaxed);
        if self.fails {
            return Err(DeviceError::Invalid(name.to_owned()));
        }
        self.inner.open(name, options)
    }
}

fn with_score(score: i32) -> HashBackend {
    HashBackend::new(HashOptions { name: "other:0", score, ..HashOptions::default() })
}

fn names(registry: &Registry, of: &str) -> Vec<String> {
    registry.candidates(of).into_iter().map(|info| info.name).collect()
}

#[test]
fn auto_measures_a_device_once_and_nothing_else_does() {
    let device = Measured::new("measured:0");
    let opens = || device.opens.load(Ordering::Relaxed);
    let registry = Registry::new().with(device.clone());
    assert_eq!(registry.devices()[0].1, -1);
    assert_eq!(names(&registry, "measured:0"), ["measured:0"]);
    assert_eq!(opens(), 0);
    // A better device is there.
    assert_eq!(names(&registry.with(with_score(1)), "auto"), ["other:0"]);
    assert_eq!(opens(), 0);
    // It is the only one, so any speed is enough.
    for _ in 0..2 {
        assert_eq!(names(&Registry::new().with(device.clone()), "auto"), ["measured:0"]);
        assert_eq!(opens(), 1);
    }
}

#[test]
fn a_device_whose_measurement_fails_is_not_chosen() {
    let device = Measured { fails: true, ..Measured::new("failing:0") };
    let registry = Registry::new().with(device.clone()).with(with_score(0));
    assert_eq!(names(&registry, "auto"), ["other:0"]);
    assert_eq!(names(&registry, "auto"), ["other:0"]);
    assert_eq!(device.opens.load(Ordering::Relaxed), 1);
    assert_eq!(names(&registry, "failing:0"), ["failing:0"], "taken if it is asked for");
}
