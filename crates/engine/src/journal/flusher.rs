//! The thread that writes and syncs while the owner goes on appending.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use saker_runtime::fs::File;
use saker_runtime::thread::{self, JoinHandle};

/// Bytes to put into a segment and make durable.
pub struct Write {
    /// The segment.
    pub file: Arc<dyn File>,
    /// Where.
    pub offset: u64,
    /// What.
    pub data: Vec<u8>,
    /// Length to preallocate first, where the file is too short.
    pub preallocate: Option<u64>,
}

impl Write {
    /// Does it. After an error nothing is known about what is durable.
    pub fn run(&self) -> io::Result<()> {
        if let Some(len) = self.preallocate {
            self.file.preallocate(len)?;
        }
        self.file.write_at(self.offset, &self.data)?;
        self.file.sync()
    }
}

type Notify = Box<dyn FnOnce() + Send>;

/// A running flusher thread; ends, after finishing what it has, when this is dropped.
pub struct Flusher {
    jobs: Option<Sender<(Write, Notify)>>,
    done: Receiver<(Vec<u8>, io::Result<()>)>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    /// Starts the thread.
    pub fn start(name: &str) -> io::Result<Flusher> {
        let (jobs, job_queue) = channel::<(Write, Notify)>();
        let (done_queue, done) = channel();
        let thread = thread::spawn(name, move || {
            for (write, notify) in job_queue {
                let result = write.run();
                if done_queue.send((write.data, result)).is_err() {
                    break;
                }
                notify();
            }
        })?;
        Ok(Flusher { jobs: Some(jobs), done, thread: Some(thread) })
    }

    /// Hands over one write. `notify` runs on the thread once the result can be taken.
    pub fn submit(&self, write: Write, notify: Notify) -> io::Result<()> {
        let jobs = self.jobs.as_ref().ok_or_else(died)?;
        jobs.send((write, notify)).map_err(|_| died())
    }

    /// Waits for the write and gives its buffer back.
    pub fn wait(&self) -> (Vec<u8>, io::Result<()>) {
        self.done.recv().unwrap_or_else(|_| (Vec::new(), Err(died())))
    }
}

fn died() -> io::Error {
    io::Error::other("the flusher thread died")
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic on that thread has already said so.
            let _ = thread.join();
        }
    }
}
