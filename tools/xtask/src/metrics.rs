//! docs/metrics.md against what running roles expose.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Asks each address for `/metrics`; every name there must be in docs/metrics.md, and every name
/// there must be exposed by someone.
pub fn check(addrs: &[&str]) -> Result<String, Vec<String>> {
    let docs = std::fs::read_to_string("docs/metrics.md")
        .map_err(|e| vec![format!("docs/metrics.md: {e}")])?;
    let listed = listed_names(&docs);
    let mut exposed = BTreeSet::new();
    for addr in addrs {
        let text = fetch(addr).map_err(|e| vec![format!("{addr}: {e}")])?;
        exposed.extend(exposed_names(&text));
    }
    let hidden = exposed.difference(&listed).map(|n| format!("{n} is not in docs/metrics.md"));
    let gone = listed.difference(&exposed).map(|n| format!("{n}: listed, but nobody exposes it"));
    let problems: Vec<String> = hidden.chain(gone).collect();
    if problems.is_empty() {
        Ok(format!("{} metrics, all listed", exposed.len()))
    } else {
        Err(problems)
    }
}

fn fetch(addr: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Names after `# TYPE`, with the suffix that a counter's samples have.
fn exposed_names(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .filter_map(|line| line.split_once(' '))
        .map(|(name, kind)| match kind.trim() {
            "counter" if !name.ends_with("_total") => format!("{name}_total"),
            _ => name.to_owned(),
        })
        .collect()
}

/// Names in backquotes that start with `saker_`, labels cut off.
fn listed_names(docs: &str) -> BTreeSet<String> {
    let quoted = docs.split('`').skip(1).step_by(2);
    quoted
        .filter(|name| name.starts_with("saker_"))
        .map(|name| name.split('{').next().unwrap_or(name).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{exposed_names, listed_names};

    #[test]
    fn names_are_read_from_both_sides() {
        let text = "# HELP saker_x X.\n# TYPE saker_x counter\nsaker_x_total{op=\"a\"} 1\n\
                    # TYPE saker_y_seconds histogram\n";
        let names: Vec<_> = exposed_names(text).into_iter().collect();
        assert_eq!(names, ["saker_x_total", "saker_y_seconds"]);
        let docs = "| `saker_x_total{op}` | counts |\n`other` and `saker_y_seconds`";
        assert_eq!(listed_names(docs), exposed_names(text));
    }
}
