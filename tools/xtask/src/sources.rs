//! Sources of crates and tools.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates and the simulator.
pub const CRATES_AND_SIM: [&str; 2] = ["crates", "tools/sim"];

/// All Rust files below some directories, by path.
pub fn read(below: &[&str]) -> Result<BTreeMap<PathBuf, String>, Vec<String>> {
    let mut sources = BTreeMap::new();
    let mut dirs: Vec<PathBuf> = below.iter().map(PathBuf::from).collect();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).map_err(|e| vec![e.to_string()])?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let source = text(&path)?;
                sources.insert(path, source);
            }
        }
    }
    Ok(sources)
}

/// A file's text.
pub fn text(path: &Path) -> Result<String, Vec<String>> {
    fs::read_to_string(path).map_err(|e| vec![format!("{}: {e}", path.display())])
}
