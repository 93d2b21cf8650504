//! Worker threads: compile constraints and compute masks.

#[cfg(test)]
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use walla_cpu::priority::spawn;
use walla_grammar::{
    ActionSet, CallMarkers, Compiler, Constraint, GrammarOptions, MaskOutcome, MatchError, Matcher,
    call_grammar,
};
use walla_types::{TokenId, TokenMask};

use crate::api::{AgentId, ReplyError, ReplyId};
use crate::model_text::ModelText;

/// Threads for masks. A mask takes up to some milliseconds for a large vocabulary. One thread more
/// than long jobs may use is left for short ones.
const THREADS: std::ops::RangeInclusive<usize> = 2..=4;

/// Time from which on a job is long. A compilation counts as one.
const LONG: Duration = Duration::from_millis(20);

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
    /// Its reply waits as long as this can be upgraded. A job without a reply is not started.
    pub waits: Weak<()>,
    /// Time that the job before took for the reply. `None`: the first one, a compilation.
    pub before: Option<Duration>,
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

/// A job is due when its reply has waited for as long as the job before took, so a reply with long
/// jobs does not delay the others.
#[derive(Debug, Default)]
struct Queue {
    jobs: Vec<(Instant, Job)>,
    /// Long jobs that run.
    long: usize,
    threads: usize,
    is_closed: bool,
}

impl Queue {
    fn push(&mut self, job: Job) {
        let due = Instant::now() + job.before.unwrap_or(LONG);
        self.jobs.push((due, job));
    }

    /// The job that is due first. A long one only if a thread is left for short ones.
    fn pop(&mut self) -> Option<Job> {
        self.jobs.retain(|(_, job)| job.waits.strong_count() > 0);
        let may_be_long = self.long + 1 < self.threads;
        let all = self.jobs.iter().enumerate();
        let ready = all.filter(|(_, (_, job))| may_be_long || !job.is_long());
        let (index, _) = ready.min_by_key(|(_, (due, job))| (*due, job.id.number))?;
        let (_, job) = self.jobs.swap_remove(index);
        self.long += usize::from(job.is_long());
        Some(job)
    }
}

impl Job {
    fn is_long(&self) -> bool {
        self.before.is_none_or(|before| before >= LONG)
    }
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
        self.shared.queue().push(job);
        self.shared.wakes.notify_one();
        Ok(())
    }

    /// Starts the threads: half as many as there are processors, within [`THREADS`].
    fn start_threads(&mut self, waker: &Thread) -> Result<(), ReplyError> {
        let wanted = std::thread::available_parallelism().map_or(1, usize::from) / 2;
        while self.threads < wanted.clamp(*THREADS.start(), *THREADS.end()) {
            let (shared, done, waker) =
                (Arc::clone(&self.shared), self.done.0.clone(), waker.clone());
            let work = move || {
                while let Some(job) = shared.next_job() {
                    let is_long = job.is_long();
                    let result = shared.run_caught(job);
                    shared.end_job(is_long);
                    if done.send(result).is_err() {
                        return;
                    }
                    waker.unpark();
                }
            };
            match spawn("walla-mask", work) {
                Ok(_detached) => {
                    self.threads += 1;
                    // The only thread runs all jobs.
                    self.shared.queue().threads = self.threads.max(2);
                }
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
    /// Ends the threads after their current jobs, without waiting. The jobs are bounded: the
    /// compiler refuses sources that need more work or memory than its limits, before it starts,
    /// and a mask has limits too.
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
            if let Some(job) = queue.pop() {
                return Some(job);
            }
            queue = self.wakes.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A job has ended: a long one that waits can start.
    fn end_job(&self, is_long: bool) {
        if is_long {
            self.queue().long -= 1;
            self.wakes.notify_one();
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
                        let compiled =
                            compiler.compile(&grammar).map_err(|error| of_calls(error.into()));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u64, before: Option<Duration>, waits: &Arc<()>) -> Job {
        let id = JobId { agent: AgentId(1), reply_id: ReplyId(number), number };
        let grammar = Grammar::Speech(Constraint::regex("a"));
        let work = Work::Begin { grammar, opening: Vec::new() };
        Job { id, waits: Arc::downgrade(waits), before, work, allowed: None }
    }

    fn numbers(queue: &mut Queue) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop()).map(|job| job.id.number).collect()
    }

    #[test]
    fn a_thread_is_left_for_short_jobs() {
        let waits = Arc::default();
        let mut queue = Queue { threads: 3, ..Queue::default() };
        for number in 1..=4 {
            queue.push(job(number, None, &waits));
        }
        queue.push(job(5, Some(LONG), &waits));
        assert_eq!(numbers(&mut queue), [1, 2], "two compile");
        queue.push(job(6, Some(Duration::ZERO), &waits));
        assert_eq!(numbers(&mut queue), [6]);
        queue.long -= 1;
        assert_eq!(numbers(&mut queue), [3], "one has ended");
    }

    #[test]
    fn a_reply_with_long_masks_does_not_delay_the_others() {
        let waits = Arc::default();
        let mut queue = Queue { threads: 2, ..Queue::default() };
        let hour = Duration::from_secs(3_600);
        queue.push(job(1, Some(hour), &waits));
        queue.push(job(2, None, &waits));
        queue.push(job(3, Some(Duration::ZERO), &waits));
        queue.push(job(4, Some(Duration::ZERO), &waits));
        assert_eq!(numbers(&mut queue), [3, 4, 2], "the long mask comes last");
        queue.long -= 1;
        assert_eq!(numbers(&mut queue), [1]);
    }

    #[test]
    fn a_job_without_a_reply_is_not_started() {
        let (gone, waits) = (Arc::default(), Arc::default());
        let mut queue = Queue { threads: 2, ..Queue::default() };
        queue.push(job(1, None, &gone));
        queue.push(job(2, None, &waits));
        drop(gone);
        assert_eq!(numbers(&mut queue), [2]);
        assert!(queue.jobs.is_empty());
    }
}
