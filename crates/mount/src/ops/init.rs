//! INIT: what kernel and mount agree on.

use saker_fuse::abi::{self, InitIn, InitInExt, InitOut, init};
use saker_fuse::{MAX_WRITE_BYTES, Reply, Request};
use saker_types::{Errno, Error, Result};

use crate::mount::READ_AHEAD_BYTES;
use crate::service::MountService;

/// Asynchronous requests (read-ahead, write-back of maps) that may be under way.
const MAX_BACKGROUND: u16 = 128;
/// From here on the kernel holds back read-ahead.
const CONGESTION: u16 = 96;
const PAGE_BYTES: usize = 4096;

/// What is wanted of every kernel.
///
/// - `HANDLE_KILLPRIV_V2`: write, truncate and chown must clear suid and sgid. The kernel alone
///   would send a SETATTR in the writer's name, which the server refuses to all but the owner,
///   and would ask for `security.capability` before every write. With it, the kernel says when
///   bits must go, and the mount clears them (`MountService::drop_privileges`); file capabilities
///   are refused, so there are none to clear.
/// - `DONT_MASK`: the umask comes with the request, and the server applies it where the directory
///   has no default ACL.
/// - `POSIX_LOCKS`, `FLOCK_LOCKS`: locks hold between mounts (`ops::lock`).
/// - `AUTO_INVAL_DATA`: cached pages go when size or mtime changed elsewhere.
/// - `DIRECT_IO_ALLOW_MMAP`: what is opened to append (`MountService::opened`) can be mapped.
/// - `NO_EXPORT_SUPPORT`: nobody gets handles (`name_to_handle_at`) that end when the kernel forgets
///   the inode: nothing is found by id alone.
///
/// Not wanted: write-back cache, cached symlinks and explicit invalidation (another mount's
/// changes would show late), `POSIX_ACL` and `default_permissions` (the server checks), `NO_OPEN`
/// and `NO_OPENDIR` (handles are needed), `ALLOW_IDMAP` (it takes `default_permissions`, and requests
/// then do not say who asks).
const WANTED: u64 = init::ASYNC_READ
    | init::ATOMIC_O_TRUNC
    | init::POSIX_LOCKS
    | init::FLOCK_LOCKS
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::AUTO_INVAL_DATA
    | init::ASYNC_DIO
    | init::DIRECT_IO_ALLOW_MMAP
    | init::PARALLEL_DIROPS
    | init::ABORT_ERROR
    | init::MAX_PAGES
    | init::HANDLE_KILLPRIV_V2
    | init::NO_EXPORT_SUPPORT
    | init::INIT_EXT;

/// Wanted where names may be kept. Without that the kernel would ask LOOKUP for each name of a
/// listing all the same, and what READDIRPLUS brought would only have to be forgotten again.
const WANTED_WITH_NAMES: u64 = init::DO_READDIRPLUS | init::READDIRPLUS_AUTO;

/// Answers INIT, asking for `extra` flags, too; with the minor version of the kernel and the flags
/// agreed on, unless the kernel must ask again.
pub(crate) fn negotiate(request: &Request, extra: u64) -> Result<(Reply, Option<(u32, u64)>)> {
    let mut body = request.body();
    let input: InitIn = body.fixed()?;
    if input.major > abi::MAJOR {
        // It comes down to ours and sends another INIT.
        let major = InitOut { major: abi::MAJOR, minor: abi::MINOR, ..InitOut::default() };
        return Ok((Reply::of(&major), None));
    }
    if input.major < abi::MAJOR || input.minor < abi::MINOR_MIN {
        let text = format!("FUSE {}.{} is too old", input.major, input.minor);
        return Err(Error::new(Errno::EPROTO).with_text(text));
    }
    let mut offered = u64::from(input.flags);
    if offered & init::INIT_EXT != 0 {
        offered |= u64::from(body.fixed::<InitInExt>()?.flags2) << 32;
    }
    let agreed = offered & (WANTED | extra);
    let out = InitOut {
        major: abi::MAJOR,
        minor: abi::MINOR,
        // No more than the mount's device has, which its knob may raise before or after.
        max_readahead: input.max_readahead.max(READ_AHEAD_BYTES as u32),
        flags: agreed as u32,
        flags2: (agreed >> 32) as u32,
        max_background: MAX_BACKGROUND,
        congestion_threshold: CONGESTION,
        max_write: MAX_WRITE_BYTES as u32,
        max_pages: (MAX_WRITE_BYTES / PAGE_BYTES) as u16,
        time_gran: 1,
        ..InitOut::default()
    };
    Ok((Reply::of(&out), Some((input.minor, agreed))))
}

impl MountService {
    /// Answers INIT; with the flags agreed on, unless the kernel must ask again.
    pub(crate) fn greet(&self, request: &Request, extra: u64) -> Result<(Reply, Option<u64>)> {
        let names = if self.entry_timeout.is_zero() { 0 } else { WANTED_WITH_NAMES };
        let (reply, agreed) = negotiate(request, names | extra)?;
        if let Some((minor, flags)) = agreed {
            tracing::info!(
                "kernel FUSE 7.{minor} (flags {flags:#x}), entry_timeout {:?}, attr_timeout {:?}",
                self.entry_timeout,
                self.attr_timeout,
            );
        }
        Ok((reply, agreed.map(|(_, flags)| flags)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use saker_fuse::abi::InHeader;
    use zerocopy::{FromBytes, FromZeros as _, IntoBytes};

    fn ask(major: u32, minor: u32, flags: u64, ext: bool) -> Result<(InitOut, Option<(u32, u64)>)> {
        let input = InitIn { major, minor, max_readahead: 131_072, flags: flags as u32 };
        let more = InitInExt { flags2: (flags >> 32) as u32, unused: [0; 11] };
        let mut body = input.as_bytes().to_vec();
        if ext {
            body.extend_from_slice(more.as_bytes());
        }
        let (reply, agreed) = negotiate(&Request::new(InHeader::new_zeroed(), &body), 0)?;
        Ok((InitOut::read_from_bytes(&reply.head).unwrap(), agreed))
    }

    #[test]
    fn only_what_both_sides_know_is_agreed_on() {
        let (out, agreed) = ask(7, 45, u64::MAX, true).unwrap();
        assert_eq!(agreed.unwrap(), (45, WANTED));
        assert_eq!(u64::from(out.flags), WANTED & 0xffff_ffff);
        assert_eq!((out.max_write, out.max_pages), (1 << 20, 256));
        let (out, agreed) = ask(7, 31, init::ASYNC_READ | init::DO_READDIRPLUS, false).unwrap();
        assert_eq!(agreed.unwrap(), (31, init::ASYNC_READ));
        assert_eq!(u64::from(out.flags), init::ASYNC_READ);
    }

    #[test]
    fn other_versions() {
        let (out, agreed) = ask(8, 0, 0, false).unwrap();
        assert_eq!((out.major, agreed), (7, None));
        assert_eq!(ask(7, 30, 0, false).unwrap_err().errno(), Errno::EPROTO);
        assert_eq!(ask(6, 45, 0, false).unwrap_err().errno(), Errno::EPROTO);
        let cut = ask(7, 45, u64::MAX, false);
        assert_eq!(cut.unwrap_err().errno(), Errno::EINVAL, "the extension is missing");
    }
}
