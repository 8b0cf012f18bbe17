//! Errors: an errno, what the caller can do about it, and where the path went wrong.

use bytes::Bytes;

use crate::inode::Locator;

/// A Linux error number (errno(3)).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub u16);

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno($value);)*

            /// Name of the number, as in errno(3).
            pub fn name(self) -> &'static str {
                match self.0 { $($value => stringify!($name),)* _ => "E?" }
            }

            /// What it means, in words.
            pub fn text(self) -> &'static str {
                match self.0 { $($value => $text,)* _ => "unknown error" }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "argument list too long";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "try again";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EBUSY = 16, "device or resource busy";
    EEXIST = 17, "file exists";
    EXDEV = 18, "invalid cross-device link";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ETXTBSY = 26, "text file busy";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left on device";
    EROFS = 30, "read-only file system";
    EMLINK = 31, "too many links";
    ERANGE = 34, "result too large";
    ENAMETOOLONG = 36, "file name too long";
    ENOLCK = 37, "no locks available";
    ENOSYS = 38, "not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many levels of symbolic links";
    ENODATA = 61, "no such attribute";
    EPROTO = 71, "protocol error";
    EOVERFLOW = 75, "value too large";
    EOPNOTSUPP = 95, "operation not supported";
    ETIMEDOUT = 110, "timed out";
    EALREADY = 114, "already in progress";
    ESTALE = 116, "stale file handle";
    EDQUOT = 122, "quota exceeded";
}

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.text())
    }
}

/// What the receiver of an error can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Class {
    /// The answer: give the errno to the caller.
    Final = 0,
    /// Nothing was done; the same request may be sent again after a pause.
    Retry = 1,
    /// Nothing was done; fetch the cluster map, then send again.
    RefreshMap = 2,
    /// The session is not known (any more); what was unanswered has an unknown outcome.
    SessionLost = 3,
    /// `component` of the path is a symbolic link to `target`: follow it and send again.
    Symlink = 4,
    /// The inode is now at `moved`: send again there.
    Moved = 5,
    /// A directory is involved: send it to the coordinator.
    UseCoordinator = 6,
    /// No directory is involved: send it to the owner of the (source) name.
    UseOwner = 7,
    /// The decision depends on supplementary groups: send again with them.
    NeedGroups = 8,
    /// The peer speaks another protocol or is broken.
    Fatal = 9,
    /// `component` of the path is not the inode that was expected there.
    Elsewhere = 10,
    /// What is at `component` of the path, or the anchor if there is none, is under a policy
    /// ([`Error::policy`]) by which the client must hold the subtree, or answers by itself.
    NeedsHold = 11,
}

/// Bit of [`Error::component`] that is set when the second of two paths (the target of a rename
/// or link) is meant.
pub const SECOND_PATH: u32 = 1 << 31;

/// An error as it travels, and as the code of every role passes it on.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Error {
    /// errno(3).
    #[prost(uint32, tag = "1")]
    pub errno: u32,
    /// What to do about it.
    #[prost(enumeration = "Class", tag = "2")]
    pub class: i32,
    /// Index of the offending component in the request's path, if it is the path's fault.
    #[prost(uint32, optional, tag = "3")]
    pub component: Option<u32>,
    /// Target of the symbolic link met (class Symlink).
    #[prost(bytes = "bytes", tag = "4")]
    pub target: Bytes,
    /// Where the inode is now (class Moved).
    #[prost(message, optional, boxed, tag = "5")]
    pub moved: Option<Box<Locator>>,
    /// Words for logs.
    #[prost(string, tag = "6")]
    pub text: String,
    /// The policy in force (class NeedsHold).
    #[prost(uint64, tag = "7")]
    pub policy: u64,
}

impl std::error::Error for Error {}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.text.is_empty() {
            write!(f, "{}", self.errno())
        } else {
            write!(f, "{}: {}", self.errno(), self.text)
        }
    }
}

impl Error {
    /// A final error.
    pub fn new(errno: Errno) -> Error {
        Error { errno: u32::from(errno.0), ..Error::default() }
    }

    /// A final error about one component of the path.
    pub fn at(errno: Errno, component: usize) -> Error {
        Error { component: Some(component as u32), ..Error::new(errno) }
    }

    /// An error of another class.
    pub fn of_class(class: Class, errno: Errno) -> Error {
        Error { class: class.into(), ..Error::new(errno) }
    }

    /// "Nothing was done, try again": what meets a busy row or an expired wait.
    pub fn retry(text: &str) -> Error {
        Error { text: text.to_owned(), ..Error::of_class(Class::Retry, Errno::EAGAIN) }
    }

    /// The inode is elsewhere now.
    pub fn moved(to: Locator) -> Error {
        Error { moved: Some(Box::new(to)), ..Error::of_class(Class::Moved, Errno::ESTALE) }
    }

    /// A symbolic link stands in the way.
    pub fn symlink(component: usize, target: Bytes) -> Error {
        Error {
            component: Some(component as u32),
            target,
            ..Error::of_class(Class::Symlink, Errno::ELOOP)
        }
    }

    /// Another inode than expected.
    pub fn elsewhere(component: usize) -> Error {
        Error { class: Class::Elsewhere.into(), ..Error::at(Errno::ESTALE, component) }
    }

    /// The client must hold the subtree under this policy first.
    pub fn needs_hold(component: Option<usize>, policy: u64) -> Error {
        let component = component.map(|at| at as u32);
        Error { component, policy, ..Error::of_class(Class::NeedsHold, Errno::EBUSY) }
    }

    /// The same error, about the second of two paths.
    pub fn about_second(self) -> Error {
        Error { component: self.component.map(|at| at | SECOND_PATH), ..self }
    }

    /// Is it about the second of two paths?
    pub fn is_about_second(&self) -> bool {
        self.component.is_some_and(|at| at & SECOND_PATH != 0)
    }

    /// The same error with words for the log.
    pub fn with_text(mut self, text: impl Into<String>) -> Error {
        self.text = text.into();
        self
    }

    /// The errno; an absurd number from the wire becomes EIO.
    pub fn errno(&self) -> Errno {
        match u16::try_from(self.errno) {
            Ok(n) if n > 0 && n < 4096 => Errno(n),
            _ => Errno::EIO,
        }
    }

    /// Is it of this class?
    pub fn is(&self, class: Class) -> bool {
        self.class == i32::from(class)
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error::new(errno)
    }
}

/// Result of an operation.
pub type Result<T> = std::result::Result<T, Error>;
