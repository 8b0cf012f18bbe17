//! `saker dataset freeze`: a directory of the cluster becomes a dataset that the cluster keeps.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use saker_client::datasets::{self, ClusterTree, FreezeProgress, FrozenDataset};
use saker_dataset::pack::Options;
use saker_dataset::{Codec, Dataset, Error, Problem};
use saker_runtime::time;

use super::pack::pack_into;
use super::{failure, shown};
use crate::fail::{Context, Failure, Outcome};
use crate::session::{self, CliSession, ClusterArg};
use crate::{format, progress, signals};

/// How often the progress is shown.
const LOOK: std::time::Duration = std::time::Duration::from_millis(100);

/// Freeze a directory of the cluster under a name and a version.
///
/// What is below PATH now is packed and stored in the cluster, where it never changes any more:
/// clients find it at /.datasets/NAME@VERSION, and writing there is an error (EROFS). PATH itself
/// stays as it is. Versions share the partitions that have not changed. Nothing may write below
/// PATH meanwhile: a file that changes is named, and nothing is frozen.
///
/// The dataset is packed in a scratch directory of this machine first, which needs room for all of
/// it. A run that was stopped or killed goes on where it was.
#[derive(clap::Args)]
#[command(
    after_long_help = "EXAMPLES\n  saker dataset freeze /data/imagenet imagenet@2026.11 --partitions 48\n  \
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
    /// Where a directory is made that it is packed in first [default: $TMPDIR].
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Print one JSON document: what was frozen.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Outcome<u8> {
    datasets::check_name(&args.name).map_err(|e| Failure::usage(&args.name, e))?;
    signals::catch_interrupt();
    if args.packed {
        let session = session::connect(&args.cluster.name(), Default::default())?;
        return store(args, &session, &args.path);
    }
    if args.partitions == 0 {
        return Err(Failure::usage("--partitions", "at least one"));
    }
    let (session, paths) = session::open(&args.cluster, std::slice::from_ref(&args.path))?;
    let (at, entry) = session.find(&paths[0], true)?;
    if !entry.attr.is_dir() {
        return Err(Failure::usage(args.path.display(), "not a directory"));
    }
    let source = ClusterTree::new(&session.fs, &session.who, at);
    // One of its own, which is removed with all that is in it.
    let scratch = args.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let scratch = scratch.join(format!("saker-freeze-{}-{}", session.who.uid, args.name));
    make_own(&scratch)?;
    let (partitions, codec) = (args.partitions, args.compress);
    let options = Options { partitions, codec, ..Options::default() };
    // One that is whole was packed by a run that could not store it.
    if Dataset::open(&scratch).is_ok() {
        std::fs::remove_dir_all(&scratch).about(scratch.display())?;
    }
    pack_into(&source, &scratch, &options)?;
    let code = store(args, &session, &scratch)?;
    std::fs::remove_dir_all(&scratch).about(scratch.display())?;
    Ok(code)
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

fn store(args: &Args, session: &CliSession, dir: &Path) -> Outcome<u8> {
    let packed = Dataset::open(dir).map_err(failure)?;
    if args.packed {
        must_be_whole(&packed)?;
    }
    let stored: u64 = packed.partitions().iter().map(|part| part.bytes).sum();
    let total = stored + packed.manifest().table_bytes;
    let (done, bar) = (FreezeProgress::default(), progress::Progress::of_bytes(total));
    let frozen = std::thread::scope(|scope| {
        let storing = scope.spawn(|| {
            let datasets = session.fs.datasets();
            session.fs.block_on(datasets.freeze(&session.who, &packed, &args.name, &done))
        });
        while !storing.is_finished() {
            time::sleep(LOOK);
            bar.set(done.bytes.load(Relaxed));
        }
        storing.join().map_err(|_| Failure::new(&args.name, "storing it broke"))
    });
    bar.done();
    let frozen: FrozenDataset = frozen?.about(&args.name)?;
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
        format::bytes(total),
        format::bytes(done.shared_bytes.load(Relaxed)),
    );
    println!("digest {}", manifest.digest);
    println!("at /.datasets/{name}");
    Ok(0)
}
