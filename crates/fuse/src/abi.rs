//! The kernel's FUSE ABI, from 7.31 (Linux 5.4) to 7.45, as in `include/uapi/linux/fuse.h`.
//!
//! Requests are copied out of the buffer with bounds checks ([`crate::request`]); replies are
//! plain bytes. Names are the header's. `zerocopy` proves that no structure has padding or invalid bit patterns.

mod flags;
mod input;
mod output;
pub(crate) mod ring;

pub use flags::*;
pub use input::*;
pub use output::*;

/// Major version that this code speaks.
pub const MAJOR: u32 = 7;
/// Newest minor version that it knows.
pub const MINOR: u32 = 45;
/// Oldest minor version that it serves.
pub const MINOR_MIN: u32 = 31;

macro_rules! opcodes {
    ($($name:ident = $value:literal => $text:literal,)*) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        #[allow(missing_docs, reason = "named as in the kernel's header")]
        pub enum Opcode { $($name = $value,)* }

        impl Opcode {
            /// Number and name of each, for counters.
            pub const TABLE: &[(u16, &'static str)] = &[$(($value, $text),)*];

            /// From the number in a request's header.
            pub fn from_u32(raw: u32) -> Option<Opcode> {
                match raw { $($value => Some(Opcode::$name),)* _ => None }
            }

            /// Name in counters and logs: the wire's operation names where there is one.
            pub fn name(self) -> &'static str {
                match self { $(Opcode::$name => $text,)* }
            }
        }
    };
}

opcodes! {
    Lookup = 1 => "lookup",
    Forget = 2 => "forget",
    Getattr = 3 => "getattr",
    Setattr = 4 => "setattr",
    Readlink = 5 => "readlink",
    Symlink = 6 => "symlink",
    Mknod = 8 => "mknod",
    Mkdir = 9 => "mkdir",
    Unlink = 10 => "unlink",
    Rmdir = 11 => "rmdir",
    Rename = 12 => "rename",
    Link = 13 => "link",
    Open = 14 => "open",
    Read = 15 => "read",
    Write = 16 => "write",
    Statfs = 17 => "statfs",
    Release = 18 => "release",
    Fsync = 20 => "fsync",
    Setxattr = 21 => "setxattr",
    Getxattr = 22 => "getxattr",
    Listxattr = 23 => "listxattr",
    Removexattr = 24 => "removexattr",
    Flush = 25 => "flush",
    Init = 26 => "init",
    Opendir = 27 => "opendir",
    Readdir = 28 => "readdir",
    Releasedir = 29 => "releasedir",
    Fsyncdir = 30 => "fsyncdir",
    Getlk = 31 => "getlk",
    Setlk = 32 => "setlk",
    Setlkw = 33 => "setlkw",
    Access = 34 => "access",
    Create = 35 => "create",
    Interrupt = 36 => "interrupt",
    Bmap = 37 => "bmap",
    Destroy = 38 => "destroy",
    Ioctl = 39 => "ioctl",
    Poll = 40 => "poll",
    NotifyReply = 41 => "notify_reply",
    BatchForget = 42 => "batch_forget",
    Fallocate = 43 => "fallocate",
    Readdirplus = 44 => "readdirplus",
    Rename2 = 45 => "rename2",
    Lseek = 46 => "lseek",
    CopyFileRange = 47 => "copy_file_range",
    SetupMapping = 48 => "setup_mapping",
    RemoveMapping = 49 => "remove_mapping",
    Syncfs = 50 => "syncfs",
    Tmpfile = 51 => "tmpfile",
    Statx = 52 => "statx",
    CopyFileRange64 = 53 => "copy_file_range",
}

impl Opcode {
    /// May it change what a file is? OPEN and RELEASE may, too: by their flags.
    pub fn is_change(self) -> bool {
        use Opcode::*;
        match self {
            Init | Destroy | Lookup | Forget | BatchForget | Getattr | Statx | Access
            | Readlink | Open | Read | Release | Opendir | Readdir | Readdirplus | Releasedir
            | Statfs | Getxattr | Listxattr | Lseek | Getlk | Interrupt | NotifyReply | Ioctl
            | Bmap | Poll | SetupMapping | RemoveMapping => false,
            // A process that gets a lock wants to see what others did before.
            Setlk | Setlkw => true,
            Setattr | Symlink | Mknod | Mkdir | Unlink | Rmdir | Rename | Rename2 | Link
            | Write | Fsync | Setxattr | Removexattr | Flush | Fsyncdir | Create | Fallocate
            | CopyFileRange | CopyFileRange64 | Syncfs | Tmpfile => true,
        }
    }

    /// It is about an inode that a path has led to, or that is open.
    pub fn is_about_inode(self) -> bool {
        use Opcode::*;
        matches!(
            self,
            Getattr
                | Statx
                | Setattr
                | Access
                | Readlink
                | Open
                | Opendir
                | Getxattr
                | Setxattr
                | Listxattr
                | Removexattr
        )
    }

    /// It makes, removes or changes a name in the directory that it is about.
    pub fn is_about_names(self) -> bool {
        use Opcode::*;
        matches!(self, Create | Mknod | Mkdir | Symlink | Link | Unlink | Rmdir | Rename | Rename2)
    }
}
