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
const PENDING: usize = 31 - 3;
const EXIT_CODE: usize = 52 - 3;

/// Was the thread killed by a signal? That is so before it can act on it: a signal that ends a process
/// by default (SIGINT, say, when nobody catches it) gives SIGKILL to all of its threads. Not seen of
/// those that dump core, nor of a thread in another pid namespace (0).
// The kernel's word on a thread, not a file that a simulation could hold.
#[allow(clippy::disallowed_methods)]
pub(super) fn is_killed(tid: u32) -> bool {
    tid != 0 && std::fs::read(format!("/proc/{tid}/stat")).is_ok_and(|stat| says_killed(&stat))
}

fn says_killed(stat: &[u8]) -> bool {
    let Some(name_end) = stat.iter().rposition(|&byte| byte == b')') else { return false };
    let rest = String::from_utf8_lossy(&stat[name_end + 1..]);
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |at: usize| fields.get(at).and_then(|text| text.parse().ok()).unwrap_or(0u64);
    let dies = field(PENDING) & SIGKILL_BIT != 0;
    dies || (field(FLAGS) & PF_EXITING != 0 && field(EXIT_CODE) & SIGNAL_MASK != 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use std::process::{Command, Stdio};

    use super::*;

    fn stat(name: &str, flags: u64, pending: u64, exit_code: u64) -> Vec<u8> {
        let mut fields = vec!["0".to_owned(); 50];
        fields[FLAGS] = flags.to_string();
        fields[PENDING] = pending.to_string();
        fields[EXIT_CODE] = exit_code.to_string();
        format!("77 ({name}) {}\n", fields.join(" ")).into_bytes()
    }

    #[test]
    fn who_was_killed_is_told_from_who_waits_or_ends() {
        for (flags, pending, exit_code, wanted) in [
            (0x40_0000, 0, 0, false),
            (0x40_0000, 1 << 1, 0, false),
            (0x40_0000, 1 << 8, 0, true),
            (0x40_0004, 0, 0, false),
            (0x40_0004, 0, 256, false),
            (0x40_0004, 0, 9, true),
            (0x40_0004, 0, 0x80 | 6, true),
        ] {
            for name in ["cat", "a) b (", "\u{431}"] {
                let told = says_killed(&stat(name, flags, pending, exit_code));
                assert_eq!(told, wanted, "{name} {flags:x} {pending} {exit_code}");
            }
        }
        assert!(!says_killed(b"") && !says_killed(b"77 (x"));
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
