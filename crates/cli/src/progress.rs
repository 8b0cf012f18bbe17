//! Progress of long commands: on stderr, and only when that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use saker_runtime::time;

/// How often work on another thread is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Does some work on a thread of its own, and calls `look` until it is done: to show how far it has
/// come, and to stop it at Ctrl-C.
pub fn watch<T: Send>(work: impl FnOnce() -> T + Send, mut look: impl FnMut()) -> T {
    std::thread::scope(|scope| {
        let working = scope.spawn(work);
        while !working.is_finished() {
            time::sleep(LOOK);
            look();
        }
        working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A line that shows how far a command has come. Clones are the same line.
#[derive(Clone)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Of a copy: counts bytes; files are in the message.
    pub fn copying() -> Progress {
        Progress::new("{spinner} {bytes} ({bytes_per_sec}) {msg} {elapsed}")
    }

    /// Of work on so many bytes.
    pub fn of_bytes(total: u64) -> Progress {
        let bar = Progress::new(
            "{wide_bar} {bytes} of {total_bytes} ({bytes_per_sec}, {eta} left) {msg}",
        );
        bar.0.set_length(total);
        bar
    }

    /// Of anything else: counts things called `noun`.
    pub fn counting(noun: &str) -> Progress {
        Progress::new(&format!("{{spinner}} {{pos}} {noun} ({{per_sec}}) {{msg}} {{elapsed}}"))
    }

    fn new(template: &str) -> Progress {
        // Does not draw unless stderr is a terminal.
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress(bar)
    }

    /// This much more is done.
    pub fn add(&self, n: u64) {
        self.0.inc(n);
    }

    /// So much there is to do, as far as that is known.
    pub fn set_total(&self, total: u64) {
        self.0.set_length(total);
    }

    /// So much is done.
    pub fn set(&self, n: u64) {
        self.0.set_position(n);
    }

    /// What else to show.
    pub fn say(&self, message: String) {
        self.0.set_message(message);
    }

    /// Prints a line on stderr without spoiling the display.
    pub fn error(&self, text: &str) {
        self.0.suspend(|| crate::complain!("{text}"));
    }

    /// Takes the line away.
    pub fn done(&self) {
        self.0.finish_and_clear();
    }
}
