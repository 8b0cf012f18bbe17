//! Commands while clients work. They are started by a shell that was started before: a process
//! that we start ourselves has our open files for a moment, and when it closes them the kernel
//! flushes each, which waits for the very process that the command is to bring back.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::cluster::RunningCluster;

/// A shell that runs one command after the other.
pub struct CommandShell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl CommandShell {
    /// Before any file of a mount is open.
    pub fn start() -> CommandShell {
        let mut shell = Command::new("sh");
        let mut child =
            shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("there is a shell");
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        CommandShell { child, input, output }
    }

    /// Runs a command to its end. Panics when it fails.
    pub fn run(&mut self, words: &[&OsStr]) {
        let command = quoted(words);
        let code = self.line(&format!("{command} </dev/null >/dev/null; echo $?"));
        assert_eq!(code, "0", "{command}");
    }

    /// `saker up`, while clients work.
    pub fn up(&mut self, cluster: &RunningCluster) {
        let words = cluster.up_words();
        self.run(&words.iter().map(OsString::as_os_str).collect::<Vec<_>>());
    }

    /// Starts a command; its pid.
    pub fn spawn(&mut self, words: &[&OsStr]) -> i32 {
        let command = quoted(words);
        let pid = self.line(&format!("{command} </dev/null >/dev/null 2>&1 & echo $!"));
        pid.parse().unwrap_or_else(|e| panic!("{command}: {pid}: {e}"))
    }

    fn line(&mut self, command: &str) -> String {
        let mut line = String::new();
        let said = writeln!(self.input, "{command}").and_then(|()| self.input.flush());
        said.and_then(|()| self.output.read_line(&mut line)).expect("the shell lives");
        line.trim().to_owned()
    }
}

impl Drop for CommandShell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn quoted(words: &[&OsStr]) -> String {
    let quote = |word: &&OsStr| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''"));
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_command_as_they_are() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("it's a file");
        let mut shell = CommandShell::start();
        shell.run(&["touch".as_ref(), file.as_os_str()]);
        assert!(file.exists());
        assert!(shell.spawn(&["true".as_ref()]) > 1);
        shell.run(&["rm".as_ref(), file.as_os_str()]);
        assert!(!file.exists());
    }
}
