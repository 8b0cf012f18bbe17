//! ACLs of a directory: replicas hold them, as they hold its mode.

use bytes::Bytes;
use prost::Message;
use saker_types::Error;
use saker_types::inode::Xattr;
use saker_types::wire::{Empty, PrepareReq, XattrReq};

use super::setattr::set_directory;
use crate::state::StateHandle;

/// Sets an ACL of a directory, or, with an empty value, removes it.
pub(crate) async fn setxattr(
    h: &StateHandle,
    msg: &XattrReq,
    value: Bytes,
) -> Result<Bytes, Error> {
    let request = PrepareReq {
        ctx: msg.ctx.clone(),
        at: msg.at.clone(),
        acl: Some(Xattr { name: msg.name.clone(), value }),
        ..PrepareReq::default()
    };
    set_directory(h, request, |_| Empty {}.encode_to_vec().into()).await
}

#[cfg(test)]
mod tests {
    use saker_types::wire::{Intent, Op};
    use saker_types::{Errno, ROOT};

    use super::*;
    use crate::testing::{CoordinatorTester, agreeing, at, dir, entry, errno, vote, yes};

    const ACL: &str = "system.posix_acl_default";

    fn request(t: &mut CoordinatorTester, name: &'static str, value: &'static [u8]) -> XattrReq {
        let value = Bytes::from_static(value);
        XattrReq { ctx: t.ctx(), at: at("d"), name: name.into(), value, ..XattrReq::default() }
    }

    #[test]
    fn an_acl_is_set_and_removed_with_the_knowledge_of_all() {
        let wanted: [(Op, &[u8]); 2] = [(Op::Setxattr, b"acl"), (Op::Removexattr, b"")];
        for (op, value) in wanted {
            let mut t = CoordinatorTester::new();
            let request = request(&mut t, ACL, b"acl");
            let answer = t.ask::<Empty>(op, &request, |_, asked| match asked.op {
                Op::Prepare => {
                    let prepare: PrepareReq = asked.body();
                    assert_eq!(prepare.intent(), Intent::SetDir);
                    let acl = prepare.acl.expect("an ACL");
                    assert_eq!((&acl.name[..], &acl.value[..]), (ACL.as_bytes(), value));
                    yes(&vote(entry(ROOT, "d", 9), Some(dir(9))))
                }
                _ => agreeing(asked),
            });
            answer.unwrap();
            assert_eq!(t.ops(), [Op::Prepare, Op::Invalidate, Op::Decide]);
            assert_eq!(t.decided(), [true]);
        }
    }

    #[test]
    fn other_attributes_are_not_the_coordinators() {
        let mut t = CoordinatorTester::new();
        let request = request(&mut t, "user.x", b"1");
        let answer = t.ask::<Empty>(Op::Setxattr, &request, |_, asked| agreeing(asked));
        assert_eq!(errno(answer), Errno::EOPNOTSUPP);
        assert!(t.asked.is_empty());
    }
}
