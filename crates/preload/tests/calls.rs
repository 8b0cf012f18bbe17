//! Every call with its errors, on a read-only tree and on datasets of it.

mod support;

use support::{Fixture, User, is_root};

#[test]
fn calls_answer_as_those_of_a_read_only_file_system() {
    let fixture = Fixture::new();
    fixture.compile("calls.c", &[]);
    let script = "exec $HERE/calls $ROOT $OUT/copy.$$";
    fixture.compare(User::Own, script);
    if is_root() {
        fixture.compare(User::Nobody, script);
    }
}
