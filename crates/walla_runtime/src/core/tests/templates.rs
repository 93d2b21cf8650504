//! Chat templates: histories that they refuse, files without a working template, and chosen
//! templates.

use std::path::{Path, PathBuf};

use walla_doubles::faulty::{FaultPlan, FaultyBackend};
use walla_model::chat::{BuiltInTemplate, TemplateChoice, TemplateError, TemplateState};

use super::*;
use crate::api::{Speaker, Turn};
use crate::options::EngineError;
use Speaker::{Agent, Observation, User};

/// A copy of the model with another template, padded with spaces.
fn model_with(template: &str) -> &'static [u8] {
    const BEGIN: &[u8] = b"{% for message in messages %}";
    const END: &[u8] = b"assistant\\n' }}{% endif %}";
    let mut bytes = model().to_vec();
    let find = |bytes: &[u8], wanted: &[u8]| {
        bytes.windows(wanted.len()).position(|window| window == wanted).expect("ChatML")
    };
    let start = find(&bytes, BEGIN);
    let end = start + find(&bytes[start..], END) + END.len();
    let other = format!("{template:<width$}", width = end - start);
    assert_eq!(other.len(), end - start, "no room for {template:?}");
    bytes.splice(start..end, other.bytes());
    Vec::leak(bytes)
}

fn options_with(template: &str) -> EngineOptions {
    EngineOptions { model: ModelSource::Static(model_with(template)), ..options() }
}

fn choose(template: impl Into<TemplateChoice>) -> EngineOptions {
    EngineOptions { template: Some(template.into()), context_tokens: 512, ..options() }
}

/// Vendors' templates, if the reference data is next to the checkout.
fn published() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/templates");
    let entries = std::fs::read_dir(&folder).into_iter().flatten();
    entries.map(|entry| entry.expect("a folder").path()).collect()
}

fn history(turns: &[(Speaker, &str)]) -> Vec<Turn> {
    turns.iter().map(|&(speaker, text)| Turn::new(speaker, text)).collect()
}

fn load(options: &EngineOptions) -> Result<Core, EngineError> {
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    Core::load(options, &inline_cpu(), &Clock::real(), go_on)
}

/// Two agents of a bug report, and others: Gemma's and Mistral's templates refused all their asks.
#[test]
fn every_template_answers_in_every_history() {
    let conversations: [(&str, &[(Speaker, &str)]); 7] = [
        ("You are Greta.", &[(Agent, "Welcome to my smithy!")]),
        ("", &[(User, "Hi"), (User, "Anyone?")]),
        ("", &[(Agent, "Welcome!")]),
        ("You are Greta.", &[(Observation, "Odo comes in."), (Agent, "Odo!")]),
        ("", &[(User, "Hi"), (Agent, "Hm."), (Agent, "Yes?"), (Observation, "It rains.")]),
        ("You are Greta.", &[(User, ""), (Agent, ""), (User, " ")]),
        ("", &[(Observation, "Rain."), (Observation, "Thunder.")]),
    ];
    let built_in = BuiltInTemplate::ALL.map(TemplateChoice::from);
    let published = published().into_iter().map(TemplateChoice::from);
    for template in built_in.into_iter().chain(published) {
        // SmolLM 3's template begins with a long text, which this vocabulary encodes letter by
        // letter.
        let options =
            EngineOptions { context_tokens: 4_096, kv_tokens: Some(16_384), ..choose(template) };
        let mut rig = Rig::new(&options, &inline_cpu(), Pacing::FreeRunning);
        let mut asks = Vec::new();
        for (seed, (persona, turns)) in conversations.iter().enumerate() {
            let history = history(turns);
            let spec =
                AgentSpec { persona: (*persona).into(), turns: history, ..speaker(seed as u64, 4) };
            let agent = rig.agent(spec);
            asks.extend(["Hello?", "Go on"].map(|text| rig.ask(agent, Prompt::Chat(text.into()))));
        }
        rig.run();
        for ask in asks {
            let heard = rig.reply(ask);
            assert!(matches!(heard.ends[..], [Ok(_)]), "{:?}: {heard:?}", options.template);
        }
        rig.assert_all_ended();
    }
}

/// Merging keeps the beginning of the prompt, so its cache stays valid.
#[test]
fn merged_turns_are_evaluated_once() {
    let mut rig = Rig::new(&choose(BuiltInTemplate::Gemma), &inline_cpu(), Pacing::FreeRunning);
    let turns =
        [(Observation, "Odo comes in."), (User, "Hi"), (Agent, "Well met."), (Agent, "Odo!")];
    let agent = rig.agent(AgentSpec { turns: history(&turns), ..speaker(1, 4) });
    let first = rig.ask(agent, Prompt::Chat("Who is that?".into()));
    rig.run();
    let second = rig.ask(agent, Prompt::Chat("Who?".into()));
    rig.run();
    let (first, second) = (rig.reply(first).usage, rig.reply(second).usage);
    assert!(first.prompt_tokens > 50, "{first:?}");
    assert!(second.cached_tokens >= first.prompt_tokens, "{first:?} {second:?}");
}

#[test]
fn a_long_conversation_without_user_turns_is_shortened() {
    let mut rig = Rig::new(&choose(BuiltInTemplate::Mistral), &inline_cpu(), Pacing::FreeRunning);
    for speaker_of_all in [Agent, Observation] {
        let line = (speaker_of_all, "a sentence of some length, said again and again");
        let agent = rig.agent(AgentSpec { turns: history(&[line; 300]), ..speaker(1, 4) });
        let ask = rig.ask(agent, Prompt::Chat("Hello?".into()));
        rig.run();
        let heard = rig.reply(ask);
        assert!(matches!(heard.ends[..], [Ok(_)]), "{heard:?}");
        // At least half of the context without a long question, minus at most one turn.
        assert!((200..=480).contains(&heard.usage.prompt_tokens), "{heard:?}");
    }
}

/// The file's template does not compile, loses text, or fails: the model still loads.
#[test]
fn without_a_template_raw_prompts_work_and_chat_asks_have_the_reason() {
    for (template, words) in [
        ("{% for m in messages %}{{ m.content }", "invalid"),
        ("", "empty"),
        ("chatml", "only the text"),
        ("{{ bos_token }}", "leaves out the user's messages"),
        (
            "{% for m in messages %}<|{{ m.role }}|>{{ m.content | nosuchfilter }}{% endfor %}",
            "nosuchfilter",
        ),
    ] {
        let mut rig = Rig::new(&options_with(template), &inline_cpu(), Pacing::FreeRunning);
        assert!(matches!(rig.core.card().template, TemplateState::Unusable(_)), "{template:?}");
        let agent = rig.agent(speaker(1, 4));
        let raw = rig.ask(agent, Prompt::Raw("Once".into()));
        let chat = rig.ask(agent, Prompt::Chat("Hi".into()));
        let again = rig.ask(agent, Prompt::Raw("upon".into()));
        rig.run();
        assert!(matches!(rig.reply(raw).ends[..], [Ok(_)]), "{template:?}");
        assert!(matches!(rig.reply(again).ends[..], [Ok(_)]), "{template:?}");
        let [Err(error @ ReplyError::NoTemplate(_))] = &rig.reply(chat).ends[..] else {
            panic!("{template:?}: {:?}", rig.reply(chat))
        };
        let error = error.to_string();
        for word in [words, "EngineOptions::template", "chatml, llama3, gemma, mistral", "raw"] {
            assert!(error.contains(word), "{error}");
        }
    }
}

#[test]
fn a_chosen_template_replaces_the_files_own() {
    for own in
        ["{% broken", "", "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"]
    {
        let template = Some(TemplateChoice::from("chatml"));
        let chosen = EngineOptions { template, ..options_with(own) };
        let mut rig = Rig::new(&chosen, &inline_cpu(), Pacing::FreeRunning);
        assert_eq!(rig.core.card().template, TemplateState::Chosen("chatml".into()));
        let agent = rig.agent(speaker(1, 12));
        let chat = rig.ask(agent, Prompt::Chat("Hi".into()));
        // The model's template is ChatML, too.
        let mut plain = Rig::new(&options(), &inline_cpu(), Pacing::FreeRunning);
        assert_eq!(plain.core.card().template, TemplateState::FromFile);
        let agent = plain.agent(speaker(1, 12));
        let same = plain.ask(agent, Prompt::Chat("Hi".into()));
        rig.run();
        plain.run();
        assert_eq!(rig.reply(chat).usage.prompt_tokens, plain.reply(same).usage.prompt_tokens);
        assert_eq!(rig.reply(chat).text, plain.reply(same).text);
    }
}

#[test]
fn a_chosen_broken_template_is_a_load_error() {
    let broken: [TemplateChoice; 4] = [
        TemplateChoice::Source("{% for".into()),
        TemplateChoice::Source("".into()),
        TemplateChoice::Source("{{ bos_token }}".into()),
        "no/such/file.jinja".into(),
    ];
    for template in broken {
        let Err(error) = load(&choose(template.clone())) else { panic!("it loads") };
        let EngineError::Template { template: name, .. } = &error else { panic!("{error}") };
        assert_eq!(*name, template.to_string());
    }
    let Err(error) = load(&choose("no/such/file.jinja")) else { panic!("it loads") };
    let EngineError::Template { reason: TemplateError::File { path, .. }, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(path, Path::new("no/such/file.jinja"));
}

/// The file of a chosen template is read once: a fallback keeps the template.
#[test]
fn a_fallback_keeps_the_template() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("mine.jinja");
    std::fs::write(&file, BuiltInTemplate::Gemma.source()).expect("it is written");
    let cpu = || CpuBackend::new(CpuOptions { inline: true, ..CpuOptions::default() });
    let registry =
        Registry::new().with(FaultyBackend::new(cpu(), FaultPlan::new(1)).alias("gpu")).with(cpu());
    let options = choose(file.clone());
    let Rig { core: lost, source, .. } = Rig::new(&options, &registry, Pacing::FreeRunning);
    std::fs::remove_file(&file).expect("it is removed");
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    let (error, clock) = (EngineError::Stopped, Clock::real());
    let spare = Core::load_fallback(&source, &options, &registry, &error, &clock, go_on);
    let mut spare = spare.expect("there is a CPU").expect("it loads");
    spare.take_over(lost);
    assert_eq!(spare.card().template, TemplateState::Chosen(file.display().to_string()));
    assert!(spare.model_text.template.is_some());
}
