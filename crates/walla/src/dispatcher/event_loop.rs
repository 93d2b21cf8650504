//! The thread between the engine's queues and the hosts' channels. See the rules of the [parent
//! module](super).

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use walla_embed::answer::thread_waker;
use walla_memory::RecallClient;
use walla_runtime::walla_trace::TraceFile;
use walla_runtime::{
    CacheError, Command, EngineClient, EngineError, EngineState, Event, FinishReason, ReplyError,
    ReplyEvent, ReplyId, TrySendError, Usage,
};

use super::Message;
use super::bounds::AskPermit;

/// Polling interval for conditions without a waker: capacity in the command queue, the end of the
/// device thread.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Polling interval of the load's progress, sufficient for a progress bar.
const LOAD_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum messages between two polls of the events, so that a flood of asks does not delay
/// replies.
const MESSAGES_AT_ONCE: usize = 256;

/// Maximum number of events received together.
const EVENTS_AT_ONCE: usize = 256;

/// Result of [`EventLoop::receive_messages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Received {
    /// There may be more messages.
    Some,
    /// The engine's queue is full: the channel was not polled.
    Blocked,
    /// There are no more messages, and the channel wakes the thread for the next one.
    All,
}

pub(super) struct EventLoop {
    client: RecallClient,
    inbox: UnboundedReceiver<Message>,
    /// Receiver of the progress while the engine loads.
    loading: Option<UnboundedSender<f32>>,
    fraction_reported: f32,
    /// Commands of one message, in order, while the engine's queue is full.
    backlog: VecDeque<Command>,
    /// Replies that have not ended. Their channels are unbounded, but the reply's token limit
    /// bounds each.
    replies: HashMap<ReplyId, (UnboundedSender<ReplyEvent>, AskPermit)>,
    /// Hosts that wait for the end of the device thread.
    awaiting_end: Vec<oneshot::Sender<()>>,
    /// Buffer for events that are received together; empty between rounds.
    events: Vec<Event>,
    /// Declared last, so that it ends after the engine.
    _trace: Option<TraceFile>,
}

impl EventLoop {
    pub fn new(
        client: RecallClient,
        inbox: UnboundedReceiver<Message>,
        loading: UnboundedSender<f32>,
        trace: Option<TraceFile>,
    ) -> Self {
        Self {
            client,
            inbox,
            loading: Some(loading),
            fraction_reported: -1.0,
            backlog: VecDeque::new(),
            replies: HashMap::new(),
            awaiting_end: Vec::new(),
            events: Vec::with_capacity(EVENTS_AT_ONCE),
            _trace: trace,
        }
    }

    /// Runs until the last host has dropped its handle. Then the engine stops. Its last handle,
    /// whose drop waits for the device thread, is dropped here.
    pub fn run(mut self) {
        let waker = thread_waker();
        let mut context = Context::from_waker(&waker);
        loop {
            // Before the polls: an event between poll and sleep would wake nothing (rule 2).
            self.client.register_waker(&waker);
            let ControlFlow::Continue(received) = self.receive_messages(&mut context) else {
                return;
            };
            self.receive_events();
            self.flush_backlog();
            self.report_load();
            self.report_end();
            match (received, self.max_sleep()) {
                (Received::Some, _) => {}
                // The channel was not polled, so it does not wake this thread, even if the backlog
                // has been sent since.
                (Received::Blocked, _) => std::thread::park_timeout(POLL_INTERVAL),
                (Received::All, Some(pause)) => std::thread::park_timeout(pause),
                (Received::All, None) => std::thread::park(),
            }
        }
    }

    /// Receives some messages. Breaks when no host is left.
    fn receive_messages(&mut self, context: &mut Context<'_>) -> ControlFlow<(), Received> {
        for _ in 0..MESSAGES_AT_ONCE {
            self.flush_backlog();
            if !self.backlog.is_empty() {
                // Messages in the channel are bounded; a backlog of their commands would not be.
                // Without hosts the backlog has no effect that a program can see.
                let is_over = self.inbox.is_closed();
                return if is_over {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(Received::Blocked)
                };
            }
            match self.inbox.poll_recv(context) {
                Poll::Ready(Some(message)) => self.handle(message),
                Poll::Ready(None) => return ControlFlow::Break(()),
                Poll::Pending => return ControlFlow::Continue(Received::All),
            }
        }
        ControlFlow::Continue(Received::Some)
    }

    fn handle(&mut self, message: Message) {
        let backlog = &mut self.backlog;
        match message {
            Message::Changed(changes) => changes.take(|command| backlog.push_back(command)),
            Message::Ask { agent, reply_id, turns, prompt, options, events, permit } => {
                // Before anything can end it, so that each ask that was read has an end (rule 3).
                self.replies.insert(reply_id, (events, permit));
                if agent.cancels(reply_id) {
                    let usage = Usage::default();
                    let what = ReplyEvent::Finished { reason: FinishReason::Cancelled, usage };
                    return self.end(reply_id, what);
                }
                let agent = agent.id();
                if !turns.is_empty() {
                    backlog.push_back(Command::AppendTurns { agent, turns });
                }
                backlog.push_back(Command::Ask { agent, reply_id, prompt, options });
            }
            Message::Edit { agent, number, edit, permit, taken } => {
                if !agent.cancels(number) {
                    backlog.push_back(Command::EditConversation { agent: agent.id(), edit });
                }
                drop(permit);
                notify(|| _ = taken.send(()));
            }
            Message::Fork { agent, source, taken } => {
                // A copy that the host has dropped before is not made.
                if agent.added() {
                    let (agent, source) = (agent.id(), source.id());
                    backlog.push_back(Command::ForkAgent { agent, source, spec: None });
                }
                notify(|| _ = taken.send(()));
            }
            Message::CopyCache { agent, ticket, permit } => {
                if agent.is_known() {
                    backlog.push_back(Command::CopyCache { agent: agent.id(), ticket });
                } else {
                    ticket.fail(CacheError::UnknownAgent);
                }
                drop(permit);
            }
            Message::Cancel { agent, reply_id, heard_bytes: Some(heard_bytes) } => {
                backlog.push_back(Command::CancelHeard { agent, reply_id, heard_bytes });
            }
            Message::Cancel { agent, reply_id, heard_bytes: None } => {
                // Otherwise the reply has ended, and the host has not read the end yet.
                if self.replies.contains_key(&reply_id) {
                    backlog.push_back(Command::Cancel { agent, reply_id });
                }
            }
            Message::AwaitEnd(ended) => {
                // A host may poll for the end again and again with new futures.
                self.awaiting_end.retain(|ended| !ended.is_closed());
                self.awaiting_end.push(ended);
            }
        }
    }

    /// Publishes the last event of a reply.
    fn end(&mut self, reply_id: ReplyId, what: ReplyEvent) {
        let Some((events, permit)) = self.replies.remove(&reply_id) else { return };
        // Before the event, so that the host can ask again when it receives the end.
        drop(permit);
        notify(|| _ = events.send(what));
        // Closing the channel wakes its receiver too.
        notify(|| drop(events));
    }

    fn receive_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        while self.client.try_recv_many(EVENTS_AT_ONCE, &mut events) > 0 {
            events.drain(..).for_each(|event| self.forward(event));
        }
        self.events = events;
    }

    fn forward(&mut self, Event { reply_id, what, .. }: Event) {
        if what.is_terminal() {
            self.end(reply_id, what);
        } else if let Some((events, _)) = self.replies.get(&reply_id) {
            // The receiver of a dropped reply is closed: its events are discarded here.
            notify(|| _ = events.send(what));
        }
    }

    /// Sends the backlog, up to the queue's capacity.
    fn flush_backlog(&mut self) {
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

    /// Ends an ask that the engine did not accept before it ended.
    fn refuse(&mut self, command: &Command) {
        let Command::Ask { reply_id, .. } = command else { return };
        let reason = match self.client.state() {
            EngineState::Failed(error) => error.to_string(),
            _ => EngineError::Stopped.to_string(),
        };
        self.end(*reply_id, ReplyEvent::Failed(ReplyError::EngineGone(reason)));
    }

    fn report_load(&mut self) {
        let Some(loading) = &self.loading else { return };
        match self.client.state() {
            EngineState::Loading { fraction } if fraction > self.fraction_reported => {
                self.fraction_reported = fraction;
                notify(|| _ = loading.send(fraction));
            }
            EngineState::Loading { .. } => {}
            EngineState::Ready | EngineState::Failed(_) | EngineState::Stopped => {
                let loading = self.loading.take();
                notify(|| drop(loading));
            }
        }
    }

    fn report_end(&mut self) {
        if !self.awaiting_end.is_empty() && self.client.is_ended() {
            self.awaiting_end.drain(..).for_each(|ended| notify(|| _ = ended.send(())));
        }
    }

    /// Maximum time to sleep.
    fn max_sleep(&self) -> Option<Duration> {
        if !self.backlog.is_empty() || !self.awaiting_end.is_empty() {
            Some(POLL_INTERVAL)
        } else {
            let of_load = self.loading.as_ref().map(|_| LOAD_POLL_INTERVAL);
            of_load.into_iter().chain(self.client.max_wait()).min()
        }
    }
}

/// Sends an event to a host, or closes a channel to it. Both run a waker of the host. A panic of
/// the waker only loses its own wake-up: other replies and the state of the engine are not
/// affected.
fn notify(send: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(send)).is_err() {
        tracing::error!(target: "walla::host", "a waker of the host panicked: its task is not woken");
    }
}
