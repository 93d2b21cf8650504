//! Conversations of several agents and players, and turns with names.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::dice::Dice;
use crate::common::*;
use bevy_app::App;
use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_walla::actions::AgentCalled;
use bevy_walla::actions::schemars::{self, JsonSchema};
use bevy_walla::ask::{Cancel, Prompt};
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

#[derive(Deserialize, JsonSchema)]
struct Hand {}

#[derive(Resource, Default)]
struct Calls(Vec<AgentCalled>);

/// A table whose first member answers a line about a nail with a call and with `reply`.
fn shop(reply: &'static str) -> (App, Entity, Vec<Entity>) {
    let engine = ScriptedEngine::new(move |_, heard| match heard {
        "Bought." => "The nail is yours now.".to_owned(),
        heard if heard.contains("nail") => reply.to_owned(),
        _ => "Yes, of course, my dear.".to_owned(),
    });
    let engine = engine.acting(|_, heard| {
        let calls = heard.contains("nail").then(|| ("hand".to_owned(), "{}".to_owned()));
        calls.into_iter().collect()
    });
    let group = Group { max_lines: 1, unrepeated_lines: 0, ..Group::default() };
    let (mut app, table, members) = table(&engine, group);
    app.init_resource::<Calls>()
        .add_observer(|call: On<AgentCalled>, mut calls: ResMut<Calls>| calls.0.push(call.clone()));
    app.world_mut().entity_mut(members[0]).insert(AgentActions::new().allow::<Hand>());
    (app, table, members)
}

/// Answers the first call.
fn answer(app: &mut App) {
    let call = app.world().resource::<Calls>().0[0].clone();
    let result = ActionResult { agent: call.agent, id: call.call.id, text: "Bought.".into() };
    app.world_mut().trigger(result);
}

#[test]
fn a_call_of_another_ask_is_no_call_of_the_turn() {
    let (mut app, table, members) = shop("");
    say(&mut app, table, "Greta, a nail!");
    run_until(&mut app, |app| log(app).ends() == 1);
    ask(&mut app, members[0], "a nail!");
    run_until(&mut app, |app| log(app).ends() == 2);
    // Greta waits for results, which do not come; the next line is answered.
    say(&mut app, table, "Odo?");
    silence(&mut app);
    assert_eq!(heard(&app).lines.last().unwrap(), "Odo: Yes, of course, my dear.");
}

#[test]
fn a_member_that_cannot_get_its_results_leaves_the_table_silent() {
    let edits: [fn(&mut World, Entity); 2] = [
        |world, greta| assert!(world.despawn(greta)),
        |world, greta| world.get_mut::<Conversation>(greta).unwrap().clear(),
    ];
    for edit in edits {
        let (mut app, table, members) = shop("");
        say(&mut app, table, "Greta, a nail!");
        run_until(&mut app, |app| log(app).ends() == 1);
        updates(&mut app, 5);
        assert_eq!(heard(&app).silences, 0);
        edit(app.world_mut(), members[0]);
        silence(&mut app);
    }
    // Cancelled together with its call.
    let (mut app, table, members) = shop("");
    say(&mut app, table, "Greta, a nail!");
    run_until(&mut app, |app| !app.world().resource::<Calls>().0.is_empty());
    app.world_mut().get_mut::<Conversation>(members[0]).unwrap().clear();
    silence(&mut app);
}

#[test]
fn a_late_result_is_a_line_too() {
    let (mut app, table, members) = shop("Here it comes.");
    for line in ["Greta, a nail!", "Greta, hello!"] {
        say(&mut app, table, line);
        silence(&mut app);
    }
    answer(&mut app);
    run_until(&mut app, |app| heard(app).lines.len() == 5);
    assert_eq!(heard(&app).lines[4], "Greta: The nail is yours now.");
    say(&mut app, table, "Ada?");
    silence(&mut app);
    assert!(named(&app, members[1]).contains(&"Greta: The nail is yours now.".to_owned()));
}

#[test]
fn groups_that_change_while_a_member_speaks_go_on() {
    let engine = || ScriptedEngine::new(|persona, _| format!("{persona} says a few words more."));
    let group = Group { max_lines: 1, ..Group::default() };
    type Change = fn(&mut World, Entity);
    let changes: [(Change, Change); 2] = [
        (
            |world, table| _ = world.entity_mut(table).insert(Disabled),
            |world, table| _ = world.entity_mut(table).remove::<Disabled>(),
        ),
        (
            |world, table| _ = world.entity_mut(table).remove::<Group>(),
            |world, table| {
                _ = world.entity_mut(table).insert(Group { max_lines: 1, ..Group::default() });
            },
        ),
    ];
    for (leave, back) in changes {
        let (mut app, table, _) = table(&engine(), group);
        say(&mut app, table, "Odo?");
        updates(&mut app, 3);
        leave(app.world_mut(), table);
        updates(&mut app, 30);
        back(app.world_mut(), table);
        say(&mut app, table, "Ada?");
        silence(&mut app);
        assert_eq!(heard(&app).lines.last().unwrap(), "Ada: Ada says a few words more.");
    }
    // A member that speaks moves to another table, and is asked there.
    let (mut app, first, members) = table(&engine(), group);
    let second = app.world_mut().spawn(group).id();
    say(&mut app, first, "Odo?");
    updates(&mut app, 3);
    app.world_mut().entity_mut(members[1]).insert(MemberOf(second));
    say(&mut app, second, "Odo?");
    run_until(&mut app, |app| heard(app).silences >= 2);
    say(&mut app, first, "Greta?");
    silence(&mut app);
    let of_odo = heard(&app).lines.iter().filter(|line| line.starts_with("Odo:")).count();
    assert_eq!(of_odo, 2, "{:?}", heard(&app).lines);
}

#[test]
fn a_game_may_answer_each_silence() {
    let (mut app, table, members) =
        table(&ScriptedEngine::new(|_, _| String::new()), Group::default());
    for member in members {
        app.world_mut().despawn(member);
    }
    app.add_observer(|silent: On<GroupSilent>, mut commands: Commands| {
        commands.trigger(GroupSay::new(silent.group, "Alice", "Anybody?"));
    });
    say(&mut app, table, "Anybody?");
    updates(&mut app, 20);
    assert_eq!(heard(&app).silences, 20, "one in each frame");
}

#[test]
fn equal_and_empty_names_silence_nobody() {
    let engine = ScriptedEngine::new(|_, _| ":) Hello there, my friend.".to_owned());
    let group = Group { max_lines: 1, ..Group::default() };
    let (mut app, table, members) = table(&engine, group);
    for member in &members[..2] {
        app.world_mut().entity_mut(*member).insert(Name::new("Guard"));
    }
    for (name, text) in [("", "Guard!"), (" \n", "Ada!"), ("Ada", "Ada!")] {
        let lines = heard(&app).lines.len();
        app.world_mut().trigger(GroupSay::new(table, name, text));
        silence(&mut app);
        assert_eq!(heard(&app).lines.len(), lines + 2, "{:?}", heard(&app).lines);
    }
    // With its own name in front.
    let engine = ScriptedEngine::new(|_, _| "Guard: Hello there, my friend.".to_owned());
    let (mut app, table, members) =
        self::table(&engine, Group { begins_with_name: false, ..group });
    for member in members {
        app.world_mut().entity_mut(member).insert(Name::new("Guard"));
    }
    app.world_mut().trigger(GroupSay::new(table, "Guard", "Hello!"));
    silence(&mut app);
    assert_eq!(heard(&app).lines[1], "Guard: Hello there, my friend.");
}

#[test]
fn a_question_that_is_asked_again_is_answered_again() {
    let engine = ScriptedEngine::new(|_, _| "Ha ha! A sword costs 40 silver.".to_owned());
    let (mut app, table, _) = table(&engine, Group { max_lines: 1, ..Group::default() });
    for _ in 0..3 {
        say(&mut app, table, "Greta, what does a sword cost?");
        silence(&mut app);
        assert_eq!(heard(&app).lines.last().unwrap(), "Greta: Ha ha! A sword costs 40 silver.");
    }
}

#[test]
fn a_line_that_was_suppressed_is_not_memorized() {
    let replies = AtomicUsize::new(0);
    let engine = ScriptedEngine::new(move |_, _| match replies.fetch_add(1, Ordering::Relaxed) {
        0..3 => "Did you see the smoke over the mill?".to_owned(),
        _ => "I have no idea what it was.".to_owned(),
    });
    let (mut app, table, members) = table(&engine, Group { max_lines: 2, ..Group::default() });
    app.add_plugins(WallaMemoryPlugin::default().without_embedding_model());
    for member in &members {
        app.world_mut().entity_mut(*member).insert(Memorizes::default());
    }
    say(&mut app, table, "Greta, what is new?");
    silence(&mut app);
    updates(&mut app, 3);
    let smoke = |member: Entity| {
        let memory = app.world().get::<AgentMemory>(member).unwrap();
        memory.iter().filter(|(_, entry)| entry.text.contains("I said: \"Did you")).count()
    };
    assert_eq!(members.iter().map(|member| smoke(*member)).sum::<usize>(), 1, "Greta's alone");
}

#[test]
fn groups_do_not_hang_in_random_evenings() {
    for seed in 0..30 {
        let mut dice = Dice::new(seed);
        let engine = ScriptedEngine::new(|persona, heard| match heard.len() % 6 {
            0 => String::new(),
            1 => "*nods*".to_owned(),
            2 => "Alice: hm. Well, yes, it is so".to_owned(),
            3 => "Did you see the smoke over the mill? Yes".to_owned(),
            4 => format!("Odo: I see {persona}"),
            _ => format!("{persona}: I see it. And more words about it"),
        });
        let engine = engine.acting(|_, heard| {
            let calls = (heard.len() % 4 == 0).then(|| ("hand".to_owned(), "{}".to_owned()));
            calls.into_iter().collect()
        });
        let group = Group { interrupts: seed % 2 == 0, ..Group::default() };
        let (mut app, table, mut members) = table(&engine, group);
        app.add_observer(|call: On<AgentCalled>, mut commands: Commands| {
            let text = "Bought it.".into();
            commands.trigger(ActionResult { agent: call.agent, id: call.call.id, text });
        });
        let parts = || (AgentActions::new().allow::<Hand>(), AgentCues(Cues::new()));
        for member in &members {
            app.world_mut().entity_mut(*member).insert(parts());
        }
        for _ in 0..15 {
            let place = dice.throw(4) as usize;
            let member = members[place];
            match dice.throw(12) {
                0..=2 => {
                    let texts =
                        ["Odo?", "What is new here today?", "", "Greta, Ada and so on", "abcd"];
                    say(&mut app, table, texts[dice.throw(5) as usize]);
                }
                3 => ask(&mut app, member, "a direct question"),
                4 => app.world_mut().trigger(Cancel::new(member)),
                5 => app.world_mut().get_mut::<Conversation>(member).unwrap().clear(),
                6 => {
                    app.world_mut().despawn(member);
                    let name = NAMES[place];
                    let agent = (Name::new(name), Agent::persona(name), MemberOf(table), parts());
                    members[place] = app.world_mut().spawn(agent).id();
                }
                7 => app.world_mut().trigger(Ask::again(member)),
                8 => {
                    _ = app
                        .world_mut()
                        .entity_mut(member)
                        .remove::<MemberOf>()
                        .insert(MemberOf(table));
                }
                9 => {
                    app.world_mut()
                        .get_mut::<Conversation>(member)
                        .unwrap()
                        .overhear("Bob", "psst");
                }
                _ => {}
            }
            updates(&mut app, dice.throw(6) as usize);
        }
        updates(&mut app, 50);
        say(&mut app, table, "So, what now, all of you?");
        let silences = heard(&app).silences;
        let is_silent = (0..400).any(|_| {
            app.update();
            heard(&app).silences > silences
        });
        assert!(is_silent, "seed {seed}: {:?}", heard(&app).lines);
    }
}
