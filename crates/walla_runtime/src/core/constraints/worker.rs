//! Worker threads: compile constraints and compute masks.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use walla_action::{ActionError, ActionSet, CallMarkers, GrammarOptions, call_grammar};
use walla_constraint::{Compiler, Constraint, MaskOutcome, MatchError, Matcher};
use walla_types::{TokenId, TokenMask};

use crate::api::{AgentId, ReplyError, ReplyId};
use crate::model_text::ModelText;

/// Threads for masks, at most. A mask takes up to some milliseconds for a large vocabulary.
const THREADS_MAX: usize = 4;

/// The reply of a job, and the number of the job.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobId {
    pub agent: AgentId,
    pub reply_id: ReplyId,
    pub number: u64,
}

/// A mask to compute.
#[derive(Debug)]
pub(super) struct Job {
    pub id: JobId,
    pub work: Work,
    /// The agent's own mask, which the constraint's masks are intersected with.
    pub allowed: Option<Arc<TokenMask>>,
}

#[derive(Debug)]
pub(super) enum Work {
    /// Compiles a grammar. Its first mask allows the opening tokens of reasoning too.
    Begin { grammar: Grammar, opening: Vec<TokenId> },
    /// Accepts the token that was sampled.
    Continue { matcher: Box<Matcher>, token: TokenId },
}

/// A grammar to compile.
#[derive(Debug)]
pub(in crate::core) enum Grammar {
    /// Of all speech.
    Speech(Constraint),
    /// Of calls. `behind` is text of the call that is known already.
    Calls { markers: CallMarkers, set: ActionSet, options: GrammarOptions, behind: Vec<u8> },
}

/// Result of a job.
#[derive(Debug)]
pub(super) struct Progress {
    pub matcher: Box<Matcher>,
    /// Tokens that follow without a draw. The matcher has accepted them.
    pub forced: Vec<TokenId>,
    /// The mask behind them; `None`: the grammar ends.
    pub mask: Option<Arc<TokenMask>>,
}

/// A job that is done.
#[derive(Debug)]
pub(super) struct Done {
    pub id: JobId,
    pub result: Result<Progress, ReplyError>,
    pub took: Duration,
}

/// Worker threads, started by the first constrained reply.
#[derive(Debug)]
pub(in crate::core) struct Constraints {
    shared: Arc<Shared>,
    /// Unparked when a job is done. `None`: jobs run inside [`Constraints::submit`].
    waker: Option<Thread>,
    done: (Sender<Done>, Receiver<Done>),
    threads: usize,
    number: u64,
    /// Calls of `collect` that return nothing before the next result.
    #[cfg(test)]
    pub delays: VecDeque<u32>,
}

#[derive(Debug)]
struct Shared {
    text: Arc<ModelText>,
    queue: Mutex<Queue>,
    wakes: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

impl Constraints {
    pub fn new(text: Arc<ModelText>, waker: Option<Thread>) -> Self {
        let shared = Shared { text, queue: Mutex::default(), wakes: Condvar::new() };
        Self {
            shared: Arc::new(shared),
            waker,
            done: channel(),
            threads: 0,
            number: 0,
            #[cfg(test)]
            delays: VecDeque::new(),
        }
    }

    /// The number of the next job.
    pub fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Starts a job. There is at most one for each reply.
    pub(super) fn submit(&mut self, job: Job) -> Result<(), ReplyError> {
        let Some(waker) = self.waker.clone() else {
            // The receiver is in this struct, so sending succeeds.
            let _sent = self.done.0.send(self.shared.run_caught(job));
            return Ok(());
        };
        if self.threads == 0 {
            self.start_threads(&waker)?;
        }
        self.shared.queue().jobs.push_back(job);
        self.shared.wakes.notify_one();
        Ok(())
    }

    /// Starts the threads: half as many as there are processors.
    fn start_threads(&mut self, waker: &Thread) -> Result<(), ReplyError> {
        let wanted = std::thread::available_parallelism().map_or(1, usize::from) / 2;
        while self.threads < wanted.clamp(1, THREADS_MAX) {
            let (shared, done, waker) =
                (Arc::clone(&self.shared), self.done.0.clone(), waker.clone());
            let work = move || {
                while let Some(job) = shared.next_job() {
                    if done.send(shared.run_caught(job)).is_err() {
                        return;
                    }
                    waker.unpark();
                }
            };
            match std::thread::Builder::new().name("walla-mask".into()).spawn(work) {
                Ok(_detached) => self.threads += 1,
                Err(_) if self.threads > 0 => break,
                Err(error) => {
                    let reason = format!("no thread for the masks of constraints: {error}");
                    return Err(ReplyError::Text(reason));
                }
            }
        }
        Ok(())
    }

    /// Returns a finished job, if there is one.
    pub(super) fn collect(&mut self) -> Option<Done> {
        #[cfg(test)]
        if let Some(delay) = self.delays.front_mut() {
            if *delay > 0 {
                *delay -= 1;
                return None;
            }
            self.delays.pop_front();
        }
        self.done.1.try_recv().ok()
    }
}

impl Drop for Constraints {
    /// Ends the threads after their current jobs, without waiting: a job is bounded by the limits
    /// of the compiler.
    fn drop(&mut self) {
        self.shared.queue().is_closed = true;
        self.shared.wakes.notify_all();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job. `None` if there will be none.
    fn next_job(&self) -> Option<Job> {
        let mut queue = self.queue();
        loop {
            if queue.is_closed {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            queue = self.wakes.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run_caught(&self, job: Job) -> Done {
        let (id, start) = (job.id, Instant::now());
        let result = catch_unwind(AssertUnwindSafe(|| self.run(job))).unwrap_or_else(|_| {
            Err(ReplyError::Text("the mask could not be computed: a defect in walla".into()))
        });
        Done { id, result, took: start.elapsed() }
    }

    fn run(&self, Job { work, allowed, .. }: Job) -> Result<Progress, ReplyError> {
        let stopped = |error: MatchError| ReplyError::ConstraintStopped(Arc::new(error));
        let compiler = self.compiler()?;
        let (mut matcher, opening) = match work {
            Work::Begin { grammar, opening } => {
                let of_speech = |error| ReplyError::Constraint(Arc::new(error));
                let of_calls = |error| ReplyError::Actions(Arc::new(error));
                let (grammar, behind) = match grammar {
                    Grammar::Speech(constraint) => {
                        (compiler.compile(&constraint).map_err(of_speech)?, Vec::new())
                    }
                    Grammar::Calls { markers, set, options, behind } => {
                        let grammar = call_grammar(&markers, &set, options).map_err(of_calls)?;
                        let compiled = compiler.compile(&grammar).map_err(|error| {
                            of_calls(ActionError::Schema { reason: error.to_string() })
                        });
                        (compiled?, behind)
                    }
                };
                let mut matcher = Box::new(grammar.matcher());
                for token in compiler.vocabulary().encode_bytes(&behind) {
                    if matcher.accept(token).is_err() {
                        // The call is malformed already: its reader reports that.
                        return Ok(Progress { matcher, forced: Vec::new(), mask: None });
                    }
                }
                (matcher, opening)
            }
            Work::Continue { mut matcher, token } => {
                matcher.accept(token).map_err(stopped)?;
                (matcher, Vec::new())
            }
        };
        let mut forced = Vec::new();
        // A token that the agent may not use is left to the draw, which has an empty mask then. The
        // opening tokens of reasoning are an alternative to all others.
        if allowed.is_none() && opening.is_empty() {
            matcher.forced(&mut forced).map_err(stopped)?;
            for token in &forced {
                matcher.accept(*token).map_err(stopped)?;
            }
        }
        if matcher.has_ended() {
            return Ok(Progress { matcher, forced, mask: None });
        }
        let mut words = vec![0; compiler.vocabulary().mask_words()];
        if matcher.mask(&mut words).map_err(stopped)? == MaskOutcome::Ended {
            return Ok(Progress { matcher, forced, mask: None });
        }
        for token in opening {
            if let Some(word) = words.get_mut(token.0 as usize / 32) {
                *word |= 1 << (token.0 % 32);
            }
        }
        if let Some(allowed) = allowed {
            let others = allowed.words().iter().copied().chain(std::iter::repeat(0));
            words.iter_mut().zip(others).for_each(|(word, other)| *word &= other);
        }
        let mask = TokenMask::from_words(words).map_err(|_| ReplyError::NothingAllowed)?;
        Ok(Progress { matcher, forced, mask: Some(Arc::new(mask)) })
    }

    /// The compiler. Its tables are prepared now, if that was not done while loading.
    fn compiler(&self) -> Result<&Compiler, ReplyError> {
        let compiler = self.text.compiler.get();
        compiler.map_err(|error| ReplyError::ConstraintVocabulary(Arc::clone(error)))
    }
}
