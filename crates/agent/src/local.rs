//! Connections of processes of the node, over the Unix socket.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use saker_agent_api::{Ask, OpenFile, OutputOp, OutputRequest, Reply, Request, VERSION, encode};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::error::{Error, Result};
use crate::files::Opened;
use crate::node::Node;
use crate::outputs::Answer;
use crate::read;
use crate::wire::{REQUEST_BYTES_MAX, read_hello, read_request, reply_of, write_reply};
use crate::{connections, control, outputs};

/// Connections at once.
const CONNECTIONS_MAX: usize = 8192;
/// Files that a connection may have open.
const OPEN_MAX: usize = 1 << 16;
/// A request about an output file that takes longer is asked for again.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Processes may be silent for long: the end of one is seen as the end of its connection.
const IDLE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Serves for ever.
pub(crate) async fn run(node: Arc<Node>, listener: UnixListener) {
    connections::serve(node, CONNECTIONS_MAX, listener, Process::serve).await;
}

/// A process, or one of its threads. What it has open is closed with its connection.
struct Process {
    node: Arc<Node>,
    stream: UnixStream,
    /// By the name of the dataset, which may be staged anew meanwhile.
    open: BTreeMap<(String, u32), Vec<Opened>>,
    opens: usize,
    /// The request about an output file that goes on.
    output: Option<JoinHandle<Result<Answer>>>,
}

impl Process {
    async fn serve(node: Arc<Node>, stream: UnixStream) -> io::Result<()> {
        let mut process = Process { node, stream, open: BTreeMap::new(), opens: 0, output: None };
        let hello = read_hello(&mut process.stream).await?;
        let reply = match hello.version {
            VERSION => Reply::default(),
            other => {
                let what = format!("version {other} of the protocol; this agent has {VERSION}");
                reply_of(Err(Error::new(Errno::PROTO, what)))
            }
        };
        write_reply(&mut process.stream, &reply).await?;
        while let Some(request) = process.next().await? {
            process.answer(request).await?;
        }
        Ok(())
    }

    async fn next(&mut self) -> io::Result<Option<Request>> {
        read_request(&mut self.stream, REQUEST_BYTES_MAX, IDLE_MAX).await
    }

    async fn answer(&mut self, request: Request) -> io::Result<()> {
        let reply = match request.ask {
            Some(Ask::Open(ask)) => match self.open(&ask).await {
                Ok(file) => return self.send(&Reply::default(), file).await,
                Err(error) => {
                    self.node.counters.open_failures.inc();
                    tracing::warn!("open: {error}");
                    Err(error)
                }
            },
            Some(Ask::Close(ask)) => {
                self.close(&ask);
                return Ok(());
            }
            Some(Ask::Output(ask)) => match self.output(ask).await {
                Ok((reply, Some(file))) => return self.send(&reply, file).await,
                answer => answer.map(|(reply, _)| reply),
            },
            Some(Ask::Hello(_) | Ask::Read(_)) | None => {
                Err(Error::new(Errno::INVAL, "not a request of a process"))
            }
            Some(ask) => control::answer(&self.node, ask).await,
        };
        write_reply(&mut self.stream, &reply_of(reply)).await
    }

    async fn open(&mut self, ask: &OpenFile) -> Result<Arc<File>> {
        let node = &self.node;
        node.counters.opens.inc();
        if self.opens >= OPEN_MAX {
            return Err(Error::new(Errno::MFILE, format!("{OPEN_MAX} files are open")));
        }
        let dataset = node.datasets.get(&ask.dataset)?;
        let key = (dataset.id, ask.ino);
        let fetch = || read::file(node.clone(), dataset, ask.ino);
        let (opened, file) = node.files.open(key, fetch).await?;
        self.open.entry((ask.dataset.clone(), ask.ino)).or_default().push(opened);
        self.opens += 1;
        Ok(file)
    }

    /// Begins with a request about an output file, or goes on waiting for its answer.
    async fn output(&mut self, ask: OutputRequest) -> Result<Answer> {
        let mut task = match (&ask.op, self.output.take()) {
            (Some(OutputOp::Wait(_)), Some(task)) => task,
            (Some(OutputOp::Wait(_)), None) => {
                return Err(Error::new(Errno::INVAL, "nothing to wait for"));
            }
            _ => tokio::spawn(outputs::answer(self.node.clone(), ask)),
        };
        match timeout(ANSWER_WITHIN, &mut task).await {
            Ok(answer) => answer.unwrap_or_else(|e| Err(Error::new(Errno::IO, e))),
            Err(_) => {
                self.output = Some(task);
                Ok((Reply { going_on: true, ..Reply::default() }, None))
            }
        }
    }

    fn close(&mut self, ask: &OpenFile) {
        let key = (ask.dataset.clone(), ask.ino);
        let Some(opened) = self.open.get_mut(&key) else { return };
        self.opens -= usize::from(opened.pop().is_some());
        if opened.is_empty() {
            self.open.remove(&key);
        }
    }

    /// Sends an answer, and a descriptor with its first byte. When the answer is there, the agent has
    /// the file open no more: it would take itself for somebody who writes it.
    async fn send(&mut self, reply: &Reply, file: Arc<File>) -> io::Result<()> {
        let frame = encode(reply);
        let (first, rest) = frame.split_at(1);
        let send = || {
            let fds = [file.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
            let bytes = [IoSlice::new(first)];
            Ok(sendmsg(&self.stream, &bytes, &mut ancillary, SendFlags::NOSIGNAL)?)
        };
        self.stream.async_io(Interest::WRITABLE, send).await?;
        drop(file);
        self.stream.write_all(rest).await
    }
}
