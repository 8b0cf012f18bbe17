//! open: permissions, O_TRUNC, and the data of small files, in one request.

use bytes::Bytes;
use saker_types::wire::OpenReq;
use saker_types::{Access, Errno, Error, FileKind};

use super::done;
use crate::ops::truncate::Truncation;
use crate::request::{Attempt, Rq};
use crate::rows::Located;
use crate::shard::Shard;

impl Shard {
    /// Opens what is there. Who has it open is remembered in memory: the client renews that.
    pub(crate) fn open(&mut self, rq: &Rq, msg: &OpenReq) -> Attempt<Bytes> {
        let found = self.locate(rq, &msg.ctx.cred, &msg.at)?;
        self.open_found(rq, msg, found)
    }

    pub(crate) fn open_found(&mut self, rq: &Rq, msg: &OpenReq, found: Located) -> Attempt<Bytes> {
        let a = &found.inode.attr;
        let writes = msg.access & 2 != 0 || msg.truncate;
        match a.kind() {
            FileKind::Symlink => {
                let last = msg.at.path.len().saturating_sub(1);
                return Err(Error::symlink(last, found.inode.inline.clone()).into());
            }
            FileKind::Directory if writes => return Err(Errno::EISDIR.into()),
            _ => {}
        }
        let want = (msg.access & 7) | if msg.truncate { 2 } else { 0 };
        found.inode.check(&msg.ctx.cred, Access(want))?;
        self.note_opened(a, msg.hold);
        let mut entry = self.entry_of(&msg.at, &found);
        if a.kind() != FileKind::Regular {
            return done(&entry);
        }
        if msg.truncate {
            // Of an empty file it still sets the times.
            let cut = Truncation::new(a, 0, &msg.ctx.cred)?;
            return self.truncate(rq, found, entry, cut);
        }
        if !entry.attr.chunked {
            entry.inline = found.inode.inline.clone();
        }
        done(&entry)
    }
}

#[cfg(test)]
mod tests {
    use saker_types::wire::{Entry, Op};

    use super::*;
    use crate::testing::{Tester, at, errno, user};

    fn open(t: &mut Tester, path: &str, access: u32, truncate: bool) -> Result<Entry, Error> {
        let (ctx, at) = (t.ctx(), at(path));
        t.ask(Op::Open, &OpenReq { ctx, at, access, truncate, ..OpenReq::default() })
    }

    #[test]
    fn a_small_file_comes_with_its_data() {
        let mut t = Tester::new();
        t.create("f").unwrap();
        t.edit("f", |inode| {
            inode.inline = Bytes::from_static(b"small");
            inode.attr.set_size(5, 5);
        });
        assert_eq!(open(&mut t, "f", 4, false).unwrap().inline, "small");
        let cut = open(&mut t, "f", 2, true).unwrap();
        assert_eq!((cut.attr.size, cut.inline.len()), (0, 0));
        assert_eq!(t.row("f").unwrap().inline, "");
    }

    #[test]
    fn kinds_and_permissions_are_checked() {
        let mut t = Tester::new();
        t.create("f").unwrap();
        t.mkdir("d").unwrap();
        t.symlink("f", "l").unwrap();
        assert_eq!(errno(open(&mut t, "d", 6, false)), Errno::EISDIR);
        open(&mut t, "d", 4, false).unwrap();
        let error = open(&mut t, "l", 4, false).unwrap_err();
        assert_eq!((error.component, &error.target[..]), (Some(0), &b"f"[..]));
        assert_eq!(errno(open(&mut t, "absent", 4, false)), Errno::ENOENT);
        t.cred = user(5);
        open(&mut t, "f", 4, false).unwrap();
        assert_eq!(errno(open(&mut t, "f", 2, false)), Errno::EACCES);
        assert_eq!(errno(open(&mut t, "f", 4, true)), Errno::EACCES);
    }
}
