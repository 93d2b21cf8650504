//! Model files with defects: loading, warnings on the card, and the encoding of prompts.

use std::path::{Path, PathBuf};

use walla_model::Gguf;
use walla_model::gguf::{Strings, Writer};

use super::*;
use crate::options::EngineError;

/// The test model without some keys, and with the keys that `more` writes.
fn rewritten(without: &[&str], more: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let file = Gguf::from_static(model()).expect("sound");
    synth::rewrite(&file, without, more).expect("readable")
}

/// The test model with `<|im_start|>` as a user-defined token, as in some files.
fn with_user_defined_marker() -> Vec<u8> {
    let gguf = Gguf::from_static(model()).expect("sound");
    let vocab = gguf.require::<Strings<'_>>("tokenizer.ggml.tokens").expect("tokens").len();
    let mut types = vec![1; vocab];
    // `<|endoftext|>`, `<|im_start|>`, `<|im_end|>`.
    types[vocab - 3..].copy_from_slice(&[3, 4, 3]);
    let key = "tokenizer.ggml.token_type";
    rewritten(&[key], |writer| _ = writer.i32s(key, &types))
}

fn of_bytes(file: Vec<u8>) -> EngineOptions {
    EngineOptions { model: ModelSource::Static(file.leak()), ..options() }
}

/// The tokens of a prompt, as the device reads them.
fn prompt_tokens(options: &EngineOptions, prompt: Prompt) -> Vec<TokenId> {
    let mut rig = Rig::new(options, &inline_cpu(), Pacing::FreeRunning);
    let agent = rig.agent(speaker(1, 1));
    let reply_id = rig.ask(agent, prompt);
    rig.run();
    rig.assert_all_ended();
    let tokens = rig.reply(reply_id).usage.prompt_tokens as usize;
    let agent = rig.core.agents.get(0).expect("it lives");
    agent.sequence.tokens()[..tokens].to_vec()
}

#[test]
fn raw_prompts_parse_markers_only_if_they_are_trusted() {
    const TEXT: &str = "<|im_start|>user\nhi<|im_end|>";
    for options in [options(), of_bytes(with_user_defined_marker())] {
        let tokenizer = options.tokenizer().expect("sound");
        let [start, end] =
            ["<|im_start|>", "<|im_end|>"].map(|text| tokenizer.special_token(text).expect(text));
        let raw = prompt_tokens(&options, Prompt::Raw(TEXT.into()));
        assert!(!raw.contains(&start) && !raw.contains(&end), "{raw:?}");
        assert_eq!(tokenizer.decode(&raw).expect("known"), TEXT);
        let trusted = prompt_tokens(&options, Prompt::RawTrusted(TEXT.into()));
        assert_eq!((trusted.first(), trusted.last()), (Some(&start), Some(&end)), "{trusted:?}");
        assert!(trusted.len() < raw.len());
    }
}

/// A raw prompt is continued, so it never ends with EOS. BOS occurs once.
#[test]
fn raw_prompts_add_bos_as_the_file_requires_and_no_eos() {
    let keys = ["tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"];
    let add = |writer: &mut Writer| keys.iter().for_each(|key| _ = writer.bool(key, true));
    let options = of_bytes(rewritten(&keys, add));
    let tokenizer = options.tokenizer().expect("sound");
    let (bos, eos) = (tokenizer.bos().expect("BOS"), tokenizer.eos().expect("EOS"));
    for prompt in [
        Prompt::Raw("hi".into()),
        Prompt::RawTrusted("hi".into()),
        Prompt::RawTrusted("<|endoftext|>hi".into()),
    ] {
        let tokens = prompt_tokens(&options, prompt);
        assert_eq!(tokens.iter().filter(|&&token| token == bos).count(), 1, "{tokens:?}");
        assert!(tokens[0] == bos && !tokens.contains(&eos), "{tokens:?}");
    }
}

/// Loads and returns the card's warnings and the tokens of a raw prompt.
fn loaded(options: &EngineOptions) -> (Vec<String>, Vec<TokenId>) {
    let rig = Rig::new(options, &inline_cpu(), Pacing::FreeRunning);
    (rig.core.card.warnings.clone(), prompt_tokens(options, Prompt::Raw("it is 12345".into())))
}

#[test]
fn model_card_lists_file_defects_and_a_setting_corrects_tokens() {
    let (none, tokens) = loaded(&options());
    assert!(none.is_empty(), "{none:?}");
    let odd = |writer: &mut Writer| _ = writer.str("", "odd");
    let options = of_bytes(rewritten(&["tokenizer.ggml.pre"], odd));
    let (warnings, _) = loaded(&options);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("empty key") && warnings[1].contains("tokenizer.ggml.pre"));
    let pre = Gguf::from_static(model()).expect("sound");
    let pre: &str = pre.require("tokenizer.ggml.pre").expect("the model names it");
    let named = EngineOptions { pre_tokenizer: Some(pre.into()), ..options };
    let (warnings, mended) = loaded(&named);
    assert!(warnings.len() == 1 && warnings[0].contains("empty key"), "{warnings:?}");
    assert_eq!(mended, tokens);
}

/// Markers and pre-tokenizer of the options also apply without an engine.
#[test]
fn options_give_the_same_tokenizer_as_their_engine() {
    let gguf = Gguf::from_static(model()).expect("sound");
    let vocab = gguf.require::<Strings<'_>>("tokenizer.ggml.tokens").expect("tokens").len();
    let pre: &str = gguf.require("tokenizer.ggml.pre").expect("the model names it");
    let keys = ["tokenizer.ggml.token_type", "tokenizer.ggml.pre", "tokenizer.chat_template"];
    // All tokens are ordinary, and neither pre-tokenizer nor template is named.
    let ordinary = |writer: &mut Writer| _ = writer.i32s(keys[0], &vec![1; vocab]);
    let options = EngineOptions {
        template: Some("chatml".into()),
        pre_tokenizer: Some(pre.into()),
        ..of_bytes(rewritten(&keys, ordinary))
    };
    let alone = options.tokenizer().expect("sound");
    let rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
    let of_engine = &rig.core.model_text.tokenizer;
    let marker = alone.special_token("<|im_start|>").expect("a control token");
    for tokenizer in [&alone, &**of_engine] {
        assert!(tokenizer.is_control(marker));
        assert!(tokenizer.warnings().is_empty());
        let tokens = tokenizer.encode_untrusted("it is 12345<|im_start|>").expect("short");
        assert_eq!(Ok(tokens), alone.encode_untrusted("it is 12345<|im_start|>"));
    }
    let plain = EngineOptions { template: None, pre_tokenizer: None, ..options };
    let plain = plain.tokenizer().expect("sound");
    assert_eq!((plain.special_token("<|im_start|>"), plain.warnings().len()), (None, 1));
}

fn failure(path: &Path, change: impl FnOnce(&mut EngineOptions)) -> EngineError {
    let mut options = EngineOptions { model: ModelSource::Path(path.into()), ..options() };
    change(&mut options);
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    Core::load(&options, &inline_cpu(), &Clock::real(), go_on).expect_err("it does not load")
}

#[test]
fn every_error_about_the_file_names_its_path_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let name = path.display().to_string();
    let check = |bytes: &[u8], expected: &str| {
        std::fs::write(&path, bytes).expect("written");
        let message = failure(&path, |_| ()).to_string();
        assert!(message.starts_with(&name), "{message}");
        assert_eq!(message.matches(&name).count(), 1, "{message}");
        assert!(message.contains(expected), "{message}");
    };
    let without = |key: &str| rewritten(&[key], |_| ());
    check(b"", "an empty file");
    check(b"<html>", "a web page");
    check(&model()[..model().len() / 2], "cut off");
    check(&without("general.architecture"), "\"general.architecture\" is missing");
    check(&without("tokenizer.ggml.merges"), "tokenizer.ggml.merges");
    let odd = |writer: &mut Writer| _ = writer.str("tokenizer.ggml.pre", "kimi-k2");
    check(&rewritten(&["tokenizer.ggml.pre"], odd), "\"kimi-k2\" is not supported");
    // For paths that name no file, the reader's message already contains the path.
    for other in [folder.path().to_owned(), PathBuf::from("/no/such/model.gguf")] {
        let message = failure(&other, |_| ()).to_string();
        let name = other.display().to_string();
        assert!(message.starts_with(&name) && message.matches(&name).count() == 1, "{message}");
    }
    std::fs::write(&path, model()).expect("written");
    let message = failure(&path, |options| options.pre_tokenizer = Some("no-such".into()));
    let message = message.to_string();
    assert!(
        message.starts_with(&name) && message.contains("\"no-such\" is not known"),
        "{message}"
    );
    // Without an engine the tokenizer's errors contain the path, too.
    std::fs::write(&path, b"PK\x03\x04").expect("written");
    let options = EngineOptions::model(path.clone());
    let message = options.tokenizer().expect_err("no model").to_string();
    assert!(message.starts_with(&name) && message.contains("zip"), "{message}");
}
