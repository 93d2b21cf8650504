//! Arguments: the cells to measure.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// Measures the cost of dialogue for a game's frames.
#[derive(Clone, Debug, Parser)]
pub struct Arguments {
    /// A GGUF file [default: the demo model]
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Instead: random weights of a real shape, such as llama-3.2-1b:q4_k_m, stored in the system's
    /// folder for temporary files
    #[arg(long, value_name = "SHAPE:TYPES", conflicts_with = "model")]
    pub synth: Option<String>,
    /// Devices: cpu, cuda:0 …
    #[arg(long, value_delimiter = ',', default_value = "cpu")]
    pub devices: Vec<String>,
    /// Threads of a CPU device [default: half of the cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Tokens of each agent's context
    #[arg(long, value_name = "N", default_value_t = 1_024)]
    pub context: u32,
    /// Frames per second: 60 and 120 for games, 100 for a robot
    #[arg(long, value_delimiter = ',', default_value = "60,120,100")]
    pub rates: Vec<u32>,
    /// Numbers of agents; 0 is the game alone, which is always measured
    #[arg(long, value_delimiter = ',', default_value = "0,1,4,16,64,256")]
    pub agents: Vec<usize>,
    /// Ways to run the model
    #[arg(long, value_delimiter = ',', default_value = "walla,walla-no-overlap,blocking,llama")]
    pub modes: Vec<Mode>,
    /// Measured frames of each cell
    #[arg(long, value_name = "N", default_value_t = 1_800)]
    pub frames: usize,
    /// Measured frames of the game alone [default: as many]; 0 omits it
    #[arg(long, value_name = "N")]
    pub alone_frames: Option<usize>,
    /// Frames before them, counted from when all agents have begun to speak
    #[arg(long, value_name = "N", default_value_t = 180)]
    pub warm_up: usize,
    /// Number of runs of every cell, interleaved, so that background load on the machine affects
    /// all of them equally
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub rounds: u32,
    /// Work of the rest of the game in each frame, in milliseconds on an idle machine [default: 8,
    /// at most half of a period]
    #[arg(long, value_name = "MS")]
    pub host_load_ms: Option<f64>,
    /// Threads of all the game's task pools [default: all cores]
    #[arg(long, value_name = "N")]
    pub host_threads: Option<usize>,
    /// Device-time budget of a frame, in milliseconds [default: a quarter of the period]
    #[arg(long, value_name = "MS")]
    pub budget_ms: Option<f64>,
    /// Maximum device time of one step on a GPU, in milliseconds; 0: no limit [default: the
    /// engine's]
    #[arg(long, value_name = "MS")]
    pub launch_ms: Option<f64>,
    /// Tokens per second that speech needs: later tokens miss their deadline
    #[arg(long, value_name = "N", default_value_t = 6.0)]
    pub voice_rate: f32,
    /// Maximum tokens of one reply
    #[arg(long, value_name = "N", default_value_t = 120)]
    pub reply_tokens: u32,
    /// Agents speak digits only. The next prompt contains the text of random words as other tokens
    /// than the sampled ones, so each reply of random weights is evaluated twice; replies of
    /// trained models mostly become the same tokens, and so do digits
    #[arg(long)]
    pub digits: bool,
    /// Prompt tokens of a new agent in the middle of each cell; 0: no new agent
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub prefill_event: u32,
    /// llama.cpp's server: without it, its mode is skipped
    #[arg(long, value_name = "PATH", env = "WALLA_LLAMA_SERVER")]
    pub llama_server: Option<PathBuf>,
    /// More flags for llama.cpp's server, separated by spaces
    #[arg(long, value_name = "FLAGS", default_value = "", allow_hyphen_values = true)]
    pub llama_flags: String,
    /// A trace of the first 300 measured frames of the first cell in mode walla, for
    /// ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Also write every frame, so that `--merge` can combine several runs
    #[arg(long)]
    pub part: bool,
    /// Run nothing: combine the parts in these folders
    #[arg(long, value_name = "FOLDER", num_args = 1.., conflicts_with_all = ["part", "quick"])]
    pub merge: Vec<PathBuf>,
    /// Folder for the results
    #[arg(long, value_name = "FOLDER", default_value = "target/frame-latency")]
    pub out: PathBuf,
    /// Commit that this was built from [default: reported by git in the current folder]
    #[arg(long, value_name = "HASH")]
    pub commit: Option<String>,
    /// Seconds instead of minutes, to check that it runs: the values are not meaningful
    #[arg(long)]
    pub quick: bool,
}

/// Mode of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Mode {
    /// The game alone
    #[value(skip)]
    Off,
    /// Standard use of walla: the device works in parallel to the game
    Walla,
    /// The same, but each frame waits for its step
    WallaNoOverlap,
    /// Each frame waits for its step, without a budget: one decode token per agent, and 512 tokens
    /// of prompts
    Blocking,
    /// llama.cpp's server in parallel to the game
    Llama,
}

impl Mode {
    /// Name in results and plots.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Walla => "walla",
            Self::WallaNoOverlap => "walla-no-overlap",
            Self::Blocking => "blocking",
            Self::Llama => "llama",
        }
    }

    /// The mode of a name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Off, Self::Walla, Self::WallaNoOverlap, Self::Blocking, Self::Llama];
        all.into_iter().find(|mode| mode.name() == name)
    }

    /// Whether a budget bounds the mode's frames.
    pub fn is_governed(self) -> bool {
        matches!(self, Self::Walla | Self::WallaNoOverlap)
    }
}

impl Arguments {
    /// Applies `--quick`.
    pub fn with_quick(mut self) -> Self {
        if self.quick {
            self.rates = vec![60];
            self.agents = vec![0, 2];
            self.frames = self.frames.min(90);
            self.alone_frames = self.alone_frames.map(|frames| frames.min(90));
            self.warm_up = self.warm_up.min(20);
            self.host_load_ms = Some(self.host_load_ms.unwrap_or(2.0));
            self.reply_tokens = self.reply_tokens.min(24);
        }
        self
    }

    /// Measured frames of a mode.
    pub fn frames_of(&self, mode: Mode) -> usize {
        let alone = self.alone_frames.filter(|_| mode == Mode::Off);
        alone.unwrap_or(self.frames)
    }

    /// The limit of a step's device time, if it is not the engine's default.
    pub fn max_launch(&self) -> Option<Option<Duration>> {
        self.launch_ms.map(walla_benches::max_launch)
    }

    /// Work of a frame at this rate.
    pub fn load(&self, rate: u32) -> Duration {
        let half_ms = 500.0 / f64::from(rate);
        let ms = self.host_load_ms.unwrap_or(half_ms.min(8.0));
        Duration::from_secs_f64(ms.clamp(0.0, 1e4) / 1e3)
    }

    /// Device time of a frame at this rate.
    pub fn budget(&self, rate: u32) -> Duration {
        let quarter = 0.25 / f64::from(rate);
        Duration::from_secs_f64(self.budget_ms.map_or(quarter, |ms| ms.max(0.0) / 1e3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_and_budget_follow_the_rate() {
        let arguments = Arguments::parse_from(["frame_latency"]);
        assert_eq!(arguments.load(60), Duration::from_millis(8));
        assert_eq!(arguments.load(100), Duration::from_millis(5));
        assert_eq!(arguments.budget(100), Duration::from_micros(2_500));
        let fixed = Arguments::parse_from(["frame_latency", "--budget-ms", "3"]);
        assert_eq!(fixed.budget(100), Duration::from_millis(3));
    }
}
