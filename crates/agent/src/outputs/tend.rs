//! What goes on without anybody who asks: files are published that others have written on, and
//! delivered to homes that were down; what nobody has finished is dropped.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use saker_runtime::time;

use super::place::Place;
use super::private::{Phase, Private};
use super::publish::{deliver_all, publish};
use crate::error::Error;
use crate::node::Node;

/// How often it is looked whether somebody still writes a file that its creator has finished.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often it is looked for everything else.
const TEND_EVERY: Duration = Duration::from_secs(1);
/// A file that nobody has finished and nobody writes is dropped after so long: its creator may be
/// about to say that it is finished.
const ABANDONED_AFTER: Duration = Duration::from_secs(10);

/// Goes on for ever.
pub(crate) async fn run(node: Arc<Node>) {
    let mut last = time::now();
    loop {
        let all = node.outputs.private.all(|_| true);
        let leaving = all.iter().filter(|private| private.number().is_some()).count();
        node.counters.outputs_outgoing.set(leaving as i64);
        let wait = match all.iter().any(|private| private.phase() == Phase::Committed) {
            _ if all.is_empty() => {
                node.outputs.private.more.notified().await;
                continue;
            }
            true => LOOK_EVERY,
            false => TEND_EVERY,
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = node.outputs.private.more.notified() => {}
        }
        let is_due = time::now().since(last) >= TEND_EVERY;
        if is_due {
            last = time::now();
        }
        tend(&node, is_due);
    }
}

/// Looks at all files once; `is_due`: also at those that need no hurry.
fn tend(node: &Arc<Node>, is_due: bool) {
    let mut retried = BTreeSet::new();
    let mut all = node.outputs.private.all(|_| true);
    all.sort_by_key(|private| private.number());
    for private in all {
        match private.phase() {
            Phase::Written if is_due => drop_abandoned(node, &private),
            Phase::Committed if !tokio::task::block_in_place(|| private.has_writers()) => {
                in_background(node, private);
            }
            Phase::Leaving(_) if is_due => {
                // One for each home: the others follow if that works.
                let home = home(node, &private);
                if home.1.is_some() && retried.insert(home) {
                    in_background(node, private);
                }
            }
            _ => {}
        }
    }
}

/// Number of the home of a file that leaves; none while its dataset is not staged.
fn home(node: &Arc<Node>, private: &Private) -> (String, Option<usize>) {
    let place = Place::of(node, &private.key.0).ok();
    (private.key.0.clone(), place.map(|place| place.home(&private.key.1)))
}

fn drop_abandoned(node: &Arc<Node>, private: &Private) {
    let has_writers = tokio::task::block_in_place(|| private.has_writers());
    let mut since = private.idle_since.lock().unwrap_or_else(PoisonError::into_inner);
    if has_writers {
        *since = None;
        return;
    }
    if private.is_closed() {
        tracing::info!("{}: {} was closed while no agent was here", private.key.0, private.key.1);
        if let Err(error) = private.advance(Phase::Committed) {
            tracing::warn!("{error}");
        }
        node.outputs.private.more.notify_one();
        return;
    }
    if time::now().since(*since.get_or_insert_with(time::now)) >= ABANDONED_AFTER {
        tracing::info!("{}: {} was not finished, and is dropped", private.key.0, private.key.1);
        node.outputs.private.end(private, Err(Error::new(Errno::IO, "it was not finished")));
    }
}

fn in_background(node: &Arc<Node>, private: Arc<Private>) {
    if !private.begin_tending() {
        return;
    }
    let node = node.clone();
    tokio::spawn(async move {
        let is_home_up = publish(&node, &private).await.is_ok();
        private.end_tending();
        if !is_home_up {
            return;
        }
        // What has waited for the same home.
        let wanted = home(&node, &private);
        let is_so = |p: &Private| p.number().is_some() && home(&node, p) == wanted;
        for waiting in node.outputs.private.all(is_so) {
            if deliver_all(&node, &waiting.key).await.is_err() {
                break;
            }
        }
    });
}
