//! Agents that act: calls as events of the game's types, results, choices and lifecycle.

use crate::common::*;
use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_time::{Time, Virtual};
use bevy_walla::actions::schemars::{self, JsonSchema};
use bevy_walla::actions::{
    ActionError, ActionSet, AgentCalled, CallId, CallRefused, ResultError, ResultRefused,
    SimulatedCall,
};
use bevy_walla::agent::ForkCommands;
use bevy_walla::ask::Cancel;
use bevy_walla::conversation::{Speaker, Turn};
use bevy_walla::engine::{Command, Prompt};
use bevy_walla::prelude::*;
use bevy_walla::reply::{ReplyError, SpeechState};
use bevy_walla::scripted::ScriptedEngine;
use serde::Deserialize;
use std::time::Duration;

/// Hands an item over.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
struct Give {
    item: String,
    #[serde(default)]
    count: Option<u8>,
}

/// Waves.
#[derive(Debug, Deserialize, JsonSchema)]
struct Wave;

#[derive(Resource, Default)]
struct Seen(Vec<String>);

/// An app that records deltas, calls and ends in the order of its observers.
fn acting_app(engine: &ScriptedEngine) -> App {
    let mut app = app(engine);
    app.init_resource::<Seen>().add_action::<Give>().add_action::<Wave>();
    app.add_observer(|delta: On<ReplyDelta>, mut seen: ResMut<Seen>| {
        seen.0.push(delta.text.trim().to_owned());
    });
    app.add_observer(|call: On<ActionCall<Give>>, mut seen: ResMut<Seen>| {
        seen.0.push(format!("give {} {:?} {}", call.item, call.count, call.tag));
    });
    app.add_observer(|_: On<ActionCall<Wave>>, mut seen: ResMut<Seen>| seen.0.push("wave".into()));
    app.add_observer(|refused: On<CallRefused>, mut seen: ResMut<Seen>| {
        seen.0.push(format!("refused {}", refused.reason));
    });
    app.add_observer(|_: On<ReplyFinished>, mut seen: ResMut<Seen>| seen.0.push("end".into()));
    app
}

fn seen(app: &mut App) -> Vec<String> {
    std::mem::take(&mut app.world_mut().resource_mut::<Seen>().0)
}

fn smith(app: &mut App) -> Entity {
    let actions = AgentActions::new().allow::<Give>().allow::<Wave>();
    let actions = actions.choices::<Give>("item", ["nails", "horseshoe"]);
    app.world_mut().spawn((Agent::persona("Greta"), actions)).id()
}

fn calls(calls: &[(&str, &str)]) -> Vec<(String, String)> {
    calls.iter().map(|&(name, arguments)| (name.to_owned(), arguments.to_owned())).collect()
}

#[test]
fn calls_arrive_once_as_types_in_the_order_of_the_text() {
    let engine = ScriptedEngine::new(|_, _| "Here you are.".into())
        .acting(|_, _| calls(&[("give", r#"{"item": "nails", "count": 7}"#), ("wave", "{}")]));
    let mut app = acting_app(&engine);
    let greta = smith(&mut app);
    app.world_mut().trigger(Ask::new(greta, "Nails, please.").with_tag(5));
    updates(&mut app, 12);
    let expected = ["Here", "you", "are.", "give nails Some(7) 5", "wave", "end"];
    assert_eq!(seen(&mut app), expected);
    assert_eq!(speech(&app, greta).text(), "Here you are.");
    let talk = app.world().get::<Conversation>(greta).unwrap();
    let turns: Vec<_> = talk.turns().iter().map(|turn| (turn.speaker, &*turn.text)).collect();
    let give = r#"{"name": "give", "arguments": {"item": "nails", "count": 7}}"#;
    let expected = [
        (Speaker::User, "Nails, please."),
        (Speaker::Agent, "Here you are."),
        (Speaker::Action, give),
        (Speaker::Action, r#"{"name": "wave", "arguments": {}}"#),
    ];
    assert_eq!(turns, expected);
    assert_eq!(app.world().resource::<Messages<ActionCall<Give>>>().len(), 0, "read and gone");
}

#[test]
fn messages_reach_readers() {
    #[derive(Resource, Default)]
    struct Read(Vec<Give>, usize);
    let engine = ScriptedEngine::new(|_, _| String::new())
        .acting(|_, _| calls(&[("give", r#"{"item": "nails"}"#), ("unknown", "{}")]));
    let mut app = acting_app(&engine);
    app.init_resource::<Read>().add_systems(
        Update,
        |mut typed: MessageReader<ActionCall<Give>>,
         mut all: MessageReader<AgentCalled>,
         mut read: ResMut<Read>| {
            read.0.extend(typed.read().map(|call| call.action.clone()));
            read.1 += all.read().count();
        },
    );
    let greta = smith(&mut app);
    app.world_mut().trigger(Ask::new(greta, "Nails, please."));
    updates(&mut app, 8);
    let Read(typed, all) = app.world().resource::<Read>();
    assert_eq!(*typed, [Give { item: "nails".into(), count: None }]);
    assert_eq!(*all, 2, "actions without a type are delivered as data");
}

/// Two calls, which a game answers.
fn two_calls() -> ScriptedEngine {
    let spoken = |_: &str, question: &str| format!("So {question}");
    ScriptedEngine::new(spoken).acting(|_, question| {
        let both = [("give", r#"{"item": "nails"}"#), ("wave", "{}")];
        if question == "Nails?" { calls(&both) } else { vec![] }
    })
}

#[derive(Resource, Default)]
struct Called(Vec<CallId>);

#[derive(Resource, Default)]
struct Refused(Vec<(String, ResultError)>);

/// An app that notes calls and refused results, with an agent that has called twice.
fn called_twice(engine: &ScriptedEngine) -> (App, Entity, [CallId; 2]) {
    let mut app = acting_app(engine);
    app.init_resource::<Called>().init_resource::<Refused>();
    app.add_observer(|call: On<AgentCalled>, mut called: ResMut<Called>| {
        called.0.push(call.call.id);
    });
    app.add_observer(|refused: On<ResultRefused>, mut all: ResMut<Refused>| {
        all.0.push((refused.text.clone(), refused.reason));
    });
    app.insert_resource(Time::<Virtual>::default());
    let greta = smith(&mut app);
    app.world_mut().trigger(Ask::new(greta, "Nails?").with_tag(9));
    updates(&mut app, 12);
    let [give, wave] = app.world().resource::<Called>().0[..] else { panic!("two calls") };
    (app, greta, [give, wave])
}

fn answer(app: &mut App, agent: Entity, id: CallId, text: &str) {
    app.world_mut().trigger(ActionResult { agent, id, text: text.into() });
}

/// Number of asks to go on speaking.
fn continued(engine: &ScriptedEngine) -> usize {
    let asks = engine.commands();
    asks.iter()
        .filter(|command| matches!(command, Command::Ask { prompt: Prompt::Continue, .. }))
        .count()
}

/// The agent continues after the results of all calls, once, with the tag of the ask.
#[test]
fn results_let_the_agent_go_on_speaking() {
    let engine = two_calls();
    let mut app = acting_app(&engine);
    app.add_observer(|call: On<AgentCalled>, mut commands: Commands| {
        let text = format!("{} is done.", call.call.name);
        commands.entity(call.agent).action_result(call.call.id, text);
    });
    #[derive(Resource, Default)]
    struct Tags(Vec<u64>);
    app.init_resource::<Tags>();
    app.add_observer(|end: On<ReplyFinished>, mut tags: ResMut<Tags>| tags.0.push(end.tag));
    let greta = smith(&mut app);
    app.world_mut().trigger(Ask::new(greta, "Nails?").with_tag(9));
    updates(&mut app, 20);
    assert_eq!(app.world().resource::<Tags>().0, [9, 9]);
    let talk = app.world().get::<Conversation>(greta).unwrap();
    let [.., give, wave, result, other, last] = talk.turns() else { panic!("{talk:?}") };
    assert_eq!((give.speaker, wave.speaker), (Speaker::Action, Speaker::Action));
    let expected = [("give is done.", give.call), ("wave is done.", wave.call)];
    assert_eq!([result, other].map(|turn| (turn.text.as_str(), turn.call)), expected);
    assert_eq!((last.speaker, last.text.as_str()), (Speaker::Agent, "So wave is done."));
    assert_eq!(continued(&engine), 1);
}

/// The faster of two actions is not the result of the first call, and the agent waits for the
/// other.
#[test]
fn an_agent_waits_for_the_results_of_all_calls() {
    let engine = two_calls();
    let (mut app, greta, [give, wave]) = called_twice(&engine);
    answer(&mut app, greta, wave, "waved.");
    updates(&mut app, 10);
    assert_eq!(continued(&engine), 0, "the other call has no result");
    answer(&mut app, greta, give, "sold.");
    updates(&mut app, 10);
    assert_eq!(continued(&engine), 1);
    let talk = app.world().get::<Conversation>(greta).unwrap();
    let [.., first, second, reply] = talk.turns() else { panic!("{talk:?}") };
    assert_eq!((first.text.as_str(), first.call), ("waved.", Some(wave)));
    assert_eq!((second.text.as_str(), second.call), ("sold.", Some(give)));
    assert_eq!(reply.text, "So sold.");
    assert_eq!(app.world().resource::<Refused>().0, []);
}

/// An action that no code answers silences the agent for the set time only.
#[test]
fn an_agent_goes_on_without_a_missing_result() {
    for wait in [Duration::ZERO, Duration::from_secs(3), AgentActions::RESULT_WAIT] {
        let engine = two_calls();
        let (mut app, greta, [give, wave]) = called_twice(&engine);
        let actions = app.world().get::<AgentActions>(greta).unwrap().clone();
        app.world_mut().entity_mut(greta).insert(actions.result_wait(wait));
        answer(&mut app, greta, wave, "waved.");
        updates(&mut app, 5);
        assert_eq!(continued(&engine), usize::from(wait.is_zero()), "{wait:?}");
        app.world_mut().resource_mut::<Time<Virtual>>().advance_by(wait);
        updates(&mut app, 10);
        assert_eq!(continued(&engine), 1, "{wait:?}");
        // The late one is heard too.
        answer(&mut app, greta, give, "sold.");
        updates(&mut app, 10);
        assert_eq!(continued(&engine), 2, "{wait:?}");
        assert_eq!(app.world().resource::<Refused>().0, []);
    }
}

/// Results of calls that are not open are events with their text. The conversation does not change,
/// and the agent does not speak.
#[test]
fn results_of_other_calls_are_refused() {
    type Change = fn(&mut App, Entity);
    let unknown = ResultError::Unknown as fn(CallId) -> ResultError;
    let nothing: Change = |_, _| {};
    let rewound: Change = |app, greta| {
        app.world_mut().get_mut::<Conversation>(greta).unwrap().rewind(2);
    };
    let cleared: Change =
        |app, greta| app.world_mut().get_mut::<Conversation>(greta).unwrap().clear();
    let forgotten: Change = |app, greta| {
        app.world_mut().get_mut::<Conversation>(greta).unwrap().forget_last_exchange();
    };
    let replaced: Change = |app, greta| {
        app.world_mut().entity_mut(greta).insert(Conversation::default());
    };
    let answered: Change = |app, greta| {
        let give = app.world().resource::<Called>().0[0];
        app.world_mut()
            .get_mut::<Conversation>(greta)
            .unwrap()
            .push_turn(Turn::result(give, "paid."));
    };
    let repeated = ResultError::Repeated as fn(CallId) -> ResultError;
    for (name, change, frames, expected) in [
        ("foreign", nothing, 0, unknown),
        ("rewound", rewound, 0, unknown),
        ("rewound and collected", rewound, 3, unknown),
        ("cleared", cleared, 0, unknown),
        ("cleared and collected", cleared, 3, unknown),
        ("forgotten", forgotten, 3, unknown),
        ("replaced", replaced, 0, unknown),
        ("repeated", answered, 0, repeated),
        ("repeated and collected", answered, 3, repeated),
    ] {
        let engine = two_calls();
        let (mut app, greta, [give, _]) = called_twice(&engine);
        let odo = smith(&mut app);
        updates(&mut app, 2);
        change(&mut app, greta);
        updates(&mut app, frames);
        let agent = if name == "foreign" { odo } else { greta };
        let before = app.world().get::<Conversation>(agent).unwrap().clone();
        answer(&mut app, agent, give, "sold.");
        updates(&mut app, 5);
        let refused = &app.world().resource::<Refused>().0;
        assert_eq!(*refused, [("sold.".to_owned(), expected(give))], "{name}");
        assert_eq!(*app.world().get::<Conversation>(agent).unwrap(), before, "{name}");
        assert_eq!(continued(&engine), 0, "{name}");
    }
}

/// A second result is refused whenever it comes: before, between and behind the words about the
/// first.
#[test]
fn a_call_has_one_result() {
    for frames in 0..8 {
        let engine = two_calls();
        let (mut app, greta, [give, wave]) = called_twice(&engine);
        answer(&mut app, greta, wave, "waved.");
        answer(&mut app, greta, give, "sold.");
        updates(&mut app, frames);
        answer(&mut app, greta, give, "sold again.");
        updates(&mut app, 10);
        let refused = &app.world().resource::<Refused>().0;
        assert_eq!(*refused, [("sold again.".to_owned(), ResultError::Repeated(give))], "{frames}");
        assert_eq!(continued(&engine), 1, "{frames}");
    }
}

/// The results of calls of a reply that is cancelled while it speaks are refused.
#[test]
fn results_of_a_cancelled_reply_are_refused() {
    let mut cancelled = 0;
    for frames in 1..8 {
        let engine = ScriptedEngine::new(|_, _| "One two three".into()).acting(|_, _| {
            calls(&[("give", r#"{"item": "nails"}"#), ("wave", "{}"), ("wave", "{}")])
        });
        let mut app = acting_app(&engine);
        app.init_resource::<Called>().init_resource::<Refused>();
        app.add_observer(|call: On<AgentCalled>, mut called: ResMut<Called>| {
            called.0.push(call.call.id);
        });
        app.add_observer(|refused: On<ResultRefused>, mut all: ResMut<Refused>| {
            all.0.push((refused.text.clone(), refused.reason));
        });
        let greta = smith(&mut app);
        app.world_mut().trigger(Ask::new(greta, "Nails?"));
        updates(&mut app, frames);
        let ended = seen(&mut app).contains(&"end".to_owned());
        let called = app.world().resource::<Called>().0.clone();
        app.world_mut().trigger(Cancel::new(greta));
        updates(&mut app, frames % 3);
        for id in &called {
            answer(&mut app, greta, *id, "done.");
        }
        updates(&mut app, 10);
        let refused = &app.world().resource::<Refused>().0;
        if ended {
            assert_eq!((refused.len(), continued(&engine)), (0, 1), "{frames}");
        } else {
            let expected = |id: &CallId| ("done.".to_owned(), ResultError::Cancelled(*id));
            assert_eq!(*refused, called.iter().map(expected).collect::<Vec<_>>(), "{frames}");
            assert_eq!(continued(&engine), 0, "{frames}");
            cancelled += called.len();
        }
    }
    assert!(cancelled > 0, "no frame is within the calls");
}

/// The calls of a simulation reach no observer of real calls, also of its copies.
#[test]
fn simulated_calls_are_events_of_their_own() {
    #[derive(Resource, Default)]
    struct Simulated(Vec<(Entity, String)>);
    let engine = two_calls();
    let (mut app, greta, _) = called_twice(&engine);
    app.init_resource::<Simulated>();
    app.add_observer(|call: On<SimulatedCall>, mut all: ResMut<Simulated>| {
        all.0.push((call.agent, call.call.name.clone()));
    });
    seen(&mut app);
    let branch = app.world_mut().commands().simulate_agent(greta);
    app.world_mut().flush();
    let twig = app.world_mut().commands().fork_agent(branch);
    app.world_mut().flush();
    for agent in [branch, twig] {
        app.world_mut().trigger(Ask::new(agent, "Nails?"));
    }
    updates(&mut app, 20);
    let simulated = &app.world().resource::<Simulated>().0;
    for agent in [branch, twig] {
        let its: Vec<_> = simulated.iter().filter(|(of, _)| *of == agent).collect();
        let names: Vec<_> = its.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["give", "wave"]);
    }
    assert_eq!(app.world().resource::<Called>().0.len(), 2, "only the real ones");
    let seen = seen(&mut app);
    assert!(!seen.iter().any(|seen| seen.starts_with("give") || seen == "wave"), "{seen:?}");
    // The other branch is as real as any agent.
    let real = app.world_mut().commands().fork_agent(greta);
    app.world_mut().flush();
    app.world_mut().trigger(Ask::new(real, "Nails?"));
    updates(&mut app, 20);
    assert_eq!(app.world().resource::<Called>().0.len(), 4);
}

/// An agent whose call and end arrive in one frame is not silent while the result waits for words:
/// a system in the next `Update` does not ask it.
#[test]
fn an_agent_is_not_silent_between_a_result_and_the_words_about_it() {
    let engine = ScriptedEngine::new(|_, _| String::new()).acting(|_, question| {
        let nails = [("give", r#"{"item": "nails"}"#)];
        if question == "Nails?" { calls(&nails) } else { vec![] }
    });
    let mut app = acting_app(&engine);
    app.add_observer(|call: On<ActionCall<Give>>, mut commands: Commands| {
        commands.entity(call.agent).action_result(call.id, "sold.");
    });
    #[derive(Resource, Default)]
    struct Ends(usize, Vec<usize>);
    app.init_resource::<Ends>();
    app.add_observer(|_: On<ReplyFinished>, mut ends: ResMut<Ends>| ends.0 += 1);
    app.add_systems(Update, |speech: Single<&Speech>, mut ends: ResMut<Ends>| {
        if speech.is_silent() {
            let count = ends.0;
            ends.1.push(count);
        }
    });
    let greta = smith(&mut app);
    updates(&mut app, 2);
    app.world_mut().resource_mut::<Ends>().1.clear();
    app.world_mut().trigger(Ask::new(greta, "Nails?"));
    updates(&mut app, 20);
    let ends = app.world().resource::<Ends>();
    assert_eq!(ends.0, 2);
    assert!(!ends.1.is_empty() && ends.1.iter().all(|ends| *ends == 2), "{:?}", ends.1);
}

/// The state of an ask that is refused before the engine hears of it.
#[test]
fn an_agent_is_silent_after_a_refused_ask() {
    let engine = ScriptedEngine::new(|_, _| String::new());
    let mut app = acting_app(&engine);
    let greta = smith(&mut app);
    updates(&mut app, 2);
    app.world_mut().trigger(Ask::new(greta, "Nails?"));
    assert_eq!(app.world().get::<Speech>(greta).unwrap().state(), SpeechState::Asked);
    app.world_mut().entity_mut(greta).remove::<Agent>();
    app.world_mut().entity_mut(greta).insert(Agent::persona("Greta"));
    updates(&mut app, 4);
    assert!(app.world().get::<Speech>(greta).unwrap().is_silent());
}

/// A changed choice reaches the engine, and an agent without the component has no actions.
#[test]
fn changed_actions_are_sent() {
    let engine = echo();
    let mut app = acting_app(&engine);
    let greta = smith(&mut app);
    app.update();
    app.world_mut().get_mut::<AgentActions>(greta).unwrap().set_choices::<Give>("item", ["anvil"]);
    app.update();
    app.world_mut().get_mut::<AgentActions>(greta).unwrap().forbid::<Give>();
    app.update();
    app.world_mut().entity_mut(greta).remove::<AgentActions>();
    app.update();
    let specs: Vec<_> = engine
        .commands()
        .into_iter()
        .filter_map(|command| match command {
            Command::AddAgent { spec, .. } | Command::ChangeAgent { spec, .. } => {
                Some(spec.actions)
            }
            _ => None,
        })
        .collect();
    let text = |at: usize| {
        let actions = specs[at].as_ref().expect("it has actions");
        actions.set.possible().map(|spec| spec.parameters().to_string()).collect::<String>()
    };
    assert!(text(0).contains("horseshoe") && text(1).contains("anvil"), "{specs:?}");
    assert!(!text(1).contains("horseshoe") && !text(2).contains("anvil"));
    assert_eq!((specs.len(), specs[3].is_none()), (4, true));
}

/// Unlisted choices reach the engine, and what prompts list stays equal.
#[test]
fn changed_unlisted_choices_are_sent() {
    let engine = echo();
    let mut app = acting_app(&engine);
    let actions = AgentActions::new().unlisted_choices::<Give>("item", ["nails"]);
    let actions = actions.allow::<Give>();
    let greta = app.world_mut().spawn((Agent::persona("Greta"), actions)).id();
    app.update();
    let change = |app: &mut App, change: fn(&mut AgentActions)| {
        change(&mut app.world_mut().get_mut::<AgentActions>(greta).unwrap());
        app.update();
    };
    change(&mut app, |actions| actions.set_unlisted_choices::<Give>("item", ["anvil"]));
    change(&mut app, |actions| actions.set_unlisted_choices_of("give", "item", [""; 0]));
    let sets: Vec<_> = engine
        .commands()
        .into_iter()
        .filter_map(|command| match command {
            Command::AddAgent { spec, .. } | Command::ChangeAgent { spec, .. } => {
                Some(spec.actions?.set)
            }
            _ => None,
        })
        .collect();
    let [nails, anvil, none] = &sets[..] else { panic!("{sets:?}") };
    let text = |set: &ActionSet| set.actions()[0].parameters().to_string();
    assert!(text(nails).contains("nails") && text(anvil).contains("anvil") && none.is_empty());
    assert!(nails.listed() == anvil.listed() && nails.listed() == none.listed());
    assert!(!text(&nails.listed()).contains("nails"));
    // Early choices of both kinds apply in their order.
    let all = ["nails", "anvil"];
    let late = AgentActions::new().allow::<Give>().choices::<Give>("item", all);
    let late = late.unlisted_choices::<Give>("item", ["nails"]);
    let early = AgentActions::new().choices::<Give>("item", all);
    let early = early.unlisted_choices::<Give>("item", ["nails"]).allow::<Give>();
    assert_eq!(early, late);
    assert_eq!(early.specs()[0].unlisted_choices().len(), 1);
    let listed = AgentActions::new().unlisted_choices::<Give>("item", ["nails"]);
    let listed = listed.choices::<Give>("item", all).allow::<Give>();
    assert_eq!(listed, AgentActions::new().allow::<Give>().choices::<Give>("item", all));
}

/// A defect of the actions is an error of the asks, with its name.
#[test]
fn defects_of_actions_are_reported() {
    let engine = ScriptedEngine::new(|_, _| String::new());
    let mut app = acting_app(&engine);
    let actions = AgentActions::new().allow::<Give>().choices::<Give>("colour", ["red"]);
    let expected = ActionError::NoProperty { action: "give".into(), property: "colour".into() };
    assert_eq!(actions.fault(), Some(&expected));
    let greta = app.world_mut().spawn((Agent::persona("Greta"), actions)).id();
    app.update();
    let sent = engine.commands();
    let Some(Command::AddAgent { spec, .. }) = sent.first() else { panic!("{sent:?}") };
    let fault = spec.actions.as_ref().and_then(|actions| actions.fault.as_deref());
    assert_eq!(fault, Some(&expected));
    let error = ReplyError::Actions(std::sync::Arc::new(expected));
    assert!(error.to_string().contains("colour"), "{error}");
    app.world_mut().despawn(greta);
}

/// A correction of the same choices, of the action or its removal ends a defect.
#[test]
fn corrected_actions_have_no_defect() {
    /// An action that no grammar supports.
    #[derive(Deserialize, JsonSchema)]
    struct Sort {
        #[expect(dead_code, reason = "only its schema is used")]
        bins: std::collections::HashMap<String, String>,
    }
    let fresh = || AgentActions::new().allow::<Give>();
    let mut actions = fresh().choices::<Give>("item", [String::from("x").repeat(20_000)]);
    let message = actions.fault().expect("too long").to_string();
    assert!(message.contains("give") && message.contains("choices"), "{message}");
    actions.set_choices::<Give>("item", ["nails"]);
    assert_eq!(actions.fault(), None);
    // A character that no call can contain is found at once, and named with its action.
    actions.set_choices::<Give>("item", ["axe\u{7f}"]);
    let message = actions.fault().expect("a control character").to_string();
    assert!(message.contains("give") && message.contains("item"), "{message}");
    actions.forbid::<Give>();
    assert_eq!((actions.fault(), actions.specs().len()), (None, 0));
    // Choices may come before the action, and remain.
    actions.set_choices::<Give>("item", ["nails"]);
    assert_eq!(actions.fault(), None);
    let actions = actions.allow::<Give>();
    assert_eq!(actions, fresh().choices::<Give>("item", ["nails"]));
    // Choices before the action that it does not have are its defect.
    let early = AgentActions::new().choices::<Give>("colour", ["red"]).allow::<Give>();
    assert!(matches!(early.fault(), Some(ActionError::NoProperty { .. })));
    let mut several = fresh().allow::<Sort>();
    let message = several.fault().expect("a map").to_string();
    assert!(message.contains("sort") && message.contains("/properties/bins"), "{message}");
    several.forbid::<Sort>();
    assert_eq!(several, fresh());
}

/// Types of one name: the call is published as each type that accepts it.
#[test]
fn several_types_may_have_one_name() {
    mod other {
        /// Gives way.
        #[derive(Debug, serde::Deserialize, bevy_walla::actions::schemars::JsonSchema)]
        #[schemars(crate = "bevy_walla::actions::schemars")]
        pub struct Give {
            pub force: u8,
        }
    }
    let engine = ScriptedEngine::new(|_, _| String::new()).acting(|_, _| {
        calls(&[
            ("give", r#"{"item": "nails"}"#),
            ("give", r#"{"force": 3}"#),
            ("give", r#"{"item": 3}"#),
        ])
    });
    for order in [false, true] {
        let mut app = acting_app(&engine);
        app.add_action::<other::Give>();
        if order {
            app.add_action::<Give>();
        }
        app.add_observer(|call: On<ActionCall<other::Give>>, mut seen: ResMut<Seen>| {
            seen.0.push(format!("force {}", call.force));
        });
        let greta = smith(&mut app);
        app.world_mut().trigger(Ask::new(greta, "Nails?"));
        updates(&mut app, 8);
        let seen = seen(&mut app);
        assert_eq!(seen[..2], ["give nails None 0", "force 3"]);
        assert!(seen[2].starts_with("refused") && seen[3] == "end", "{seen:?}");
    }
}

/// A result that a system writes as a message has the effect of a triggered one, once.
#[test]
fn results_are_events_or_messages() {
    for as_message in [false, true] {
        let engine = two_calls();
        let (mut app, greta, [give, wave]) = called_twice(&engine);
        for (id, text) in [(wave, "waved."), (give, "sold.")] {
            let result = ActionResult { agent: greta, id, text: text.into() };
            match as_message {
                true => drop(app.world_mut().write_message(result)),
                false => app.world_mut().trigger(result),
            }
        }
        updates(&mut app, 8);
        let talk = app.world().get::<Conversation>(greta).unwrap();
        let [.., waved, sold, reply] = talk.turns() else { panic!("{talk:?}") };
        assert_eq!((waved.call, sold.call), (Some(wave), Some(give)), "{as_message}");
        assert_eq!(reply.text, "So sold.", "{as_message}");
        assert_eq!(continued(&engine), 1, "{as_message}");
        assert_eq!(app.world().resource::<Refused>().0, [], "{as_message}");
    }
}

/// A result behind a cancel in the same frame is answered.
#[test]
fn a_result_behind_a_cancel_is_answered() {
    let engine = two_calls();
    let (mut app, greta, [give, wave]) = called_twice(&engine);
    answer(&mut app, greta, wave, "waved.");
    app.world_mut().trigger(Cancel::new(greta));
    answer(&mut app, greta, give, "sold.");
    updates(&mut app, 8);
    let talk = app.world().get::<Conversation>(greta).unwrap();
    let last = talk.turns().last().map(|turn| (turn.speaker, turn.text.clone()));
    assert_eq!(last, Some((Speaker::Agent, "So sold.".into())));
    assert!(continued(&engine) <= 2);
}

/// What the type of the game refuses is reported, and not delivered as an action.
#[test]
fn arguments_that_the_type_refuses_are_reported() {
    let engine = ScriptedEngine::new(|_, _| String::new())
        .acting(|_, _| calls(&[("give", r#"{"item": 3}"#), ("give", "no JSON")]));
    let mut app = acting_app(&engine);
    let greta = smith(&mut app);
    app.world_mut().trigger(Ask::new(greta, "Nails?"));
    updates(&mut app, 8);
    let seen = seen(&mut app);
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert!(seen[0].starts_with("refused invalid type") && seen[1].contains("no JSON"), "{seen:?}");
}

/// Despawning an agent within its calls ends the reply once, and no call follows.
#[test]
fn no_call_follows_a_despawn() {
    let engine = ScriptedEngine::new(|_, _| "Yes.".into())
        .acting(|_, _| calls(&[("wave", "{}"), ("wave", "{}"), ("wave", "{}")]));
    for frames in 1..8 {
        let mut app = acting_app(&engine);
        let greta = smith(&mut app);
        app.world_mut().trigger(Ask::new(greta, "Hello"));
        updates(&mut app, frames);
        let before = seen(&mut app);
        app.world_mut().despawn(greta);
        updates(&mut app, 6);
        let after = seen(&mut app);
        let ends = before.iter().chain(&after).filter(|seen| *seen == "end").count();
        assert_eq!(ends, 1, "{frames}: {before:?} {after:?}");
    }
}

/// Saves keep calls and results; older saves load.
#[cfg(feature = "serialize")]
#[test]
fn conversations_with_actions_are_saved() {
    let turn = |speaker, text: &str| Turn::new(speaker, text);
    let call = r#"{"name": "wave", "arguments": {}}"#;
    let talk = Conversation::new([
        turn(Speaker::User, "Hello"),
        turn(Speaker::Agent, ""),
        turn(Speaker::Action, call),
        turn(Speaker::ActionResult, "All wave back."),
    ]);
    let saved = serde_json::to_string(&talk).unwrap();
    assert!(saved.contains(r#""speaker":"action_result""#), "{saved}");
    assert_eq!(serde_json::from_str::<Conversation>(&saved).unwrap(), talk);
}

/// Calls of a loaded conversation keep their results, and have ids that no other call has.
#[cfg(feature = "serialize")]
#[test]
fn saved_results_stay_at_their_calls() {
    let engine = two_calls();
    let (mut app, greta, [give, wave]) = called_twice(&engine);
    app.world_mut().get_mut::<Conversation>(greta).unwrap().push_turn(Turn::result(wave, "waved."));
    let talk = app.world().get::<Conversation>(greta).unwrap().clone();
    let json = serde_json::to_string(&talk).unwrap();
    let loaded: Conversation = serde_json::from_str(&json).unwrap();
    let calls = |talk: &Conversation| -> Vec<_> {
        talk.turns().iter().filter_map(|turn| turn.call).collect()
    };
    let [own_give, own_wave, result] = calls(&loaded)[..] else { panic!("{loaded:?}") };
    assert_eq!(own_wave, result);
    assert_eq!((own_give.reply_id, own_give.index), (own_wave.reply_id, give.index));
    assert!(own_give.reply_id > give.reply_id, "{own_give:?} {give:?}");
    let texts = |talk: &Conversation| -> Vec<_> {
        talk.turns().iter().map(|turn| (turn.speaker, turn.text.clone())).collect()
    };
    assert_eq!(texts(&loaded), texts(&talk));
    // The open call can be answered after the load, and the old ids are unknown.
    app.world_mut().entity_mut(greta).insert(loaded);
    answer(&mut app, greta, give, "sold.");
    answer(&mut app, greta, own_give, "sold.");
    updates(&mut app, 8);
    assert_eq!(app.world().resource::<Refused>().0, [("sold.".into(), ResultError::Unknown(give))]);
    assert_eq!(continued(&engine), 1);
}
