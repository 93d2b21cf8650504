//! The thread: divides requests into batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use walla_cpu::budget::{Account, OwnFrames};
use walla_types::TokenId;

use crate::error::EmbedError;
use crate::model::{Model, Tokens};
use crate::queue::{Request, Shared};
use crate::text::Embedding;

/// Fails all requests when the thread ends, for any reason.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Runs until the last handle is dropped.
pub(crate) fn run(mut model: Model, shared: &Arc<Shared>) {
    let _end = End(shared);
    let (mut work, mut account) = (Work::default(), Account::default());
    let mut frames = OwnFrames::default();
    while !shared.stops() {
        let begin = Instant::now();
        let max_batch_tokens = model.options.max_batch_tokens as usize;
        work.fill(&model, shared, max_batch_tokens);
        if work.ready.is_empty() {
            // An unpark since `fill` is kept, so no request is slept through.
            std::thread::park();
            continue;
        }
        let encoding = begin.elapsed();
        let next_frame = frames.grant(&shared.grants);
        match account.tokens(&shared.grants) {
            Some(0) => {
                let has_time = || account.tokens(&shared.grants) != Some(0);
                shared.sleep_until_frame(next_frame, has_time);
            }
            limit => {
                let limit = limit.unwrap_or(usize::MAX).min(max_batch_tokens);
                let (tokens, time) = work.compute(&mut model, limit);
                account.spend(tokens, time.saturating_add(encoding), &shared.grants);
            }
        }
    }
}

/// A request in work.
struct Job {
    request: Request,
    /// Index of the next text to encode.
    next: usize,
    done: Vec<Embedding>,
    /// The result was stored, or the host dropped its side.
    has_ended: bool,
}

impl Job {
    fn end(&mut self, outcome: Result<Vec<Embedding>, EmbedError>) {
        self.request.answer.send(outcome);
        self.has_ended = true;
    }
}

/// A text with its tokens.
struct Ready {
    /// Serial number of the job.
    job: u64,
    /// Index in the job.
    text: usize,
    tokens: Tokens,
}

/// Requests in work, in order.
#[derive(Default)]
struct Work {
    jobs: VecDeque<Job>,
    /// Serial number of the first job.
    first: u64,
    ready: VecDeque<Ready>,
    ready_tokens: usize,
}

impl Work {
    /// Encodes texts until a batch is full or no text is left.
    fn fill(&mut self, model: &Model, shared: &Shared, max_tokens: usize) {
        self.drop_ended();
        while self.ready_tokens < max_tokens && !shared.stops() {
            let unfinished = |job: &&mut Job| !job.has_ended && job.next < job.request.texts.len();
            let serial = self.first + self.jobs.len().saturating_sub(1) as u64;
            // Only the last job can have texts that are not encoded.
            let Some(job) = self.jobs.back_mut().filter(unfinished) else {
                let Some(request) = shared.next() else { return };
                let done = Vec::with_capacity(request.texts.len());
                let mut job = Job { request, next: 0, done, has_ended: false };
                if job.request.texts.is_empty() {
                    job.end(Ok(Vec::new()));
                }
                self.jobs.push_back(job);
                self.drop_ended();
                continue;
            };
            let Some(text) = job.request.texts.get_mut(job.next).map(std::mem::take) else {
                return;
            };
            match model.tokens(job.next, &text, job.request.purpose) {
                Ok(tokens) => {
                    self.ready_tokens += tokens.ids.len();
                    self.ready.push_back(Ready { job: serial, text: job.next, tokens });
                    job.next += 1;
                }
                Err(error) => job.end(Err(error)),
            }
            self.drop_ended();
        }
    }

    /// Computes the next texts: as many as fit into `limit` tokens, and at least one. Returns the
    /// tokens and the time.
    fn compute(&mut self, model: &mut Model, limit: usize) -> (usize, Duration) {
        let begin = Instant::now();
        let (mut count, mut tokens) = (0, 0);
        for ready in &self.ready {
            let sum = tokens + ready.tokens.ids.len();
            // A text longer than the limit is computed alone, or it would wait forever.
            if count > 0 && sum > limit {
                break;
            }
            (count, tokens) = (count + 1, sum);
        }
        let batch: Vec<Ready> = self.ready.drain(..count).collect();
        self.ready_tokens -= tokens;
        let texts: Vec<&[TokenId]> = batch.iter().map(|ready| &ready.tokens.ids[..]).collect();
        match model.run(&texts) {
            Ok(vectors) => {
                for (ready, vector) in batch.iter().zip(vectors) {
                    self.store(ready, vector);
                }
            }
            Err(reason) => {
                for ready in &batch {
                    if let Some(job) = self.job(ready.job) {
                        job.end(Err(EmbedError::Failed(reason.clone())));
                    }
                }
            }
        }
        self.drop_ended();
        (tokens, begin.elapsed())
    }

    /// Stores the vector of a text; texts of a job are computed in order.
    fn store(&mut self, ready: &Ready, vector: Option<Vec<f32>>) {
        let Some(job) = self.job(ready.job).filter(|job| !job.has_ended) else { return };
        let Some(vector) = vector else {
            return job.end(Err(EmbedError::NotFinite { text: ready.text }));
        };
        let tokens = ready.tokens.ids.len() as u32; // At most 2^20.
        job.done.push(Embedding { vector, tokens, is_cut: ready.tokens.is_cut });
        if job.done.len() == job.request.texts.len() {
            let done = std::mem::take(&mut job.done);
            job.end(Ok(done));
        }
    }

    fn job(&mut self, serial: u64) -> Option<&mut Job> {
        self.jobs.get_mut(usize::try_from(serial.checked_sub(self.first)?).ok()?)
    }

    /// Drops jobs that have ended, whose texts are left out.
    fn drop_ended(&mut self) {
        let mut ended = false;
        for job in &mut self.jobs {
            if !job.has_ended && job.request.answer.is_unwanted() {
                job.has_ended = true;
            }
            ended |= job.has_ended;
        }
        if !ended {
            return;
        }
        let Self { jobs, first, ready, ready_tokens } = self;
        ready.retain(|ready| {
            let index = usize::try_from(ready.job.saturating_sub(*first)).unwrap_or(usize::MAX);
            let stays = jobs.get(index).is_some_and(|job| !job.has_ended);
            *ready_tokens -= if stays { 0 } else { ready.tokens.ids.len() };
            stays
        });
        while jobs.front().is_some_and(|job| job.has_ended) {
            jobs.pop_front();
            *first += 1;
        }
    }
}
