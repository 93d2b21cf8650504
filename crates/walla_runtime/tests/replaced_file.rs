//! A device is lost after the model's file was replaced. Renaming another file over it or deleting
//! it changes nothing, because the engine keeps the old file open. An overwrite in place is
//! detected, and the engine fails with a typed error.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use common::{eventually, inline_cpu};
use walla_device::{DeviceError, Registry};
use walla_doubles::faulty::{Call, Fault};
use walla_doubles::synth::{self, Mixture, Model};
use walla_doubles::{FaultPlan, FaultyBackend};
use walla_model::GgufError;
use walla_model::spec::Architecture;
use walla_runtime::{
    AgentSpec, Client, Command, Engine, EngineError, EngineOptions, EngineState, Event,
    FrameBudget, Pacing, Prompt, ReplyError, ReplyEvent, ReplyId,
};
use walla_types::{Sampling, TokenId};

/// The device's error in an engine's.
fn device_error(error: &EngineError) -> Option<&DeviceError> {
    let EngineError::Device(source) = error else { return None };
    source.downcast_ref()
}

fn bytes_of(model: &Model, seed: u64) -> Vec<u8> {
    synth::write(model, Mixture::Q8_0, seed, Vec::new()).expect("a vector takes everything")
}

fn model() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| bytes_of(&Model::TINY, 7))
}

/// Replacements of the model's file.
fn replacements() -> [(&'static str, Vec<u8>); 4] {
    let others = [
        ("a smaller vocabulary", bytes_of(&Model { vocab: 280, ..Model::TINY }, 7)),
        ("a larger vocabulary", bytes_of(&Model { vocab: 500, ..Model::TINY }, 7)),
        ("other weights", bytes_of(&Model::TINY, 8)),
        (
            "another architecture",
            bytes_of(&Model { architecture: Architecture::Qwen3, ..Model::TINY }, 7),
        ),
    ];
    assert_eq!(others[2].1.len(), model().len(), "nothing but weights differs");
    others
}

/// An engine on a device that is lost at its `lost_at`th launch.
fn start(path: &Path, lost_at: u64) -> Engine {
    let plan = FaultPlan::new(0).fail_call(Call::Launch, lost_at, Fault::Lost);
    let registry = Registry::new()
        .with(FaultyBackend::new(inline_cpu(), plan).alias("gpu"))
        .with(inline_cpu());
    let options = EngineOptions {
        context_tokens: 128,
        max_agents: Some(8),
        max_rows: Some(32),
        max_prefill_tokens: Some(16),
        budget: FrameBudget::Unlimited,
        ..EngineOptions::model(path.to_owned())
    };
    let engine = Engine::start_with(options, registry).unwrap();
    eventually("ready", || engine.state().is_ready().then_some(()));
    assert_eq!(engine.model().unwrap().device_line(), "cpu", "the device that is called gpu");
    engine
}

fn ask(client: &Client, seed: u64) -> ReplyId {
    let (agent, reply_id) = (client.new_agent(), client.new_reply_id());
    // A different draw per agent, the same in every run.
    let sampling = Sampling::builder().temperature(1.0).seed(seed).build().unwrap();
    let spec = AgentSpec { sampling, max_reply_tokens: 24, ..AgentSpec::new("") };
    client.try_send(Command::AddAgent { agent, spec: Box::new(spec) }).unwrap();
    let prompt = Prompt::Tokens((1..20).map(TokenId).collect());
    client.try_send(Command::ask(agent, reply_id, prompt)).unwrap();
    reply_id
}

/// Asks three agents and returns the events of each reply until all have ended.
fn three_replies(engine: &Engine) -> [Vec<Event>; 3] {
    let client = engine.client(Pacing::FreeRunning).unwrap();
    let asked = [1, 2, 3].map(|seed| ask(&client, seed));
    let mut events: Vec<Event> = Vec::new();
    while events.iter().filter(|event| event.what.is_terminal()).count() < 3 {
        events.push(eventually("an event", || client.try_recv()));
    }
    // No event follows the terminal events.
    thread::sleep(Duration::from_millis(5));
    assert_eq!(client.try_recv(), None);
    asked.map(|reply_id| {
        let of_reply: Vec<Event> =
            events.iter().filter(|event| event.reply_id == reply_id).cloned().collect();
        let ends = of_reply.iter().filter(|event| event.what.is_terminal()).count();
        assert_eq!((ends, of_reply.last().unwrap().what.is_terminal()), (1, true));
        of_reply
    })
}

fn text(events: &[Event]) -> String {
    let deltas = events.iter().filter_map(|event| match &event.what {
        ReplyEvent::Delta { text, .. } => Some(text.as_str()),
        _ => None,
    });
    deltas.collect()
}

fn in_folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, model()).unwrap();
    (folder, path)
}

#[test]
fn a_file_that_was_renamed_over_or_deleted_stays_readable() {
    let undisturbed = {
        let (_folder, path) = in_folder();
        three_replies(&start(&path, u64::MAX)).map(|events| text(&events))
    };
    assert!(undisturbed.iter().all(|text| !text.is_empty()));
    let mut cases: Vec<(&str, Option<Vec<u8>>)> = vec![("deleted", None)];
    // Wine 8, which runs the tests for Windows, knows no renames over open files.
    if cfg!(not(windows)) {
        cases.extend(replacements().map(|(what, bytes)| (what, Some(bytes))));
    }
    for (what, bytes) in cases {
        let (folder, path) = in_folder();
        let engine = start(&path, 4);
        match bytes {
            None => fs::remove_file(&path).unwrap(),
            Some(bytes) => {
                let beside = folder.path().join("new.gguf");
                fs::write(&beside, bytes).unwrap();
                fs::rename(&beside, &path).unwrap();
            }
        }
        let heard = three_replies(&engine);
        assert_eq!(heard.map(|events| text(&events)), undisturbed, "{what}");
        let device = engine.model().unwrap().device_line();
        assert!(device.starts_with("cpu (fallback after: device lost in launch"), "{device}");
        assert!(engine.state().is_ready(), "{what}");
    }
}

#[test]
fn a_file_overwritten_in_place_is_a_lost_device_with_a_reason() {
    let mut cases: Vec<(&str, Vec<u8>)> = replacements().into();
    cases.push(("nothing", Vec::new()));
    cases.push(("a part", model()[..model().len() / 2].to_vec()));
    cases.push(("no model at all", vec![b'x'; model().len()]));
    let mut one_byte = model().to_vec();
    *one_byte.last_mut().unwrap() ^= 1;
    cases.push(("one byte", one_byte));
    for (what, bytes) in cases {
        let (_folder, path) = in_folder();
        let engine = start(&path, 4);
        fs::write(&path, &bytes).unwrap();
        for events in three_replies(&engine) {
            let ReplyEvent::Failed(ReplyError::EngineGone(reason)) = &events.last().unwrap().what
            else {
                panic!("{what}: {events:?}");
            };
            let names = reason.starts_with("device lost in launch")
                && reason.contains(&path.display().to_string());
            assert!(names, "{what}: {reason}");
        }
        let EngineState::Failed(error) = engine.state() else { panic!("{what} goes on") };
        let EngineError::NotReplaced { lost, reason } = &*error else { panic!("{what}: {error}") };
        assert!(matches!(device_error(lost), Some(DeviceError::Lost { .. })), "{lost}");
        let EngineError::File { source, .. } = &**reason else { panic!("{what}: {reason}") };
        let is_named = match source.downcast_ref() {
            Some(GgufError::Changed { before, after, .. }) => {
                *before == model().len() as u64 && *after == bytes.len() as u64
            }
            Some(GgufError::Modified { .. }) => bytes.len() == model().len(),
            _ => false,
        };
        assert!(is_named, "{what}: {reason}");
        eventually("the thread ends", || engine.is_ended().then_some(()));
    }
}

/// A file that is written to but has the same contents afterwards does not stop the engine.
#[test]
fn a_file_overwritten_with_the_same_bytes_stays_valid() {
    let (_folder, path) = in_folder();
    let undisturbed = three_replies(&start(&path, u64::MAX)).map(|events| text(&events));
    let engine = start(&path, 4);
    fs::write(&path, model()).unwrap();
    assert_eq!(three_replies(&engine).map(|events| text(&events)), undisturbed);
    assert!(engine.state().is_ready());
}

/// An engine that will not load the model again does not keep its file open.
#[cfg(target_os = "linux")]
#[test]
fn the_file_is_open_only_while_a_fallback_may_need_it() {
    let is_open = |path: &Path| {
        let files = fs::read_dir("/proc/self/fd").unwrap();
        files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|to| to == path))
    };
    let (_folder, path) = in_folder();
    let path = path.canonicalize().unwrap();
    let engine = start(&path, u64::MAX);
    assert!(is_open(&path));
    drop(engine);
    eventually("closed", || (!is_open(&path)).then_some(()));
    let options = EngineOptions {
        fallback: false,
        budget: FrameBudget::Unlimited,
        ..EngineOptions::model(path.clone())
    };
    let engine = Engine::start_with(options, Registry::new().with(inline_cpu())).unwrap();
    eventually("ready", || engine.state().is_ready().then_some(()));
    assert!(!is_open(&path));
}
