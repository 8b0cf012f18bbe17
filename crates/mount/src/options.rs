//! Options of a mount, as after `-o` of mount(8).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use saker_fuse::Mode as TransportMode;
use saker_types::{Errno, Error, Result};

/// Each thread has connections to all servers: more than this only by option.
const THREADS_DEFAULT_MAX: usize = 16;
const THREADS_MAX: usize = 256;

/// Where a mount learns what a LOOKUP is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortcut {
    /// By BPF, or not where that does not work.
    Bpf,
    /// Not at all.
    Off,
}

/// Names of directories for which a mount has a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leases {
    /// Those that are used all the time.
    Hot,
    /// All that are walked through.
    All,
    /// None: a change of a directory never waits.
    Off,
}

/// How a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Source shown by mount(8) and df(1); default `saker:NAME` with the cluster's name.
    pub fsname: Option<String>,
    /// Users other than the one who mounted may use it. Default: as root.
    pub allow_other: bool,
    /// Nothing can be changed through this mount.
    pub read_only: bool,
    /// Device files work. Default: no.
    pub dev: bool,
    /// suid and sgid programs work. Default: no.
    pub suid: bool,
    /// Programs can be executed. Default: yes.
    pub exec: bool,
    /// How long the kernel may keep a name without asking again. Default 0: what another mount
    /// did is seen at once.
    pub entry_timeout: Duration,
    /// How long the kernel may keep attributes. Default 5 ms: with less, one stat asks twice.
    pub attr_timeout: Duration,
    /// Where the mount learns what a LOOKUP is for. Default: by BPF, if that works.
    pub shortcut: Shortcut,
    /// Which directories' names the kernel may keep although others are seen at once, because
    /// servers wait with a change until it does not. Only with a shortcut.
    pub leases: Leases,
    /// Whether the mount's client reads data of stores of this machine from their files (its
    /// `ClientOptions`). Default: no.
    pub local_reads: bool,
    /// How long the mount holds back what is written and not synced (its `ClientOptions`); zero: until close. Default:
    /// 5 s.
    pub writeback: Duration,
    /// Where journals of decoupled subtrees are kept, of policies that want them on this machine (its
    /// `ClientOptions`). Default: nowhere.
    pub journal_dir: Option<PathBuf>,
    /// Operations wait for servers that do not answer as long as it takes (its `ClientOptions`).
    /// Default: no.
    pub hard: bool,
    /// How requests come from the kernel.
    pub transport: TransportMode,
    /// Where its metrics are served (docs/metrics.md). Default: nowhere.
    pub http: Option<SocketAddr>,
    /// Threads that serve requests. Default: one for each core, at most 16.
    pub threads: usize,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            fsname: None,
            allow_other: rustix::process::geteuid().is_root(),
            read_only: false,
            dev: false,
            suid: false,
            exec: true,
            entry_timeout: Duration::ZERO,
            attr_timeout: Duration::from_millis(5),
            shortcut: Shortcut::Bpf,
            leases: Leases::Hot,
            local_reads: false,
            writeback: Duration::from_secs(5),
            journal_dir: None,
            hard: false,
            transport: TransportMode::Auto,
            http: None,
            threads: saker_runtime::thread::parallelism().min(THREADS_DEFAULT_MAX),
        }
    }
}

impl MountOptions {
    /// Reads a comma-separated list, changing the defaults: `ro`, `rw`, `allow_other`,
    /// `noallow_other`, `[no]dev`, `[no]suid`, `[no]exec`, `hard`, `soft`, `fsname=TEXT`,
    /// `entry_timeout=SECONDS`, `attr_timeout=SECONDS`, `writeback=SECONDS` (fractions allowed), `journal_dir=DIR`,
    /// `shortcut=auto|off` (`bpf` is `auto`), `leases=hot|all|off`, `local_reads=on|off`,
    /// `transport=auto|uring|dev`, `http=ADDR:PORT`, `threads=N`. What fstab(5) has for mount(8) and systemd alone
    /// is skipped.
    ///
    /// # Errors
    /// EINVAL, naming the option, for an unknown one or a bad value.
    pub fn parse(text: &str) -> Result<MountOptions> {
        let mut options = MountOptions::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').map_or((part, None), |(k, v)| (k, Some(v)));
            match value {
                Some(value) => options.set(key, value)?,
                None => options.flag(key)?,
            }
        }
        Ok(options)
    }

    fn flag(&mut self, key: &str) -> Result<()> {
        match key {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "allow_other" => self.allow_other = true,
            "noallow_other" => self.allow_other = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "hard" => self.hard = true,
            "soft" => self.hard = false,
            "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "owner" | "group"
            | "nofail" | "_netdev" | "async" | "noatime" | "relatime" | "nodiratime" => {}
            other if other.starts_with("x-") => {}
            other => return Err(invalid(format!("unknown mount option {other}"))),
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "fsname" => self.fsname = Some(value.to_owned()),
            "entry_timeout" => self.entry_timeout = seconds(key, value)?,
            "attr_timeout" => self.attr_timeout = seconds(key, value)?,
            "writeback" => self.writeback = seconds(key, value)?,
            "journal_dir" => self.journal_dir = Some(PathBuf::from(value)),
            "shortcut" => {
                self.shortcut = match value {
                    "auto" | "bpf" => Shortcut::Bpf,
                    "off" => Shortcut::Off,
                    _ => return Err(bad_value(key, value)),
                }
            }
            "leases" => {
                self.leases = match value {
                    "hot" => Leases::Hot,
                    "all" => Leases::All,
                    "off" => Leases::Off,
                    _ => return Err(bad_value(key, value)),
                }
            }
            "local_reads" => {
                self.local_reads = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(bad_value(key, value)),
                }
            }
            "transport" => {
                self.transport = match value {
                    "auto" => TransportMode::Auto,
                    "uring" => TransportMode::Uring,
                    "dev" => TransportMode::Dev,
                    _ => return Err(bad_value(key, value)),
                }
            }
            "http" => {
                self.http = Some(value.parse().map_err(|_| bad_value(key, value))?);
            }
            "threads" => {
                let n = value.parse().ok().filter(|n| (1..=THREADS_MAX).contains(n));
                self.threads = n.ok_or_else(|| bad_value(key, value))?;
            }
            other if other.starts_with("x-") || other == "comment" => {}
            other => return Err(invalid(format!("unknown mount option {other}"))),
        }
        Ok(())
    }
}

fn seconds(key: &str, value: &str) -> Result<Duration> {
    let seconds: f64 = value.parse().map_err(|_| bad_value(key, value))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| bad_value(key, value))
}

fn bad_value(key: &str, value: &str) -> Error {
    invalid(format!("bad value in mount option {key}={value}"))
}

fn invalid(text: String) -> Error {
    Error::new(Errno::EINVAL).with_text(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_change_the_defaults() {
        let default = MountOptions::default();
        assert_eq!(MountOptions::parse("").unwrap(), default);
        assert_eq!(MountOptions::parse("defaults,_netdev,x-systemd.automount").unwrap(), default);
        let parsed = MountOptions::parse(
            "ro,noallow_other,suid,noexec,local_reads=on,hard,fsname=a=b,entry_timeout=1.5,attr_timeout=0,\
             writeback=0.5,threads=3,transport=uring,leases=off,http=127.0.0.1:7480",
        );
        let wanted = MountOptions {
            read_only: true,
            allow_other: false,
            suid: true,
            exec: false,
            local_reads: true,
            hard: true,
            fsname: Some("a=b".into()),
            entry_timeout: Duration::from_millis(1500),
            attr_timeout: Duration::ZERO,
            writeback: Duration::from_millis(500),
            threads: 3,
            leases: Leases::Off,
            transport: TransportMode::Uring,
            http: Some("127.0.0.1:7480".parse().unwrap()),
            ..default
        };
        assert_eq!(parsed.unwrap(), wanted);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for bad in [
            "frobnicate",
            "ro=1",
            "shortcut=proc",
            "entry_timeout=-1",
            "attr_timeout=x",
            "writeback=-1",
            "threads=0",
            "transport=x",
            "http=7480",
            "leases=on",
            "local_reads",
            "pages=drop",
            "a=b",
        ] {
            let error = MountOptions::parse(bad).unwrap_err();
            assert_eq!(error.errno(), Errno::EINVAL, "{bad}");
            assert!(error.text.contains("mount option"), "{error}");
        }
    }
}
