//! What happens to a file, without a network: what its owner is told, and what becomes of the size.
#![allow(clippy::unwrap_used)]

use super::*;

const GEN: u64 = 3;

fn entry(size: u64, version: u64, chunked: bool, truncate_gen: u64) -> Entry {
    let attr = Attr {
        id: 7,
        size,
        data_version: version,
        ctime_ns: version,
        chunked,
        truncate_gen,
        ..Attr::default()
    };
    Entry { attr, loc: Locator::entry(1, Bytes::from_static(b"f"), 7), ..Entry::default() }
}

fn small(data: &'static [u8]) -> InodeState {
    let entry = entry(data.len() as u64, 1, false, GEN);
    InodeState::opened(&entry, Some(Bytes::from_static(data)), Time::ZERO)
}

fn large(size: u64) -> InodeState {
    InodeState::opened(&entry(size, 1, true, GEN), None, Time::ZERO)
}

fn user(uid: u32) -> Caller {
    Caller { uid, ..Caller::root() }
}

#[test]
fn a_clean_file_has_nothing_to_report_but_a_flush() {
    let s = large(100);
    assert!(!s.is_dirty() && !s.holds_data() && s.report(None).is_none());
    let told = s.report(Some(4)).unwrap();
    assert!(told.is_clean && told.flushed == Some(4) && told.size == 0);
}

#[test]
fn what_is_written_to_chunks_is_pending_then_accepted_then_reported() {
    let mut s = large(100);
    let generation = s.generation();
    s.wrote(150, 80, Some(70..150), &user(5));
    s.wrote(120, 10, Some(70..150), &user(6));
    assert!(s.generation() > generation && s.waits(&(149..200)) && !s.waits(&(150..200)));
    assert_eq!(s.writer().unwrap().uid, 5, "who began");
    s.accepted(&[Unflushed { store: 1, epoch: 1, first: 9, more: 0 }]);
    s.sent(None);
    assert!(s.is_dirty() && !s.holds_data(), "the owner does not know yet");
    let told = s.report(None).unwrap();
    assert_eq!((told.size, told.written_bytes, told.cleared_bytes), (150, 90, 0));
    assert_eq!((told.truncate_gen, told.unflushed.len(), told.inline), (GEN, 1, None));
    s.reported(&entry(150, 2, true, GEN), false);
    assert!(!s.is_dirty() && s.writer().is_none() && s.report(None).is_none());
    assert_eq!(s.unflushed().len(), 1, "that is told until it is flushed");
    s.flushed();
    assert!(s.unflushed().is_empty());
}

#[test]
fn a_truncation_elsewhere_cuts_what_stores_had_accepted() {
    let mut s = large(100);
    s.wrote(150, 50, None, &user(5));
    s.answered(&entry(100, 2, true, GEN), None);
    assert_eq!((s.attr().size, s.cuts()), (150, 0), "its own writes count");
    s.answered(&entry(10, 3, true, GEN + 1), None);
    assert_eq!((s.attr().size, s.written_end(), s.cuts()), (10, 0, 1));
    // What no store has accepted comes after the cut.
    s.wrote(60, 50, Some(10..60), &user(5));
    s.answered(&entry(0, 4, true, GEN + 2), None);
    assert_eq!((s.attr().size, s.written_end()), (60, 60));
    s.cut_here(&entry(5, 5, true, GEN + 2), None);
    assert_eq!(s.cuts(), 1, "who cuts it knows so");
}

#[test]
fn an_answer_that_was_overtaken_changes_nothing() {
    let mut s = large(100);
    s.answered(&entry(200, 5, true, GEN), None);
    s.answered(&entry(100, 4, true, GEN), None);
    assert_eq!((s.attr().size, s.cuts()), (200, 0));
}

#[test]
fn unsaved_bytes_of_a_small_file_go_to_chunks_when_it_spills() {
    let mut s = small(b"abcdef");
    s.write_inline(2, b"XY", &user(5));
    s.write_inline(5, b"Z", &user(5));
    let told = s.report(None).unwrap();
    assert_eq!((told.inline.unwrap(), told.size, told.base_version), ("abXYeZ".into(), 6, 1));
    let pieces = s.take_unsaved();
    assert_eq!(pieces, [(2, "XY".into()), (5, "Z".into())]);
    s.unsaved_go_to_chunks(6, 3, Some(2..6));
    s.spilled(&entry(6, 2, true, GEN + 1));
    assert!(s.attr().chunked && s.holds_data());
    assert_eq!((s.written_end(), s.report(None).unwrap().written_bytes), (6, 3));
}

#[test]
fn bytes_written_over_older_data_are_put_over_the_newer() {
    let mut s = small(b"abc");
    s.write_inline(1, b"X", &user(5));
    s.answered(&entry(5, 2, false, GEN), Some("ABCDE".into()));
    assert!(s.is_overtaken());
    assert_eq!(s.report(None).unwrap().base_version, 1, "the owner finds the conflict");
    let theirs = Entry { inline: "ABCDE".into(), ..entry(5, 2, false, GEN) };
    assert!(s.rebase(&theirs).is_empty());
    assert_eq!((s.inline().unwrap(), s.attr().size), (&Bytes::from("AXCDE"), 5));
    let in_chunks = entry(9_000, 3, true, GEN);
    assert_eq!(s.rebase(&in_chunks), [(1, "X".into())]);
    s.unsaved_go_to_chunks(2, 1, Some(1..2));
    assert_eq!((s.attr().size, s.written_end()), (9_000, 2));
}

#[test]
fn an_append_counts_when_it_is_there() {
    let mut s = large(100);
    s.append_placed(&entry(100, 2, true, GEN), None);
    s.append_began(130, Some(100..130), &user(5));
    assert_eq!((s.attr().size, s.written_end()), (130, 130));
    s.sent(None);
    s.append_gone();
    assert!(!s.is_dirty(), "the file does not grow by what is not there");
    s.answered(&entry(100, 2, true, GEN), None);
    assert_eq!(s.attr().size, 100);
}

#[test]
fn holes_and_growth_are_reported() {
    let mut s = large(100);
    s.cleared(80, 30, Some(50..80), &user(5));
    s.grown(200, &user(6));
    s.sent(None);
    let told = s.report(None).unwrap();
    assert_eq!((told.size, told.cleared_bytes, told.written_bytes), (200, 30, 0));
    assert_eq!(s.writer().unwrap().uid, 6);
}

#[test]
fn under_a_lock_that_is_lost_nothing_waits_any_more() {
    let mut s = large(100);
    s.lose_lock((true, 1));
    assert_eq!((s.losses(), s.failures().0), (1, 0), "nothing was written under it");
    s.wrote(150, 50, Some(100..150), &user(5));
    s.lose_lock((false, 2));
    assert!(!s.is_dirty() && s.failures().0 == 1 && s.asked_at() == Time::ZERO);
    assert!(s.has_lost((false, 2), 1) && !s.has_lost((false, 2), 2) && !s.has_lost((true, 2), 0));
}

#[test]
fn it_is_in_use_while_somebody_has_it_open_or_it_is_dirty() {
    let mut s = small(b"");
    s.opened_again(&entry(0, 1, false, GEN), Some(Bytes::new()));
    s.closed();
    assert!(!s.is_unused());
    s.write_inline(0, b"x", &user(5));
    s.closed();
    assert!(!s.is_unused());
    s.reported(&entry(1, 2, false, GEN), true);
    assert!(s.is_unused());
    assert_eq!(s.inline().unwrap(), "x", "the owner has taken what is here");
}
