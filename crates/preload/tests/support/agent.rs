//! An agent that speaks the real protocol: it has the files of one dataset, and counts.

use std::collections::BTreeMap;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use saker_agent_api::{Ask, Hello, OpenFile, Reply, Request, SOCKET, VERSION, decode, encode};

/// What it was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that were made.
    pub connections: usize,
    /// Those that were closed.
    pub gone: usize,
    /// Files that were asked for.
    pub opened: usize,
    /// Files that were closed.
    pub closed: usize,
}

type Files = BTreeMap<u32, Vec<u8>>;

struct Shared {
    dataset: String,
    files: Files,
    counts: Mutex<Counts>,
    changed: Condvar,
}

/// A running agent.
pub struct Agent(Arc<Shared>);

impl Agent {
    /// Serves files of a dataset at a directory's socket.
    pub fn start(dir: &Path, dataset: &str, files: Files) -> Agent {
        let path = dir.join(SOCKET);
        let listener = UnixListener::bind(&path).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
        let (counts, changed) = Default::default();
        let shared = Arc::new(Shared { dataset: dataset.to_owned(), files, counts, changed });
        let agent = Agent(shared.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (shared, stream) = (shared.clone(), stream.unwrap());
                shared.count(|counts| counts.connections += 1);
                std::thread::spawn(move || {
                    while shared.answer(&stream).is_some() {}
                    shared.count(|counts| counts.gone += 1);
                });
            }
        });
        agent
    }

    /// What it was asked, once all connections are closed.
    pub fn settled(&self) -> Counts {
        let counts = self.0.counts.lock().unwrap();
        let open =
            |counts: &mut Counts| counts.connections == 0 || counts.gone < counts.connections;
        self.0.changed.wait_while(counts, open).unwrap().clone()
    }
}

impl Shared {
    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().unwrap());
        self.changed.notify_all();
    }

    fn answer(&self, mut stream: &UnixStream) -> Option<()> {
        let mut len = [0; 4];
        stream.read_exact(&mut len).ok()?;
        let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
        stream.read_exact(&mut bytes).unwrap();
        let (mut reply, mut fd) = (Reply::default(), None);
        match decode::<Request>(&bytes).unwrap().ask.unwrap() {
            Ask::Hello(Hello { version, .. }) => assert_eq!(version, VERSION),
            Ask::Open(OpenFile { dataset, ino }) => {
                assert_eq!(dataset, self.dataset);
                self.count(|counts| counts.opened += 1);
                match self.files.get(&ino) {
                    Some(data) => fd = Some(sealed(data)),
                    None => reply.errno = rustix::io::Errno::STALE.raw_os_error(),
                }
            }
            Ask::Close(OpenFile { ino, .. }) => {
                assert!(self.files.contains_key(&ino));
                self.count(|counts| counts.closed += 1);
                return Some(());
            }
            other => panic!("{other:?} is not for processes"),
        }
        let frame = encode(&reply);
        match fd {
            None => stream.write_all(&frame).unwrap(),
            Some(fd) => {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                let fds = [fd.as_fd()];
                assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
                let flags = SendFlags::empty();
                let sent = sendmsg(stream, &[IoSlice::new(&frame)], &mut ancillary, flags).unwrap();
                assert_eq!(sent, frame.len());
            }
        }
        Some(())
    }
}

fn sealed(data: &[u8]) -> OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let fd = memfd_create("file", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let mut file = std::fs::File::from(fd);
    file.write_all(data).unwrap();
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_add_seals(&file, seals).unwrap();
    file.into()
}
