use std::path::PathBuf;
use std::sync::Arc;

use walla_memory::AgentRecall;
use walla_runtime::{
    AgentSpec, AskOptions, CacheError, CacheJob, CacheTicket, CallId, CallResult, ConversationEdit,
    Detail, Prompt, ReplyError, ReplyId, Score, Turn,
};

use crate::dispatcher::{Changes, Dispatcher};
use crate::reply::Reply;

/// An agent. Dropping it cancels its replies and frees its memory; no call blocks.
///
/// An agent beyond the engine's [slots](crate::EngineOptions::max_agents) waits for a slot when it
/// is asked, or fails at once
/// ([`EngineOptions::wait_for_slot`](crate::EngineOptions::wait_for_slot)). Its conversation is
/// kept.
///
/// The conversation is stored in the engine, which does not return it. To save it, keep each
/// question and the text of its reply once the reply has begun
/// ([`ReplyEvent::Started`](crate::ReplyEvent::Started)), however it ended: these are the turns of
/// the engine's conversation. An exchange without text is kept only if the model ended the reply
/// and did not reason.
#[derive(Debug)]
pub struct Agent {
    dispatcher: Arc<Dispatcher>,
    /// `None` if there were too many agents.
    changes: Option<Arc<Changes>>,
}

impl Agent {
    pub(crate) fn new(dispatcher: Arc<Dispatcher>, spec: AgentSpec) -> Self {
        let changes = dispatcher.add_agent(spec);
        Self { dispatcher, changes }
    }

    /// Asks the agent; its reply is a stream. A text is the next user turn ([`Prompt::Chat`]);
    /// other prompts are raw text or tokens, which are continued without template and conversation,
    /// and others. [`Prompt::Raw`] may contain untrusted text; [`Prompt::RawTrusted`] parses
    /// markers.
    ///
    /// Asks of one agent are answered in order. While eight are waiting, the next one fails with
    /// [`ReplyError::Busy`](crate::ReplyError::Busy). Question and reply become part of the
    /// conversation.
    ///
    /// Beyond the bounds of [all open asks](crate::EngineBuilder::max_asks) the reply fails at once
    /// with [`ReplyError::TooManyAsks`](crate::ReplyError::TooManyAsks), and the text is dropped.
    /// [`try_ask`](Self::try_ask) returns it.
    #[must_use = "dropping the reply cancels it"]
    pub fn ask(&self, prompt: impl Into<Prompt>) -> Reply {
        self.ask_with(prompt, AskOptions::default())
    }

    /// Like [`ask`](Self::ask), with settings of this ask instead of the agent's, such as a
    /// [constraint](AskOptions::constraint).
    #[must_use = "dropping the reply cancels it"]
    pub fn ask_with(&self, prompt: impl Into<Prompt>, options: AskOptions) -> Reply {
        self.or_refused(self.try_ask_with(prompt, options))
    }

    /// Like [`ask`](Self::ask), but a refusal returns the prompt. Retry when a reply has ended.
    ///
    /// # Errors
    /// [`TryAskError`] with the prompt and the reason.
    pub fn try_ask(&self, prompt: impl Into<Prompt>) -> Result<Reply, TryAskError> {
        self.try_ask_with(prompt, AskOptions::default())
    }

    /// Like [`try_ask`](Self::try_ask), with settings of this ask.
    ///
    /// # Errors
    /// [`TryAskError`] with the prompt, the options and the reason.
    pub fn try_ask_with(
        &self,
        prompt: impl Into<Prompt>,
        options: AskOptions,
    ) -> Result<Reply, TryAskError> {
        self.send(Vec::new(), prompt.into(), options)
    }

    fn or_refused(&self, begun: Result<Reply, TryAskError>) -> Reply {
        begun.unwrap_or_else(|error| Reply::refused(Arc::clone(&self.dispatcher), error.reason))
    }

    /// The part of the agent that the event loop knows.
    fn changes(&self) -> Result<&Arc<Changes>, ReplyError> {
        self.changes.as_ref().ok_or_else(|| self.dispatcher.too_many_agents())
    }

    fn send(
        &self,
        turns: Vec<Turn>,
        prompt: Prompt,
        options: AskOptions,
    ) -> Result<Reply, TryAskError> {
        let changes = match self.changes() {
            Ok(changes) => changes,
            Err(reason) => return Err(TryAskError { prompt, options: Box::new(options), reason }),
        };
        let (reply_id, events) = self.dispatcher.ask(changes, turns, prompt, options)?;
        Ok(Reply::begun(Arc::clone(&self.dispatcher), changes.id(), reply_id, events))
    }

    /// Adds turns to the end of the conversation, such as observations, and asks. Asks that are
    /// open are answered first, and the turns follow their exchanges.
    #[must_use = "dropping the reply cancels it"]
    pub fn ask_after(&self, turns: Vec<Turn>, prompt: Prompt) -> Reply {
        self.or_refused(self.send(turns, prompt, AskOptions::default()))
    }

    /// Adds the results of calls to the conversation, in any order, and lets the agent go on
    /// speaking. It may call actions again, in at most eight consecutive replies to results without
    /// another new turn.
    ///
    /// All calls of a reply are answered together: wait for the slowest one. To go on without some
    /// of them, append the results as turns instead ([`Turn::result`]) and ask with
    /// [`Prompt::Continue`]: the model sees that the other calls have no result yet.
    ///
    /// The reply fails with [`ReplyError::Result`], and no result is kept, if the conversation has
    /// no such call, the call has a result, or a call of the same reply is not answered.
    #[must_use = "dropping the reply cancels it"]
    pub fn answer_calls<T: Into<String>>(
        &self,
        results: impl IntoIterator<Item = (CallId, T)>,
    ) -> Reply {
        let result = |(id, text): (CallId, T)| CallResult { id, text: text.into() };
        self.ask(Prompt::Results(results.into_iter().map(result).collect()))
    }

    /// How probable each of these texts is as the answer to a prompt, in the order of the texts:
    /// for ranking lines, or choosing among intents or moves. The conversation does not change. The
    /// prompt is evaluated once, and each text costs its own tokens: hundreds of short texts are
    /// fine. See [`AskOptions::score`], which has the rules; [`ask_with`] with it returns
    /// each score as soon as it is known.
    ///
    /// # Errors
    /// As for a reply. [`ReplyError::Unsupported`] for [`Prompt::Results`], [`Prompt::Again`], and
    /// by remote engines; [`ReplyError::PromptTooLong`] if prompt and longest text exceed the
    /// context.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the work.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn run(guard: walla::Agent) -> Result<(), walla::ReplyError> {
    /// use walla::Prompt;
    /// let lines = ["Halt! Who goes there?", "Welcome, friend.", "The market is closed."];
    /// let prompt = Prompt::Chat("A stranger walks up to the gate.".into());
    /// let scores = guard.score(prompt, lines).await?;
    /// let best = scores.iter().max_by(|a, b| a.per_token().total_cmp(&b.per_token()));
    /// println!("{:?}", best.map(|score| lines[score.index as usize]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`ask_with`]: Self::ask_with
    pub async fn score(
        &self,
        prompt: Prompt,
        texts: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Vec<Score>, ReplyError> {
        self.ask_with(prompt, AskOptions::score(texts)).scores().await
    }

    /// Changes everything except the conversation (`turns` is ignored). Takes effect with the
    /// next reply that begins, also of an ask that already waits. Priority, voice rate and level of
    /// detail, which do not affect the text, take effect at once.
    pub fn change(&self, spec: AgentSpec) {
        if let Some(changes) = &self.changes {
            self.dispatcher.change(changes, spec);
        }
    }

    /// Changes the level of detail: the share of the device time that this agent gets. Takes effect
    /// at once, also within a reply, and does not change its text. It replaces
    /// [`AgentSpec::detail`] until [`change`](Self::change) sets another.
    ///
    /// The same as the component `LevelOfDetail` of `bevy_walla`.
    pub fn set_detail(&self, detail: Detail) {
        if let Some(changes) = &self.changes {
            self.dispatcher.set_detail(changes, detail);
        }
    }

    /// Repeats the ask that led to the last reply, with another seed: the reply and all later turns
    /// are removed first. Only the new reply is evaluated. The seed follows from
    /// the number of the reply, so that each call gives other words; for the same words, or a
    /// certain seed, ask with [`Prompt::Again`] and [`AskOptions::seed`].
    #[must_use = "dropping the reply cancels it"]
    pub fn regenerate(&self) -> Reply {
        let seed = ReplyId::unique().0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.ask_with(Prompt::Again, AskOptions::seed(seed))
    }

    /// Removes turns from the end of the conversation. A question and its reply are two turns; each
    /// [action](crate::Speaker::Action) is one more. Cancels the reply in progress, whose text so
    /// far is a turn, and all waiting asks. The next reply evaluates only new tokens.
    ///
    /// # Errors
    /// [`ReplyError::TooManyAsks`] beyond the bounds of [all open
    /// asks](crate::EngineBuilder::max_asks), [`ReplyError::TooManyAgents`] for an agent that was
    /// not added. Then nothing changes.
    pub fn rewind(&self, turns: usize) -> Result<(), ReplyError> {
        let turns = u32::try_from(turns).unwrap_or(u32::MAX);
        self.edit(ConversationEdit::Rewind { turns })
    }

    /// Replaces the text of the turn that `turns_after` turns follow: 0 is the last one. Without
    /// such a turn nothing changes. Cancels as [`rewind`](Self::rewind).
    ///
    /// # Errors
    /// As for [`rewind`](Self::rewind).
    pub fn edit_turn(&self, turns_after: usize, text: impl Into<String>) -> Result<(), ReplyError> {
        let turns_after = u32::try_from(turns_after).unwrap_or(u32::MAX);
        self.edit(ConversationEdit::Text { turns_after, text: text.into() })
    }

    /// Replaces the conversation by a copy of another agent's of the same engine. Cancels as
    /// [`rewind`](Self::rewind). It includes all replies of `source` that have ended.
    ///
    /// # Errors
    /// As for [`rewind`](Self::rewind).
    pub async fn copy_conversation(&self, source: &Agent) -> Result<(), ReplyError> {
        let edit = ConversationEdit::CopyOf { source: source.changes()?.id() };
        self.dispatcher.edit(self.changes()?, edit)?.await;
        Ok(())
    }

    /// A copy of this agent: the same specification and conversation, and a separate future. The
    /// engine shares the evaluated tokens of both, so the next reply of the copy evaluates only its
    /// question. A reply in progress and waiting asks are not copied.
    ///
    /// The copy has the agent as it is when the engine's thread takes the command, which the future
    /// awaits; the engine may still be loading. The same question gets the same reply: ask with
    /// another [`AskOptions::seed`] for another branch.
    ///
    /// # Errors
    /// [`ReplyError::TooManyAgents`].
    pub async fn fork(&self) -> Result<Agent, ReplyError> {
        let source = self.changes()?;
        let (changes, taken) = self.dispatcher.fork(source)?;
        let dispatcher = Arc::clone(&self.dispatcher);
        // Before the wait: if the caller drops this future, the copy is removed.
        let copy = Self { dispatcher, changes: Some(changes) };
        taken.await;
        copy.set_recall(self.dispatcher.client().agent(source.id()));
        Ok(copy)
    }

    /// Sets the memories that this agent knows at its next asks, and how much of them; `None`:
    /// none. At an ask, matching entries are found on another thread, and are part of the prompt as
    /// [`Notes`](crate::Notes).
    ///
    /// The memories are sent by [`Recall::update`](crate::memory::Recall::update) of
    /// [`Engine::recall`](crate::Engine::recall). A [fork](Self::fork) knows the same memories.
    pub fn set_recall(&self, recall: Option<AgentRecall>) {
        if let Some(changes) = &self.changes {
            self.dispatcher.client().set_agent(changes.id(), recall);
        }
    }

    /// Saves the cache of the agent to a file: the keys and values of all tokens that are evaluated
    /// for it. An agent that [loads](Self::load_cache) it evaluates only its question. An older
    /// file is replaced when the new one is complete.
    ///
    /// Save when the agent is silent: the engine then first prepares its next prompt, for up to a
    /// second. The returned job is a future; dropping it cancels nothing. The file does not contain
    /// the conversation as text.
    ///
    /// # Errors
    /// The job's result: [`CacheError`].
    ///
    /// # Examples
    /// ```no_run
    /// # async fn run(engine: walla::Engine, turns: Vec<walla::Turn>) -> Result<(), Box<dyn std::error::Error>> {
    /// let greta = engine.agent("You are Greta, a smith.");
    /// greta.ask("Good morning!").finish().await?;
    /// let saved = greta.save_cache("greta.kv").await?;
    /// println!("{} tokens in {} bytes", saved.tokens, saved.file_bytes);
    ///
    /// // In another run, with the same model and the same conversation:
    /// let spec = walla::AgentSpec { turns, ..walla::AgentSpec::new("You are Greta, a smith.") };
    /// let greta = engine.agent_with(spec);
    /// if let Err(error) = greta.load_cache("greta.kv").await {
    ///     println!("her conversation is evaluated: {error}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn save_cache(&self, path: impl Into<PathBuf>) -> CacheJob {
        let path = path.into();
        let bytes = path.as_os_str().len();
        self.copy_cache(CacheTicket::save(path), bytes)
    }

    /// As [`save_cache`](Self::save_cache), to memory: [`CacheJob::take_bytes`].
    pub fn save_cache_bytes(&self) -> CacheJob {
        self.copy_cache(CacheTicket::save_bytes(), 0)
    }

    /// Loads the cache of the agent from a file, while it is silent: best before its first ask.
    /// Asks that follow wait for it.
    ///
    /// A file is valid for one model file, one kind of device and one type of keys and values. For
    /// anything else, and for a damaged file, the load fails, and the agent speaks as without it:
    /// its conversation is evaluated. The tokens of the file are compared with the agent's prompt,
    /// so a file of another conversation has no effect on its text.
    ///
    /// The checksum of a file detects accidents, not attacks: a program that can write the file can
    /// change the memories of this agent. Other agents are unaffected.
    ///
    /// # Errors
    /// The job's result: [`CacheError`].
    pub fn load_cache(&self, path: impl Into<PathBuf>) -> CacheJob {
        let path = path.into();
        let bytes = path.as_os_str().len();
        self.copy_cache(CacheTicket::load(path), bytes)
    }

    /// As [`load_cache`](Self::load_cache), from the bytes of a file.
    pub fn load_cache_bytes(&self, bytes: impl Into<Arc<[u8]>>) -> CacheJob {
        let bytes = bytes.into();
        let count = bytes.len();
        self.copy_cache(CacheTicket::load_bytes(bytes), count)
    }

    fn copy_cache(&self, (ticket, job): (CacheTicket, CacheJob), bytes: usize) -> CacheJob {
        match &self.changes {
            Some(changes) => self.dispatcher.copy_cache(changes, ticket, 64 + bytes),
            None => ticket.fail(CacheError::UnknownAgent),
        }
        job
    }

    fn edit(&self, edit: ConversationEdit) -> Result<(), ReplyError> {
        self.dispatcher.edit(self.changes()?, edit).map(drop)
    }

    /// Replaces the conversation, which may have any order of turns and contain observations
    /// ([`Speaker::Observation`](crate::Speaker::Observation)). Cancels the reply in progress and
    /// all waiting asks.
    pub fn set_conversation(&self, turns: Vec<Turn>) {
        if let Some(changes) = &self.changes {
            self.dispatcher.set_conversation(changes, turns);
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(changes) = &self.changes {
            self.dispatcher.remove_agent(changes);
        }
    }
}

/// An ask that was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct TryAskError {
    /// The refused prompt.
    pub prompt: Prompt,
    /// Its options.
    pub options: Box<AskOptions>,
    /// [`ReplyError::TooManyAsks`], or [`ReplyError::TooManyAgents`] for an agent that was not
    /// added.
    pub reason: ReplyError,
}
