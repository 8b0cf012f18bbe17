//! What may wait to be written out.
#![allow(clippy::unwrap_used)]

use crate::ClientOptions;
use crate::fake::setup::{TRUNC, pattern, setup, setup_with};

#[test]
fn what_is_written_to_many_files_and_not_out_yet_is_bounded() {
    const TOTAL: usize = 1 << 20;
    const PART: usize = 50_000;
    let options = ClientOptions { write_buffer_total_bytes: TOTAL, ..ClientOptions::default() };
    let t = setup_with(options);
    let held = || t.gauge("saker_client_unwritten_bytes");
    let names = ["a", "b", "c", "d", "e", "f"];
    let files = names.map(|name| t.create(name));
    let data = pattern(500_000, 3);
    let mut most = 0;
    for (part, at) in data.chunks(PART).zip((0..).step_by(PART)) {
        for file in &files {
            t.write(file, at, part);
            most = most.max(held());
        }
    }
    assert!((TOTAL as i64 - PART as i64..=TOTAL as i64).contains(&most), "{most} bytes");
    assert!(held() > 0);
    for (file, name) in files.iter().zip(names) {
        t.flush(file);
        assert!(t.content(name) == data);
    }
    assert_eq!(held(), 0);
}

#[test]
fn what_a_truncation_drops_is_not_held() {
    let t = setup();
    let held = || t.gauge("saker_client_unwritten_bytes");
    let file = t.create("f");
    t.write(&file, 0, &pattern(300_000, 1));
    assert_eq!(held(), 300_000);
    let other = t.open("f", TRUNC);
    assert_eq!(held(), 0);
    assert_eq!(t.read(&other, 0, 10), "");
}

#[test]
fn who_writes_on_does_not_pay_for_files_that_are_idle() {
    const TOTAL: usize = 1 << 20;
    const IDLE: usize = 20;
    let options = ClientOptions { write_buffer_total_bytes: TOTAL, ..ClientOptions::default() };
    let t = setup_with(options);
    let held = || t.gauge("saker_client_unwritten_bytes");
    let names: [&'static str; IDLE] = std::array::from_fn(|n| &"abcdefghijklmnopqrst"[n..=n]);
    let idle = names.map(|name| t.create(name));
    let data = pattern(TOTAL / IDLE, 6);
    idle.iter().for_each(|file| t.write(file, 0, &data));
    assert!(held() > (TOTAL - IDLE) as i64 && held() <= TOTAL as i64);
    let file = t.create("busy");
    let sent = || t.fake.log().iter().filter(|op| **op == "chunk_write").count();
    sent();
    t.write(&file, 0, &pattern(5_000, 1));
    // To two stores each; whether its own comes after is a matter of when they answer.
    assert!((2 * IDLE..=2 * IDLE + 2).contains(&sent()));
    for n in 1..=100 {
        t.write(&file, n * 5_000, &pattern(5_000, 1));
    }
    assert_eq!(sent(), 0);
    for (file, name) in idle.iter().zip(names) {
        t.flush(file);
        assert!(t.content(name) == data);
    }
    t.flush(&file);
    assert!(t.content("busy") == pattern(5_000, 1).repeat(101));
    assert_eq!(held(), 0);
}
