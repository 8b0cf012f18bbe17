//! The thread that writes and syncs while the owner goes on appending.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use saker_runtime::fs::{End, File};
use saker_runtime::thread::{self, JoinHandle};

use super::ZEROS_AHEAD;

/// Bytes to put into a segment and make durable.
pub struct Write {
    /// The segment.
    pub file: Arc<dyn File>,
    /// Where.
    pub offset: u64,
    /// What is before it in its block ([`End::before`]).
    pub before: Vec<u8>,
    /// What.
    pub data: Vec<u8>,
    /// Length to preallocate first, where the file is too short.
    pub preallocate: Option<u64>,
    /// From the end of the data up to here zeros are written, so that later writes change the
    /// file's content only. No further than `ZEROS_AHEAD`.
    pub zeros_to: Option<u64>,
}

static ZEROS: [u8; ZEROS_AHEAD as usize] = [0; ZEROS_AHEAD as usize];

impl Write {
    /// Does it. After an error nothing is known about what is durable.
    pub fn run(&self) -> io::Result<()> {
        self.make_room()?;
        self.file.write_end(&self.end())
    }

    fn make_room(&self) -> io::Result<()> {
        self.preallocate.map_or(Ok(()), |len| self.file.preallocate(len))
    }

    fn end(&self) -> End<'_> {
        let Write { offset, before, data, .. } = self;
        let end = offset + data.len() as u64;
        let zeros = self.zeros_to.map_or(0, |to| to.saturating_sub(end) as usize);
        End { offset: *offset, before, data, zeros: &ZEROS[..zeros] }
    }

    /// Does it, but that nothing is durable before the file is synced.
    pub fn run_cached(&self) -> io::Result<()> {
        self.make_room()?;
        self.file.write_end_cached(&self.end())
    }
}

/// What makes records durable.
pub enum Flush {
    /// Past the page cache.
    Write(Write),
    /// They are in the page cache of this file.
    Sync(Arc<dyn File>),
}

impl Flush {
    /// Does it. After an error nothing is known about what is durable.
    pub fn run(&self) -> io::Result<()> {
        match self {
            Flush::Write(write) => write.run(),
            Flush::Sync(file) => file.sync(),
        }
    }

    /// The buffer that was written, to be filled again.
    pub fn into_buffer(self) -> Vec<u8> {
        match self {
            Flush::Write(write) => write.data,
            Flush::Sync(_) => Vec::new(),
        }
    }

    /// The first half of [`Flush::run`]; to sync the file is the other.
    fn begin(&self) -> io::Result<()> {
        match self {
            Flush::Write(write) => write.run_cached(),
            Flush::Sync(_) => Ok(()),
        }
    }

    fn file(&self) -> &dyn File {
        match self {
            Flush::Write(write) => &*write.file,
            Flush::Sync(file) => &**file,
        }
    }
}

type Notify = Box<dyn FnOnce() + Send>;

/// A running flusher; ends, after finishing what it has, when this is dropped.
pub enum Flusher {
    /// On a thread of its own.
    Thread(FlushThread),
    /// In a simulation: written when it is submitted, synced when it is waited for, so that power
    /// may be lost in between.
    Stepwise(RefCell<Option<(Flush, io::Result<()>)>>),
}

/// The thread.
pub struct FlushThread {
    jobs: Option<Sender<(Flush, Notify)>>,
    done: Receiver<(Vec<u8>, io::Result<()>)>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    /// Starts the thread.
    pub fn start(name: &str) -> io::Result<Flusher> {
        if saker_runtime::sim::is_active() {
            return Ok(Flusher::Stepwise(RefCell::new(None)));
        }
        let (jobs, job_queue) = channel::<(Flush, Notify)>();
        let (done_queue, done) = channel();
        let thread = thread::spawn(name, move || {
            for (flush, notify) in job_queue {
                let result = flush.run();
                if done_queue.send((flush.into_buffer(), result)).is_err() {
                    break;
                }
                notify();
            }
        })?;
        Ok(Flusher::Thread(FlushThread { jobs: Some(jobs), done, thread: Some(thread) }))
    }

    /// Hands over one flush. `notify` runs on the thread once the result can be taken.
    pub fn submit(&self, flush: Flush, notify: Notify) -> io::Result<()> {
        match self {
            Flusher::Thread(worker) => {
                let jobs = worker.jobs.as_ref().ok_or_else(died)?;
                jobs.send((flush, notify)).map_err(|_| died())
            }
            Flusher::Stepwise(under_way) => {
                let begun = flush.begin();
                under_way.replace(Some((flush, begun)));
                Ok(())
            }
        }
    }

    /// Waits for the flush and gives its buffer back.
    pub fn wait(&self) -> (Vec<u8>, io::Result<()>) {
        match self {
            Flusher::Thread(worker) => {
                worker.done.recv().unwrap_or_else(|_| (Vec::new(), Err(died())))
            }
            Flusher::Stepwise(under_way) => match under_way.take() {
                Some((flush, begun)) => {
                    let result = begun.and_then(|()| flush.file().sync());
                    (flush.into_buffer(), result)
                }
                None => (Vec::new(), Err(died())),
            },
        }
    }
}

fn died() -> io::Error {
    io::Error::other("the flusher thread died")
}

impl Drop for FlushThread {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic on that thread has already said so.
            let _ = thread.join();
        }
    }
}
