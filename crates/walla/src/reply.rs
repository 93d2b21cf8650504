use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use walla_runtime::{
    AgentId, Command, DELTA_BYTES_MAX, FinishReason, GenerationId, InlineText, Prompt, ReplyError,
    ReplyEvent, Usage,
};

use crate::hub::Hub;

/// More text of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    text: InlineText<DELTA_BYTES_MAX>,
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

/// A reply that has ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// What [`Reply::finish`] collected (all text that [`Reply::next`] had not returned before).
    pub text: String,
    /// Why it ended.
    pub reason: FinishReason,
    /// Counts.
    pub usage: Usage,
}

/// A reply as it comes: a stream of deltas. Dropping it cancels what has not been said.
#[derive(Debug)]
pub struct Reply {
    hub: Arc<Hub>,
    agent: AgentId,
    generation: GenerationId,
    events: UnboundedReceiver<ReplyEvent>,
    end: Option<(FinishReason, Usage)>,
    is_over: bool,
}

impl Reply {
    pub(crate) fn start(hub: Arc<Hub>, agent: AgentId, prompt: Prompt) -> Self {
        let generation = hub.client.new_generation();
        let (sender, events) = unbounded_channel();
        hub.ask(generation, Command::Ask { agent, generation, prompt }, sender);
        Self { hub, agent, generation, events, end: None, is_over: false }
    }

    /// Waits for more text; `None` once the reply has ended.
    ///
    /// # Errors
    /// [`ReplyError`] if the reply failed; `None` follows.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Delta, ReplyError>> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// Waits for the end and returns the rest of the text.
    ///
    /// # Errors
    /// [`ReplyError`] if the reply failed.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the reply, since it owns it.
    pub async fn finish(mut self) -> Result<Finished, ReplyError> {
        let mut text = String::new();
        while let Some(delta) = self.next().await {
            text.push_str(delta?.text());
        }
        let gone = || ReplyError::EngineGone("the reply had ended before".into());
        let (reason, usage) = self.end.ok_or_else(gone)?;
        Ok(Finished { text, reason, usage })
    }

    /// Why the reply ended and its counts, once [`next`](Self::next) has returned `None` and it has not failed.
    #[must_use]
    pub fn end(&self) -> Option<(FinishReason, Usage)> {
        self.end
    }

    /// Ends the reply early: [`next`](Self::next) still returns what was said until then, then `None`.
    pub fn cancel(&self) {
        if !self.is_over {
            self.hub.send(Command::Cancel { agent: self.agent, generation: self.generation });
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delta, ReplyError>>> {
        while !self.is_over {
            let Poll::Ready(event) = self.events.poll_recv(context) else { return Poll::Pending };
            match event {
                Some(ReplyEvent::Delta { text, tokens }) => {
                    return Poll::Ready(Some(Ok(Delta { text, tokens })));
                }
                Some(ReplyEvent::Finished { reason, usage }) => {
                    self.end = Some((reason, usage));
                    self.is_over = true;
                }
                Some(ReplyEvent::Failed(error)) => {
                    self.is_over = true;
                    return Poll::Ready(Some(Err(error)));
                }
                Some(ReplyEvent::Started { .. } | ReplyEvent::Token(_)) => {}
                None => {
                    self.is_over = true;
                    let error = ReplyError::EngineGone("it has stopped".into());
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
        Poll::Ready(None)
    }
}

impl Stream for Reply {
    type Item = Result<Delta, ReplyError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(context)
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.cancel();
    }
}
