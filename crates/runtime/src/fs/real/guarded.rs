//! A copy that says so when some of the memory it reads is not to be had.
//!
//! A page of a mapped file that cannot be read, since its sector is bad or the file has become
//! shorter, is a SIGBUS (mmap(2)), which ends a process. The handler here sees whether it was [`copy`]
//! that read; then that goes on where it returns false. Any other SIGBUS is for who handled it before.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

/// Whether SIGBUS is handled; an errno if it cannot be.
static HANDLED: OnceLock<Result<(), c_int>> = OnceLock::new();
/// What was done about it before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Makes [`copy`] safe from SIGBUS, in all threads.
///
/// # Errors
/// sigaction(2)'s.
pub(super) fn prepare() -> io::Result<()> {
    let errno = |error: io::Error| error.raw_os_error().unwrap_or_default();
    let handled = HANDLED.get_or_init(|| handle_sigbus().map_err(errno));
    handled.map_err(io::Error::from_raw_os_error)
}

/// Whether anybody has asked for it.
pub(super) fn is_prepared() -> bool {
    HANDLED.get().is_some()
}

/// Copies; false when some of `from` cannot be read, and then `to` has anything.
///
/// # Safety
/// As memcpy(3), but that reading `from` may raise SIGBUS; after [`prepare`].
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) -> bool {
    // SAFETY: as this function's.
    unsafe { copy_or_fail(to, from, bytes) == 0 }
}

/// 0, or 1 when it failed. A leaf that leaves the stack alone, so that it can be left anywhere.
#[unsafe(naked)]
unsafe extern "C" fn copy_or_fail(to: *mut u8, from: *const u8, bytes: usize) -> c_int {
    std::arch::naked_asm!(
        "2:",
        "cmp rdx, 16",
        "jb 3f",
        "movups xmm0, [rsi]",
        "movups [rdi], xmm0",
        "add rsi, 16",
        "add rdi, 16",
        "sub rdx, 16",
        "jmp 2b",
        "3:",
        "mov rcx, rdx",
        "rep movsb",
        "xor eax, eax",
        "ret",
        ".globl saker_copy_failed",
        ".hidden saker_copy_failed",
        "saker_copy_failed:",
        "mov eax, 1",
        "ret",
    )
}

unsafe extern "C" {
    /// Where [`copy_or_fail`] goes on when it has failed: behind all that reads.
    fn saker_copy_failed();
}

fn handle_sigbus() -> io::Result<()> {
    let action = |handler: usize, flags| {
        // SAFETY: zeros are a value of it.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        (action.sa_sigaction, action.sa_flags) = (handler, flags);
        action
    };
    let handler = on_sigbus as *const () as usize;
    let new = action(handler, libc::SA_SIGINFO | libc::SA_ONSTACK);
    let mut before = action(libc::SIG_DFL, 0);
    // SAFETY: it asks, and then installs a handler that does only what one may (signal-safety(7)).
    let failed = unsafe {
        libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) != 0
            || BEFORE.set(before).is_err()
            || libc::sigaction(libc::SIGBUS, &raw const new, ptr::null_mut()) != 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO this is the state of the thread, which nobody else has meanwhile.
    let state = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let at = &mut state.uc_mcontext.gregs[libc::REG_RIP as usize];
    let reads = copy_or_fail as *const () as i64..saker_copy_failed as *const () as i64;
    if reads.contains(at) {
        *at = reads.end;
        return;
    }
    // SAFETY: as above.
    let code = unsafe { (*info).si_code };
    match BEFORE.get().map(|before| before.sa_sigaction) {
        Some(handler) if code > 0 && handler != libc::SIG_DFL && handler != libc::SIG_IGN => {
            type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            // SAFETY: a handler by sigaction(2)'s word; one of a single argument does not look at the others. (The
            // standard library's, which it is here, asks for nothing by its flags.)
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        // It ends the process when this returns; also when another process has sent it.
        // SAFETY: takes a handler away, and raises what waits until then.
        _ => unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        },
    }
}
