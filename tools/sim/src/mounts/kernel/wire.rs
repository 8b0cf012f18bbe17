//! Requests and replies of FUSE in bytes, written from `include/uapi/linux/fuse.h` and not from the
//! mount's code.

use saker_types::Errno;

/// What a request asks for.
pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const CREATE: u32 = 35;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
}

pub const ROOT_NODE: u64 = 1;
pub const S_IFMT: u32 = 0o170_000;
pub const S_IFDIR: u32 = 0o040_000;
pub const S_IFLNK: u32 = 0o120_000;
pub const S_IFREG: u32 = 0o100_000;

pub const FATTR_MODE: u32 = 1;
pub const FATTR_SIZE: u32 = 1 << 3;
pub const FATTR_FH: u32 = 1 << 6;
pub const GETATTR_FH: u32 = 1;
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
pub const FOPEN_NOFLUSH: u32 = 1 << 5;
pub const RENAME_NOREPLACE: u32 = 1;
pub const RENAME_EXCHANGE: u32 = 2;

/// Attributes as the kernel has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireAttr {
    pub ino: u64,
    pub size: u64,
    pub mtime: (i64, u32),
    pub mode: u32,
    pub nlink: u32,
}

impl WireAttr {
    pub fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }
}

/// The reply to LOOKUP and to what makes things.
#[derive(Clone, Copy, Debug, Default)]
pub struct WireEntry {
    pub nodeid: u64,
    pub entry_valid_ns: u64,
    pub attr_valid_ns: u64,
    pub attr: WireAttr,
}

/// Reads little-endian fields; a short reply is EIO, as to the kernel.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u64(&self, at: usize) -> Result<u64, Errno> {
        let bytes = self.0.get(at..at + 8).ok_or(Errno::EIO)?;
        Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| Errno::EIO)?))
    }

    fn u32(&self, at: usize) -> Result<u32, Errno> {
        let bytes = self.0.get(at..at + 4).ok_or(Errno::EIO)?;
        Ok(u32::from_le_bytes(bytes.try_into().map_err(|_| Errno::EIO)?))
    }

    fn attr(&self, at: usize) -> Result<WireAttr, Errno> {
        Ok(WireAttr {
            ino: self.u64(at)?,
            size: self.u64(at + 8)?,
            mtime: (self.u64(at + 32)? as i64, self.u32(at + 52)?),
            mode: self.u32(at + 60)?,
            nlink: self.u32(at + 64)?,
        })
    }
}

pub const ENTRY_BYTES: usize = 128;

pub fn entry(bytes: &[u8]) -> Result<WireEntry, Errno> {
    let f = Fields(bytes);
    Ok(WireEntry {
        nodeid: f.u64(0)?,
        entry_valid_ns: f.u64(16)? * 1_000_000_000 + u64::from(f.u32(32)?),
        attr_valid_ns: f.u64(24)? * 1_000_000_000 + u64::from(f.u32(36)?),
        attr: f.attr(40)?,
    })
}

/// Attributes and how long they may be kept.
pub fn attr(bytes: &[u8]) -> Result<(WireAttr, u64), Errno> {
    let f = Fields(bytes);
    Ok((f.attr(16)?, f.u64(0)? * 1_000_000_000 + u64::from(f.u32(8)?)))
}

/// Handle and flags.
pub fn open(bytes: &[u8]) -> Result<(u64, u32), Errno> {
    let f = Fields(bytes);
    Ok((f.u64(0)?, f.u32(8)?))
}

pub fn u32_of(bytes: &[u8]) -> Result<u32, Errno> {
    Fields(bytes).u32(0)
}

/// One name of a listing.
pub struct Dirent {
    pub ino: u64,
    pub off: u64,
    pub name: Vec<u8>,
    pub entry: Option<WireEntry>,
}

pub fn dirents(mut bytes: &[u8], plus: bool) -> Result<Vec<Dirent>, Errno> {
    let mut all = Vec::new();
    let head = if plus { ENTRY_BYTES } else { 0 };
    while bytes.len() >= head + 24 {
        let f = Fields(&bytes[head..]);
        let len = f.u32(16)? as usize;
        let name = f.0.get(24..24 + len).ok_or(Errno::EIO)?.to_vec();
        let known = if plus { Some(entry(bytes)?) } else { None };
        let known = known.filter(|known| known.nodeid != 0);
        all.push(Dirent { ino: f.u64(0)?, off: f.u64(8)?, name, entry: known });
        bytes = bytes.get((head + 24 + len).next_multiple_of(8)..).unwrap_or_default();
    }
    Ok(all)
}

/// A request's body, field by field.
#[derive(Default)]
pub struct WireBody(pub Vec<u8>);

impl WireBody {
    pub fn u32(mut self, value: u32) -> WireBody {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> WireBody {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn zeros(mut self, count: usize) -> WireBody {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    pub fn name(mut self, name: &[u8]) -> WireBody {
        self.0.extend_from_slice(name);
        self.0.push(0);
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> WireBody {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// A whole request.
pub fn request(opcode: u32, unique: u64, nodeid: u64, tid: u32, body: &WireBody) -> Vec<u8> {
    let len = 40 + body.0.len() as u32;
    let head = WireBody::default().u32(len).u32(opcode).u64(unique).u64(nodeid);
    head.u32(0).u32(0).u32(tid).u32(0).bytes(&body.0).0
}
