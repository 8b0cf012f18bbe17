//! Memory of files that nobody reads or writes at the moment, given back when others need it.

use std::sync::Arc;
use std::time::Duration;

use saker_runtime::time::{self, Time};

use crate::core::Core;
use crate::data::ahead::WINDOW_BYTES_MIN;
use crate::data::read::AGE_MAX;

/// Whoever finds no room to write looks through all open files, this often at most.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Core {
    /// Bytes that may be read ahead of one file, or none if they are too few to be worth it.
    pub(crate) fn room_to_read_ahead(&self) -> usize {
        let enough = || Some(self.ahead.left()).filter(|left| *left >= WINDOW_BYTES_MIN);
        if let Some(left) = enough() {
            return left;
        }
        let now = time::now();
        if self.ahead.is_due(now, AGE_MAX) {
            self.let_go_of_data(now);
        }
        enough().unwrap_or(0)
    }

    /// Forgets what was read ahead in files that nobody has read for a while: it would not be used.
    pub(crate) fn let_go_of_data(&self, now: Time) {
        for inode in self.inodes.all() {
            if let Some(mut ahead) = inode.ahead.try_lock() {
                ahead.let_go(now, AGE_MAX);
            }
        }
    }

    /// Is there room for data that waits to be written out? If there is none, files that nobody is writing to send
    /// theirs, and find out what stores have accepted.
    pub(crate) async fn room_to_write(self: &Arc<Core>) -> bool {
        if self.unwritten.left() == 0 && self.unwritten.is_due(time::now(), LOOK_EVERY) {
            for inode in self.inodes.all() {
                if let Some(mut writer) = inode.writer.try_lock() {
                    self.send_on(&inode, &mut writer).await;
                }
            }
        }
        self.unwritten.left() > 0
    }
}
