//! The one table from the errors of Saker to the errno that the kernel is told.

use saker_types::{Class, Errno, Error};

/// The errno for the process that made the call.
pub(crate) fn of(error: &Error) -> Errno {
    match Class::try_from(error.class) {
        Ok(Class::Final | Class::NeedsHold) => error.errno(),
        // The client repeats these until its deadline: what remains is that nobody answered.
        Ok(Class::Retry | Class::RefreshMap) => Errno::ETIMEDOUT,
        // Whether it was done is unknown.
        Ok(Class::SessionLost) => Errno::EIO,
        // The kernel's view of the path is old: ESTALE makes it walk again and ask anew.
        Ok(Class::Symlink | Class::Moved | Class::Elsewhere) => Errno::ESTALE,
        Ok(Class::NeedGroups) => Errno::EACCES,
        // Routing is the client's business: meeting these here is a defect of it.
        Ok(Class::UseCoordinator | Class::UseOwner) => Errno::EIO,
        Ok(Class::Fatal) | Err(_) => Errno::EIO,
    }
}

/// Is it worth a line in the log? What a correct program may cause is not.
pub(crate) fn unexpected(error: &Error) -> bool {
    match Class::try_from(error.class) {
        Ok(Class::Final) => error.errno() == Errno::EIO,
        Ok(
            Class::Symlink | Class::Moved | Class::Elsewhere | Class::NeedGroups | Class::NeedsHold,
        ) => false,
        Ok(Class::Retry | Class::RefreshMap | Class::SessionLost) => true,
        Ok(Class::UseCoordinator | Class::UseOwner | Class::Fatal) | Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_see_an_errno_that_tells_them_what_to_do() {
        assert_eq!(of(&Error::new(Errno::ENOTEMPTY)), Errno::ENOTEMPTY);
        assert_eq!(of(&Error::retry("busy")), Errno::ETIMEDOUT);
        assert_eq!(of(&Error::symlink(0, "t".into())), Errno::ESTALE);
        assert_eq!(of(&Error { errno: 99_999, ..Error::default() }), Errno::EIO);
        assert_eq!(of(&Error { class: 77, ..Error::new(Errno::ENOENT) }), Errno::EIO);
        assert!(unexpected(&Error::of_class(Class::SessionLost, Errno::EIO)));
        assert!(!unexpected(&Error::new(Errno::ENOENT)));
    }
}
