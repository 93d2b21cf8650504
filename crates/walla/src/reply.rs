use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use tokio::sync::mpsc::UnboundedReceiver;
use walla_runtime::{
    AgentId, Call, Cue, CuePiece, CueSplitter, Cues, EngineClient, EngineState, FinishReason,
    InlineText, MAX_DELTA_BYTES, RefusedCall, ReplyError, ReplyEvent, ReplyId, Score, Usage,
};

use crate::dispatcher::Dispatcher;

/// More text of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    text: InlineText<MAX_DELTA_BYTES>,
    tokens: u32,
}

impl Delta {
    /// Whole characters, at most 56 bytes.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Tokens that this text completes.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }
}

/// A reply that the model or a limit ended, without an error.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The text that [`Reply::finish`] collected (everything that [`Reply::next`] had not
    /// returned).
    pub text: String,
    /// The cues of a reply [with cues](Reply::with_cues), in order.
    pub cues: Vec<Cue>,
    /// All [reasoning](ReplyEvent::Reasoning) of the reply: text between the model's markers, which
    /// is not speech.
    pub reasoning: String,
    /// All calls of actions, in order. Answer them with
    /// [`Agent::answer_calls`](crate::Agent::answer_calls) if the agent shall hear the results and
    /// go on speaking.
    pub calls: Vec<Call>,
    /// All calls that cannot be executed, with the reason.
    pub refused: Vec<RefusedCall>,
    /// The scores of the texts of [`AskOptions::score`](crate::AskOptions::score), in their order.
    pub scores: Vec<Score>,
    /// Why the reply ended.
    pub reason: FinishReason,
    /// Counts and times. [`Usage::first_token`] has the parts of the time to the first token:
    /// waiting, encoding, prefill and decode.
    pub usage: Usage,
}

/// A reply as a stream of deltas. Dropping it cancels the rest, and never blocks.
///
/// The agent's conversation keeps the text that was generated before the cancellation, including
/// text that the host has not received. [`cancel_heard`](Self::cancel_heard) keeps a given part.
///
/// It keeps the engine alive, but not its agent: dropping the [`Agent`](crate::Agent) cancels the
/// reply.
#[derive(Debug)]
pub struct Reply {
    dispatcher: Arc<Dispatcher>,
    source: Source,
    gathered: Gathered,
    separation: Option<Box<Separation>>,
    /// How it ended, once the terminal event was received.
    end: Option<Result<(FinishReason, Usage), ReplyError>>,
}

/// Cues apart from speech.
#[derive(Debug, Default)]
struct Separation {
    cues: Cues,
    splitter: CueSplitter,
    found: Vec<Cue>,
    /// Speech that [`Reply::next`] has not returned.
    speech: VecDeque<InlineText<MAX_DELTA_BYTES>>,
    /// Tokens that are in no delta yet.
    tokens: u32,
    failure: Option<ReplyError>,
}

impl Separation {
    /// Speech, then the error of a reply that failed.
    fn next(&mut self) -> Option<Result<Delta, ReplyError>> {
        let Some(text) = self.speech.pop_front() else { return self.failure.take().map(Err) };
        Some(Ok(Delta { text, tokens: std::mem::take(&mut self.tokens) }))
    }

    /// Whether this event is text or the end, and then takes it.
    fn takes(&mut self, event: Option<&ReplyEvent>) -> bool {
        match event {
            Some(ReplyEvent::Delta { text, tokens }) => self.take(Ok((text, *tokens))),
            Some(ReplyEvent::Finished { reason, .. }) => self.take(Err(*reason)),
            Some(ReplyEvent::Failed(error)) => {
                self.take(Err(FinishReason::Cancelled));
                self.failure = Some(error.clone());
            }
            _ => return false,
        }
        true
    }

    /// Takes more text, or the end of the reply: a failed one is cut off.
    fn take(&mut self, delta: Result<(&str, u32), FinishReason>) {
        let Self { cues, splitter, found, speech, tokens, .. } = self;
        let take = |piece: CuePiece<'_>| match piece {
            CuePiece::Speech(text) => speech.extend(InlineText::parts(text)),
            CuePiece::Cue(cue) => found.push(cue.into()),
        };
        match delta {
            Ok((text, more)) => {
                *tokens += more;
                splitter.push(cues, text, take);
            }
            Err(reason) => splitter.finish_as(cues, reason, take),
        }
    }
}

/// Parts of a reply besides its text, received so far.
#[derive(Debug, Default)]
struct Gathered {
    reasoning: String,
    calls: Vec<Call>,
    /// Calls that cannot be executed.
    refused: Vec<RefusedCall>,
    scores: Vec<Score>,
}

/// Source of a reply's events.
#[derive(Debug)]
enum Source {
    Engine {
        agent: AgentId,
        reply_id: ReplyId,
        events: UnboundedReceiver<ReplyEvent>,
        /// At most one message of each kind, so that the event loop's queue is bounded.
        is_cancelled: AtomicBool,
        is_interrupted: AtomicBool,
    },
    /// The ask was refused. It has no channel, since a host may have very many of these.
    Refused(ReplyError),
}

impl Reply {
    pub(crate) fn begun(
        dispatcher: Arc<Dispatcher>,
        agent: AgentId,
        reply_id: ReplyId,
        events: UnboundedReceiver<ReplyEvent>,
    ) -> Self {
        let (is_cancelled, is_interrupted) = (AtomicBool::new(false), AtomicBool::new(false));
        let source = Source::Engine { agent, reply_id, events, is_cancelled, is_interrupted };
        Self { dispatcher, source, gathered: Gathered::default(), separation: None, end: None }
    }

    /// A reply that fails at once.
    pub(crate) fn refused(dispatcher: Arc<Dispatcher>, error: ReplyError) -> Self {
        let source = Source::Refused(error);
        Self { dispatcher, source, gathered: Gathered::default(), separation: None, end: None }
    }

    /// Separates stage directions (`*smiles*`, `(sighs)`) from the text: [`next`](Self::next) and
    /// [`finish`](Self::finish) return speech alone, and [`cues`](Self::cues) has the cues with
    /// their places in it. [`next_event`](Self::next_event) and the conversation have the text as
    /// the model wrote it; [`spoken_reply_bytes`](Self::spoken_reply_bytes) converts places. Call
    /// it before the first part of the reply is taken, and then use `next` or `next_event`, not
    /// both: text that was taken otherwise is in no place.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn run(smith: walla::Agent) -> Result<(), walla::ReplyError> {
    /// use walla::Cues;
    /// let cues = Cues::new().with_cue("smile", ["smiles", "grins"]);
    /// let reply = smith.ask("Good day!").with_cues(cues).finish().await?;
    /// println!("{} ({:?})", reply.text, reply.cues);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_cues(mut self, cues: Cues) -> Self {
        self.separation = Some(Box::new(Separation { cues, ..Separation::default() }));
        self
    }

    /// The cues so far, of a reply [with cues](Self::with_cues).
    #[must_use]
    pub fn cues(&self) -> &[Cue] {
        self.separation.as_ref().map_or(&[], |its| &its.found)
    }

    /// Bytes of the text up to the end of the first `spoken_bytes` bytes of the speech, for
    /// [`cancel_heard`](Self::cancel_heard) of a reply [with cues](Self::with_cues).
    #[must_use]
    pub fn spoken_reply_bytes(&self, spoken_bytes: usize) -> usize {
        self.separation.as_ref().map_or(spoken_bytes, |its| its.splitter.reply_bytes(spoken_bytes))
    }

    /// Waits for more text; `None` once the reply has ended.
    ///
    /// # Errors
    /// [`ReplyError`] if the reply failed; `None` follows.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Delta, ReplyError>> {
        std::future::poll_fn(|context| self.poll_delta(context)).await
    }

    /// Waits for the next event of any kind: the prompt is encoded, text, reasoning, calls of
    /// actions between the text before and behind them, calls that cannot be executed, each token
    /// with its log-probability and the likeliest alternatives (for agents with
    /// [`Sampling::candidates`](crate::Sampling::candidates) above 0, before its text), the end.
    /// `None` after [`ReplyEvent::Finished`] or [`ReplyEvent::Failed`].
    ///
    /// [`next`](Self::next) and [`finish`](Self::finish) continue from there.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next_event(&mut self) -> Option<ReplyEvent> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    /// Waits for the end and returns the rest of the text.
    ///
    /// # Errors
    /// [`ReplyError`] if the reply failed, also if [`next`](Self::next) has already returned it.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the reply, since it owns it.
    pub async fn finish(mut self) -> Result<Finished, ReplyError> {
        let mut text = String::new();
        while let Some(delta) = self.next().await {
            text.push_str(delta?.text());
        }
        let (reason, usage) =
            self.end.clone().unwrap_or_else(|| Err(event_loop_gone(&self.dispatcher)))?;
        let Gathered { reasoning, calls, refused, scores } = std::mem::take(&mut self.gathered);
        let cues = self.separation.take().map(|its| its.found).unwrap_or_default();
        Ok(Finished { text, cues, reasoning, calls, refused, scores, reason, usage })
    }

    /// Waits for the scores of an ask with [`AskOptions::score`](crate::AskOptions::score).
    pub(crate) async fn scores(self) -> Result<Vec<Score>, ReplyError> {
        let finished = self.finish().await?;
        match finished.reason {
            FinishReason::Scored => Ok(finished.scores),
            reason => Err(ReplyError::Text(format!("the scores ended early: {reason:?}"))),
        }
    }

    /// All reasoning that [`next`](Self::next) has skipped or [`next_event`](Self::next_event) has
    /// returned so far. It is never part of a [`Delta`].
    #[must_use]
    pub fn reasoning(&self) -> &str {
        &self.gathered.reasoning
    }

    /// The valid calls of actions that [`next`](Self::next) has skipped or
    /// [`next_event`](Self::next_event) has returned so far.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.gathered.calls
    }

    /// The reason for the end and the usage, once [`next`](Self::next) has returned `None` and the
    /// reply has not failed.
    #[must_use]
    pub fn end(&self) -> Option<(FinishReason, Usage)> {
        self.end.as_ref()?.as_ref().ok().copied()
    }

    /// Cancels the reply: [`next`](Self::next) still returns the text up to then, then `None`.
    /// Never blocks; without effect after the end.
    ///
    /// The conversation keeps the text so far. [`cancel_heard`](Self::cancel_heard) shortens it to
    /// the heard part.
    pub fn cancel(&self) {
        let Source::Engine { agent, reply_id, is_cancelled, .. } = &self.source else { return };
        // A cancel behind the end would name a reply that the engine does not know.
        if self.end.is_none() && !is_cancelled.swap(true, Ordering::Relaxed) {
            self.dispatcher.cancel(*agent, *reply_id, None);
        }
    }

    /// Cancels the reply and shortens it to the heard part: the conversation keeps the first
    /// `heard_bytes` bytes of its text, cut at the last whole character. If no byte is left, the
    /// question is removed as well.
    ///
    /// Speech output is slower than the model, so this also works after the end of the reply, while
    /// it is one of the last [16](crate::MAX_EXCHANGES_KNOWN) of its agent. Later replies are kept.
    /// Never blocks; only the first call has an effect.
    pub fn cancel_heard(&self, heard_bytes: usize) {
        let Source::Engine { agent, reply_id, is_interrupted, .. } = &self.source else { return };
        if !is_interrupted.swap(true, Ordering::Relaxed) {
            let heard_bytes = u32::try_from(heard_bytes).unwrap_or(u32::MAX);
            self.dispatcher.cancel(*agent, *reply_id, Some(heard_bytes));
        }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<ReplyEvent>> {
        if self.end.is_some() {
            return Poll::Ready(None);
        }
        let event = match &mut self.source {
            Source::Engine { events, .. } => match events.poll_recv(context) {
                Poll::Ready(event) => event,
                // The thread that would send the next event belongs to the parent process.
                Poll::Pending if self.dispatcher.is_forked() => None,
                Poll::Pending => return Poll::Pending,
            },
            Source::Refused(error) => Some(ReplyEvent::Failed(error.clone())),
        };
        let event = event.unwrap_or_else(|| ReplyEvent::Failed(event_loop_gone(&self.dispatcher)));
        let Gathered { reasoning, calls, refused, scores } = &mut self.gathered;
        match &event {
            ReplyEvent::Finished { reason, usage } => self.end = Some(Ok((*reason, *usage))),
            ReplyEvent::Failed(error) => self.end = Some(Err(error.clone())),
            ReplyEvent::Reasoning { text, .. } => reasoning.push_str(text),
            ReplyEvent::Call(call) => calls.push((**call).clone()),
            ReplyEvent::CallRefused(call) => refused.push((**call).clone()),
            ReplyEvent::Score(score) => scores.push(*score),
            _ => {}
        }
        Poll::Ready(Some(event))
    }

    fn poll_delta(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delta, ReplyError>>> {
        loop {
            if let Some(text) = self.separation.as_deref_mut().and_then(Separation::next) {
                return Poll::Ready(Some(text));
            }
            let event = ready!(self.poll_event(context));
            if let Some(separation) = self.separation.as_deref_mut()
                && separation.takes(event.as_ref())
            {
                continue;
            }
            return Poll::Ready(match event {
                Some(ReplyEvent::Delta { text, tokens }) => Some(Ok(Delta { text, tokens })),
                Some(ReplyEvent::Failed(error)) => Some(Err(error)),
                Some(ReplyEvent::Finished { .. }) | None => None,
                Some(_) => continue,
            });
        }
    }
}

/// The event loop ends every reply before it exits, so this is a forked process, or a defect.
fn event_loop_gone(dispatcher: &Dispatcher) -> ReplyError {
    let reason = match dispatcher.client().state() {
        EngineState::Failed(error) => error.to_string(),
        _ => "the thread walla-async has ended".to_owned(),
    };
    ReplyError::EngineGone(reason)
}

impl Stream for Reply {
    type Item = Result<Delta, ReplyError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_delta(context)
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.cancel();
    }
}
