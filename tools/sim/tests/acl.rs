//! ACLs of directories on the testbed: replicas hold them, so that they change as modes do.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use bytes::Bytes;
use saker_sim::testbed::{Testbed, at, shard};
use saker_types::wire::*;
use saker_types::{Class, Cred, Errno, FileKind, NodeId, acl};

const COORDINATOR: NodeId = NodeId::Coordinator;
const USER: u32 = 7;

/// `user::rwx, user:7:BITS, group::---, mask::rwx, other::---`, as Linux writes it.
fn list(bits: u8) -> Bytes {
    let nobody = u32::MAX.to_le_bytes();
    let entry = |tag: u8, bits: u8, id: [u8; 4]| [&[tag, 0, bits, 0][..], &id].concat();
    let entries = [
        entry(1, 7, nobody),
        entry(2, bits, USER.to_le_bytes()),
        entry(4, 0, nobody),
        entry(16, 7, nobody),
        entry(32, 0, nobody),
    ];
    [&[2, 0, 0, 0][..], &entries.concat()].concat().into()
}

fn set(b: &mut Testbed, path: &str, name: &'static [u8], value: Bytes) -> XattrReq {
    let (ctx, name) = (b.ctx(), Bytes::from_static(name));
    XattrReq { ctx, at: at(path), name, value, flags: 0 }
}

fn create_as(b: &mut Testbed, path: &str, uid: u32) -> Result<Entry, saker_types::Error> {
    let mut request = b.create_req(at(path), FileKind::Regular);
    request.mode = FileKind::Regular.bits() | 0o666;
    request.umask = 0o077;
    request.ctx.cred = Cred { uid, gid: uid, groups_known: true, ..Default::default() };
    let owner = b.owner_of(&request.at);
    b.run(Op::Create, owner, &request)
}

#[test]
fn every_shard_obeys_a_new_list_at_once() {
    let mut b = Testbed::new(3);
    let dir = b.name_on(shard(0), "dir");
    b.mkdir(&dir).unwrap();
    let files: Vec<String> =
        (0..3).map(|n| format!("{dir}/{}", b.name_on(shard(n), "f"))).collect();
    let request = set(&mut b, &dir, acl::ACCESS, list(7));
    let sent = b.run::<Empty>(Op::Setxattr, shard(0), &request).unwrap_err();
    assert!(sent.is(Class::UseCoordinator));
    for (bits, allowed) in [(7, true), (5, false), (3, true)] {
        let request = set(&mut b, &dir, acl::ACCESS, list(bits));
        b.run::<Empty>(Op::Setxattr, COORDINATOR, &request).unwrap();
        for file in &files {
            assert_eq!(create_as(&mut b, file, 8).unwrap_err().errno(), Errno::EACCES);
            match allowed {
                true => _ = create_as(&mut b, file, USER).unwrap(),
                false => {
                    let refused = create_as(&mut b, file, USER).unwrap_err();
                    assert_eq!(refused.errno(), Errno::EACCES);
                }
            }
            if allowed {
                b.unlink(file).unwrap();
            }
        }
    }
    assert_eq!(b.stat(&at(&dir)).unwrap().attr.mode & 0o777, 0o770, "the mask shows");
    let request = set(&mut b, &dir, acl::ACCESS, Bytes::new());
    b.run::<Empty>(Op::Removexattr, COORDINATOR, &request).unwrap();
    for file in &files {
        assert_eq!(create_as(&mut b, file, USER).unwrap_err().errno(), Errno::EACCES);
    }
    b.check();
}

#[test]
fn a_default_list_is_inherited_on_every_shard_and_moves_with_its_directory() {
    let mut b = Testbed::new(3);
    let dir = b.name_on(shard(0), "dir");
    b.mkdir(&dir).unwrap();
    let request = set(&mut b, &dir, acl::DEFAULT, list(7));
    b.run::<Empty>(Op::Setxattr, COORDINATOR, &request).unwrap();
    b.rename(&dir, "moved").unwrap();
    b.mkdir("plain").unwrap();
    b.exchange("moved", "plain").unwrap();
    for n in 0..3 {
        let name = b.name_on(shard(n), "f");
        let made = create_as(&mut b, &format!("plain/{name}"), 0).unwrap();
        assert_eq!(made.attr.mode & 0o777, 0o660, "not the umask but the list");
        let made = create_as(&mut b, &format!("moved/{name}"), 0).unwrap();
        assert_eq!(made.attr.mode & 0o777, 0o600);
    }
    b.check();
}

#[test]
fn a_change_of_a_list_survives_any_crash() {
    for victim in [COORDINATOR, shard(0), shard(1)] {
        for step in 0.. {
            let mut b = Testbed::new(2);
            let dir = b.name_on(shard(0), "dir");
            b.mkdir(&dir).unwrap();
            let file = format!("{dir}/{}", b.name_on(shard(1), "f"));
            assert!(create_as(&mut b, &file, USER).is_err());
            let request = set(&mut b, &dir, acl::ACCESS, list(7));
            let call = b.ask(Op::Setxattr, COORDINATOR, &request);
            if !(0..step).all(|_| b.deliver(|_| true)) {
                break;
            }
            b.restart(victim);
            b.pass(Duration::from_secs(2));
            if b.answer::<Empty>(call).is_none_or(|answer| answer.is_err()) {
                b.run::<Empty>(Op::Setxattr, COORDINATOR, &request).unwrap();
            }
            b.pass(Duration::from_secs(8));
            create_as(&mut b, &file, USER).unwrap();
            b.check();
        }
    }
}
