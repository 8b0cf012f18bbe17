//! Ids are reserved with the coordinator before they are given out: so a shard on an old copy of its
//! directory gives out none.
#![allow(clippy::unwrap_used)]

use saker_meta::ShardLimits;
use saker_sim::testbed::{Message, Testbed, at, errno, shard};
use saker_types::wire::*;
use saker_types::{Class, Errno, FileKind, NodeId};

const COORDINATOR: NodeId = NodeId::Coordinator;

fn testbed() -> Testbed {
    let limits = ShardLimits { tells_ids: true, segment_bytes: 64 << 10, ..ShardLimits::default() };
    Testbed::with_limits(1, limits)
}

fn marks(m: &Message) -> bool {
    m.asks(Op::Mark)
}

#[test]
fn no_id_is_given_out_before_the_coordinator_knows() {
    let mut b = testbed();
    let first = b.create("f").unwrap().attr.id;
    b.restart(shard(0));
    let request = b.create_req(at("g"), FileKind::Regular);
    let create = b.ask(Op::Create, shard(0), &request);
    b.settle_but(marks);
    assert!(b.answer::<Entry>(create).unwrap().unwrap_err().is(Class::Retry));
    // What is there is served.
    let request = EntryReq { ctx: b.ctx(), at: at("f"), ..EntryReq::default() };
    let lookup = b.ask(Op::Lookup, shard(0), &request);
    b.settle_but(marks);
    b.answer::<Entry>(lookup).unwrap().unwrap();
    b.settle();
    assert!(b.create("g").unwrap().attr.id > first);
    // A coordinator that is down does not matter while there are some.
    b.crash(COORDINATOR);
    b.create("h").unwrap();
    b.start(COORDINATOR);
    b.restart(shard(0));
    b.create("i").unwrap();
    b.check();
}

#[test]
fn a_shard_on_an_old_copy_is_refused() {
    let mut b = testbed();
    b.create("f").unwrap();
    let copy = b.copy_of(shard(0));
    b.restart(shard(0));
    let given = b.create("g").unwrap().attr.id;
    b.crash(shard(0));
    let own = b.copy_of(shard(0));
    b.put_back(shard(0), copy);
    b.start(shard(0));
    let request = b.create_req(at("h"), FileKind::Regular);
    let create = b.ask(Op::Create, shard(0), &request);
    // A process that hears of it ends.
    b.settle_but(|m| m.answers(Op::Mark));
    assert!(b.answer::<Entry>(create).unwrap().unwrap_err().is(Class::Retry));
    let refused = b.ask(Op::Refused, COORDINATOR, &Empty {});
    b.settle_but(|m| m.answers(Op::Mark));
    let refused = b.answer::<RefusedReply>(refused).unwrap().unwrap();
    assert!(refused.members[0].why.contains("put back from a copy"));
    b.crash(shard(0));
    b.put_back(shard(0), own);
    b.start(shard(0));
    assert!(b.create("h").unwrap().attr.id > given);
    let refused = b.run::<RefusedReply>(Op::Refused, COORDINATOR, &Empty {});
    assert_eq!(refused.unwrap().members, []);
    assert_eq!(errno(b.create("h")), Errno::EEXIST);
    b.check();
}
