//! Facts about the machine and the build: processor, commit, date, power and memory of a GPU.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// Power and memory of a GPU during a cell, if `nvidia-smi` reports them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Power {
    /// Mean and largest reading.
    pub watts: Option<(f64, f64)>,
    /// Largest reading.
    pub memory_mib: Option<f64>,
}

impl Power {
    /// The one with the higher reading; if only one has a reading, that one.
    pub fn larger(self, other: Self) -> Self {
        let key = |power: &Self| power.watts.map_or(-1.0, |watts| watts.1);
        if key(&other) > key(&self) { other } else { self }
    }

    /// Parses the output of [`to_json`](Self::to_json).
    pub fn of(value: &Value) -> Self {
        let number = |name: &str| value[name].as_f64();
        Self {
            watts: number("watts_mean").zip(number("watts_max")),
            memory_mib: number("memory_used_mib_max"),
        }
    }

    /// For a file of results; a missing reading is null.
    #[must_use]
    pub fn to_json(self) -> Value {
        json!({
            "watts_mean": self.watts.map(|watts| watts.0),
            "watts_max": self.watts.map(|watts| watts.1),
            "memory_used_mib_max": self.memory_mib,
        })
    }
}

/// Reads power and memory twice a second on a background thread.
pub struct PowerMeter(Option<(Child, JoinHandle<Vec<[f64; 2]>>)>);

impl PowerMeter {
    /// Starts if `device` is a GPU, `nvidia-smi` is installed, and the GPU's entry in its list is
    /// certain.
    pub fn start(device: &str) -> Self {
        let Some(index) = device.strip_prefix("cuda:") else { return Self(None) };
        let Some(uuid) = index.parse().ok().and_then(uuid_of) else { return Self(None) };
        let child = Command::new("nvidia-smi")
            .args(["--query-gpu=power.draw,memory.used", "--format=csv,noheader,nounits"])
            .args(["-i", &uuid, "-lms", "500"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else { return Self(None) };
        let Some(out) = child.stdout.take() else { return Self(None) };
        let lines = move || BufReader::new(out).lines().map_while(Result::ok).filter_map(reading);
        Self(Some((child, std::thread::spawn(move || lines().collect()))))
    }

    /// The readings since the start.
    #[must_use]
    pub fn finish(self) -> Power {
        let Some((mut child, reader)) = self.0 else { return Power::default() };
        let _gone_already = child.kill();
        let _status = child.wait();
        let readings = reader.join().unwrap_or_default();
        let largest = |which: usize| readings.iter().map(|r| r[which]).fold(f64::NAN, f64::max);
        if readings.is_empty() {
            return Power::default();
        }
        let mean = readings.iter().map(|r| r[0]).sum::<f64>() / readings.len() as f64;
        Power { watts: Some((mean, largest(0))), memory_mib: Some(largest(1)) }
    }
}

/// A GPU in the list of `nvidia-smi`: in bus order, independent of the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gpu {
    uuid: String,
    name: String,
}

/// The UUID of the GPU that CUDA calls `cuda:index` in this process.
fn uuid_of(index: usize) -> Option<String> {
    let list = said("nvidia-smi", &["--query-gpu=uuid,name", "--format=csv,noheader"])?;
    let gpu = |line: &str| {
        let (uuid, name) = line.split_once(',')?;
        Some(Gpu { uuid: uuid.trim().to_owned(), name: name.trim().to_owned() })
    };
    let gpus: Vec<Gpu> = list.lines().filter_map(gpu).collect();
    let variable = |name: &str| std::env::var(name).ok();
    let visible = variable("CUDA_VISIBLE_DEVICES");
    let order = variable("CUDA_DEVICE_ORDER");
    visible_gpu(index, visible.as_deref(), order.as_deref(), &gpus).map(|gpu| gpu.uuid.clone())
}

/// The GPU with index `index` if `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` are `visible` and
/// `order`: CUDA numbers the GPUs that the first lists, in its order. Indices in the list, and
/// indices without a list, are in order of speed unless the second is `PCI_BUS_ID`, so they are
/// also certain if all GPUs are of the same type. `None` if it is not certain, as with parts of a
/// GPU (MIG).
fn visible_gpu<'a>(
    index: usize,
    visible: Option<&str>,
    order: Option<&str>,
    gpus: &'a [Gpu],
) -> Option<&'a Gpu> {
    let are_alike = gpus.windows(2).all(|pair| pair[0].name == pair[1].name);
    let is_numbered = order == Some("PCI_BUS_ID") || are_alike;
    let numbered = |number: usize| gpus.get(number).filter(|_| is_numbered);
    let Some(visible) = visible else { return numbered(index) };
    let named = |name: &str| {
        if let Ok(number) = name.parse() {
            return numbered(number);
        }
        // The prefix of a UUID is enough if it is unique.
        let mut found =
            gpus.iter().filter(|gpu| name.starts_with("GPU-") && gpu.uuid.starts_with(name));
        found.next().filter(|_| found.next().is_none())
    };
    // CUDA ignores the list from the first name on that is not a GPU's.
    visible.split(',').map(|name| named(name.trim())).map_while(|gpu| gpu).nth(index)
}

/// `123.45, 6789`.
fn reading(line: String) -> Option<[f64; 2]> {
    let (watts, mib) = line.split_once(',')?;
    Some([watts.trim().parse().ok()?, mib.trim().parse().ok()?])
}

/// A line of this process's status, such as `VmRSS:`, in bytes.
///
/// # Errors
/// The system does not report it: only Linux does.
pub fn memory_bytes(key: &str) -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)).ok_or("no such line")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

/// Facts for a file of results. `commit`: replaces git's answer.
pub fn facts(commit: Option<&str>) -> Value {
    let commit =
        commit.map(str::to_owned).or_else(|| said("git", &["rev-parse", "--short", "HEAD"]));
    json!({
        "processor": processor(),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "gpu": said("nvidia-smi", &["--query-gpu=name,driver_version", "--format=csv,noheader"]),
        "commit": commit,
        "date": date(),
        "load_average_1min": load_average(),
        "command": command(std::env::args().skip(1)),
    })
}

/// The command line, with absolute paths reduced to their file names: folder names of a machine are
/// not part of a result.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let told = |argument: String| {
        let path = Path::new(&argument);
        match path.file_name().filter(|_| path.is_absolute()) {
            Some(name) => name.to_string_lossy().into_owned(),
            None => argument,
        }
    };
    arguments.map(told).collect::<Vec<_>>().join(" ")
}

fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

fn processor() -> Option<String> {
    let facts = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let name = facts.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "))?.1;
    Some(name.to_owned())
}

fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Today in UTC, as `2026-11-20`.
fn date() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year}-{month:02}-{day:02}")
}

/// Year, month and day of a day since 1970-01-01 in the Gregorian calendar: years begin in March
/// here, so that the leap day is the last one, and 400 years are 146,097 days.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468; // since 0000-03-01
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_777), (2026, 11, 20));
    }

    #[test]
    fn recorded_commands_contain_no_machine_paths() {
        let given = [
            "--walla",
            "/somewhere/bin/walla",
            "--llama-args",
            "-fa on",
            "--out",
            "benches/results",
        ];
        let told = command(given.into_iter().map(str::to_owned));
        assert_eq!(told, "--walla walla --llama-args -fa on --out benches/results");
    }

    #[test]
    fn gpu_index_follows_cuda_visible_devices() {
        let gpu = |(uuid, name): (&str, &str)| Gpu { uuid: uuid.into(), name: name.into() };
        let alike = [("GPU-a1", "H200"), ("GPU-a2", "H200"), ("GPU-b3", "H200")].map(gpu);
        let uuid = |index, visible: Option<&str>, order: Option<&str>| {
            visible_gpu(index, visible, order, &alike).map(|gpu| gpu.uuid.as_str())
        };
        assert_eq!(uuid(1, None, None), Some("GPU-a2"));
        assert_eq!(uuid(0, Some("2"), None), Some("GPU-b3"));
        assert_eq!(uuid(1, Some("2, 0"), None), Some("GPU-a1"));
        assert_eq!(uuid(0, Some("GPU-b"), None), Some("GPU-b3"));
        assert_eq!(uuid(0, Some("GPU-a"), None), None, "two begin so");
        assert_eq!(uuid(1, Some("0,7,1"), None), None, "there is no 7, so the 1 is not seen");
        assert_eq!(uuid(0, Some(""), None), None, "none is visible");
        assert_eq!(uuid(0, Some("MIG-GPU-a1/0/0"), None), None, "a part of a GPU");
        assert_eq!(uuid(3, None, None), None);

        let mixed = [("GPU-a", "T4"), ("GPU-b", "H200")].map(gpu);
        let uuid = |visible: Option<&str>, order: Option<&str>| {
            visible_gpu(0, visible, order, &mixed).map(|gpu| gpu.uuid.as_str())
        };
        assert_eq!(uuid(None, None), None, "which one is faster?");
        assert_eq!(uuid(Some("1"), None), None);
        assert_eq!(uuid(None, Some("PCI_BUS_ID")), Some("GPU-a"));
        assert_eq!(uuid(Some("GPU-b"), None), Some("GPU-b"), "a UUID is clear in any order");
    }

    #[test]
    fn readings_are_two_numbers() {
        assert_eq!(reading("123.45, 6789".into()), Some([123.45, 6789.0]));
        assert_eq!(reading("[N/A], 6789".into()), None);
    }
}
