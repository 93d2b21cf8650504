//! Hosts that misbehave: observers that panic, thousands of asks in a frame, clients with unknown
//! events, apps that come and go.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::*;
use crate::own_thread::processor_time;
use bevy_ecs::prelude::*;
use bevy_walla::ask::Cancel;
use bevy_walla::diagnostics::EngineStats;
use bevy_walla::engine::{
    AgentId, Capabilities, Command, EngineClient, EngineState, Event as EngineEvent, ReplyEvent,
    TrySendError,
};
use bevy_walla::engines::EngineSetup;
use bevy_walla::prelude::*;
use bevy_walla::reply::{FinishReason, InlineText, ReplyError, ReplyId, Usage};
use bevy_walla::scripted::ScriptedEngine;

/// Filters of the game fail, and its error handler ignores that.
#[test]
fn failing_observers_lose_no_event() {
    let engine = echo();
    let mut app = app(&engine);
    app.set_error_handler(bevy_ecs::error::ignore);
    app.add_observer(|_: On<ReplyStarted>| -> Result { Err("the game's filter".into()) })
        .add_observer(|_: On<ReplyDelta>| -> Result { Err("the game's filter".into()) })
        .add_observer(|_: On<ReplySentence>| -> Result { Err("the game's filter".into()) })
        .add_observer(|_: On<ReplyFinished>| -> Result { Err("the game's filter".into()) });
    let agents: Vec<_> = (0..3).map(|_| spawn(&mut app, "A")).collect();
    for &agent in &agents {
        ask(&mut app, agent, "x");
        ask(&mut app, agent, "y");
    }
    updates(&mut app, 20);
    for &agent in &agents {
        assert_eq!(turns(&app, agent), ["x", "A: x", "y", "A: y"]);
    }
    assert_eq!(log(&app).only("started").len(), 6);
    assert_eq!(log(&app).only("finished"), ["EndOfTurn"; 6]);
}

/// A panic in an observer ends its app: Bevy has taken the schedule out of the world. Dropping that
/// app is quiet, and another app on the same engine loses nothing.
#[test]
fn an_app_ended_by_a_panic_does_not_affect_other_apps() {
    for panics_at in 0..4 {
        let engine = echo();
        let mut other = app(&engine);
        let odo = spawn(&mut other, "Odo");
        ask(&mut other, odo, "x");
        let mut app = app(&engine);
        match panics_at {
            0 => app.add_observer(|_: On<ReplyStarted>| panic!("the game's filter")),
            1 => app.add_observer(|_: On<ReplyDelta>| panic!("the game's filter")),
            2 => app.add_observer(|_: On<ReplySentence>| panic!("the game's filter")),
            _ => app.add_observer(|_: On<ReplyFinished>| panic!("the game's filter")),
        };
        let agent = spawn(&mut app, "A");
        ask(&mut app, agent, "x");
        ask(&mut app, agent, "y");
        let is_caught = (0..12).any(|_| catch_unwind(AssertUnwindSafe(|| app.update())).is_err());
        assert!(is_caught, "{panics_at}");
        other.update();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(app))).is_ok());
        updates(&mut other, 8);
        ask(&mut other, odo, "y");
        updates(&mut other, 8);
        assert_eq!(log(&other).only("finished"), ["EndOfTurn"; 2]);
    }
}

/// An observer that blocks delays the game's frame and nothing else: no event is lost, and the text
/// is whole.
#[test]
fn a_blocking_observer_loses_no_event() {
    let engine = echo();
    let mut app = app(&engine);
    app.add_observer(|_: On<ReplyDelta>| std::thread::sleep(Duration::from_millis(2)));
    let odo = spawn(&mut app, "Odo");
    ask(&mut app, odo, "one two three");
    updates(&mut app, 12);
    assert_eq!(log(&app).only("delta").concat(), "Odo:onetwothree");
    assert_eq!(log(&app).only("finished"), ["EndOfTurn"]);
}

#[test]
fn ten_thousand_asks_in_one_frame_are_bounded_and_all_end() {
    let engine = echo();
    let mut app = app(&engine);
    let odo = spawn(&mut app, "Odo");
    updates(&mut app, 2);
    for i in 0..10_000 {
        ask(&mut app, odo, if i % 2 == 0 { "x" } else { "y" });
    }
    let mut frames = 0;
    while log(&app).ends() < 10_000 {
        app.update();
        frames += 1;
        assert!(frames < 200, "{} have ended", log(&app).ends());
    }
    let max_asks = WallaSettings::default().max_asks_per_agent as usize;
    assert_eq!(log(&app).only("finished").len(), max_asks);
    let refused = log(&app).only("failed");
    assert_eq!(refused.len(), 10_000 - max_asks);
    assert!(refused.iter().all(|error| error.contains("asks of this agent are waiting")));
    let sent = engine.commands().iter().filter(|c| matches!(c, Command::Ask { .. })).count();
    assert_eq!(sent, max_asks);
}

/// Twice as many asks take twice as long, not four times.
#[test]
fn ask_time_does_not_depend_on_the_number_of_asks() {
    let time_of = |asks: usize| {
        let mut best = Duration::MAX;
        for _ in 0..5 {
            let mut app = app(&echo());
            let agents: Vec<_> = (0..asks / 4).map(|_| spawn(&mut app, "A")).collect();
            updates(&mut app, 2);
            let start = processor_time();
            for &agent in &agents {
                (0..4).for_each(|_| ask(&mut app, agent, "x"));
            }
            app.update();
            best = best.min(processor_time() - start);
        }
        best.as_secs_f64()
    };
    let (few, many) = (time_of(1_000), time_of(8_000));
    // 8 if it is linear, 64 if it is quadratic.
    assert!(many / few < 30.0, "{few} s for 1,000, {many} s for 8,000");
}

/// A client that reports events of unknown agents and replies between sound events.
struct Confused {
    inner: ScriptedEngine,
    client: Box<dyn EngineClient>,
    said: AtomicU64,
    /// Agents of the app.
    known: Mutex<Vec<AgentId>>,
}

impl Confused {
    fn nonsense(&self) -> Option<EngineEvent> {
        let number = self.said.fetch_add(1, Ordering::SeqCst);
        let mut text = InlineText::new();
        text.push("nonsense ");
        let usage = Usage::default();
        let what = match number % 4 {
            0 => ReplyEvent::Started { prompt_tokens: 1 },
            1 => ReplyEvent::Delta { text, tokens: 1 },
            2 => ReplyEvent::Finished { reason: FinishReason::EndOfTurn, usage },
            _ => ReplyEvent::Failed(ReplyError::UnknownAgent),
        };
        // Known agents with unknown replies as well.
        let known = self.known.lock().unwrap();
        let unknown = AgentId(u64::MAX - number);
        let known = known.get(number as usize % 3).copied().unwrap_or(unknown);
        let agent = if number % 8 < 4 { known } else { unknown };
        Some(EngineEvent { agent, reply_id: ReplyId(u64::MAX - number), what })
    }
}

impl EngineClient for Confused {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        if let Command::AddAgent { agent, .. } = &command {
            self.known.lock().unwrap().push(*agent);
        }
        self.client.try_send(command)
    }

    fn try_recv(&self) -> Option<EngineEvent> {
        // Eight unknown events, the events of the engine, then none, so that each frame ends.
        match self.said.load(Ordering::SeqCst) % 9 {
            8 => {
                let event = self.client.try_recv();
                if event.is_none() {
                    self.said.fetch_add(1, Ordering::SeqCst);
                }
                event
            }
            _ => self.nonsense(),
        }
    }

    fn frame(&self) {
        self.client.frame();
    }

    fn stop(&self) {
        self.client.stop();
    }

    fn capabilities(&self) -> Capabilities {
        self.client.capabilities()
    }

    fn state(&self) -> EngineState {
        self.client.state()
    }

    fn stats(&self) -> EngineStats {
        self.inner.stats()
    }
}

#[test]
fn unexpected_events_are_counted_and_dropped() {
    let engine = echo();
    let confused = engine.clone();
    let mut app = app_with(WallaPlugin::new(EngineSetup::client(move || {
        let client = confused.new_client()();
        Box::new(Confused {
            inner: confused.clone(),
            client,
            said: 0.into(),
            known: Mutex::default(),
        })
    })));
    let agents: Vec<_> = (0..3).map(|_| spawn(&mut app, "A")).collect();
    for &agent in &agents {
        ask(&mut app, agent, "x");
        ask(&mut app, agent, "y");
    }
    updates(&mut app, 40);
    for &agent in &agents {
        assert_eq!(turns(&app, agent), ["x", "A: x", "y", "A: y"]);
    }
    assert_eq!(log(&app).only("finished"), ["EndOfTurn"; 6]);
    assert_eq!(log(&app).only("failed"), [""; 0]);
    assert!(log(&app).0.iter().all(|line| !line.contains("nonsense")));
    let walla = app.world().resource::<Walla>();
    assert!(walla.events_unknown() > 100, "{}", walla.events_unknown());
    assert_eq!(walla.asks_waiting(), 0);
}

#[test]
fn a_correct_client_emits_no_unknown_event() {
    let engine = echo().endless();
    let mut app = app(&engine);
    let agents: Vec<_> = (0..4).map(|_| spawn(&mut app, "A")).collect();
    for &agent in &agents {
        ask(&mut app, agent, "x");
        ask(&mut app, agent, "y");
    }
    updates(&mut app, 6);
    app.world_mut().despawn(agents[0]);
    app.world_mut().trigger(Cancel::new(agents[1]));
    app.world_mut().entity_mut(agents[2]).remove::<Agent>();
    updates(&mut app, 10);
    assert_eq!(app.world().resource::<Walla>().events_unknown(), 0);
}

/// Leaving and entering play mode: apps come and go with agents in mid-reply, and the shared engine
/// continues.
#[test]
fn a_shared_engine_survives_the_exit_of_its_apps() {
    let engine = echo().endless();
    let mut stays = app(&engine);
    let odo = spawn(&mut stays, "Odo");
    ask(&mut stays, odo, "x");
    for cycle in 0..100 {
        let mut app = app(&engine);
        let agents: Vec<_> = (0..3).map(|_| spawn(&mut app, "A")).collect();
        for &agent in agents.iter().take(cycle % 4) {
            ask(&mut app, agent, "y");
        }
        updates(&mut app, cycle % 5);
        for agent in agents {
            app.world_mut().despawn(agent);
        }
        app.update();
        drop(app);
        stays.update();
    }
    assert_eq!(engine.agents(), 1, "each app took its agents with it");
    let before = log(&stays).only("delta").len();
    updates(&mut stays, 4);
    assert!(log(&stays).only("delta").len() > before);
}
