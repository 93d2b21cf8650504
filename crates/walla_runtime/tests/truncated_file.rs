//! Another process shortens a model file during and after its load. A process that accesses lost
//! bytes of a mapped file is killed by a signal (`SIGBUS`), so every load runs in a child process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use walla_device::OpenOptions;
use walla_doubles::synth::{self, Mixture, Model};
use walla_exec::{ExecOptions, Executor};
use walla_model::tokenizer::Tokenizer;
use walla_model::{Gguf, ModelSpec};
use walla_runtime::{
    AgentSpec, Command as Say, Engine, EngineOptions, EngineState, FrameBudget, Pacing, Prompt,
    ReplyEvent, default_registry,
};
use walla_types::TokenId;

/// The task of a child process.
const TASK: &str = "WALLA_TRUNCATED_FILE_TASK";
const FILE: &str = "WALLA_TRUNCATED_FILE";
const MOMENT: &str = "WALLA_TRUNCATED_FILE_MOMENT";

/// Moments during a load: three before the first matrix, then one behind each. The model has more
/// matrices.
const MOMENTS: usize = 40;

fn model() -> Vec<u8> {
    let model = Model { layers: 8, hidden: 512, ..Model::TINY };
    synth::write(&model, Mixture::Q8_0, 7, Vec::new()).expect("a vector takes everything")
}

fn shorten(path: &Path, len: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.set_len(len)).expect("the file is the test's own");
}

// Child process.

/// Sends a line to the parent.
fn say(line: &str) {
    println!("child: {line}");
}

/// Waits until the parent has answered.
fn wait() {
    say("now");
    std::io::stdin().lock().read_line(&mut String::new()).expect("the parent answers");
}

#[test]
#[ignore = "a child process of the other tests"]
fn child() {
    let [task, path] = [TASK, FILE].map(|name| std::env::var(name).expect("set by the parent"));
    let path = PathBuf::from(path);
    let outcome = match task.as_str() {
        "load" => load_in_moments(&path),
        "start" => start_and_ask(&path, false),
        "ask" => start_and_ask(&path, true),
        other => panic!("no such task: {other}"),
    };
    match outcome {
        Ok(text) => say(&format!("fine: {text}")),
        Err(error) => say(&format!("error: {error}")),
    }
}

/// Loads as an engine does, and waits at one moment.
fn load_in_moments(path: &Path) -> Result<String, Box<dyn std::error::Error>> {
    let stop_at: usize = std::env::var(MOMENT)?.parse()?;
    let mut moment = 0;
    let mut pass = || {
        if moment == stop_at {
            wait();
        }
        moment += 1;
    };
    let file = Gguf::open(path)?;
    pass();
    let options = ExecOptions {
        max_sequences: 2,
        max_rows: 8,
        max_outputs: 2,
        context_tokens: 64,
        ..ExecOptions::default()
    };
    let model = ModelSpec::from_gguf(&file, options.context_tokens)?;
    pass();
    Tokenizer::from_gguf(&file)?;
    pass();
    let device = default_registry()
        .open("cpu", &OpenOptions { threads: Some(2), ..OpenOptions::default() })?;
    let go_on = &mut |_: f32| {
        pass();
        ControlFlow::Continue(())
    };
    Executor::load(device, &file, &model, options.with_full_pages(), go_on)?;
    Ok(format!("{moment} moments"))
}

/// Loads with an engine and lets three agents speak. Waits during a reply if `waits`.
fn start_and_ask(path: &Path, waits: bool) -> Result<String, Box<dyn std::error::Error>> {
    let options = EngineOptions {
        device: "cpu".into(),
        context_tokens: 128,
        max_agents: Some(4),
        max_rows: Some(16),
        budget: FrameBudget::Unlimited,
        ..EngineOptions::model(path.to_owned())
    };
    say("start");
    let start = Instant::now();
    let engine = Engine::start(options)?;
    loop {
        match engine.state() {
            EngineState::Loading { .. } => thread::sleep(Duration::from_micros(100)),
            EngineState::Ready => break,
            EngineState::Failed(error) => return Err(error.to_string().into()),
            EngineState::Stopped => return Err("stopped".into()),
        }
    }
    say(&format!("loaded {}", start.elapsed().as_micros()));
    let client = engine.client(Pacing::FreeRunning)?;
    for _ in 0..3 {
        let (agent, reply_id) = (client.new_agent(), client.new_reply_id());
        let spec = AgentSpec { max_reply_tokens: 60, ..AgentSpec::new("") };
        client.try_send(Say::AddAgent { agent, spec: Box::new(spec) })?;
        let prompt = Prompt::Tokens((1..20).map(TokenId).collect());
        client.try_send(Say::ask(agent, reply_id, prompt))?;
    }
    let (mut text, mut ended, mut waits) = (String::new(), 0, waits);
    while ended < 3 {
        let Some(event) = client.try_recv() else {
            if start.elapsed() > Duration::from_secs(60) {
                return Err("the replies do not end".into());
            }
            thread::sleep(Duration::from_micros(100));
            continue;
        };
        match event.what {
            ReplyEvent::Delta { text: delta, .. } => {
                text += &delta;
                if std::mem::take(&mut waits) {
                    wait();
                }
            }
            ReplyEvent::Finished { .. } => ended += 1,
            ReplyEvent::Failed(error) => return Err(error.to_string().into()),
            _ => {}
        }
    }
    Ok(format!("{} bytes of text", text.len()))
}

// Parent process.

/// A child process and its lines.
struct Loader {
    child: Child,
    stdin: ChildStdin,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Loader {
    fn start(task: &str, path: &Path, moment: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"))
            .args(["child", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(TASK, task)
            .env(FILE, path)
            .env(MOMENT, moment.to_string())
            .env_remove("RUST_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("this program runs");
        let stdin = child.stdin.take().expect("piped");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, stdin, lines }
    }

    /// The next line of the child; `None` after its end.
    fn line(&mut self) -> Option<String> {
        loop {
            let line = self.lines.next()?.expect("text");
            // The first line also contains output of the test harness.
            if let Some((_, said)) = line.split_once("child: ") {
                return Some(said.to_owned());
            }
        }
    }

    fn go_on(&mut self) {
        self.stdin.write_all(b"\n").expect("the child waits");
    }

    /// The last line, which is the outcome. A child that is killed sends none.
    fn outcome(mut self, when: &str) -> Result<String, String> {
        let mut last = String::new();
        while let Some(line) = self.line() {
            last = line;
        }
        let status = self.child.wait().expect("it ran");
        assert!(status.success(), "{when}: the process ended with {status} after {last:?}");
        match last.split_once(": ") {
            Some(("fine", text)) => Ok(text.to_owned()),
            Some(("error", text)) => Err(text.to_owned()),
            _ => panic!("{when}: {last}"),
        }
    }
}

#[test]
fn truncation_during_a_load_is_an_error_that_names_file_and_tensor() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let bytes = model();
    let whole = bytes.len() as u64;
    for moment in 0..MOMENTS {
        // An empty file, a part of the header, a part of the weights, or all but one byte.
        let len = [0, 1_000, whole / 2, whole - 1][moment % 4];
        std::fs::write(&path, &bytes).expect("written");
        let mut child = Loader::start("load", &path, moment);
        assert_eq!(child.line().as_deref(), Some("now"), "moment {moment}");
        shorten(&path, len);
        child.go_on();
        let outcome = child.outcome(&format!("{len} bytes left at moment {moment}"));
        if len <= 1_000 {
            // Matrices always remain to be read.
            let error = outcome.expect_err("the rest cannot be read");
            let names = error.starts_with(&path.display().to_string()) && error.contains("tensor");
            assert!(names && error.contains("shortened after it was opened"), "{error}");
        } else if let Err(error) = outcome {
            assert!(error.contains("shortened after it was opened"), "{error}");
        }
    }
}

#[test]
fn truncation_during_the_start_fails_or_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let bytes = model();
    std::fs::write(&path, &bytes).expect("written");
    let mut undisturbed = Loader::start("start", &path, 0);
    let mut micros = None;
    while let Some(line) = undisturbed.line() {
        micros = micros.or(line.strip_prefix("loaded ").and_then(|text| text.parse().ok()));
    }
    let load = Duration::from_micros(micros.expect("it loads"));
    for moment in 0..MOMENTS {
        std::fs::write(&path, &bytes).expect("written");
        let mut child = Loader::start("start", &path, 0);
        assert_eq!(child.line().as_deref(), Some("start"));
        thread::sleep(load * moment as u32 / MOMENTS as u32);
        shorten(&path, [0, bytes.len() as u64 / 2][moment % 2]);
        if let Err(error) = child.outcome(&format!("{moment} / {MOMENTS} of {load:?}")) {
            assert!(!error.is_empty() && !error.contains("panicked"), "{error}");
        }
    }
}

#[test]
fn truncation_after_the_load_does_not_affect_replies() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, model()).expect("written");
    let undisturbed = Loader::start("start", &path, 0).outcome("undisturbed").expect("it answers");
    let mut child = Loader::start("ask", &path, 0);
    while child.line().expect("a reply begins") != "now" {}
    shorten(&path, 0);
    child.go_on();
    assert_eq!(child.outcome("shortened in mid-sentence"), Ok(undisturbed));
}
