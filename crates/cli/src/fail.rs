//! How a command ends: an exit code, or one line `saker: WHAT: WHY`.

use std::fmt;

/// Says a line on stderr. That it cannot be said is no reason to end, as it is for `eprintln!`.
#[macro_export]
macro_rules! complain {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// The same on stdout, of a process that goes on.
#[macro_export]
macro_rules! announce {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// Exit code of a failure of ours.
pub const FAILED: u8 = 1;
/// Exit code of a command line that makes no sense.
pub const USAGE: u8 = 2;

/// Why a command could not do what it was told. Prints as `WHAT: WHY`, on one line.
#[derive(Debug)]
pub struct Failure {
    what: String,
    why: String,
    /// The process's exit code.
    pub code: u8,
}

impl Failure {
    /// `what` is the thing (a path, a role, an address), `why` what is wrong with it and, where we
    /// know, what to do about it.
    pub fn new(what: impl fmt::Display, why: impl fmt::Display) -> Failure {
        Failure { what: what.to_string(), why: one_line(&why.to_string()), code: FAILED }
    }

    /// A wrong command line.
    pub fn usage(what: impl fmt::Display, why: impl fmt::Display) -> Failure {
        Failure { code: USAGE, ..Failure::new(what, why) }
    }

    /// What is wrong, without the thing.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// The same with another exit code.
    pub fn with_code(self, code: u8) -> Failure {
        Failure { code, ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

fn one_line(text: &str) -> String {
    text.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Result of a step of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Names the thing that an error is about.
pub trait Context<T> {
    /// Turns the error into a [`Failure`] about `what`.
    fn about(self, what: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn about(self, what: impl fmt::Display) -> Outcome<T> {
        self.map_err(|why| Failure::new(what, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        let failure = Failure::new("etc/mnode-0.toml", "bad\n  really bad\n");
        assert_eq!(failure.to_string(), "etc/mnode-0.toml: bad; really bad");
        assert_eq!((failure.code, Failure::usage("a", "b").code), (1, 2));
    }
}
