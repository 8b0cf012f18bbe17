//! The datasets of this node, and what is in them.

use std::ffi::{CString, OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use saker_agent_api::{DATASETS, OUTPUT_SUFFIX};
use saker_dataset::table::ROOT;
use saker_dataset::{Error, FileData, Ino, InodeRecord, Staged};
use saker_types::FileKind;

use crate::config::config;
use crate::sys::{self, c_path};

/// The table in a dataset's directory.
const TABLE: &str = "table.saker";
/// Partitions of a dataset that are known again; more of them are checked more often.
const PARTS: usize = 256;
/// Datasets that one process can use.
const DATASETS_MAX: usize = 4096;
/// Of a device number that no other file system has: the kernel gives none so high.
const MAJOR: u32 = 4090;
/// Type and permissions of the mount point.
const MOUNT_MODE: u32 = 0o040_555;
/// What directories say that they have.
const DIRECTORY_BYTES: u64 = 4096;

/// A dataset in use. Never freed: descriptors name it by its number.
pub struct Dataset {
    /// NAME@VERSION.
    pub name: String,
    /// Its table, and where its data is.
    pub staged: Staged,
    /// Its directory.
    pub dir: CString,
    dev: u64,
    table: CString,
    /// Of the table's file, as [`version`] has it.
    version: AtomicU64,
    /// The same of partitions that were opened, by number of the inode.
    parts: [AtomicU64; PARTS],
    /// Another dataset has this name now.
    is_replaced: AtomicBool,
}

/// A number that changes when another file takes a file's place; 0: there is none.
fn version(stat: Option<libc::stat>) -> u64 {
    stat.map_or(0, |stat| {
        // Numbers of inodes are used again.
        let ctime = (stat.st_ctime as u64).wrapping_mul(1_000_000_000) + stat.st_ctime_nsec as u64;
        stat.st_ino.rotate_left(40) ^ ctime
    })
}

impl Dataset {
    /// Checks that the table is that of the files which are there now. Partitions have no checksums
    /// that are compared at reading: those of another dataset would be read as if they were right.
    ///
    /// # Errors
    /// ESTALE: another dataset was staged under this name. Looking it up again finds that.
    pub fn check(&self) -> sys::Result<()> {
        let (now, known) = (version(sys::stat(&self.table)), self.version.load(Ordering::Acquire));
        // Of one that is gone, the agent may know.
        if now == known || now == 0 {
            return Ok(());
        }
        if Staged::open(self.staged.dir()).is_ok_and(|new| new.is_same(&self.staged)) {
            self.version.store(now, Ordering::Release);
            return Ok(());
        }
        self.is_replaced.store(true, Ordering::Release);
        Err(libc::ESTALE)
    }

    /// The same when one of its files was opened: of one that was open before, without looking for
    /// the table.
    ///
    /// # Errors
    /// As of [`Self::check`].
    pub fn check_opened(&self, fd: c_int) -> sys::Result<()> {
        let stat = sys::fstat(fd);
        let (now, ino) = (version(stat), stat.map_or(0, |stat| stat.st_ino));
        let known = &self.parts[ino as usize % PARTS];
        if known.load(Ordering::Acquire) != now || self.is_replaced.load(Ordering::Acquire) {
            self.check()?;
            known.store(now, Ordering::Release);
        }
        Ok(())
    }

    fn has_name(&self, name: &[u8]) -> bool {
        self.name.as_bytes() == name && !self.is_replaced.load(Ordering::Acquire)
    }
}

static KNOWN: [AtomicPtr<Dataset>; DATASETS_MAX] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; DATASETS_MAX];
/// Datasets in `KNOWN`, at least.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A file, directory or link below the mount point, or the mount point itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// 0: the mount point; else the number of a dataset and one.
    dataset: u32,
    ino: Ino,
}

/// The mount point: the directory of the datasets.
pub const MOUNT: Node = Node { dataset: 0, ino: 0 };

/// What stat(2) says of a node.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// What it is.
    pub kind: FileKind,
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub nlink: u32,
    /// Bytes.
    pub size: u64,
    /// Modified, in seconds since 1970 and nanoseconds.
    pub mtime: (i64, u32),
    /// Of a device.
    pub rdev: u64,
    /// The dataset.
    pub dev: u64,
    /// Number in it; not 0.
    pub ino: u64,
}

impl Info {
    /// Units of 512 bytes, of blocks of 4 KiB, as other file systems count them.
    pub fn blocks(&self) -> u64 {
        match self.kind {
            FileKind::Regular | FileKind::Directory => self.size.div_ceil(4096) * 8,
            _ => 0,
        }
    }
}

/// Where the datasets are.
pub fn datasets_dir() -> PathBuf {
    Path::new(OsStr::from_bytes(&config().agent_dir)).join(DATASETS)
}

/// A real directory, whose descriptors stand for those of directories that are not on this node.
///
/// # Errors
/// ENOENT: a path that no descriptor can have.
pub fn dir_of_stand_ins() -> sys::Result<CString> {
    c_path(datasets_dir().into_os_string().into_encoded_bytes())
}

/// Names of the staged datasets and of their directories of outputs, in order.
pub fn names() -> Vec<Vec<u8>> {
    if !config().trusts_agent_dir() {
        return Vec::new();
    }
    #[allow(clippy::disallowed_methods, reason = "in programs of users")]
    let Ok(dir) = std::fs::read_dir(datasets_dir()) else { return Vec::new() };
    let staged = dir.flatten().filter(|entry| entry.path().join(TABLE).is_file());
    let mut names: Vec<_> = staged.map(|entry| entry.file_name().as_bytes().to_vec()).collect();
    let outputs = |name: &Vec<u8>| [name, OUTPUT_SUFFIX.as_bytes()].concat();
    names.extend(names.iter().map(outputs).collect::<Vec<_>>());
    names.sort();
    names
}

/// Device number of a file system with this name.
pub fn dev_of(name: &[u8]) -> u64 {
    // FNV: the same in all processes.
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    libc::makedev(MAJOR, 1 + (hash ^ hash >> 32) as u32 % 0xf_fffe)
}

/// The number of a dataset by its name, which is opened at first use; `None`: there is none.
///
/// # Errors
/// EIO: it is damaged, or of a newer version; of the system.
fn find(name: &[u8]) -> sys::Result<Option<u32>> {
    let count = COUNT.load(Ordering::Acquire);
    let known = (0..count).find(|n| dataset(*n).is_some_and(|known| known.has_name(name)));
    if known.is_some() {
        return Ok(known);
    }
    if !config().trusts_agent_dir() {
        return Ok(None);
    }
    let dir = datasets_dir().join(OsStr::from_bytes(name));
    let Ok(text) = String::from_utf8(name.to_vec()) else { return Ok(None) };
    let table = c_path(dir.join(TABLE).into_os_string().into_encoded_bytes())?;
    let version = version(sys::stat(&table));
    let staged = match Staged::open(&dir) {
        Ok(staged) => staged,
        Err(Error::Io { source, .. }) => {
            return match source.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => Ok(None),
                errno => Err(errno.unwrap_or(libc::EIO)),
            };
        }
        Err(_) => return Err(libc::EIO),
    };
    let new = Dataset {
        version: AtomicU64::new(version),
        parts: [const { AtomicU64::new(0) }; PARTS],
        is_replaced: AtomicBool::new(false),
        table,
        name: text,
        staged,
        dir: c_path(dir.into_os_string().into_encoded_bytes())?,
        dev: dev_of(name),
    };
    let new = Box::into_raw(Box::new(new));
    // Two threads may come here at once: then there are two of it, which does no harm.
    for (n, place) in KNOWN.iter().enumerate().skip(count as usize) {
        let null = std::ptr::null_mut();
        if place.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            COUNT.fetch_max(n as u32 + 1, Ordering::AcqRel);
            return Ok(Some(n as u32));
        }
    }
    // SAFETY: nobody else has seen it.
    drop(unsafe { Box::from_raw(new) });
    Err(libc::ENFILE)
}

fn dataset(n: u32) -> Option<&'static Dataset> {
    // SAFETY: never freed.
    unsafe { KNOWN.get(n as usize)?.load(Ordering::Acquire).as_ref() }
}

impl Node {
    /// As one number of 56 bits.
    pub fn to_bits(self) -> u64 {
        u64::from(self.dataset) << 32 | u64::from(self.ino)
    }

    /// From that number.
    pub fn from_bits(bits: u64) -> Node {
        Node { dataset: (bits >> 32) as u32 & 0xff_ffff, ino: bits as u32 }
    }

    /// Its dataset; `None` of the mount point.
    pub fn dataset(self) -> Option<&'static Dataset> {
        dataset(self.dataset.checked_sub(1)?)
    }

    /// Number in the dataset's table.
    pub fn ino(self) -> Ino {
        self.ino
    }

    fn record(self) -> Option<&'static InodeRecord> {
        Some(self.dataset()?.staged.table().inode(self.ino))
    }

    /// What it is.
    pub fn kind(self) -> FileKind {
        self.record().map_or(FileKind::Directory, InodeRecord::kind)
    }

    /// It is a directory.
    pub fn is_dir(self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// Type and permissions.
    pub fn mode(self) -> u32 {
        self.record().map_or(MOUNT_MODE, |record| record.mode)
    }

    /// Where its data is.
    pub fn data(self) -> Option<FileData> {
        self.record()?.data()
    }

    /// Target of a symbolic link.
    pub fn target(self) -> Option<&'static [u8]> {
        self.dataset()?.staged.table().target(self.ino)
    }

    /// Extended attributes, by name.
    pub fn xattrs(self) -> Vec<(&'static [u8], &'static [u8])> {
        self.dataset().map(|dataset| dataset.staged.table().xattrs(self.ino)).unwrap_or_default()
    }

    /// What a name in a directory leads to.
    ///
    /// # Errors
    /// Of a dataset that cannot be opened.
    pub fn child(self, name: &[u8]) -> sys::Result<Option<Node>> {
        Ok(match self.dataset() {
            None => find(name)?.map(|n| Node { dataset: n + 1, ino: ROOT }),
            Some(dataset) => {
                let ino = dataset.staged.table().lookup(self.ino, name);
                ino.map(|ino| Node { ino, ..self })
            }
        })
    }

    /// The `n`th name in a directory of a dataset, and what it leads to.
    pub fn nth_child(self, n: u64) -> Option<(&'static [u8], Node)> {
        let table = self.dataset()?.staged.table();
        let (name, ino) = table.children_from(self.ino, n).next()?;
        Some((name, Node { ino, ..self }))
    }

    /// The directory above; of the mount point itself.
    pub fn parent(self) -> Node {
        match self.dataset() {
            Some(dataset) if self.ino != ROOT => {
                Node { ino: dataset.staged.table().parent(self.ino), ..self }
            }
            _ => MOUNT,
        }
    }

    /// The absolute path of a directory.
    pub fn path(self) -> Vec<u8> {
        let mut path = config().mount.clone();
        if let Some(dataset) = self.dataset() {
            path.push(b'/');
            path.extend_from_slice(dataset.name.as_bytes());
            let below = dataset.staged.table().path_of(self.ino);
            if !below.is_empty() {
                path.push(b'/');
                path.extend(below);
            }
        }
        path
    }

    /// What stat(2) says.
    pub fn info(self) -> Info {
        let (Some(dataset), Some(record)) = (self.dataset(), self.record()) else {
            return mount_info();
        };
        let kind = record.kind();
        Info {
            kind,
            mode: record.mode,
            uid: record.uid,
            gid: record.gid,
            nlink: record.nlink,
            size: if record.is_dir() { DIRECTORY_BYTES } else { record.size },
            mtime: (record.mtime_s, record.mtime_ns),
            rdev: record.rdev.into(),
            dev: dataset.dev,
            ino: u64::from(self.ino) + 1,
        }
    }
}

/// Of the mount point: owner and time are those of the directory with the datasets.
fn mount_info() -> Info {
    let real = c_path(datasets_dir().into_os_string().into_encoded_bytes()).ok();
    let real = real.and_then(|path| sys::stat(&path));
    Info {
        kind: FileKind::Directory,
        mode: MOUNT_MODE,
        uid: real.map_or(0, |stat| stat.st_uid),
        gid: real.map_or(0, |stat| stat.st_gid),
        nlink: 2,
        size: DIRECTORY_BYTES,
        mtime: real.map_or((0, 0), |stat| (stat.st_mtime, stat.st_mtime_nsec as u32)),
        rdev: 0,
        dev: libc::makedev(MAJOR, 0),
        ino: 1,
    }
}
