#![allow(clippy::unwrap_used)]

use super::*;

fn key(n: u32) -> Bytes {
    // Two kinds of keys of different length, so that prefixes of each other sort.
    Bytes::from(format!("{:04}{}", n / 2, if n.is_multiple_of(2) { "" } else { "/x" }))
}

fn write(table: &dyn Table, rows: &[(Bytes, Option<&str>)]) {
    let mut rows = rows.iter().map(|(key, value)| {
        (key.clone(), value.map(|value| Bytes::copy_from_slice(value.as_bytes())))
    });
    table.write(&mut rows).unwrap();
}

fn scan(table: &dyn Table, start: &[u8], end: &[u8], limit: usize) -> Vec<(Bytes, Bytes)> {
    let mut rows = Vec::new();
    let collect = &mut |key: &[u8], value: &[u8]| {
        rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
        if rows.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    table.scan(start, end, collect).unwrap();
    rows
}

/// What every [`Table`] does. `open` opens the same table again after it was dropped.
fn conforms(open: &dyn Fn() -> std::sync::Arc<dyn Table>) {
    let table = open();
    assert_eq!(table.get(b"nothing").unwrap(), None);
    assert!(scan(&*table, b"\0", b"\xff", 99).is_empty());
    write(&*table, &[]);

    let rows: Vec<_> = (0..1000).map(|n| (key(n), Some("first"))).collect();
    write(&*table, &rows);
    for n in [0, 1, 500, 999] {
        assert_eq!(table.get(&key(n)).unwrap().unwrap(), "first");
    }
    assert_eq!(table.get(&key(1000)).unwrap(), None);
    assert_eq!(table.get(b"0001/").unwrap(), None);

    let changes = (0..1000)
        .filter(|n| n % 3 == 0)
        .map(|n| (key(n), if n % 2 == 0 { Some("second") } else { None }));
    write(&*table, &changes.collect::<Vec<_>>());
    write(
        &*table,
        &[(Bytes::from_static(b"\xffm"), Some("9")), (Bytes::from_static(b"\xffn"), None)],
    );
    let expected = |n: u32| match (n % 3, n % 2) {
        (0, 0) => Some("second"),
        (0, _) => None,
        _ => Some("first"),
    };
    let check = |table: &dyn Table| {
        for n in 0..1000 {
            assert_eq!(table.get(&key(n)).unwrap().as_deref(), expected(n).map(str::as_bytes));
        }
        let rows = (0..1000).filter_map(|n| Some((key(n), Bytes::from(expected(n)?))));
        let rows: Vec<_> = rows.collect();
        assert_eq!(scan(table, b"\0", b"\xff", usize::MAX), rows);
        assert_eq!(scan(table, b"\0", b"\xff", 100), rows[..100]);
        let (start, end) = (&rows[70].0, &rows[300].0);
        assert_eq!(scan(table, start, end, usize::MAX), rows[70..300]);
        assert!(scan(table, end, start, 9).is_empty());
        assert!(scan(table, start, start, 9).is_empty());
        assert_eq!(table.get(b"\xffm").unwrap().unwrap(), "9");
        assert_eq!(table.get(b"\xffn").unwrap(), None);
    };
    check(&*table);
    drop(table);
    let table = open();
    check(&*table);

    // What is written after opening again is newer than what was there.
    write(&*table, &[(key(1), Some("third")), (key(2), None)]);
    assert_eq!(table.get(&key(1)).unwrap().unwrap(), "third");
    assert_eq!(table.get(&key(2)).unwrap(), None);
    reads_inside_a_scan(&*table);
    drop(table);
    let table = open();
    assert_eq!(table.get(&key(1)).unwrap().unwrap(), "third");
    assert_eq!(table.get(&key(2)).unwrap(), None);
}

fn reads_inside_a_scan(table: &dyn Table) {
    let mut rows = 0;
    table
        .scan(b"\0", b"\xff", &mut |key, value| {
            assert_eq!(table.get(key).unwrap().unwrap(), value);
            rows += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(rows, 832);
}

#[test]
fn embedded_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let open = || EmbeddedTable::open(dir.path(), &EmbeddedConfig::default()).unwrap();
    conforms(&|| std::sync::Arc::new(open()));
}
