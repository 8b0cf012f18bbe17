//! Taking back what an answer gives to the kernel, where whoever has asked was killed before it came
//! (`Dispatch::undo`): the kernel does not have it, and will give nothing back.

use saker_fuse::abi::{Dirent, EntryOut, LkIn, Opcode, OpenOut};
use saker_fuse::{Reply, Request};
use zerocopy::FromBytes;

use crate::ops::lock::lock_of;
use crate::service::MountService;

impl MountService {
    pub(crate) async fn take_back(&self, request: &Request, reply: &Reply) {
        if reply.errno != 0 {
            return;
        }
        let Some(opcode) = Opcode::from_u32(request.header.opcode) else { return };
        match opcode {
            Opcode::Lookup | Opcode::Mknod | Opcode::Mkdir | Opcode::Symlink | Opcode::Link => {
                self.take_node(&reply.head);
            }
            Opcode::Create | Opcode::Tmpfile => {
                let open = self.take_node(&reply.head);
                self.take_file(open).await;
            }
            Opcode::Open => self.take_file(&reply.head).await,
            Opcode::Opendir => {
                if let Ok((open, _)) = OpenOut::read_from_prefix(&reply.head) {
                    // It cannot be gone: the kernel does not know it.
                    let _ = self.dirs.remove(open.fh);
                }
            }
            Opcode::Readdirplus => self.take_listed(&reply.head),
            Opcode::Setlk | Opcode::Setlkw => self.take_lock(request).await,
            _ => {}
        }
    }

    /// The node that an entry has given; what follows the entry.
    fn take_node<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        let Ok((entry, rest)) = EntryOut::read_from_prefix(head) else { return &[] };
        if entry.nodeid != 0 {
            self.nodes.forget(entry.nodeid, 1);
        }
        rest
    }

    async fn take_file(&self, head: &[u8]) {
        let Ok((open, _)) = OpenOut::read_from_prefix(head) else { return };
        if let Ok(open) = self.files.remove(open.fh) {
            open.close().await;
        }
    }

    fn take_listed(&self, mut page: &[u8]) {
        loop {
            let rest = self.take_node(page);
            let Ok((dirent, _)) = Dirent::read_from_prefix(rest) else { return };
            let len = size_of::<EntryOut>() + size_of::<Dirent>() + dirent.namelen as usize;
            page = page.get(len.next_multiple_of(8)..).unwrap_or_default();
        }
    }

    /// Its owner has ended all its locks by now, or will: this one may have come after that.
    async fn take_lock(&self, request: &Request) {
        let Ok(input) = request.body().fixed::<LkIn>() else { return };
        let (Ok(open), Ok(lock)) = (self.files.get(input.fh), lock_of(&input)) else { return };
        if let Err(error) = open.file.unlock(&lock).await {
            tracing::warn!("a lock that nobody waits for stays until the file is closed: {error}");
        }
    }
}
