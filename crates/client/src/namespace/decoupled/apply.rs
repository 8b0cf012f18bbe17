//! Journals of a client that is gone become part of the namespace (Cudele section 4.3).

use std::time::Duration;

use saker_types::wire::{HoldRecord, Op, PolicyReply, PolicyReq};
use saker_types::{Errno, Error, Result};

use super::journals::{JournalOf, journals_in};
use crate::{Fs, MergeReport};

/// It is looked so often whether a client renews its lease, which is done more often.
const LOOK: Duration = Duration::from_secs(4);
/// A lease that is by less than this shorter than it was then was renewed.
const RENEWED_MS: u32 = 2_000;

fn unknown(error: Error) -> Error {
    match error.errno() {
        Errno::ENOENT => {
            let text = "the cluster has no such policy: its directory was removed, or the journal is of \
                        another cluster";
            Error::new(Errno::ENOENT).with_text(text)
        }
        _ => error,
    }
}

fn ended(of: &JournalOf) -> Error {
    let text = format!(
        "the hold of the subtree has ended since {} was written: it was merged, or given up",
        of.path.display()
    );
    Error::new(Errno::ESTALE).with_text(text)
}

impl Fs {
    /// Takes the hold up again that a journal is of, merges what that has, and releases it; then the journal is
    /// removed. This client was connected with the journal's directory. A dry run only says what a merge would
    /// meet: the journal is opened, as by a client that goes on with it, and stays, and so does the hold.
    ///
    /// # Errors
    /// ESTALE: the hold has ended. EBUSY: its client lives. ENOENT: the cluster has no such policy. EIO for
    /// a journal that cannot be read, which is not changed. Those of merging: then nothing is removed.
    pub async fn apply_journal(&self, of: &JournalOf, dry_run: bool) -> Result<MergeReport> {
        let policy = of.policy;
        if self.subtrees.held(policy)?.is_none() {
            self.check_applies(of).await?;
            self.hold_subtree(policy).await?;
        }
        let subtree = self.subtrees.held(policy)?.ok_or(Errno::ESTALE)?;
        let merged = subtree.merge(dry_run, !dry_run).await;
        if dry_run || merged.is_ok() {
            subtree.end(Error::new(Errno::ESTALE).with_text("the journal was applied"));
            self.subtrees.remove(policy);
        }
        match (dry_run, &merged) {
            // Its lease ends, and whoever has the journal goes on.
            (true, _) => self.core.cluster.holds.forget(policy),
            (false, Ok(_)) => self.subtrees.journals.iter().for_each(|dir| dir.remove(policy)),
            (false, Err(_)) => {}
        }
        merged
    }

    /// Goes on with the subtrees of which this client's directory for journals has something, as the first change
    /// in each would do. The log says which cannot be gone on with.
    pub async fn resume_subtrees(&self) {
        let Some(dir) = &self.core.options.journal_dir else { return };
        let found = journals_in(dir).unwrap_or_else(|error| {
            tracing::warn!("{}: {error}", dir.display());
            Vec::new()
        });
        for of in found {
            if let Err(error) = self.resume(&of).await {
                tracing::warn!("{} is not gone on with: {error}", of.path.display());
            }
        }
    }

    async fn resume(&self, of: &JournalOf) -> Result<()> {
        let request = PolicyReq { policy: of.policy };
        let asked = self.ask_coordinator::<PolicyReply>(Op::GetPolicy, &request).await;
        let hold = asked.map_err(unknown)?.hold.filter(|hold| hold.first == of.first);
        hold.ok_or_else(|| ended(of))?;
        self.hold_subtree(of.policy).await
    }

    /// Is the hold there yet that a journal is of, and nobody there who uses it? Waits until its lease ends.
    async fn check_applies(&self, of: &JournalOf) -> Result<()> {
        let request = PolicyReq { policy: of.policy };
        let mut before: Option<u32> = None;
        loop {
            let asked = self.ask_coordinator::<PolicyReply>(Op::GetPolicy, &request).await;
            let hold = asked.map_err(unknown)?.hold.filter(|hold| hold.first == of.first);
            let HoldRecord { lease_ms, who, .. } = hold.ok_or_else(|| ended(of))?;
            match before {
                _ if lease_ms == 0 => return Ok(()),
                Some(before) if lease_ms + RENEWED_MS > before => {
                    let text = format!("its client lives: {who}");
                    return Err(Error::new(Errno::EBUSY).with_text(text));
                }
                _ => before = Some(lease_ms),
            }
            self.sleep(Duration::from_millis(lease_ms.into()).min(LOOK)).await;
        }
    }
}
