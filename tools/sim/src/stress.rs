//! A load of many kinds at once, as the program fsstress makes: threads that make, write, cut,
//! move, link, list and remove what the others do, too. Nothing is compared; no call may fail for
//! a reason that no file system has, and the checker must find nothing afterwards.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use saker_client::Fallocate;

use crate::fsx::{FsxTarget, PosixFile};
use crate::generate::Random;

/// Names in each directory, and levels of directories: few, so that threads meet.
const NAMES: usize = 12;
const LEVELS: usize = 3;
/// Errors that a call may end in when others change the tree meanwhile, or the tree is as it is.
const EXPECTED: [i32; 14] = [
    libc::ENOENT,
    libc::EEXIST,
    libc::ENOTDIR,
    libc::EISDIR,
    libc::ENOTEMPTY,
    libc::EINVAL,
    libc::ELOOP,
    libc::EMLINK,
    libc::ESTALE,
    libc::ENXIO,
    libc::ENODATA,
    libc::EPERM,
    libc::EXDEV,
    libc::EFBIG,
];

/// Runs so many operations on the directory `root`.
///
/// # Errors
/// In words: the call that failed for a reason that it must not.
pub fn run(root: &Path, seed: u64, ops: u64) -> Result<u64, String> {
    let mut rng = Random::new(seed);
    let mut done = 0;
    for n in 0..ops {
        if n % 500 == 0 {
            make_directories(root, LEVELS - 1);
        }
        let (what, result) = step(root, &mut rng, n);
        match result {
            Ok(()) => done += 1,
            Err(error) if error.raw_os_error().is_some_and(|e| EXPECTED.contains(&e)) => {}
            Err(error) => return Err(format!("seed {seed}, operation {n}: {what}: {error}")),
        }
    }
    Ok(done)
}

/// Makes the directories that are not there (any more), so that most paths lead somewhere.
fn make_directories(root: &Path, levels: usize) {
    for n in 0..NAMES / 3 {
        let dir = root.join(format!("d{n}"));
        // Others make and remove them, too.
        let _ = fs::create_dir(&dir);
        if levels > 1 {
            make_directories(&dir, levels - 1);
        }
    }
}

fn place(root: &Path, rng: &mut Random) -> PathBuf {
    let mut path = root.to_owned();
    for _ in 0..rng.below(LEVELS) {
        path.push(format!("d{}", rng.below(NAMES / 3)));
    }
    match rng.chance(25) {
        true => path.join(format!("d{}", rng.below(NAMES / 3))),
        false => path.join(format!("f{}", rng.below(NAMES))),
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn data(rng: &mut Random) -> (Vec<u8>, u64) {
    let size = *rng.pick(&[100, 3_000, 20_000, 300_000]);
    let at_max = *rng.pick(&[1, 5_000, 200_000, 9 << 20]);
    let data = vec![rng.any() as u8; 1 + rng.below(size)];
    (data, rng.below(at_max) as u64)
}

fn step(root: &Path, rng: &mut Random, n: u64) -> (String, io::Result<()>) {
    let (path, other) = (place(root, rng), place(root, rng));
    let kind = rng.below(100);
    let what = format!("kind {kind} of {} and {}", path.display(), other.display());
    let result = match kind {
        0..10 => fs::create_dir(&path),
        10..22 => {
            let (data, at) = data(rng);
            let options = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
            options.and_then(|file| file.write_all_at(&data, at))
        }
        22..30 => {
            let (data, _) = data(rng);
            let file = OpenOptions::new().append(true).create(true).open(&path);
            file.and_then(|mut file| io::Write::write_all(&mut file, &data))
        }
        30..35 => open(&path).and_then(|file| file.set_len(rng.below(600_000) as u64)),
        35..41 => holes(&path, rng),
        41..52 => fs::rename(&path, &other),
        52..58 => fs::hard_link(&path, &other),
        58..61 => symlink(path.file_name().unwrap_or_default(), &other),
        61..69 => fs::remove_file(&path),
        69..73 => fs::remove_dir(&path),
        73..79 => list(path.parent().unwrap_or(root)),
        79..85 => fs::metadata(&path).map(|_| ()),
        85..92 => fs::read(&path).map(|_| ()),
        92..94 => {
            let mode = 0o600 | rng.below(0o100) as u32;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode | 0o100))
        }
        94..97 => attribute(&path, n),
        97..98 => open(&path).and_then(|file| file.sync_all()),
        _ => open(&path).and_then(|file| file.set_len(0)),
    };
    (what, result)
}

fn holes(path: &Path, rng: &mut Random) -> io::Result<()> {
    open(path)?;
    let mut file = PosixFile::create(path)?;
    let (at, len) = (rng.below(400_000) as u64, 1 + rng.below(200_000) as u64);
    let how = [Fallocate::Grow, Fallocate::Punch, Fallocate::Zero, Fallocate::ZeroKeepSize];
    file.fallocate(*rng.pick(&how), at, len)
}

fn list(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        entry?;
    }
    Ok(())
}

fn attribute(path: &Path, n: u64) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let value = vec![b'x'; (n % 3_000) as usize];
    // SAFETY: path and name end in NUL, and the length is the value's.
    let result = unsafe {
        let (name, value, len) = (c"user.stress".as_ptr(), value.as_ptr().cast(), value.len());
        libc::lsetxattr(path.as_ptr(), name, value, len, 0)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
