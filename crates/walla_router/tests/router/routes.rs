//! The engine of each ask, and the events for the host.

use std::time::{Duration, Instant};

use walla_router::{EnginesError, Health, HealthRules, Router, RouterOptions};
use walla_runtime::{
    AfterFailure, AgentId, AgentSpec, AskOptions, CacheError, CacheTicket, Capabilities, Command,
    Constraint, ConversationEdit, EngineClient, EngineState, Event, FinishReason, Prompt,
    ReplyError, ReplyEvent, ReplyId, ReplyInProgress, Route, Speaker, Turn,
};

use crate::talker::{Conduct, Talker};

struct Rig {
    router: Router,
    a: Talker,
    b: Talker,
    events: Vec<Event>,
}

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// A router with the engines `a` (the default) and `b`.
fn rig() -> Rig {
    rig_with(LONG)
}

/// A failed engine is tried again after this wait.
fn rig_with(wait: Duration) -> Rig {
    let mut options = RouterOptions::new("a");
    options.health = HealthRules { wait, ..HealthRules::default() };
    let router = Router::new(options);
    let (a, b) = (Talker::new("a"), Talker::new("b"));
    router.engines().add("a", a.client()).expect("new");
    router.engines().add("b", b.client()).expect("new");
    Rig { router, a, b, events: Vec::new() }
}

/// `b` takes over after a failure. No answer is late, also on a busy machine.
fn hybrid() -> Route {
    Route::engine("a").or("b", LONG)
}

impl Rig {
    fn send(&self, command: Command) {
        assert!(self.router.try_send(command).is_ok());
    }

    fn agent(&self, route: Route) -> AgentId {
        let agent = AgentId::unique();
        let mut spec = AgentSpec::new("p");
        spec.route = route;
        self.send(Command::AddAgent { agent, spec: Box::new(spec) });
        agent
    }

    fn route(&self, agent: AgentId, route: Route) {
        let mut spec = AgentSpec::new("p");
        spec.route = route;
        self.send(Command::ChangeAgent { agent, spec: Box::new(spec) });
    }

    fn ask(&self, agent: AgentId, question: &str) -> ReplyId {
        self.ask_with(agent, question, AskOptions::default())
    }

    fn ask_with(&self, agent: AgentId, question: &str, options: AskOptions) -> ReplyId {
        let (reply_id, prompt) = (ReplyId::unique(), Prompt::Chat(question.into()));
        self.send(Command::Ask { agent, reply_id, prompt, options });
        reply_id
    }

    fn ask_prompt(&self, agent: AgentId, prompt: Prompt) -> ReplyId {
        let (reply_id, options) = (ReplyId::unique(), AskOptions::default());
        self.send(Command::Ask { agent, reply_id, prompt, options });
        reply_id
    }

    fn frame(&mut self) {
        self.router.frame();
        while self.router.try_recv_many(7, &mut self.events) > 0 {}
    }

    fn end_of(&self, reply_id: ReplyId) -> Option<&ReplyEvent> {
        let of_reply = |event: &&Event| event.reply_id == reply_id && event.what.is_terminal();
        let mut ends = self.events.iter().filter(of_reply).map(|event| &event.what);
        let end = ends.next();
        assert!(ends.next().is_none(), "ended twice");
        end
    }

    /// Runs frames until the reply has ended. Returns its text and its end.
    fn finish(&mut self, reply_id: ReplyId) -> (String, ReplyEvent) {
        let begin = Instant::now();
        while self.end_of(reply_id).is_none() {
            assert!(begin.elapsed() < LONG, "no end");
            self.frame();
            std::thread::sleep(Duration::from_millis(1));
        }
        (self.text(reply_id), self.end_of(reply_id).expect("ended").clone())
    }

    fn text(&self, reply_id: ReplyId) -> String {
        let mut started = 0;
        let mut text = String::new();
        for event in self.events.iter().filter(|event| event.reply_id == reply_id) {
            match &event.what {
                ReplyEvent::Started { .. } => started += 1,
                ReplyEvent::Delta { text: delta, .. } => {
                    assert_eq!(started, 1, "text before its begin");
                    text.push_str(delta);
                }
                _ => {}
            }
        }
        assert!(started <= 1, "begun twice");
        text
    }

    fn health(&self, name: &str) -> Health {
        self.router.engines().get(name).expect("exists").health
    }
}

fn is_finished(end: &ReplyEvent) -> bool {
    matches!(end, ReplyEvent::Finished { reason: FinishReason::EndOfTurn, .. })
}

#[test]
fn an_agent_takes_its_conversation_to_another_engine() {
    let mut rig = rig();
    let agent = rig.agent(Route::default());
    assert!(rig.a.knows(agent) && !rig.b.knows(agent));
    let first = rig.ask(agent, "one?");
    let (text, end) = rig.finish(first);
    assert!(is_finished(&end));
    assert_eq!(rig.router.engines().engine_of(agent).as_deref(), Some("a"));
    rig.route(agent, Route::engine("b"));
    // At once, so that the new engine can prepare it.
    assert!(rig.b.knows(agent) && !rig.a.knows(agent));
    assert_eq!(rig.b.turns(agent), ["one?", &text]);
    let second = rig.ask(agent, "two?");
    let (more, _) = rig.finish(second);
    assert_eq!(rig.b.turns(agent), ["one?", &text, "two?", &more]);
    assert_eq!(rig.router.engines().engine_of(agent).as_deref(), Some("b"));
}

#[test]
fn conversations_are_rewound_edited_copied_and_asked_again() {
    let mut rig = rig();
    let agent = rig.agent(Route::default());
    let mut said = Vec::new();
    for question in ["one?", "two?"] {
        let reply_id = rig.ask(agent, question);
        said.push(rig.finish(reply_id).0);
    }
    let edit = |edit| Command::EditConversation { agent, edit };
    rig.send(edit(ConversationEdit::Rewind { turns: 1 }));
    rig.send(edit(ConversationEdit::Text { turns_after: 2, text: "ONE?".into() }));
    assert_eq!(rig.b.turns(agent), [""; 0]);
    let reply_id = rig.ask_prompt(agent, Prompt::Continue);
    let (text, _) = rig.finish(reply_id);
    assert_eq!(rig.a.turns(agent), ["ONE?", &said[0], "two?", &text]);
    let reply_id = rig.ask_prompt(agent, Prompt::Again);
    let (again, _) = rig.finish(reply_id);
    let now = ["ONE?", &said[0], "two?", &again];
    assert_eq!(rig.a.turns(agent), now);
    // A copy, on the other engine too.
    let copy = AgentId::unique();
    rig.send(Command::ForkAgent { agent: copy, source: agent, spec: None });
    assert_eq!(rig.a.turns(copy), now);
    rig.route(copy, Route::engine("b"));
    let other = rig.agent(Route::engine("b"));
    let edit = ConversationEdit::CopyOf { source: copy };
    rig.send(Command::EditConversation { agent: other, edit });
    for agent in [copy, other] {
        assert_eq!(rig.b.turns(agent), now);
        let reply_id = rig.ask(agent, "three?");
        assert!(is_finished(&rig.finish(reply_id).1));
    }
    assert_eq!(rig.a.turns(agent), now, "the source has its own future");
    let nobody = AgentId::unique();
    rig.send(Command::ForkAgent { agent: nobody, source: AgentId::unique(), spec: None });
    let reply_id = rig.ask(nobody, "?");
    let (_, end) = rig.finish(reply_id);
    assert_eq!(end, ReplyEvent::Failed(ReplyError::UnknownAgent));
    let silent = rig.agent(Route::default());
    let reply_id = rig.ask_prompt(silent, Prompt::Again);
    let (_, end) = rig.finish(reply_id);
    assert_eq!(end, ReplyEvent::Failed(ReplyError::NoReply));
}

#[test]
fn a_rewind_ends_the_reply_in_progress_whose_text_is_a_turn() {
    let mut rig = rig();
    rig.a.conducts(Conduct::Speak(50));
    let agent = rig.agent(Route::default());
    let speaking = rig.ask(agent, "one?");
    let waiting = rig.ask(agent, "two?");
    while rig.text(speaking).is_empty() {
        rig.frame();
    }
    rig.send(Command::EditConversation { agent, edit: ConversationEdit::Rewind { turns: 1 } });
    for reply_id in [speaking, waiting] {
        let (_, end) = rig.finish(reply_id);
        assert!(matches!(end, ReplyEvent::Finished { reason: FinishReason::Cancelled, .. }));
    }
    rig.a.conducts(Conduct::Speak(2));
    let reply_id = rig.ask_prompt(agent, Prompt::Continue);
    let (text, _) = rig.finish(reply_id);
    assert_eq!(rig.a.turns(agent), ["one?", &text]);
}

#[test]
fn a_reply_in_progress_is_finished_or_cancelled_when_the_engine_changes() {
    for (setting, is_whole) in [(ReplyInProgress::Finish, true), (ReplyInProgress::Cancel, false)] {
        let mut rig = rig();
        rig.a.conducts(Conduct::Speak(5));
        let agent = rig.agent(Route::default());
        let reply = rig.ask(agent, "one?");
        let next = rig.ask(agent, "two?");
        (0..3).for_each(|_| rig.frame());
        let mut route = Route::engine("b");
        route.reply_in_progress = setting;
        rig.route(agent, route);
        let (text, end) = rig.finish(reply);
        assert_eq!(is_finished(&end), is_whole);
        assert_eq!(text.split_whitespace().count(), if is_whole { 5 } else { 2 });
        let (_, end) = rig.finish(next);
        assert!(is_finished(&end));
        let seen = rig.b.seen();
        assert_eq!((seen.len(), &seen[0].turns), (1, &vec!["one?".to_owned(), text]));
        assert!(!rig.a.knows(agent));
    }
}

#[test]
fn the_substitute_takes_over_after_the_deadline() {
    let mut rig = rig();
    rig.a.conducts(Conduct::Stall);
    let agent = rig.agent(Route::engine("a").or("b", Duration::from_millis(20)));
    let begin = Instant::now();
    let reply = rig.ask(agent, "one?");
    while rig.b.seen().is_empty() {
        assert!(begin.elapsed() < LONG);
        assert!(rig.events.is_empty(), "the begin is held back");
        rig.frame();
    }
    let waited = begin.elapsed();
    assert!(waited >= Duration::from_millis(19), "{waited:?}");
    let (text, end) = rig.finish(reply);
    assert!(is_finished(&end) && !text.is_empty());
    let ReplyEvent::Finished { usage, .. } = end else { panic!() };
    // The wait is part of the times.
    assert!(usage.first_token_micros > 19_000 && usage.total_micros > 19_000, "{usage:?}");
    assert_eq!(usage.first_token.waiting_micros + 1, usage.first_token_micros);
    let status = rig.router.engines().get("a").expect("exists");
    assert_eq!((status.moved, status.replies), (1, 0));
    // The first engine has cancelled it, and gets the conversation before its next ask.
    rig.a.conducts(Conduct::Speak(1));
    rig.route(agent, hybrid());
    let next = rig.ask(agent, "two?");
    rig.finish(next);
    assert_eq!(rig.a.seen()[1].turns, ["one?", &text]);
}

#[test]
fn the_substitute_takes_over_before_the_first_output_only() {
    for (words, continues) in [(0, false), (2, false), (2, true)] {
        let mut rig = rig();
        rig.a.conducts(Conduct::Fail(words));
        let mut route = hybrid();
        route.after_failure = if continues { AfterFailure::Continue } else { AfterFailure::End };
        let agent = rig.agent(route);
        let reply = rig.ask(agent, "one?");
        let (text, end) = rig.finish(reply);
        assert_eq!(is_finished(&end), words == 0 || continues, "{words} {continues}");
        let said = text.split_whitespace().count();
        assert_eq!(said, if continues { 4 } else { 2 });
        let seen = rig.b.seen();
        assert_eq!(seen.len(), usize::from(words == 0 || continues));
        if let Some(seen) = seen.first() {
            assert_eq!((seen.turns.len(), seen.question.as_deref()), (0, Some("one?")));
            let opening = seen.opening.as_deref().unwrap_or_default();
            assert!(text.starts_with(opening) && opening.is_empty() != continues);
        }
        // In each case the conversation has the whole text.
        rig.a.conducts(Conduct::Speak(1));
        let next = rig.ask(agent, "two?");
        rig.finish(next);
        assert_eq!(rig.a.seen()[1].turns, ["one?", &text]);
    }
}

#[test]
fn a_call_or_a_constraint_is_not_continued() {
    let mut rig = rig();
    rig.a.conducts(Conduct::Fail(1));
    let mut route = hybrid();
    route.after_failure = AfterFailure::Continue;
    let agent = rig.agent(route);
    let options = AskOptions::constraint(Constraint::regex("a*"));
    let reply = rig.ask_with(agent, "one?", options);
    let (_, end) = rig.finish(reply);
    assert!(matches!(end, ReplyEvent::Failed(ReplyError::Device(_))), "{end:?}");
}

#[test]
fn repeated_failures_send_asks_straight_to_the_substitute() {
    let mut rig = rig();
    rig.a.conducts(Conduct::Fail(0));
    let agent = rig.agent(hybrid());
    for asks in 1..=5 {
        let reply = rig.ask(agent, "?");
        let (_, end) = rig.finish(reply);
        assert!(is_finished(&end));
        assert_eq!(rig.a.seen().len(), asks.min(3));
    }
    assert_eq!(rig.health("a"), Health::Unavailable);
    // An agent without a substitute asks it, and gets its error.
    let alone = rig.agent(Route::default());
    let reply = rig.ask(alone, "?");
    assert!(matches!(rig.finish(reply).1, ReplyEvent::Failed(ReplyError::Device(_))));
}

#[test]
fn an_engine_that_failed_is_tried_again_after_a_wait() {
    let mut rig = rig_with(Duration::from_millis(20));
    rig.a.conducts(Conduct::Fail(0));
    let agent = rig.agent(hybrid());
    let asked = |rig: &mut Rig| {
        let reply = rig.ask(agent, "?");
        assert!(is_finished(&rig.finish(reply).1));
        rig.health("a")
    };
    while asked(&mut rig) != Health::Unavailable {}
    rig.a.conducts(Conduct::Speak(1));
    std::thread::sleep(Duration::from_millis(21));
    let before = rig.a.seen().len();
    // The wait may have grown on a busy machine, where more asks failed.
    let begin = Instant::now();
    while asked(&mut rig) != Health::Available {
        assert!(begin.elapsed() < LONG, "{:?}", rig.health("a"));
    }
    assert!(rig.a.seen().len() > before);
    let before = rig.a.seen().len();
    asked(&mut rig);
    assert_eq!(rig.a.seen().len(), before + 1);
}

#[test]
fn errors_of_an_ask_are_no_failures_of_the_engine() {
    let mut rig = rig();
    rig.a.set(|a| a.capabilities = Capabilities::CHAT);
    let agent = rig.agent(hybrid());
    for _ in 0..5 {
        let options = AskOptions::constraint(Constraint::regex("a*"));
        let reply = rig.ask_with(agent, "?", options);
        assert!(is_finished(&rig.finish(reply).1));
    }
    assert_eq!((rig.health("a"), rig.a.seen().len()), (Health::Available, 0));
    assert_eq!(rig.b.seen().len(), 5);
}

#[test]
fn an_engine_that_ends_loses_no_ask() {
    let mut rig = rig();
    rig.a.conducts(Conduct::Speak(50));
    let (hybrid, alone) = (rig.agent(hybrid()), rig.agent(Route::default()));
    let asks: Vec<_> = (0..3).flat_map(|_| [rig.ask(hybrid, "?"), rig.ask(alone, "?")]).collect();
    rig.frame();
    rig.a.die();
    for (at, ask) in asks.into_iter().enumerate() {
        let (_, end) = rig.finish(ask);
        match at % 2 {
            0 => assert!(is_finished(&end), "{end:?}"),
            _ => assert!(matches!(end, ReplyEvent::Failed(ReplyError::EngineGone(_))), "{end:?}"),
        }
    }
    assert!(!rig.router.state().is_over());
}

#[test]
fn a_dropped_router_leaves_no_client() {
    let rig = rig();
    let engines = rig.router.engines().clone();
    drop(rig.router);
    assert_eq!([&rig.a, &rig.b].map(|talker| std::sync::Arc::strong_count(&talker.0)), [1, 1]);
    assert!(engines.list().is_empty());
    assert_eq!(engines.add("c", Talker::new("c").client()), Err(EnginesError::Stopped));
}

#[test]
fn the_state_is_that_of_the_default_engine_or_of_any_other() {
    let ready = |router: &Router| matches!(router.state(), EngineState::Ready);
    let router = Router::new(RouterOptions::new("a"));
    assert!(matches!(router.state(), EngineState::Loading { .. }));
    let (a, b) = (Talker::new("a"), Talker::new("b"));
    b.set(|b| b.state = EngineState::Loading { fraction: 0.5 });
    router.engines().add("b", b.client()).expect("new");
    assert!(matches!(router.state(), EngineState::Loading { fraction: 0.5 }));
    b.set(|b| b.state = EngineState::Ready);
    assert!(ready(&router));
    a.set(|a| a.state = EngineState::Loading { fraction: 0.25 });
    router.engines().add("a", a.client()).expect("new");
    assert!(matches!(router.state(), EngineState::Loading { fraction: 0.25 }));
    a.die();
    assert!(ready(&router));
    b.die();
    assert!(matches!(router.state(), EngineState::Loading { .. }), "an engine may be added");
    router.stop();
    assert!(matches!(router.state(), EngineState::Stopped));
    let agent = AgentId::unique();
    let refused = router.try_send(Command::RemoveAgent { agent });
    assert!(refused.is_err_and(|error| !error.is_full()));
}

#[test]
fn unknown_names_are_errors() {
    let mut rig = rig();
    let engines = rig.router.engines().clone();
    let exists = engines.add("a", Talker::new("c").client());
    assert_eq!(exists, Err(EnginesError::Exists("a".into())));
    assert_eq!(engines.add("", Talker::new("c").client()), Err(EnginesError::NoName));
    let unknown = Err(EnginesError::Unknown("c".into()));
    assert_eq!(engines.replace("c", Talker::new("c").client()), unknown);
    assert_eq!(engines.remove("c", ReplyInProgress::Cancel), unknown);
    assert_eq!(engines.set_weight("c", 1.0), unknown);
    let agent = rig.agent(Route::engine("c"));
    let reply = rig.ask(agent, "?");
    let (_, end) = rig.finish(reply);
    assert_eq!(end, ReplyEvent::Failed(ReplyError::NoEngine { name: "c".into() }));
    // The engine may come later.
    let c = Talker::new("c");
    engines.add("c", c.client()).expect("new");
    assert!(c.knows(agent));
    let reply = rig.ask(agent, "?");
    assert!(is_finished(&rig.finish(reply).1));
    // With a substitute an unknown engine is no error.
    let agent = rig.agent(Route::engine("d").or("b", None));
    let reply = rig.ask(agent, "?");
    assert!(is_finished(&rig.finish(reply).1));
}

#[test]
fn engines_are_removed_and_replaced_within_replies() {
    let mut rig = rig();
    let engines = rig.router.engines().clone();
    rig.a.conducts(Conduct::Speak(6));
    let agent = rig.agent(Route::default());
    let reply = rig.ask(agent, "one?");
    (0..3).for_each(|_| rig.frame());
    // While its successor loads, the old engine answers.
    let new = Talker::new("new");
    new.set(|new| new.state = EngineState::Loading { fraction: 0.5 });
    engines.replace("a", new.client()).expect("exists");
    rig.frame();
    let status = engines.get("a").expect("exists");
    assert!(matches!(status.successor, Some(EngineState::Loading { .. })));
    new.set(|new| new.state = EngineState::Ready);
    rig.frame();
    let status = engines.get("a").expect("exists");
    assert!(status.successor.is_none() && matches!(status.state, EngineState::Ready));
    let next = rig.ask(agent, "two?");
    let (text, end) = rig.finish(reply);
    assert!(is_finished(&end));
    assert_eq!(text.split_whitespace().count(), 6);
    let (_, end) = rig.finish(next);
    assert!(is_finished(&end));
    assert_eq!(new.seen()[0].turns, ["one?", &text]);
    // Only the test's handles are left of the old engine.
    while engines.unloading() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(std::sync::Arc::strong_count(&rig.a.0), 1);
    // A failed successor changes nothing and is dropped by the next one.
    let broken = Talker::new("broken");
    broken.die();
    engines.replace("a", broken.client()).expect("exists");
    let reply = rig.ask(agent, "three?");
    assert!(is_finished(&rig.finish(reply).1));
    assert!(engines.get("a").expect("exists").successor.is_none());
    let changes = engines.take_changes();
    let changes: Vec<_> = changes.iter().map(|(name, state)| (&**name, state.is_over())).collect();
    assert_eq!(changes, [("a", false), ("b", false), ("a", false), ("a", true)]);
    // Removed: its replies end, later asks fail.
    assert!(engines.take_changes().is_empty());
    new.conducts(Conduct::Stall);
    let reply = rig.ask(agent, "four?");
    (0..2).for_each(|_| rig.frame());
    engines.remove("a", ReplyInProgress::Cancel).expect("exists");
    let (_, end) = rig.finish(reply);
    assert!(matches!(end, ReplyEvent::Finished { reason: FinishReason::Cancelled, .. }));
    let reply = rig.ask(agent, "five?");
    let (_, end) = rig.finish(reply);
    assert_eq!(end, ReplyEvent::Failed(ReplyError::NoEngine { name: "a".into() }));
    rig.frame();
    while engines.unloading() > 0 {
        std::thread::yield_now();
    }
    let handles = [&new.0, &broken.0].map(std::sync::Arc::strong_count);
    assert_eq!(handles, [1, 1]);
}

#[test]
fn a_pause_stops_deadlines() {
    // On a busy machine a deadline may pass before the pause or behind it, so the times grow.
    let stops = |deadline: Duration| {
        let mut rig = rig();
        rig.a.conducts(Conduct::Stall);
        let agent = rig.agent(Route::engine("a").or("b", deadline));
        rig.ask(agent, "?");
        rig.router.set_paused(true);
        std::thread::sleep(deadline * 3 / 2);
        rig.frame();
        rig.router.set_paused(false);
        rig.frame();
        let is_stopped = rig.b.seen().is_empty();
        std::thread::sleep(deadline);
        let is_due = rig.router.max_wait().is_some_and(|wait| wait.is_zero());
        assert!(is_due || !is_stopped);
        rig.frame();
        assert_eq!(rig.b.seen().len(), 1);
        is_stopped
    };
    assert!([50, 400, 3_200].into_iter().map(Duration::from_millis).any(stops));
}

#[test]
fn turns_and_heard_parts_reach_every_engine() {
    let mut rig = rig();
    let agent = rig.agent(hybrid());
    let turn = |text: &str| Turn::new(Speaker::Observation, text);
    rig.send(Command::AppendTurns { agent, turns: vec![turn("rain")] });
    let first = rig.ask(agent, "one?");
    rig.send(Command::AppendTurns { agent, turns: vec![turn("snow")] });
    let second = rig.ask(agent, "two?");
    rig.send(Command::AppendTurns { agent, turns: vec![turn("sun")] });
    let (one, _) = rig.finish(first);
    let (two, _) = rig.finish(second);
    assert_eq!(rig.a.turns(agent), ["rain", "one?", &one, "snow", "two?", &two, "sun"]);
    rig.send(Command::CancelHeard { agent, reply_id: second, heard_bytes: 3 });
    rig.send(Command::CancelHeard { agent, reply_id: first, heard_bytes: 0 });
    assert_eq!(rig.a.turns(agent), ["rain", "snow", "two?", &two[..3], "sun"]);
    rig.send(Command::SetConversation { agent, turns: vec![turn("night")] });
    assert_eq!(rig.a.turns(agent), ["night"]);
    rig.send(Command::RemoveAgent { agent });
    let reply = rig.ask(agent, "three?");
    assert_eq!(rig.finish(reply).1, ReplyEvent::Failed(ReplyError::UnknownAgent));
    assert!(!rig.a.knows(agent) && !rig.b.knows(agent));
}

#[test]
fn a_full_queue_of_one_engine_does_not_delay_the_others() {
    let mut rig = rig();
    rig.a.set(|a| a.refusals = u32::MAX);
    let (slow, quick) = (rig.agent(Route::default()), rig.agent(Route::engine("b")));
    let waiting = rig.ask(slow, "?");
    let reply = rig.ask(quick, "?");
    assert!(is_finished(&rig.finish(reply).1));
    // The queue of commands for the slow one is bounded.
    let turn = Turn::new(Speaker::User, "x");
    let more: Vec<_> = (0..1_100).map(|_| rig.agent(Route::engine("b"))).collect();
    for _ in 0..2_000 {
        let turns = vec![turn.clone()];
        let _sent_or_full = rig.router.try_send(Command::SetConversation { agent: slow, turns });
    }
    let full = rig.router.try_send(Command::SetConversation { agent: slow, turns: vec![turn] });
    assert!(full.is_err());
    let reply = rig.ask(more[0], "?");
    assert!(is_finished(&rig.finish(reply).1));
    rig.a.set(|a| a.refusals = 0);
    rig.finish(waiting);
}

/// An engine that takes the place of another one ends with the router.
#[test]
fn a_router_ends_while_an_engine_is_replaced() {
    let rig = rig();
    let next = Talker::new("a");
    rig.router.engines().replace("a", next.client()).expect("it is there");
    rig.router.stop();
    let begin = Instant::now();
    while !rig.router.is_ended() {
        assert!(begin.elapsed() < LONG, "no end");
        rig.router.try_recv_many(7, &mut Vec::new());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn caches_are_copied_by_the_engine_of_the_agent() {
    let mut rig = rig();
    let agents = ["a", "b"].map(|name| rig.agent(Route::engine(name)));
    let copy = |rig: &mut Rig, agent, (ticket, job): (CacheTicket, walla_runtime::CacheJob)| {
        rig.send(Command::CopyCache { agent, ticket });
        rig.frame();
        job.result().expect("it has ended")
    };
    for (agent, name) in agents.into_iter().zip(["a", "b"]) {
        let expected = Err(CacheError::Device(name.into()));
        assert_eq!(copy(&mut rig, agent, CacheTicket::save("x")), expected);
        assert_eq!(copy(&mut rig, agent, CacheTicket::load("x")), expected);
    }
    let unknown = copy(&mut rig, AgentId::unique(), CacheTicket::save("x"));
    assert_eq!(unknown, Err(CacheError::UnknownAgent));
    // A reply in progress: it can be saved, and nothing can be loaded.
    rig.ask(agents[1], "Who?");
    assert_eq!(copy(&mut rig, agents[1], CacheTicket::load("x")), Err(CacheError::Asked));
    let saved = copy(&mut rig, agents[1], CacheTicket::save("x"));
    assert_eq!(saved, Err(CacheError::Device("b".into())));
}
