//! Observers run after all events of a frame are applied.

use crate::common::*;
use bevy_ecs::prelude::*;
use bevy_walla::ask::Prompt;
use bevy_walla::engine::EngineClient;
use bevy_walla::prelude::*;

/// The text of each reply at its end, in the conversation and in the speech.
#[derive(Resource, Default)]
struct Read(Vec<(Option<String>, String)>);

fn read(end: On<ReplyFinished>, agents: Query<(&Conversation, &Speech)>, mut read: ResMut<Read>) {
    let (talk, speech) = agents.get(end.agent).expect("the agent exists");
    let reply = talk.reply(end.reply_id).map(str::to_owned);
    read.0.push((reply, speech.text().to_owned()));
}

#[test]
fn an_observer_reads_a_reply_although_the_next_one_has_begun() {
    let engine = echo();
    let mut app = app(&engine);
    app.init_resource::<Read>().add_observer(read);
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "one");
    ask(&mut app, odo, "two");
    app.update();
    // Both replies are in one batch: the end of the first, and the begin of the second.
    (0..20).for_each(|_| engine.frame());
    app.update();
    let expected = ["Odo: one", "Odo: two"].map(|reply| (Some(reply.into()), "Odo: two".into()));
    assert_eq!(app.world().resource::<Read>().0, expected);
}

#[test]
fn a_raw_reply_is_not_in_the_conversation() {
    let engine = echo();
    let mut app = app(&engine);
    app.init_resource::<Read>().add_observer(read);
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "one");
    app.world_mut().trigger(Ask::new(odo, Prompt::Raw("Once upon".into())));
    updates(&mut app, 20);
    let replies: Vec<_> = app.world().resource::<Read>().0.iter().map(|(r, _)| r.clone()).collect();
    assert_eq!(replies, [Some("Odo: one".into()), None]);
    assert_eq!(log(&app).only("delta").concat(), "Odo:oneOdo:Onceupon");
}

#[test]
fn an_ask_as_a_message_triggers_no_observer() {
    #[derive(Resource, Default)]
    struct Asked(Vec<String>);
    let mut app = app(&echo());
    app.init_resource::<Asked>().add_observer(|ask: On<Ask>, mut asked: ResMut<Asked>| {
        asked.0.push(ask.prompt.text().to_owned());
    });
    let odo = spawn(&mut app, "Odo");
    app.world_mut().write_message(Ask::new(odo, "as a message"));
    ask(&mut app, odo, "as an event");
    updates(&mut app, 20);
    assert_eq!(app.world().resource::<Asked>().0, ["as an event"]);
    let expected = ["as a message", "Odo: as a message", "as an event", "Odo: as an event"];
    assert_eq!(turns(&app, odo), expected);
}
