//! Errors of a registry name the devices and the reasons.

use walla_device::{Backend, Device, DeviceError, DeviceInfo, OpenOptions, Registry};
use walla_doubles::hash::HashBackend;

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
