//! `saker dataset freeze`: a directory of the cluster becomes a dataset that the cluster keeps.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use saker_client::datasets::{
    self, ClusterTree, FreezeName, FreezeProgress, Freezing, FrozenDataset,
};
use saker_client::saker_types::Errno;
use saker_dataset::pack::{self, Options, Plan};
use saker_dataset::{Codec, Dataset, Error, Manifest, Problem};

use super::{failure, shown, waits_for};
use crate::fail::{Context, Failure, Outcome};
use crate::session::{self, CliSession, ClusterArg, ClusterPath};
use crate::{format, progress, signals};

/// Freeze a directory of the cluster under a name and a version.
///
/// What is below PATH now is packed and stored in the cluster, where it never changes any more:
/// clients find it at /.datasets/NAME@VERSION, and writing there is an error (EROFS). PATH itself
/// stays as it is. Versions share the partitions that have not changed. Nothing may write below
/// PATH meanwhile: a file that changes is named, and nothing is frozen.
///
/// A partition is packed on a scratch disk of this machine, and removed there once the cluster has
/// it. Two partitions have to fit there at once, and about 400 bytes for each file. A run that was
/// stopped or killed goes on where it was, when it is started again on the same machine.
///
/// While saker dataset gc runs, this waits.
#[derive(clap::Args)]
#[command(
    after_long_help = "EXAMPLES\n  saker dataset freeze /data/imagenet imagenet@2026.11 --partitions 48\n  \
    saker dataset freeze /data/imagenet imagenet@2026.11 --at /datasets/imagenet-2026.11\n  \
    saker dataset freeze --packed /scratch/imagenet imagenet@2026.12"
)]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArg,
    /// A directory in the cluster; one below a Saker mount is translated. With --packed, the
    /// directory on this machine that saker dataset pack has made.
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// NAME@VERSION: letters, digits, '.', '_' and '-'.
    #[arg(value_name = "NAME@VERSION")]
    name: String,
    /// PATH is a packed dataset.
    #[arg(long, conflicts_with_all = ["partitions", "compress", "scratch"])]
    packed: bool,
    /// Files to make. As many as there are nodes that will keep them, or a multiple of that.
    #[arg(short, long, value_name = "P", default_value_t = 1)]
    partitions: u32,
    /// How data is compressed: none, lz4, zstd or zstd:LEVEL.
    #[arg(short, long, value_name = "HOW", default_value = "none")]
    compress: Codec,
    /// Also show it at this path of the cluster, by a symbolic link. Nothing may be there yet, and the
    /// directory above must be there. saker dataset remove removes the link, too.
    #[arg(long, value_name = "PATH")]
    at: Option<PathBuf>,
    /// Where a directory for what is being packed is made [default: $TMPDIR].
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Print one JSON document: what was frozen.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Outcome<u8> {
    datasets::check_name(&args.name).map_err(|e| Failure::usage(&args.name, e))?;
    signals::catch_interrupt();
    let done = FreezeProgress::default();
    let frozen = match args.packed {
        true => store(args, &done)?,
        false => pack(args, &done)?,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&frozen).about("json")?);
        return Ok(0);
    }
    let FrozenDataset { name, manifest, .. } = &frozen;
    println!(
        "{name}: {} files, {} in {} partitions of {} ({} of it was there already)",
        manifest.files,
        format::bytes(manifest.bytes),
        manifest.partitions.len(),
        format::bytes(stored_bytes(&frozen.manifest)),
        format::bytes(done.shared_bytes.load(Relaxed)),
    );
    println!("digest {}", manifest.digest);
    println!("at /.datasets/{name}");
    if let Some(path) = &frozen.at {
        println!("at {path}");
    }
    Ok(0)
}

fn stored_bytes(manifest: &Manifest) -> u64 {
    let stored: u64 = manifest.partitions.iter().map(|part| part.stored).sum();
    stored + manifest.table_bytes
}

/// Connects, and says where in the cluster the directory that is frozen and the link are.
fn open(args: &Args) -> Outcome<(CliSession, Vec<ClusterPath>)> {
    let frozen = (!args.packed).then_some(&args.path);
    let paths: Vec<PathBuf> = frozen.into_iter().chain(&args.at).cloned().collect();
    session::open(&args.cluster, &paths)
}

/// Begins, when nobody collects.
fn begin<'a>(
    args: &'a Args,
    session: &'a CliSession,
    paths: &'a [ClusterPath],
    done: &'a FreezeProgress,
) -> Outcome<Freezing<'a>> {
    let (fs, waits) = (&session.fs, waits_for("saker dataset gc"));
    let at = paths.last().filter(|_| args.at.is_some()).map(|at| &at.path[..]);
    let name = FreezeName { name: &args.name, at };
    fs.block_on(fs.datasets().begin(&session.who, name, done, waits)).about(&args.name)
}

/// Freezes what `saker dataset pack` has made.
fn store(args: &Args, done: &FreezeProgress) -> Outcome<FrozenDataset> {
    let packed = Dataset::open(&args.path).map_err(failure)?;
    must_be_whole(&packed)?;
    let (session, paths) = open(args)?;
    let freezing = begin(args, &session, &paths, done)?;
    let bar = progress::Progress::of_bytes(stored_bytes(packed.manifest()));
    let frozen = progress::watch(
        || session.fs.block_on(freezing.freeze(&packed)),
        || {
            done.stop.fetch_or(signals::interrupted(), Relaxed);
            bar.set(done.bytes.load(Relaxed));
        },
    );
    bar.done();
    frozen.about(&args.name)
}

/// Packs a directory of the cluster, and freezes it.
fn pack(args: &Args, done: &FreezeProgress) -> Outcome<FrozenDataset> {
    if args.partitions == 0 {
        return Err(Failure::usage("--partitions", "at least one"));
    }
    let (session, paths) = open(args)?;
    let (at, entry) = session.find(&paths[0], true)?;
    if !entry.attr.is_dir() {
        return Err(Failure::usage(args.path.display(), "not a directory"));
    }
    let source = ClusterTree::new(&session.fs, &session.who, at);
    let scratch = scratch(args, &session)?;
    let (partitions, codec) = (args.partitions, args.compress);
    let options = Options { partitions, codec, ..Options::default() };
    let freezing = begin(args, &session, &paths, done)?;
    let packed = Plan::of(&source).and_then(|plan| {
        let (packing, totals) = (pack::Progress::default(), plan.totals());
        let stops = [&packing.stop, &done.stop];
        super::pack::show(totals, &packing, &stops, || {
            pack::pack_objects(&source, plan, &scratch, &options, &packing, &freezing)
        })
    });
    let packed = match packed {
        Ok(packed) => packed,
        Err(error) => {
            // What is told is why; the lock ends with this client at the latest.
            let _ = session.fs.block_on(freezing.abandon());
            return Err(failure(error));
        }
    };
    let frozen = session.fs.block_on(freezing.finish(packed.manifest, &packed.table));
    let is_over = frozen.as_ref().map_or_else(|e| e.errno() == Errno::EEXIST, |_| true);
    if is_over {
        std::fs::remove_dir_all(&scratch).about(scratch.display())?;
    }
    frozen.about(&args.name)
}

/// The directory that is packed in: made, or that of an earlier run.
fn scratch(args: &Args, session: &CliSession) -> Outcome<PathBuf> {
    let above = args.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let scratch = above.join(format!("saker-freeze-{}-{}", session.who.uid, args.name));
    make_own(&scratch)?;
    Ok(scratch)
}

/// Makes a directory, or takes the one that is there if it is this user's own: what another user can
/// change must not be frozen.
fn make_own(dir: &Path) -> Outcome {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let made = std::fs::DirBuilder::new().mode(0o700).recursive(true).create(dir);
    made.about(dir.display())?;
    let meta = std::fs::symlink_metadata(dir).about(dir.display())?;
    let is_own = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
    match is_own && meta.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(Failure::new(dir.display(), "others can write there: use --scratch")),
    }
}

/// Compares all of a packed dataset with its digests. Other datasets with the same digests share what
/// is stored, and clients do not compare data that is not compressed.
fn must_be_whole(packed: &Dataset) -> Outcome {
    let bar = progress::Progress::of_bytes(packed.manifest().bytes);
    let problems = packed.verify(|bytes| {
        bar.add(bytes);
        if signals::interrupted() { Err(Error::Interrupted) } else { Ok(()) }
    });
    bar.done();
    match problems.map_err(failure)?.into_iter().next() {
        None => Ok(()),
        Some(Problem { path: None, what }) => Err(Failure::new("dataset", what)),
        Some(Problem { path: Some(path), what }) => Err(Failure::new(shown(&path), what)),
    }
}
