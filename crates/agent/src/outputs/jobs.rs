//! Requests of other agents that may take long. They are repeated until their answer is there.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use rustix::io::Errno;
use saker_agent_api::Reply;
use saker_runtime::time::{self, Time};

use crate::error::{Error, Result};

/// After so long an answer says that the request goes on. Peers that failed of late are given
/// little time.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);
/// An answer is remembered for so long after the last request for it. Requests are repeated at once.
const REMEMBERED: Duration = Duration::from_secs(30);
/// Requests that are remembered, at most.
const JOBS_MAX: usize = 1 << 16;

struct Job {
    answer: Shared<BoxFuture<'static, Result<Reply>>>,
    asked: Time,
}

/// Requests by their numbers.
#[derive(Default)]
pub(super) struct Jobs(Mutex<BTreeMap<u64, Job>>);

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Job>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to request `id`, which `work` gives at its first repetition only; or that it goes
    /// on.
    ///
    /// # Errors
    /// Of the work. EBUSY: too many requests.
    pub(super) async fn run<F>(&self, id: u64, work: impl FnOnce() -> F) -> Result<Reply>
    where
        F: Future<Output = Result<Reply>> + Send + 'static,
    {
        let answer = self.enter(id, work)?;
        match tokio::time::timeout(ANSWER_WITHIN, answer).await {
            Ok(answer) => answer,
            Err(_) => Ok(Reply { going_on: true, ..Reply::default() }),
        }
    }

    fn enter<F>(
        &self,
        id: u64,
        work: impl FnOnce() -> F,
    ) -> Result<Shared<BoxFuture<'static, Result<Reply>>>>
    where
        F: Future<Output = Result<Reply>> + Send + 'static,
    {
        let (mut jobs, now) = (self.lock(), time::now());
        if let Some(job) = jobs.get_mut(&id) {
            job.asked = now;
            return Ok(job.answer.clone());
        }
        let is_old = |job: &Job| now.since(job.asked) > REMEMBERED && job.answer.peek().is_some();
        jobs.retain(|_, job| !is_old(job));
        if jobs.len() >= JOBS_MAX {
            return Err(Error::new(Errno::BUSY, "too many requests are remembered"));
        }
        let task = tokio::spawn(work());
        let answer = async move { task.await.unwrap_or_else(|e| Err(Error::new(Errno::IO, e))) };
        let answer = answer.boxed().shared();
        jobs.insert(id, Job { answer: answer.clone(), asked: now });
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn a_request_is_executed_once() {
        let (jobs, go) = (Jobs::default(), Arc::new(Notify::new()));
        let work = || {
            let go = go.clone();
            async move {
                go.notified().await;
                Ok(Reply { token: 7, ..Reply::default() })
            }
        };
        assert!(jobs.run(1, work).await.unwrap().going_on);
        go.notify_one();
        for _ in 0..2 {
            let reply = jobs.run(1, || async { panic!("again") }).await.unwrap();
            assert_eq!((reply.going_on, reply.token), (false, 7));
        }
        let failed = || async { Err(Error::new(Errno::NOSPC, "full")) };
        assert_eq!(jobs.run(2, failed).await.unwrap_err().errno, libc::ENOSPC);
    }
}
