//! What the results were measured on: processor, commit, date, power and memory of a GPU.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// What a GPU used while a cell ran, where `nvidia-smi` tells.
#[derive(Clone, Copy, Debug, Default)]
pub struct Power {
    /// Mean and largest reading.
    pub watts: Option<(f64, f64)>,
    /// Largest reading.
    pub memory_mib: Option<f64>,
}

impl Power {
    /// The one that used more; where only one was read, that one.
    pub fn larger(self, other: Self) -> Self {
        let key = |power: &Self| power.watts.map_or(-1.0, |watts| watts.1);
        if key(&other) > key(&self) { other } else { self }
    }

    /// As [`to_json`](Self::to_json) wrote it.
    pub fn of(value: &Value) -> Self {
        let number = |name: &str| value[name].as_f64();
        Self {
            watts: number("watts_mean").zip(number("watts_max")),
            memory_mib: number("memory_used_mib_max"),
        }
    }

    /// For a file of results; what was not read is null.
    #[must_use]
    pub fn to_json(self) -> Value {
        json!({
            "watts_mean": self.watts.map(|watts| watts.0),
            "watts_max": self.watts.map(|watts| watts.1),
            "memory_used_mib_max": self.memory_mib,
        })
    }
}

/// Reads power and memory twice a second, in the background.
pub struct PowerMeter(Option<(Child, JoinHandle<Vec<[f64; 2]>>)>);

impl PowerMeter {
    /// Starts if `device` is a GPU and the machine has the tool.
    pub fn start(device: &str) -> Self {
        let Some(index) = device.strip_prefix("cuda:") else { return Self(None) };
        let child = Command::new("nvidia-smi")
            .args(["--query-gpu=power.draw,memory.used", "--format=csv,noheader,nounits"])
            .args(["-i", index, "-lms", "500"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else { return Self(None) };
        let Some(out) = child.stdout.take() else { return Self(None) };
        let lines = move || BufReader::new(out).lines().map_while(Result::ok).filter_map(reading);
        Self(Some((child, std::thread::spawn(move || lines().collect()))))
    }

    /// What was read since the start.
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

/// `123.45, 6789`.
fn reading(line: String) -> Option<[f64; 2]> {
    let (watts, mib) = line.split_once(',')?;
    Some([watts.trim().parse().ok()?, mib.trim().parse().ok()?])
}

/// Where and when, and built from which commit, if that is known better than git can tell here.
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
        "command": std::env::args().skip(1).collect::<Vec<_>>().join(" "),
    })
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

/// Year, month and day of a day since 1970-01-01 in the Gregorian calendar: years begin in March here, so that the leap day is the last
/// one, and 400 years are 146,097 days.
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
    fn readings_are_two_numbers() {
        assert_eq!(reading("123.45, 6789".into()), Some([123.45, 6789.0]));
        assert_eq!(reading("[N/A], 6789".into()), None);
    }
}
