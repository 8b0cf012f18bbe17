//! When a subtree is held, and by which requests that is noticed.
#![allow(clippy::unwrap_used)]

use std::task::Poll;

use saker_types::Locator;
use saker_types::error::SECOND_PATH;
use saker_types::policy::{Consistency, Durability, Interfere, Policy, PolicyId};
use saker_types::wire::At;

use super::table::{PLACES_MAX, SubtreeHolds};
use super::*;
use crate::fake::setup::{RW, Setup, at, setup};
use crate::fake::{RequestFault, held};
use crate::namespace::api::Namespace;
use crate::namespace::strict::Strict;

/// Number of a policy that keeps others out.
fn blocking(consistency: Consistency) -> u64 {
    let mut policy = Policy::cell(consistency, Durability::Global);
    policy.interfere = Interfere::Block;
    PolicyId::new(9, &policy).0
}

/// A client of a cluster where all is under such a policy.
fn under(consistency: Consistency) -> (Setup, u64) {
    let (t, policy) = (setup(), blocking(consistency));
    t.fake.model().policy = policy;
    (t, policy)
}

fn create(t: &Setup, name: &'static str) -> Result<()> {
    t.run(t.fs.create(&t.root, &at(name), 0o644, RW)).map(drop)
}

fn cluster(t: &Setup) -> &Cluster {
    &t.fs.core.cluster
}

#[test]
fn the_first_change_takes_the_hold_and_the_next_ones_go_on() {
    let (t, policy) = under(Consistency::Strong);
    create(&t, "f").unwrap();
    assert_eq!(t.fake.log(), ["create", "hold", "create"]);
    let holds = &cluster(&t).holds;
    assert_eq!((holds.epoch(policy), t.fake.model().held_by), (Some(1), (holds.holder(), 1)));
    create(&t, "g").unwrap();
    assert_eq!(t.fake.log(), ["create"]);
    t.fs.close().unwrap();
    assert_eq!((t.fake.model().held_by, holds.is_any()), ((0, 0), false));
    create(&t, "h").unwrap();
    assert_eq!(holds.epoch(policy), Some(2), "the client is used on");
}

#[test]
fn who_writes_to_stores_asks_when_the_lease_may_have_ended() {
    let (t, policy) = under(Consistency::Strong);
    create(&t, "f").unwrap();
    t.fake.log();
    let upstream = Arc::downgrade(&t.fs.core);
    let held_by = HeldBy { upstream, policy, lapses: true };
    let until = t.run(held_by.until()).unwrap();
    assert!(until > time::now() && until <= time::now() + limits::HOLD_LEASE);
    assert_eq!(t.fake.log(), [""; 0], "it was heard of a moment ago");
    let holds = &cluster(&t).holds;
    let forget = || holds.lock().get_mut(&policy).unwrap().heard = Some(Time::ZERO);
    forget();
    assert!(t.run(held_by.until()).unwrap() > time::now());
    assert_eq!(t.fake.log(), ["renew_holds"]);
    forget();
    let does_not_lapse = HeldBy { lapses: false, ..held_by };
    assert_eq!(t.run(does_not_lapse.until()).unwrap(), Time::MAX);
    t.fake.model().held_by = (0, 0);
    let held_by = HeldBy { lapses: true, ..does_not_lapse };
    assert_eq!(t.run(held_by.until()).unwrap_err().errno(), Errno::ESTALE);
}

#[test]
fn what_is_held_is_released_when_nobody_uses_the_client_any_more() {
    let (t, _) = under(Consistency::Strong);
    create(&t, "f").unwrap();
    let (again, fake) = (t.fs.clone(), t.fake.clone());
    drop(t);
    assert_ne!(fake.model().held_by, (0, 0));
    drop(again);
    assert_eq!(fake.model().held_by, (0, 0));
}

#[test]
fn whoever_is_kept_out_is_told_so() {
    let (t, policy) = under(Consistency::Strong);
    t.fake.model().held_by = (77, 1);
    let error = create(&t, "f").unwrap_err();
    assert_eq!((error.errno(), error.text.as_str()), (Errno::EBUSY, "held by n1"));
    assert!(!cluster(&t).holds.is_any());
    assert_eq!(t.fake.log(), ["create", "release"]);
    t.fake.fault(Op::Release, RequestFault::Answer(Errno::EIO.into()));
    let error = create(&t, "f").unwrap_err();
    assert_eq!(error.text, "another client holds the subtree", "nobody says more");
    // The other one comes between the refusal and the hold.
    t.fake.model().held_by = (0, 0);
    let comes = |model: &mut crate::fake::FakeModel| model.held_by = (77, 1);
    t.fake.fault(Op::Hold, RequestFault::Before(Box::new(comes)));
    assert_eq!(create(&t, "f").unwrap_err().errno(), Errno::EBUSY);
    assert_eq!(cluster(&t).holds.epoch(policy), None);
    assert!(!cluster(&t).holds.is_any());
}

#[test]
fn whoever_is_taken_for_dead_keeps_nobody_out() {
    let (t, _) = under(Consistency::Strong);
    t.fake.model().held_by = (77, 1);
    t.fake.model().is_lapsed = true;
    create(&t, "f").unwrap();
    assert_eq!(t.fake.log(), ["create", "release", "create", "hold", "create"]);
    assert_eq!(t.fake.model().held_by.0, cluster(&t).holds.holder());
}

#[test]
fn a_decoupled_subtree_is_left_to_its_namespace() {
    let (t, policy) = under(Consistency::Weak);
    let strict = Strict(&t.fs.core);
    let error = t.run(strict.create(&t.root, &at("f"), 0o644, RW, false)).map(drop).unwrap_err();
    assert!(error.is(saker_types::Class::NeedsHold) && error.policy == policy);
    assert_eq!(t.fake.log(), ["create"]);
    let held = t.run(cluster(&t).hold(policy)).unwrap();
    assert_eq!(held.policy.last_epoch, 1);
    let ids = t.run(cluster(&t).provision(policy, 7)).unwrap();
    assert_eq!(ids.count, 7);
    t.run(cluster(&t).release_all());
    assert_eq!(cluster(&t).holds.epoch(policy), Some(1), "nobody releases it but who took it");
    cluster(&t).holds.merged(policy, 2);
    t.fake.model().held_by.1 = 2;
    assert_eq!(cluster(&t).holds.epoch(policy), Some(2));
    t.run(cluster(&t).release(policy)).unwrap();
    assert_eq!(t.fake.model().held_by, (0, 0));
    t.fake.log();
    t.run(cluster(&t).release(policy)).unwrap();
    assert!(t.fake.log().is_empty());
    let (held, merged) = (t.run(cluster(&t).hold_as(policy, 5)).unwrap(), 0);
    assert_eq!((held.policy.last_epoch, t.fake.model().held_by.0), (2, 5));
    cluster(&t).holds.merged(policy, merged);
    assert!(!cluster(&t).holds.is_any());
}

#[test]
fn many_at_once_take_one_hold() {
    let (t, _) = under(Consistency::Strong);
    t.run(join_all(["a", "b", "c", "d"].map(|name| {
        let fs = &t.fs;
        async move { fs.create(&Caller::root(), &at(name), 0o644, RW).await.map(drop).unwrap() }
    })));
    let log = t.fake.log();
    assert_eq!(log.iter().filter(|op| **op == "hold").count(), 1, "{log:?}");
}

#[test]
fn what_is_not_used_is_released_and_what_is_used_is_not() {
    let (t, policy) = under(Consistency::Strong);
    create(&t, "f").unwrap();
    let holds = &cluster(&t).holds;
    t.run(cluster(&t).release_unused(IDLE));
    assert_eq!(holds.epoch(policy), Some(1));
    let long_ago = || {
        holds.lock().get_mut(&policy).unwrap().used = Time::ZERO;
    };
    long_ago();
    // By the place that was refused, by the policy that was told, not by others, and not by reading.
    for (place, is_used) in [
        (at("g"), true),
        (At::child(Locator::entry(1, "d".into(), 9).under(policy), b"g"), true),
        (At::child(Locator::entry(1, "d".into(), 9), b"g"), false),
    ] {
        holds.uses(&place);
        assert_eq!(holds.unused_for(IDLE).is_empty(), is_used, "{place:?}");
        long_ago();
    }
    t.run(t.fs.lookup(&t.root, &at("f"))).unwrap();
    let look = || {
        let mut next = Time::MAX;
        t.run(t.fs.core.look_after_holds(&mut next));
    };
    // What was written, and not sent yet, will be a change.
    let file = t.open("f", RW);
    file.on_stores().unwrap().inode.moved_to(&Locator::entry(1, "f".into(), 101).under(policy));
    t.write(&file, 0, b"x");
    look();
    assert_eq!(holds.epoch(policy), Some(1));
    t.flush(&file);
    long_ago();
    look();
    assert_eq!((holds.epoch(policy), t.fake.model().held_by), (None, (0, 0)));
}

#[test]
fn places_are_names_up_to_the_directory_that_has_the_policy() {
    let holds = SubtreeHolds::new(String::new());
    let policy = blocking(Consistency::Strong);
    holds.asks(policy, 1);
    let deep = |names: &[&'static str]| {
        At::below(
            Locator::root(),
            names.iter().map(|name| Bytes::from_static(name.as_bytes())).collect(),
        )
    };
    holds.learn_place(policy, &deep(&["a", "b", "c"]), Some(1 | SECOND_PATH));
    let covers = |at: &At| holds.lock()[&policy].covers(policy, at);
    assert!(covers(&deep(&["a", "b"])) && covers(&deep(&["a", "b", "x", "y"])));
    assert!(!covers(&deep(&["a", "x"])) && !covers(&deep(&["a"])));
    (0..2 * PLACES_MAX as u64).for_each(|id| {
        let anchor = Locator::entry(1, "d".into(), 100 + id);
        holds.learn_place(policy, &At::child(anchor, b"f"), None);
    });
    assert_eq!(holds.lock()[&policy].places.len(), PLACES_MAX);
}

#[test]
fn the_coordinator_hears_of_the_holder_and_says_what_has_ended() {
    let (t, policy) = under(Consistency::Strong);
    create(&t, "f").unwrap();
    t.fake.log();
    let holds = &cluster(&t).holds;
    let mut next = time::now() + PERIOD;
    t.run(t.fs.core.look_after_holds(&mut next));
    assert!(t.fake.log().is_empty(), "it is not due");
    next = Time::ZERO;
    t.run(t.fs.core.look_after_holds(&mut next));
    assert_eq!((t.fake.log(), holds.epoch(policy)), (vec!["renew_holds"], Some(1)));
    t.fake.model().held_by = (77, 2);
    next = Time::ZERO;
    t.run(t.fs.core.look_after_holds(&mut next));
    assert_eq!((holds.epoch(policy), holds.holder_if_any()), (None, 0));
    // What was taken since is not what was said to have ended.
    holds.asks(policy, 1);
    holds.answered(policy, 1, &Ok(HoldReply::default()));
    holds.ended(&[policy], Time::ZERO);
    assert!(holds.is_any());
}

#[test]
fn a_hold_whose_answer_nobody_heard_is_this_client_s_all_the_same() {
    let (t, policy) = under(Consistency::Strong);
    t.fake.fault(Op::Hold, RequestFault::Slow);
    t.run(async {
        let place = at("f");
        let mut dropped = Box::pin(t.fs.create(&t.root, &place, 0o644, RW));
        std::future::poll_fn(|cx| {
            assert!(dropped.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
    });
    assert_eq!(t.fake.log(), ["create", "hold"]);
    assert_eq!((cluster(&t).holds.epoch(policy), t.fake.model().held_by.1), (None, 1));
    create(&t, "g").unwrap();
    assert_eq!(t.fake.log(), ["create"], "it is let in");
    t.run(cluster(&t).release_all());
    assert_eq!(t.fake.log(), ["hold", "release"]);
    assert_eq!((t.fake.model().held_by, cluster(&t).holds.is_any()), ((0, 0), false));
}

#[test]
fn a_hold_of_this_client_does_not_keep_itself_from_removing_the_directory() {
    let (t, policy) = under(Consistency::Strong);
    create(&t, "f").unwrap();
    t.fake.log();
    let refuse = || t.fake.fault(Op::Rmdir, RequestFault::Answer(held(policy, "held")));
    refuse();
    refuse();
    let removed = t.run(t.fs.rmdir(&t.root, &at("d")));
    assert_eq!(removed.unwrap_err().text, "held", "somebody else's it may be, too");
    assert_eq!(t.fake.log(), ["rmdir", "release", "release", "rmdir"]);
    // EBUSY for other reasons.
    t.fake.fault(Op::Rmdir, RequestFault::Answer(Errno::EBUSY.into()));
    t.run(t.fs.rmdir(&t.root, &at("d"))).unwrap_err();
    assert_eq!(t.fake.log(), ["rmdir"]);
}
