//! A real engine on the CPU with a tiny random model: the text is meaningless, but it passes
//! through the whole engine.

mod common;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_diagnostic::{Diagnostic, DiagnosticPath, DiagnosticsStore};
use bevy_ecs::prelude::*;
use bevy_walla::EngineOptions;
use bevy_walla::agent::{AgentContext, AgentEngine, ContextPolicy, Sampling};
use bevy_walla::ask::Cancel;
use bevy_walla::conversation::Speaker;
use bevy_walla::diagnostics::TemplateState;
use bevy_walla::engine::Engine;
use bevy_walla::engines::EngineSet;
use bevy_walla::options::{FrameBudget, ModelSource};
use bevy_walla::prelude::*;
use bevy_walla::reply::ReplyError;
use bevy_walla::tokens::{TokenId, TokenMask};
use common::*;
use walla_doubles::synth::{self, Mixture, Model};

/// Tokens of the tiny model that are words.
const WORDS: Range<u32> = 256..297;

/// A tiny random model.
fn tiny() -> &'static [u8] {
    static TINY: OnceLock<Vec<u8>> = OnceLock::new();
    TINY.get_or_init(|| synth::write(&Model::TINY, Mixture::Q8_0, 7, Vec::new()).unwrap())
}

fn on_one_thread(model: ModelSource) -> EngineOptions {
    EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(8),
        context_tokens: 256,
        ..EngineOptions::new(model)
    }
}

fn options() -> EngineOptions {
    on_one_thread(ModelSource::Static(tiny()))
}

fn app_of(options: EngineOptions) -> App {
    app_with(WallaPlugin::new(options))
}

/// Generates 24 words on every machine: its token mask excludes the end of turn.
fn guest(app: &mut App, place: u64) -> Entity {
    let words = TokenMask::allow(Model::TINY.vocab, WORDS.map(TokenId)).unwrap();
    let sampling = Sampling::builder().allowed_tokens(Arc::new(words)).build().unwrap();
    let parts = (
        AgentSampling(sampling),
        Agent::persona(format!("You are guest {place}.")),
        AgentSeed(place),
        ReplyLimits::tokens(24),
    );
    app.world_mut().spawn(parts).id()
}

/// The concatenated deltas of each agent.
#[derive(Resource, Default)]
struct Heard(BTreeMap<Entity, String>);

fn listen(app: &mut App) {
    app.init_resource::<Heard>().add_systems(
        Update,
        |mut deltas: MessageReader<ReplyDelta>, mut heard: ResMut<Heard>| {
            for delta in deltas.read() {
                heard.0.entry(delta.agent).or_default().push_str(&delta.text);
            }
        },
    );
}

/// The reply of guest 0 among this many guests.
fn first_guest_among(guests: u64) -> String {
    let mut app = app_of(options());
    listen(&mut app);
    let agents: Vec<_> = (0..guests).map(|place| guest(&mut app, place)).collect();
    for &agent in &agents {
        ask(&mut app, agent, "Who are you?");
    }
    run_until(&mut app, |app| log(app).ends() == agents.len());
    assert_eq!(log(&app).only("failed"), Vec::<&str>::new());
    for &agent in &agents {
        let heard = app.world().resource::<Heard>().0.get(&agent).cloned().unwrap_or_default();
        assert_eq!(speech(&app, agent).text(), heard, "the deltas joined are the reply");
        assert_eq!(turns(&app, agent), ["Who are you?".to_owned(), heard]);
    }
    let walla = app.world().resource::<Walla>();
    assert!(
        walla.stats().tokens > 0 && walla.model().is_some_and(|card| card.device.name == "cpu")
    );
    speech(&app, agents[0]).text().to_owned()
}

#[test]
fn a_reply_does_not_depend_on_other_agents() {
    let alone = first_guest_among(1);
    assert!(!alone.is_empty());
    assert_eq!(first_guest_among(6), alone);
}

#[test]
fn a_restored_conversation_gives_the_same_reply() {
    let mut app = app_of(options());
    let agent = guest(&mut app, 0);
    ask(&mut app, agent, "one");
    run_until(&mut app, |app| log(app).ends() == 1);
    let saved = app.world().get::<Conversation>(agent).unwrap().clone();
    ask(&mut app, agent, "two");
    run_until(&mut app, |app| log(app).ends() == 2);
    let expected = turns(&app, agent);
    // Another app, another engine, the same agent with the saved talk.
    let mut app = app_of(options());
    let agent = guest(&mut app, 0);
    app.world_mut().entity_mut(agent).insert(saved);
    ask(&mut app, agent, "two");
    run_until(&mut app, |app| log(app).ends() == 1);
    assert_eq!(turns(&app, agent), expected);
}

#[test]
fn the_plugins_budget_can_be_changed_at_run_time_and_is_measured() {
    let mut app = app_of(EngineOptions { budget: Duration::from_millis(3).into(), ..options() });
    app.add_plugins(WallaDiagnosticsPlugin);
    let agents: Vec<_> = (0..4).map(|place| guest(&mut app, place)).collect();
    for &agent in &agents {
        ask(&mut app, agent, "Who are you?");
    }
    let budget = |app: &App| app.world().resource::<Walla>().stats().budget;
    run_until(&mut app, |app| budget(app).used > Duration::ZERO);
    assert_eq!(budget(&app).budget, Some(Duration::from_millis(3)));
    app.world().resource::<Walla>().set_budget(Duration::from_micros(700));
    run_until(&mut app, |app| budget(app).budget == Some(Duration::from_micros(700)));
    app.world().resource::<Walla>().set_budget(None);
    run_until(&mut app, |app| budget(app).budget.is_none());
    run_until(&mut app, |app| log(app).ends() == agents.len());
    assert_eq!(log(&app).only("failed"), Vec::<&str>::new());
    let diagnostics = app.world().resource::<DiagnosticsStore>();
    let value = |path: &DiagnosticPath| diagnostics.get(path).and_then(Diagnostic::value);
    for path in [WallaDiagnosticsPlugin::BUDGET_MS, WallaDiagnosticsPlugin::USED_MS] {
        assert!(value(&path).is_some_and(|value| value > 0.0), "{path:?}");
    }
    let parts = [
        WallaDiagnosticsPlugin::FIRST_TOKEN_WAITING_MS,
        WallaDiagnosticsPlugin::FIRST_TOKEN_ENCODING_MS,
        WallaDiagnosticsPlugin::FIRST_TOKEN_PREFILL_MS,
        WallaDiagnosticsPlugin::FIRST_TOKEN_DECODE_MS,
    ];
    let sum: f64 = parts.iter().filter_map(&value).sum();
    let first_token = value(&WallaDiagnosticsPlugin::FIRST_TOKEN_MS).unwrap();
    assert!(first_token > 0.0 && (sum - first_token).abs() < 1e-6, "{sum} of {first_token}");
}

#[test]
fn a_smaller_cache_recomputes_prefixes_and_loses_no_reply() {
    let mut app = app_of(options());
    let agents: Vec<_> = (0..4).map(|place| guest(&mut app, place)).collect();
    for &agent in &agents {
        ask(&mut app, agent, "Who are you?");
    }
    let pages = |app: &App| app.world().resource::<Walla>().stats().pages;
    run_until(&mut app, |app| !log(app).only("delta").is_empty());
    let all = pages(&app);
    app.world().resource::<Walla>().set_kv_tokens(200);
    run_until(&mut app, |app| pages(app) < all);
    run_until(&mut app, |app| log(app).ends() == agents.len());
    assert_eq!(log(&app).only("failed"), Vec::<&str>::new());
    app.world().resource::<Walla>().set_kv_tokens(u32::MAX);
    run_until(&mut app, |app| pages(app) == all);
}

#[test]
fn despawning_during_a_reply_frees_its_pages() {
    let mut app = app_of(options());
    let agent = guest(&mut app, 0);
    ask(&mut app, agent, "Who are you?");
    run_until(&mut app, |app| !log(app).only("delta").is_empty());
    app.world_mut().despawn(agent);
    run_until(&mut app, |app| {
        let stats = app.world().resource::<Walla>().stats();
        log(app).ends() == 1 && stats.agents == 0 && stats.pages_used == 0
    });
    assert_eq!(log(&app).only("finished"), ["Cancelled"]);
}

#[test]
fn asks_beyond_the_engines_queue_are_answered_in_order() {
    let settings = WallaSettings { max_asks_per_agent: u32::MAX, ..WallaSettings::default() };
    let mut app = app_with(WallaPlugin::new(options()).settings(settings));
    let agent = guest(&mut app, 0);
    app.world_mut().entity_mut(agent).insert(ReplyLimits::tokens(2));
    let questions: Vec<String> = (0..20).map(|number| format!("{number}?")).collect();
    for question in &questions {
        ask(&mut app, agent, question);
    }
    run_until(&mut app, |app| log(app).ends() == questions.len());
    assert_eq!(log(&app).only("failed"), Vec::<&str>::new());
    let asked: Vec<String> = turns(&app, agent).into_iter().step_by(2).collect();
    assert_eq!(asked, questions);
}

#[test]
fn two_apps_share_an_engine() {
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(4),
        context_tokens: 256,
        ..EngineOptions::new(ModelSource::Static(tiny()))
    };
    let engine = Engine::start(options).unwrap();
    let mut apps = [(); 2].map(|()| app_with(WallaPlugin::new(engine.clone())));
    for app in &mut apps {
        let agent = guest(app, 0);
        ask(app, agent, "Who are you?");
    }
    let start = Instant::now();
    while apps.iter().any(|app| log(app).ends() == 0) && start.elapsed() < TIMEOUT {
        apps.iter_mut().for_each(App::update);
        std::thread::sleep(Duration::from_micros(200));
    }
    let [left, right] = &apps;
    assert_eq!(log(left).only("delta"), log(right).only("delta"), "the same agent, the same reply");
    assert!(!log(left).only("delta").is_empty());
}

#[test]
fn dropping_an_app_has_a_bounded_wait() {
    let drop_after = |frames: usize| {
        let mut app = app_of(options());
        for place in 0..4 {
            let agent = guest(&mut app, place);
            ask(&mut app, agent, "Who are you?");
        }
        updates(&mut app, frames);
        let start = Instant::now();
        drop(app);
        start.elapsed()
    };
    for frames in [0, 1, 5, 50] {
        // On a busy machine any drop may be late.
        let shortest = (0..4).map(|_| drop_after(frames)).min().unwrap();
        assert!(shortest < Duration::from_millis(500), "{shortest:?} after {frames} frames");
    }
}

#[test]
fn a_missing_file_emits_a_message_and_fails_asks() {
    let mut app =
        app_with(WallaPlugin::new(on_one_thread(ModelSource::Path("/nowhere/smith.gguf".into()))));
    let agent = guest(&mut app, 0);
    ask(&mut app, agent, "Who are you?");
    run_until(&mut app, |app| log(app).ends() == 1);
    let WallaState::Failed(error) = app.world().resource::<Walla>().state().clone() else {
        panic!("a failed state")
    };
    let failed = log(&app).only("failed").concat();
    assert!(failed.starts_with(&ReplyError::EngineGone(String::new()).to_string()), "{failed}");
    assert!(error.to_string().contains("smith.gguf"), "{error}");
    updates(&mut app, 10);
    assert_eq!(log(&app).ends(), 1);
}

/// The template of each `WallaReady`, as an event.
#[derive(Resource, Default)]
struct Ready(Vec<Option<TemplateState>>);

fn app_that_listens(plugin: WallaPlugin) -> App {
    let mut app = app_with(plugin);
    app.init_resource::<Ready>().add_observer(|ready: On<WallaReady>, mut all: ResMut<Ready>| {
        all.0.push(ready.template.clone());
    });
    app
}

#[test]
fn the_chosen_template_is_reported_to_the_app() {
    // The same model with a broken template: the first byte of its tag is replaced.
    let mut bytes = tiny().to_vec();
    let tag = b"{% for message in messages %}";
    let at = bytes.windows(tag.len()).position(|window| window == tag).unwrap();
    bytes[at] = b'x';
    let broken: &'static [u8] = Vec::leak(bytes);
    let on = |model, template: Option<&str>| {
        let template = template.map(Into::into);
        EngineOptions { template, ..on_one_thread(ModelSource::Static(model)) }
    };
    for (options, is_expected) in [
        (
            on(tiny(), None),
            (|state| *state == TemplateState::FromFile) as fn(&TemplateState) -> bool,
        ),
        (on(broken, Some("mistral")), |s| *s == TemplateState::Chosen("mistral".into())),
        (on(broken, None), |state| matches!(state, TemplateState::Unusable(_))),
    ] {
        let mut app = app_that_listens(WallaPlugin::new(options));
        let agent = guest(&mut app, 0);
        ask(&mut app, agent, "Who are you?");
        run_until(&mut app, |app| log(app).ends() == 1);
        let [Some(state)] = &app.world().resource::<Ready>().0[..] else { panic!("one event") };
        assert!(is_expected(state), "{state:?}");
        let failed = log(&app).only("failed").concat();
        assert_eq!(failed.is_empty(), state.is_usable(), "{failed}");
        assert_eq!(failed.contains("EngineOptions::template"), !state.is_usable(), "{failed}");
    }
    let mut app = app_of(on(tiny(), Some("no/such/file.jinja")));
    let agent = guest(&mut app, 0);
    ask(&mut app, agent, "Who are you?");
    run_until(&mut app, |app| log(app).ends() == 1);
    assert!(log(&app).only("failed").concat().contains("no/such/file.jinja"));
}

/// An agent that has spoken first, and one with an observation, with a template that rejects both.
#[test]
fn conversations_may_start_with_any_speaker() {
    let mut app = app_of(EngineOptions { template: Some("gemma".into()), ..options() });
    let mut agents = Vec::new();
    for (place, speaker) in [Speaker::Agent, Speaker::Observation, Speaker::User].iter().enumerate()
    {
        let agent = guest(&mut app, place as u64);
        let mut talk = Conversation::default();
        talk.push(*speaker, "Odo comes in.");
        app.world_mut().entity_mut(agent).insert(talk);
        ask(&mut app, agent, "And now?");
        agents.push(agent);
    }
    run_until(&mut app, |app| log(app).ends() == 3);
    assert_eq!(log(&app).only("failed"), Vec::<&str>::new());
    for agent in agents {
        assert_eq!(turns(&app, agent)[..2], ["Odo comes in.", "And now?"]);
        assert_eq!(turns(&app, agent).len(), 3);
    }
}

#[test]
fn an_agent_without_a_slot_gets_one_when_another_despawns() {
    let mut app = app_of(EngineOptions { max_agents: Some(1), wait_for_slot: false, ..options() });
    let agents = [guest(&mut app, 0), guest(&mut app, 1)];
    app.update(); // the first one is added first
    ask(&mut app, agents[1], "Who are you?");
    run_until(&mut app, |app| log(app).ends() == 1);
    let full = ReplyError::TooManyAgents { max_agents: 1 };
    assert_eq!(log(&app).only("failed"), [full.to_string()]);
    app.world_mut().despawn(agents[0]);
    ask(&mut app, agents[1], "And now?");
    run_until(&mut app, |app| log(app).ends() == 2);
    assert_eq!(log(&app).only("finished").len(), 1);
    assert_eq!(turns(&app, agents[1]).len(), 2);
}

#[test]
fn many_agents_share_a_few_slots() {
    let mut app = app_of(EngineOptions { max_agents: Some(3), ..options() });
    app.add_plugins(WallaDiagnosticsPlugin);
    listen(&mut app);
    let agents: Vec<_> = (0..24).map(|place| guest(&mut app, place)).collect();
    for question in ["Who are you?", "And then?"] {
        for &agent in &agents {
            ask(&mut app, agent, question);
        }
    }
    let waiting = |app: &App| app.world().resource::<Walla>().stats().agents_waiting;
    run_until(&mut app, |app| waiting(app) > 10);
    let store = app.world().resource::<DiagnosticsStore>();
    let measured = store.get(&WallaDiagnosticsPlugin::AGENTS_WAITING).and_then(Diagnostic::value);
    assert!(measured.is_some());
    // Agents that are despawned while they wait or speak are cancelled, the others are answered.
    app.world_mut().despawn(agents[20]);
    app.world_mut().despawn(agents[0]);
    run_until(&mut app, |app| log(app).ends() == 2 * agents.len());
    assert_eq!(log(&app).only("failed"), Vec::<&str>::new());
    for &agent in agents[1..20].iter().chain(&agents[21..]) {
        let turns = turns(&app, agent);
        assert_eq!((turns.len(), &*turns[0], &*turns[2]), (4, "Who are you?", "And then?"));
    }
    run_until(&mut app, |app| waiting(app) == 0);
    assert_eq!(app.world().resource::<Walla>().stats().agents, 22);
    // A conversation is the same with and without parking.
    let mut alone = app_of(options());
    let guest = guest(&mut alone, 7);
    for question in ["Who are you?", "And then?"] {
        ask(&mut alone, guest, question);
    }
    run_until(&mut alone, |app| log(app).ends() == 2);
    assert_eq!(turns(&alone, guest), turns(&app, agents[7]));
}

#[test]
fn an_ask_and_a_despawn_before_the_engine_is_ready_are_a_cancelled_reply() {
    let mut app = app_of(options());
    let agents: Vec<_> = (0..4).map(|place| guest(&mut app, place)).collect();
    for (frames, &agent) in agents.iter().enumerate() {
        ask(&mut app, agent, "Who are you?");
        updates(&mut app, frames);
        app.world_mut().despawn(agent);
    }
    run_until(&mut app, |app| log(app).ends() == agents.len());
    assert_eq!(log(&app).only("finished"), ["Cancelled"; 4], "{:?}", log(&app).0);
}

#[test]
fn conversation_and_engine_agree_after_interruptions_and_pushes() {
    let mut app = app_of(options());
    let agent = guest(&mut app, 0);
    ask(&mut app, agent, "one");
    run_until(&mut app, |app| log(app).ends() == 1);
    ask(&mut app, agent, "two");
    run_until(&mut app, |app| {
        let speech = speech(app, agent);
        speech.question() == "two" && speech.text().len() > 8
    });
    app.world_mut().get_mut::<Conversation>(agent).unwrap().push(Speaker::User, "It rains.");
    app.world_mut().trigger(Cancel::heard(agent, 6));
    run_until(&mut app, |app| log(app).ends() == 2);
    let heard = turns(&app, agent);
    assert_eq!((heard.len(), &*heard[2], heard[3].len()), (5, "two", 6));
    assert_eq!(heard[4], "It rains.");
    // An agent that begins with this conversation gives the same reply.
    let saved = app.world().get::<Conversation>(agent).unwrap().clone();
    let other = guest(&mut app, 0);
    app.world_mut().entity_mut(other).insert(saved);
    for agent in [agent, other] {
        ask(&mut app, agent, "three");
    }
    run_until(&mut app, |app| log(app).ends() == 4);
    assert_eq!(turns(&app, agent), turns(&app, other));
    assert_eq!(turns(&app, agent)[..5], heard);
    // The reply is over and is shortened, then it was not heard at all.
    for (heard_bytes, expected) in [(3, 7), (0, 5)] {
        app.world_mut().trigger(Cancel::heard(agent, heard_bytes));
        updates(&mut app, 1);
        assert_eq!(turns(&app, agent).len(), expected);
    }
    let saved = app.world().get::<Conversation>(agent).unwrap().clone();
    app.world_mut().entity_mut(other).insert(saved);
    for agent in [agent, other] {
        ask(&mut app, agent, "four");
    }
    run_until(&mut app, |app| log(app).ends() == 6);
    assert_eq!(turns(&app, agent), turns(&app, other));
}

#[test]
fn a_prompt_that_is_too_long_is_not_kept() {
    let mut app = app_of(options());
    let agent = guest(&mut app, 0);
    app.world_mut().entity_mut(agent).insert(AgentContext(ContextPolicy::Refuse));
    ask(&mut app, agent, &"What is this? ".repeat(200));
    run_until(&mut app, |app| log(app).ends() == 1);
    assert_eq!(log(&app).only("failed").len(), 1, "{:?}", log(&app).0);
    ask(&mut app, agent, "Who are you?");
    run_until(&mut app, |app| log(app).ends() == 2);
    assert_eq!(log(&app).only("finished").len(), 1, "{:?}", log(&app).0);
    assert_eq!(turns(&app, agent)[0], "Who are you?");
}

#[cfg(feature = "demo")]
fn demo(agents: u32) -> EngineOptions {
    let (device, threads) = ("cpu".into(), Some(1));
    EngineOptions { device, threads, max_agents: Some(agents), ..EngineOptions::demo() }
}

#[cfg(feature = "demo")]
#[test]
fn a_three_line_app_answers_from_its_persona() {
    let mut app = app_of(demo(1));
    let persona = "You are Greta, the smith of Emberfall. A horseshoe costs 3 silver.";
    let greta = app.world_mut().spawn((Agent::persona(persona), AgentSampling::greedy())).id();
    ask(&mut app, greta, "What does a horseshoe cost?");
    run_until(&mut app, |app| log(app).ends() == 1);
    assert!(log(&app).only("sentence").concat().contains("3 silver"), "{:?}", log(&app).0);
}

/// Cached prompt tokens of each reply.
#[derive(Resource, Default)]
struct Cached(Vec<u32>);

/// No agent is asked in this game, so the plugin has to grant frames for the background prefill.
#[cfg(feature = "demo")]
#[test]
fn agents_of_a_quiet_game_are_prepared_and_then_the_engine_is_idle() {
    let mut app = app_of(demo(4));
    app.init_resource::<Cached>();
    app.add_observer(|finished: On<ReplyFinished>, mut cached: ResMut<Cached>| {
        cached.0.push(finished.usage.cached_tokens);
    });
    let lore = "The bridge is closed since the storm. ".repeat(8);
    let agents = ["Greta", "Odo", "Pip"]
        .map(|name| app.world_mut().spawn(Agent::persona(format!("You are {name}. {lore}"))).id());
    let stats = |app: &App| *app.world().resource::<Walla>().stats();
    run_until(&mut app, |app| stats(app).background_tokens > 3 * 60);
    run_until(&mut app, |app| stats(app).background_agents == 0);
    updates(&mut app, 20);
    let (steps, tokens) = (stats(&app).steps, stats(&app).background_tokens);
    updates(&mut app, 60);
    assert_eq!((stats(&app).steps, stats(&app).background_tokens), (steps, tokens));
    for agent in agents {
        ask(&mut app, agent, "Who are you?");
    }
    run_until(&mut app, |app| log(app).ends() == 3);
    let cached = &app.world().resource::<Cached>().0;
    assert!(cached.len() == 3 && cached.iter().all(|&tokens| tokens > 60), "{cached:?}");
}

#[test]
fn local_engines_share_the_budget_of_their_device() {
    use bevy_walla::engines::WallaEngines;
    let whole = EngineOptions { budget: Duration::from_millis(4).into(), ..options() };
    let mut app =
        app_with(WallaPlugin::engines(EngineSet::new("default", whole).with("b", options())));
    let engines = |app: &App| app.world().resource::<WallaEngines>().list();
    let budgets = |app: &App| -> Vec<_> {
        engines(app).iter().map(|engine| engine.stats.budget.budget).collect()
    };
    run_until(&mut app, |app| budgets(app).iter().all(Option::is_some));
    let [a, b] = [0, 1].map(|place| guest(&mut app, place));
    app.world_mut().entity_mut(b).insert(AgentEngine::named("b"));
    app.world().resource::<WallaEngines>().set_weight("b", 3.0).unwrap();
    for _ in 0..4 {
        ask(&mut app, a, "Who are you?");
        ask(&mut app, b, "Who are you?");
    }
    let millis = Duration::from_millis;
    let is_shared = |app: &App| budgets(app) == [Some(millis(1)), Some(millis(3))];
    run_until(&mut app, is_shared);
    run_until(&mut app, |app| log(app).ends() == 8);
    // An engine that is alone with work has the whole.
    ask(&mut app, b, "Who are you?");
    run_until(&mut app, |app| budgets(app)[1] == Some(millis(4)));
    run_until(&mut app, |app| log(app).ends() == 9);
    // One that is set at run time is divided too.
    app.world().resource::<Walla>().set_budget(millis(2));
    for _ in 0..4 {
        ask(&mut app, a, "Who are you?");
        ask(&mut app, b, "Who are you?");
    }
    let micros = |micros| Some(Duration::from_micros(micros));
    run_until(&mut app, |app| budgets(app) == [micros(500), micros(1_500)]);
    app.world().resource::<Walla>().set_budget(None);
    run_until(&mut app, |app| budgets(app) == [None, None]);
    run_until(&mut app, |app| log(app).ends() == 17);
    assert_eq!(log(&app).only("failed"), Vec::<&str>::new());
}

/// While an embedding model works, each engine has less than the budget that was set last, by the
/// app or by another owner of the engine, and afterwards all of it. The budget itself is the
/// host's all the time.
#[test]
fn the_latest_budget_is_divided_with_an_embedding_model() {
    use bevy_walla::engines::WallaEngines;
    use bevy_walla::memories::{Embedder, EmbedderOptions, Lore, MemoryService, RecallOptions};
    let micros = Duration::from_micros;
    let options = EngineOptions { budget: micros(8_000).into(), ..options() };
    let apps = [
        WallaPlugin::new(options.clone()),
        WallaPlugin::engines(EngineSet::new("default", options.clone())),
    ];
    for plugin in apps {
        let mut app = app_with(plugin);
        let part = Some(micros(1_000));
        let max_time = Duration::from_millis(4); // no vector comes
        let recall = RecallOptions {
            embed_budget: part,
            frame_time: part,
            max_time,
            ..RecallOptions::default()
        };
        app.add_plugins(WallaMemoryPlugin::default().options(recall));
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../walla_embed/tests/data/bert-mean-f32.gguf");
        let embedder = Embedder::load(path, EmbedderOptions::default()).unwrap();
        app.world().resource::<MemoryService>().recall().set_embedder(Some(embedder.clone()));
        embedder.set_budget(Some(Duration::ZERO)); // a pause, in which it has work
        app.insert_resource(Lore::from_text("The mill burned down.").unwrap());
        let in_effect = |app: &App| match app.world().resource::<Walla>().engine() {
            Some(engine) => engine.stats().budget.budget,
            None => app.world().resource::<WallaEngines>().list()[0].stats.budget.budget,
        };
        let agent = guest(&mut app, 0);
        let mut asked = 0;
        // A budget is in effect from a frame with work on.
        let mut reaches = |app: &mut App, wanted: Option<u64>| {
            let start = Instant::now();
            while in_effect(app) != wanted.map(micros) {
                assert!(start.elapsed() < TIMEOUT, "{:?}, not {wanted:?}", in_effect(app));
                if log(app).ends() == asked {
                    ask(app, agent, "Who are you?");
                    asked += 1;
                }
                app.update();
                std::thread::sleep(micros(200));
            }
            updates(app, 3);
            assert_eq!(in_effect(app), wanted.map(micros));
        };
        reaches(&mut app, Some(7_000));
        // Among them budgets that the engine has already, and a pause between them.
        for (host, left) in [(7_000, 6_000), (6_000, 5_000), (600, 300), (4_000, 3_000)] {
            app.world().resource::<Walla>().set_budget(Duration::ZERO);
            updates(&mut app, 2);
            app.world().resource::<Walla>().set_budget(micros(host));
            reaches(&mut app, Some(left));
        }
        app.world().resource::<Walla>().set_budget(None);
        reaches(&mut app, None);
        app.world().resource::<Walla>().set_budget(micros(5_000));
        reaches(&mut app, Some(4_000));
        if let Some(engine) = app.world().resource::<Walla>().engine() {
            assert_eq!(engine.budget(), FrameBudget::Time(micros(5_000)));
            engine.set_budget(micros(3_000));
        } else {
            app.world().resource::<Walla>().set_budget(micros(3_000));
        }
        reaches(&mut app, Some(2_000));
        embedder.set_budget(None);
        reaches(&mut app, Some(3_000));
    }
}

#[test]
fn a_missing_file_is_named_with_the_paths_that_were_tried() {
    let mut app = app_with(WallaPlugin::model("models/no such file.gguf"));
    updates(&mut app, 2);
    let WallaState::Failed(error) = app.world().resource::<Walla>().state() else { panic!() };
    let error = error.to_string();
    let name = std::path::Path::new("models").join("no such file.gguf");
    let work = std::env::current_dir().unwrap().join(&name);
    // Absolute: built for another system, the folder has that one's form.
    let package = std::path::absolute(env!("CARGO_MANIFEST_DIR")).unwrap();
    let assets = package.join("assets").join(&name);
    for path in [assets, work] {
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
}
