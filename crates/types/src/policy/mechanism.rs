//! Mechanisms, and how they are composed (Cudele Table 1, sections 3.1 and 3.2).

use std::fmt;

/// A building block of consistency and durability (Cudele Table 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mechanism {
    /// Each operation is a request to its MNode, and seen by all once it is answered.
    Rpcs,
    /// What records the operations is streamed as it goes: with [`Mechanism::Rpcs`], each reply waits
    /// for the MNode's journal to be flushed; with [`Mechanism::AppendClientJournal`], the client's
    /// journal goes to objects in the stores.
    Stream,
    /// Operations are appended to a journal of the client, which answers them by itself.
    AppendClientJournal,
    /// The client's journal is applied by sending it to the MNodes.
    VolatileApply,
    /// The client's journal is applied by the MNodes, which read it from objects in the stores.
    NonvolatileApply,
    /// The journal is kept in a file on the client's disk.
    LocalPersist,
    /// The client's journal is saved as objects in the stores.
    GlobalPersist,
}

impl Mechanism {
    /// All of Table 1, in its order.
    pub const ALL: [Mechanism; 7] = [
        Mechanism::Rpcs,
        Mechanism::Stream,
        Mechanism::AppendClientJournal,
        Mechanism::VolatileApply,
        Mechanism::NonvolatileApply,
        Mechanism::LocalPersist,
        Mechanism::GlobalPersist,
    ];

    /// The name in compositions.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Rpcs => "rpcs",
            Mechanism::Stream => "stream",
            Mechanism::AppendClientJournal => "append_client_journal",
            Mechanism::VolatileApply => "volatile_apply",
            Mechanism::NonvolatileApply => "nonvolatile_apply",
            Mechanism::LocalPersist => "local_persist",
            Mechanism::GlobalPersist => "global_persist",
        }
    }

    /// By its name, in any case.
    pub fn from_name(name: &str) -> Option<Mechanism> {
        Mechanism::ALL.into_iter().find(|mechanism| mechanism.name().eq_ignore_ascii_case(name))
    }

    /// Records each operation: one of these is the first of every composition.
    pub fn records(self) -> bool {
        matches!(self, Mechanism::Rpcs | Mechanism::AppendClientJournal)
    }

    /// Makes a client's journal part of the global namespace.
    pub fn applies(self) -> bool {
        matches!(self, Mechanism::VolatileApply | Mechanism::NonvolatileApply)
    }

    /// Keeps what was recorded from being lost.
    pub fn persists(self) -> bool {
        matches!(self, Mechanism::Stream | Mechanism::LocalPersist | Mechanism::GlobalPersist)
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a composition or a policy is refused: one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

impl Refused {
    pub(super) fn new(why: impl Into<String>) -> Refused {
        Refused(why.into())
    }
}

/// Mechanisms in their order: the stages one after the other, what is in a stage in parallel.
///
/// Written `a+b||c`: `||` binds more tightly than `+`, so that this is first `a`, and then `b` and
/// `c` in parallel. Any composition can be written; [`super::Policy`] refuses those that make no
/// sense.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Composition(pub Vec<Vec<Mechanism>>);

impl Composition {
    /// One after the other.
    pub fn of(mechanisms: &[Mechanism]) -> Composition {
        Composition(mechanisms.iter().map(|mechanism| vec![*mechanism]).collect())
    }

    /// Reads a composition.
    ///
    /// # Errors
    /// Names what is not a mechanism, or is missing.
    pub fn parse(text: &str) -> Result<Composition, Refused> {
        let stage = |stage: &str| stage.split("||").map(|name| member(name, text)).collect();
        text.split('+').map(stage).collect::<Result<_, _>>().map(Composition)
    }

    /// All mechanisms, stage by stage.
    pub fn mechanisms(&self) -> impl Iterator<Item = Mechanism> {
        self.0.iter().flatten().copied()
    }

    /// Is it one of these?
    pub fn has(&self, mechanism: Mechanism) -> bool {
        self.mechanisms().any(|one| one == mechanism)
    }

    /// This one with the stages of another after its first.
    pub(super) fn with_after_first(mut self, other: Composition) -> Composition {
        let at = self.0.len().min(1);
        self.0.splice(at..at, other.0);
        self
    }
}

fn member(name: &str, text: &str) -> Result<Mechanism, Refused> {
    let name = name.trim();
    if name.is_empty() {
        return Err(Refused::new(format!("{text:?}: a mechanism is missing beside + or ||")));
    }
    Mechanism::from_name(name).ok_or_else(|| {
        let known = Mechanism::ALL.map(Mechanism::name).join(", ");
        Refused::new(format!("{name:?} is no mechanism; these are: {known}"))
    })
}

impl fmt::Display for Composition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, stage) in self.0.iter().enumerate() {
            f.write_str(if n == 0 { "" } else { "+" })?;
            for (n, mechanism) in stage.iter().enumerate() {
                write!(f, "{}{mechanism}", if n == 0 { "" } else { "||" })?;
            }
        }
        Ok(())
    }
}

/// Refuses compositions that make no sense, with the reason (Cudele section 3.2).
pub(super) fn check(composition: &Composition) -> Result<(), Refused> {
    use Mechanism::*;
    let refuse = |why: &str| Err(Refused::new(format!("{composition}: {why}")));
    let all: Vec<Mechanism> = composition.mechanisms().collect();
    if let Some(twice) =
        Mechanism::ALL.into_iter().find(|m| all.iter().filter(|a| *a == m).count() > 1)
    {
        return refuse(&format!("{twice} comes twice"));
    }
    let has = |mechanism| all.contains(&mechanism);
    let first = composition.0.first().map_or(&[][..], Vec::as_slice);
    if has(Rpcs) && has(AppendClientJournal) {
        return refuse("rpcs and append_client_journal both record each operation: one of them");
    }
    if !all.iter().any(|m| m.records()) {
        return refuse("nothing records the operations: rpcs or append_client_journal comes first");
    }
    if !first.iter().any(|m| m.records()) {
        return refuse("what records the operations comes first: rpcs or append_client_journal");
    }
    if first.iter().any(|m| m.applies()) {
        return refuse("a journal is applied after it was written, not in parallel");
    }
    if has(Rpcs) && all.iter().any(|m| m.applies()) {
        return refuse("nothing is to be applied: with rpcs, operations take effect at once");
    }
    if has(Rpcs) && has(GlobalPersist) {
        return refuse("global_persist saves a client's journal; with rpcs, stream does that");
    }
    if has(VolatileApply) && has(NonvolatileApply) {
        return refuse("volatile_apply and nonvolatile_apply apply the same journal: one of them");
    }
    if has(Stream) && has(GlobalPersist) {
        return refuse("stream and global_persist save the same journal: one of them");
    }
    if has(LocalPersist) && (has(Stream) || has(GlobalPersist)) {
        return refuse("global durability is stronger than local: without local_persist");
    }
    Ok(())
}
