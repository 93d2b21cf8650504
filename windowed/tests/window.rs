//! The programs with the input of a player, on a virtual display with software rendering.
//!
//! Needs `Xvfb` in the path and a Vulkan driver, for instance Debian's `xvfb` and
//! `mesa-vulkan-drivers`. Without them the tests report that they are skipped, and pass.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Timeout: software rendering on a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(240);

/// Mesa's software Vulkan, on Debian.
const SOFTWARE_VULKAN: &str = "/usr/share/vulkan/icd.d/lvp_icd.x86_64.json";

#[test]
fn a_click_and_a_key_get_a_visible_reply() {
    let Some(display) = Display::start() else { return };
    let dir = scratch("tavern");
    let [before, after, transcript] =
        ["before.png", "after.png", "talk.jsonl"].map(|name| dir.join(name));
    let script = format!(
        "ready; wait 5; screenshot {}; click Greta; wait 2; press 1; wait 2; reply; press f3; wait 8; screenshot {}; quit",
        before.display(),
        after.display()
    );
    let mut tavern = Command::new(env!("CARGO_BIN_EXE_tavern_window"));
    tavern.args(["--device", "cpu", "--guests", "4", "--script", &script]);
    tavern.arg("--transcript").arg(&transcript).env("DISPLAY", &display.name);
    run(&mut tavern);

    let talk = fs::read_to_string(&transcript).unwrap();
    let lines: Vec<serde_json::Value> =
        talk.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let asked = lines.iter().position(|line| line["who"] == "You").expect("the key asked nothing");
    let answer = lines[asked..].iter().find(|line| line["to_player"] == true);
    let answer = answer.unwrap_or_else(|| panic!("no answer:\n{talk}"));
    assert_eq!(answer["who"], "Greta");
    assert!(answer["text"].as_str().unwrap().contains(char::is_alphabetic), "{answer}");

    let [before, after] = [before, after].map(|path| Picture::read(&path));
    for picture in [&before, &after] {
        assert_eq!((picture.width, picture.height), (1_280, 720));
        assert!(picture.colors() > 500, "only {} colours: a blank window?", picture.colors());
    }
    let overlay = (20..300, 20..200);
    assert!(before.differs_from(&after, overlay) > 0.5, "F3 shows the overlay");
    let panel = (20..760, 640..700);
    assert!(before.differs_from(&after, panel) > 0.1, "Greta's questions are shown");
}

/// Greta sells a horseshoe, which moves to the purse, and keeps the sword, which is too expensive.
#[test]
fn a_guest_sells_an_item_if_the_player_can_pay() {
    let Some(display) = Display::start() else { return };
    let dir = scratch("purse");
    let [flight, after, transcript] =
        ["flight.png", "after.png", "talk.jsonl"].map(|name| dir.join(name));
    let script = format!(
        "ready; wait 5; click Greta; wait 2; press 2; sale; screenshot {}; reply; \
         type I'd like to buy a sword.; press enter; wait 2; reply; wait 5; screenshot {}; quit",
        flight.display(),
        after.display()
    );
    let mut tavern = Command::new(env!("CARGO_BIN_EXE_tavern_window"));
    tavern.args(["--device", "cpu", "--guests", "1", "--script", &script]);
    tavern.arg("--transcript").arg(&transcript).env("DISPLAY", &display.name);
    run(&mut tavern);

    let talk = fs::read_to_string(&transcript).unwrap();
    let lines: Vec<serde_json::Value> =
        talk.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sales: Vec<_> = lines.iter().filter(|line| line.get("sells").is_some()).collect();
    let expected = [
        serde_json::json!({ "who": "Greta", "sells": "horseshoe", "paid": true, "silver": 7 }),
        serde_json::json!({ "who": "Greta", "sells": "sword", "paid": false, "silver": 7 }),
    ];
    assert_eq!(sales, expected.each_ref(), "{talk}");
    let spoken = |sale: usize| {
        let from = lines.iter().position(|line| line == sales[sale]).unwrap();
        let line = lines[from..].iter().find(|line| line["to_player"] == true);
        line.unwrap_or_else(|| panic!("silence after a sale:\n{talk}"))["text"].to_string()
    };
    assert!(spoken(0).contains("horseshoe"), "{talk}");
    assert!(spoken(1).contains("40 silver"), "{talk}");

    let [flight, after] = [flight, after].map(|path| Picture::read(&path));
    // Places of the board, which nothing else covers.
    let [first, second] = [(990..1048, 16..78), (1060..1118, 16..78)];
    assert!(flight.differs_from(&after, first) > 0.1, "the horseshoe arrives in the purse");
    assert_eq!(flight.differs_from(&after, second), 0.0, "the sword does not");
}

#[test]
fn the_benchmark_draws_its_scene_and_reports_all_modes() {
    if !has_vulkan() {
        return;
    }
    let dir = scratch("latency");
    let (json, picture) = (dir.join("out.json"), dir.join("scene.png"));
    let mut latency = Command::new(env!("CARGO_BIN_EXE_rendered_latency"));
    latency.args(["--device", "cpu", "--agents", "2", "--size", "96x64", "--cubes", "40"]);
    latency.args(["--frames", "24", "--rounds", "1", "--settle", "4"]);
    latency.arg("--json").arg(&json).arg("--picture").arg(&picture);
    run(&mut latency);

    let report: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let modes = report["modes"].as_array().unwrap();
    let names: Vec<&str> = modes.iter().filter_map(|mode| mode["mode"].as_str()).collect();
    assert_eq!(names, ["off", "on", "free"]);
    for mode in modes {
        assert!(mode["drawn_ms"]["count"].as_u64().unwrap() >= 20, "{mode}");
        assert!(mode["interval_ms"]["p50"].as_f64().unwrap() > 0.0, "{mode}");
    }
    let spoke = |place: usize| modes[place]["tokens_per_second"].as_f64().unwrap() > 0.0;
    assert_eq!([0, 1, 2].map(spoke), [false, true, true], "{report:#}");
    let scene = Picture::read(&picture);
    assert!(scene.colors() > 200, "only {} colours: nothing drawn?", scene.colors());
}

#[test]
fn the_benchmark_compares_launch_limits_under_a_load_of_prompts() {
    if !has_vulkan() {
        return;
    }
    let json = scratch("launch").join("out.json");
    let mut latency = Command::new(env!("CARGO_BIN_EXE_rendered_latency"));
    latency.args(["--device", "cpu", "--agents", "2", "--size", "96x64", "--cubes", "40"]);
    latency.args(["--frames", "24", "--rounds", "2", "--settle", "4"]);
    latency.args(["--modes", "off,on", "--launch-ms", "2,0", "--prompt-tokens", "100"]);
    latency.arg("--json").arg(&json);
    run(&mut latency);

    let report: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let modes = report["modes"].as_array().unwrap();
    let limits: Vec<_> = modes.iter().map(|mode| mode["launch_ms"].as_f64()).collect();
    assert_eq!(limits, [None, Some(2.0), Some(0.0)]);
    for mode in &modes[1..] {
        let rate = |key: &str| mode[key].as_f64().unwrap();
        let (prompts, tokens) = (rate("prompt_tokens_per_second"), rate("tokens_per_second"));
        assert!(prompts > 10.0 * tokens.max(0.1), "most of the work is prefill: {mode}");
    }
    assert_eq!(modes[0]["steps_per_second"], 0.0, "{report:#}");
}

/// A virtual display; stopped when dropped.
struct Display {
    server: Child,
    name: String,
}

impl Display {
    /// `None`, with a report on standard error, if the machine has no virtual display or no Vulkan
    /// driver.
    fn start() -> Option<Self> {
        if !has_vulkan() {
            return None;
        }
        let started = Command::new("Xvfb")
            .args(["-displayfd", "1", "-screen", "0", "1280x720x24", "-nolisten", "tcp"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut server) = started else {
            eprintln!("SKIPPED: no Xvfb on this machine (Debian: apt install xvfb)");
            return None;
        };
        let mut number = String::new();
        let out = server.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut number).expect("Xvfb tells its display");
        Some(Self { server, name: format!(":{}", number.trim()) })
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        let _gone = self.server.kill();
        let _gone = self.server.wait();
    }
}

fn has_vulkan() -> bool {
    let known = std::env::var_os("VK_DRIVER_FILES").is_some()
        || ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"]
            .iter()
            .any(|folder| fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some()));
    if !known {
        eprintln!(
            "SKIPPED: no Vulkan driver on this machine (Debian: apt install mesa-vulkan-drivers)"
        );
    }
    known
}

/// A separate folder for each test.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _first_time = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Runs a program, which must exit successfully before the timeout.
fn run(command: &mut Command) {
    if std::env::var_os("VK_DRIVER_FILES").is_none() && Path::new(SOFTWARE_VULKAN).exists() {
        command.env("VK_DRIVER_FILES", SOFTWARE_VULKAN);
    }
    let mut program =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let (sender, log) = channel();
    let error = BufReader::new(program.stderr.take().expect("piped"));
    let output = BufReader::new(program.stdout.take().expect("piped"));
    let other = sender.clone();
    std::thread::spawn(move || {
        error.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
    });
    std::thread::spawn(move || {
        output.lines().map_while(Result::ok).all(|line| other.send(line).is_ok())
    });
    let end = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = program.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() > end {
            program.kill().unwrap();
            program.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let said = || log.try_iter().collect::<Vec<_>>().join("\n");
    let status = status.unwrap_or_else(|| panic!("not done after {PATIENCE:?}:\n{}", said()));
    assert!(status.success(), "{status}:\n{}", said());
}

/// A PNG file's pixels, three bytes each.
struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Picture {
    fn read(path: &Path) -> Self {
        let file =
            fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut reader = png::Decoder::new(BufReader::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
        Self { width: info.width as usize, height: info.height as usize, pixels }
    }

    fn colors(&self) -> usize {
        self.pixels.chunks_exact(3).collect::<BTreeSet<_>>().len()
    }

    /// Fraction of the pixels in a window that differ.
    fn differs_from(
        &self,
        other: &Self,
        (xs, ys): (std::ops::Range<usize>, std::ops::Range<usize>),
    ) -> f64 {
        let at = |picture: &Self, x: usize, y: usize| {
            let from = (y * picture.width + x) * 3;
            [picture.pixels[from], picture.pixels[from + 1], picture.pixels[from + 2]]
        };
        let all = xs.len() * ys.len();
        let changed = ys
            .flat_map(|y| xs.clone().map(move |x| (x, y)))
            .filter(|&(x, y)| at(self, x, y) != at(other, x, y));
        changed.count() as f64 / all as f64
    }
}
