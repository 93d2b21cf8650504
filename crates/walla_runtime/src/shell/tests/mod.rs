//! The shell around a scripted core.

mod controls;
mod delivery;
mod frame_side;
mod hangs;
mod lifecycle;
#[path = "../../../tests/common/own_thread.rs"]
mod own_thread;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use walla_device::{DeviceInfo, DeviceKind, MemoryUse};
use walla_model::chat::TemplateState;

use super::{Client, Engine};
use crate::api::{
    AgentId, Command, EngineStats, Event, FinishReason, Pacing, Prompt, ReplyError, ReplyEvent,
    ReplyId, Usage,
};
use crate::clock::Clock;
use crate::engine_core::{Advance, ClientKey, Control, Emit, EngineCore, Loader, Progress};
use crate::inline_text::InlineText;
use crate::options::{Deadlines, EngineError};
use crate::status::{EngineState, ModelCard, TextSettings};

/// Instructions for a [`Fake`], and its observations.
#[derive(Debug, Default)]
struct Script {
    /// Asks stay open while this is set.
    hold: AtomicBool,
    /// The next round fails, or panics.
    fail: AtomicBool,
    panic: AtomicBool,
    /// Duration of each round. A shorter one ends the round in progress.
    round_millis: AtomicU32,
    /// A long round is running.
    hanging: AtomicBool,
    /// A command is being applied until this is cleared.
    hold_command: AtomicBool,
    /// Calls of the core, in order.
    calls: Mutex<Vec<&'static str>>,
    /// The device works: [`Advance::Poll`].
    working: AtomicBool,
    /// All clients are paused.
    paused: AtomicBool,
    rounds: AtomicU32,
    /// Time passed to the latest round.
    now_micros: AtomicU64,
    frames: AtomicU32,
    /// Current clients.
    clients: Mutex<Vec<(ClientKey, Pacing)>>,
    /// Every command except asks.
    commands: Mutex<Vec<Command>>,
    controls: Mutex<Vec<Control>>,
    /// Duration of dropping the core. A shorter one ends the drop in progress.
    drop_millis: AtomicU32,
    dropped: AtomicBool,
}

impl Script {
    fn set(&self, what: impl Fn(&Self) -> &AtomicBool) {
        what(self).store(true, Ordering::SeqCst);
    }

    fn rounds(&self) -> u32 {
        self.rounds.load(Ordering::SeqCst)
    }

    fn call(&self, name: &'static str) {
        self.calls.lock().unwrap().push(name);
    }
}

/// Tests load with closures and have no fallback.
impl<L: FnOnce(&mut Progress<'_>) -> Result<Fake, EngineError>> Loader<Fake> for Option<L> {
    fn load(&mut self, progress: &mut Progress<'_>) -> Result<Fake, EngineError> {
        self.take().expect("loads once")(progress)
    }

    fn load_fallback(
        &mut self,
        _lost: &EngineError,
        _progress: &mut Progress<'_>,
    ) -> Option<Result<Fake, EngineError>> {
        None
    }
}

/// Number of deltas of each reply.
const DELTAS: usize = 3;

/// Answers each ask with [`DELTAS`] deltas as soon as it may, in each client's order.
struct Fake {
    script: Arc<Script>,
    asks: Vec<(ClientKey, AgentId, ReplyId)>,
    outbox: Vec<(ClientKey, VecDeque<Event>)>,
}

impl Fake {
    fn new(script: Arc<Script>) -> Self {
        Self { script, asks: Vec::new(), outbox: Vec::new() }
    }

    fn queue_event(&mut self, key: ClientKey, event: Event) {
        match self.outbox.iter_mut().find(|(of, _)| *of == key) {
            Some((_, events)) => events.push_back(event),
            None => self.outbox.push((key, VecDeque::from([event]))),
        }
    }

    fn deliver(&mut self, emit: &mut Emit<'_>) {
        for (key, events) in &mut self.outbox {
            while let Some(event) = events.pop_front() {
                if let Err(event) = emit(*key, event) {
                    events.push_front(event);
                    break;
                }
            }
        }
    }
}

impl EngineCore for Fake {
    fn add_client(&mut self, client: ClientKey, pacing: Pacing) {
        self.script.clients.lock().unwrap().push((client, pacing));
    }

    fn remove_client(&mut self, client: ClientKey) {
        self.script.clients.lock().unwrap().retain(|(key, _)| *key != client);
        self.asks.retain(|(key, ..)| *key != client);
        self.outbox.retain(|(key, _)| *key != client);
    }

    fn command(&mut self, client: ClientKey, command: Command, _now_micros: u64) {
        self.script.call("command");
        while self.script.hold_command.load(Ordering::SeqCst) {
            self.script.hanging.store(true, Ordering::SeqCst);
            thread::yield_now();
        }
        match command {
            Command::Ask { agent, reply_id, .. } => self.asks.push((client, agent, reply_id)),
            other => self.script.commands.lock().unwrap().push(other),
        }
    }

    fn frame(&mut self, _client: ClientKey, _now_micros: u64) {
        self.script.frames.fetch_add(1, Ordering::SeqCst);
    }

    fn set_paused(&mut self, _client: ClientKey, is_paused: bool) {
        self.script.paused.store(is_paused, Ordering::SeqCst);
    }

    fn is_paused(&self) -> bool {
        self.script.paused.load(Ordering::SeqCst)
    }

    fn set_logged(&mut self, _client: ClientKey, _is_logged: bool) {
        self.script.call("logged");
    }

    fn control(&mut self, control: Control) {
        self.script.call("control");
        self.script.controls.lock().unwrap().push(control);
    }

    fn advance(&mut self, now_micros: u64, emit: &mut Emit<'_>) -> Result<Advance, EngineError> {
        self.script.call("advance");
        self.script.now_micros.store(now_micros, Ordering::SeqCst);
        self.script.rounds.fetch_add(1, Ordering::SeqCst);
        let millis = self.script.round_millis.load(Ordering::SeqCst);
        self.script.hanging.store(millis > 0, Ordering::SeqCst);
        last(&self.script.round_millis);
        if self.script.fail.load(Ordering::SeqCst) {
            return Err(EngineError::Thread("as scripted".into()));
        }
        assert!(!self.script.panic.load(Ordering::SeqCst), "scripted panic");
        if !self.script.hold.load(Ordering::SeqCst) {
            for (key, agent, reply_id) in std::mem::take(&mut self.asks) {
                for what in reply() {
                    self.queue_event(key, Event { agent, reply_id, what });
                }
            }
        }
        self.deliver(emit);
        let working = self.script.working.load(Ordering::SeqCst);
        Ok(if working { Advance::Poll } else { Advance::Idle })
    }

    fn stats(&self) -> EngineStats {
        EngineStats { steps: self.script.rounds().into(), ..EngineStats::default() }
    }

    fn card(&self) -> ModelCard {
        ModelCard {
            name: Some("scripted".into()),
            architecture: "none",
            layers: 0,
            width: 0,
            vocab: 0,
            context_train: 0,
            context_tokens: 0,
            state_bytes_per_agent: 0,
            file_bytes: 0,
            fingerprint: 0,
            settings: TextSettings::default(),
            template: TemplateState::FromFile,
            call_format: walla_grammar::CallFormat::Plain,
            reserved_markers: Vec::new(),
            warnings: Vec::new(),
            reasoning: false,
            thinking_switch: false,
            device: DeviceInfo {
                name: "none".into(),
                kind: DeviceKind::Cpu,
                description: String::new(),
                variant: String::new(),
                threads: 1,
                memory_total_bytes: None,
                memory_free_bytes: Some(0),
                gpu: None,
                facts: Vec::new(),
            },
            memory: MemoryUse::default(),
            fallback_after: None,
        }
    }

    fn take_over(&mut self, mut lost: Self) {
        self.asks = std::mem::take(&mut lost.asks);
        self.outbox = std::mem::take(&mut lost.outbox);
    }

    fn drain_events(&mut self, reason: &str) -> Vec<(ClientKey, VecDeque<Event>)> {
        for (key, agent, reply_id) in std::mem::take(&mut self.asks) {
            let what = ReplyEvent::Failed(ReplyError::EngineGone(reason.into()));
            self.queue_event(key, Event { agent, reply_id, what });
        }
        std::mem::take(&mut self.outbox)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        last(&self.script.drop_millis);
        self.script.set(|script| &script.dropped);
    }
}

/// A duration that ends a call only when a test shortens it.
const ENDLESS_MILLIS: u32 = u32::MAX;

/// Blocks for this time.
fn last(millis: &AtomicU32) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(millis.load(Ordering::SeqCst).into()) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Events of the fake for each ask.
fn reply() -> Vec<ReplyEvent> {
    let delta = |i: usize| {
        let mut text = InlineText::new();
        text.push(["one ", "two ", "three"][i]);
        ReplyEvent::Delta { text, tokens: 1 }
    };
    let mut events = vec![ReplyEvent::Started { prompt_tokens: 1 }];
    events.extend((0..DELTAS).map(delta));
    events.push(ReplyEvent::Finished { reason: FinishReason::EndOfTurn, usage: Usage::default() });
    events
}

/// An engine with a scripted core; `(commands, events)` are the sizes of its queues.
fn engine_with_queues(queues: (usize, usize)) -> (Engine, Arc<Script>) {
    engine_with(queues, Clock::real())
}

fn engine_with(queues: (usize, usize), clock: Clock) -> (Engine, Arc<Script>) {
    let script = Arc::new(Script::default());
    let of_core = Arc::clone(&script);
    let load = move |progress: &mut Progress<'_>| match progress(1.0) {
        ControlFlow::Continue(()) => Ok(Fake::new(of_core)),
        ControlFlow::Break(()) => Err(EngineError::Stopped),
    };
    (Engine::launch(queues, clock, Deadlines::default(), Some(load)).unwrap(), script)
}

fn engine() -> (Engine, Arc<Script>) {
    engine_with_queues((64, 256))
}

fn ask(client: &Client) -> (ReplyId, Command) {
    let (agent, reply_id) = (client.new_agent(), client.new_reply_id());
    (reply_id, Command::ask(agent, reply_id, Prompt::Raw("hello".into())))
}

/// Sends an ask and returns its reply id.
fn asked(client: &Client) -> ReplyId {
    let (reply_id, command) = ask(client);
    client.try_send(command).unwrap();
    reply_id
}

/// Waits for an effect of another thread. The limit is long, because test machines are busy.
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "never happened: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

fn ready(engine: &Engine) {
    eventually("ready", || engine.state().is_ready().then_some(()));
}

fn next(client: &Client) -> Event {
    eventually("an event", || client.try_recv())
}

/// Events until `count` replies have ended.
fn ends(client: &Client, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    while events.iter().filter(|event: &&Event| event.what.is_terminal()).count() < count {
        events.push(next(client));
    }
    events
}

fn is_gone(event: &Event) -> bool {
    matches!(event.what, ReplyEvent::Failed(ReplyError::EngineGone(_)))
}
