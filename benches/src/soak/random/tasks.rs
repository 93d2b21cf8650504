//! Random operations of tasks through the async API. Each engine has an owner, a task that starts,
//! stops and drops it. Talkers are tasks with an agent of any engine.

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use walla::{
    ActionPolicy, ActionSet, Actions, Agent, AgentSpec, AskOptions, CacheJob, CallId, Detail,
    Engine, EngineBuilder, EngineOptions, FinishReason, Prompt, Reply, ReplyError, ReplyEvent,
    Speaker, Turn,
};

use super::dice::Dice;
use super::material::{QUESTIONS, action, constraint, persona, refused_constraint};
use super::tally::Tally;
use crate::process::MAX_END;

const ENGINES: usize = 2;
const TALKERS: usize = 6;

/// Operations of a talker.
#[rustfmt::skip]
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Operation {
    Ask, AskUnderConstraint, AskRefused, AskRaw, AskAfter, AskTooOften, AskAndAct,
    AnswerForeignCall, Regenerate,
    DropReply, DropUnpolled, TimeOut, Select, Cancel, CancelHeard,
    Rewind, EditTurn, SetConversation, Change, SetDetail,
    Fork, DropFork, CopyConversation, DropAgent, SaveCache, LoadCache, DropCacheJob,
}

use Operation as Op;

/// Operations of an owner.
#[rustfmt::skip]
#[derive(Debug)]
enum OfEngine { Start, DropStart, Pause, Resize, Budget, Stop, DropStop, DropEngine }

/// What all tasks share.
struct Stage {
    engines: [Mutex<Option<Engine>>; ENGINES],
    /// The latest call of each talker.
    calls: Mutex<[Option<CallId>; TALKERS]>,
    tally: Mutex<Tally>,
    folder: TempDir,
    until: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    fn operation(&self, operation: impl std::fmt::Debug) {
        lock(&self.tally).operation(operation);
    }

    fn promise(&self, holds: bool, broken: impl FnOnce() -> String) {
        lock(&self.tally).promise(holds, broken);
    }

    /// Waits for something that ends.
    async fn soon<T>(&self, what: &str, future: impl Future<Output = T>) -> Option<T> {
        let end = timeout(MAX_END, future).await;
        self.promise(end.is_ok(), || format!("no end of {what}"));
        end.ok()
    }

    /// Reads a reply from here to its end.
    async fn hear(&self, reply: Reply) -> Heard {
        self.hear_rest(reply, Heard::default()).await
    }

    async fn hear_rest(&self, mut reply: Reply, mut heard: Heard) -> Heard {
        self.soon("a reply", heard.listen(&mut reply)).await;
        let is_over = timeout(MAX_END, reply.next_event()).await == Ok(None);
        let is_promised = heard.ends.len() == 1 && !heard.is_late && is_over;
        self.promise(is_promised, || format!("not one end: {heard:?}"));
        for end in &heard.ends {
            lock(&self.tally).reply(end.as_ref().copied());
        }
        heard
    }

    async fn hear_job(&self, of: &str, job: CacheJob) {
        if let Some(end) = self.soon("a cache job", job).await {
            lock(&self.tally).end(of, &end.map(drop));
        }
    }
}

/// Ends and calls of a reply.
#[derive(Debug, Default)]
struct Heard {
    ends: Vec<Result<FinishReason, ReplyError>>,
    calls: Vec<CallId>,
    /// Events follow the end.
    is_late: bool,
}

impl Heard {
    /// Reads events until there is no further one. Dropping the future loses none.
    async fn listen(&mut self, reply: &mut Reply) {
        while let Some(event) = reply.next_event().await {
            self.is_late |= !self.ends.is_empty();
            match event {
                ReplyEvent::Finished { reason, .. } => self.ends.push(Ok(reason)),
                ReplyEvent::Failed(error) => self.ends.push(Err(error)),
                ReplyEvent::Call(call) => self.calls.push(call.id),
                _ => {}
            }
        }
    }

    /// Whether the model or a limit ended the reply.
    fn is_complete(&self) -> bool {
        use FinishReason::{CallLimit, EndOfTurn, Length};
        matches!(self.ends[..], [Ok(EndOfTurn | Length | CallLimit)])
    }
}

/// A task with an agent.
struct Talker {
    stage: Arc<Stage>,
    number: usize,
    dice: Dice,
    agent: Agent,
}

async fn talk(stage: Arc<Stage>, number: usize, mut dice: Dice) {
    while !stage.is_over() {
        let slot = dice.throw(ENGINES as u64) as usize;
        let engine = lock(&stage.engines[slot]).clone();
        let Some(engine) = engine else {
            sleep(Duration::from_millis(5)).await;
            continue;
        };
        let agent = engine.agent_with(spec(&mut dice));
        let mut talker = Talker { stage: Arc::clone(&stage), number, dice: dice.split(), agent };
        for _ in 0..dice.throw(16) {
            if stage.is_over() || !(engine.state().is_ready() || dice.one_in(2)) {
                break;
            }
            talker.act().await;
        }
    }
}

fn spec(dice: &mut Dice) -> AgentSpec {
    let actions = ActionSet::new(action()).ok().filter(|_| dice.one_in(2)).map(Actions::new);
    let max_reply_tokens = 4 + dice.throw(40) as u32;
    AgentSpec { actions, max_reply_tokens, ..AgentSpec::new(persona(dice)) }
}

impl Talker {
    fn ask(&mut self) -> Reply {
        self.agent.ask(self.dice.pick(&QUESTIONS).unwrap_or_default())
    }

    fn ask_under(&mut self, options: AskOptions) -> Reply {
        let question = self.dice.pick(&QUESTIONS).unwrap_or_default();
        self.agent.ask_with(question, options)
    }

    /// Up to the time of a short reply.
    fn while_speaking(&mut self) -> Duration {
        Duration::from_millis(self.dice.throw(150))
    }

    /// An ask, and the beginning of its reply.
    async fn interrupted(&mut self) -> (Reply, Heard) {
        let (mut reply, mut heard) = (self.ask(), Heard::default());
        let _elapsed = timeout(self.while_speaking(), heard.listen(&mut reply)).await;
        (reply, heard)
    }

    async fn act(&mut self) {
        let Some(operation) = self.dice.pick(Op::value_variants()) else { return };
        self.stage.operation(operation);
        match operation {
            Op::DropReply
            | Op::DropUnpolled
            | Op::TimeOut
            | Op::Select
            | Op::Cancel
            | Op::CancelHeard => {
                self.interrupt(operation).await;
            }
            Op::Rewind | Op::EditTurn | Op::SetConversation | Op::Change | Op::SetDetail => {
                let (reply, heard) = self.interrupted().await;
                self.change(operation);
                self.stage.hear_rest(reply, heard).await;
            }
            Op::SaveCache | Op::LoadCache | Op::DropCacheJob => self.copy_cache(operation).await,
            Op::Fork | Op::DropFork | Op::CopyConversation | Op::DropAgent => {
                self.copy(operation).await;
            }
            _ => self.ask_somehow(operation).await,
        }
    }

    async fn ask_somehow(&mut self, operation: Operation) {
        let stage = Arc::clone(&self.stage);
        match operation {
            Op::AskUnderConstraint => {
                let options = AskOptions::constraint(constraint(&mut self.dice));
                stage.hear(self.ask_under(options)).await;
            }
            Op::AskRefused => {
                let options = AskOptions::constraint(refused_constraint(&mut self.dice));
                let heard = stage.hear(self.ask_under(options)).await;
                stage.promise(!heard.is_complete(), || "a useless constraint was used".into());
            }
            Op::AskRaw => {
                stage.hear(self.agent.ask(Prompt::Raw("Once upon".into()))).await;
            }
            Op::AskAfter => {
                let first = self.ask();
                let turns = vec![Turn::new(Speaker::Observation, "Odo enters the smithy.")];
                let second = self.agent.ask_after(turns, Prompt::Continue);
                stage.hear(second).await;
                stage.hear(first).await;
            }
            Op::AskTooOften => {
                let mut replies: Vec<_> = (0..12).map(|_| self.ask()).collect();
                replies.truncate(self.dice.throw(12) as usize);
                for reply in replies {
                    stage.hear(reply).await;
                }
            }
            Op::AskAndAct => self.act_and_answer().await,
            Op::AnswerForeignCall => {
                let other = (self.number + 1) % TALKERS;
                let Some(id) = lock(&stage.calls)[other] else { return };
                let heard = stage.hear(self.agent.answer_calls([(id, "It is done.")])).await;
                stage.promise(!heard.is_complete(), || "a foreign result was taken".into());
            }
            Op::Regenerate => _ = stage.hear(self.agent.regenerate()).await,
            _ => _ = stage.hear(self.ask()).await,
        }
    }

    /// Answers the calls of a reply twice.
    async fn act_and_answer(&mut self) {
        let stage = Arc::clone(&self.stage);
        let actions = Some(ActionPolicy::Required);
        let reply = self.ask_under(AskOptions { actions, ..AskOptions::default() });
        let calls = stage.hear(reply).await.calls;
        lock(&stage.calls)[self.number] = calls.first().copied();
        let results = || calls.iter().map(|id| (*id, "It is done."));
        if calls.is_empty() {
            return;
        }
        let first = stage.hear(self.agent.answer_calls(results())).await;
        let again = stage.hear(self.agent.answer_calls(results())).await;
        let is_refused = !first.is_complete() || again.ends.iter().all(Result::is_err);
        stage.promise(is_refused, || format!("results were taken twice: {first:?}, {again:?}"));
    }

    async fn interrupt(&mut self, operation: Operation) {
        let short = self.while_speaking();
        match operation {
            Op::DropUnpolled => {
                drop((self.ask(), self.ask().finish(), self.agent.fork()));
                drop(self.agent.copy_conversation(&self.agent));
            }
            Op::TimeOut => _ = timeout(short, self.ask().finish()).await,
            Op::Select => {
                let (one, two) = (self.ask(), self.agent.regenerate());
                tokio::select! {
                    _ = one.finish() => {}
                    _ = two.finish() => {}
                    () = sleep(short) => {}
                }
            }
            _ => {
                let (reply, heard) = self.interrupted().await;
                match operation {
                    Op::Cancel => reply.cancel(),
                    Op::CancelHeard => reply.cancel_heard(self.dice.throw(60) as usize),
                    _ => return,
                }
                self.stage.hear_rest(reply, heard).await;
            }
        }
    }

    fn change(&mut self, operation: Operation) {
        let number = self.dice.throw(4) as usize;
        let turns = QUESTIONS.iter().take(number).map(|text| Turn::new(Speaker::User, *text));
        let changed = match operation {
            Op::Rewind => self.agent.rewind(number),
            Op::EditTurn => self.agent.edit_turn(number, "Nothing at all."),
            _ => Ok(()),
        };
        match operation {
            Op::SetConversation => self.agent.set_conversation(turns.collect()),
            Op::Change => self.agent.change(spec(&mut self.dice)),
            Op::SetDetail => {
                let details = [Detail::Full, Detail::Reduced, Detail::Background];
                self.agent.set_detail(details[number % 3]);
            }
            _ => {}
        }
        self.stage.promise(changed.is_ok(), || format!("{operation:?}: {changed:?}"));
    }

    /// Copies of agents, and agents that are dropped while they speak.
    async fn copy(&mut self, operation: Operation) {
        let stage = Arc::clone(&self.stage);
        let short = self.while_speaking();
        if matches!(operation, Op::DropFork) {
            let _elapsed = timeout(short / 50, self.agent.fork()).await;
            return;
        }
        let (reply, heard) = self.interrupted().await;
        let Some(Ok(fork)) = stage.soon("a fork", self.agent.fork()).await else { return };
        if matches!(operation, Op::CopyConversation) {
            stage.soon("a copy", fork.copy_conversation(&self.agent)).await;
        }
        let of_fork = fork.ask(QUESTIONS[0]);
        if matches!(operation, Op::DropAgent) || self.dice.one_in(2) {
            self.agent = fork;
        } else {
            drop(fork);
        }
        stage.hear(of_fork).await;
        stage.hear_rest(reply, heard).await;
    }

    async fn copy_cache(&mut self, operation: Operation) {
        let path = |number: usize| self.stage.folder.path().join(format!("{number}.kv"));
        match operation {
            Op::SaveCache => {
                self.stage.hear_job("save", self.agent.save_cache(path(self.number))).await;
            }
            Op::LoadCache => {
                // A file of any talker, or of none.
                let path = path(self.dice.throw(TALKERS as u64 + 1) as usize);
                self.stage.hear_job("load", self.agent.load_cache(path)).await;
            }
            _ => drop((self.agent.save_cache_bytes(), self.agent.load_cache(path(0)))),
        }
    }
}

fn builder(dice: &mut Dice) -> EngineBuilder {
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        context_tokens: 512,
        max_agents: Some(2 + dice.throw(6) as u32),
        wait_for_slot: !dice.one_in(8),
        background_prefill: dice.one_in(2),
        prepare_constraints: dice.one_in(2),
        ..EngineOptions::demo()
    };
    Engine::builder(options).max_asks(64)
}

/// Starts and ends the engine of a slot. The last one stays.
async fn own(stage: Arc<Stage>, slot: usize, mut dice: Dice) {
    while !stage.is_over() {
        if dice.one_in(5) {
            stage.operation(OfEngine::DropStart);
            let _elapsed = timeout(millis(&mut dice, 50), builder(&mut dice).start()).await;
        }
        stage.operation(OfEngine::Start);
        let started = stage.soon("a start", builder(&mut dice).start()).await;
        let Some(Ok(engine)) = started else {
            return stage.promise(false, || format!("an engine did not start: {started:?}"));
        };
        *lock(&stage.engines[slot]) = Some(engine.clone());
        for _ in 0..dice.throw(8) {
            manage(&stage, &engine, &mut dice).await;
            sleep(millis(&mut dice, 500)).await;
        }
        if !stage.is_over() {
            *lock(&stage.engines[slot]) = None;
            end(&stage, engine, &mut dice).await;
        }
    }
}

fn millis(dice: &mut Dice, below: u64) -> Duration {
    Duration::from_millis(dice.throw(below))
}

async fn manage(stage: &Stage, engine: &Engine, dice: &mut Dice) {
    match dice.throw(3) {
        0 => {
            stage.operation(OfEngine::Pause);
            engine.set_paused(true);
            sleep(millis(dice, 100)).await;
            engine.set_paused(false);
        }
        1 => {
            stage.operation(OfEngine::Resize);
            engine.set_kv_tokens(512 * dice.throw(7) as u32);
            sleep(millis(dice, 300)).await;
            engine.set_kv_tokens(u32::MAX);
        }
        _ => {
            stage.operation(OfEngine::Budget);
            engine.set_budget(millis(dice, 8));
            sleep(millis(dice, 100)).await;
            engine.set_budget(None);
        }
    }
}

/// Ends an engine while asks are open.
async fn end(stage: &Stage, engine: Engine, dice: &mut Dice) {
    match dice.throw(3) {
        0 => {
            stage.operation(OfEngine::Stop);
            stage.soon("a stop", engine.stop()).await;
        }
        1 => {
            stage.operation(OfEngine::DropStop);
            let _elapsed = timeout(Duration::from_micros(dice.throw(500)), engine.stop()).await;
        }
        _ => stage.operation(OfEngine::DropEngine),
    }
}

/// A new agent answers, and the engine has forgotten all others.
async fn check(stage: &Stage, engine: &Engine) {
    let greta = engine.agent("You are Greta, the smith of Emberfall.");
    let said = stage.soon("the last ask", greta.ask(QUESTIONS[0]).finish()).await;
    let is_answered = matches!(&said, Some(Ok(finished)) if !finished.text.is_empty());
    stage.promise(is_answered, || format!("the last ask: {said:?}"));
    drop(greta);
    let is_empty = async {
        while engine.stats().agents > 0 || engine.stats().asks_waiting > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    stage.soon("removed agents", is_empty).await;
}

async fn perform(mut dice: Dice, length: Duration) -> Result<Tally, Box<dyn Error>> {
    let stage = Arc::new(Stage {
        engines: Default::default(),
        calls: Mutex::default(),
        tally: Mutex::default(),
        folder: tempfile::tempdir()?,
        until: Instant::now() + length,
    });
    let mut tasks = Vec::new();
    for slot in 0..ENGINES {
        tasks.push(tokio::spawn(own(Arc::clone(&stage), slot, dice.split())));
    }
    for number in 0..TALKERS {
        tasks.push(tokio::spawn(talk(Arc::clone(&stage), number, dice.split())));
    }
    for task in tasks {
        task.await?;
    }
    let mut engines: Vec<_> = stage.engines.iter().filter_map(|slot| lock(slot).take()).collect();
    if engines.is_empty() {
        engines.push(builder(&mut dice).start().await?);
    }
    for engine in engines {
        check(&stage, &engine).await;
        if dice.one_in(2) {
            stage.soon("the last stop", engine.stop()).await;
        }
    }
    let tally = lock(&stage.tally).clone();
    Ok(tally)
}

/// A round of operations. All engines end with it.
pub fn round(dice: Dice, length: Duration) -> Result<Tally, Box<dyn Error>> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_time().build()?.block_on(perform(dice, length))
}
