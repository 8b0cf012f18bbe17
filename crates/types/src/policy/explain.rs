//! What a policy promises: when others see an operation, and what each kind of crash loses.

use std::fmt;
use std::time::Duration;

use super::{Consistency, Durability, Interfere, Mechanism, Policy};

/// What is answered before it is flushed is flushed after this time at most.
pub const FLUSH_DELAY_MAX: Duration = Duration::from_millis(50);

/// What may happen to a machine or a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The client's process is killed; its machine goes on.
    ClientKilled,
    /// The client's machine loses power, and comes back with its disk.
    ClientPowerLoss,
    /// The client's machine never comes back.
    ClientLost,
    /// An MNode's process is killed.
    MnodeKilled,
    /// An MNode's machine loses power, and comes back with its disk.
    MnodePowerLoss,
    /// All MNodes' machines lose power at once, and come back with their disks.
    AllMnodesPowerLoss,
}

impl Crash {
    /// All, in the order in which they are shown.
    pub const ALL: [Crash; 6] = [
        Crash::ClientKilled,
        Crash::ClientPowerLoss,
        Crash::ClientLost,
        Crash::MnodeKilled,
        Crash::MnodePowerLoss,
        Crash::AllMnodesPowerLoss,
    ];
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Crash::ClientKilled => "the client is killed",
            Crash::ClientPowerLoss => "the client's machine loses power",
            Crash::ClientLost => "the client's machine never comes back",
            Crash::MnodeKilled => "an MNode is killed",
            Crash::MnodePowerLoss => "an MNode's machine loses power",
            Crash::AllMnodesPowerLoss => "all MNodes' machines lose power",
        })
    }
}

/// What a crash loses at most, of what was answered and not made durable by fsync(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing.
    Nothing,
    /// Nothing. What was not merged is in the client's journal, on its disk, until it is merged.
    KeptOnClient,
    /// The last [`FLUSH_DELAY_MAX`].
    LastMoments,
    /// What came after the last sync.
    SinceSync,
    /// What was not merged.
    Unmerged,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Nothing => "nothing is lost",
            Loss::KeptOnClient => "nothing is lost: the journal on the client's disk can be merged",
            Loss::LastMoments => "the last 50 ms may be lost",
            Loss::SinceSync => "what came after the last fsync, sync or merge is lost",
            Loss::Unmerged => "all that was not merged is lost",
        })
    }
}

impl Policy {
    /// What a crash loses at most.
    pub fn loses(&self, crash: Crash) -> Loss {
        match self.is_decoupled() {
            false => self.strong_loses(crash),
            true => self.decoupled_loses(crash),
        }
    }

    /// What need only be durable on the client the cluster makes durable.
    fn strong_loses(&self, crash: Crash) -> Loss {
        match (crash, self.durability()) {
            (Crash::MnodePowerLoss | Crash::AllMnodesPowerLoss, Durability::None) => {
                Loss::LastMoments
            }
            _ => Loss::Nothing,
        }
    }

    /// What is merged is durable. What is not is the client's alone.
    fn decoupled_loses(&self, crash: Crash) -> Loss {
        use Crash::*;
        let is_client = matches!(crash, ClientKilled | ClientPowerLoss | ClientLost);
        match (crash, self.durability()) {
            _ if !is_client => Loss::Nothing,
            (_, Durability::None) => Loss::Unmerged,
            (ClientKilled, Durability::Local) => Loss::KeptOnClient,
            (ClientPowerLoss, Durability::Local) => Loss::LastMoments,
            (_, Durability::Local) => Loss::Unmerged,
            (_, Durability::Global) if self.composition.has(Mechanism::Stream) => Loss::LastMoments,
            (_, Durability::Global) => Loss::SinceSync,
        }
    }

    /// When other clients see what this one does: a sentence.
    pub fn seen(&self) -> &'static str {
        match (self.consistency(), self.sync_interval) {
            (Consistency::Strong, _) => "Others see each operation as soon as it is answered.",
            (Consistency::Weak, None) => {
                "Others see the operations when the client merges them, all at once: at its end, or \
                 by `saker policy merge`."
            }
            (Consistency::Weak, Some(_)) => {
                "Others see the operations when the client merges them, all at once: after each \
                 sync_interval, at its end, or by `saker policy merge`."
            }
            (Consistency::Invisible, _) => {
                "Others see the operations when somebody merges them, all at once, by `saker policy \
                 merge`."
            }
        }
    }

    /// What happens to requests of other clients: a sentence.
    pub fn interference(&self) -> &'static str {
        match (self.interfere, self.is_decoupled()) {
            (Interfere::Block, _) => "Requests of other clients fail with EBUSY.",
            (Interfere::Allow, false) => "Other clients work in the subtree as anywhere.",
            (Interfere::Allow, true) => {
                "Other clients work in the subtree as it was. Where both change a name, what this \
                 client has done counts when it is merged."
            }
        }
    }
}
