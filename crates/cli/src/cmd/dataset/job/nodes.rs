//! Lists of nodes: `a,b:7461`, `node[001-016,020]`, `@FILE`.

use std::net::{ToSocketAddrs, UdpSocket};

use saker_agent_api::PORT;

use crate::fail::{Context, Failure, Outcome};

/// Nodes of a job, at most.
const NODES_MAX: usize = 1 << 16;

/// The agents (`host:port`) that a list names, in its order. Each once.
pub fn parse(list: &str) -> Outcome<Vec<String>> {
    let mut nodes = Vec::new();
    match list.strip_prefix('@') {
        Some(file) => {
            let text = std::fs::read_to_string(file).about(file)?;
            for line in text.lines() {
                let line = line.split('#').next().unwrap_or_default().trim();
                if !line.is_empty() {
                    expand_list(line, &mut nodes)?;
                }
            }
        }
        None => expand_list(list, &mut nodes)?,
    }
    let mut seen = std::collections::BTreeSet::new();
    if let Some(twice) = nodes.iter().find(|node| !seen.insert(node.as_str())) {
        return Err(Failure::usage(list, format!("{twice} is there twice")));
    }
    match nodes.is_empty() {
        true => Err(Failure::usage(list, "no node in it")),
        false => Ok(nodes),
    }
}

fn expand_list(list: &str, nodes: &mut Vec<String>) -> Outcome {
    for item in split(list) {
        let item = item.trim();
        if item.is_empty() || item.contains(char::is_whitespace) {
            return Err(Failure::usage(list, "no list of nodes"));
        }
        expand(list, item, nodes)?;
    }
    Ok(())
}

/// At commas that are not in brackets.
fn split(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    parts
}

/// A name, with at most some pairs of brackets that stand for several.
fn expand(list: &str, item: &str, nodes: &mut Vec<String>) -> Outcome {
    let wrong = |why: &str| Err(Failure::usage(list, format!("{item}: {why}")));
    // An address of IPv6 begins with its bracket.
    let open = match item.starts_with('[') {
        true => None,
        false => item.find('['),
    };
    let Some(open) = open else {
        if nodes.len() >= NODES_MAX {
            return wrong("too many nodes");
        }
        nodes.push(with_port(item));
        return Ok(());
    };
    let Some(close) = item[open..].find(']').map(|close| open + close) else {
        return wrong("a bracket is not closed");
    };
    let (before, ranges, after) = (&item[..open], &item[open + 1..close], &item[close + 1..]);
    for range in ranges.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let width = from.len();
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        let (true, true) = (is_number(from), is_number(to)) else {
            return wrong("brackets hold numbers and ranges, as in [001-016,020]");
        };
        let (Ok(from), Ok(to)) = (from.parse::<usize>(), to.parse::<usize>()) else {
            return wrong("a number is too large");
        };
        if to < from || to - from >= NODES_MAX {
            return wrong("a range that is empty or too large");
        }
        for n in from..=to {
            expand(list, &format!("{before}{n:0width$}{after}"), nodes)?;
        }
    }
    Ok(())
}

fn with_port(node: &str) -> String {
    let has_port = match node.strip_prefix('[') {
        Some(rest) => rest.contains("]:"),
        None => node.contains(':'),
    };
    if has_port { node.to_owned() } else { format!("{node}:{PORT}") }
}

/// Says whether a node is this machine: only its own addresses can be bound.
pub fn is_here(node: &str) -> bool {
    let addrs = node.to_socket_addrs().into_iter().flatten();
    { addrs }.any(|addr| UdpSocket::bind((addr.ip(), 0)).is_ok())
}

/// The port of a node.
pub fn port(node: &str) -> Outcome<u16> {
    let port = node.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    port.ok_or_else(|| Failure::usage(node, "no host:port"))
}

/// The number of this machine among the nodes: of `name`, or of the first that is here.
pub fn own(nodes: &[String], name: Option<&str>) -> Outcome<Option<usize>> {
    let Some(name) = name else { return Ok(nodes.iter().position(|node| is_here(node))) };
    let is_it = |node: &String| *node == with_port(name);
    match nodes.iter().position(is_it) {
        Some(n) => Ok(Some(n)),
        None => Err(Failure::usage("--self", format!("{name} is none of the nodes"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes() {
        let nodes = |list: &str| parse(list).map(|nodes| nodes.join(" ")).unwrap_or_default();
        assert_eq!(nodes("a"), "a:7460");
        assert_eq!(nodes("a,b:1,10.0.0.1"), "a:7460 b:1 10.0.0.1:7460");
        assert_eq!(nodes("[::1]:5,[fe80::2]"), "[::1]:5 [fe80::2]:7460");
        assert_eq!(nodes("n[001-003,020]"), "n001:7460 n002:7460 n003:7460 n020:7460");
        assert_eq!(nodes("n[9-11]:5,x"), "n9:5 n10:5 n11:5 x:7460");
        assert_eq!(nodes("r[1-2]n[1-2]"), "r1n1:7460 r1n2:7460 r2n1:7460 r2n2:7460");
        for wrong in ["", "a,,b", "a b", "n[1", "n[a-b]", "n[3-1]", "n[1-99999999]", "n[]", "a,a"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# hosts\nn[1-2]\n\nb:3 # last\n").unwrap();
        assert_eq!(nodes(&format!("@{}", file.path().display())), "n1:7460 n2:7460 b:3");
        assert!(parse("@/not/there").is_err());
    }

    #[test]
    fn this_machine_is_known() {
        assert!(is_here("127.0.0.1:7460") && !is_here("192.0.2.1:7460"));
        let nodes = ["192.0.2.1:7460".to_owned(), "localhost:1".to_owned()];
        assert_eq!(own(&nodes, None).unwrap(), Some(1));
        assert_eq!(own(&nodes, Some("192.0.2.1")).unwrap(), Some(0));
        assert!(own(&nodes, Some("x")).is_err());
    }
}
