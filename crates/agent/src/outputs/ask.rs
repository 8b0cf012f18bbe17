//! Asking the home of a path, which may be this node.

use rustix::io::Errno;
use saker_agent_api::{Nothing, OutputInfo, OutputOp, Reply};

use super::attributes::root_info;
use super::home;
use super::path::OutputPath;
use super::place::{Place, is_dir};
use crate::error::{Error, Result};

impl Place {
    /// Asks the home of a path, which may be this node.
    ///
    /// # Errors
    /// What it answers. Of the connection.
    pub(super) async fn ask_home(&self, path: &OutputPath, op: OutputOp) -> Result<Reply> {
        let (home, id) = (self.home(path), saker_runtime::rand::u64());
        match home == self.dataset.node {
            true => home::execute(self, path, id, op).await,
            false => self.ask_node(home, path, id, op).await,
        }
    }

    /// Attributes of a path.
    ///
    /// # Errors
    /// ENOENT. As of [`Place::ask_home`].
    pub(super) async fn look(&self, path: &OutputPath) -> Result<OutputInfo> {
        if path.is_root() {
            return Ok(root_info());
        }
        let reply = self.ask_home(path, OutputOp::Look(Nothing {})).await?;
        reply.output.ok_or_else(|| Error::new(Errno::IO, "an answer without attributes"))
    }

    /// The same, if it is there.
    ///
    /// # Errors
    /// As of [`Place::ask_home`].
    pub(super) async fn find(&self, path: &OutputPath) -> Result<Option<OutputInfo>> {
        match self.look(path).await {
            Ok(info) => Ok(Some(info)),
            Err(error) if error.errno == libc::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The directory that a path is in must be there.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR. As of [`Place::ask_home`].
    pub(super) async fn check_parent(&self, path: &OutputPath) -> Result<()> {
        let Some(parent) = path.parent() else { return Ok(()) };
        match is_dir(&self.look(&parent).await?) {
            true => Ok(()),
            false => Err(Error::new(Errno::NOTDIR, parent)),
        }
    }

    /// Makes the directories that a new name is in, if somebody has removed them meanwhile: who
    /// removes one looks for names after he has begun.
    ///
    /// # Errors
    /// ENOTDIR. As of [`Place::ask_home`].
    pub(super) async fn ensure_parents(&self, path: &OutputPath) -> Result<()> {
        let mut parent = path.parent();
        while let Some(dir) = parent.filter(|dir| !dir.is_root()) {
            if !self.ask_home(&dir, OutputOp::EnsureDir(0o755)).await?.made {
                break;
            }
            parent = dir.parent();
        }
        Ok(())
    }
}
