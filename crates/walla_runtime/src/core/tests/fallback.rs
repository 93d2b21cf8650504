//! A device is lost during replies and the CPU takes over: the events are the same as without the
//! loss.

use std::sync::Arc;

use walla_device::DeviceError;
use walla_doubles::faulty::{Call, Fault, FaultHandle, FaultPlan, FaultyBackend};
use walla_model::GgufError;

use super::*;
use crate::options::EngineError;

pub(super) fn with_spare(plan: FaultPlan) -> (Registry, FaultHandle) {
    let cpu = || CpuBackend::new(CpuOptions { inline: true, ..CpuOptions::default() });
    let faulty = FaultyBackend::new(cpu(), plan).alias("gpu");
    let handle = faulty.handle();
    (Registry::new().with(faulty).with(cpu()), handle)
}

/// Advances as the device thread does.
fn advance_or_fall_back(rig: &mut Rig, options: &EngineOptions, registry: &Registry) -> bool {
    let Rig { core, heard, now_micros, .. } = rig;
    *now_micros += 10;
    let mut emit = |_: ClientKey, event: Event| {
        hear(heard, event);
        Ok(())
    };
    let Err(error) = core.advance(*now_micros, &mut emit) else { return false };
    assert!(error.is_of_device(), "{error}");
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    let clock = Clock::real();
    let spare = Core::load_fallback(&rig.source, options, registry, &error, &clock, go_on);
    let spare = spare.expect("there is a CPU");
    let lost = std::mem::replace(&mut rig.core, spare.expect("the model loads"));
    rig.core.take_over(lost);
    true
}

/// Runs until all replies have ended. The device is lost after some rounds.
pub(super) fn run_and_lose(
    rig: &mut Rig,
    options: &EngineOptions,
    (registry, handle): (&Registry, &FaultHandle),
    lose_after: Option<usize>,
) {
    let mut has_fallen_back = false;
    for round in 0..400 {
        if lose_after == Some(round) {
            handle.lose();
        }
        has_fallen_back |= advance_or_fall_back(rig, options, registry);
    }
    assert_eq!(has_fallen_back, lose_after.is_some(), "{lose_after:?}");
    rig.run();
    rig.assert_all_ended();
}

/// Replies of six agents with greedy and random sampling, stop strings and conversations. The
/// device is lost after some rounds.
fn scenario(lose_after: Option<usize>) -> (Vec<Heard>, Rig) {
    let options = EngineOptions { kv_tokens: Some(16 * 30), ..options() };
    let (registry, handle) = with_spare(FaultPlan::new(1));
    let mut rig = Rig::new(&options, &registry, Pacing::FreeRunning);
    let mut asks = Vec::new();
    for seed in 0..6 {
        let sampling = if seed % 2 == 0 { Sampling::greedy() } else { speaker(seed, 1).sampling };
        let agent = rig.agent(AgentSpec { sampling, ..speaker(seed, 25) });
        asks.push(rig.ask(agent, Prompt::Chat(format!("Hello from {seed}, tell me more"))));
        asks.push(rig.ask(agent, Prompt::Chat("And then?".into())));
    }
    run_and_lose(&mut rig, &options, (&registry, &handle), lose_after);
    (asks.iter().map(|&ask| rig.reply(ask).clone()).collect(), rig)
}

#[test]
fn a_lost_device_loses_and_duplicates_no_text() {
    let (undisturbed, _) = scenario(None);
    assert!(undisturbed.iter().any(|heard| heard.tokens > 10));
    for round in [0, 1, 2, 5, 9, 14, 20, 24, 27, 30] {
        let (heard, rig) = scenario(Some(round));
        for (heard, expected) in heard.iter().zip(&undisturbed) {
            assert_eq!((&heard.text, &heard.ends), (&expected.text, &expected.ends), "{round}");
            assert_eq!(heard.started, 1);
        }
        let card = rig.core.card();
        assert!(card.device_line().starts_with("cpu (fallback after: device lost in"), "{card:?}");
    }
}

/// A skipped device is reported: it does not open, the model does not fit, or it is lost during the
/// load.
#[test]
fn the_best_device_that_fits_the_model_is_used_and_others_are_reported() {
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    for (plan, reason) in [
        (FaultPlan::new(1).max_memory_bytes(50 << 10), "memory"),
        (FaultPlan::new(1).fail_call(Call::Prepare, 0, Fault::Lost), "lost"),
    ] {
        let (registry, _) = with_spare(plan.clone());
        let core =
            Core::load(&options(), &registry, &Clock::real(), go_on).expect("the CPU takes it");
        let card = core.card();
        assert_eq!(card.device.name, "cpu");
        let line = card.device_line();
        assert!(
            line.starts_with("cpu (fallback after: gpu:0: ") && line.contains(reason),
            "{line}"
        );
        // A device chosen by name has no substitute.
        let (registry, _) = with_spare(plan);
        let named = EngineOptions { device: "gpu:0".into(), ..options() };
        let refused =
            Core::load(&named, &registry, &Clock::real(), go_on).expect_err("it does not load");
        assert!(refused.is_of_device(), "{refused}");
    }
    let (registry, better) = with_spare(FaultPlan::new(1));
    let card = Core::load(&options(), &registry, &Clock::real(), go_on).expect("it loads").card();
    assert_eq!((card.fallback_after, better.calls(Call::Prepare)), (None, 1));
    let nothing = Core::load(&options(), &Registry::new(), &Clock::real(), go_on);
    assert!(matches!(nothing, Err(EngineError::Device(_))), "{nothing:?}");
}

#[test]
fn settings_and_counters_survive_a_fallback() {
    let budget = std::time::Duration::from_millis(4).into();
    let options = EngineOptions { budget, ..options() };
    let (registry, handle) = with_spare(FaultPlan::new(1));
    let mut rig = Rig::new(&options, &registry, Pacing::default());
    let agent = rig.agent(speaker(1, 60));
    rig.ask(agent, tokens("ab"));
    rig.core
        .control(crate::engine_core::Control::Budget(std::time::Duration::from_millis(900).into()));
    rig.core.control(crate::engine_core::Control::KvTokens(16 * 9));
    (0..20).for_each(|_| rig.frame());
    let before = rig.core.stats();
    handle.lose();
    rig.core.frame(HOST, rig.now_micros);
    while !advance_or_fall_back(&mut rig, &options, &registry) {}
    assert!(
        rig.core.clients.stalls_updated_micros() + 100 > rig.now_micros,
        "no stall is miscounted"
    );
    (0..20).for_each(|_| rig.frame());
    let after = rig.core.stats();
    assert!(after.tokens > before.tokens && after.steps > before.steps);
    assert!(after.budget.frames > before.budget.frames + 19);
    assert_eq!(after.budget.budget, before.budget.budget);
    assert_eq!((after.pages, before.pages), (9, 9));
}

#[test]
fn no_fallback_without_a_spare_device_or_if_disabled() {
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    let lost: EngineError = DeviceError::Lost { call: "launch", reason: "gone".into() }.into();
    let (registry, _) = with_spare(FaultPlan::new(1));
    let (source, _) = Source::open(&options()).expect("the file is sound");
    for options in [
        EngineOptions { fallback: false, ..options() },
        EngineOptions { device: "cpu".into(), ..options() },
    ] {
        assert!(
            Core::load_fallback(&source, &options, &registry, &lost, &Clock::real(), go_on)
                .is_none()
        );
    }
    assert!(
        Core::load_fallback(&source, &options(), &Registry::new(), &lost, &Clock::real(), go_on)
            .is_none()
    );
}

/// A core with another model than the lost core cannot continue its replies. It returns an error,
/// and every reply ends.
#[test]
fn a_core_with_another_model_ends_every_reply_once_and_does_not_panic() {
    let with = |model: Model| -> EngineOptions {
        let bytes = synth::write(&model, Mixture::Q8_0, 8, Vec::new()).expect("it fits");
        EngineOptions { model: ModelSource::Static(bytes.leak()), ..options() }
    };
    let others = [
        with(Model { vocab: 259, ..Model::TINY }),
        with(Model { vocab: 400, ..Model::TINY }),
        with(Model::TINY),
        with(Model { architecture: walla_model::spec::Architecture::Qwen3, ..Model::TINY }),
        // The same bytes in another file: contents are not compared.
        options(),
        EngineOptions { max_agents: Some(3), ..options() },
    ];
    for other in others {
        let mut rig = Rig::free();
        for seed in 0..6 {
            let agent = rig.agent(speaker(seed, 25));
            rig.ask(agent, Prompt::Chat("Hello".into()));
            rig.ask(agent, Prompt::Chat("And then?".into()));
        }
        for _ in 0..9 {
            rig.advance();
        }
        assert!(rig.heard.values().any(|heard| heard.tokens > 0 && heard.ends.is_empty()));
        let go_on = &mut |_: f32| ControlFlow::Continue(());
        let spare = Core::load(&other, &inline_cpu(), &Clock::real(), go_on).expect("it loads");
        let lost = std::mem::replace(&mut rig.core, spare);
        rig.core.take_over(lost);
        // The shell may deliver commands before it advances the core.
        let late: Vec<AgentId> = (0..6).map(|seed| rig.agent(speaker(seed, 5))).collect();
        for agent in late.into_iter().chain((0..40).map(AgentId)) {
            rig.command(Command::RemoveAgent { agent });
        }
        rig.core.frame(HOST, rig.now_micros);
        let heard = &mut rig.heard;
        let mut emit = |_: ClientKey, event: Event| {
            hear(heard, event);
            Ok(())
        };
        let ended = rig.core.advance(rig.now_micros + 10, &mut emit);
        assert!(matches!(ended, Err(EngineError::OtherModel)), "{ended:?}");
        let drain_events = rig.core.drain_events("over");
        drain_events
            .into_iter()
            .flat_map(|(_, events)| events)
            .for_each(|event| hear(heard, event));
        rig.assert_all_ended();
        let failed = |heard: &Heard| matches!(heard.ends[..], [Err(ReplyError::EngineGone(_))]);
        assert!(rig.heard.values().any(failed));
    }
}

/// The core can load the file again after its path was deleted.
#[test]
fn a_fallback_loads_the_file_that_was_opened_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, model()).expect("written");
    let options = EngineOptions { model: ModelSource::Path(path.clone()), ..options() };
    let (registry, handle) = with_spare(FaultPlan::new(1));
    let mut rig = Rig::new(&options, &registry, Pacing::FreeRunning);
    std::fs::remove_file(&path).expect("it was there");
    let agent = rig.agent(speaker(3, 30));
    let reply = rig.ask(agent, tokens("ab"));
    for _ in 0..8 {
        rig.advance();
    }
    handle.lose();
    while !advance_or_fall_back(&mut rig, &options, &registry) {}
    rig.run();
    assert_eq!(rig.reply(reply).text, alone(&self::options(), speaker(3, 30), "ab").text);
    assert!(Arc::ptr_eq(&rig.core.model_text, &rig.source.text));
}

/// A program that writes to the file during the load leaves a mixture of two models on the device.
#[test]
fn a_file_that_is_overwritten_while_it_is_loaded_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let other = synth::write(&Model::TINY, Mixture::Q8_0, 8, Vec::new()).expect("it fits");
    for device in ["auto", "cpu", "gpu:0"] {
        let model = ModelSource::Path(path.clone());
        let options = EngineOptions { model, device: device.into(), ..options() };
        for (bytes, has_length) in [(&other[..], true), (&other[..other.len() - 1], false)] {
            std::fs::write(&path, self::model()).expect("written");
            let (registry, _) = with_spare(FaultPlan::new(1));
            let overwrite = &mut |fraction: f32| {
                // The whole file has been read.
                if fraction == 1.0 {
                    std::fs::write(&path, bytes).expect("written");
                }
                ControlFlow::Continue(())
            };
            let error = Core::load(&options, &registry, &Clock::real(), overwrite)
                .expect_err("another model");
            let EngineError::File { source, .. } = &error else { panic!("{error}") };
            match source.downcast_ref() {
                Some(GgufError::Modified { .. }) => assert!(has_length),
                Some(GgufError::Changed { .. }) => assert!(!has_length),
                _ => panic!("{error}"),
            }
        }
    }
}
