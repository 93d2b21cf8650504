//! Engines that are loaded, replaced and unloaded at run time leave no thread and no memory. One
//! test, because it measures the whole process.
#![cfg(target_os = "linux")]

mod common;

use std::sync::OnceLock;

use bevy_app::prelude::*;
use bevy_walla::EngineOptions;
use bevy_walla::agent::AgentEngine;
use bevy_walla::engine::EngineState;
use bevy_walla::engines::{EngineSet, ReplyInProgress, WallaEngines};
use bevy_walla::options::ModelSource;
use bevy_walla::prelude::*;
use common::*;
use walla_doubles::synth::{self, Mixture, Model};

fn model() -> &'static [u8] {
    static MODEL: OnceLock<Vec<u8>> = OnceLock::new();
    let shape = Model { context_train: 2_048, ..Model::TINY };
    MODEL.get_or_init(|| synth::write(&shape, Mixture::Q8_0, 7, Vec::new()).unwrap())
}

fn options(gguf: &'static [u8]) -> EngineOptions {
    let mut options = EngineOptions::new(ModelSource::Static(gguf));
    (options.device, options.threads) = ("cpu".into(), Some(1));
    (options.max_agents, options.context_tokens) = (Some(64), 2_048);
    options
}

/// Threads of this process, and its resident memory in bytes.
fn use_of_process() -> (usize, u64) {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    let memory = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = memory.split(' ').nth(1).unwrap().parse().unwrap();
    (threads, pages * 4_096)
}

/// Engines are loaded, replaced and unloaded while an agent speaks; nothing of them is left.
#[test]
fn engines_come_and_go_without_residue() {
    let mut app = app_with(WallaPlugin::engines(EngineSet::new("default", options(model()))));
    let agent = spawn(&mut app, "You are a guest.");
    let route = AgentEngine::named("extra").or("default", None);
    app.world_mut().entity_mut(agent).insert(route);
    let (mut before, mut least_growth) = (None, u64::MAX);
    for round in 0..24 {
        let mut engines = app.world_mut().resource_mut::<WallaEngines>();
        if round % 3 == 2 {
            // A broken file fails at once or while it loads.
            engines.load("extra", options(b"GGUF, but broken")).unwrap();
        } else {
            engines.load("extra", options(model())).unwrap();
            engines.replace("extra", options(model())).unwrap();
        }
        ask(&mut app, agent, "Who are you?");
        run_until(&mut app, |app| log(app).ends() > round);
        let is_loading = |app: &App| {
            let engine = app.world().resource::<WallaEngines>().get("extra");
            let Some(engine) = engine else { return false };
            engine.successor.is_some() || matches!(engine.state, EngineState::Loading { .. })
        };
        run_until(&mut app, |app| !is_loading(app));
        let engines = app.world().resource::<WallaEngines>();
        engines.remove("extra", ReplyInProgress::Finish).unwrap();
        run_until(&mut app, |app| app.world().resource::<WallaEngines>().unloading() == 0);
        updates(&mut app, 2);
        // Allocators and thread pools have warmed up by then.
        if round < 5 {
            continue;
        }
        let Some((threads, memory)) = before else {
            std::thread::sleep(std::time::Duration::from_millis(200)); // its threads end
            before = Some(use_of_process());
            continue;
        };
        run_until(&mut app, |_| use_of_process().0 <= threads);
        let (_, memory_now) = use_of_process();
        if round >= 12 {
            least_growth = least_growth.min(memory_now.saturating_sub(memory));
        }
    }
    // The allocator keeps freed memory for a while, but not always. An engine has more than 30 MB.
    assert!(least_growth < 8 << 20, "at least {least_growth} bytes more in the second half");
    assert_eq!(log(&app).only("failed"), Vec::<&str>::new());
}
