//! The number of links to one inode has a bound.
#![allow(clippy::unwrap_used)]

use saker_sim::bench::{Bench, at};
use saker_types::{Errno, limits};

#[test]
fn the_last_link_that_fits_is_made_and_no_other() {
    let mut b = Bench::new(2);
    b.create("first").unwrap();
    b.link("first", "second").unwrap();
    for n in 2..limits::LINKS_MAX {
        b.link("second", &format!("n{n}")).unwrap();
    }
    assert_eq!(b.stat(&at("first")).unwrap().attr.nlink, limits::LINKS_MAX);
    for from in ["first", "n7"] {
        assert_eq!(b.link(from, "one-more").unwrap_err().errno(), Errno::EMLINK);
    }
    b.unlink("n2").unwrap();
    b.link("first", "one-more").unwrap();
    assert_eq!(b.stat(&at("one-more")).unwrap().attr.nlink, limits::LINKS_MAX);
}
