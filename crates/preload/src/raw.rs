//! syscall(2): calls that programs make by their number.

use std::ffi::{c_int, c_long};

use crate::copy::copy_file_range;
use crate::next::hook;
use crate::stat::statx;

// Only those that libuv makes so (Node.js): its descriptors come from open(2), so the others are
// served by name. The C library declares it with `...`; on Linux arguments are passed alike.
hook! {
    syscall:
    (number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long)
        -> c_long, |next| {
        match number {
            libc::SYS_statx => statx(a as c_int, b as _, c as c_int, d as _, e as _).into(),
            libc::SYS_copy_file_range => {
                copy_file_range(a as c_int, b as _, c as c_int, d as _, e as _, f as _) as c_long
            }
            _ => next(number, a, b, c, d, e, f),
        }
    }
}
