//! SEMANTICS.md is a promise: each of its examples is run. Needs root and /dev/fuse.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::path::Path;
use std::process::Command;

use saker_sim::cluster::{ClusterShape, RunningCluster, binary, can_mount};

/// An example: its heading, its line, its text.
struct Example {
    heading: String,
    line: usize,
    text: String,
}

fn examples(page: &str) -> Vec<Example> {
    let mut examples = Vec::new();
    let mut heading = String::new();
    let mut inside = false;
    for (n, line) in page.lines().enumerate() {
        match line {
            "```sh" => {
                inside = true;
                let (heading, text) = (heading.clone(), String::new());
                examples.push(Example { heading, line: n + 1, text });
            }
            "```" => inside = false,
            _ if inside => {
                let example = examples.last_mut().unwrap();
                example.text += line;
                example.text += "\n";
            }
            _ => {
                if let Some(title) = line.strip_prefix("## ") {
                    heading = title.to_owned();
                }
            }
        }
    }
    examples
}

/// `! command` does not stop `sh -e` when the command succeeds: say so.
fn strict(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix("! ") {
        Some(command) => format!("if {command}; then echo 'succeeded: {command}'; exit 1; fi\n"),
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

fn run(example: &Example, cluster: &RunningCluster, other: &Path) -> Result<(), String> {
    let name = format!("line-{}", example.line);
    let dir = cluster.mount().join(&name);
    std::fs::create_dir(&dir).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("timeout")
        .args(["60", "sh", "-eu", "-c", &strict(&example.text)])
        .current_dir(&dir)
        .env("OTHER", other.join(&name))
        .env("SAKER_CLUSTER", cluster.dir())
        .env("PATH", format!("{}:{path}", binary().parent().unwrap().display()))
        .output()
        .unwrap();
    if output.status.success() {
        return Ok(());
    }
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Err(format!("SEMANTICS.md:{} ({}): {out}{err}", example.line, example.heading))
}

#[test]
fn every_example_is_true() {
    if !can_mount("every_example_is_true") {
        return;
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../SEMANTICS.md");
    let examples = examples(&std::fs::read_to_string(page).unwrap());
    assert!(examples.len() >= 15, "only {} examples", examples.len());
    let cluster = RunningCluster::start(ClusterShape {
        mount: true,
        supervise: true,
        ..ClusterShape::default()
    });
    let other = cluster.second_mount();
    let failures: Vec<String> =
        examples.iter().filter_map(|example| run(example, &cluster, other.path()).err()).collect();
    assert!(
        failures.is_empty(),
        "{} of {}:\n{}",
        failures.len(),
        examples.len(),
        failures.join("\n")
    );
    eprintln!("{} examples are true", examples.len());
}

#[test]
fn a_command_that_must_fail_stops_the_example() {
    let status = |text: &str| {
        Command::new("sh").args(["-eu", "-c", &strict(text)]).output().unwrap().status.success()
    };
    assert!(status("! false"));
    assert!(!status("! true\ntrue"));
}
