//! Tests wait for a condition, in a `while` loop or by `saker_sim::wait::until`, not for time to pass. Where one
//! needs real time, a comment says why: `// Real time: REASON`, on the line or at most three lines above.

use std::path::Path;

use crate::sources;

const MARK: &str = "// Real time: ";
/// Lines above that may hold the reason.
const ABOVE: usize = 3;
const TELLTALES: [&str; 2] = ["sleep(", ".elapsed()"];

/// Checks the tests of all crates and tools; says where real time is left.
pub fn check() -> Result<String, Vec<String>> {
    let (mut problems, mut left) = (Vec::new(), Vec::new());
    for (path, source) in sources::read(&["crates", "tools/sim", "tools/specs"])? {
        for (line, reason) in uses(tests_of(&path, &source)) {
            let place = format!("{}:{line}", path.display());
            match reason {
                Some(reason) => left.push(format!("{place}: {reason}")),
                None => {
                    problems.push(format!("{place}: wait for a condition, or say {MARK:?} and why"))
                }
            }
        }
    }
    problems.sort();
    left.sort();
    left.push(format!("real time is left at {} places of tests", left.len()));
    if problems.is_empty() { Ok(left.join("\n")) } else { Err(problems) }
}

/// The lines of a file that are tests, each with its number: all, or those of the module `tests`.
fn tests_of<'a>(path: &Path, source: &'a str) -> Vec<(usize, &'a str)> {
    let mut parts = path.iter();
    let is_test = parts.any(|part| part == "tests") || path.ends_with("tests.rs");
    let lines = source.lines().enumerate().map(|(n, line)| (n + 1, line));
    lines.skip_while(|(_, line)| !is_test && !line.starts_with("mod tests {")).collect()
}

/// Lines that use real time, with their reasons.
fn uses(lines: Vec<(usize, &str)>) -> Vec<(usize, Option<String>)> {
    let mut found = Vec::new();
    for (i, (number, line)) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let near = lines[i.saturating_sub(ABOVE)..=i].iter().rev();
        let is_loop = near.clone().any(|(_, line)| line.trim_start().starts_with("while "));
        if TELLTALES.iter().any(|telltale| code.contains(telltale)) && !is_loop {
            let reason = near.filter_map(|(_, line)| line.split_once(MARK)).next();
            found.push((*number, reason.map(|(_, reason)| reason.to_owned())));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_time_needs_a_reason() {
        let source = "fn f() { sleep(A) }\n#[cfg(test)]\nmod tests {\n// a sleep()\nsleep(B);\n\
                      while waits() {\n    sleep(LOOK);\n}\n}\n\n\
                      // Real time: a lease ends.\nsleep(C);\n}";
        let of = |path: &str| uses(tests_of(Path::new(path), source));
        let here = vec![(5, None), (12, Some("a lease ends.".to_owned()))];
        assert_eq!(of("crates/x/src/a.rs"), here);
        assert_eq!(of("crates/x/tests/a.rs").len(), 3);
    }
}
