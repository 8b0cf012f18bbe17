//! The command line.

use std::ffi::OsString;
use std::path::Path;

use clap::{CommandFactory, Parser, Subcommand};

use crate::cmd;
use crate::cmd::mount::MOUNT_USAGE;
use crate::fail::{Outcome, USAGE};
use crate::signals;

/// Exit code of a wrong command line of fsck(8).
const FSCK_USAGE: u8 = 16;

#[derive(Parser)]
#[command(
    name = "saker",
    version,
    about = "Saker: a distributed file system for deep-learning data",
    long_about = "Saker: a distributed file system for deep-learning data.\n\n\
        One program: the roles of a cluster (coordinator, MNodes, stores, mounts) and the tools \
        around it. `saker up` starts a whole cluster on this machine; `saker mount` and `saker fs` \
        use one.",
    after_long_help = "CLUSTER\n  host:port[,host:port...] of coordinators, or a directory that \
        `saker up` made.\n  Default: $SAKER_CLUSTER, then ./.saker.\n\n\
        ENVIRONMENT\n  SAKER_CLUSTER  the cluster, where none is given\n  \
        SAKER_LOG      what is logged on stderr, as error, info, saker_meta=debug\n\n\
        EXIT CODES\n  0 done, 1 failed, 2 wrong command line; mount as mount(8), fsck as fsck(8).\n  \
        An error is one line: saker: WHAT: WHY.",
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// One value of this exists, for a moment: its size does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Subcommand)]
enum Command {
    Up(cmd::up::Args),
    Down(cmd::down::Args),
    Serve(cmd::serve::Args),
    Mount(cmd::mount::Args),
    Umount(cmd::mount::UmountArgs),
    Fs(cmd::fs::Args),
    Policy(cmd::policy::Args),
    Status(cmd::status::Args),
    Fsck(cmd::fsck::Args),
    Rmr(cmd::rmr::Args),
    Dataset(cmd::dataset::Args),
    Journal(cmd::journal::Args),
    Bench(cmd::bench::Args),
    #[command(hide = true)]
    Supervise(cmd::supervise::Args),
}

/// Runs the command that the process's arguments name. Returns the name to begin messages with.
pub fn parse_and_run() -> (&'static str, Outcome<u8>) {
    let args: Vec<OsString> = std::env::args_os().collect();
    if is_mount_helper(&args) {
        return ("mount.saker", cmd::mount::run_helper(&args));
    }
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => return ("saker", Ok(explain(&error, &args))),
    };
    let serves = matches!(
        cli.command,
        Command::Serve(_) | Command::Supervise(_) | Command::Mount(_) | Command::Up(_)
    );
    if !serves {
        signals::end_at_broken_pipe();
    }
    let outcome = match cli.command {
        Command::Up(args) => cmd::up::run(&args),
        Command::Down(args) => cmd::down::run(&args),
        Command::Serve(args) => cmd::serve::run(&args),
        Command::Mount(args) => cmd::mount::run(&args),
        Command::Umount(args) => cmd::mount::run_umount(&args),
        Command::Status(args) => cmd::status::run(&args),
        Command::Fsck(args) => cmd::fsck::run(&args),
        Command::Fs(args) => cmd::fs::run(&args),
        Command::Policy(args) => cmd::policy::run(&args),
        Command::Rmr(args) => cmd::rmr::run(&args),
        Command::Dataset(args) => cmd::dataset::run(&args),
        Command::Journal(args) => cmd::journal::run(&args),
        Command::Bench(args) => cmd::bench::run(&args),
        Command::Supervise(args) => cmd::supervise::run(&args),
    };
    ("saker", outcome)
}

/// Prints clap's explanation, and gives the exit code that the command's manual promises.
fn explain(error: &clap::Error, args: &[OsString]) -> u8 {
    // Nothing can be said when the output is closed.
    let _ = error.print();
    if !error.use_stderr() {
        return 0;
    }
    match args.get(1).and_then(|arg| arg.to_str()) {
        Some("fsck") => FSCK_USAGE,
        Some("mount" | "umount") => MOUNT_USAGE,
        _ => USAGE,
    }
}

/// Does mount(8) call? By the name of a helper, or through mount.fuse(8), which runs
/// `saker SPEC DIR -o OPTS` for the type fuse.saker.
fn is_mount_helper(args: &[OsString]) -> bool {
    let name = args.first().and_then(|arg| Path::new(arg).file_name());
    if name.is_some_and(|name| name == "mount.saker" || name == "mount.fuse.saker") {
        return true;
    }
    let [_, spec, dir, option, ..] = args else { return false };
    let is_command = Cli::command().find_subcommand(spec).is_some();
    option == "-o" && !is_command && Path::new(dir).is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_mount_helper_is_known_by_its_name_or_its_arguments() {
        let is = |line: &str| {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            is_mount_helper(&args)
        };
        assert!(is("/sbin/mount.saker host:1 /x"));
        assert!(is("/sbin/mount.fuse.saker host:1 /x -o ro"));
        assert!(is("saker host:1 /tmp -o ro"));
        assert!(!is("saker mount host:1 /tmp -o ro"));
        assert!(!is("saker mount /tmp -o ro"));
        assert!(!is("saker host:1 /not/there -o ro"));
    }
}
