//! The thread between the engine's queues and the hosts' channels. See the rules of the [module
//! above](super).

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use walla_runtime::{
    Client, Command, EngineError, EngineState, Event, FinishReason, GenerationId, ReplyError,
    ReplyEvent, TrySendError, Usage,
};

use super::Message;
use super::bounds::AskPermit;

/// How often to look for what nobody wakes us for: room in the command queue, the end of the device
/// thread.
const LOOK: Duration = Duration::from_millis(1);

/// How often to look how far a load is: a progress bar needs no more.
const LOOK_AT_LOAD: Duration = Duration::from_millis(20);

/// Messages between two looks at the events: a flood of asks does not keep replies from those who
/// wait for them.
const MESSAGES_AT_ONCE: usize = 256;

/// Events that are taken from the engine's queue together.
const EVENTS_AT_ONCE: usize = 256;

pub(super) struct Pump {
    client: Arc<Client>,
    inbox: UnboundedReceiver<Message>,
    /// While the engine loads: whoever waits for it.
    loading: Option<UnboundedSender<f32>>,
    fraction_told: f32,
    /// Commands of one message, in order, while the engine's queue is full.
    backlog: VecDeque<Command>,
    /// Replies that have not ended. Unbounded channels, but each reply's is bounded by the tokens
    /// that it may have.
    replies: HashMap<GenerationId, (UnboundedSender<ReplyEvent>, AskPermit)>,
    /// Whoever waits for the end of the device thread.
    awaiting_end: Vec<oneshot::Sender<()>>,
    /// Room for events that are taken together; empty between rounds.
    events: Vec<Event>,
}

impl Pump {
    pub fn new(
        client: Arc<Client>,
        inbox: UnboundedReceiver<Message>,
        loading: UnboundedSender<f32>,
    ) -> Self {
        Self {
            client,
            inbox,
            loading: Some(loading),
            fraction_told: -1.0,
            backlog: VecDeque::new(),
            replies: HashMap::new(),
            awaiting_end: Vec::new(),
            events: Vec::with_capacity(EVENTS_AT_ONCE),
        }
    }

    /// Until the last host has gone. Then the engine stops, and its last handle, which waits for
    /// that, is the one that goes here.
    pub fn run(mut self) {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            self.client.register_waker(&waker);
            let ControlFlow::Continue(heard_all) = self.hear_hosts(&mut context) else { return };
            self.hear_engine();
            self.send_on();
            self.look_at_load();
            self.look_at_end();
            match self.pause() {
                _ if !heard_all => {}
                Some(pause) => std::thread::park_timeout(pause),
                None => std::thread::park(),
            }
        }
    }

    /// Takes some messages; `true` if no more can be taken now. Breaks when no host is left.
    fn hear_hosts(&mut self, context: &mut Context<'_>) -> ControlFlow<(), bool> {
        for _ in 0..MESSAGES_AT_ONCE {
            self.send_on();
            if !self.backlog.is_empty() {
                // The channel is bounded; commands of further messages are not.
                let is_over = self.inbox.is_closed();
                return if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(true) };
            }
            match self.inbox.poll_recv(context) {
                Poll::Ready(Some(message)) => self.hear(message),
                Poll::Ready(None) => return ControlFlow::Break(()),
                Poll::Pending => return ControlFlow::Continue(true),
            }
        }
        ControlFlow::Continue(false)
    }

    fn hear(&mut self, message: Message) {
        let backlog = &mut self.backlog;
        match message {
            Message::Changed(changes) => changes.take(|command| backlog.push_back(command)),
            Message::Ask { agent, generation, prompt, events, permit } => {
                self.replies.insert(generation, (events, permit));
                if agent.cancels(generation) {
                    let usage = Usage::default();
                    let what = ReplyEvent::Finished { reason: FinishReason::Cancelled, usage };
                    return self.end(generation, what);
                }
                let agent = agent.id();
                backlog.push_back(Command::Ask { agent, generation, prompt });
            }
            Message::Cancel { agent, generation, heard_bytes: Some(heard_bytes) } => {
                backlog.push_back(Command::Interrupt { agent, generation, heard_bytes });
            }
            Message::Cancel { agent, generation, heard_bytes: None } => {
                // Otherwise it has ended, and the host has not read the end yet.
                if self.replies.contains_key(&generation) {
                    backlog.push_back(Command::Cancel { agent, generation });
                }
            }
            Message::AwaitEnd(told) => {
                self.awaiting_end.retain(|told| !told.is_closed());
                self.awaiting_end.push(told);
            }
        }
    }

    /// The last event of a reply.
    fn end(&mut self, generation: GenerationId, what: ReplyEvent) {
        let Some((events, permit)) = self.replies.remove(&generation) else { return };
        // First, so that the host can ask again when it sees the end.
        drop(permit);
        notify(|| _ = events.send(what));
        // Closing the channel wakes its receiver too.
        notify(|| drop(events));
    }

    fn hear_engine(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        while self.client.try_recv_many(EVENTS_AT_ONCE, &mut events) > 0 {
            events.drain(..).for_each(|event| self.pass_on(event));
        }
        self.events = events;
    }

    fn pass_on(&mut self, Event { generation, what, .. }: Event) {
        if what.is_terminal() {
            self.end(generation, what);
        } else if let Some((events, _)) = self.replies.get(&generation) {
            // A reply that was dropped does not listen: its events end here.
            notify(|| _ = events.send(what));
        }
    }

    /// Sends what waits, as far as there is room.
    fn send_on(&mut self) {
        while let Some(command) = self.backlog.pop_front() {
            match self.client.try_send(command) {
                Ok(()) => {}
                Err(TrySendError::Full(command)) => {
                    self.backlog.push_front(command);
                    return;
                }
                Err(TrySendError::Closed(command)) => self.refuse(&command),
            }
        }
    }

    /// The engine is over and has not taken this.
    fn refuse(&mut self, command: &Command) {
        let Command::Ask { generation, .. } = command else { return };
        let reason = match self.client.engine().state() {
            EngineState::Failed(error) => error.to_string(),
            _ => EngineError::Stopped.to_string(),
        };
        self.end(*generation, ReplyEvent::Failed(ReplyError::EngineGone(reason)));
    }

    fn look_at_load(&mut self) {
        let Some(loading) = &self.loading else { return };
        match self.client.engine().state() {
            EngineState::Loading { fraction } if fraction > self.fraction_told => {
                self.fraction_told = fraction;
                notify(|| _ = loading.send(fraction));
            }
            EngineState::Loading { .. } => {}
            EngineState::Ready | EngineState::Failed(_) | EngineState::Stopped => {
                let loading = self.loading.take();
                notify(|| drop(loading));
            }
        }
    }

    fn look_at_end(&mut self) {
        if !self.awaiting_end.is_empty() && self.client.engine().is_ended() {
            self.awaiting_end.drain(..).for_each(|told| notify(|| _ = told.send(())));
        }
    }

    /// How long to sleep at most.
    fn pause(&self) -> Option<Duration> {
        if !self.backlog.is_empty() || !self.awaiting_end.is_empty() {
            Some(LOOK)
        } else {
            self.loading.as_ref().map(|_| LOOK_AT_LOAD)
        }
    }
}

/// Sends something to a host, or closes a channel to it. Both run a waker of the host, whose panic
/// loses its own wake-up and nothing else: other replies, and the state of the engine, do not
/// depend on it.
fn notify(send: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(send)).is_err() {
        tracing::error!(target: "walla::host", "a waker of the host panicked: its task is not woken");
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}
