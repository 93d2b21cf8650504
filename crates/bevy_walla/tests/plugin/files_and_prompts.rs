//! Raw prompts, and reports about model files with defects.

use std::path::Path;

use crate::common::*;
use bevy_app::App;
use bevy_ecs::message::Messages;
use bevy_walla::engine::{Command, Prompt};
use bevy_walla::options::FrameBudget;
use bevy_walla::prelude::*;
use walla_doubles::synth::{self, Mixture, Model};
use walla_model::Gguf;
use walla_model::gguf::Writer;

/// The prompts that were sent to the engine.
fn prompts(engine: &bevy_walla::scripted::ScriptedEngine) -> Vec<Prompt> {
    let asks = engine.commands().into_iter().filter_map(|command| match command {
        Command::Ask { prompt, .. } => Some(prompt),
        _ => None,
    });
    asks.collect()
}

#[test]
fn raw_prompts_keep_their_kind_and_are_not_kept_in_the_conversation() {
    let engine = echo();
    let mut app = app(&engine);
    let greta = spawn(&mut app, "Greta");
    app.world_mut().trigger(Ask::new(greta, Prompt::Raw("Once".into())).with_tag(3));
    app.world_mut().trigger(Ask::new(greta, Prompt::RawTrusted("<|im_start|>".into())));
    ask(&mut app, greta, "Hello");
    updates(&mut app, 30);
    assert_eq!(
        prompts(&engine),
        [
            Prompt::Raw("Once".into()),
            Prompt::RawTrusted("<|im_start|>".into()),
            Prompt::Chat("Hello".into()),
        ]
    );
    assert_eq!(log(&app).only("finished").len(), 3);
    assert_eq!(turns(&app, greta), ["Hello", "Greta: Hello"]);
}

/// The tiny model without some keys, and with the keys that `more` writes.
fn rewritten(without: &[&str], more: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let file = synth::write(&Model::TINY, Mixture::Q8_0, 7, Vec::new()).unwrap();
    synth::rewrite(&Gguf::from_bytes(file).unwrap(), without, more).unwrap()
}

fn app_of(path: &Path, pre_tokenizer: Option<&str>) -> App {
    app_with(WallaPlugin::new(EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        budget: FrameBudget::Unlimited,
        pre_tokenizer: pre_tokenizer.map(Into::into),
        ..EngineOptions::model(path)
    }))
}

#[test]
fn every_load_failure_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("smith.gguf");
    let odd = |writer: &mut Writer| _ = writer.str("tokenizer.ggml.pre", "kimi-k2");
    for (bytes, expected) in [
        (b"<!doctype html>".to_vec(), "a web page"),
        (rewritten(&["llama.block_count", "qwen3.block_count"], |_| ()), "block_count"),
        (rewritten(&["tokenizer.ggml.tokens"], |_| ()), "tokenizer.ggml.tokens"),
        (rewritten(&["tokenizer.ggml.pre"], odd), "kimi-k2"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let mut app = app_of(&path, None);
        run_until(&mut app, |app| app.world().resource::<Walla>().is_failed());
        let failed: Vec<_> =
            app.world_mut().resource_mut::<Messages<WallaFailed>>().drain().collect();
        let [WallaFailed { error }] = &failed[..] else { panic!("{failed:?}") };
        let message = error.to_string();
        let name = path.display().to_string();
        assert!(message.contains(&name) && message.contains(expected), "{message}");
    }
}

#[test]
fn model_card_lists_defects_and_a_setting_replaces_the_pre_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("smith.gguf");
    std::fs::write(&path, rewritten(&["tokenizer.ggml.pre"], |_| ())).unwrap();
    let warnings = |pre_tokenizer| {
        let mut app = app_of(&path, pre_tokenizer);
        run_until(&mut app, |app| app.world().resource::<Walla>().is_ready());
        app.world().resource::<Walla>().model().unwrap().warnings.clone()
    };
    let found = warnings(None);
    assert!(found.len() == 1 && found[0].contains("tokenizer.ggml.pre"), "{found:?}");
    assert!(warnings(Some("llama-bpe")).is_empty());
}
