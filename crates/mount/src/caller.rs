//! The process that makes a request.

use saker_client::{Caller, Groups};
use saker_fuse::Request;
use saker_fuse::abi::InHeader;

/// The caller of a request, as servers judge it.
pub(crate) trait WithCaller {
    /// Who asks.
    fn caller(&self) -> Caller;

    /// Who makes something.
    fn maker(&self, umask: u32) -> Caller;
}

impl WithCaller for Request {
    fn caller(&self) -> Caller {
        let InHeader { uid, gid, pid, .. } = self.header;
        let groups = match pid {
            // From outside our pid namespace: its groups cannot be read.
            0 => Groups::Hidden,
            pid => Groups::OfProcess(pid),
        };
        Caller { uid, gid, groups, ..Caller::root() }
    }

    fn maker(&self, umask: u32) -> Caller {
        Caller { umask, ..self.caller() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros as _;

    #[test]
    fn groups_are_read_from_the_caller_unless_it_is_out_of_sight() {
        let header = InHeader { uid: 1, gid: 2, ..InHeader::new_zeroed() };
        let caller = Request::new(header, b"").caller();
        assert!(matches!(caller.groups, Groups::Hidden));
        let caller = Request::new(InHeader { pid: 77, ..header }, b"").caller();
        assert!(matches!(caller.groups, Groups::OfProcess(77)));
        assert_eq!((caller.uid, caller.gid), (1, 2));
    }
}
