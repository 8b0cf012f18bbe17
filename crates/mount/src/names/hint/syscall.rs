//! Which syscalls take paths, where, and what they want of the last component.
//!
//! Source: the manual pages (section 2) and `fs/namei.c` of Linux.

use libc::{AT_REMOVEDIR, O_PATH, O_TMPFILE, RENAME_NOREPLACE};

use super::{LookupIntent, path};

/// Arguments that are noted of a syscall.
pub(super) const ARGS: usize = 5;

/// The kernel's mark of what is opened to be executed (include/linux/fs.h).
const FMODE_EXEC: i32 = 0o40;

/// A syscall that takes paths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Syscall {
    /// Which of its arguments are paths.
    pub(super) paths: &'static [usize],
    pub(super) does: Does,
}

/// What a syscall does; numbers are those of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    Look,
    Exec,
    Create,
    Open {
        flags: usize,
    },
    /// Its flags are not among the arguments.
    Openat2,
    Mkdir,
    /// What must not have a slash at its end: mknod(2), symlink(2).
    Make,
    Link,
    Unlink,
    Rmdir,
    Unlinkat {
        flags: usize,
    },
    Rename,
    Renameat2 {
        flags: usize,
    },
}

const PATH: &[usize] = &[0];
/// After a descriptor.
const AT: &[usize] = &[1];
/// Of a symlink, after its text.
const AT_AFTER_TEXT: &[usize] = &[2];
const TWO_AT: &[usize] = &[1, 3];

impl Syscall {
    /// By number; `None` for those that take no path, and for rare ones.
    pub(super) fn of(nr: u32) -> Option<Syscall> {
        let (paths, does) = match libc::c_long::from(nr) {
            libc::SYS_openat => (AT, Does::Open { flags: 2 }),
            libc::SYS_openat2 => (AT, Does::Openat2),
            libc::SYS_execve => (PATH, Does::Exec),
            libc::SYS_execveat => (AT, Does::Exec),
            libc::SYS_mkdirat => (AT, Does::Mkdir),
            libc::SYS_mknodat => (AT, Does::Make),
            libc::SYS_symlinkat => (AT_AFTER_TEXT, Does::Make),
            libc::SYS_linkat => (TWO_AT, Does::Link),
            libc::SYS_unlinkat => (AT, Does::Unlinkat { flags: 2 }),
            libc::SYS_renameat => (TWO_AT, Does::Rename),
            libc::SYS_renameat2 => (TWO_AT, Does::Renameat2 { flags: 4 }),
            libc::SYS_newfstatat
            | libc::SYS_statx
            | libc::SYS_faccessat
            | libc::SYS_faccessat2
            | libc::SYS_readlinkat
            | libc::SYS_fchmodat
            | libc::SYS_fchownat
            | libc::SYS_utimensat => (AT, Does::Look),
            libc::SYS_chdir | libc::SYS_truncate | libc::SYS_statfs => (PATH, Does::Look),
            nr => Syscall::old(nr)?,
        };
        Some(Syscall { paths, does })
    }

    /// Those that only old architectures have.
    #[cfg(target_arch = "x86_64")]
    fn old(nr: libc::c_long) -> Option<(&'static [usize], Does)> {
        const AFTER_TEXT: &[usize] = &[1];
        const TWO: &[usize] = &[0, 1];
        Some(match nr {
            libc::SYS_open => (PATH, Does::Open { flags: 1 }),
            libc::SYS_creat => (PATH, Does::Create),
            libc::SYS_mkdir => (PATH, Does::Mkdir),
            libc::SYS_mknod => (PATH, Does::Make),
            libc::SYS_symlink => (AFTER_TEXT, Does::Make),
            libc::SYS_link => (TWO, Does::Link),
            libc::SYS_unlink => (PATH, Does::Unlink),
            libc::SYS_rmdir => (PATH, Does::Rmdir),
            libc::SYS_rename => (TWO, Does::Rename),
            libc::SYS_stat
            | libc::SYS_lstat
            | libc::SYS_access
            | libc::SYS_readlink
            | libc::SYS_chmod
            | libc::SYS_chown
            | libc::SYS_lchown
            | libc::SYS_utimes => (PATH, Does::Look),
            _ => return None,
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn old(_: libc::c_long) -> Option<(&'static [usize], Does)> {
        None
    }

    /// The kernel ends its walk before the last component and looks that up by itself.
    pub(super) fn ends_walk_early(&self) -> bool {
        !matches!(
            self.does,
            Does::Look | Does::Exec | Does::Create | Does::Open { .. } | Does::Openat2
        )
    }

    /// What is wanted of the last component of path `which`; `slash`: slashes follow it.
    pub(super) fn intent(&self, which: usize, slash: bool, args: &[u64; ARGS]) -> LookupIntent {
        match self.does {
            Does::Look | Does::Openat2 => LookupIntent::Plain,
            Does::Exec => LookupIntent::Open { flags: FMODE_EXEC },
            Does::Create => {
                LookupIntent::Open { flags: libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC }
            }
            Does::Open { flags } => open(args[flags]),
            Does::Mkdir => LookupIntent::Create,
            Does::Rmdir => LookupIntent::Remove { dir: true },
            Does::Unlinkat { flags } if args[flags] as i32 == AT_REMOVEDIR => {
                LookupIntent::Remove { dir: true }
            }
            Does::Link if which == 0 => LookupIntent::Plain,
            Does::Rename if which == 0 || slash => LookupIntent::RenameSource,
            Does::Rename => LookupIntent::RenameTarget,
            // Two names change places, or what the flags say is not known.
            Does::Renameat2 { flags } if args[flags] as u32 & !RENAME_NOREPLACE != 0 => {
                LookupIntent::RenameSource
            }
            Does::Renameat2 { .. } if which == 0 || slash => LookupIntent::RenameSource,
            Does::Renameat2 { .. } => LookupIntent::RenameTarget,
            // The kernel has errors of its own then, for which it needs to know the truth.
            Does::Make | Does::Link | Does::Unlink | Does::Unlinkat { .. } if slash => {
                LookupIntent::Plain
            }
            Does::Make | Does::Link => LookupIntent::Create,
            Does::Unlink => LookupIntent::Remove { dir: false },
            Does::Unlinkat { flags } if args[flags] as u32 == 0 => {
                LookupIntent::Remove { dir: false }
            }
            Does::Unlinkat { .. } => LookupIntent::Plain,
        }
    }

    /// Before it looks at a path's end the kernel walks both, and has errors of its own then.
    pub(super) fn walks_both(&self) -> bool {
        matches!(self.does, Does::Rename | Does::Renameat2 { .. })
    }

    /// What is wanted of `name`, which is looked up after the walk ended early, and of which path
    /// it is the last; `None`: of either.
    pub(super) fn intent_after_walk(
        &self,
        name: &[u8],
        paths: [&[u8]; 2],
        args: &[u64; ARGS],
    ) -> Option<(Option<usize>, LookupIntent)> {
        let slash = |which: usize| {
            path::last(paths[which]).and_then(|(last, slash)| (last == name).then_some(slash))
        };
        let (which, slash) = match self.does {
            // The walk to the source goes to its end.
            Does::Link => (1, slash(1)?),
            Does::Rename | Does::Renameat2 { .. } => match (slash(0), slash(1)) {
                (Some(slash), None) => (0, slash),
                (None, Some(slash)) => (1, slash),
                // Which of both it is nobody knows: the source's is what needs the truth.
                (Some(slash), Some(_)) if path::is_alone(paths[0]) == path::is_alone(paths[1]) => {
                    return Some((None, self.intent(0, slash, args)));
                }
                _ => return None,
            },
            _ => (0, slash(0)?),
        };
        Some((Some(which), self.intent(which, slash, args)))
    }
}

/// As open(2) has it.
fn open(flags: u64) -> LookupIntent {
    let flags = flags as i32;
    if flags & O_PATH != 0 || flags & O_TMPFILE == O_TMPFILE {
        return LookupIntent::Plain;
    }
    LookupIntent::Open { flags }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn after_walk(nr: i64, name: &str, paths: [&str; 2], last_arg: i32) -> Option<LookupIntent> {
        let call = Syscall::of(nr as u32).unwrap();
        assert!(call.ends_walk_early());
        let mut args = [7; ARGS];
        // The flags of unlinkat and of renameat2.
        args[2] = last_arg as u64;
        args[4] = last_arg as u64;
        let found = call.intent_after_walk(name.as_bytes(), paths.map(str::as_bytes), &args);
        found.map(|(_, intent)| intent)
    }

    #[test]
    fn makers_and_removers_are_known_by_their_syscall() {
        use libc::*;
        const PLAIN: Option<LookupIntent> = Some(LookupIntent::Plain);
        const DIR: Option<LookupIntent> = Some(LookupIntent::Remove { dir: true });
        const FILE: Option<LookupIntent> = Some(LookupIntent::Remove { dir: false });
        for (nr, path, flags, wanted) in [
            (SYS_mkdirat, "a/x", 0, Some(LookupIntent::Create)),
            (SYS_mkdirat, "a/x/", 0, Some(LookupIntent::Create)),
            (SYS_mkdirat, "x/a", 0, None),
            (SYS_mknodat, "a/x", 0, Some(LookupIntent::Create)),
            (SYS_mknodat, "a/x/", 0, PLAIN),
            (SYS_symlinkat, "x", 0, Some(LookupIntent::Create)),
            (SYS_unlinkat, "x", 0, FILE),
            (SYS_unlinkat, "x/", 0, PLAIN),
            (SYS_unlinkat, "x/", AT_REMOVEDIR, DIR),
            (SYS_unlinkat, "x", AT_REMOVEDIR | 1, PLAIN),
        ] {
            assert_eq!(after_walk(nr, "x", [path, ""], flags), wanted, "{nr} {path} {flags}");
        }
    }

    #[test]
    fn of_a_rename_the_target_is_known_or_the_truth_is_told() {
        const SOURCE: Option<LookupIntent> = Some(LookupIntent::RenameSource);
        const TARGET: Option<LookupIntent> = Some(LookupIntent::RenameTarget);
        for (paths, flags, wanted) in [
            (["a/x", "y"], 0, SOURCE),
            (["x/y", "a/x"], 0, TARGET),
            (["y", "x"], RENAME_NOREPLACE, TARGET),
            (["a/x", "b/x"], 0, SOURCE),
            (["x", "x"], 0, SOURCE),
            (["a/x", "x"], 0, None),
            (["a", "b"], 0, None),
            (["a/x/", "y"], 0, SOURCE),
            (["a/y", "x/"], 0, SOURCE),
            (["x", "y"], libc::RENAME_EXCHANGE, SOURCE),
            (["y", "x"], libc::RENAME_EXCHANGE, SOURCE),
            (["y", "x"], 1 << 20, SOURCE),
        ] {
            let found = after_walk(libc::SYS_renameat2, "x", paths, flags as i32);
            assert_eq!(found, wanted, "{paths:?} {flags}");
        }
        let found = after_walk(libc::SYS_linkat, "x", ["a/x", "b/x"], 0);
        assert_eq!(found, Some(LookupIntent::Create));
        assert_eq!(after_walk(libc::SYS_linkat, "x", ["x", "y"], 0), None);
    }

    #[test]
    fn flags_of_open_are_understood() {
        let call = Syscall::of(libc::SYS_openat as u32).unwrap();
        assert!(!call.ends_walk_early());
        for (flags, wanted) in [
            (libc::O_RDWR, LookupIntent::Open { flags: libc::O_RDWR }),
            (libc::O_CREAT, LookupIntent::Open { flags: libc::O_CREAT }),
            (O_PATH, LookupIntent::Plain),
            (O_TMPFILE | libc::O_RDWR, LookupIntent::Plain),
            (libc::O_DIRECTORY, LookupIntent::Open { flags: libc::O_DIRECTORY }),
        ] {
            let args = [0, 0, flags as u64, 0, 0];
            assert_eq!(call.intent(0, false, &args), wanted, "{flags:o}");
        }
    }

    #[test]
    fn what_takes_no_path_is_not_described() {
        for nr in [libc::SYS_read, libc::SYS_io_uring_enter, libc::SYS_fstat, 100_000] {
            assert!(Syscall::of(nr as u32).is_none(), "{nr}");
        }
        assert!(Syscall::of(u32::MAX).is_none());
    }
}
