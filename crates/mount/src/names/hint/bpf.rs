//! Loading the program of `hint.bpf.c`.

use std::error::Error;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use aya::maps::Map;
use aya::programs::RawTracePoint;
use aya::{Btf, Ebpf, EbpfLoader, Endianness};
use rustix::fs::{AtFlags, StatxFlags};

use super::calibrate::Bits;
use super::notes::LookupNotes;
use super::syscall::Syscall;
use super::{Hint, Lookup};

/// The kernel's types, and those of its module fuse if that is not built in.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";
const MODULE_BTF: &str = "/sys/kernel/btf/fuse";
const TRACEPOINT: &str = "fuse_request_send";
/// As in `hint.bpf.c`.
const SYSCALLS: usize = 512;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/hint.bpf.o"));

/// The program, attached for one mount. Detached when dropped.
pub(super) struct Program {
    pub(super) notes: Arc<LookupNotes>,
    _program: Ebpf,
}

/// The source of hints.
pub(super) struct Bpf {
    program: Program,
    bits: Bits,
}

impl Bpf {
    pub(super) fn new(program: Program, bits: Bits) -> Bpf {
        Bpf { program, bits }
    }

    /// What the kernel noted about this LOOKUP.
    pub(super) fn hint(&self, lookup: Lookup<'_>) -> Option<Hint> {
        self.program.notes.find(lookup)?.hint(&self.bits, lookup.name)
    }
}

impl Program {
    /// Loads and attaches it for the mount at `mountpoint`.
    ///
    /// # Errors
    /// In words, what this kernel or our rights lack.
    pub(super) fn load(mountpoint: &Path) -> Result<Program, String> {
        let btf = kernel_types()?;
        let device = device_of(mountpoint)?;
        let path_args = path_args();
        let mut program = EbpfLoader::new()
            .btf(Some(&btf))
            .override_global("device", &device, true)
            .override_global("path_args", &path_args[..], true)
            .load(OBJECT)
            .map_err(|e| all_of(&e))?;
        attach(&mut program).map_err(|e| all_of(&*e))?;
        let notes = match program.map("notes") {
            Some(Map::Array(map)) => LookupNotes::map(map.fd().as_fd()),
            _ => return Err("the program has no notes".into()),
        };
        let notes = notes.map_err(|e| format!("its notes cannot be mapped: {e}"))?;
        Ok(Program { notes: Arc::new(notes), _program: program })
    }
}

fn attach(program: &mut Ebpf) -> Result<(), Box<dyn Error>> {
    let program = program.program_mut("on_send").ok_or("the object has no program")?;
    let program: &mut RawTracePoint = program.try_into()?;
    program.load()?;
    program.attach(TRACEPOINT)?;
    Ok(())
}

/// An error with its causes, in one line.
fn all_of(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ").replace('\n', " ")
}

/// The mount's device number as the kernel has it inside (`MKDEV`).
fn device_of(mountpoint: &Path) -> Result<u32, String> {
    // No request: nobody may be there to answer yet.
    let flags = AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(rustix::fs::CWD, mountpoint, flags, StatxFlags::TYPE)
        .map_err(|e| format!("{}: {e}", mountpoint.display()))?;
    Ok(stat.stx_dev_major << 20 | stat.stx_dev_minor)
}

/// For the program: where each syscall that ends its walk early has its paths.
fn path_args() -> [u8; SYSCALLS] {
    std::array::from_fn(|nr| {
        let call = Syscall::of(nr as u32).filter(Syscall::ends_walk_early);
        let paths = call.map_or(&[][..], |call| call.paths);
        let arg = |which: usize| paths.get(which).map_or(0, |arg| *arg as u8 + 1);
        arg(0) | arg(1) << 4
    })
}

fn kernel_types() -> Result<Btf, String> {
    // The kernel's own files, not ones that a simulation could hold.
    #[allow(clippy::disallowed_methods)]
    let read = |path| std::fs::read(path);
    let kernel = read(KERNEL_BTF).map_err(|e| format!("{KERNEL_BTF}: {e}"))?;
    let all = match read(MODULE_BTF) {
        Ok(module) => joined(&kernel, &module).ok_or_else(|| format!("{MODULE_BTF}: malformed"))?,
        Err(_) => kernel,
    };
    Btf::parse(&all, Endianness::default()).map_err(|e| all_of(&e))
}

/// A module's types continue the kernel's: ids and offsets of strings count on from there. So
/// both together are one set of types. Source: the kernel's `Documentation/bpf/btf.rst`.
fn joined(kernel: &[u8], module: &[u8]) -> Option<Vec<u8>> {
    let (mut header, types, strings) = parts(kernel)?;
    let (_, more_types, more_strings) = parts(module)?;
    let types = [types, more_types].concat();
    let strings = [strings, more_strings].concat();
    let sizes = [0, types.len(), types.len(), strings.len()];
    for (to, size) in header[8..].chunks_exact_mut(4).zip(sizes) {
        to.copy_from_slice(&u32::try_from(size).ok()?.to_ne_bytes());
    }
    Some([&header[..], &types, &strings].concat())
}

/// Header, types and strings of a BTF blob.
fn parts(btf: &[u8]) -> Option<([u8; 24], &[u8], &[u8])> {
    let (header, body) = btf.split_first_chunk::<24>()?;
    let number = |at: usize| Some(u32::from_ne_bytes(header[at..at + 4].try_into().ok()?) as usize);
    (number(4)? == header.len()).then_some(())?;
    let part = |at: usize| body.get(number(at)?..)?.get(..number(at + 4)?);
    Some((*header, part(8)?, part(16)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn blob(types: &[u32], strings: &[u8]) -> Vec<u8> {
        let lens = [24, 0, types.len() * 4, types.len() * 4, strings.len()];
        let lens = lens.map(|len| (len as u32).to_ne_bytes());
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        [&0xeb9f_u16.to_ne_bytes()[..], &[1, 0], &lens.concat(), &types, strings].concat()
    }

    #[test]
    fn types_of_a_module_continue_those_of_the_kernel() {
        const INT: u32 = 1 << 24;
        const TYPEDEF: u32 = 8 << 24;
        let kernel = blob(&[1, INT, 4, 32], b"\0int\0");
        // Named by offset 5, of type 1.
        let module = blob(&[5, TYPEDEF, 1], b"fuse_int\0");
        let all = joined(&kernel, &module).unwrap();
        assert_eq!(all, blob(&[1, INT, 4, 32, 5, TYPEDEF, 1], b"\0int\0fuse_int\0"));
        assert!(Btf::parse(&all, Endianness::default()).is_ok());
        assert!(joined(&kernel, &module[..30]).is_none());
        assert!(joined(&kernel, b"").is_none());
    }

    #[test]
    fn the_program_is_told_of_paths_that_are_looked_up_after_the_walk() {
        let args = path_args();
        assert_eq!(args[libc::SYS_mkdirat as usize], 2);
        assert_eq!(args[libc::SYS_renameat2 as usize], 2 | 4 << 4);
        assert_eq!(args[libc::SYS_symlinkat as usize], 3);
        assert_eq!(args[libc::SYS_openat as usize], 0);
    }
}
