//! Answers before all is durable: a policy that is strong without durability (Cudele, Table 2) promises
//! that others see an operation at once, and that no death of a process loses it; a loss of power may.

use bytes::Bytes;
use saker_types::Error;
use saker_types::policy::PolicyId;

use crate::request::Rq;
use crate::shard::{Shard, When};

impl Shard {
    /// Answers a request that was carried out in one go, since the batch had `changes` changes. Where the
    /// policy lets it, and all that it has changed is in records of this shard, the answer waits only until
    /// they are written.
    pub(crate) fn finish_in_step(&mut self, rq: &Rq, result: Result<Bytes, Error>, changes: usize) {
        if !self.may_delay(rq) {
            return self.finish(rq, result);
        }
        self.finish_when(rq, result, When::Written);
        self.may_delay_changes(changes);
    }

    /// Does the policy in force where a request has come to let its answer leave before it is durable? A
    /// client may have named an old one. A private shard always may: its policies promise no more.
    fn may_delay(&mut self, rq: &Rq) -> bool {
        if self.limits.private {
            return rq.may_delay_in_private();
        }
        let policy = rq.policy.get();
        if !PolicyId(policy).may_delay_flush() || !rq.may_delay() {
            return false;
        }
        let known = self.policies.get(policy);
        if known.is_none() {
            self.ask_policy(policy);
        }
        known.is_some_and(|state| state.successor.is_none())
    }
}

#[cfg(test)]
mod tests {
    use saker_types::Errno;
    use saker_types::policy::{Consistency, Durability, Policy};
    use saker_types::wire::{
        At, CloseReply, CloseReq, Ctx, Empty, Entry, EntryReq, IdRange, Op, PolicyState,
        ReaddirReply, ReaddirReq,
    };

    use super::*;
    use crate::testing::{Tester, at, errno};

    fn policy(durability: Durability) -> u64 {
        PolicyId::new(5, &Policy::cell(Consistency::Strong, durability)).0
    }

    /// A directory under a policy.
    fn under(durability: Durability) -> Tester {
        let mut t = Tester::new();
        t.mkdir("d").unwrap();
        t.edit("d", |row| row.policy = policy(durability));
        t.shard().policies.learn(policy(durability), PolicyState::default());
        // Ids are reserved by the first of these.
        t.create("first").unwrap();
        t.create("d/first").unwrap();
        t
    }

    /// Did the last answer wait for less than that all is durable? All that it depends on must be written.
    fn is_early(t: &Tester) -> bool {
        let (until, end) = (t.answered_when, t.records_then);
        assert!(until.written <= end && until.durable <= until.written);
        assert!(until.written >= t.records_before, "what was there before is written");
        until.durable < end
    }

    #[test]
    fn changes_of_one_shard_are_answered_when_they_are_written() {
        let mut t = under(Durability::None);
        let made = t.create("d/f").unwrap();
        assert!(is_early(&t));
        t.lookup("d/f").unwrap();
        assert!(is_early(&t));
        let (ctx, handle) = (t.ctx(), At::handle(made.loc.clone()));
        let close = CloseReq { ctx, at: handle, size: 7, ..CloseReq::default() };
        t.ask::<CloseReply>(Op::Close, &close).unwrap();
        assert!(is_early(&t));
        t.symlink("f", "d/l").unwrap();
        assert!(is_early(&t));
        t.unlink("d/f").unwrap();
        assert!(is_early(&t));
        assert_eq!(errno(t.lookup("d/f")), Errno::ENOENT);
        assert!(is_early(&t));
    }

    #[test]
    fn what_others_rely_on_waits() {
        let mut t = under(Durability::None);
        let made = t.create("d/f").unwrap();
        t.mkdir("d/e").unwrap();
        assert!(!is_early(&t), "what is in it may be on any shard");
        t.create("d/f2").unwrap();
        assert!(is_early(&t));
        t.link("d/f", "d/g").unwrap();
        assert!(!is_early(&t));
        t.create("d/f3").unwrap();
        let (ctx, handle) = (t.ctx(), At::handle(made.loc.clone()));
        let close = CloseReq { ctx, at: handle, is_clean: true, ..CloseReq::default() };
        t.ask::<CloseReply>(Op::Fsync, &close).unwrap();
        assert!(!is_early(&t));
        t.create("d/f4").unwrap();
        t.ask::<Empty>(Op::SyncJournal, &Empty {}).unwrap();
        assert!(!is_early(&t));
    }

    #[test]
    fn what_is_elsewhere_waits_for_all() {
        let mut t = under(Durability::None);
        t.create("d/f").unwrap();
        assert!(is_early(&t));
        t.create("f").unwrap();
        assert!(!is_early(&t));
        t.create("d/f2").unwrap();
        t.lookup("first").unwrap();
        assert!(!is_early(&t), "a read never shows what a loss of power may take");
        for durability in [Durability::Local, Durability::Global] {
            let mut t = under(durability);
            t.create("d/f").unwrap();
            assert!(!is_early(&t), "{durability:?}");
        }
    }

    #[test]
    fn the_policy_must_be_the_one_in_force() {
        let mut t = under(Durability::None);
        let made = t.create("d/f").unwrap();
        let policy = policy(Durability::None);
        assert_eq!(made.loc.policy, policy);
        let stat = |t: &mut Tester| {
            let ctx = Ctx { seq: 0, ..t.ctx() };
            let at = At::handle(made.loc.clone());
            t.ask::<Entry>(Op::Getattr, &EntryReq { ctx, at, full: true }).unwrap();
        };
        stat(&mut t);
        assert!(is_early(&t));
        t.shard().policies.invalidate(policy);
        let successor = PolicyState { successor: Some(0), ..PolicyState::default() };
        t.shard().policies.learn(policy, successor);
        stat(&mut t);
        assert!(!is_early(&t));
        t.create("d/f2").unwrap();
        assert!(!is_early(&t));
    }

    #[test]
    fn a_private_shard_answers_all_but_syncs_when_it_is_written() {
        let mut t = Tester::new();
        t.mkdir("d").unwrap();
        t.shard().limits.private = true;
        t.shard().give_ids(IdRange { first: 1 << 30, count: 1 << 20 });
        let made = t.create("d/f").unwrap();
        assert!(!is_early(&t), "its number must not be given out again: it has chunks");
        t.create("d/g").unwrap();
        assert!(is_early(&t));
        t.mkdir("d/e").unwrap();
        assert!(is_early(&t));
        t.unlink("d/g").unwrap();
        assert!(is_early(&t));
        let (ctx, handle) = (t.ctx(), At::handle(made.loc));
        let close = CloseReq { ctx, at: handle, is_clean: true, ..CloseReq::default() };
        t.ask::<CloseReply>(Op::Fsync, &close).unwrap();
        assert!(!is_early(&t));
        t.create("d/h").unwrap();
        t.ask::<Empty>(Op::SyncJournal, &Empty {}).unwrap();
        assert!(!is_early(&t));
    }

    #[test]
    fn a_listing_by_a_path_waits_for_the_directory_may_promise_more() {
        let mut t = under(Durability::None);
        t.mkdir("d/e").unwrap();
        t.edit("d/e", |row| row.policy = self::policy(Durability::Global));
        t.create("d/f").unwrap();
        let ctx = Ctx { seq: 0, ..t.ctx() };
        let list = ReaddirReq { ctx, at: at("d/e"), limit: 9, ..ReaddirReq::default() };
        t.ask::<ReaddirReply>(Op::Readdir, &list).unwrap();
        assert!(!is_early(&t));
    }

    #[test]
    fn ids_are_reserved_durably_before_they_are_told() {
        let mut t = Tester::new();
        t.mkdir("d").unwrap();
        t.edit("d", |row| row.policy = self::policy(Durability::None));
        t.shard().policies.learn(self::policy(Durability::None), PolicyState::default());
        t.shard().reserve_ids().unwrap();
        t.shard().seal();
        t.create("d/f").unwrap();
        let reserved = t.shard().flushed_at_once();
        assert!(reserved > 0 && t.answered_when.durable >= reserved);
    }
}
