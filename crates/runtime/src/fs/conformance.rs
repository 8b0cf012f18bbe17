//! What every [`Dir`] and its files must do, as a test that is run on each.

#![allow(clippy::unwrap_used)]

use super::*;

/// Checks a directory, which is empty.
///
/// # Panics
/// If something is not as it must be.
pub fn run(dir: &dyn Dir) {
    assert_eq!(dir.list().unwrap(), Vec::<String>::new());
    assert_eq!(dir.open("a").err().unwrap().kind(), io::ErrorKind::NotFound);
    for name in ["", ".", "..", "a/b", "nul\0"] {
        assert_eq!(dir.create(name).err().unwrap().kind(), io::ErrorKind::InvalidInput, "{name}");
    }
    let file = dir.create("a").unwrap();
    assert_eq!(dir.create("a").err().unwrap().kind(), io::ErrorKind::AlreadyExists);
    file_conforms(&*file);
    names_conform(dir);
    dir.lock().unwrap();
    dir.lock().unwrap();
    assert!(!dir.label().is_empty());
}

fn file_conforms(file: &dyn File) {
    assert!(file.is_empty().unwrap());
    file.write_at(3, b"defg").unwrap();
    assert_eq!(read_all(file).unwrap(), b"\0\0\0defg");
    file.write_at(0, b"abc").unwrap();
    assert_eq!(file.append(b"hi").unwrap(), 7);
    assert_eq!(read_all(file).unwrap(), b"abcdefghi");
    let mut buf = [0; 4];
    assert_eq!(file.read_at(7, &mut buf).unwrap(), 2);
    assert_eq!(&buf[..2], b"hi");
    assert_eq!(file.read_at(100, &mut buf).unwrap(), 0);
    if let Some(read) = file.read_cached(4, &mut buf).unwrap() {
        assert_eq!((read, &buf), (4, b"efgh"));
    }
    assert!(matches!(file.read_cached(7, &mut buf).unwrap(), None | Some(2)));

    file.truncate(4).unwrap();
    file.truncate(6).unwrap();
    assert_eq!(read_all(file).unwrap(), b"abcd\0\0");
    file.preallocate(2).unwrap();
    assert_eq!(file.len().unwrap(), 6);
    file.preallocate(9000).unwrap();
    assert_eq!(file.len().unwrap(), 9000);
    file.write_at(5000, &[7; 4000]).unwrap();
    file.punch(5000, 1000).unwrap();
    file.punch(8999, 1000).unwrap();
    let data = read_all(file).unwrap();
    assert_eq!((data.len(), &data[..4]), (9000, &b"abcd"[..]));
    assert!(data[4..6000].iter().all(|&byte| byte == 0));
    assert!(data[6000..8999].iter().all(|&byte| byte == 7));
    assert_eq!(data[8999], 0);
    file.sync().unwrap();
    assert_eq!(read_all_durable(file).unwrap(), data);
    assert!(is_durable(file).unwrap() && is_cached_as(file, &data).unwrap());
    assert!(!is_cached_as(file, &data[1..]).unwrap());
    let mut part = [0; 5_000];
    assert_eq!(file.read_durable(5_999, &mut part).unwrap(), 3_001);
    assert_eq!(part[..3_001], data[5_999..]);
    assert_eq!(file.read_durable(9_000, &mut part).unwrap(), 0);
    log_conforms(file);
}

fn log_conforms(file: &dyn File) {
    const ZEROS: [u8; 10_000] = [0; 10_000];
    file.truncate(0).unwrap();
    file.preallocate(40_000).unwrap();
    // Of an earlier life.
    file.write_at(0, &[9; 40_000]).unwrap();
    let mut log = Vec::new();
    let lens = [1, 100, 3995, 4096, 0, 5000, 3, 12_000, 700];
    for (n, len) in lens.into_iter().enumerate() {
        let start = log.len();
        log.resize(start + len, n as u8 + 10);
        let zeros = if n % 2 == 0 { &ZEROS[..] } else { &[] };
        let (before, data) = log.split_at(start);
        let before = &before[start / BLOCK_BYTES * BLOCK_BYTES..];
        file.write_end(&End { offset: start as u64, before, data, zeros }).unwrap();
        let found = read_all(file).unwrap();
        assert_eq!(found.len(), 40_000);
        assert!(found.starts_with(&log), "{n}");
        let after = &found[log.len()..];
        let cleared = after.iter().take_while(|&&byte| byte == 0).count();
        assert!(cleared + BLOCK_BYTES > zeros.len(), "{n}");
        // Buffered writes and reads see the same file.
        file.write_at(39_999, &[n as u8]).unwrap();
        assert_eq!(read_all(file).unwrap()[39_999], n as u8);
    }
    let end = log.len() as u64;
    let before = &log[log.len() / BLOCK_BYTES * BLOCK_BYTES..];
    file.write_end(&End { offset: end, before, data: &[1; 30_000], zeros: &[] }).unwrap();
    assert!(file.len().unwrap() - (end + 30_000) < BLOCK_BYTES as u64, "it grows");
}

fn names_conform(dir: &dyn Dir) {
    let file = dir.open("a").unwrap();
    dir.create("b").unwrap().write_at(0, b"replaced").unwrap();
    dir.rename("a", "b").unwrap();
    assert_eq!(dir.list().unwrap(), ["b"]);
    assert_eq!(dir.rename("a", "c").unwrap_err().kind(), io::ErrorKind::NotFound);
    file.truncate(0).unwrap();
    file.write_at(0, b"kept").unwrap();
    assert_eq!(read_all(&*dir.open("b").unwrap()).unwrap(), b"kept");
    dir.remove("b").unwrap();
    assert_eq!(dir.remove("b").unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(read_all(&*file).unwrap(), b"kept");
    dir.sync().unwrap();

    let sub = dir.sub_dir("sub").unwrap();
    sub.create("inner").unwrap();
    assert_eq!(dir.sub_dir("sub").unwrap().list().unwrap(), ["inner"]);
    assert_eq!(dir.list().unwrap(), ["sub"]);
    assert!(dir.remove("sub").is_err());
    assert!(sub.sub_dir("inner").is_err());
}
