//! Writing out what programs write and never sync: so that others see it, and it does not end with this client.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{join_all, select};
use saker_runtime::thread;
use saker_runtime::time::{self, Time, sleep};

use crate::core::Core;
use crate::data::open_inode::OpenInode;

/// It is looked this often for what is due.
const LOOK: Duration = Duration::from_millis(250);
/// A writer that has written nothing for so long pauses: what is there is written out.
const PAUSE: Duration = Duration::from_millis(500);
/// Files that are written out at a time.
const AT_ONCE: usize = 64;
/// So long others wait for those. What has not come to an end then goes on with the next look.
const PATIENCE: Duration = Duration::from_secs(1);

/// Starts the thread that writes out until the client is gone; none if that is turned off.
pub(crate) fn start(core: &Arc<Core>) -> std::io::Result<()> {
    if core.options.write_back.is_zero() {
        return Ok(());
    }
    let weak = Arc::downgrade(core);
    thread::spawn("saker-write-back", move || run(&weak)).map(|_| ())
}

fn run(weak: &Weak<Core>) {
    loop {
        sleep(LOOK);
        let Some(core) = weak.upgrade() else { return };
        if core.inodes.any_dirty() {
            core.cluster.net.block_on(core.write_out_old(time::now()));
        }
    }
}

impl Core {
    /// Writes out files that nobody writes to at the moment, and what has been here for too long.
    pub(crate) async fn write_out_old(self: &Arc<Core>, now: Time) {
        let max = self.options.write_back;
        let is_due = |inode: &Arc<OpenInode>| {
            inode.with(|s| {
                s.is_dirty() && (now - s.written_at() >= PAUSE || now - s.dirty_since() >= max)
            })
        };
        let due: Vec<_> = self.inodes.all().into_iter().filter(is_due).collect();
        for some in due.chunks(AT_ONCE) {
            let all = join_all(some.iter().map(|inode| self.write_out_idle(inode)));
            // Dropped in the middle it loses nothing: what is on its way belongs to the file.
            select(pin!(all), pin!(self.cluster.net.sleep_until(time::now() + PATIENCE))).await;
        }
        if !due.is_empty() {
            self.inodes.sweep();
        }
    }

    /// Writes a file out, unless somebody else is about to write or to do the same.
    async fn write_out_idle(self: &Arc<Core>, inode: &Arc<OpenInode>) {
        if let Some(mut writer) = inode.writer.try_lock() {
            self.write_back(inode, &mut writer).await;
        }
    }
}

#[cfg(test)]
mod tests;
