//! The mount's root, while its servers do not answer.
//!
//! df(1) and whoever only wants to know of the mount opens its root and looks at it. That must not hang: after a while
//! the root is shown as it was seen last. Who lists it waits.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use saker_client::Caller;
use saker_runtime::time::{self, Time};
use saker_types::wire::{At, Entry};
use saker_types::{Errno, Locator, ROOT, Result};

use crate::service::MountService;

/// How long its servers may take. With what statfs(2) waits (`saker_client`) this is less than two
/// seconds.
const PATIENCE: Duration = Duration::from_millis(700);
/// The same where they did not answer just now.
const SHORT_PATIENCE: Duration = Duration::from_millis(20);
/// For so long after that.
const SILENCE: Duration = Duration::from_secs(5);

/// Whether the root's servers answer.
#[derive(Default)]
pub(crate) struct Root(Mutex<Option<Time>>);

impl Root {
    fn silent_until(&self) -> MutexGuard<'_, Option<Time>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn patience(&self) -> Duration {
        let silent = self.silent_until().is_some_and(|until| time::now() < until);
        if silent { SHORT_PATIENCE } else { PATIENCE }
    }

    /// An answer, or `None` if there was none in time.
    fn heard<T>(&self, answer: Result<T>) -> Option<Result<T>> {
        let in_time = !answer.as_ref().is_err_and(|error| error.errno() == Errno::ETIMEDOUT);
        *self.silent_until() = (!in_time).then(|| time::now() + SILENCE);
        in_time.then_some(answer)
    }
}

impl MountService {
    /// The root's attributes: as they were seen last, if its servers do not answer. `None`: they were not
    /// seen, or it is not to be answered for them.
    pub(crate) async fn root_attributes(&self, who: &Caller) -> Option<Result<Entry>> {
        let root = self.root.as_ref()?;
        let last = self.nodes.newest(ROOT).filter(|attr| attr.ctime_ns > 0)?;
        let at = At::handle(Locator::root());
        let answer = self.fs.getattr_within(who, &at, root.patience()).await;
        let last = || Ok(Entry { attr: last, loc: Locator::root(), ..Entry::default() });
        Some(root.heard(answer).unwrap_or_else(last))
    }

    /// May `who` list the root? `None`: that is not known, and to be asked when it does.
    pub(crate) async fn may_list_root(&self, who: &Caller) -> Option<Result<()>> {
        let root = self.root.as_ref()?;
        let at = At::handle(Locator::root());
        root.heard(self.fs.access_within(who, &at, 4, root.patience()).await)
    }
}
