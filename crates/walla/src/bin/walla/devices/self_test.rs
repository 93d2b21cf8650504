//! `walla devices --self-test`: a device against the exact kernels of the CPU, and its speed.

mod model;
mod ops;

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use walla::ModelSource;
use walla_cpu::{CpuDevice, CpuOptions, Variant};
use walla_device::{Device, DeviceError, DeviceInfo, OpenOptions, Registry, StepTimes};
use walla_types::TensorType;

use crate::Failure;
use crate::args::Devices;
use crate::bench::bandwidth;

/// Largest difference of a row of logits from the exact one, relative to its numbers. Kernels that
/// round their inputs to 8 bits differ by 2 %, and with keys and values of 8 bits by 4 %. A wrong
/// kernel differs by 100 %.
const MAX_DIFFERENCE: f32 = 0.1;
/// Least share of equal tokens: rounded logits move a few of them.
const MIN_SAME: f32 = 0.8;

pub fn run(arguments: &Devices, model: Option<&ModelSource>) -> Result<(), Failure> {
    let model = model.ok_or("this build has no demo model, which the self-test runs")?;
    let registry = walla_runtime::default_registry();
    let infos: Vec<DeviceInfo> = match &arguments.device {
        Some(name) => registry.candidates(name).into_iter().take(1).collect(),
        None => registry.devices().into_iter().map(|(info, _)| info).collect(),
    };
    if let (Some(name), []) = (&arguments.device, infos.as_slice()) {
        // The registry's error has the reason.
        return Err(match registry.open(name, &OpenOptions::default()) {
            Ok(_) => "no device".into(),
            Err(error) => error.to_string().into(),
        });
    }
    let open = OpenOptions { gpu_context: arguments.share.gpu_context(), ..OpenOptions::default() };
    let mut out = std::io::stdout();
    let system = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        "processors": std::thread::available_parallelism().map_or(1, usize::from),
    });
    if !arguments.json {
        let text = |key: &str| plain(&system[key]);
        let (version, name, count) = (text("version"), text("system"), text("processors"));
        writeln!(out, "walla {version} self-test, {name}, {count} processors")?;
    }
    let mut reports = Vec::new();
    for info in infos {
        let report = Report::of(&registry, info, &open, model);
        if !arguments.json {
            report.print(&mut out)?;
        }
        reports.push(report);
    }
    if arguments.json {
        let devices: Vec<_> = reports.iter().map(Report::to_json).collect();
        writeln!(out, "{:#}", json!({"walla": system, "devices": devices}))?;
    }
    let failed = reports.iter().filter(|report| !report.failures.is_empty());
    let failed: Vec<_> = failed.map(|report| report.info.name.as_str()).collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!("the self-test failed on {}", failed.join(", ")).into())
}

/// Results of a device.
pub struct Report {
    info: DeviceInfo,
    /// Names and values, in order.
    values: Vec<(String, Value)>,
    /// Failed checks and parts.
    failures: Vec<String>,
}

impl Report {
    fn of(registry: &Registry, info: DeviceInfo, open: &OpenOptions, model: &ModelSource) -> Self {
        let mut report = Self { info, values: Vec::new(), failures: Vec::new() };
        let name = report.info.name.clone();
        // Each part opens a separate device: nothing is freed before a device is dropped.
        let open = || registry.open(&name, open).map_err(Failure::from);
        let begin = Instant::now();
        let mut device = match open() {
            Ok(device) => device,
            Err(error) => {
                report.failures.push(format!("it does not open: {error}"));
                return report;
            }
        };
        report.add("seconds to open", seconds(begin.elapsed()));
        report.info = device.info().clone();
        report.part("ops", |report| report.ops(&mut *device));
        drop(device);
        report.part("model", |report| model::compare(report, &open, model));
        report.part("speed", |report| model::time(report, open()?, model));
        report.part("memory", |report| {
            let rate = bandwidth::of(&mut *open()?)?;
            report.add("GB/s of memory", rounded(rate / 1e9));
            // A device that `auto` would refuse for this is a right one.
            let times = StepTimes::measure(&mut *open()?);
            let text = times.map_or_else(
                |error| error.to_string(),
                |times| format!("{:?} for 1 row, {:?} for 32", times.one_row, times.many_rows),
            );
            report.add("comparison of auto", json!(text));
            Ok(())
        });
        report
    }

    /// Runs a part; its error is a failure.
    fn part(&mut self, name: &str, run: impl FnOnce(&mut Self) -> Result<(), Failure>) {
        if let Err(error) = run(self) {
            self.failures.push(format!("{name}: {error}"));
        }
    }

    /// Products of each type of weights.
    fn ops(&mut self, device: &mut dyn Device) -> Result<(), Failure> {
        let mut oracle = exact()?;
        let mut most = 0.0;
        let mut names = Vec::new();
        for ty in TensorType::ALL {
            let found = match ops::run(device, ty) {
                Err(DeviceError::Unsupported { .. }) => continue,
                found => found?,
            };
            let apart = difference(&found, &ops::run(&mut *oracle, ty)?);
            self.check(apart <= MAX_DIFFERENCE, || format!("{ty}: logits differ by {apart}"));
            most = if apart > most || apart.is_nan() { apart } else { most };
            names.push(ty.to_string());
        }
        self.add("types", json!(names.join(" ")));
        self.add("largest difference of types", rounded(f64::from(most)));
        Ok(())
    }

    fn add(&mut self, name: impl Into<String>, value: Value) {
        self.values.push((name.into(), value));
    }

    fn check(&mut self, is_right: bool, what: impl FnOnce() -> String) {
        if !is_right {
            self.failures.push(what());
        }
    }

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let info = &self.info;
        writeln!(out, "\n{}: {}, kernels {}", info.name, info.description, info.variant)?;
        for (name, value) in &info.facts {
            writeln!(out, "  {name}: {value}")?;
        }
        for (name, value) in &self.values {
            writeln!(out, "  {name}: {}", plain(value))?;
        }
        for failure in &self.failures {
            writeln!(out, "  FAILED: {failure}")?;
        }
        writeln!(out, "  result: {}", self.result())
    }

    fn result(&self) -> &'static str {
        if self.failures.is_empty() { "passed" } else { "failed" }
    }

    fn to_json(&self) -> Value {
        let facts = self.info.facts.iter().map(|(name, value)| ((*name).to_owned(), json!(value)));
        json!({
            "name": self.info.name,
            "description": self.info.description,
            "variant": self.info.variant,
            "facts": facts.collect::<Map<_, _>>(),
            "values": self.values.iter().cloned().collect::<Map<_, _>>(),
            "failures": self.failures,
            "result": self.result(),
        })
    }
}

/// A text without quotation marks, or a number.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A number with four decimals.
fn rounded(number: f64) -> Value {
    json!((number * 1e4).round() / 1e4)
}

fn seconds(duration: Duration) -> Value {
    rounded(duration.as_secs_f64())
}

/// The CPU without any rounding.
fn exact() -> Result<Box<dyn Device>, DeviceError> {
    let options = CpuOptions { variant: Some(Variant::Scalar), ..CpuOptions::default() };
    Ok(Box::new(CpuDevice::new(options)?))
}

/// The largest difference of a row, relative to its numbers (root of mean squares).
fn difference(rows: &[Vec<f32>], exact: &[Vec<f32>]) -> f32 {
    let squares = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|n| n * n).sum::<f32>();
    let differences = rows.iter().zip(exact).map(|(row, exact)| {
        let apart = squares(&mut row.iter().zip(exact).map(|(a, b)| a - b));
        (apart / squares(&mut exact.iter().copied())).sqrt()
    });
    if rows.len() != exact.len() {
        return f32::NAN;
    }
    // `max` would drop a NaN.
    differences.fold(0.0, |most, row| if row > most || row.is_nan() { row } else { most })
}

#[cfg(test)]
mod tests {
    use walla_doubles::hash::{HashBackend, HashOptions};

    use super::*;

    /// It hashes tokens instead of evaluating a model.
    #[test]
    #[cfg(feature = "demo")]
    fn a_device_that_computes_something_else_fails() {
        let options = HashOptions { step_micros: 0, row_micros: 0, ..HashOptions::default() };
        let registry = Registry::new().with(HashBackend::new(options));
        let (info, _) = registry.devices().remove(0);
        let report = Report::of(&registry, info, &OpenOptions::default(), &ModelSource::demo());
        assert_eq!(report.result(), "failed");
        let all = report.failures.join("\n");
        for what in ["Q4_K: logits differ", "f16: logits differ", "q8: other tokens"] {
            assert!(all.contains(what), "{what} in {all}");
        }
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        assert!(String::from_utf8(text).unwrap().contains("FAILED: Q4_K: logits differ"));
    }

    #[test]
    fn a_difference_is_relative_and_keeps_nan() {
        let exact = [vec![3.0, 4.0], vec![1.0, 0.0]];
        assert_eq!(difference(&exact, &exact), 0.0);
        assert_eq!(difference(&[vec![3.0, 4.5], vec![1.0, 0.0]], &exact), 0.1);
        assert!(difference(&[vec![f32::NAN, 4.0], vec![1.0, 0.0]], &exact).is_nan());
        assert!(difference(&exact[..1], &exact).is_nan());
    }
}
