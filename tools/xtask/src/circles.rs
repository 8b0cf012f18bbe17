//! Modules of a crate that import each other in a circle cannot be read, or tested, one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Circles that are there, each with its reason in ARCHITECTURE.md ("Circles").
const KNOWN: [(&str, &[&str]); 8] = [
    ("types", &["access", "acl", "inode"]),
    ("runtime", &["rand", "sim", "time"]),
    ("rpc", &["client::alarms", "client::conn"]),
    ("rpc", &["node::net", "node::shell"]),
    ("fuse", &["request", "transport"]),
    ("mount", &["names::hint::calibrate", "names::hint::notes"]),
    ("mount", &["names::nodes", "names::walk"]),
    ("mount", &["protect", "root", "service"]),
];

type Imports = BTreeMap<String, BTreeSet<String>>;

/// Checks all crates below `crates`.
pub fn check() -> Result<String, Vec<String>> {
    let (mut problems, mut found) = (Vec::new(), 0);
    let mut crates: Vec<PathBuf> = list(Path::new("crates"))?;
    crates.retain(|path| path.join("src").is_dir());
    for path in &crates {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut sources = BTreeMap::new();
        read(&path.join("src"), "", &mut sources)?;
        for circle in circles(&imports(&sources)) {
            let is_known = KNOWN.iter().any(|(of, known)| *of == name && circle == *known);
            found += usize::from(is_known);
            if !is_known {
                problems.push(format!("{name}: modules import each other: {}", circle.join(", ")));
            }
        }
    }
    if found < KNOWN.len() {
        problems.push("a circle is gone that tools/xtask/src/circles.rs lists".to_owned());
    }
    if problems.is_empty() {
        Ok(format!("{} crates, {} circles of modules, all known", crates.len(), KNOWN.len()))
    } else {
        Err(problems)
    }
}

fn list(dir: &Path) -> Result<Vec<PathBuf>, Vec<String>> {
    let about = |e: io::Error| vec![format!("{}: {e}", dir.display())];
    let entries = fs::read_dir(dir).map_err(about)?.collect::<io::Result<Vec<_>>>();
    Ok(entries.map_err(about)?.into_iter().map(|entry| entry.path()).collect())
}

/// Sources by module path, without tests.
fn read(dir: &Path, above: &str, out: &mut BTreeMap<String, String>) -> Result<(), Vec<String>> {
    for path in list(dir)? {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let module = match stem.as_str() {
            "mod" => above.to_owned(),
            _ if above.is_empty() => stem.clone(),
            _ => format!("{above}::{stem}"),
        };
        if stem == "tests" || module == "lib" {
            continue;
        }
        if path.is_dir() {
            read(&path, &module, out)?;
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            let source = fs::read_to_string(&path).map_err(|e| vec![e.to_string()])?;
            out.insert(module, source);
        }
    }
    Ok(())
}

/// Which module names which others by `crate::` or `super::`, outside comments and tests.
fn imports(sources: &BTreeMap<String, String>) -> Imports {
    let mut imports = Imports::new();
    for (module, source) in sources {
        let code = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
        let code: String = lines.collect::<Vec<_>>().join("\n");
        let above = module.rsplit_once("::").map_or("", |(above, _)| above);
        let named = imports.entry(module.clone()).or_default();
        for (prefix, base) in [("crate::", ""), ("super::", above)] {
            for (at, _) in code.match_indices(prefix) {
                for path in paths(&code[at + prefix.len()..]) {
                    let path = if base.is_empty() { path } else { format!("{base}::{path}") };
                    named.extend(module_of(&path, sources).filter(|other| other != module));
                }
            }
        }
    }
    imports
}

/// The paths that `a::{b, c::d}` or `a::b` begin with.
fn paths(text: &str) -> Vec<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
    let (start, rest) = text.split_at(end);
    let Some(list) = rest.strip_prefix('{') else { return vec![start.to_owned()] };
    let names = list.split('}').next().unwrap_or_default().split(',');
    names.map(|name| format!("{start}{}", name.trim())).collect()
}

/// The module that a path leads into.
fn module_of(path: &str, sources: &BTreeMap<String, String>) -> Option<String> {
    let mut path = path.trim_end_matches(':');
    loop {
        if sources.contains_key(path) {
            return Some(path.to_owned());
        }
        path = path.rsplit_once("::")?.0;
    }
}

/// Modules that reach themselves, together with those that they reach and that reach them.
fn circles(imports: &Imports) -> Vec<Vec<String>> {
    let reached = |from: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            for other in imports.get(module).into_iter().flatten() {
                if seen.insert(other.clone()) {
                    next.push(other);
                }
            }
        }
        seen
    };
    let all: BTreeMap<&str, BTreeSet<String>> =
        imports.keys().map(|module| (module.as_str(), reached(module))).collect();
    let circle_of = |module: &str| -> Vec<String> {
        let back = |other: &&String| all.get(other.as_str()).is_some_and(|r| r.contains(module));
        all[module].iter().filter(back).cloned().collect()
    };
    let found: BTreeSet<Vec<String>> = all.keys().map(|module| circle_of(module)).collect();
    found.into_iter().filter(|circle| circle.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles_of(sources: &[(&str, &str)]) -> Vec<Vec<String>> {
        let sources = sources.iter().map(|(m, s)| ((*m).to_owned(), (*s).to_owned()));
        circles(&imports(&sources.collect()))
    }

    #[test]
    fn circles_are_found() {
        let found = circles_of(&[
            ("a", "use crate::b::{C, D};"),
            ("b", "use crate::c;"),
            ("c", "use crate::{a::X, d};"),
            ("d", "// use crate::a;\nuse std::io;"),
            ("e::f", "use super::g::X;"),
            ("e::g", "fn f() { crate::e::f::y() }"),
        ]);
        assert_eq!(found, [vec!["a", "b", "c"], vec!["e::f", "e::g"]]);
    }

    #[test]
    fn tests_and_lines_do_not_count() {
        let found = circles_of(&[
            ("a", "use crate::b;"),
            ("b", "//! [`crate::a`]\n#[cfg(test)]\nmod tests { use crate::a; }"),
        ]);
        assert_eq!(found, Vec::<Vec<String>>::new());
    }
}
