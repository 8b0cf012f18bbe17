//! Mounts and commands for tests of policies.
#![allow(clippy::unwrap_used, dead_code)]

use std::path::Path;
use std::process::{Command, Output};

use saker_sim::cluster::{OwnMount, RunningCluster, binary};
use saker_sim::copier::is_mounted;
use saker_sim::wait::until;

/// A mount with options that works.
pub fn mounted(cluster: &RunningCluster, name: &str, options: &str) -> OwnMount {
    let mount = cluster.own_mount(name, options);
    until(name, || is_mounted(&mount.path("")));
    mount
}

/// Unmounts in order, and waits for the end of the process.
pub fn unmount(mut mount: OwnMount) {
    said(Command::new(binary()).arg("umount").arg(mount.path("")).output().unwrap());
    assert!(mount.process.wait().unwrap().success());
}

/// `saker policy merge` in a mount.
pub fn merge(path: &Path, options: &[&str]) -> String {
    let mut merge = Command::new(binary());
    said(merge.args(["policy", "merge"]).args(options).arg(path).output().unwrap())
}

/// What a command said, which must have succeeded.
pub fn said(output: Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}
