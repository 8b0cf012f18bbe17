//! What the environment says: where datasets are to be seen, and where they are.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::sys;

/// The mount point.
const MOUNT: &[u8] = b"SAKER_MOUNT";
/// The agent's directory.
const AGENT_DIR: &[u8] = b"SAKER_AGENT_DIR";
const MOUNT_DEFAULT: &[u8] = b"/saker";

/// Settings of this process.
pub struct Config {
    /// Absolute, without `.`, `..` and a slash at the end.
    pub mount: Vec<u8>,
    /// Its first name.
    pub first_name: Vec<u8>,
    /// The agent's directory.
    pub agent_dir: Vec<u8>,
    /// It is the default one, in a directory where everybody can make names.
    is_default: bool,
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// A variable of an environment.
///
/// # Safety
/// `env` is null or a list of strings that ends with a null pointer.
pub unsafe fn variable<'a>(env: *const *const c_char, name: &[u8]) -> Option<&'a [u8]> {
    let mut at = env;
    // SAFETY: the caller's: the list ends with a null pointer.
    while let Some(entry) = unsafe { at.as_ref() }.filter(|entry| !entry.is_null()) {
        // SAFETY: a string of the environment.
        let entry = unsafe { CStr::from_ptr(*entry) }.to_bytes();
        if let Some(value) = entry.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
            return Some(value);
        }
        // SAFETY: this was not the last.
        at = unsafe { at.add(1) };
    }
    None
}

/// A variable of this process. Not by `getenv`, which programs like bash have one of their own of.
pub fn own_variable(name: &[u8]) -> Option<&'static [u8]> {
    // SAFETY: the C library keeps it a list that ends with a null pointer.
    unsafe { variable(environ, name) }
}

/// An absolute path without `.`, `..` and double slashes, by its letters alone; empty for `/`.
pub fn normal(path: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(path.len());
    for name in path.split(|c| *c == b'/') {
        match name {
            b"" | b"." => {}
            b".." => out.truncate(out.iter().rposition(|c| *c == b'/').unwrap_or(0)),
            name => {
                out.push(b'/');
                out.extend_from_slice(name);
            }
        }
    }
    out
}

impl Config {
    fn read() -> Config {
        let given = |name| own_variable(name).filter(|value| value.starts_with(b"/"));
        let mut mount = normal(given(MOUNT).unwrap_or(MOUNT_DEFAULT));
        if mount.is_empty() {
            mount = MOUNT_DEFAULT.to_vec();
        }
        let first_name = mount[1..].split(|c| *c == b'/').next().unwrap_or_default().to_vec();
        // SAFETY: touches no memory.
        let uid = unsafe { libc::syscall(libc::SYS_getuid) };
        let agent_dir = given(AGENT_DIR).map(<[u8]>::to_vec);
        let is_default = agent_dir.is_none();
        let agent_dir =
            agent_dir.unwrap_or_else(|| format!("/var/tmp/saker-agent-{uid}").into_bytes());
        let below = normal(&agent_dir);
        let is_below =
            below.strip_prefix(&mount[..]).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        // What is looked for below the mount point would be looked for in there, for ever.
        let agent_dir = if is_below { b"/dev/null".to_vec() } else { agent_dir };
        Config { mount, first_name, agent_dir, is_default }
    }

    /// Whether what is in the agent's directory is used: not if somebody else has made the default
    /// one, to have the user read and start what is in it. The agent refuses such a one, too.
    pub fn trusts_agent_dir(&self) -> bool {
        let Ok(path) = sys::c_path(self.agent_dir.clone()) else { return false };
        // SAFETY: touches no memory.
        let uid = unsafe { libc::syscall(libc::SYS_getuid) } as u32;
        !self.is_default || sys::lstat(&path).is_none_or(|stat| stat.st_uid == uid)
    }
}

static CONFIG: AtomicPtr<Config> = AtomicPtr::new(std::ptr::null_mut());

/// The settings, read at first use.
pub fn config() -> &'static Config {
    let known = CONFIG.load(Ordering::Acquire);
    // SAFETY: set once, and never freed.
    if let Some(config) = unsafe { known.as_ref() } {
        return config;
    }
    let errno = sys::errno();
    let new = Box::into_raw(Box::new(Config::read()));
    let null = std::ptr::null_mut();
    let set = CONFIG.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire);
    sys::set_errno(errno);
    // SAFETY: either is never freed.
    unsafe { &*set.map_or_else(|other| other, |_| new) }
}

#[cfg(test)]
mod tests {
    use super::normal;

    #[test]
    fn paths_by_their_letters() {
        for (path, wanted) in [
            ("/saker", "/saker"),
            ("//saker///a/./b/", "/saker/a/b"),
            ("/tmp/../saker/x", "/saker/x"),
            ("/../..", ""),
            ("/", ""),
            ("/a/b/../../c/..", ""),
        ] {
            assert_eq!(String::from_utf8(normal(path.as_bytes())).unwrap(), wanted, "{path}");
        }
    }
}
