//! Paths, taken apart as the kernel's walk does it.

use super::Rest;

/// What `text`, which follows a name, has in it.
pub(super) fn rest(text: &[u8]) -> Rest {
    let mut rest = Rest::Dots;
    for part in text.split(|&b| b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Rest::DotDot,
            _ => rest = Rest::Names,
        }
    }
    rest
}

/// The last component and whether slashes follow it; `None` for an empty path, for `.` and `..`.
pub(super) fn last(path: &[u8]) -> Option<(&[u8], bool)> {
    let end = path.iter().rposition(|&b| b != b'/')? + 1;
    let start = path[..end].iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
    let name = &path[start..end];
    (name != b"." && name != b"..").then_some((name, end < path.len()))
}

/// Does no name go before the last one?
pub(super) fn is_alone(path: &[u8]) -> bool {
    last(path).is_some_and(|(name, _)| {
        let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
        is_before_first(&path[..end - name.len()])
    })
}

/// Is there no name in what goes before one?
pub(super) fn is_before_first(text: &[u8]) -> bool {
    text.split(|&b| b == b'/').all(|part| matches!(part, b"" | b"." | b".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_name_is_told_apart() {
        for (text, wanted) in [
            ("", Rest::Dots),
            ("/", Rest::Dots),
            ("//././/", Rest::Dots),
            ("/a", Rest::Names),
            ("/./a/", Rest::Names),
            ("/...", Rest::Names),
            ("/..", Rest::DotDot),
            ("/a/../b", Rest::DotDot),
        ] {
            assert_eq!(rest(text.as_bytes()), wanted, "{text}");
        }
    }

    #[test]
    fn the_last_component_is_found() {
        for (path, wanted) in [
            ("a", Some(("a", false))),
            ("/a", Some(("a", false))),
            ("a/b", Some(("b", false))),
            ("a/b//", Some(("b", true))),
            ("", None),
            ("///", None),
            ("a/.", None),
            ("a/../", None),
            ("..", None),
        ] {
            let wanted = wanted.map(|(name, slash)| (name.as_bytes(), slash));
            assert_eq!(last(path.as_bytes()), wanted, "{path}");
        }
    }

    #[test]
    fn a_name_is_alone_if_only_dots_go_before_it() {
        for (path, alone) in [
            ("x", true),
            ("/x", true),
            ("./../x/", true),
            ("a/x", false),
            ("", false),
            ("..", false),
        ] {
            assert_eq!(is_alone(path.as_bytes()), alone, "{path}");
        }
    }
}
