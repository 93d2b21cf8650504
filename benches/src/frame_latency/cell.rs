//! Parameters of one run.

use std::fmt;
use std::time::Duration;

use crate::args::{Arguments, Mode};

/// One run: mode, device, frame rate and number of agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    pub mode: Mode,
    pub device: String,
    /// Frames per second.
    pub rate: u32,
    pub agents: usize,
    pub budget: Duration,
    pub load: Duration,
}

impl Cell {
    pub fn period(&self) -> Duration {
        Duration::from_secs(1) / self.rate.max(1)
    }

    /// Name of its files.
    pub fn slug(&self) -> String {
        let device = self.device.replace(':', "");
        format!("{}-{device}-{}hz-{}", self.mode.name(), self.rate, self.agents)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, device, rate, agents, .. } = self;
        match mode {
            Mode::Off => write!(f, "the game alone at {rate} Hz"),
            mode => write!(f, "{} on {device} at {rate} Hz, {agents} agents", mode.name()),
        }
    }
}

/// All runs, the game alone first at each rate. Modes are interleaved within a number of agents, so
/// that background load on the machine affects them equally.
pub fn cells(arguments: &Arguments) -> Vec<Cell> {
    let mut cells = Vec::new();
    for device in &arguments.devices {
        for &rate in &arguments.rates {
            let rate = rate.max(1);
            let (budget, load) = (arguments.budget(rate), arguments.load(rate));
            let cell = |mode, agents| {
                let device = device.clone();
                Cell { mode, device, rate, agents, budget, load }
            };
            if arguments.frames_of(Mode::Off) > 0 {
                cells.push(cell(Mode::Off, 0));
            }
            for &agents in arguments.agents.iter().filter(|&&agents| agents > 0) {
                cells.extend(arguments.modes.iter().map(|&mode| cell(mode, agents)));
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn every_rate_starts_with_a_baseline_cell() {
        let line = "frame_latency --rates 60,120 --agents 0,1,4 --modes walla,blocking";
        let arguments = Arguments::parse_from(line.split(' '));
        let names: Vec<_> = cells(&arguments).iter().map(Cell::slug).collect();
        assert_eq!(names.len(), 2 * (1 + 2 * 2));
        assert_eq!(names[0], "off-cpu-60hz-0");
        assert_eq!(names[1..3], ["walla-cpu-60hz-1", "blocking-cpu-60hz-1"]);
        assert_eq!(names[5], "off-cpu-120hz-0");
    }

    #[test]
    fn the_baseline_can_be_shortened_or_omitted() {
        let arguments = |alone| {
            let line = ["frame_latency", "--agents", "4", "--rates", "60", "--modes", "walla"];
            Arguments::parse_from(line.into_iter().chain(["--alone-frames", alone]))
        };
        assert_eq!(cells(&arguments("9")).len(), 2);
        assert_eq!(arguments("9").frames_of(Mode::Off), 9);
        assert_eq!(arguments("9").frames_of(Mode::Walla), 1_800);
        assert_eq!(cells(&arguments("0")).len(), 1);
    }
}
