//! Conversations of several agents and players, and turns with names.

use crate::common::*;
use bevy_app::App;
use bevy_ecs::prelude::*;
use bevy_walla::actions::AgentCalled;
use bevy_walla::actions::schemars::{self, JsonSchema};
use bevy_walla::ask::Prompt;
use bevy_walla::conversation::{Speaker, Turn};
use bevy_walla::cues::{AgentCues, Cues};
use bevy_walla::engine::Command;
use bevy_walla::groups::{
    Group, GroupLine, GroupSay, GroupSilent, GroupTurn, MemberOf, WallaGroupPlugin,
};
use bevy_walla::memories::{AgentMemory, Memorizes};
use bevy_walla::prelude::*;
use bevy_walla::scripted::ScriptedEngine;
use serde::Deserialize;

#[derive(Resource, Default)]
struct Heard {
    lines: Vec<String>,
    silences: usize,
}

const NAMES: [&str; 4] = ["Greta", "Odo", "Ada", "Bram"];

/// Four agents whose persona is their name.
fn table(engine: &ScriptedEngine, group: Group) -> (App, Entity, Vec<Entity>) {
    let mut app = app(engine);
    app.add_plugins(WallaGroupPlugin)
        .init_resource::<Heard>()
        .add_observer(|line: On<GroupLine>, mut heard: ResMut<Heard>| {
            heard.lines.push(format!("{}: {}", line.name, line.text));
        })
        .add_observer(|_: On<GroupSilent>, mut heard: ResMut<Heard>| heard.silences += 1);
    let table = app.world_mut().spawn(group).id();
    let member = |name: &str| {
        let parts = (Name::new(name.to_owned()), Agent::persona(name), MemberOf(table));
        app.world_mut().spawn(parts).id()
    };
    let members = NAMES.map(member).to_vec();
    (app, table, members)
}

fn say(app: &mut App, table: Entity, text: &str) {
    app.world_mut().trigger(GroupSay::new(table, "Alice", text));
}

/// Runs until all members are silent.
fn silence(app: &mut App) {
    let silences = heard(app).silences;
    run_until(app, |app| heard(app).silences > silences);
}

fn heard(app: &App) -> &Heard {
    app.world().resource::<Heard>()
}

/// Turns with their speakers.
fn named(app: &App, agent: Entity) -> Vec<String> {
    let talk = app.world().get::<Conversation>(agent).unwrap();
    let line = |turn: &Turn| match &turn.name {
        Some(name) => format!("{name}: {}", turn.text),
        None => format!("{:?}: {}", turn.speaker, turn.text),
    };
    talk.turns().iter().map(line).collect()
}

#[test]
fn members_take_turns_and_hear_each_other() {
    let engine = ScriptedEngine::new(|persona, heard| format!("I am {persona}; I heard {heard}"));
    let group = Group { unrepeated_lines: 0, ..Group::default() };
    let (mut app, table, members) = table(&engine, group);
    say(&mut app, table, "Hello Ada!");
    silence(&mut app);
    let ada = "I am Ada; I heard Hello Ada!";
    let expected = [
        "Alice: Hello Ada!".to_owned(),
        format!("Ada: {ada}"),
        format!("Greta: I am Greta; I heard {ada}"),
        // Of both who are named in the line, the one who did not speak it.
        format!("Ada: I am Ada; I heard I am Greta; I heard {ada}"),
    ];
    assert_eq!(heard(&app).lines, expected);
    for (member, name) in members.iter().zip(NAMES) {
        let own = format!("{name}: ");
        let as_heard = expected.iter().map(|line| match line.strip_prefix(&own) {
            Some(text) => format!("Agent: {text}"),
            None => line.clone(),
        });
        assert_eq!(named(&app, *member), as_heard.collect::<Vec<_>>(), "{name}");
    }
    say(&mut app, table, "And you?");
    silence(&mut app);
    let speakers: Vec<_> = heard(&app).lines.iter().map(|line| &line[..3]).collect();
    assert_eq!(speakers[4..6], ["Ali", "Odo"], "who has never spoken is next: {speakers:?}");
    let talk = app.world().get::<Conversation>(members[3]).unwrap();
    assert_eq!(talk.said_by("Alice").count(), 2);
    assert_eq!(talk.speakers().len(), 4);
}

#[test]
fn a_policy_of_the_game_is_asked() {
    fn only_bram(turn: &GroupTurn<'_>) -> Option<Entity> {
        let bram = turn.members.iter().find(|member| member.name == "Bram")?;
        (turn.lines < 2).then_some(bram.agent)
    }
    let engine = ScriptedEngine::new(|_, _| "Hm.".into());
    let (mut app, table, _) = table(&engine, Group { policy: only_bram, ..Group::default() });
    say(&mut app, table, "Odo?");
    silence(&mut app);
    assert_eq!(heard(&app).lines, ["Alice: Odo?", "Bram: Hm.", "Bram: Hm."]);
}

#[test]
fn a_player_interrupts_the_member_that_speaks() {
    let engine = ScriptedEngine::new(|_, heard| match heard {
        "Stop!" => "Yes.".into(),
        _ => "one two three four five six seven eight".into(),
    });
    let group = Group { max_lines: 1, ..Group::default() };
    let (mut app, table, members) = table(&engine, group);
    say(&mut app, table, "Odo, count.");
    run_until(&mut app, |app| speech(app, members[1]).text().contains("three"));
    say(&mut app, table, "Stop!");
    silence(&mut app);
    let lines = heard(&app).lines.clone();
    assert_eq!(lines.len(), 4, "{lines:?}");
    let counted = lines[1].strip_prefix("Odo: ").unwrap();
    assert!("one two three four five six seven".starts_with(counted), "{counted}");
    assert_eq!(lines[2..], ["Alice: Stop!", "Greta: Yes."]);
    let odo = named(&app, members[1]);
    assert_eq!(odo[1].trim_end(), format!("Agent: {counted}"));
    assert_eq!(odo[2..], ["Alice: Stop!", "Greta: Yes."]);
}

#[test]
fn a_polite_player_waits() {
    let engine = ScriptedEngine::new(|_, _| "one two three four five six seven eight".into());
    let group = Group { max_lines: 1, interrupts: false, unrepeated_lines: 0, ..Group::default() };
    let (mut app, table, members) = table(&engine, group);
    say(&mut app, table, "Odo, count.");
    run_until(&mut app, |app| speech(app, members[1]).text().contains("three"));
    say(&mut app, table, "Bram?");
    silence(&mut app);
    let said = "one two three four five six seven eight";
    let expected = [
        "Alice: Odo, count.".into(),
        format!("Odo: {said}"),
        "Alice: Bram?".into(),
        format!("Bram: {said}"),
    ];
    assert_eq!(heard(&app).lines, expected);
}

/// Agents that would repeat the same sentence for ever.
#[test]
fn no_sentence_is_repeated_for_ever() {
    let engine = ScriptedEngine::new(|persona, _| {
        format!("I am {persona} here. Did you see the smoke over the mill?")
    });
    let group = Group { max_lines: 1_000, ..Group::default() };
    let (mut app, table, members) = table(&engine, group);
    say(&mut app, table, "What is new?");
    silence(&mut app);
    let lines = &heard(&app).lines;
    let smoke = lines.iter().filter(|line| line.contains("smoke")).count();
    assert_eq!(smoke, 1, "{lines:?}");
    assert!(lines.len() <= 6, "{lines:?}");
    for member in members {
        let talk = named(&app, member).concat();
        assert!(talk.matches("smoke").count() <= 1, "{talk}");
    }
    // A member that repeats itself is asked again, with another seed.
    let seeds = engine.commands().into_iter().filter_map(|command| match command {
        Command::Ask { options, .. } => options.seed,
        _ => None,
    });
    assert_eq!(seeds.count(), 2);
}

#[test]
fn a_member_speaks_only_for_itself() {
    let engine = ScriptedEngine::new(|name, _| {
        format!("{name}: Good evening. A day!\nAlice: I agree.\nHm.")
    });
    let (mut app, table, _) = table(&engine, Group { max_lines: 2, ..Group::default() });
    say(&mut app, table, "Greta, hello! And Odo?");
    silence(&mut app);
    let lines = &heard(&app).lines;
    assert_eq!(lines[1..], ["Greta: Good evening. A day!", "Odo: Good evening. A day!"]);
    let engine = ScriptedEngine::new(|_, _| "Odo: I am Odo.".into());
    let (mut app, table, _) = self::table(&engine, Group { max_lines: 2, ..Group::default() });
    say(&mut app, table, "Greta, hello!");
    silence(&mut app);
    assert_eq!(heard(&app).lines, ["Alice: Greta, hello!"], "nothing of her own is left");
}

#[test]
fn cues_and_failures_and_absent_members() {
    let engine = ScriptedEngine::new(|_, _| "*nods* Yes.".into());
    let (mut app, table, members) = table(&engine, Group { max_lines: 1, ..Group::default() });
    for member in &members {
        app.world_mut().entity_mut(*member).insert(AgentCues(Cues::new()));
    }
    say(&mut app, table, "Odo?");
    silence(&mut app);
    assert_eq!(heard(&app).lines, ["Alice: Odo?", "Odo: Yes."]);
    app.world_mut().despawn(members[1]);
    say(&mut app, table, "Odo?");
    silence(&mut app);
    assert_eq!(heard(&app).lines[3], "Greta: Yes.");
    // A member that is despawned while it speaks.
    say(&mut app, table, "Ada?");
    updates(&mut app, 2);
    app.world_mut().despawn(members[2]);
    silence(&mut app);
    for member in [members[0], members[3]] {
        app.world_mut().despawn(member);
    }
    say(&mut app, table, "Anybody?");
    silence(&mut app);
    assert_eq!(heard(&app).lines.last().unwrap(), "Alice: Anybody?");
    app.world_mut().despawn(table);
    say(&mut app, table, "Anybody?");
    updates(&mut app, 3);
}

/// Hands something over.
#[derive(Deserialize, JsonSchema)]
struct Give {}

/// A member that acts without a word speaks when the game has answered; a player need not wait.
#[test]
fn a_member_speaks_behind_the_results_of_its_actions() {
    let engine = ScriptedEngine::new(|_, heard| match heard {
        "Bought." => "Here you are.".into(),
        "Alone?" => "Yes.".into(),
        _ => String::new(),
    });
    let call = || vec![("give".to_owned(), "{}".to_owned())];
    let engine =
        engine.acting(move |_, heard| if heard == "A nail!" { call() } else { Vec::new() });
    let (mut app, table, members) = table(&engine, Group { max_lines: 1, ..Group::default() });
    for member in &members {
        let actions = AgentActions::new().allow::<Give>();
        app.world_mut().entity_mut(*member).insert(actions);
    }
    #[derive(Resource, Default)]
    struct Calls(Vec<AgentCalled>);
    app.init_resource::<Calls>()
        .add_observer(|call: On<AgentCalled>, mut calls: ResMut<Calls>| calls.0.push(call.clone()));
    say(&mut app, table, "A nail!");
    run_until(&mut app, |app| log(app).ends() == 1);
    let call = app.world().resource::<Calls>().0[0].clone();
    assert_eq!((call.agent, heard(&app).silences), (members[0], 0));
    let (agent, id) = (call.agent, call.call.id);
    app.world_mut().trigger(ActionResult { agent, id, text: "Bought.".into() });
    silence(&mut app);
    assert_eq!(heard(&app).lines, ["Alice: A nail!", "Greta: Here you are."]);
    say(&mut app, table, "A nail!");
    run_until(&mut app, |app| log(app).ends() == 3);
    say(&mut app, table, "Alone?");
    silence(&mut app);
    assert_eq!(heard(&app).lines[2..], ["Alice: A nail!", "Alice: Alone?", "Odo: Yes."]);
}

/// Names of speakers reach the engine, the conversation, saves and memories.
#[test]
fn who_said_it_is_known() {
    let engine = echo();
    let mut app = app(&engine);
    app.add_plugins(WallaMemoryPlugin::default().without_embedding_model());
    let greta = app.world_mut().spawn((Agent::persona("Greta"), Memorizes::default())).id();
    let odo = app.world_mut().spawn(Name::new("Odo")).id();
    app.world_mut().trigger(Ask::new(greta, "Good day!").with_name("Alice"));
    app.world_mut().trigger(Ask::new(greta, "How are you?").with_speaker(odo));
    run_until(&mut app, |app| log(app).ends() == 2);
    app.world_mut().get_mut::<Conversation>(greta).unwrap().overhear("Ada", "It will rain.");
    updates(&mut app, 3);
    let expected = [
        "Alice: Good day!",
        "Agent: Greta: Good day!",
        "Odo: How are you?",
        "Agent: Greta: How are you?",
        "Ada: It will rain.",
    ];
    assert_eq!(named(&app, greta), expected);
    let asked: Vec<Prompt> = engine
        .commands()
        .into_iter()
        .filter_map(|command| match command {
            Command::Ask { prompt, .. } => Some(prompt),
            _ => None,
        })
        .collect();
    assert_eq!(asked, [Prompt::named("Alice", "Good day!"), Prompt::named("Odo", "How are you?")]);
    let memory = app.world().get::<AgentMemory>(greta).unwrap();
    let texts: Vec<String> = memory.iter().map(|(_, entry)| entry.text.to_string()).collect();
    assert!(texts[0].starts_with("Alice said: \"Good day!\""), "{texts:?}");
    assert!(texts[1].starts_with("Odo said: \"How are you?\""), "{texts:?}");
    assert_eq!(texts[2], "Ada said: \"It will rain.\"");
    // The repetition of a named question has the name.
    app.world_mut().trigger(Ask::again(greta));
    run_until(&mut app, |app| log(app).ends() == 3);
    assert_eq!(named(&app, greta)[2..], ["Odo: How are you?", "Agent: Greta: How are you?"]);
    let talk = app.world().get::<Conversation>(greta).unwrap();
    let saved = serde_json::to_string(talk).unwrap();
    assert_eq!(serde_json::from_str::<Conversation>(&saved).unwrap(), *talk);
    assert!(saved.contains(r#"{"named":"Alice"}"#), "{saved}");
    assert_eq!(talk.turns()[0].speaker, Speaker::User);
    assert_eq!(talk.said_by("Alice").count(), 1);
}
