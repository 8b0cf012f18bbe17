//! The end of a process that does not run the handlers of exit(3): what it has written is finished.

use crate::next::hook;

macro_rules! exit_hook {
    ($name:ident) => {
        /// Ends the process without the handlers of exit(3). Not by the next function: children of
        /// vfork(2) call this, where that one cannot be looked for.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(dead_code, non_snake_case, reason = "the C library's; not exported in unit tests")]
        unsafe extern "C" fn $name(status: libc::c_int) -> ! {
            crate::outfds::at_exit(false);
            loop {
                // SAFETY: touches no memory, and does not return.
                unsafe { libc::syscall(libc::SYS_exit_group, status) };
            }
        }
    };
}

exit_hook!(_exit);
exit_hook!(_Exit);

hook! { quick_exit: (status: libc::c_int) -> (), |next| {
    crate::outfds::at_exit(false);
    next(status)
}}
