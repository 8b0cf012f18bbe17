//! Functions with names of the C library: ours come first, and call the next ones.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The function of this name that comes after ours.
pub fn find(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    let found = if found.is_null() { missing as *mut c_void } else { found };
    cache.store(found, Ordering::Relaxed);
    found
}

/// Stands for a function that this C library lacks.
extern "C" fn missing() -> isize {
    crate::sys::set_errno(libc::ENOSYS);
    -1
}

/// The next function of a name.
macro_rules! next {
    ($name:ident: fn($($arg:ty),* $(,)?) -> $ret:ty) => {{
        static NEXT: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
            std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
        const NAME: &std::ffi::CStr =
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            };
        std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($arg),*) -> $ret>(
            $crate::next::find(&NEXT, NAME),
        )
    }};
}

/// Defines functions of the C library that are the same under several names. The body is unsafe
/// code: the caller keeps to the manual page. In it `$next` is the function after ours.
macro_rules! hook {
    ($($name:ident),+: $args:tt -> $ret:ty, |$next:ident| $body:block) => {
        $($crate::next::hook_one!($name $args $ret, $next $body);)+
    };
}

macro_rules! hook_one {
    ($name:ident ($($arg:ident: $type:ty),* $(,)?) $ret:ty, $next:ident $body:block) => {
        // Not in unit tests, which would be served by them.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(clippy::too_many_arguments, non_snake_case, reason = "the C library's")]
        #[allow(clippy::undocumented_unsafe_blocks, reason = "callers keep to the manual page")]
        #[allow(dead_code, unused_variables, reason = "not exported in unit tests")]
        pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            unsafe {
                let $next = $crate::next::next!($name: fn($($type),*) -> $ret);
                $body
            }
        }
    };
}
pub(crate) use {hook, hook_one, next};
