//! Reasoning is published as its own event and never spoken: with a scripted and a real engine.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::common::*;
use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::agent::AgentReasoning;
use bevy_walla::agent::Sampling;
use bevy_walla::ask::Cancel;
use bevy_walla::engine::Command;
use bevy_walla::options::ModelSource;
use bevy_walla::prelude::*;
use bevy_walla::reply::FinishReason;
use bevy_walla::reply::{ReplyReasoning, SpeechState, Usage};
use bevy_walla::scripted::ScriptedEngine;
use bevy_walla::tokens::{TokenId, TokenMask};
use walla_doubles::synth::{self, Dialect, Mixture, Model};

fn thinker() -> ScriptedEngine {
    ScriptedEngine::new(|_, _| "Three silver.".into())
        .reasoning(|_, question| format!("Hm. {question}"))
}

fn spawn_thinking(app: &mut App, max_tokens: u32) -> Entity {
    app.world_mut().spawn((Agent::persona("Greta"), AgentReasoning::thinking(max_tokens))).id()
}

#[test]
fn reasoning_is_emitted_only_as_its_own_event() {
    let engine = thinker();
    let mut app = app(&engine);
    let greta = spawn_thinking(&mut app, 99);
    ask(&mut app, greta, "How much?");
    updates(&mut app, 3);
    assert_eq!(log(&app).0, ["started", "reasoning Hm."]);
    assert_eq!(speech(&app, greta).state(), SpeechState::Thinking);
    assert_eq!(speech(&app, greta).text(), "");
    assert_eq!(messages::<ReplyReasoning>(&app), 1);
    updates(&mut app, 6);
    let expected = [
        "started",
        "reasoning Hm.",
        "reasoning  How",
        "reasoning  much?",
        "delta Three",
        "delta  silver.",
        "sentence Three silver.",
        "finished EndOfTurn",
    ];
    assert_eq!(log(&app).0, expected);
    assert_eq!(speech(&app, greta).text(), "Three silver.");
    assert_eq!(turns(&app, greta), ["How much?", "Three silver."]);
}

#[test]
fn reasoning_settings_are_per_agent_and_changeable() {
    #[derive(Resource, Default)]
    struct Usages(Vec<Usage>);
    let engine = thinker();
    let mut app = app(&engine);
    app.init_resource::<Usages>().add_observer(
        |finished: On<ReplyFinished>, mut usages: ResMut<Usages>| usages.0.push(finished.usage),
    );
    let greta = spawn(&mut app, "Greta");
    for settings in [None, Some(AgentReasoning::thinking(2)), Some(AgentReasoning::default())] {
        if let Some(settings) = settings {
            app.world_mut().entity_mut(greta).insert(settings);
        }
        ask(&mut app, greta, "How much?");
        updates(&mut app, 9);
    }
    let usages = &app.world().resource::<Usages>().0;
    let counts: Vec<_> = usages.iter().map(|u| (u.reasoning_tokens, u.reply_tokens)).collect();
    assert_eq!(counts, [(0, 2), (2, 2), (0, 2)]);
    let specs = engine.commands().into_iter().filter_map(|command| match command {
        Command::AddAgent { spec, .. } | Command::ChangeAgent { spec, .. } => {
            Some((spec.thinking, spec.max_reasoning_tokens))
        }
        _ => None,
    });
    assert_eq!(specs.collect::<Vec<_>>(), [(false, 512), (true, 2), (false, 512)]);
}

/// Cancelled, or despawned.
#[test]
fn a_reply_that_ends_during_reasoning_is_not_kept() {
    for despawns in [false, true] {
        let mut app = app(&thinker());
        let greta = spawn_thinking(&mut app, 99);
        ask(&mut app, greta, "How much?");
        updates(&mut app, 3);
        if despawns {
            app.world_mut().despawn(greta);
        } else {
            app.world_mut().trigger(Cancel::new(greta));
        }
        updates(&mut app, 9);
        assert_eq!(log(&app).only("finished"), ["Cancelled"], "{despawns}");
        assert_eq!((log(&app).ends(), log(&app).only("delta").len()), (1, 0));
        assert_eq!(log(&app).only("sentence").len(), 0);
        if !despawns {
            assert_eq!(turns(&app, greta), Vec::<String>::new());
            assert!(speech(&app, greta).is_silent() && speech(&app, greta).text().is_empty());
        }
    }
}

/// A reply that only reasoned is no exchange, even if the model ended it: the engine drops it, too.
#[test]
fn a_reply_without_speech_is_no_exchange() {
    let engine = ScriptedEngine::new(|_, _| String::new()).reasoning(|_, _| "Hm.".into());
    let mut app = app(&engine);
    let greta = spawn_thinking(&mut app, 99);
    ask(&mut app, greta, "How much?");
    updates(&mut app, 9);
    assert_eq!(log(&app).only("finished"), ["EndOfTurn"]);
    assert_eq!(turns(&app, greta), Vec::<String>::new());
    // Without reasoning, an empty reply is an answer.
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "How much?");
    updates(&mut app, 9);
    assert_eq!(turns(&app, odo), ["How much?", ""]);
}

/// A tiny random model whose template opens a block and whose vocabulary has the markers.
fn tiny() -> &'static [u8] {
    static TINY: OnceLock<Vec<u8>> = OnceLock::new();
    TINY.get_or_init(|| {
        let template = "{% for m in messages %}\
            <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
            {% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
        let dialect = Dialect { template, special: &["<think>", "</think>"] };
        synth::write_dialect(&Model::TINY, Mixture::Q8_0, 7, &dialect, Vec::new()).unwrap()
    })
}

#[test]
fn a_real_model_reasons_up_to_its_limit_and_then_replies() {
    #[derive(Resource, Default)]
    struct Ends(Vec<(FinishReason, Usage)>);
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(2),
        context_tokens: 256,
        ..EngineOptions::new(ModelSource::Static(tiny()))
    };
    let mut app = app_with(WallaPlugin::new(options));
    app.init_resource::<Ends>().add_observer(|end: On<ReplyFinished>, mut ends: ResMut<Ends>| {
        ends.0.push((end.reason, end.usage));
    });
    let letters = TokenMask::allow(Model::TINY.vocab, (97..123).map(TokenId)).unwrap();
    let sampling = Sampling::builder().allowed_tokens(Arc::new(letters)).build().unwrap();
    let parts = (
        Agent::persona("You are Greta."),
        AgentSampling(sampling),
        AgentReasoning { max_tokens: 7, ..AgentReasoning::default() },
        ReplyLimits::tokens(12),
    );
    let greta = app.world_mut().spawn(parts).id();
    for question in ["How much?", "And a sword?"] {
        ask(&mut app, greta, question);
        let start = Instant::now();
        let ends = app.world().resource::<Ends>().0.len();
        while app.world().resource::<Ends>().0.len() == ends {
            assert!(start.elapsed() < TIMEOUT, "no end: {:?}", log(&app).0);
            app.update();
            std::thread::sleep(Duration::from_micros(200));
        }
        let (reason, usage) = app.world().resource::<Ends>().0[ends];
        assert_eq!(reason, FinishReason::Length);
        assert_eq!((usage.reasoning_tokens, usage.reply_tokens), (7, 12));
    }
    let card = app.world().resource::<Walla>().model().expect("it is loaded").clone();
    assert!(card.reasoning && !card.thinking_switch);
    let said = turns(&app, greta);
    assert_eq!(said.len(), 4);
    assert_eq!((said[1].len(), said[3].len()), (12, 12), "{said:?}");
    assert_eq!(speech(&app, greta).text(), said[3]);
    let heard = |what| log(&app).only(what).concat();
    assert_eq!((heard("reasoning").len(), heard("delta").len()), (14, 24), "{:?}", log(&app).0);
}
