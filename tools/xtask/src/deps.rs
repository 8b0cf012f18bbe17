//! The allowed edges between crates: a picture that is not checked stops being true.

use cargo_metadata::{DependencyKind, MetadataCommand};

/// What each crate may depend on, among ours.
const ALLOWED: [(&str, &[&str]); 17] = [
    ("types", &[]),
    ("runtime", &["types"]),
    ("rpc", &["types", "runtime"]),
    ("engine", &["types", "runtime"]),
    ("meta", &["types", "runtime", "rpc", "engine"]),
    ("coordinator", &["types", "runtime", "rpc", "engine"]),
    ("store", &["types", "runtime", "rpc", "engine"]),
    // A subtree that a client has for itself is served in it by the code of the servers.
    ("client", &["types", "runtime", "rpc", "engine", "meta", "coordinator", "dataset"]),
    ("fuse", &["types", "runtime"]),
    ("mount", &["types", "runtime", "client", "fuse"]),
    // Read by programs of users, below the preload library: no runtime, no threads.
    ("dataset", &["types"]),
    ("agent-api", &[]),
    ("preload", &["types", "dataset", "agent-api"]),
    ("agent", &["types", "runtime", "dataset", "agent-api", "client"]),
    ("cli", &["*"]),
    ("sim", &["*"]),
    // Compiles files of theirs once more, for its checker of threads.
    ("specs", &["rpc"]),
];

/// Crates of others that only some of ours may use: one door each to threads of an executor, to
/// the network, to chance.
const DOORS: [(&str, &[&str]); 5] = [
    ("tokio", &["runtime", "agent"]),
    ("axum", &["runtime"]),
    ("rand", &["runtime"]),
    ("mio", &["rpc"]),
    // Needs tokio.
    ("object_store", &["agent"]),
];

/// Checks the workspace that the working directory is in.
pub fn check() -> Result<String, Vec<String>> {
    let metadata = MetadataCommand::new().no_deps().exec().map_err(|e| vec![e.to_string()])?;
    let mut edges = 0;
    let mut problems = Vec::new();
    for package in &metadata.packages {
        let Some(name) = package.name.strip_prefix("saker-") else {
            problems.push(format!("{}: crates are called saker-*", package.name));
            continue;
        };
        for dependency in &package.dependencies {
            if dependency.kind != DependencyKind::Development {
                edges += 1;
                problems.extend(problem(name, &dependency.name));
            }
        }
    }
    if problems.is_empty() {
        Ok(format!("{edges} dependencies, all allowed"))
    } else {
        Err(problems)
    }
}

/// What is wrong with a dependency of one of our crates, if anything.
fn problem(name: &str, dependency: &str) -> Option<String> {
    if let Some(ours) = dependency.strip_prefix("saker-") {
        if name == "xtask" {
            return Some("xtask depends on nothing of ours".to_owned());
        }
        let Some((_, allowed)) = ALLOWED.iter().find(|(crate_name, _)| *crate_name == name) else {
            return Some(format!("{name}: not in the list of tools/xtask/src/deps.rs"));
        };
        let ok = allowed.contains(&"*") || allowed.contains(&ours);
        return (!ok).then(|| format!("{name} must not depend on {ours}"));
    }
    let (_, users) = DOORS.iter().find(|(door, _)| *door == dependency)?;
    (!users.contains(&name)).then(|| format!("{name} must not use {dependency}: only {users:?} do"))
}

#[cfg(test)]
mod tests {
    use super::problem;

    #[test]
    fn the_roles_meet_only_as_messages() {
        assert!(problem("meta", "saker-store").is_some());
        assert!(problem("store", "saker-coordinator").is_some());
        assert!(problem("types", "saker-runtime").is_some());
        assert!(problem("fuse", "saker-client").is_some());
        assert!(problem("mount", "saker-rpc").is_some());
        assert!(problem("meta", "tokio").is_some());
        assert!(problem("unheard-of", "saker-types").is_some());
        assert!(problem("meta", "saker-engine").is_none());
        assert!(problem("cli", "saker-meta").is_none());
        assert!(problem("meta", "bytes").is_none());
    }
}
