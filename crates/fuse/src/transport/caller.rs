//! Whether whoever waits for an answer was killed.

/// The bit of SIGKILL in a mask of signals.
const SIGKILL_BIT: u64 = 1 << 8;
/// include/linux/sched.h: the thread ends.
const PF_EXITING: u64 = 4;
/// Of a status as waitpid(2) has it: the signal that has ended the process.
const SIGNAL_MASK: u64 = 0x7f;
/// Places of fields in `/proc/PID/stat` (proc_pid_stat(5)), counted from the third, which follows the
/// name's parenthesis.
const FLAGS: usize = 9 - 3;
const EXIT_CODE: usize = 52 - 3;

/// Was the thread killed by a signal? That is so before it can act on it: a signal that ends a process
/// by default (SIGINT, say, when nobody catches it) gives SIGKILL to all of its threads. Not seen of
/// those that dump core, nor of a thread in another pid namespace (0).
///
/// `stat` may be read only of a thread without memory, which is at its end: of one in execve(2) the
/// kernel waits until that is done, and that may wait for us (it closes files).
pub(super) fn is_killed(tid: u32) -> bool {
    if tid == 0 {
        return false;
    }
    let Some(status) = read(tid, "status") else { return false };
    match Life::of(&status) {
        Life::Killed => true,
        Life::Lives => false,
        Life::Ends => read(tid, "stat").is_some_and(|stat| ended_by_signal(&stat)),
    }
}

// The kernel's word on a thread, not a file that a simulation could hold.
#[allow(clippy::disallowed_methods)]
fn read(tid: u32, what: &str) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{tid}/{what}")).ok()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Lives,
    /// SIGKILL is pending.
    Killed,
    /// It has no memory any more, or is a thread of the kernel's.
    Ends,
}

impl Life {
    /// By `/proc/PID/status` (proc_pid_status(5)).
    fn of(status: &[u8]) -> Life {
        // The process's name in it may be cut in the middle of a character.
        let status = String::from_utf8_lossy(status);
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let pending = field("SigPnd:").and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        match pending {
            Some(pending) if pending & SIGKILL_BIT != 0 => Life::Killed,
            Some(_) if field("VmSize:").is_none() => Life::Ends,
            _ => Life::Lives,
        }
    }
}

fn ended_by_signal(stat: &[u8]) -> bool {
    let Some(name_end) = stat.iter().rposition(|&byte| byte == b')') else { return false };
    let rest = String::from_utf8_lossy(&stat[name_end + 1..]);
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |at: usize| fields.get(at).and_then(|text| text.parse().ok()).unwrap_or(0u64);
    field(FLAGS) & PF_EXITING != 0 && field(EXIT_CODE) & SIGNAL_MASK != 0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use std::process::{Command, Stdio};

    use super::*;

    fn stat(name: &str, flags: u64, exit_code: u64) -> Vec<u8> {
        let mut fields = vec!["0".to_owned(); 50];
        fields[FLAGS] = flags.to_string();
        fields[EXIT_CODE] = exit_code.to_string();
        format!("77 ({name}) {}\n", fields.join(" ")).into_bytes()
    }

    #[test]
    fn who_was_killed_is_told_from_who_waits_or_ends() {
        for (memory, pending, wanted) in [
            ("VmSize:\t 8 kB\n", 0, Life::Lives),
            ("VmSize:\t 8 kB\n", 1 << 1, Life::Lives),
            ("VmSize:\t 8 kB\n", 1 << 8, Life::Killed),
            ("", 1 << 8, Life::Killed),
            ("", 0, Life::Ends),
        ] {
            let status = format!("Name:\tx\n{memory}SigPnd:\t{pending:016x}\nShdPnd:\t0\n");
            assert_eq!(Life::of(status.as_bytes()), wanted, "{memory} {pending}");
        }
        assert_eq!(Life::of(b""), Life::Lives);
        for (flags, exit_code, wanted) in
            [(0x40_0000, 9, false), (0x40_0004, 0, false), (0x40_0004, 256, false), (4, 9, true)]
        {
            for name in ["cat", "a) b (", "\u{431}"] {
                let told = ended_by_signal(&stat(name, flags, exit_code));
                assert_eq!(told, wanted, "{name} {flags:x} {exit_code}");
            }
        }
        assert!(!ended_by_signal(b"") && !ended_by_signal(b"77 (x"));
    }

    #[test]
    fn the_kernels_form_is_understood() {
        assert!(!is_killed(std::process::id()) && !is_killed(0));
        // Nobody waits for it yet, so that what is left of it says how it has ended.
        for (signal, wanted) in [("KILL", true), ("TERM", true), ("0", false)] {
            let script = format!("test {signal} = 0 || kill -{signal} $$");
            let mut child =
                Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
            std::io::copy(&mut child.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
            let stat = format!("/proc/{}/stat", child.id());
            while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
                std::thread::yield_now();
            }
            assert_eq!(is_killed(child.id()), wanted, "{signal}");
            child.wait().unwrap();
        }
    }
}
