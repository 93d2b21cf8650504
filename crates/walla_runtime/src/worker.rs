//! A thread for one kind of jobs, next to the device thread.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::Thread;

use walla_cpu::priority::spawn;

/// Runs jobs `J` in order, with a context `C`: on a thread, or in the call in tests that need
/// identical runs.
#[derive(Debug)]
pub(crate) struct Worker<C, J, D> {
    name: &'static str,
    context: C,
    /// Does not panic: a job that fails must not end the thread.
    run: fn(&C, J) -> D,
    /// The thread to wake when a job is done. `None`: jobs run in the call.
    wakes: Option<Thread>,
    channel: Option<(SyncSender<J>, Receiver<D>)>,
    /// Results of jobs that ran in the call.
    done: VecDeque<D>,
    /// Jobs, done or not, that it holds at most before one is collected.
    max_jobs: usize,
    jobs: usize,
    /// The system hangs: results come when this is cleared.
    #[cfg(test)]
    pub is_held: bool,
}

impl<C, J, D> Worker<C, J, D>
where
    C: Clone + Send + 'static,
    J: Send + 'static,
    D: Send + 'static,
{
    pub fn new(
        name: &'static str,
        max_jobs: usize,
        wakes: Option<Thread>,
        context: C,
        run: fn(&C, J) -> D,
    ) -> Self {
        Self {
            name,
            context,
            run,
            wakes,
            channel: None,
            done: VecDeque::new(),
            max_jobs,
            jobs: 0,
            #[cfg(test)]
            is_held: false,
        }
    }

    /// Whether it can take another job. If not, it wakes the device thread when it can.
    pub fn has_room(&self) -> bool {
        self.jobs < self.max_jobs
    }

    /// Starts the thread before the first job.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(&mut self) -> io::Result<()> {
        let Some(wakes) = self.wakes.clone().filter(|_| self.channel.is_none()) else {
            return Ok(());
        };
        let (jobs, queue) = sync_channel(self.max_jobs);
        let (results, collected) = sync_channel(self.max_jobs);
        let (context, run) = (self.context.clone(), self.run);
        let work = move || {
            // Ends when the worker is dropped: the thread is detached, as a job may hang.
            for job in queue {
                if results.send(run(&context, job)).is_err() {
                    return;
                }
                wakes.unpark();
            }
        };
        spawn(self.name, work)?;
        self.channel = Some((jobs, collected));
        Ok(())
    }

    /// Starts a job.
    ///
    /// # Errors
    /// Without room, or if the thread cannot start or has ended.
    pub fn submit(&mut self, job: J) -> io::Result<()> {
        let name = self.name;
        let ended = || io::Error::other(format!("the thread {name} has ended"));
        if !self.has_room() {
            return Err(ended());
        }
        self.start()?;
        match &self.channel {
            // The channel holds `max_jobs`, so it is never full.
            Some((jobs, _)) => jobs.try_send(job).map_err(|_| ended())?,
            None => self.done.push_back((self.run)(&self.context, job)),
        }
        self.jobs += 1;
        Ok(())
    }

    /// The next result, if there is one.
    pub fn collect(&mut self) -> Option<D> {
        #[cfg(test)]
        if self.is_held {
            return None;
        }
        let received = match &self.channel {
            Some((_, results)) => results.try_recv(),
            None => self.done.pop_front().ok_or(TryRecvError::Empty),
        };
        match received {
            Ok(done) => {
                self.jobs -= 1;
                Some(done)
            }
            Err(TryRecvError::Empty) => None,
            // The thread is gone with its jobs: the next job starts another one.
            Err(TryRecvError::Disconnected) => {
                (self.channel, self.jobs) = (None, 0);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn doubled(offset: &u32, job: u32) -> u32 {
        assert!(job != 13, "a job that breaks its thread");
        2 * job + offset
    }

    fn worker(wakes: Option<Thread>) -> Worker<u32, u32, u32> {
        Worker::new("walla-test", 2, wakes, 1, doubled)
    }

    fn next(worker: &mut Worker<u32, u32, u32>) -> u32 {
        loop {
            match worker.collect() {
                Some(done) => return done,
                None => thread::park_timeout(Duration::from_millis(1)),
            }
        }
    }

    #[test]
    fn results_come_in_the_order_of_the_jobs_and_jobs_are_bounded() {
        for wakes in [None, Some(thread::current())] {
            let mut worker = worker(wakes);
            worker.submit(1).unwrap();
            worker.submit(2).unwrap();
            assert!(!worker.has_room() && worker.submit(3).is_err(), "two jobs at most");
            assert_eq!([next(&mut worker), next(&mut worker)], [3, 5]);
            assert!(worker.has_room() && worker.collect().is_none());
        }
    }

    #[test]
    fn another_thread_replaces_one_that_has_ended() {
        let mut worker = worker(Some(thread::current()));
        worker.submit(13).unwrap();
        let _refused_or_lost = worker.submit(4);
        while worker.jobs > 0 {
            assert_eq!(worker.collect(), None, "the jobs of the thread are lost");
            thread::park_timeout(Duration::from_millis(1));
        }
        worker.submit(5).unwrap();
        assert_eq!(next(&mut worker), 11);
    }
}
